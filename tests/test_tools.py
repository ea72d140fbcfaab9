# SPDX-License-Identifier: Apache-2.0
"""The tools that judge the rest must themselves be able to say no."""
import importlib.machinery
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

import lib_host
import pytest

TOP = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture
def check(monkeypatch):
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    loader = importlib.machinery.SourceFileLoader("tools_check", str(TOP / "tools/check"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


@pytest.mark.parametrize("name, out, rc, passed, failed, skipped", [
    ("good", "1..2\nok 1 - a\nok 2 - b\n# ok - tests\n", 0, 2, 0, 0),
    ("plan at the end", "ok 1 - a\n1..1\n", 0, 1, 0, 0),
    ("a failure", "1..2\nnot ok 1 - a\n# x.c:3: error\nok 2 - b\n", 1, 1, 1, 0),
    ("a skip", "1..1\nok 1 - a # SKIP no io_uring\n", 0, 0, 0, 1),
    ("cmocka's skip", "1..1\nnot ok 1 # SKIP a\n", 0, 0, 0, 1),
    ("a crash", "1..3\nok 1 - a\n", -11, 1, 1, 0),
    ("a hang", "1..3\nok 1 - a\n", None, 1, 1, 0),
    ("stops short", "1..3\nok 1 - a\n", 0, 1, 1, 0),
    ("nothing in it", "1..0\n", 0, 0, 1, 0),
    ("no TAP", "hello\n", 0, 0, 1, 0),
    ("a leak at the end", "1..1\nok 1 - a\n==1==ERROR: LeakSanitizer: detected memory leaks\n", 23, 1, 1, 0),
    ("a race that continued", "1..1\nWARNING: ThreadSanitizer: data race\nok 1 - a\n", 0, 1, 1, 0),
    ("a status of its own", "1..1\nok 1 - a\n", 3, 1, 1, 0),
])
def test_tap(check, tmp_path, name, out, rc, passed, failed, skipped):
    stage = check.Stage("x", tmp_path)
    check.tap(stage, "prog", out, rc, 10)
    assert (stage.passed, len(stage.failures), len(stage.skipped)) == (passed, failed, skipped), stage.failures


def test_a_stage_beyond_its_budget_fails(check, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(check, "CHECK", {"layers": lambda stage, args: stage.expect(True, "x", "")})
    monkeypatch.setattr(sys, "argv", ["check", "--build", str(tmp_path)])
    (tmp_path / "build.ninja").touch()
    for seconds, status in ((10, 0), (-1, 1)):
        monkeypatch.setattr(check, "read_budgets", lambda: {"layers": seconds})
        assert check.main() == status
        assert ("tools/budgets.txt" in capsys.readouterr().out) == bool(status)


def test_stages_overlap(check, monkeypatch, tmp_path, capsys):
    """Two at a time, in the order of their needs; what needs a stage that failed is not run; some are alone."""
    order = tmp_path / "order"

    def stage(name, good=True):
        def run(stage, args):
            with open(order, "a") as f:
                f.write(f"+{name}\n")
            if name == "a":  # until another one has begun beside it
                lib_host.wait_for(lambda: "+b" in order.read_text())
            stage.expect(good, name, "as it should")
            with open(order, "a") as f:
                f.write(f"-{name}\n")
        return run

    monkeypatch.setattr(check, "CHECK", {"a": stage("a"), "c": stage("c"), "b": stage("b", good=False), "d": stage("d"), "alone": stage("alone")})
    monkeypatch.setattr(check, "EXTRA", {})
    monkeypatch.setattr(check, "NEEDS", {"c": ["a", "b"], "d": ["a"]})
    monkeypatch.setattr(check, "ALONE", {"alone"})
    monkeypatch.setattr(check, "read_budgets", lambda: dict.fromkeys(check.CHECK, 100))
    monkeypatch.setattr(sys, "argv", ["check", "--build", str(tmp_path)])
    assert check.main() == 1
    begun = order.read_text().split()
    assert sorted(begun) == sorted(f"{sign}{name}" for name in ("a", "b", "d", "alone") for sign in "+-")
    assert begun.index("+b") < begun.index("-a") < begun.index("+d") and begun[-2:] == ["+alone", "-alone"]
    out = capsys.readouterr().out
    assert "failed [b] b: as it should" in out and "failed [c] c: not run: b failed" in out and "3 passed, 2 failed" in out


def test_every_stage_has_a_budget(check):
    assert set(check.read_budgets()) == {*check.CHECK, *check.EXTRA}


def test_check_layers_finds_each_breach():
    done = subprocess.run([TOP / "tools/check-layers", "--self-test"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def deps(tmp_path, installed, *groups, uid="1000"):
    """tools/deps with a dpkg-query and an id of our own in PATH, and an apt-get that must not be called."""
    for name, text in (("dpkg-query", "".join(f"echo 'installed {p}'\n" for p in installed)),
                       ("id", f"echo {uid}\n"), ("apt-get", "echo called >&2; exit 100\n")):
        (tmp_path / name).write_text("#!/bin/sh\n" + text)
        (tmp_path / name).chmod(0o755)
    return subprocess.run([TOP / "tools/deps", *groups], capture_output=True, text=True,
                          env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})


def test_deps_prints_one_line_for_those_who_are_not_root(tmp_path):
    done = deps(tmp_path, ["util-linux", "procps", "iproute2", "python3-h5py"], "test")
    assert done.returncode == 1
    assert [line for line in done.stderr.splitlines() if line.startswith("sudo ")] == [done.stderr.splitlines()[-1]]
    assert "python3-pytest" in done.stderr and "procps" not in done.stderr


def test_deps_says_nothing_when_nothing_is_missing(tmp_path):
    listed = subprocess.run([TOP / "tools/deps", "--list", "test", "fuzz"], capture_output=True, text=True, check=True).stdout.split()
    done = deps(tmp_path, listed, "test", "fuzz")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_deps_knows_its_groups(tmp_path):
    done = deps(tmp_path, [], "tset")
    assert done.returncode == 2 and "no group 'tset'" in done.stderr


def test_deps_reports_what_apt_could_not_do(tmp_path):
    done = deps(tmp_path, [], "lint", uid="0")
    assert done.returncode == 1 and "called" in done.stderr


def run_without_make(tmp_path, uid, *arguments):
    """./run where PATH has no make, a dpkg-query that knows no package, and an apt-get that puts a `make` there."""
    for name in "awk cat chmod dirname env find head mktemp rm sed sh stat tail".split():
        (tmp_path / name).symlink_to(shutil.which(name))
    for name, text in (("id", f"echo {uid}"), ("dpkg-query", "exit 1"),
                       ("apt-get", f"""printf '#!/bin/sh\\necho made "$@"\\n' >{tmp_path}/make; chmod +x {tmp_path}/make""")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    return subprocess.run(["/bin/sh", TOP / "run", *arguments], capture_output=True, text=True, cwd="/", env={"PATH": str(tmp_path)})


def test_run_installs_make_as_root(tmp_path):
    done = run_without_make(tmp_path, 0, "check", "JOBS=1")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "made check JOBS=1"), done.stderr


def test_run_prints_one_line_to_type_for_other_users(tmp_path):
    done = run_without_make(tmp_path, 1000, "check")
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith("sudo ") and " make" in done.stderr.splitlines()[-1]


def test_run_without_a_target_says_how_it_is_used(tmp_path):
    done = run_without_make(tmp_path, 1000)
    assert done.returncode == 2 and "./run check" in done.stdout and not done.stderr


@pytest.mark.skipif(not shutil.which("make"), reason="no make")
def test_help_lists_every_target():
    out = subprocess.run(["make", "-C", TOP], capture_output=True, text=True).stdout
    for target in "deps build demo check check-all bench fuzz fmt lint install uninstall wheel clean".split():
        assert f"make {target}" in out


@pytest.mark.parametrize("end, status", [("exit 0", 0), ("exit 3", 3), ("kill -SEGV $$", -11), ("kill -KILL $$", -9)])
def test_tap_hides_no_failure(end, status):
    """tools/tap mends cmocka's skips alone: failures, the plan and the end go through."""
    text = ["1..4", "ok 1 - a", "not ok 2 - SKIP b", "not ok 3 # SKIP c d", "# not ok 3 # SKIP x", "not ok 4 - e # SKIP"]
    done = subprocess.run([TOP / "tools" / "tap", "sh", "-c", 'printf "%s\\n" "$@"; ' + end, "sh", *text],
                          capture_output=True, text=True)
    assert done.returncode == status and done.stderr == ""
    assert done.stdout.splitlines() == [*text[:3], "ok 3 - c d # SKIP", *text[4:]]


def test_a_benchmark_that_is_not_there_is_an_error(tmp_path):
    build = pathlib.Path(os.environ.get("LEAT_BUILD", TOP / "build"))
    if not (build / "bench/read_leat").exists():
        pytest.skip("this build has no benchmarks")
    out = subprocess.run([sys.executable, TOP / "bench/run", "store", "--only", "store.put.65k", "--json", "--build", build],
                         capture_output=True, text=True, env={**os.environ, "LEAT_BENCH_DIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"})
    assert out.returncode == 2 and out.stdout == ""
    assert "no such metric" in out.stderr and "store.put.64k.cpu" in out.stderr
