# SPDX-License-Identifier: Apache-2.0
"""The command line: help screens, errors, exit codes, JSON, man pages and completion that agree with it, the doctor
on recorded hosts, and every command against a real daemon."""

import base64
import json
import os
import pathlib
import pty
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys

import lib_host
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
APPS = pathlib.Path(os.environ.get("LEAT_BUILD", ROOT / "build")) / "src" / "apps"
LEAT = pathlib.Path(os.environ.get("LEAT_BIN", APPS / "leat"))
LEATD = APPS / "leatd"
LIBRARY = APPS.parent.parent / "libleat.so"
MAN = ROOT / "docs" / "man"

pytestmark = pytest.mark.skipif(not LEAT.exists(), reason=f"{LEAT} is not built")
needs_daemon = pytest.mark.skipif(not LEATD.exists(), reason=f"{LEATD} is not built")

COMMANDS = "preload append index convert cp ls stat cat drop verify replay status top stop doctor topo serve bucket scrub help".split()


def leat(*args, env=None, check=None, **kwargs):
    """Runs leat; `check` is the exit code that it must have."""
    full = dict(os.environ, LC_ALL="C.UTF-8", **(env or {}))
    kwargs.setdefault("timeout", 60)
    done = subprocess.run([LEAT, *map(os.fspath, args)], capture_output=True, env=full, stdin=subprocess.DEVNULL, **kwargs)
    if check is not None:
        assert done.returncode == check, (args, done.stdout[-2000:], done.stderr[-2000:])
    return done


# --- help ------------------------------------------------------------------------------------------------------


def options_of_help(*command):
    text = leat(*command, "--help", check=0).stdout.decode()
    own, _, of_all = text.partition("options of all commands:\n")
    option = re.compile(r"^  (?:-\w,|   ) --([a-z-]+)", re.M)
    return set(option.findall(own)), set(option.findall(of_all))


def options_of_page(page):
    """Long options that head a paragraph of the page's OPTIONS."""
    section = re.search(r"^# OPTIONS\n(.*?)(?=^# |\Z)", (MAN / page).read_text(), re.M | re.S).group(1)
    heads = [line for line in section.splitlines() if line.startswith("*-")]
    return {name for line in heads for name in re.findall(r"\*--([a-z-]+)\*", line)}


def test_help_lists_every_command():
    text = leat("--help", check=0).stdout.decode()
    assert re.findall(r"^  ([a-z]+) ", text.split("commands:")[1].split("\n\n")[0], re.M) == COMMANDS
    assert leat("help", check=0).stdout.decode() == text


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command(command):
    done = leat(command, "--help", check=0)
    text = done.stdout.decode()
    assert done.stderr == b""
    assert text.startswith(f"leat {command}: ")
    assert f"usage: leat {command} " in text and "examples:\n  leat " in text
    assert max(map(len, text.splitlines())) <= 110
    assert leat("help", command, check=0).stdout == done.stdout


@pytest.mark.parametrize("command", [c for c in COMMANDS if c != "help"])
def test_help_and_man_page_name_the_same_options(command):
    own, of_all = options_of_help(command)
    assert options_of_page(f"leat-{command}.1.scd") == own
    assert options_of_page("leat.1.scd") == of_all


@needs_daemon
def test_leatd_help_and_man_page_name_the_same_options():
    text = subprocess.run([LEATD, "--help"], capture_output=True, timeout=30, check=True).stdout.decode()
    assert set(re.findall(r"^\s+(?:-\w, *)?--([a-z-]+)", text, re.M)) == options_of_page("leatd.8.scd")


def test_version():
    assert re.fullmatch(rb"leat \d+\.\d+\.\d+\n", leat("--version", check=0).stdout)


@pytest.mark.skipif(not shutil.which("scdoc"), reason="scdoc is not installed")
@pytest.mark.parametrize("page", sorted(p.name for p in MAN.glob("*.scd")))
def test_man_page_compiles(page):
    source = (MAN / page).read_bytes()
    done = subprocess.run(["scdoc"], input=source, capture_output=True, timeout=30)
    assert done.returncode == 0, done.stderr.decode()


