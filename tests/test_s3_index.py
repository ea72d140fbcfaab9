# SPDX-License-Identifier: Apache-2.0
"""Indexes of what lies on S3 and web servers, held against those of the same files here."""
import contextlib
import http.server
import io
import json
import os
import pathlib
import signal
import subprocess
import tarfile
import threading
import zlib

import pytest

import lib_s3

np = pytest.importorskip("numpy")
boto3 = pytest.importorskip("boto3")
from botocore.config import Config  # noqa: E402

BUILD = pathlib.Path(os.environ.get("LEAT_BUILD", pathlib.Path(__file__).resolve().parent.parent / "build"))
DUMP = BUILD / "tests" / "tools" / "leat-index-dump"

pytestmark = pytest.mark.skipif(lib_s3.swift_missing() is not None, reason=str(lib_s3.swift_missing()))

TREE = {"cat/1.jpg": 5, "cat-b/2.jpg": 200_000, "dog/deep/er/3": 7, "dog/4": 0, "z": 3, "dog/ä b%20+&?#.txt": 9}
HIDDEN = (".hidden/x", "dog/.h")


def fill_tar(path, seed, members=200):
    rng = np.random.default_rng(seed)
    with tarfile.open(path, "w", format=(tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)[seed % 2]) as tar:
        for i in range(members):
            for extension, most in (("jpg", 40_000 if i % 50 else 3_000_000), ("cls", 3), ("long" * 40, 10)):
                data = rng.bytes(int(rng.integers(0, most)))
                info = tarfile.TarInfo(f"{i:05}.{extension}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


class Place:
    """The same names in a folder here and in a bucket there."""

    def __init__(self, top, swift):
        self.top, self.url = top, "s3://leat-index"
        config = Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1})
        self.client = boto3.client("s3", endpoint_url=swift.url, region_name=swift.region, aws_access_key_id=swift.access,
                                   aws_secret_access_key=swift.secret, config=config)
        self.client.create_bucket(Bucket="leat-index")

    def upload(self, name):
        self.client.put_object(Bucket="leat-index", Key=name, Body=(self.top / name).read_bytes())

    def put(self, name, data):
        path = self.top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self.upload(name)

    def remove(self, name):
        self.client.delete_object(Bucket="leat-index", Key=name)


@pytest.fixture(scope="module")
def swift(tmp_path_factory):
    server = lib_s3.Swift(tmp_path_factory.mktemp("swift") / "swift")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def place(tmp_path_factory, swift):
    made = Place(tmp_path_factory.mktemp("here"), swift)
    for name, size in TREE.items():
        made.put(f"tree/{name}", os.urandom(size))
    for name in HIDDEN:
        made.put(f"tree/{name}", b"x")
    made.client.put_object(Bucket="leat-index", Key="tree/dog/", Body=b"")
    (made.top / "shards").mkdir()
    for i in range(5):
        fill_tar(made.top / f"shards/train-{i:03}.tar", i)
        made.upload(f"shards/train-{i:03}.tar")
    with tarfile.open(made.top / "steps.tar", "w") as tar:  # small members, and some that are stepped over
        for i in range(400):
            info = tarfile.TarInfo(f"{i}.bin")
            info.size = 12_000_000 if i in (200, 210, 399) else 20_000
            tar.addfile(info, io.BytesIO(bytes(info.size)))
    made.upload("steps.tar")
    (made.top / "wids" / "b").mkdir(parents=True)
    for i, name in enumerate(("wids/0.tar", "wids/b/1.tar")):
        fill_tar(made.top / name, i, 3)
        made.upload(name)
    made.put("wids/index.json", b"{}")
    made.put("wids/b/1.idx", b"0")
    for name, array in (("images", np.random.rand(50, 30, 4).astype("f4")), ("labels", np.arange(50, dtype="u2"))):
        np.save(made.top / f"{name}.npy", array)
        made.upload(f"{name}.npy")
    (made.top / "x.h5").write_bytes(bytes(512) + b"\x89HDF\r\n\x1a\n" + bytes(512))
    made.upload("x.h5")
    return made


