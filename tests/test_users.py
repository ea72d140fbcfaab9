# SPDX-License-Identifier: Apache-2.0
"""Two users on one host: private daemons apart, and one system daemon that lends its rights to no user."""

import os
import pathlib
import shutil
import subprocess
import struct
import sys
import tempfile

import lib_data
import lib_host
import pytest
from lib_wire import APPEND, BROKER, DATA, DROP, HELLO, OPEN, QUERY, REGIONS, WAIT, Peer, hello, opening, text

ANN, BOB = 20001, 20002
EACCES, ENOENT, ESTALE = 13, 2, 116

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two users"),
    pytest.mark.skipif(not shutil.which("setpriv"), reason="needs setpriv"),
]


def user(uid):
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]


def own(path, uid, mode=None):
    os.chown(path, uid, uid)
    if mode is not None:
        path.chmod(mode)
    return path


@pytest.fixture
def daemon(host):
    """A system daemon that reads below `data`, run by root."""
    host.data.chmod(0o755)
    made = host.daemon({"pool": {"size": "16MiB", "region_size": "64KiB"}, "daemon": {"mode": "system", "roots": host.data}})
    made.folder.chmod(0o755)
    return made


def as_user(host, daemon, uid, code, *args):
    """Lines that `code` says, run by this user with a connection to the system daemon."""
    home = host.folder / f"home-{uid}"
    if not home.exists():
        home.mkdir()
        own(home, uid, 0o700)
    env = {"LEAT_SOCKET": str(daemon.socket), "HOME": str(home), "XDG_CACHE_HOME": str(home), "XDG_RUNTIME_DIR": str(home)}
    return host.python(TRY + code, *args, prefix=user(uid), env=env)


TRY = """
def attempt(what):
    try:
        return what()
    except leat.Error as e:
        return type(e).__name__
"""


def test_private_daemons_are_each_users_own(host):
    """The same job's name, two users: two daemons in two folders that the other one cannot enter."""
    path = lib_data.make_npy(host.data / "a.npy", 8)
    path.chmod(0o644)
    code = "ws = leat.open(argv[0]); say(leat.status()['pid'], leat.status()['socket']); hear()"
    clients = []
    for uid in (ANN, BOB):
        runtime = host.folder / f"run-{uid}"
        runtime.mkdir()
        own(runtime, uid, 0o700)
        clients.append(host.python(code, path, prefix=user(uid), env={
            "XDG_RUNTIME_DIR": str(runtime), "HOME": str(runtime), "XDG_CACHE_HOME": str(runtime), "LEAT_JOB": "same"}))
    answers = [client.hear().split() for client in clients]
    assert answers[0][0] != answers[1][0] and answers[0][1] != answers[1][1]
    for (pid, socket), uid in zip(answers, (ANN, BOB)):
        assert f"Uid:\t{uid}\t{uid}\t{uid}" in (lib_host.proc_text(pid, "status").decode())
        folder = pathlib.Path(socket).parent
        assert folder.stat().st_mode & 0o777 == 0o700 and folder.stat().st_uid == uid
        assert pathlib.Path(socket).stat().st_mode & 0o777 == 0o600
    stranger = host.python("""
try:
    leat.status(socket=argv[0]); say('in')
except leat.Error as e:
    say(type(e).__name__)
""", answers[0][1], prefix=user(BOB))
    assert stranger.finish() in ("Denied", "NotFound")
    for client in clients:
        client.tell()
        client.finish()


def test_a_private_daemon_serves_its_user_only(host):
    """Whatever the modes of its socket and folder: it compares the uid from the kernel. Root may ask."""
    path = lib_data.make_npy(host.data / "a.npy", 8)
    path.chmod(0o644)
    runtime = host.folder / "run-ann"
    runtime.mkdir()
    own(runtime, ANN, 0o755)
    client = host.python("ws = leat.open(argv[0]); say(leat.status()['socket']); hear()", path, prefix=user(ANN), env={
        "XDG_RUNTIME_DIR": str(runtime), "HOME": str(runtime), "XDG_CACHE_HOME": str(runtime)})
    address = pathlib.Path(client.hear())
    for folder in (address.parent.parent, address.parent):
        folder.chmod(0o755)
    address.chmod(0o666)
    by_hand = host.python(f"""
import sys
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
import lib_wire
status, body, _ = lib_wire.Peer(argv[0]).call(lib_wire.HELLO, lib_wire.hello())
say(status, body)
""", address, prefix=user(BOB)).finish()
    assert by_hand.startswith(f"-{EACCES} ") and f"private to user {ANN}" in by_hand
    assert host.cli("--socket", address, "status").returncode == 0
    client.tell()
    client.finish()