# --- usage errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args, words",
    [
        (["prelod"], "unknown command prelod (did you mean preload?)"),
        (["frobnicate"], "unknown command frobnicate; see"),
        (["help", "lss"], "did you mean ls?"),
        (["preload", "--nmae", "x"], "unknown option --nmae (did you mean --name?)"),
        (["ls", "--xyzzy"], "unknown option --xyzzy; see"),
        (["ls", "-z"], "unknown option -z"),
        (["ls", "-lz"], "unknown option -z"),
        (["ls", "--long=3"], "option --long takes no argument"),
        (["ls", "--l"], "option --l is ambiguous"),
        (["preload", "--name"], "option --name needs an argument"),
        (["preload", "x"], "--name NAME is needed"),
        (["preload", "--name", "x"], "give the dataset: a path, a URI"),
        (["preload", "d", "--name", "a/b"], "a set's name"),
        (["preload", "d", "--name", ""], "a set's name"),
        (["preload", "a=1", "b", "--name", "x"], "FIELD=PATH"),
        (["preload", "a=1", "b=2;3", "--name", "x"], "semicolon"),
        (["preload", "d", "--name", "x", "--pool", "many"], "--pool many: give a size"),
        (["preload", "d", "--name", "x", "--pool", "-4G"], "give a size"),
        (["append", "x"], "give the set's name"),
        (["index"], "give the dataset: a path, a URI"),
        (["stat"], "give one set's name"),
        (["stat", "a", "b"], "give one set's name"),
        (["cat", "a"], "then a key or an index"),
        (["drop"], "give one set's name"),
        (["verify"], "give one set's name"),
        (["status", "x"], "no argument is expected"),
        (["top", "x"], "no argument is expected"),
        (["top", "--interval", "0.01"], "0.1 or more"),
        (["stop", "x"], "no argument is expected"),
        (["scrub", "x"], "no argument is expected"),
        (["scrub", "--now", "--stop"], "exclude each other"),
        (["scrub", "--no-wait"], "goes with --now"),
        (["ls", "a", "b", "c"], "c: a name and a prefix at most"),
        (["ls", "s3://a", "b"], "b: one address at a time"),
        (["ls", "-r", "a"], "for s3://BUCKET/PREFIX"),
        (["ls", "s3://"], "give a bucket, s3://BUCKET"),
        (["cp", "a"], "what to copy, and where to"),
        (["cp", "a", "b"], "both of this machine"),
        (["cp", "a", "https://h/b"], "read only"),
        (["cp", "s3://b/", "x"], "copied by -r"),
        (["cp", "-r", "https://h/b", "x"], "no lists"),
        (["cp", "s3://b/a", "s3://b/c", "x"], "several sources"),
        (["bucket"], "create, and the new bucket's name"),
        (["bucket", "make", "x"], "create, and the new bucket's name"),
        (["bucket", "create", "ab"], "3 to 63 of a-z, 0-9"),
        (["bucket", "create", "My-Bucket"], "3 to 63 of a-z, 0-9"),
        (["bucket", "create", "s3://x"], "without s3://"),
        (["bucket", "create", "x", "--mode", "back"], "--remote URL"),
        (["bucket", "create", "x", "--remote", "file:///x", "--check-age", "0"], "whole number of seconds"),
        (["ls", "--limit", "x"], "--limit x"),
        (["ls", "--timeout", "0"], "--timeout 0"),
        (["ls", "--timeout", "x"], "--timeout x"),
        (["ls", "--progress", "much"], "one of auto, bar, json, none"),
        (["doctor", "/", "/"], "one path at most"),
        (["topo", "x"], "no argument is expected"),
        (["topo", "--gpu", "-1"], "--gpu -1: give a GPU's number"),
        (["topo", "--gpu", "63"], "there is no GPU 63"),
        (["topo", "--cpus", "3-1"], "--cpus 3-1: give a list"),
        (["topo", "--rails", "nic77"], "there is no NIC nic77 here"),
    ],
)
def test_usage_errors(args, words):
    done = leat(*args, check=2)
    assert words in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1 and done.stdout == b""


@pytest.mark.parametrize("text, words, code", [
    (None, "state.json: No such file or directory", 3),
    ("hello", "state.json, line 1: ", 1),
    ("", "this is not what json.dump(loader.state_dict(), file) writes", 1),
])
def test_a_state_that_is_none(tmp_path, text, words, code):
    if text is not None:
        (tmp_path / "state.json").write_text(text)
    assert words in leat("replay", "--state", tmp_path / "state.json", "--step", "1", check=code).stderr.decode()


def test_scrub_where_no_server_is():
    with socket.socket() as taken:  # bound, and not listened on
        taken.bind(("127.0.0.1", 0))
        done = leat("scrub", "--endpoint-url", f"http://127.0.0.1:{taken.getsockname()[1]}", check=6)
    assert b"no server listens there: --endpoint-url" in done.stderr


def test_no_command_prints_the_list_and_fails():
    done = leat(check=2)
    assert b"commands:" in done.stderr and done.stdout == b""


def test_a_full_standard_output_is_an_error():
    with open("/dev/full", "wb") as full:
        done = subprocess.run([LEAT, "--help"], stdout=full, stderr=subprocess.PIPE, timeout=30)
    assert done.returncode == 1
    assert b"standard output: No space left on device" in done.stderr


def test_global_options_stand_on_either_side():
    for args in (["--json", "doctor", "--no-measure"], ["doctor", "--no-measure", "--json"]):
        json.loads(leat(*args).stdout)


# --- completion ------------------------------------------------------------------------------------------------


