# SPDX-License-Identifier: Apache-2.0
"""Caching buckets of an S3 server that breaks on command, of a second Leat, of a folder: what a client sees over the S3 service."""

import contextlib
import hashlib
import http.client
import json
import threading

import lib_serve
import pytest
from lib_host import wait_for
from lib_serve import at_once, content, error
from s3fault import S3Fault

MIB = 1 << 20


@pytest.fixture
def front(server, far, request):
    """A bucket in front of a folder of its own in the bucket `far`; make(**settings)."""
    name = "f-" + hashlib.sha256(request.node.name.encode()).hexdigest()[:20]
    far.rules.clear()
    far.log.clear()

    def make(suffix="", **settings):
        remote = {"uri": f"s3://far/{name}{suffix}", "endpoint": far.url, "access_key": "AK", "secret_key": "SK", "timeout_s": 5, **settings}
        reply = server.request("PUT", f"/{name}{suffix}", headers={"x-leat-remote": json.dumps(remote)})
        assert reply.status == 200, reply
        return name + suffix

    return make


def there(far, bucket, key, data):
    file = far.top / "far" / bucket / key
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(file.name + ".new")
    new.write_bytes(data)
    new.replace(file)
    return file


def gets(far, key):
    return [r for r in far.log if r[0] == "GET" and r[1].endswith(key)]


def get(server, bucket, key, **headers):
    return server.request("GET", f"/{bucket}/{key}", headers=headers)


def test_many_readers_one_fetch(server, far, front):
    bucket = front()
    data = content("one", 6 * MIB + 11)
    there(far, bucket, "k", data)
    replies = [None] * 8

    def read(i):
        replies[i] = get(server, bucket, "k", **({"range": "bytes=100-1099"} if i % 2 else {}))

    at_once(8, read)
    for i, reply in enumerate(replies):
        assert (reply.status, reply.body == (data[100:1100] if i % 2 else data)) == ((206, True) if i % 2 else (200, True))
        assert reply.headers["etag"] == f'"{hashlib.md5(data).hexdigest()}"'
    sent = sum(int(r[2].partition("-")[2]) - int(r[2].removeprefix("bytes=").partition("-")[0]) + 1 for r in gets(far, "/k") if r[2])
    assert sent == len(data)
    assert get(server, bucket, "k").body == data


def test_read_while_it_arrives(server, far, front):
    """The remote says the first part at once, and the rest when it has been read here."""
    bucket = front(timeout_s=120)
    data = content("slow", 2 * MIB)
    there(far, bucket, "k", data)
    far.fail(key=f"{bucket}/k", method="GET", times=2)  # the first two requests are answered; others when it is time
    gate = threading.Event()
    far.fail(key=f"{bucket}/k", method="GET", times=-1, wait=gate)
    target, headers = server.prepare("GET", f"/{bucket}/k")
    with contextlib.closing(server.connect()) as connection:
        connection.request("GET", target, headers=headers)
        response = connection.getresponse()
        assert response.status == 200 and int(response.headers["content-length"]) == len(data)
        first = response.read(256 * 1024)
        assert first == data[:len(first)] and len(first) == 256 * 1024
        gate.set()
        assert first + response.read() == data


def test_remote_dies(server, far, front):
    bucket = front()
    data = content("dies", 4 * MIB)
    there(far, bucket, "k", data)
    far.fail(key=f"{bucket}/k", method="GET", times=2)  # the first two blocks are asked for at the same time
    cut = far.fail(key=f"{bucket}/k", method="GET", times=-1, reset=True)
    target, headers = server.prepare("GET", f"/{bucket}/k")
    with contextlib.closing(server.connect()) as connection:
        connection.request("GET", target, headers=headers)
        response = connection.getresponse()
        assert response.status == 200
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            response.read()
    wait_for(lambda: cut.hits > 0)
    far.rules.clear()
    assert get(server, bucket, "k").body == data
    # All of it: what is here is served, what is not is 503, and says why.
    far.fail(times=-1, status=500, code="InternalError", message="broken")
    assert get(server, bucket, "k").body == data
    reply = get(server, bucket, "other")
    assert reply.status == 503 and reply.code == "ServiceUnavailable" and "remote of bucket" in reply.xml.findtext("Message"), reply
    assert f"s3://far/{bucket}/other" in reply.xml.findtext("Message"), reply  # as an administrator asks
    assert server.request("GET", f"/{bucket}", query=[("list-type", "2")]).status == 503
    assert server.request("PUT", f"/{bucket}/new", b"x").status == 503
    reply = server.request("POST", f"/{bucket}", b'[{"key": "k"}, {"key": "other"}]', query=[("batch", "")])
    assert (reply.status, reply.code) == (503, "ServiceUnavailable"), reply
    far.rules.clear()
    assert get(server, bucket, "new").status == 404
    assert get(server, bucket, "other").status == 404
    far.fail(times=-1, status=403, code="AccessDenied", message="denied")
    reply = get(server, bucket, "new")
    assert (reply.status, reply.code) == (502, "BadGateway") and "denied" in reply.xml.findtext("Message"), reply