@pytest.fixture
def places():
    """A folder that only root may write to, as all above it, and a name below /tmp."""
    safe = pathlib.Path(tempfile.mkdtemp(prefix="leat-test-", dir="/run"))
    safe.chmod(0o755)
    in_tmp = pathlib.Path(f"/tmp/leat-test-team-{os.getpid()}")
    yield safe, in_tmp
    shutil.rmtree(safe)
    if in_tmp.is_symlink():
        in_tmp.unlink()
    elif in_tmp.exists():
        shutil.rmtree(in_tmp)


def namespace(uid):
    """A user namespace of this user, in which all others have no number."""
    prefix = [*user(uid), "unshare", "-U", "--map-root-user"]
    if not shutil.which("unshare") or subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("no user namespaces here")
    return prefix


@pytest.mark.parametrize("inside", [user, namespace])
@pytest.mark.parametrize("what, good", [("folder of everybody", False), ("folder of a group", False), ("folder of Bob", True),
                                        ("Bob's folder in /tmp", False), ("Bob's link in /tmp", False), ("Bob's folder in root's in /tmp", True), ("root's link", True),
                                        ("root's link to /tmp", False)])
def test_another_users_daemon_is_refused(host, places, what, good, inside):
    """A user that makes the name where all users may make names gets no client but their own: not by a folder, not by a link."""
    safe, in_tmp = places
    prefix = inside(ANN)
    if inside is namespace and "/tmp" in what and not good:
        pytest.skip("Bob and root look the same there")
    owner, mode = {"folder of everybody": (0, 0o1777), "folder of a group": (BOB, 0o775)}.get(what, (BOB, 0o755))
    folder = in_tmp if what in ("Bob's folder in /tmp", "root's link to /tmp") else safe / "team"
    if what == "Bob's folder in root's in /tmp":
        in_tmp.mkdir()
        folder = in_tmp / "team"
    folder.mkdir()
    own(folder, owner, mode)
    given = folder
    if what == "Bob's link in /tmp":
        given = in_tmp
    elif what.startswith("root's link"):
        given = safe / "link"
    if given != folder:
        given.symlink_to(folder)
        if given == in_tmp:
            os.lchown(given, BOB, BOB)
    trap = host.python("""
import os, socket
s = socket.socket(socket.AF_UNIX)
s.bind(argv[0])
os.chmod(argv[0], 0o666)
s.listen()
say('listens')
peer = s.accept()[0]
say(len(peer.recv(4096)))
""", folder / "leatd.sock", prefix=user(BOB))
    trap.hear()
    client = host.python("try:\n    leat.status(socket=argv[0])\nexcept leat.Error as e:\n    say(type(e).__name__, e)",
                         given / "leatd.sock", prefix=prefix)
    said = client.finish()
    assert (said.startswith("Denied ") and f"runs as user {BOB if inside is user else 65534}" in said) == (not good), said
    assert (trap.hear() == "0") == (not good), "nothing is sent before the receiver is known"


def test_a_folder_in_tmp_that_another_user_made_first_is_refused(host):
    """/tmp/leat-UID made by another user beforehand: not used, and reported."""
    path = lib_data.make_npy(host.data / "a.npy", 8)
    trap = pathlib.Path(f"/tmp/leat-{ANN}")
    assert not trap.exists()
    trap.mkdir(mode=0o777)
    own(trap, BOB, 0o777)
    try:
        client = host.python("try:\n    leat.open(argv[0]); say('opened')\nexcept leat.Denied as e:\n    say(str(e))", path,
                             prefix=user(ANN), env={"XDG_RUNTIME_DIR": "", "HOME": "/nonexistent", "XDG_CACHE_HOME": ""})
        assert f"/tmp/leat-{ANN} belongs to uid {BOB}" in client.finish()
        assert list(trap.iterdir()) == []
    finally:
        shutil.rmtree(trap)