def complete(line):
    words = line.split(" ")
    script = (
        f"source {ROOT}/packaging/completions/leat.bash; COMP_WORDS=({LEAT} {' '.join(repr(w) for w in words[1:])}); "
        f"COMP_CWORD={len(words) - 1}; _leat; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, timeout=30)
    return done.stdout.decode().split()


def test_completion():
    assert complete("leat st") == ["stat", "status", "stop"]
    assert complete("leat help pre") == ["preload"]
    assert set(complete("leat preload --")) == {"--" + o for s in options_of_help("preload") for o in s}
    assert complete("leat --progress j") == ["json"]
    assert f"{ROOT}/meson.build" in complete(f"leat index {ROOT}/meson.b")


# --- doctor ----------------------------------------------------------------------------------------------------

LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max open files            {files:<20} {files_hard:<20} files
Max locked memory         {memlock:<20} {memlock_hard:<20} bytes
"""
GOOD = {
    "proc/sys/kernel/osrelease": "6.1.0-18-amd64",
    "proc/meminfo": "MemTotal:       16777216 kB\nMemAvailable:   12582912 kB\nCommitLimit: 9000000 kB\nCommitted_AS: 100 kB\n",
    "proc/self/cgroup": "0::/\n",
    "proc/self/status": "Name:\tleat\nCapEff:\t0000000000000000\n",
    "proc/self/limits": LIMITS.format(files=65536, files_hard=65536, memlock="unlimited", memlock_hard="unlimited"),
    "proc/sys/vm/overcommit_memory": "0",
    "proc/sys/kernel/io_uring_disabled": "0",
    "sys/kernel/mm/transparent_hugepage/shmem_enabled": "always within_size [advise] never deny force",
    "probe/io_uring": "0",
    "probe/memfd": "0",
}
GIB = 1 << 30
SHMEM = "sys/kernel/mm/transparent_hugepage/shmem_enabled"


@pytest.fixture
def doctor(tmp_path):
    def run(changes, *args):
        for name, text in {**GOOD, **changes}.items():
            if text is not None:
                (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / name).write_text(text + "\n")
        done = leat("doctor", "--json", *args, env={"LEAT_DOCTOR_ROOT": str(tmp_path)})
        document = json.loads(done.stdout)
        found = {c["name"]: c for c in document["checks"]}
        assert (done.returncode == 1) == (document["bad"] > 0 or ("--strict" in args and document["warn"] > 0))
        for check in found.values():
            # Whatever is not well has a price and, but for a refusal of unknown cause, a remedy.
            assert check["status"] in ("ok", "skipped") or check["cost"]
        return document, found

    return run


def test_doctor_on_a_good_host(doctor):
    document, found = doctor({})
    assert document["warn"] == document["bad"] == 0
    assert document["pool_bytes"] == 6 * GIB
    assert {n for n, c in found.items() if c["status"] == "skipped"} == {"ports", "slots", "nodes", "gpu rdma", "leatd", "runtime folder", "path"}


@pytest.mark.parametrize(
    "changes, args, check, status, mend",
    [
        ({"proc/sys/kernel/osrelease": "5.4.0"}, [], "kernel", "bad", "6.1"),
        ({"proc/sys/kernel/osrelease": "5.15.0-91-generic"}, [], "kernel", "warn", "6.1"),
        ({SHMEM: "always within_size advise [never] deny force"}, [], "huge pages", "warn", "echo advise | sudo tee /" + SHMEM),
        ({SHMEM: "always within_size advise [never] deny force", "probe/hugefs": "0"}, [], "huge pages", "ok", None),
        ({SHMEM: "[always] within_size advise never deny force"}, [], "huge pages", "ok", None),
        ({SHMEM: None}, [], "huge pages", "warn", "CONFIG_TRANSPARENT_HUGEPAGE"),
        (
            {SHMEM: "always advise [never]", SHMEM.replace("shmem", "hugepages-2048kB/shmem"): "always [advise] inherit never"},
            [], "huge pages", "ok", None,
        ),
        ({"probe/io_uring": "-1", "proc/sys/kernel/io_uring_disabled": "2"}, [], "io_uring", "warn", "sysctl -w kernel.io_uring_disabled=0"),
        ({"probe/io_uring": "-1"}, [], "io_uring", "warn", "seccomp"),
        ({"probe/io_uring": "-38"}, [], "io_uring", "warn", "CONFIG_IO_URING"),
        ({"probe/memfd": "-1"}, [], "memfd", "bad", "memfd_create"),
        ({"probe/memfd": "-13", "proc/sys/vm/memfd_noexec": "2"}, [], "memfd", "bad", "vm.memfd_noexec=1"),
        ({"proc/sys/vm/overcommit_memory": "2"}, [], "overcommit", "ok", None),
        ({"proc/sys/vm/overcommit_memory": "2"}, ["--pool", "20G"], "overcommit", "warn", "vm.overcommit_memory=0"),
        ({}, ["--pool", "20G"], "memory", "bad", "--pool 6144M"),
        (
            {"proc/self/limits": LIMITS.format(files=1024, files_hard=1048576, memlock=8388608, memlock_hard=8388608)},
            [], "memlock", "warn", "limits.d/leat.conf",
        ),
        (
            {"proc/self/limits": LIMITS.format(files=1024, files_hard=1048576, memlock=8388608, memlock_hard="unlimited")},
            [], "memlock", "warn", "ulimit -l unlimited",
        ),
        (
            {
                "proc/self/limits": LIMITS.format(files=1024, files_hard=1048576, memlock=8388608, memlock_hard=8388608),
                "proc/self/status": "CapEff:\t000001ffffffffff",
            },
            [], "memlock", "ok", None,
        ),
        (
            {"proc/self/limits": LIMITS.format(files=1024, files_hard=1048576, memlock=0, memlock_hard=0)},
            [], "descriptors", "ok", None,
        ),
        (
            {"proc/self/limits": LIMITS.format(files=1024, files_hard=4000, memlock=0, memlock_hard=0)},
            [], "descriptors", "warn", "LimitNOFILE=65536",
        ),
        (
            {"proc/self/limits": LIMITS.format(files=64, files_hard=64, memlock=0, memlock_hard=0)},
            [], "descriptors", "bad", "LimitNOFILE",
        ),
    ],
)
def test_doctor_names_what_is_missing(doctor, changes, args, check, status, mend):
    _, found = doctor(changes, *args)
    assert found[check]["status"] == status, found[check]
    if mend is None:
        assert found[check]["mend"] is None and found[check]["cost"] is None
    else:
        assert mend in found[check]["mend"]


@pytest.mark.parametrize(
    "cgroup, files, left, where",
    [
        # v2: an ancestor's limit binds, the process's own group has none.
        (
            "0::/user.slice/job.scope",
            {
                "sys/fs/cgroup/user.slice/job.scope/memory.max": "max",
                "sys/fs/cgroup/user.slice/memory.max": str(4 * GIB),
                "sys/fs/cgroup/user.slice/memory.current": str(1 * GIB),
            },
            3 * GIB,
            "/sys/fs/cgroup/user.slice/memory.max",
        ),
        # v1, seen from inside a container: the path does not exist here, the mount's top has the limit.
        (
            "12:cpu:/x\n4:memory:/docker/abc",
            {
                "sys/fs/cgroup/memory/memory.limit_in_bytes": str(2 * GIB),
                "sys/fs/cgroup/memory/memory.usage_in_bytes": str(GIB),
            },
            GIB,
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        ),
    ],
)
def test_doctor_finds_the_control_group_that_binds(doctor, cgroup, files, left, where):
    document, found = doctor({"proc/self/cgroup": cgroup, **files})
    assert found["memory"]["status"] == "warn" and where in found["memory"]["mend"]
    assert document["pool_bytes"] == left // 2
    assert found["memory"]["numbers"]["cgroup_left_bytes"] == left
    _, found = doctor({"proc/self/cgroup": cgroup}, "--pool", "8G")
    assert found["memory"]["status"] == "bad"


def test_doctor_knows_v1s_no_limit(doctor):
    _, found = doctor({"proc/self/cgroup": "4:memory:/", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"})
    assert found["memory"]["status"] == "ok"


@pytest.mark.parametrize("text", ["", "x" * 20000, "[", "]", ":::::", "-1", "[" + "y" * 5000 + "]", "0::" + "/a" * 5000, "\0\0"])
def test_doctor_survives_any_file(doctor, text):
    doctor({name: text for name in GOOD})


def test_doctor_survives_an_empty_tree(doctor):
    document, _ = doctor({name: None for name in GOOD})
    assert document["bad"] == 0


def test_doctor_strict_fails_for_warnings(doctor):
    document, _ = doctor({"probe/io_uring": "-38"}, "--strict")
    assert document["warn"] == 1


def test_doctor_here(tmp_path):
    (tmp_path / "data").write_bytes(bytes(1 << 20))
    done = leat("doctor", tmp_path, "--json")
    found = {c["name"]: c for c in json.loads(done.stdout)["checks"]}
    assert found["path"]["status"] in ("ok", "warn") and found["memfd"]["status"] == "ok"
    text = leat("doctor", tmp_path, "--no-measure").stdout.decode()
    assert "measured now" not in text and re.search(r"\d+ ok, \d+ warn, \d+ bad", text)
    assert leat("doctor", tmp_path / "absent", check=3).stdout == b""


# --- with a daemon ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A small dataset: two classes, names that hurt, an array."""
    root = tmp_path_factory.mktemp("data")
    files = {}
    for label in ("cat", "dog"):
        (root / "pets" / label).mkdir(parents=True)
        for i in range(20):
            files[f"{label}/{i}.bin"] = os.urandom(1000 + 37 * i)
    files["cat/with space é.txt"] = b"plain text\n"
    for name, data in files.items():
        (root / "pets" / name).write_bytes(data)
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (50, 3), }"
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    body = struct.pack("<150f", *range(150))
    (root / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + body)
    return root, files, body


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A job of its own, with a folder of its own for the socket; nothing is left of it."""
    folder = tmp_path_factory.mktemp("run")
    folder.chmod(0o700)
    keys = {
        "XDG_RUNTIME_DIR": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "LEAT_JOB": f"cli{os.getpid()}",
        "LEAT_LEATD": str(LEATD),
    }

    def run(*args, **kwargs):
        return leat(*args, env=keys, **kwargs)

    run.env = keys
    yield run
    run("stop", "--force")


@pytest.fixture
def pets(job, tree):
    """The set "pets" in the pool."""
    if job("stat", "pets").returncode != 0:
        job("preload", tree[0] / "pets", "--name", "pets", check=0)
    return tree[1]


@needs_daemon
@pytest.mark.parametrize("args", [["ls"], ["status"], ["top"], ["stat", "x"], ["cat", "x", "0"], ["drop", "x"], ["verify", "x"]])
def test_no_daemon_is_not_found_and_none_is_started(tmp_path, args):
    env = {"XDG_RUNTIME_DIR": str(tmp_path), "LEAT_JOB": "none"}
    done = leat(*args, env=env, check=3)
    assert b"no leatd runs" in done.stderr and done.stderr.count(b"\n") == 1 and done.stdout == b""
    assert not list(tmp_path.rglob("*sock*"))


@needs_daemon
def test_who_finds_no_daemon_is_told_of_those_of_other_jobs(job, pets):
    """A second terminal is another session, and so another job."""
    env = {**job.env, "LEAT_JOB": "second"}
    told = leat("top", env=env, check=3).stderr.decode()
    assert f"no leatd runs for job second of this user; there are those of: {job.env['LEAT_JOB']} (give --job=NAME" in told
    assert b"leatd" in leat("status", f"--job={job.env['LEAT_JOB']}", env=env, check=0).stdout


@needs_daemon
def test_stop_without_a_daemon_is_fine(tmp_path):
    env = {"XDG_RUNTIME_DIR": str(tmp_path), "LEAT_JOB": "none"}
    assert b"no leatd runs" in leat("stop", env=env, check=0).stdout
    assert json.loads(leat("stop", "--json", env=env, check=0).stdout)["stopped"] is False


@needs_daemon
def test_preload_reports_what_it_did(job, tree):
    root, files, body = tree
    document = json.loads(job("preload", f"x={root}/a.npy", "--name", "array", "--json", check=0).stdout)
    assert document["samples"] == 50 and document["payload_bytes"] == len(body) and document["complete"] is True
    lines = job("preload", root / "pets", "--name", "pets", "--progress=json", check=0).stdout.splitlines()
    events = [json.loads(line) for line in lines]
    assert events[-1]["event"] == "done" and events[-1]["samples"] == len(files)
    assert all(e["event"] == "progress" for e in events[:-1])


def test_bars_are_for_terminals(tmp_path):
    for i in range(5000):
        (tmp_path / f"{i}.txt").write_bytes(b"x")
    assert leat("index", tmp_path, check=0).stderr == b""
    assert leat("index", tmp_path, "--progress=none", check=0).stderr == b""
    drawn = leat("index", tmp_path, "--progress=bar", check=0).stderr
    assert drawn.startswith(b"\rindexing") and drawn.endswith(b"\r\033[K"), "drawn, and taken away"
    done = leat("index", tmp_path, "--progress=json", check=0)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [e["event"] for e in events][-2:] == ["progress", "done"] and events[0]["stage"] == "indexing"
    assert done.stderr == b""
    done = leat("index", tmp_path, "-q", check=0)
    assert done.stdout == done.stderr == b""


@needs_daemon
def test_ls_and_stat(job, pets):
    assert b"pets" in job("ls", check=0).stdout.split()
    assert b"pets" in job("ls", "-l", check=0).stdout
    json.loads(job("ls", "--json", check=0).stdout)
    assert set(job("ls", "pets", check=0).stdout.decode().splitlines()) == set(pets)
    cats = json.loads(job("ls", "-l", "pets", "cat/", "--json", check=0).stdout)["keys"]
    assert {k["key"] for k in cats} == {k for k in pets if k.startswith("cat/")}
    assert len(json.loads(job("ls", "pets", "--limit", "3", "--json", check=0).stdout)["keys"]) == 3
    document = json.loads(job("stat", "pets", "--json", check=0).stdout)
    listed = next(s for s in json.loads(job("ls", "--json", check=0).stdout) if s["name"] == "pets")
    assert document["pool_bytes"] == listed["pool_bytes"] < document["region_bytes"]  # one region, no longer than what lies in it
    assert document["samples"] == document["resident_samples"] == len(pets)
    assert document["payload_bytes"] == sum(map(len, pets.values()))
    assert b"transport" in job("stat", "pets", check=0).stdout


@needs_daemon
def test_cat_gives_the_files_bytes(job, pets, tree):
    field = next(f["name"] for f in json.loads(job("stat", "pets", "--json").stdout)["fields"] if not f["is_label"])
    for key, data in pets.items():
        assert job("cat", "pets", key, check=0).stdout == data
    keys = job("ls", "pets").stdout.decode().splitlines()
    assert job("cat", "pets", "0", check=0).stdout == pets[keys[0]]
    assert job("cat", "pets", "--field", field, "--", "-1", check=0).stdout == pets[keys[-1]]
    document = json.loads(job("cat", "pets", "cat/3.bin", "--json", check=0).stdout)
    assert base64.b64decode(document["base64"]) == pets["cat/3.bin"] and document["key"] == "cat/3.bin"
    assert b"`leat ls pets` lists the keys" in job("cat", "pets", "cat/nobody", check=3).stderr
    done = job("cat", tree[0] / "pets" / "cat", "0", check=3)
    assert b"is not in the pool: leat preload " in done.stderr and b"--name NAME" in done.stderr
    job("cat", "pets", str(len(pets)), check=3)
    job("cat", "pets", "cat/1.bin", "--field", "nope", check=3)
    job("preload", f"x={tree[0]}/a.npy", "--name", "array", check=0)
    assert job("cat", "array", "7", check=0).stdout == tree[2][7 * 12 : 8 * 12]


@needs_daemon
def test_cat_refuses_binary_on_a_terminal(job, pets):
    def on_terminal(*args):
        main, sub = pty.openpty()
        env = dict(os.environ, **job.env)
        child = subprocess.Popen([LEAT, "cat", "pets", *args], stdout=sub, stderr=subprocess.PIPE, env=env)
        os.close(sub)
        out = b""
        try:
            while chunk := os.read(main, 65536):
                out += chunk
        except OSError:
            pass  # Linux says EIO when the other side is closed
        os.close(main)
        err = child.stderr.read()
        return child.wait(timeout=30), out, err

    code, out, err = on_terminal("cat/5.bin")
    assert code == 1 and out == b"" and b"-f" in err
    assert on_terminal("cat/5.bin", "-f")[0] == 0
    assert on_terminal("cat/with space é.txt")[:2] == (0, b"plain text\r\n")


@needs_daemon
def test_paths_are_relative_to_where_leat_is_called(job, tree):
    job("preload", "a.npy", "--name", "relative", check=0, cwd=tree[0])
    job("preload", "x=./a.npy", "y=pets/../a.npy", "--name", "two", check=0, cwd=tree[0])
    assert json.loads(job("stat", "./a.npy", "--json", check=0, cwd=tree[0]).stdout)["samples"] == 50
    job("stat", "./a.npy", check=3, cwd=tree[0].parent)
    job("drop", "relative", check=0)
    job("drop", "two", check=0)


@needs_daemon
def test_verify(job, pets):
    document = json.loads(job("verify", "pets", "--json", check=0).stdout)
    assert document["bad"] == 0 and document["samples"] == len(pets)
    job("verify", "pets", "--source", check=0)


@needs_daemon
def test_append_makes_a_longer_set(job, tree, tmp_path):
    (tmp_path / "first" / "a").mkdir(parents=True)
    (tmp_path / "more" / "b").mkdir(parents=True)
    (tmp_path / "first" / "a" / "1.txt").write_bytes(b"one")
    (tmp_path / "more" / "b" / "2.txt").write_bytes(b"two")
    job("preload", tmp_path / "first", "--name", "grows", check=0)
    assert json.loads(job("append", "grows", tmp_path / "more", "--json", check=0).stdout)["samples"] == 2
    assert job("cat", "grows", "b/2.txt", check=0).stdout == b"two"
    job("append", "nobody", tmp_path / "more", check=3)
    job("drop", "grows", check=0)


@needs_daemon
def test_top(job, pets):
    once = job("top", "--once", check=0).stdout.decode()
    assert re.search(r"^pool +\[", once, re.M) and re.search(r"^pets .*100%.* ready$", once, re.M) and "no loader runs" in once
    assert "\033" not in once
    assert json.loads(job("top", "--once", "--json", check=0).stdout)["rates"] is None


def test_top_goes_on_until_it_is_interrupted(job, pets):
    """One picture after another where there is no terminal; over each other on one; the end by Ctrl-C is a good one."""
    command = [LEAT, "top", "--interval", "0.1"]
    env = dict(os.environ, LC_ALL="C.UTF-8", TERM="xterm", **job.env)
    with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, env=env) as top:
        looks = [json.loads(top.stdout.readline()) for _ in range(3)]
        top.send_signal(signal.SIGINT)
        assert top.wait(60) == 0
    assert looks[0]["rates"] is None and looks[2]["rates"]["requests_per_s"] > 0
    main, side = pty.openpty()
    with subprocess.Popen(command, stdout=side, env=env) as top:
        os.close(side)
        seen = b""
        while seen.count(b"\033[J") < 2:
            seen += os.read(main, 65536)
        top.send_signal(signal.SIGINT)
        assert top.wait(60) == 0
    os.close(main)
    assert seen.startswith(b"\033[2J\033[H") and seen.count(b"\033[2J") == 1 and b"pets" in seen


def test_status_and_metrics(job, pets):
    json.loads(job("status", "--json", check=0).stdout)
    assert re.search(rb"bytes buffered +[\d.]+ [KM]?i?B\n", job("status", check=0).stdout)
    metrics = job("status", "--metrics", check=0).stdout.decode()
    samples = [line for line in metrics.splitlines() if line and not line.startswith("#")]
    assert samples and all(re.fullmatch(r"[a-zA-Z_:][\w:]*(\{.*\})? \S+", line) for line in samples)


@needs_daemon
def test_drop(job, tree):
    job("preload", f"x={tree[0]}/a.npy", "--name", "gone", check=0)
    job("drop", "gone", check=0)
    job("stat", "gone", check=3)
    job("drop", "gone", check=3)


plain_library = pytest.mark.skipif(
    not LIBRARY.exists() or b"__asan_init" in LIBRARY.read_bytes(), reason="no libleat.so that this interpreter can load"
)
HOLDER = """
import ctypes, sys
lib, ws, client = ctypes.CDLL(sys.argv[1]), ctypes.c_void_p(), ctypes.c_void_p()
err = ctypes.create_string_buffer(4096)
assert lib.leat_connect(None, ctypes.byref(client), err) == 0, err.raw
assert lib.leat_open(client, sys.argv[2].encode(), None, ctypes.byref(ws), err) == 0, err.raw
print("holds", flush=True)
sys.stdin.read()
"""


@needs_daemon
@plain_library
def test_drop_and_stop_wait_for_readers(job, tree):
    job("preload", tree[0] / "a.npy", "--name", "held", check=0)
    line = [sys.executable, "-c", HOLDER, LIBRARY, "leat://held"]
    with subprocess.Popen(line, env=dict(os.environ, **job.env), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"holds\n"
        done = job("drop", "held", "--timeout", "0.2", check=8)
        assert b"held" in done.stderr
        assert job("stop", check=8).stderr
        job("stat", "held", check=0)
        job("drop", "held", "--force", check=0)
        job("stat", "held", check=3)
        holder.stdin.close()


@needs_daemon
@plain_library
def test_a_reader_that_is_killed_holds_nothing(job, tree):
    job("preload", tree[0] / "a.npy", "--name", "held", check=0)
    line = [sys.executable, "-c", HOLDER, LIBRARY, "leat://held"]
    with subprocess.Popen(line, env=dict(os.environ, **job.env), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"holds\n"
        holder.kill()
        holder.wait()
    job("drop", "held", check=0)


@needs_daemon
def test_a_killed_daemon_is_said_and_a_new_one_works(tmp_path, tree):
    env = {"XDG_RUNTIME_DIR": str(tmp_path), "LEAT_JOB": "killed", "LEAT_LEATD": str(LEATD)}
    leat("preload", tree[0] / "a.npy", "--name", "array", env=env, check=0)
    os.kill(json.loads(leat("status", "--json", env=env, check=0).stdout)["pid"], signal.SIGKILL)
    leat("stat", "array", env=env, check=3)
    leat("preload", tree[0] / "a.npy", "--name", "array", env=env, check=0)
    leat("stop", env=env, check=0)


@needs_daemon
def test_sources_that_cannot_be_had(job, tmp_path):
    assert b"absent" in job("preload", tmp_path / "absent", "--name", "x", check=3).stderr
    (tmp_path / "empty").mkdir()
    assert job("preload", tmp_path / "empty", "--name", "x", check=1).stderr.count(b"\n") == 1
    (tmp_path / "bad.npy").write_bytes(b"\x93NUMPY\x01\x00\x76\x00{'descr'")
    job("preload", tmp_path / "bad.npy", "--name", "x", check=7)
    if os.geteuid() != 0:
        (tmp_path / "locked").mkdir(mode=0)
        job("preload", tmp_path / "locked", "--name", "x", check=4)
    job("stat", "x", check=3)


@needs_daemon
def test_file_uris(job, tmp_path):
    """The same as in C and Python: decoded strictly, this host's alone; a plain path is not decoded."""
    folder = tmp_path / "a b%20"
    (folder / "c").mkdir(parents=True)
    (folder / "c" / "1").write_bytes(b"one")
    job("preload", folder.as_uri(), "--name", "by-uri", "--quiet", check=0)
    for name in (folder.as_uri(), folder, f"file://localhost{folder.as_uri()[7:]}", "by-uri"):
        assert json.loads(job("stat", name, "--json", check=0).stdout)["samples"] == 1
    for bad, words in (("file://nas/a", "this host's files"), ("file:a", "absolute path"), ("file:///a%00", "NUL"),
                       ("file:///a%2", "hexadecimal"), ("C:/a", "Windows"), ("leat://by-uri", "in the pool")):
        for command in (("preload", bad, "--name", "x"), ("index", bad)):
            done = job(*command)
            assert done.returncode not in (0, 3) and words in done.stderr.decode(), (command, done.stderr)
    job("stat", str(folder).replace(" ", "%20").replace("b%20", "b%2520"), check=3)
    job("drop", "by-uri", check=0)


