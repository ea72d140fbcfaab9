# SPDX-License-Identifier: Apache-2.0
"""What `make install` leaves, and whether others can build and run with nothing but that."""

import ctypes
import errno
import os
import platform
import re
import shutil
import socket
import struct
import subprocess

import lib_host
import pytest

pytestmark = pytest.mark.plain

PROGRAM = """
#include <leat/leat.h>
#include <stdio.h>
int main(void)
{
    struct leat_error err;
    struct leat_client *client;
    struct leat_client_options options = {.size = sizeof(options), .flags = LEAT_CONNECT_NO_START, .job = "nobody"};
    int rc = leat_connect(&options, &client, &err);
    printf("%s %d\\n", leat_version(), rc == LEAT_NOT_FOUND);
    return 0;
}
"""


def install(folder):
    if not (lib_host.BUILD / "build.ninja").exists() or not shutil.which("meson"):
        pytest.skip("no build folder, or no meson")
    done = subprocess.run(["meson", "install", "-C", lib_host.BUILD, "--no-rebuild", "--destdir", folder], capture_output=True,
                          text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return {str(p.relative_to(folder)): p for p in folder.rglob("*") if not p.is_dir()}


def only(files, pattern):
    """The one file whose name matches."""
    found = [path for name, path in files.items() if re.search(pattern, name)]
    assert len(found) == 1, (pattern, sorted(files))
    return found[0]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return install(tmp_path_factory.mktemp("installed"))


def test_everything_is_there(files):
    for pattern in (r"/bin/leat$", r"/bin/leatd$", r"/libexec/leat/leat-hdf5-table$", r"/libleat\.so$", r"/libleat\.so\.0$",
                    r"/include/leat/leat\.h$", r"/include/leat/error\.h$", r"/pkgconfig/leat\.pc$", r"/systemd/system/leatd\.service$",
                    r"etc/leat/leatd\.conf$", r"/bash-completion/completions/leat$"):
        only(files, pattern)
    # And nothing of what only we need.
    assert not [name for name in files if re.search(r"test|fuzz|bench|internal|\.a$|/src/", name)]
    if shutil.which("scdoc"):
        for page in ("man1/leat.1", "man8/leatd.8", "man5/leatd.conf.5"):
            only(files, f"/{page}$")


def test_everything_is_hardened(files):
    """Canaries, checked copies, tables that are read-only once a program runs, no executable stack."""
    if not shutil.which("readelf"):
        pytest.skip("no readelf")
    objects = [p for p in files.values() if not p.is_symlink() and p.read_bytes()[:4] == b"\x7fELF"]
    assert {"leat", "leatd", "leat-hdf5-table", "libleat.so.0.1.0", "_leat.abi3.so"} <= {p.name for p in objects}
    for path in objects:
        said = subprocess.run(["readelf", "-lWd", "--dyn-syms", path], capture_output=True, text=True, check=True).stdout
        assert re.search(r"GNU_STACK .* RW ", said) and "GNU_RELRO" in said and re.search(r"FLAGS_1.*\bNOW\b", said), path
        assert "DYN (" in subprocess.run(["readelf", "-hW", path], capture_output=True, text=True, check=True).stdout, path
        assert "__stack_chk_fail" in said, path
    leatd = next(p for p in objects if p.name == "leatd")
    assert "__memcpy_chk" in subprocess.run(["readelf", "-W", "--dyn-syms", leatd], capture_output=True, text=True).stdout


def test_an_edited_configuration_is_kept(tmp_path):
    conf = only(install(tmp_path), r"leatd\.conf$")
    conf.write_text("[daemon]\nmode = system\nroots = /data\n")
    install(tmp_path)
    assert "roots = /data" in conf.read_text()


def test_the_shipped_configuration_says_what_is_missing(files):
    done = subprocess.run([lib_host.LEATD, "--config", only(files, r"leatd\.conf$"), "--check-config"], capture_output=True, text=True)
    assert done.returncode == 1 and "roots" in done.stderr


def test_a_program_builds_with_pkg_config_alone(files, tmp_path):
    if not shutil.which("pkg-config") or not shutil.which("cc"):
        pytest.skip("no pkg-config or no compiler")
    pc = only(files, r"/leat\.pc$")
    prefix = re.search(r"^prefix=(.*)$", pc.read_text(), re.M)[1]
    root = str(pc)[: str(pc).rindex(prefix + "/")]
    env = {"PATH": os.environ["PATH"], "PKG_CONFIG_PATH": str(pc.parent), "PKG_CONFIG_SYSROOT_DIR": root}
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "leat"], capture_output=True, text=True, env=env)
    assert flags.returncode == 0, flags.stderr
    (tmp_path / "use.c").write_text(PROGRAM)
    built = subprocess.run(["cc", "-std=c11", "-Wall", "-Werror", "-o", tmp_path / "use", tmp_path / "use.c", *flags.stdout.split()],
                           capture_output=True, text=True, env=env)
    assert built.returncode == 0, built.stderr
    ran = subprocess.run([tmp_path / "use"], capture_output=True, text=True,
                         env={**os.environ, "LD_LIBRARY_PATH": str(only(files, r"libleat\.so$").parent), "XDG_RUNTIME_DIR": str(tmp_path)})
    assert ran.stdout.split()[1:] == ["1"], ran