def test_a_private_set_is_its_owners(host, daemon):
    path = own(lib_data.make_npy(host.data / "ann.npy", 32), ANN, 0o600)
    ann = as_user(host, daemon, ANN, "ws = leat.preload(argv[0], name='hers'); say('there'); hear()\n"
                  "say(len(leat.open('leat://hers'))); leat.drop('hers', force=True)", path)
    assert ann.hear() == "there"
    with_ann = next(s for s in daemon.sets() if s["name"] == "hers")
    assert with_ann["owner_uid"] == ANN and with_ann["mode"] == "private"
    bob = as_user(host, daemon, BOB, """
say(attempt(lambda: leat.open('leat://hers')))
say(attempt(lambda: leat.open(argv[0])))
say(attempt(lambda: leat.stat('hers')))
say(attempt(lambda: leat.stat(argv[0])))
say(leat.ls())
say(attempt(lambda: leat.drop('hers', timeout=1)), attempt(lambda: leat.drop('hers', force=True, timeout=1)),
    attempt(lambda: leat.drop(argv[0], timeout=1)))  # the same error as for a file that is not open
say(attempt(lambda: leat.append('hers', argv[0])))
say(attempt(lambda: leat.stop(force=True)))
say('hers' in str(leat.status()))
""", path)
    said = bob.finish().splitlines()
    assert said[0] in ("Denied", "NotFound") and said[1] == "Denied" and said[2] in ("NotFound", "Denied")
    assert said[3] in ("NotFound", "Denied") and said[4] == "[]"
    assert said[5] == "NotFound NotFound NotFound" and said[6] in ("Denied", "NotFound")
    assert said[7] == "Denied" and said[8] == "False"
    ann.tell()
    assert ann.finish() == "32"
    assert daemon.running()


def test_another_users_set_by_the_bare_protocol(host, daemon):
    """Bob guesses handles, and even knows the uuid: he gets nothing."""
    path = own(lib_data.make_npy(host.data / "ann.npy", 32), ANN, 0o600)
    ann = as_user(host, daemon, ANN, "ws = leat.preload(argv[0], name='hers'); say('there'); hear()", path)
    ann.hear()
    with Peer(daemon.socket).greet() as root:
        _, uuid, generation = root.open("leat://hers")
    # A child of ours turns into Bob and speaks the protocol.
    answers, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(BOB, BOB, BOB)
            os.setresuid(BOB, BOB, BOB)
            found = []
            with Peer(daemon.socket).greet(uid=0) as peer:  # the uid that he names has no effect here
                for handle in range(20):
                    for type, body in [(WAIT, struct.pack("<QI", handle, 0)), (REGIONS, struct.pack("<QII", handle, 0, 64)),
                                       (BROKER, struct.pack("<QI", handle, 0))]:
                        found.append(peer.call(type, body)[0])
                for type, body in [(OPEN, opening("leat://hers")), (APPEND, opening(str(path), name="hers")),
                                   (DROP, struct.pack("<IQ", 1, 0) + text("hers")), (QUERY, struct.pack("<I", 2) + text("hers"))]:
                    found.append(peer.call(type, body)[0])
                assert not peer.fds
            with Peer(daemon.socket) as peer:
                found.append(peer.call(HELLO, hello(role=DATA, set_uuid=uuid, generation=generation, uid=ANN, gid=ANN))[0])
            os.write(told, repr(found).encode())
        finally:
            os._exit(0)
    os.close(told)
    os.waitpid(child, 0)
    found = eval(os.read(answers, 65536).decode())
    os.close(answers)
    assert len(found) == 65 and all(status < 0 for status in found), found
    assert set(found[-5:]) <= {-EACCES, -ENOENT, -ESTALE}
    ann.tell()
    ann.finish()


def test_a_public_set_is_everybodys_to_read(host, daemon):
    path = own(lib_data.make_npy(host.data / "ann.npy", 32), ANN, 0o600)
    ann = as_user(host, daemon, ANN, "leat.preload(argv[0], name='all', public=True); say('there')", path)
    assert ann.finish() == "there"
    bob = as_user(host, daemon, BOB, lib_data.CLIENT + """
ws = leat.open('leat://all')
say((ws.read_batch(range(32)).data == rows(range(32))).all())
say(attempt(lambda: leat.drop('all', force=True)), attempt(lambda: leat.append('all', argv[0])))
say(attempt(lambda: leat.open(argv[0])))  # the source itself is hers, all the same
""", path)
    said = bob.finish().splitlines()
    assert said[0] == "True" and said[1] == "Denied Denied" and said[2] == "Denied"
    assert len(daemon.sets()) == 1, "an explicit set outlives its makers"


