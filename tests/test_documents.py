# SPDX-License-Identifier: Apache-2.0
"""What the documents say holds: README's first dataset runs, links lead somewhere."""

import pathlib
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.plain

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENTS = sorted(p for p in ROOT.rglob("*.md") if not p.relative_to(ROOT).parts[0].startswith(("build", ".")))


def test_first_dataset_of_the_readme(tmp_path, user_env):
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    assert len(blocks) == 1
    assert sum(bool(line.strip()) for line in blocks[0].splitlines()) == 6, "the first screen has room for six lines"
    script = tmp_path / "first.py"
    script.write_text(blocks[0] + "print(len(loader.ws), batch.position)\n")
    done = subprocess.run([sys.executable, script], cwd=tmp_path, env=user_env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"10000 {155 * 64}\n"), done.stderr


def test_readme_gives_both_commands_first():
    code = re.search(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S).group(1)
    assert [line.split("#")[0].strip() for line in code.splitlines()] == ["./run demo", "./run check"]


def test_figures_of_the_readme():
    """Its table has only figures that stand in the benchmarks."""
    table = re.search(r"^\| what \| Leat \|.*\n\|[-|]+\n((?:\|.*\n)+)", (ROOT / "README.md").read_text(), re.M).group(1)
    measured = (ROOT / "docs" / "benchmarks.md").read_text()
    for row in table.splitlines():
        what, *cells = row.strip("|").split("|")
        figures = re.findall(r"\d[\d.,]*\d", " ".join(cells))
        assert figures
        for figure in figures:
            assert re.search(rf"(?<![\d.,]){re.escape(figure)}(?![\d.,]*\d)", measured), f"{what}: {figure}"


def anchors(document):
    for heading in re.findall(r"^#+ (.*)$", document.read_text(), re.M):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links(document):
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.M | re.S)
    text = re.sub(r"`[^`\n]*`", "", text)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), f"{link} leads nowhere"
        if anchor:
            assert anchor in anchors(target), f"{link}: no such heading"
