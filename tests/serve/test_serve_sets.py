# SPDX-License-Identifier: Apache-2.0
"""Working sets from a daemon's own store (store://): the same as of the files that were uploaded, whatever road they took; a byte that went bad on the
disk or in the page cache is never a sample; permissions."""

import io
import os
import re
import shutil
import tarfile
import urllib.request

import lib_data
import lib_host
import numpy as np
import pytest

MIB = 1 << 20


@pytest.fixture
def daemon(host):
    return start(host)


def start(host, mode="private", keys=None, **serve):
    config = {"pool": {"size": "96MiB", "region_size": "4MiB", "huge_pages": "no"}, "daemon": {"mode": mode, "roots": host.data},
              "store": {"paths": host.folder / "store"}, "serve": {"listen": "127.0.0.1:0", "anonymous": "yes", **serve}}
    if keys:
        (host.folder / "keys").touch(mode=0o600)
        (host.folder / "keys").write_text(keys)
        config["serve"].update(anonymous="no", keys_file=host.folder / "keys")
    made = host.daemon(config)
    made.url = re.search(r"serving S3 at (\S+)", made.text()).group(1)
    return made


def put(daemon, path, data=b""):
    with urllib.request.urlopen(urllib.request.Request(f"{daemon.url}/{path}", data, method="PUT"), timeout=60) as answer:
        assert answer.status == 200


def same(a, b):
    """Two sets, sample by sample."""
    assert len(a) == len(b) and a.fingerprint == b.fingerprint
    assert [f.name for f in a.fields] == [f.name for f in b.fields]
    for i in range(len(a)):
        one, other = a[i], b[i]
        assert a.key(i) == b.key(i)
        if not isinstance(one, dict):
            one, other = {"": one}, {"": other}
        for name in one:
            np.testing.assert_array_equal(np.asarray(one[name]), np.asarray(other[name]))


def stored_files(host, least):
    return [p for p in (host.folder / "store").rglob("*") if p.is_file() and p.stat().st_size >= least]