def test_memory_passed_to_one_reader_cannot_be_written_by_it(host, daemon):
    """The descriptors that Bob gets for a public set: read-only, and not to be opened again for writing."""
    path = own(lib_data.make_npy(host.data / "ann.npy", 32), ANN, 0o644)
    as_user(host, daemon, ANN, "leat.preload(argv[0], name='all', public=True)", path).finish()
    bob = as_user(host, daemon, BOB, """
import mmap
ws = leat.open('leat://all'); ws.read_batch([0]).release()
tried = written = 0
for fd in os.listdir('/proc/self/fd'):
    try:
        target = os.readlink(f'/proc/self/fd/{fd}')
    except OSError:
        continue
    if 'leat' not in target or target.startswith('/tmp') or not target.strip('/'):
        continue
    tried += 1
    for how in (lambda: os.open(f'/proc/self/fd/{fd}', os.O_RDWR), lambda: os.write(int(fd), b'x'),
                lambda: os.ftruncate(int(fd), 0), lambda: mmap.mmap(int(fd), 4096, prot=mmap.PROT_WRITE)):
        try:
            how(); written += 1
        except (OSError, ValueError):
            pass
for line in open('/proc/self/maps'):
    if 'leat-' in line and '/tmp' not in line:
        tried += 1
        written += line.split()[1][1] == 'w'
say(tried > 0, written)
""")
    assert bob.finish() == "True 0"


@pytest.mark.parametrize("what", ["outside", "dots", "link out", "link to a folder out", "folder of a link out", "relative link out",
                                  "absolute link inside", "proc", "field of two", "prefix of a root's name"])
def test_nothing_outside_the_roots(host, daemon, what):
    """Not by name, not by dots, not by any link, for any user: root too."""
    secret = host.folder / "secret"
    secret.mkdir()
    lib_data.make_npy(secret / "s.npy", 4).chmod(0o644)
    lib_data.make_npy(host.data / "in.npy", 4).chmod(0o644)
    data = host.data
    if what == "outside":
        uri = secret / "s.npy"
    elif what == "dots":
        uri = f"{data}/../secret/s.npy"
    elif what == "link out":
        (data / "l.npy").symlink_to(secret / "s.npy")
        uri = data / "l.npy"
    elif what == "link to a folder out":
        (data / "l").symlink_to(secret)
        uri = data / "l" / "s.npy"
    elif what == "folder of a link out":
        (data / "l").mkdir()
        (data / "l" / "x.npy").symlink_to("/etc/passwd")
        uri = data / "l"
    elif what == "relative link out":
        (data / "l.npy").symlink_to("../secret/s.npy")
        uri = data / "l.npy"
    elif what == "absolute link inside":
        (data / "l.npy").symlink_to("/etc/hostname")
        uri = data / "l.npy"
    elif what == "proc":
        (data / "l.npy").symlink_to(f"/proc/{os.getpid()}/root/etc/passwd")
        uri = data / "l.npy"
    elif what == "field of two":
        uri = f"x={data}/in.npy;y={secret}/s.npy"
    else:
        other = pathlib.Path(f"{data}-more")
        other.mkdir()
        lib_data.make_npy(other / "s.npy", 4)
        uri = other / "s.npy"
    code = "say(attempt(lambda: len(leat.open(argv[0]))))"
    for uid in (ANN, 0):
        client = as_user(host, daemon, uid, code, uri) if uid else host.python(TRY + code, uri, env={"LEAT_SOCKET": str(daemon.socket)})
        said = client.finish()
        assert said in ("Denied", "NotFound", "Invalid", "Error"), said
    daemon.serves(data / "in.npy")