def test_the_unit_is_one(files, tmp_path):
    """systemd-analyze finds nothing to say, and no more exposed than it was."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze")
    shipped = only(files, r"leatd\.service$").read_text()
    started = re.search(r"^ExecStart=(\S+)", shipped, re.M)[1]
    assert started.endswith("/bin/leatd")
    assert not re.search("^(RestrictSUIDSGID|PrivateUsers)=(yes|true)", shipped, re.M), "it could not do its work with that"
    unit = tmp_path / "leatd.service"
    unit.write_text(shipped.replace(started, str(only(files, r"/bin/leatd$"))))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    done = subprocess.run(["systemd-analyze", "security", "--offline=yes", "--threshold=19", "--no-pager", unit], capture_output=True,
                          text=True)
    if "unrecognized option" in done.stderr:
        pytest.skip("systemd-analyze cannot judge a unit offline here")
    assert done.returncode == 0, done.stdout[-200:]


def test_systemd_is_told(host):
    """Type=notify of the unit: READY=1 when it serves, a failed start when it cannot."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(str(host.folder / "notify"))
        ear.settimeout(lib_host.PATIENCE)
        host.daemon(env={"NOTIFY_SOCKET": str(host.folder / "notify")})
        assert ear.recv(100) == b"READY=1"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind("\0" + host.folder.name)
        ear.settimeout(lib_host.PATIENCE)
        host.daemon(name="abstract", env={"NOTIFY_SOCKET": "@" + host.folder.name})
        assert ear.recv(100) == b"READY=1"


def filtered(*program):
    """From here on this process and its children have a seccomp filter, as systemd installs them."""
    program = b"".join(struct.pack("HBBI", *line) for line in program)
    code = ctypes.create_string_buffer(program, len(program))
    fprog = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, fprog, 0, 0):
        os._exit(99)


LOAD, EQUAL, RETURN, REFUSED, ALLOWED = 0x20, 0x15, 0x06, 0x00050000, 0x7FFF0000


def without_openat2():
    """RestrictSUIDSGID=: openat2 does not exist."""
    filtered((LOAD, 0, 0, 0), (EQUAL, 0, 1, 437), (RETURN, 0, 0, REFUSED | errno.ENOSYS), (RETURN, 0, 0, ALLOWED))


def without_network():
    """RestrictAddressFamilies=AF_UNIX: socket() of other families (system call 41, family in its first argument)."""
    filtered((LOAD, 0, 0, 0), (EQUAL, 0, 3, 41), (LOAD, 0, 0, 16), (EQUAL, 1, 0, socket.AF_UNIX),
             (RETURN, 0, 0, REFUSED | errno.EAFNOSUPPORT), (RETURN, 0, 0, ALLOWED))


def test_a_system_daemon_that_could_open_nothing_does_not_start(host):
    daemon = host.daemon({"daemon": {"mode": "system", "roots": host.data}}, preexec=without_openat2, wait=False)
    assert daemon.process.wait(lib_host.PATIENCE) == 1
    daemon.killed = True
    assert "openat2" in daemon.text() and "RestrictSUIDSGID" in daemon.text()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the filter has x86-64's numbers")
def test_a_network_that_the_unit_does_not_allow_is_named(host):
    """With the unit as it is installed: a daemon for this host alone starts, one whose configuration wants more says why it does not."""
    host.daemon({"daemon": {"mode": "system", "roots": host.data}}, preexec=without_network)
    for name, config in (("s3", {"s3": {"allowed_hosts": "*.example.org"}}), ("store", {"store": {"paths": host.folder / "disk"}, "serve": {"anonymous": "yes"}})):
        daemon = host.daemon({"daemon": {"mode": "system", "roots": host.data}, **config}, preexec=without_network, wait=False, name=name)
        assert daemon.process.wait(lib_host.PATIENCE) == 1
        daemon.killed = True
        assert "leatd(8), NETWORK" in daemon.text()