def test_where_the_remote_is_stays_here(server, far):
    """Users other than administrators learn that the remote fails, refuses or is late; its address and its answer are in the log."""
    bucket, where = "shared-a", far.url.partition("//")[2]
    reader = {"access": "LEATTESTREADER000001", "secret": "secret-of-the-reader"}
    remote = {"uri": "s3://far/hidden-folder", "endpoint": far.url, "access_key": "AK", "secret_key": "SK", "timeout_s": 1}
    far.rules.clear()
    assert server.request("PUT", f"/{bucket}", headers={"x-leat-remote": json.dumps(remote)}).status == 200
    gate = threading.Event()
    try:
        for rule, status, code, queries in (({"status": 500, "code": "InternalError", "message": "a-secret"}, 503, "ServiceUnavailable", ("", "batch")),
                                            ({"status": 403, "code": "AccessDenied", "message": "a-secret"}, 502, "BadGateway", ("", "batch", "prefix")),
                                            ({"wait": gate}, 504, "GatewayTimeout", ("",))):
            far.rules.clear()
            far.fail(times=-1, **rule)
            for query in ([(name, "")] if name else [] for name in queries):
                path = f"/{bucket}" if query else f"/{bucket}/k"
                ask = ("POST", path, b'[{"key": "k"}]') if query == [("batch", "")] else ("GET", path)
                at = server.log.stat().st_size
                reply = server.request(*ask, query=query, **reader)
                assert (reply.status, reply.code) == (status, code), (rule, query, reply)
                assert "remote" in reply.xml.findtext("Message"), reply
                assert not any(text in str(reply) for text in (where, "hidden-folder", "a-secret", "far")), reply
                said = server.log.read_text()[at:]
                assert where in said or "s3://far/hidden-folder" in said, (rule, query, said)
    finally:
        gate.set()
        far.rules.clear()
        assert server.request("DELETE", f"/{bucket}").status == 204


def test_changed_meanwhile(server, far, front):
    bucket = front(check="always")
    one, two = content("1", 3 * MIB), content("2", 3 * MIB)
    there(far, bucket, "k", one)
    far.fail(key=f"{bucket}/k", method="GET", times=2)
    far.fail(key=f"{bucket}/k", method="GET", times=1, change=two)
    target, headers = server.prepare("GET", f"/{bucket}/k")
    with contextlib.closing(server.connect()) as connection:
        connection.request("GET", target, headers=headers)
        response = connection.getresponse()
        try:
            body = response.read()
            assert body in (one, two)
        except (http.client.IncompleteRead, ConnectionError) as e:
            assert one.startswith(getattr(e, "partial", b""))
    assert get(server, bucket, "k").body == two
    there(far, bucket, "k", b"three")
    assert get(server, bucket, "k").body == b"three"
    (far.top / "far" / bucket / "k").unlink()
    assert get(server, bucket, "k").status == 404


def test_wrong_bytes(server, far, front):
    bucket = front()
    data = content("wrong", 300_000)
    there(far, bucket, "k", data)
    far.checksum = "crc64nvme"
    try:
        rule = far.fail(key=f"{bucket}/k", method="GET", corrupt=True, times=-1)
        target, headers = server.prepare("GET", f"/{bucket}/k")
        with contextlib.closing(server.connect()) as connection:
            connection.request("GET", target, headers=headers)
            response = connection.getresponse()
            if response.status == 200:
                with pytest.raises((http.client.IncompleteRead, ConnectionError)):
                    response.read()
        rule.left = 0
        assert get(server, bucket, "k").body == data
    finally:
        far.checksum = None