def test_the_callers_rights_bind_below_the_roots(host, daemon):
    """The daemon reads no file for Bob that Bob may not read: by file, by folder, by group."""
    own(lib_data.make_npy(host.data / "ann.npy", 4), ANN, 0o600)
    (host.data / "closed").mkdir()
    lib_data.make_npy(host.data / "closed" / "a.npy", 4).chmod(0o644)
    own(host.data / "closed", ANN, 0o700)
    (host.data / "half").mkdir()
    (host.data / "half" / "open.bin").write_bytes(b"open")
    own(host.data / "half" / "open.bin", ANN, 0o644)
    (host.data / "half" / "shut.bin").write_bytes(b"shut")
    own(host.data / "half" / "shut.bin", ANN, 0o600)
    code = "for p in argv:\n    say(attempt(lambda: len(leat.preload(p))))"
    paths = [host.data / "ann.npy", host.data / "closed" / "a.npy", host.data / "closed", host.data / "half"]
    assert as_user(host, daemon, ANN, code, *paths).finish().splitlines()[:2] == ["4", "4"]
    said = as_user(host, daemon, BOB, code, *paths).finish().splitlines()
    assert said[:3] == ["Denied", "Denied", "Denied"] and said[3] in ("Denied", "Error"), said


READ_ALL = """
def read_all(uri):
    ws = leat.open(uri)
    return [(ws.key(i), bytes(ws[i]['data']).decode(), int(ws[i]['label'])) for i in range(len(ws))]
"""