@needs_daemon
def test_index_lies_beside_the_data(job, tree):
    root, files, _ = tree
    document = json.loads(job("index", root / "pets", "--json", check=0).stdout)
    assert document["index"] == str(root / "pets" / ".leat-index")
    assert document["samples"] == len(files) and document["payload_bytes"] == sum(map(len, files.values()))
    assert os.path.getsize(document["index"]) == document["index_bytes"]
    job("index", root / "absent", check=3)


@needs_daemon
def test_stop_ends_the_daemon(tmp_path, tree):
    env = {"XDG_RUNTIME_DIR": str(tmp_path), "LEAT_JOB": "stops", "LEAT_LEATD": str(LEATD)}
    leat("preload", tree[0] / "a.npy", "--name", "array", env=env, check=0)
    assert json.loads(leat("stop", "--json", env=env, check=0).stdout)["stopped"] is True
    lib_host.wait_for(lambda: leat("status", env=env).returncode)
    leat("status", env=env, check=3)


@needs_daemon
def test_leatd_conf_page_names_the_keys_that_leatd_knows(tmp_path):
    """The page explains the sections and keys that leatd lists where it refuses others."""

    def refusal(text):
        (tmp_path / "leatd.conf").write_text(text)
        done = subprocess.run([LEATD, "--config", tmp_path / "leatd.conf", "--check-config"], capture_output=True, text=True, timeout=30)
        assert done.returncode == 1
        return done.stderr.strip()

    sections = refusal("[nonsense]\nx = 1\n").partition("there are ")[2].split(", ")
    known = {s: set(refusal(f"[{s}]\nx = 1\n").partition("it has ")[2].split()) for s in sections}
    assert "size" in known["pool"] and "paths" in known["store"]
    page = re.split(r"^# \[(\w+)\]$", (MAN / "leatd.conf.5.scd").read_text(), flags=re.M)
    told = {s: set(re.findall(r"^\*(\w+)\*$", text.split("\n# ")[0], re.M)) for s, text in zip(page[1::2], page[2::2])}
    assert told == known