def test_write_through(server, far, front):
    bucket = front()
    headers = {"content-type": "text/x", "x-amz-meta-colour": "blue"}
    assert server.request("PUT", f"/{bucket}/a/b", b"hello", headers).status == 200
    file = far.top / "far" / bucket / "a" / "b"
    assert file.read_bytes() == b"hello"
    reply = get(server, bucket, "a/b")
    assert reply.body == b"hello" and reply.headers["content-type"] == "text/x" and reply.headers["x-amz-meta-colour"] == "blue"
    assert server.request("PUT", f"/{bucket}/a/b", b"no", {"if-none-match": "*"}).status == 412
    assert file.read_bytes() == b"hello"
    # An upload in parts.
    begun = server.request("POST", f"/{bucket}/parts", query=[("uploads", "")])
    upload = begun.xml.findtext("UploadId")
    parts = [content("p1", 5 * MIB), content("p2", 1000)]
    etags = [server.request("PUT", f"/{bucket}/parts", p, query=[("partNumber", str(i + 1)), ("uploadId", upload)]).headers["etag"]
             for i, p in enumerate(parts)]
    text = "".join(f"<Part><PartNumber>{i + 1}</PartNumber><ETag>{e}</ETag></Part>" for i, e in enumerate(etags))
    done = server.request("POST", f"/{bucket}/parts", f"<CompleteMultipartUpload>{text}</CompleteMultipartUpload>".encode(),
                          query=[("uploadId", upload)])
    assert done.status == 200, done
    assert (far.top / "far" / bucket / "parts").read_bytes() == b"".join(parts)
    there(far, bucket, "there", b"x")
    listed = server.request("GET", f"/{bucket}", query=[("list-type", "2"), ("delimiter", "/")]).xml
    assert [k.text for k in listed.iter("Key")] == ["parts", "there"]
    assert [p.findtext("Prefix") for p in listed.iter("CommonPrefixes")] == ["a/"]
    # A copy of what only the remote has.
    assert server.request("PUT", f"/{bucket}/copy", headers={"x-amz-copy-source": f"/{bucket}/there"}).status == 200
    assert (far.top / "far" / bucket / "copy").read_bytes() == b"x"
    for key in ("a/b", "parts", "there", "copy"):
        assert server.request("DELETE", f"/{bucket}/{key}").status == 204
    assert not file.exists() and get(server, bucket, "there").status == 404
    assert server.request("DELETE", f"/{bucket}").status == 204


@pytest.mark.parametrize("mode", ["through", "back"])
def test_conditions_of_writes(server, far, front, mode):
    """If-Match is about what the remote has: another version is 412, none is 404, whatever is here."""
    bucket = front(mode=mode, check="always")
    assert server.request("PUT", f"/{bucket}/source", b"x").status == 200

    def write(**headers):
        yield server.request("PUT", f"/{bucket}/k", b"new", headers=headers)
        yield server.request("PUT", f"/{bucket}/k", headers={"x-amz-copy-source": f"/{bucket}/source", **headers})
        upload = lib_serve.Upload(server, f"/{bucket}/k")
        upload.part(1, b"new")
        yield upload.complete(headers=headers)

    file = there(far, bucket, "k", b"old")
    for reply in write(**{"if-match": '"wrong"'}):  # it is there alone
        assert error(reply) == (412, "PreconditionFailed")
    assert get(server, bucket, "k").body == b"old"
    file.unlink()
    for reply in write(**{"if-match": f'"{hashlib.md5(b"old").hexdigest()}"'}):  # it is here alone
        assert error(reply) == (404, "NoSuchKey")
    assert get(server, bucket, "k").status == 404


@pytest.mark.parametrize("mode", ["through", "back"])
def test_metadata_that_no_remote_takes(server, front, mode):
    """Said before a byte is sent: an upload that could never be completed is not begun, and nothing waits for its push for ever."""
    bucket = front(mode=mode)
    headers = {"cache-control": "x" * 4090}
    for method, query in (("PUT", ()), ("POST", [("uploads", "")])):
        assert error(server.request(method, f"/{bucket}/k", b"", headers, query=query)) == (400, "MetadataTooLarge")
    assert get(server, bucket, "k").status == 404
    assert server.request("PUT", f"/{bucket}/k", b"x", {"cache-control": "x" * 4000}).status == 200