def test_links_of_a_tree_are_followed_inside_the_roots(host, daemon):
    """As in a private daemon. Below a class one that leads out, or that is absolute, costs its own sample; one that the filter passes over, nothing."""
    tree = host.data / "tree"
    for name in ("all/cat/1.jpg", "all/cat/2.jpg", "dog/3.jpg"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(name)
    (tree / "all" / "dog").symlink_to("../dog")
    (tree / "all" / "cat" / "4.jpg").symlink_to("2.jpg")
    code = READ_ALL + "for p in argv:\n    say(attempt(lambda: read_all(p)))"
    paths = [tree / "all", f"{tree}/all#extensions=jpg"]
    good = [("cat/1.jpg", "all/cat/1.jpg", 0), ("cat/2.jpg", "all/cat/2.jpg", 0), ("cat/4.jpg", "all/cat/2.jpg", 0), ("dog/3.jpg", "dog/3.jpg", 1)]
    private = host.python(TRY + code, *paths)
    assert private.finish().splitlines() == [str(good)] * 2
    shutil.copy("/etc/hostname", host.folder / "outside.jpg")
    (tree / "all" / "cat" / "5.jpg").symlink_to(host.folder / "outside.jpg")
    (tree / "all" / "cat" / "6.jpg").symlink_to("../../../../outside.jpg")
    (tree / "all" / "dog" / "notes.txt").symlink_to("/etc/passwd")
    (tree / "closed").mkdir()
    (own(tree / "closed", ANN, 0o700) / "read.me").write_text("hers")
    (tree / "all" / "cat" / "read.me").symlink_to("../../closed/read.me")
    said = {uid: as_user(host, daemon, uid, code, *paths).finish().splitlines() for uid in (ANN, BOB)}
    hers = sorted([*good, ("cat/read.me", "hers", 0)])
    assert said[ANN] == [str(hers), str(good)]
    assert said[BOB] == ["Denied", str(good)], "a link that only its user may not follow is no link out of the roots"
    assert as_user(host, daemon, BOB, code, *paths).finish().splitlines() == said[BOB], "and so it is the second time"


@pytest.mark.parametrize("target", ["../closed/bird", "absolute", "../../../bird"])
def test_a_denied_link_where_classes_stand_denies_the_set(host, daemon, target):
    """Without it the classes behind it would have other numbers."""
    tree = host.data / "tree"
    for name in ("all/ant/1.jpg", "all/cat/2.jpg", "closed/bird/3.jpg", "bird/3.jpg"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(name)
    own(tree / "closed", ANN, 0o700)
    (tree / "all" / "bird").symlink_to(tree / "bird" if target == "absolute" else target)
    (host.folder / "bird").mkdir()
    code = READ_ALL + "for p in argv:\n    say(attempt(lambda: read_all(p)))"
    paths = [f"{tree}/all", f"{tree}/all#pattern=*.jpg"]
    assert as_user(host, daemon, BOB, code, *paths).finish().splitlines() == ["Denied"] * 2
    assert "'all/cat/2.jpg', 2)" in host.python(TRY + code, *paths[1:]).finish(), "a private daemon, run by root, reads all of it"


def test_sizes_in_a_folder_that_may_only_be_listed(host, daemon):
    """A user that may read a folder and not search it learns names, and no sizes."""
    half = host.data / "tree" / "half"
    half.mkdir(parents=True)
    (half / "1").write_bytes(b"1")
    own(half, ANN, 0o744)
    code = "say(attempt(lambda: len(leat.open(argv[0]))))"
    assert [as_user(host, daemon, uid, code, half.parent).finish() for uid in (BOB, ANN, BOB)] == ["Denied", "1", "Denied"]


def test_groups_are_those_of_the_process(host, daemon):
    """Not those of its user in the group database, which knows nothing of this user, nor of groups that a process dropped."""
    group = 30001
    path = lib_data.make_npy(host.data / "groups.npy", 64)
    os.chown(path, 0, group)
    path.chmod(0o640)
    code = "say(attempt(lambda: len(leat.preload(argv[0]))))"
    member = ["setpriv", f"--reuid={ANN}", f"--regid={ANN}", f"--groups={group},30002"]
    home = host.folder / "home-groups"
    home.mkdir()
    own(home, ANN, 0o700)
    env = {"LEAT_SOCKET": str(daemon.socket), "HOME": str(home), "XDG_CACHE_HOME": str(home), "XDG_RUNTIME_DIR": str(home)}
    assert as_user(host, daemon, ANN, code, path).finish() == "Denied"
    assert host.python(TRY + code, path, prefix=member, env=env).finish() == "64"
    # With many: the kernel returns their number first, and then all of them.
    many = ["setpriv", f"--reuid={BOB}", f"--regid={BOB}", "--groups=" + ",".join(str(group + i) for i in range(999, -1, -1))]
    own(home, BOB, 0o700)
    assert host.python(TRY + code, path, prefix=many, env=env).finish() == "64"


# getsockopt(..., SO_PEERGROUPS) fails as on a kernel that has no such option; then the program given.
NO_GROUPS = """
import ctypes, os, struct, sys
number = {'x86_64': 55, 'aarch64': 209}[os.uname().machine]
steps = [(0x20, 0, 0, 0), (0x15, 0, 3, number), (0x20, 0, 0, 32), (0x15, 0, 1, 59), (6, 0, 0, 0x50000 | 92), (6, 0, 0, 0x7fff0000)]
code = ctypes.create_string_buffer(b''.join(struct.pack('<HBBI', *s) for s in steps))
program = ctypes.create_string_buffer(struct.pack('<H6xQ', len(steps), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_a_sandbox_that_hides_groups_is_named(host):
    daemon = host.daemon({"daemon": {"mode": "system", "roots": host.data}}, prefix=[sys.executable, "-c", NO_GROUPS])
    with Peer(daemon.socket) as peer:
        assert peer.closed()
    lib_host.wait_for(lambda: f"(pid {os.getpid()}, uid 0): cannot find out its groups" in daemon.text())


def test_implicit_sets_of_two_users_are_apart_or_each_allowed(host, daemon):
    """The same readable file opened by both: each reads it, and what Ann leaves does not take it from Bob."""
    path = lib_data.make_npy(host.data / "both.npy", 16)
    path.chmod(0o644)
    code = lib_data.CLIENT + "ws = leat.open(argv[0]); ws.wait(); say((ws[3] == rows([3])[0]).all()); hear(); say((ws[5] == rows([5])[0]).all())"
    ann, bob = (as_user(host, daemon, uid, code, path) for uid in (ANN, BOB))
    assert ann.hear() == bob.hear() == "True"
    ann.kill()
    bob.tell()
    assert bob.hear() == "True"
    bob.finish()
    lib_host.wait_for(lambda: daemon.status()["pool"]["used_bytes"] == 0)


@pytest.mark.long
def test_a_set_opened_while_another_users_scan_runs(host, daemon):
    """Bob joins no scan that ran with Ann's rights."""
    folder = host.data / "many"
    for i in range(3000):
        if i % 500 == 0:
            (folder / str(i // 500)).mkdir(parents=True)
        (folder / str(i // 500) / f"{i}.bin").write_bytes(b"%d" % i)
    own(folder, ANN, 0o700)
    ann = as_user(host, daemon, ANN, "say('go'); hear(); say(attempt(lambda: len(leat.open(argv[0]))))", folder)
    bob = as_user(host, daemon, BOB, "say('go'); hear(); say(attempt(lambda: len(leat.open(argv[0]))))", folder)
    ann.hear(), bob.hear()
    ann.tell(), bob.tell()
    assert ann.finish() == "3000"
    assert bob.finish() == "Denied"