@needs_daemon
def test_the_packaged_leatd_conf_passes_leatds_own_check(tmp_path):
    """As it is it asks for the one key that is needed; with every line in force it is right: what it says must be true."""
    text = (ROOT / "packaging" / "leatd.conf").read_text()

    def check(text):
        (tmp_path / "leatd.conf").write_text(text)
        line = [LEATD, "--config", tmp_path / "leatd.conf", "--check-config"]
        return subprocess.run(line, capture_output=True, timeout=30)

    done = check(text)
    assert done.returncode == 1 and b"roots" in done.stderr
    done = check(re.sub(r"^#(\w+ =.+)$", r"\1", text, flags=re.M))
    assert done.returncode == 0 and done.stdout == b"nothing is wrong\n", done.stderr.decode()
    token = tmp_path / "token"
    token.write_bytes(bytes(32))
    token.chmod(0o644)
    done = check(f"[daemon]\nmode = system\nroots = /data\n[net]\nlisten = 127.0.0.1:7411\ntoken_file = {token}\n")
    assert done.returncode == 1 and str(token).encode() in done.stderr, "one that others may read"
    told = set(re.findall(r"^\*(\w+)\*$", (MAN / "leatd.conf.5.scd").read_text(), re.M))
    assert set(re.findall(r"^#?(\w+) =", text, re.M)) == told


@needs_daemon
def test_leatd_conf_examples_pass_leatds_own_check(tmp_path):
    for n, text in enumerate(re.findall(r"```\n(.*?)```", (MAN / "leatd.conf.5.scd").read_text(), re.S)):
        (tmp_path / f"{n}.conf").write_text(text)
        done = subprocess.run([LEATD, "--config", tmp_path / f"{n}.conf", "--check-config"], capture_output=True, timeout=30)
        assert done.returncode == 0, done.stderr.decode()