@pytest.mark.parametrize("mode", ["through", "back"])
@pytest.mark.parametrize("count", [1, 28, 64, 65])
def test_many_names_of_metadata(server, far, front, mode, count):
    """What is acknowledged can be pushed, also with many names, or one twice; what cannot is refused at its begin."""
    bucket = front(mode=mode)
    meta = {f"x-amz-meta-{i}": str(i) for i in range(count - 1)}
    twice = [("x-amz-meta-twice", "a"), ("x-amz-meta-twice", "b")]
    replies = {"k": server.request("PUT", f"/{bucket}/k", b"one", meta, query=twice)}
    replies["u"] = begun = server.request("POST", f"/{bucket}/u", b"", meta, query=[("uploads", ""), *twice])
    if count == 65:
        assert [error(r) for r in replies.values()] == [(400, "MetadataTooLarge")] * 2
        return
    assert [r.status for r in replies.values()] == [200] * 2
    upload = begun.xml.findtext("UploadId")
    etag = server.request("PUT", f"/{bucket}/u", b"one", query=[("partNumber", "1"), ("uploadId", upload)]).headers["etag"]
    text = f"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part></CompleteMultipartUpload>".encode()
    assert server.request("POST", f"/{bucket}/u", text, query=[("uploadId", upload)]).status == 200
    for key in replies:
        wait_for(lambda key=key: (far.top / "far" / bucket / key).exists())


def test_upload_while_the_remote_is_down(server, far, front):
    """Nothing is visible before it is there; until then the upload stays as it was, so that the same request can be sent again."""
    bucket = front()
    path, file = f"/{bucket}/k", there(far, bucket, "k", b"old")

    def begin(data):
        upload = server.request("POST", path, query=[("uploads", "")]).xml.findtext("UploadId")
        etag = server.request("PUT", path, data, query=[("partNumber", "1"), ("uploadId", upload)]).headers["etag"]
        text = f"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part></CompleteMultipartUpload>".encode()
        return lambda: server.request("POST", path, text, query=[("uploadId", upload)])

    for data, status, code, told in ((b"refused", 403, "AccessDenied", 502), (b"late", 500, "InternalError", 503)):
        before = file.read_bytes()
        complete = begin(data)
        far.fail(method="PUT", times=-1, status=status, code=code)
        assert complete().status == complete().status == told
        assert file.read_bytes() == before and get(server, bucket, "k").body == before
        far.rules.clear()
        assert complete().status == 200 and file.read_bytes() == data
        assert complete().status == 200  # its answer may have been lost
        assert get(server, bucket, "k").body == data


def test_answers_that_are_lost(server, far, front):
    """A PUT whose answer never comes, and a GET of the version before during that: the cached version is not taken for the newest."""
    bucket = front(timeout_s=600)
    file = there(far, bucket, "k", b"old")
    gate = threading.Event()
    lost = far.fail(key=f"{bucket}/k", method="PUT", times=-1, wait=gate, length=5, after=0, close=True)  # it is stored
    replies = []
    writer = threading.Thread(target=lambda: replies.append(server.request("PUT", f"/{bucket}/k", b"newer").status))
    writer.start()
    try:
        wait_for(lambda: lost.hits > 0)
        assert get(server, bucket, "k").body == b"old"
        assert not replies
    finally:
        gate.set()
        writer.join()
        far.rules.clear()
    assert replies == [503] and file.read_bytes() == b"newer"
    assert get(server, bucket, "k").body == b"newer"
    # A DELETE whose answer never comes.
    far.fail(key=f"{bucket}/k", method="DELETE", times=-1, status=500)
    assert server.request("DELETE", f"/{bucket}/k").status == 503
    far.rules.clear()
    file.unlink()
    assert get(server, bucket, "k").status == 404