def out_of_the_cache(host):
    for path in stored_files(host, 0):
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def test_sets_are_those_of_the_files(host, leat, daemon):
    lib_data.make_npy(host.data / "a.npy", 700)  # 5.7 MB
    files = lib_data.make_files(host.data / "tree", 300, 3000)
    (host.data / "tree" / "c000" / "large.bin").write_bytes(lib_data.rows([5], 200_000).tobytes())
    files["c000/large.bin"] = (host.data / "tree" / "c000" / "large.bin").read_bytes()
    (host.data / "shards").mkdir()
    for s in range(3):
        with tarfile.open(host.data / "shards" / f"s-{s:03}.tar", "w") as tar:
            for i in range(40):
                for ext, data in (("bin", lib_data.rows([s * 100 + i], 5000).tobytes()[: 39_000 + i]), ("txt", f"{s} {i}".encode())):
                    info = tarfile.TarInfo(f"{s}-{i:04}.{ext}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    put(daemon, "data")
    for path in host.data.rglob("*"):
        if path.is_file():
            put(daemon, f"data/x/{path.relative_to(host.data)}", path.read_bytes())
    for cold in (True, False):
        if cold:
            out_of_the_cache(host)
        for name in ("a.npy", "tree", "shards", "shards/s-{000..002}.tar", "shards/s-00[01].tar"):
            with leat.open(f"store://data/x/{name}", socket=daemon.socket) as ours, leat.open(host.data / name, socket=daemon.socket) as theirs:
                same(ours, theirs)
    with leat.preload("store://data/x/shards", name="kept", socket=daemon.socket) as kept:
        assert len(kept) == 120
    verified = host.cli("--socket", daemon.socket, "verify", "kept", "--source")
    assert verified.returncode == 0, verified.stderr
    told = daemon.status()["store"]
    total = sum(p.stat().st_size for p in host.data.rglob("*") if p.is_file())
    assert told["loaded_bytes"] >= total and told["padding_bytes"] > 0
    leat.drop("kept", socket=daemon.socket)


def test_a_scan_is_of_the_store_too(host, leat, daemon):
    """leat.scan: all of it in the order of keys, in a window that it fills many times; a second scan continues where it ended; its memory is given back."""
    random, made = np.random.default_rng(7), {}
    put(daemon, "data")
    for i, size in enumerate([0, 1, 4096, 70_000, MIB, 300_000, 0, 12_345] * 8):
        key = f"{('b', 'a', 'c/d')[i % 3]}/{i:03}"
        made[key] = random.bytes(size)
        put(daemon, f"data/x/{key}", made[key])
    put(daemon, "data/x/.hidden", b"no sample")
    put(daemon, "data/y", b"beside it")
    made = dict(sorted(made.items()))
    with leat.scan("store://data/x", socket=daemon.socket, window=2 * MIB) as scan:
        seen = [(sample.key, bytes(sample.data)) for sample in scan]
    assert seen == list(made.items())
    middle = list(made)[30]
    with leat.scan("store://data/x/", after=middle, socket=daemon.socket) as scan:
        assert [sample.key for sample in scan] == list(made)[31:]
    kept = []
    with leat.scan("store://data/x", socket=daemon.socket, window=2 * MIB) as scan:
        with pytest.raises(leat.Busy, match="store://data/x/.* is still held"):
            kept.extend(sample.data for sample in scan)
        n = len(kept)
        kept.clear()
        assert [bytes(sample.data) for sample in scan] == list(made.values())[n:]
    for url, kind, words in (("store://data/none", leat.NotFound, "no objects below"), ("store://none/x", leat.NotFound, "none"), ("store://x", leat.Invalid, "BUCKET")):
        with pytest.raises(kind, match=words):
            next(leat.scan(url, socket=daemon.socket))
    with pytest.raises(leat.NoSpace, match=f"has {MIB} bytes.*window="):
        sum(len(sample.data) for sample in leat.scan("store://data/x", socket=daemon.socket, window=MIB // 2))
    scan = leat.scan("store://data/x", socket=daemon.socket)
    next(scan)
    del scan
    lib_host.wait_for(lambda: daemon.status()["pool"]["used_bytes"] == 0, message=lambda: str(daemon.status()["pool"]))


def test_an_object_that_is_replaced(host, leat, daemon):
    put(daemon, "data")
    for words in (500, 900):
        lib_data.make_npy(host.data / "a.npy", 40, words)
        put(daemon, "data/a.npy", (host.data / "a.npy").read_bytes())
        with leat.open("store://data/a.npy", socket=daemon.socket) as ws:
            lib_data.check_rows([ws[i] for i in range(40)], range(40), words)


@pytest.mark.parametrize("cold", [True, False])
def test_a_bit_that_flips(host, leat, daemon, cold):
    """After the object was read, verified and kept open: in its file on the disk, or in the page cache alone."""
    lib_data.make_npy(host.data / "a.npy", 900)  # 7.4 MB
    data = (host.data / "a.npy").read_bytes()
    put(daemon, "data")
    put(daemon, "data/a.npy", data)
    with urllib.request.urlopen(f"{daemon.url}/data/a.npy", timeout=60) as answer:
        assert answer.read() == data  # open, verified and in the page cache
    path, = stored_files(host, len(data))
    raw = path.read_bytes()
    at = raw.index(data[4 * MIB + 100:4 * MIB + 200])
    with open(path, "r+b") as f:
        f.seek(at)
        f.write(bytes([raw[at] ^ 4]))
    if cold:
        out_of_the_cache(host)
    errors = 0
    with leat.open("store://data/a.npy", socket=daemon.socket) as ws:
        for i in range(900):
            try:
                lib_data.check_rows([ws[i]], [i])
            except leat.Corrupt:
                errors += 1
    assert errors > 0 and "block 4" in daemon.text() and "of data/a.npy is damaged" in daemon.text()
    # another object of that name is a good one
    lib_data.make_npy(host.data / "a.npy", 901)
    put(daemon, "data/a.npy", (host.data / "a.npy").read_bytes())
    with leat.open("store://data/a.npy", socket=daemon.socket) as ws:
        lib_data.check_rows([ws[i] for i in range(901)], range(901))


def test_what_is_refused(host, leat, daemon):
    put(daemon, "data")
    put(daemon, "data/a.npy", b"no array")
    for uri, text in (("store://none/a.npy", "none"), ("store://data/b.npy", "no such object"), ("store://data/none/", "none below it"), ("store://x", "BUCKET"),
                      ("store://data/../x.npy", ".."), ("a=store://data/a.npy;b=s3://data/a.npy", "cannot be in one set")):
        with pytest.raises(leat.Error, match=re.escape(text)):
            leat.open(uri, socket=daemon.socket)
    bare = host.daemon({"pool": {"size": "16MiB"}}, name="bare")
    with pytest.raises(leat.Error, match="has no store"):
        leat.open("store://data/a.npy", socket=bare.socket)
    for command in (["index", "store://data/a.npy"], ["ls", "store://data/"]):
        done = host.cli(*command)
        assert done.returncode != 0 and "store://" in done.stderr, done.stderr


ANN, KEYS = 20001, """[default]
aws_access_key_id = LEATTESTADMIN0000001
aws_secret_access_key = test-secret-of-the-administrator-0001
access = admin

[anonymous]
read = public-*
write = public-*
"""


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv, to be two users")
def test_other_users_read_what_the_keys_file_lets_them(host, leat):
    import lib_serve

    daemon = start(host, "system", KEYS)
    daemon.folder.chmod(0o755)
    parts = lib_serve.urllib.parse.urlsplit(daemon.url)
    server = lib_serve.Server.__new__(lib_serve.Server)
    server.host, server.port = parts.hostname, parts.port
    lib_data.make_npy(host.data / "a.npy", 40)
    for bucket in ("public-x", "private-x"):
        assert server.request("PUT", f"/{bucket}").status == 200
        assert server.request("PUT", f"/{bucket}/a.npy", (host.data / "a.npy").read_bytes()).status == 200
        with leat.open(f"store://{bucket}/a.npy", socket=daemon.socket) as ws:  # root
            lib_data.check_rows([ws[i] for i in range(40)], range(40))
    home = host.folder / "home"
    home.mkdir(mode=0o700)
    os.chown(home, ANN, ANN)
    client = host.python("""
for bucket in ("public-x", "private-x"):
    try:
        say(len(leat.open(f"store://{bucket}/a.npy")))
    except leat.Error as e:
        say(type(e).__name__, str(e)[:300])
""", prefix=["setpriv", f"--reuid={ANN}", f"--regid={ANN}", "--clear-groups"],
                         env={"LEAT_SOCKET": str(daemon.socket), "HOME": str(home), "XDG_CACHE_HOME": str(home), "XDG_RUNTIME_DIR": str(home)})
    assert client.hear() == "40"
    refused = client.hear()
    assert "Denied" in refused and "keys file" in refused