@pytest.fixture(autouse=True)
def environment(tmp_path, monkeypatch, swift):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in [n for n in os.environ if n.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in swift.env().items():
        monkeypatch.setenv(name, value)


def run(spec, *options):
    done = subprocess.run([DUMP, *options, str(spec)], capture_output=True, timeout=60)
    assert done.returncode in (0, 1), done.stderr.decode(errors="replace")
    return json.loads(done.stdout)


def dump(spec, *options):
    got = run(spec, *options)
    assert "error" not in got, got
    return got


def refused(spec, error, *words):
    got = run(spec)
    assert got.get("error") == error, got
    for word in words:
        assert word in got["message"], got["message"]


@pytest.mark.long
@pytest.mark.parametrize("spec", [
    "{}/tree", "{}/tree/", "{}/shards", "{}/shards/train-{{000..004}}.tar", "{}/shards/train-00[1-3].tar", "{}/shards/*.tar",
    "{}/shards/train-{{000,003}}.tar", "{}/shards/train-002.tar", "image={}/images.npy;label={}/labels.npy", "{}/images.npy#rows=7",
    "{}/steps.tar", "{}/wids",
])
def test_same_as_here(place, spec):
    here, there = dump(spec.format(place.top, place.top)), dump(spec.format(place.url, place.url))
    for of in (here, there):
        of.pop("root")
        of["sources"] = [s for s in of["sources"] if not s.endswith("/")]  # folders, which a bucket has not
    assert here == there  # checksums of the bytes behind it too


def test_tree(place):
    got = dump(f"{place.url}/tree")
    assert [s["key"] for s in got["samples"]] == ["cat/1.jpg", "cat-b/2.jpg", "dog/4", "dog/ä b%20+&?#.txt", "dog/deep/er/3"]
    assert all(s["class"] == s["key"].partition("/")[0] for s in got["samples"])
    assert all(s["parts"]["data"]["crc32"] == zlib.crc32((place.top / "tree" / s["key"]).read_bytes()) for s in got["samples"])


@pytest.mark.parametrize("chosen", ["#extensions=JPG", "#pattern=*/dog/*"])
def test_a_filter_of_a_whole_bucket(place, chosen):
    """A bucket's name ends at "#"."""
    there, slash, here = (dump(top + chosen) for top in (place.url, f"{place.url}/", str(place.top)))
    assert there == slash
    assert [s["key"] for s in there["samples"]] == [s["key"] for s in here["samples"]] != []


def test_from_the_web(place, tmp_path):
    with_nginx = lib_s3.Nginx(tmp_path / "nginx", place.top)
    try:
        here = dump(f"{place.top}/shards/train-{{000..004}}.tar")
        there = dump(with_nginx.url + "/shards/train-{000..004}.tar")
        assert here["samples"] == there["samples"] and here["fingerprint"] == there["fingerprint"]
        assert dump(f"image={with_nginx.url}/images.npy;label={place.url}/labels.npy")["nsamples"] == 50
        assert not dump(with_nginx.url + "/images.npy", "--write")["scanned"]  # in the cache: a web server takes no writes
        refused(with_nginx.url + "/nothing.npy", "not found", "/nothing.npy")
        refused(with_nginx.url + "/tree/", "invalid", "no lists")
    finally:
        with_nginx.stop()


def test_kept_and_noticed(place):
    spec = f"{place.url}/tree"
    assert dump(spec, "--open")["scanned"]
    assert not dump(spec, "--open")["scanned"]
    place.put("tree/dog/new", b"new")
    assert dump(spec, "--open")["scanned"]
    place.put("tree/dog/new", b"old")  # the same size
    assert dump(spec, "--open")["scanned"]
    assert not dump(spec, "--open")["scanned"]
    place.remove("tree/dog/new")
    (place.top / "tree/dog/new").unlink()
    assert dump(spec, "--open")["scanned"]


def test_a_tree_becomes_shards(place):
    """And the other way: by objects that no tree would have as samples."""
    spec = f"{place.url}/turn"
    place.put("turn/train/0.tar", (place.top / "wids/0.tar").read_bytes())
    place.put("turn/README.txt", b"x")
    assert [s["key"] for s in dump(spec, "--open")["samples"]] == ["train/0.tar"]
    place.remove("turn/README.txt")
    assert [s["key"] for s in dump(spec, "--open")["samples"]] == ["00000", "00001", "00002"]
    place.put("turn/README.txt", b"x")
    assert [s["key"] for s in dump(spec, "--open")["samples"]] == ["train/0.tar"]


def test_command(place, swift, tmp_path, monkeypatch):
    for name, beside in (("shards", "shards/.leat-index"), ("images.npy", "images.npy.leat-index")):
        done = subprocess.run([BUILD / "src/apps/leat", "index", "--json", f"{place.url}/{name}"], capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["index"] == f"{place.url}/{beside}"
        for cache in "one", "two":
            monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache))
            assert not dump(f"{place.url}/{name}", "--open")["scanned"]
        place.remove(beside)
        assert not dump(f"{place.url}/{name}", "--open")["scanned"]  # kept here by now
    leat_index = [BUILD / "src/apps/leat", "index"]
    done = subprocess.run([*leat_index, f"{place.url}/none"], capture_output=True, timeout=60)
    assert done.returncode and b"s3://leat-index/none" in done.stderr
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    done = subprocess.run([*leat_index, f"{place.url}/tree", "--endpoint-url", swift.url, "--region", swift.region], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    place.remove("tree/.leat-index")
    done = subprocess.run([*leat_index, f"{place.url}/tree", "--endpoint-url", swift.url, "--no-sign-request"], capture_output=True, timeout=60)
    assert done.returncode and b"s3://leat-index/tree" in done.stderr


def test_refused(place, swift, monkeypatch):
    refused(f"{place.url}/none", "not found", "s3://leat-index/none")
    refused(f"{place.url}/shards/train-{{000..009}}.tar", "not found", "s3://leat-index/shards/train-005.tar")
    refused(f"{place.url}/shards/x*.tar", "not found", "x*.tar")
    refused("s3://leat-no-such-bucket/x", "not found", "leat-no-such-bucket")
    refused(f"{place.url}/x.h5", "unsupported", "s3://leat-index/x.h5", "leat cp")
    refused(f"{place.url}/tree/z", "unsupported", "s3://leat-index/tree/z")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    refused(f"{place.url}/tree", "denied", "s3://leat-index/tree")


@contextlib.contextmanager
def scripted(answer):
    """A server that says what `answer(method, path, headers)` returns: status, headers, body."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            status, headers, body = answer(self.command, self.path, self.headers)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def page(keys, token=None):
    inside = "".join(f"<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;1&quot;</ETag>"
                     "<Size>1024</Size></Contents>" for key in keys)
    more = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    return f"""<?xml version="1.0"?><ListBucketResult><Name>bucket</Name><IsTruncated>{"true" if token else "false"}</IsTruncated>{more}{inside}
</ListBucketResult>""".encode()


def test_changed_between_list_and_read(monkeypatch):
    def answer(method, path, headers):
        if "list-type=2" in path:
            return 200, {"Content-Type": "application/xml"}, page(["p/0.tar", "p/1.tar"])
        if method == "HEAD":
            return 404, {}, b""
        if headers.get("If-Match") == '"1"' and path.endswith("/1.tar"):
            return 412, {}, b"<Error><Code>PreconditionFailed</Code></Error>"
        return 206, {"ETag": '"1"', "Content-Range": "bytes 0-1023/1024"}, bytes(1024)

    with scripted(answer) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        refused("s3://bucket/p", "stale", "s3://bucket/p/1.tar")


def test_list_that_breaks_off(monkeypatch):
    third = [(403, {}, b"<Error><Code>AccessDenied</Code><Message>no more</Message></Error>")]

    def answer(method, path, headers):
        if method == "HEAD":
            return 404, {}, b""
        if "continuation-token=2" in path:
            return third[0]
        if "continuation-token=1" in path:
            return 200, {}, page(["p/c", "p/d"], "2")
        return 200, {}, page(["p/a", "p/b"], "1")

    with scripted(answer) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        refused("s3://bucket/p", "denied", "s3://bucket/p", "AccessDenied")
        third[0] = (200, {}, b"<html>welcome to the hotel</html>")
        refused("s3://bucket/p", "corrupt", "s3://bucket/p")
        third[0] = (200, {}, page(["p/e"]))
        assert [s["key"] for s in dump("s3://bucket/p", "--no-data")["samples"]] == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize("silent", ["HEAD", "GET"])
def test_interrupted(silent):
    """A server that takes a request and says nothing: Ctrl-C ends the wait, long before the request's time is up."""
    asked, end = threading.Event(), threading.Event()

    def answer(method, path, headers):
        if method == silent:
            asked.set()
            end.wait(60)
        return 200, {"ETag": '"1"'}, bytes(10240)

    with scripted(answer) as url:
        process = subprocess.Popen([BUILD / "src/apps/leat", "index", f"{url}/x.tar"], stderr=subprocess.PIPE)
        assert asked.wait(60)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=40)
        end.set()
    assert process.returncode and b"interrupted" in said