def test_silent_remote_keeps_nobody_else(server, far, front, bucket, tmp_path):
    """More requests wait for a remote than the server has threads, of each kind; other buckets and other remotes do not notice."""
    silent = front(timeout_s=600)
    gate = threading.Event()
    waits = far.fail(wait=gate, times=-1)
    work = [("PUT", f"/{silent}/a{i}", b"x", ()) for i in range(8)] + [("DELETE", f"/{silent}/b{i}", b"", ()) for i in range(8)]
    work += [("GET", f"/{silent}", b"", [("list-type", "2"), ("prefix", str(i))]) for i in range(24)]
    work += [("GET", f"/{silent}/c{i}", b"", ()) for i in range(40)]
    replies = []
    threads = [threading.Thread(target=lambda w=w: replies.append(server.request(*w[:3], query=w[3]).status)) for w in work]
    try:
        for t in threads:
            t.start()
        wait_for(lambda: waits.hits >= 32)
        for i in range(4):
            assert server.request("PUT", f"/{bucket}/k{i}", b"here").status == 200
            assert get(server, bucket, f"k{i}").body == b"here"
        assert not replies, "they were to wait"
        # Nor do buckets in front of another remote: writes, lists, deletions, and reads of what is there alone.
        (tmp_path / "far").mkdir()
        with S3Fault(tmp_path) as other:
            works = front("-2", endpoint=other.url)
            for i in range(4):
                assert server.request("PUT", f"/{works}/k{i}", b"there").status == 200
                (tmp_path / "far" / works / f"m{i}").write_bytes(b"a miss")
                assert get(server, works, f"m{i}").body == b"a miss"
            listed = server.request("GET", f"/{works}", query=[("list-type", "2")]).xml
            assert len(list(listed.iter("Key"))) == 8
            assert server.request("DELETE", f"/{works}/k0").status == 204
        assert not replies, "they were to wait"
    finally:
        gate.set()
        for t in threads:
            t.join()
        far.rules.clear()


def test_write_back_and_restart(quick_folder, far, front, request):
    """What the remote has not got survives kill -9, and is pushed then."""
    server = lib_serve.Server(quick_folder / "tier-restart")
    try:
        far.rules.clear()
        remote = {"uri": "s3://far/back", "endpoint": far.url, "access_key": "AK", "secret_key": "SK", "mode": "back"}
        assert server.request("PUT", "/back", headers={"x-leat-remote": json.dumps(remote)}).status == 200
        rule = far.fail(times=-1, status=503, method="PUT")
        for i in range(5):
            assert server.request("PUT", f"/back/k{i}", f"text {i}".encode()).status == 200
        wait_for(lambda: rule.hits > 0)
        server.kill()
        server.start()
        assert get(server, "back", "k3").body == b"text 3"
        assert not (far.top / "far" / "back").exists()
        far.rules.clear()
        wait_for(lambda: all((far.top / "far" / "back" / f"k{i}").exists() for i in range(5)))
        assert (far.top / "far" / "back" / "k3").read_bytes() == b"text 3"
    finally:
        server.stop(check=False)


def test_in_front_of_leat(quick_folder, server, tmp_path):
    """Another Leat as the remote; and that one in front of a folder: three deep."""
    other = lib_serve.Server(quick_folder / "tier-other", keys=lib_serve.KEYS + "access = admin\n")
    try:
        (tmp_path / "x").mkdir()
        (tmp_path / "x" / "1").write_bytes(b"from a folder")
        # Everybody may do everything with objects there; the server's own files are no objects.
        assert other.request("PUT", "/everybodys", access=None).status == 200
        reply = other.request("PUT", "/opened", headers={"x-leat-remote": json.dumps({"uri": f"file://{tmp_path}"})}, access=None)
        assert (reply.status, reply.code) == (403, "AccessDenied")
        assert other.request("HEAD", "/opened").status == 404
        assert other.request("PUT", "/middle", headers={"x-leat-remote": json.dumps({"uri": f"file://{tmp_path}"})}).status == 200
        remote = {"uri": "s3://middle/x", "endpoint": other.url, "access_key": lib_serve.ACCESS, "secret_key": lib_serve.SECRET}
        assert server.request("PUT", "/chain", headers={"x-leat-remote": json.dumps(remote)}).status == 200
        assert get(server, "chain", "1").body == b"from a folder"
        data = content("chain", 5 * MIB)
        assert server.request("PUT", "/chain/2", data, {"x-amz-meta-a": "b"}).status == 200
        assert (tmp_path / "x" / "2").read_bytes() == data
        reply = other.request("GET", "/middle/x/2")
        assert reply.body == data and reply.headers["x-amz-meta-a"] == "b"
        listed = server.request("GET", "/chain", query=[("list-type", "2")]).xml
        assert [k.text for k in listed.iter("Key")] == ["1", "2"]
        assert server.request("DELETE", "/chain/2").status == 204
        assert not (tmp_path / "x" / "2").exists()
    finally:
        other.stop()


