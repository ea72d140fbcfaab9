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


def defines(path, function):
    """Whether the source has the function's body: at the start of a line in C, anywhere in Python."""
    pattern = rf"^\s*(?:async )?def {function}\(" if path.suffix == ".py" else rf"^(?!#)\w[\w \t*]*\b{function}\([^;{{]*\)\s*\{{"
    return re.search(pattern, path.read_text(), re.M)


NAMED = re.compile(r"`((?:src|python)/[\w/.-]+)`(?:: ((?:`\w+\(\)`(?:, )?)+))?")


def test_sources_that_the_guide_names():
    """docs/guide-contributors.md: each `FILE` exists, and `FILE`: `FUNCTION()` is defined there."""
    named = NAMED.findall((ROOT / "docs" / "guide-contributors.md").read_text())
    assert sum(bool(functions) for _, functions in named) > 30
    missing = [file for file, _ in named if "NAME" not in file and not (ROOT / file).exists()]
    missing += [f"{file}: {function}()" for file, functions in named for function in re.findall(r"(\w+)\(", functions)
                if (ROOT / file).is_file() and not defines(ROOT / file, function)]
    assert not missing


def test_records_are_short_and_listed():
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"^- \[(\d{4})\]\((\S+)\) (.*?)(?: \(superseded\))?$", (folder / "README.md").read_text(), re.M)
    records = sorted(p for p in folder.glob("0*.md"))
    assert sorted(listed) == [(p.name[:4], p.name, p.read_text().splitlines()[0].removeprefix(f"# {p.name[:4]}: ")) for p in records]
    assert [p.name for p in records if len(p.read_text().splitlines()) > 60] == []


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