def test_settings_are_checked(server, far):
    for remote, says in (("{}", "needs a uri"), ('{"uri": "s3://far", "colour": 1}', "colour"), ("nonsense", "JSON object")):
        reply = server.request("PUT", "/wrong-front", headers={"x-leat-remote": remote})
        assert reply.status == 400 and says in reply.xml.findtext("Message"), reply
        assert server.request("HEAD", "/wrong-front").status == 404
    # The signature of CreateBucket has to cover the bucket's remote.
    target, headers = lib_serve.presigned(server, "PUT", "/not-signed")
    reply = server.send("PUT", target, b"", {**headers, "x-leat-remote": '{"uri": "file:///etc"}'})
    assert (reply.status, reply.code) == (403, "AccessDenied") and "x-leat-remote" in reply.xml.findtext("Message")
    assert server.request("HEAD", "/not-signed").status == 404
    reply = server.request("PUT", "/not-yours", headers={"x-leat-remote": '{"uri": "file:///etc"}'}, access="LEATTESTMAKER0000001",
                           secret="secret-of-the-maker")
    assert reply.status == 403, reply


def test_administration(quick_folder, far, tmp_path):
    """Remote and jobs by /v1: prefetch, check, evict, and what is seen of them."""
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("0123456789abcdef0123456789abcdef")
    far.rules.clear()
    server = lib_serve.Server(quick_folder / "tier-admin", "--admin-token", token)

    def ask(method, path, body=None):
        headers = {"Authorization": "Bearer " + token.read_text(), "Content-Type": "application/json"}
        with contextlib.closing(server.connect()) as connection:
            connection.request(method, path, json.dumps(body).encode() if body is not None else None, headers)
            response = connection.getresponse()
            text = response.read()
            return response.status, json.loads(text) if text.startswith(b"{") else text.decode()

    def job(**what):
        status, made = ask("POST", "/v1/jobs", {"bucket": "cold", **what})
        assert status == 202, made
        wait_for(lambda: ask("GET", f"/v1/jobs/{made['id']}")[1]["state"] != "running")
        return ask("GET", f"/v1/jobs/{made['id']}")[1]

    try:
        for i in range(20):
            there(far, "cold", f"x/{i}", b"%d" % i)
        there(far, "cold", "y", b"y")
        remote = {"uri": "s3://far/cold", "endpoint": far.url, "access_key": "AK", "secret_key": "SK"}
        status, made = ask("PUT", "/v1/buckets/cold", {"remote": remote})
        assert status in (200, 201), made
        shown = ask("GET", "/v1/buckets/cold")[1]
        assert shown["remote"]["uri"] == "s3://far/cold" and "SK" not in json.dumps(shown)
        status, refused = ask("PUT", "/v1/buckets/cold", {"remote": {"uri": "nowhere"}})
        assert status == 400 and "s3://BUCKET" in json.dumps(refused), refused
        done = job(kind="prefetch", prefix="x/")
        assert (done["state"], done["objects"], done["done"], done["failed"]) == ("done", 20, 20, 0), done
        far.log.clear()
        assert get(server, "cold", "x/7").body == b"7" and not far.log
        there(far, "cold", "x/7", b"seven")
        done = job(kind="check")
        assert (done["done"], done["newer"]) == (20, 1), done
        done = job(kind="evict", keys=["x/7", "y"])
        assert (done["done"], done["skipped"]) == (1, 1), done
        assert get(server, "cold", "x/7").body == b"seven"
        text = ask("GET", "/metrics")[1]
        assert "leat_tier_fetches_total 21" in text, [line for line in text.splitlines() if "tier" in line]
        # What is asked of the remote fails with its name, and what to do.
        far.fail(times=-1, status=500, code="InternalError")
        status, said = ask("DELETE", "/v1/buckets/cold")
        assert status == 503 and f"s3://far/cold/ at {far.url}" in json.dumps(said) and "is it up" in json.dumps(said), said
        far.rules.clear()
        gate = threading.Event()
        far.fail(times=-1, wait=gate)
        assert ask("PUT", "/v1/buckets/cold", {"remote": {**remote, "timeout_s": 1}})[0] == 200
        status, said = ask("DELETE", "/v1/buckets/cold")
        gate.set()
        assert status == 504 and f"s3://far/cold/ at {far.url}" in json.dumps(said) and "timeout_s of the bucket is 1" in json.dumps(said), said
        far.rules.clear()
        assert ask("PUT", "/v1/buckets/cold", {"remote": None})[0] == 200
        assert get(server, "cold", "y").status == 404 and get(server, "cold", "x/3").body == b"3"
    finally:
        server.stop()
