# SPDX-License-Identifier: Apache-2.0
"""What a server of S3 does wrong, one test each, by `leat cp` and `leat ls` against a server that breaks on command (s3fault.py) and computes every
signature again. Each error names bucket, key, range and cause; nothing hangs; memory stays where it was."""

import gzip
import hashlib
import json
import os
import pathlib
import random
import resource
import subprocess
import threading
import time
import urllib.parse
from xml.sax.saxutils import escape

import pytest

import lib_host
import s3fault

ROOT = pathlib.Path(__file__).resolve().parent.parent
LEAT = pathlib.Path(os.environ.get("LEAT_BUILD", ROOT / "build")) / "src" / "apps" / "leat"
pytestmark = pytest.mark.skipif(not LEAT.exists(), reason=f"{LEAT} is not built")
CLEAN = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
MIB = 1 << 20
BIG, SMALL = random.Random(1).randbytes(9 * MIB + 77), random.Random(2).randbytes(70000)
PARTS = BIG + BIG  # more than 16 MiB: stored in parts


@pytest.fixture(scope="module")
def top(tmp_path_factory):
    return tmp_path_factory.mktemp("buckets")


@pytest.fixture
def s3(top):
    (top / "data" / "dir").mkdir(parents=True, exist_ok=True)
    big = top / "data" / "big"
    if not big.exists() or big.read_bytes() != BIG:
        big.write_bytes(BIG)
    (top / "data" / "small").write_bytes(SMALL)
    for i in range(20):
        (top / "data" / "dir" / f"{i:02}").write_bytes(SMALL[i:2000 + i])
    with s3fault.S3Fault(top) as server:
        yield server


def leat(s3, *args, check=0, env=None, **kwargs):
    kwargs.setdefault("timeout", 60)
    done = subprocess.run([LEAT, *map(os.fspath, args)], capture_output=True, stdin=subprocess.DEVNULL,
                          env={**CLEAN, "LC_ALL": "C.UTF-8", **(s3.env() if env is None else env)}, **kwargs)
    assert check is None or done.returncode == check, (done.returncode, done.stdout[-1000:], done.stderr[-2000:])
    return done


def get(s3, key, tmp_path, data=None, **kwargs):
    """Copies; the file is there as it should be, or nothing is."""
    out = tmp_path / "out"
    done = leat(s3, "cp", f"s3://data/{key}", out, **kwargs)
    assert out.read_bytes() == data if data is not None else not out.exists()
    assert not list(tmp_path.glob(".leat-*"))
    return done.stderr.decode()


def test_signatures_are_right(s3, tmp_path):
    """Odd keys too; the server says SignatureDoesNotMatch otherwise."""
    (tmp_path / "in").mkdir()
    for name in ("a b", "ü+%&=?#", "~._-", "q'\"<>", "*()!$,:;@"):
        (tmp_path / "in" / name).write_bytes(name.encode())
    leat(s3, "cp", "-r", tmp_path / "in", "s3://data/odd/")
    leat(s3, "cp", "-r", "s3://data/odd", tmp_path / "back")
    assert {p.name: p.read_bytes() for p in (tmp_path / "in").iterdir()} == {p.name: p.read_bytes() for p in (tmp_path / "back").iterdir()}
    assert "access denied" in get(s3, "small", tmp_path, check=4, env={**s3.env(), "AWS_SECRET_ACCESS_KEY": "SKx"})
    err = leat(s3, "ls", "s3://data", check=4, env={**s3.env(), "AWS_SECRET_ACCESS_KEY": "SKx"}).stderr
    assert b"SignatureDoesNotMatch" in err


def test_session_tokens_are_signed(s3, tmp_path):
    s3.keys["TEMP"] = ("S2", "a-token/with+odd=bytes")
    get(s3, "small", tmp_path, SMALL, env=s3.env("TEMP"))


@pytest.mark.parametrize("status", [500, 502, 503, 429])
def test_what_may_pass_is_tried_again(s3, tmp_path, status):
    rule = s3.fail(status=status, code="SlowDown" if status == 503 else "X", times=3, method="GET")
    get(s3, "big", tmp_path, BIG)
    assert rule.hits == 3


def test_500_without_end(s3, tmp_path):
    s3.fail(status=500, times=-1, method="GET", key="small")
    err = get(s3, "small", tmp_path, check=1)
    assert "GET s3://data/small" in err and "500 InternalError" in err and s3.rules[0].hits == 6


def test_retry_after_is_waited_for(s3, tmp_path):
    s3.fail(status=503, code="SlowDown", headers={"Retry-After": "2"}, method="GET")
    begun = time.monotonic()
    get(s3, "small", tmp_path, SMALL)
    assert time.monotonic() - begun >= 2


def test_retry_after_the_deadline_ends_it(s3, tmp_path):
    s3.fail(status=503, code="SlowDown", headers={"Retry-After": "9999999999999"}, times=-1, method="GET")
    err = get(s3, "small", tmp_path, check=8)
    assert "503 SlowDown" in err


@pytest.mark.parametrize("what", [dict(reset=True), dict(close=True), dict(reset=True, after=1000), dict(close=True, after=500000), dict(garbage=True)])
def test_connections_that_break(s3, tmp_path, what):
    rule = s3.fail(method="GET", times=3, **what)
    get(s3, "big", tmp_path, BIG)
    assert rule.hits == 3


def test_a_short_body_without_end(s3, tmp_path):
    s3.fail(method="GET", times=-1, close=True, after=1000, key="small")
    err = get(s3, "small", tmp_path, check=6)
    assert "GET s3://data/small" in err and "closed after 1000 bytes of 70000" in err


@pytest.mark.parametrize("length", [7, -7])
def test_a_wrong_length(s3, tmp_path, length):
    s3.fail(method="GET", times=-1, key="big", length=length)
    err = get(s3, "big", tmp_path, check=7)
    assert "GET s3://data/big [" in err and "were requested" in err


def test_two_lengths(s3, tmp_path):
    s3.fail(method="GET", times=-1, key="small", two_lengths=True)
    err = get(s3, "small", tmp_path, check=7)
    assert "s3://data/small" in err and "CONTENT_LENGTH" in err.upper()


def test_no_http_at_all(s3, tmp_path):
    s3.fail(times=-1, garbage=True)
    err = get(s3, "small", tmp_path, check=7)
    assert "no HTTP/1.1 response" in err


def test_slow_bytes_end_with_the_timeout(s3, tmp_path):
    s3.fail(method="GET", key="small", slow=0.05, times=-1)
    begun = time.monotonic()
    err = leat(s3, "cp", "s3://data/small", tmp_path / "out", "--timeout", "2", check=6).stderr.decode()
    assert "not done after" in err and "s3://data/small" in err and time.monotonic() - begun < 10
    assert not list(tmp_path.iterdir())


def test_silence_ends_with_the_timeout(s3, tmp_path):
    s3.fail(method="GET", key="small", hang=8, times=-1)
    begun = time.monotonic()
    err = leat(s3, "cp", "s3://data/small", tmp_path / "out", "--timeout", "2", check=6).stderr.decode()
    assert "no answer" in err and time.monotonic() - begun < 7


def test_an_endless_redirection(s3, tmp_path):
    s3.anonymous = True
    s3.fail(times=-1, redirect="/data/small")
    err = leat(s3, "cp", s3.url + "/data/small", tmp_path / "out", check=1).stderr.decode()
    assert "without end" in err
    assert len(s3.log) < 20
    err = leat(s3, "ls", "s3://data", check=1).stderr.decode()
    assert "307, a redirection" in err


def test_redirections_of_a_web_server(s3, top, tmp_path):
    s3.anonymous = True
    with s3fault.S3Fault(top) as other:
        other.anonymous = True
        bigger = BIG * 3  # more ranges than connections
        (top / "data" / "bigger").write_bytes(bigger)
        for there in (other.url + "/data/bigger?secret=hidden", "/data/bigger", "bigger"):
            s3.rules.clear()
            s3.fail(times=-1, key="moved", redirect=there, status=302)
            s3.fail(times=-1, key="gone", redirect=there, status=302)
            leat(s3, "cp", s3.url + "/data/moved", tmp_path / "out")
            assert (tmp_path / "out").read_bytes() == bigger
            assert s3.rules[0].hits <= 17  # HEAD, and the ranges that were asked for before the first answer: not those after it
        other.fail(status=403, times=-1, key="big", code="Request has expired")
        s3.rules.clear()
        s3.fail(times=-1, key="moved", redirect=other.url + "/data/big?secret=hidden", status=302)
        done = leat(s3, "cp", s3.url + "/data/moved?mine=hidden", tmp_path / "none", check=4)
        assert b"hidden" not in done.stderr and b"moved?..." in done.stderr


def test_odd_ports(s3, top, tmp_path):
    """The port is part of the Host header, which is signed, also where a redirection leads to another one: S3Fault refuses a Host that is not its own.
    And a link that is signed for GET is not good for HEAD."""
    get(s3, "small", tmp_path, SMALL)
    (tmp_path / "out").unlink()
    netloc = s3.url.partition("//")[2]
    link = s3.url + s3.presigned("GET", "/data/small", netloc)
    leat(s3, "cp", link, tmp_path / "out", env={})
    assert (tmp_path / "out").read_bytes() == SMALL
    with s3fault.S3Fault(top) as other:
        s3.rules.clear()
        s3.fail(times=-1, key="moved", redirect=other.url + other.presigned("GET", "/data/small", other.url.partition("//")[2]))
        leat(s3, "cp", s3.url + "/data/moved", tmp_path / "out", env={})
        assert (tmp_path / "out").read_bytes() == SMALL
        s3.rules.clear()
        s3.fail(times=-1, key="moved", redirect=other.url + other.presigned("GET", "/data/small", netloc))  # signed for another port
        err = leat(s3, "cp", s3.url + "/data/moved", tmp_path / "none", env={}, check=4).stderr.decode()
        assert "X-Amz" not in err and not (tmp_path / "none").exists()


def test_an_empty_object_behind_a_link(s3, top, tmp_path):
    """A link that is signed for GET alone: no HEAD, and no first byte to ask for either."""
    (top / "data" / "empty").write_bytes(b"")
    netloc = s3.url.partition("//")[2]
    leat(s3, "cp", s3.url + s3.presigned("GET", "/data/empty", netloc), tmp_path / "out", env={})
    assert (tmp_path / "out").read_bytes() == b"" and [m for m, *_ in s3.log] == ["HEAD", "GET", "GET"]
    s3.ranges = False  # a server that gives all of it at once: enough, where there is nothing
    leat(s3, "cp", s3.url + s3.presigned("GET", "/data/empty", netloc), tmp_path / "again", env={})
    assert (tmp_path / "again").read_bytes() == b""
    err = leat(s3, "cp", s3.url + s3.presigned("GET", "/data/small", netloc), tmp_path / "none", env={}, check=4).stderr.decode()
    assert "403" in err and "X-Amz" not in err
    s3.ranges = True
    s3.rules.append(s3fault.Rule(times=1, method="GET", key="small", status=416, code="InvalidRange"))  # it was empty, and is not any more
    err = leat(s3, "cp", s3.url + s3.presigned("GET", "/data/small", netloc), tmp_path / "none", env={}, check=4).stderr.decode()
    assert "403" in err and not (tmp_path / "none").exists()


def test_another_region(s3, tmp_path):
    s3.region = "eu-south-9"
    get(s3, "big", tmp_path, BIG)
    leat(s3, "ls", "s3://data")
    leat(s3, "cp", "-r", "s3://data/dir", tmp_path / "dir")
    assert len(list((tmp_path / "dir").iterdir())) == 20


def test_credentials_that_expire_are_found_anew(s3, tmp_path):
    s3.keys.update(OLD=("S1", "T1"), NEW=("S2", "T2"))
    s3.expired.add("OLD")
    count = tmp_path / "count"
    script = tmp_path / "process"
    script.write_text(f"""#!/bin/sh
echo x >> {count}
[ $(wc -l < {count}) = 1 ] && echo '{{"Version":1,"AccessKeyId":"OLD","SecretAccessKey":"S1","SessionToken":"T1","Expiration":"2099-01-01T00:00:00Z"}}' ||
echo '{{"Version":1,"AccessKeyId":"NEW","SecretAccessKey":"S2","SessionToken":"T2","Expiration":"2099-01-01T00:00:00Z"}}'
""")
    script.chmod(0o755)
    config = tmp_path / "config"
    config.write_text(f"[default]\ncredential_process = {script}\n")
    env = {"AWS_CONFIG_FILE": str(config), "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent", "AWS_ENDPOINT_URL": s3.url, "AWS_EC2_METADATA_DISABLED": "true"}
    leat(s3, "cp", "-r", "s3://data/dir", tmp_path / "dir", env=env)
    assert len(list((tmp_path / "dir").iterdir())) == 20 and count.read_text() == "x\n" * 2
    count.unlink()
    leat(s3, "cp", "s3://data/small", tmp_path / "one", env=env)  # begins with HEAD, which cannot say why
    assert (tmp_path / "one").read_bytes() == SMALL and count.read_text() == "x\n" * 2


def test_credentials_that_stay_expired(s3, tmp_path):
    s3.expired.add("AK")
    err = leat(s3, "ls", "s3://data", check=4).stderr.decode()
    assert "ExpiredToken" in err and "SK" not in err
    assert len(s3.log) <= 3


def dump(s3, spec, *options, env=None):
    """What leat-index-dump says of a dataset: its samples with the CRC of each, or "error" and "message"."""
    tool = LEAT.parent.parent.parent / "tests" / "tools" / "leat-index-dump"
    done = subprocess.run([tool, "--open", *options, spec], capture_output=True, timeout=60,
                          env={**CLEAN, "XDG_CACHE_HOME": "/nonexistent", **(env or s3.env())})
    return json.loads(done.stdout)


def test_an_index_that_is_named_is_taken_at_its_word(s3, top):
    """No list, no HEAD of an object: what changed since is found when it is read, by its ETag; and the index is of what lies beside it."""
    leat(s3, "index", "s3://data/dir")
    plain = dump(s3, "s3://data/dir")
    s3.log.clear()
    given = dump(s3, "s3://data/dir/.leat-index", "--no-data")
    assert {path.partition("?")[0] for _, path, _, _ in s3.log} == {"/data/dir/.leat-index"}
    given = dump(s3, "s3://data/dir/.leat-index")
    assert given["samples"] == plain["samples"] and given["fingerprint"] == plain["fingerprint"] and len(given["samples"]) == 20
    (top / "data/dir/07").write_bytes(b"x" * 2000)
    assert dump(s3, "s3://data/dir/.leat-index")["error"] == "stale"
    assert "error" not in dump(s3, "s3://data/dir")
    (top / "data/moved").mkdir(exist_ok=True)
    index = (top / "data/dir/.leat-index").read_bytes()
    (top / "data/moved/.leat-index").write_bytes(index)
    got = dump(s3, "s3://data/moved/.leat-index")
    assert got["error"] == "invalid" and "an index of data in another place (s3://data/dir/00)" in got["message"] and "leat index s3://data/moved" in got["message"]
    for damaged in (index[:-5], index[:20] + bytes([index[20] ^ 255]) + index[21:], b"no index"):
        (top / "data/moved/.leat-index").write_bytes(damaged)
        got = dump(s3, "s3://data/moved/.leat-index")
        assert got["error"] in ("corrupt", "invalid") and "s3://data/moved/.leat-index" in got["message"], got
    got = dump(s3, "s3://data/none/.leat-index")
    assert got["error"] == "not found" and "leat index s3://data/none" in got["message"]
    (top / "data/dir/.leat-index").unlink()


# --- a server that means ill --------------------------------------------------------------------------------------------------


def test_interim_answers(s3, tmp_path):
    s3.fail(method="GET", key="small", interim=3, times=-1)
    get(s3, "small", tmp_path, SMALL)
    s3.rules.clear()
    s3.fail(method="GET", key="small", interim=-1, times=-1)
    err = leat(s3, "cp", "s3://data/small", tmp_path / "none", "--timeout", "2", check=6).stderr.decode()
    assert "not done after" in err and "s3://data/small" in err and not (tmp_path / "none").exists()


def chunked(data, etag, *lines):
    head = [b"HTTP/1.1 200 OK", b"Transfer-Encoding: chunked", b'ETag: "%s"' % etag, *lines]
    return b"\r\n".join(head) + b"\r\n\r\n%x\r\n" % len(data) + data + b"\r\n0\r\nContent-Length: 5\r\nETag: \"other\"\r\n\r\n"


def test_chunks_and_trailers_where_a_length_was_promised(s3, tmp_path):
    etag = hashlib.md5(SMALL).hexdigest().encode()
    s3.fail(method="GET", key="small", raw=chunked(SMALL, etag))  # what a trailer says is not believed
    get(s3, "small", tmp_path, SMALL)
    (tmp_path / "out").unlink()
    for raw, why in ((chunked(SMALL, etag, b"Content-Length: %d" % len(SMALL)), "Content-Length"), (chunked(SMALL + b"x", etag), "requested"),
                     (chunked(SMALL[:-1], etag), "69999 bytes received"), (chunked(SMALL, etag)[:-9], "closed")):
        s3.rules.clear()
        s3.fail(method="GET", key="small", raw=raw, times=-1)
        err = leat(s3, "cp", "s3://data/small", tmp_path / "out", "--timeout", "1", check=None).stderr.decode()
        assert "s3://data/small" in err and why in err and not (tmp_path / "out").exists(), err


def test_a_last_try_without_time_says_why_the_one_before_failed(s3, tmp_path):
    gate = threading.Event()
    s3.fail(method="GET", key="small", status=500, code="InternalError", message="it broke", times=1)
    s3.fail(method="GET", key="small", wait=gate, times=-1)
    try:
        err = leat(s3, "cp", "s3://data/small", tmp_path / "out", "--timeout", "0.5", check=None).stderr.decode()
    finally:
        gate.set()
    assert "InternalError" in err and "it broke" in err and not (tmp_path / "out").exists(), err


@pytest.mark.parametrize("said", ["bytes 1-{last}/{size}", "bytes 0-{last}/{more}", "bytes 0-0/{size}", "bytes 0-18446744073709551615/{size}",
                                  "bytes {last}-0/{size}", "bytes 0-{last}/1", "items 0-{last}/{size}", "bytes 0--1/{size}", ""])
def test_a_content_range_that_lies(s3, tmp_path, said):
    def lie(self, status, body=b"", headers=(), rule=None):
        headers = dict(headers)
        if rule and "Content-Range" in headers:
            first, last = headers["Content-Range"].split()[1].split("/")[0].split("-")
            headers["Content-Range"] = said.format(last=last, size=len(BIG), more=len(BIG) + 1)
        return real(self, status, body, headers, rule)

    real = s3fault._Handler.answer
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(s3fault._Handler, "answer", lie)
        s3.fail(method="GET", key="big", times=-1, length=0)
        err = leat(s3, "cp", "s3://data/big", tmp_path / "out", "--timeout", "1", check=None).stderr.decode()
    assert "GET s3://data/big [" in err and not (tmp_path / "out").exists()


def test_redirections_that_lead_astray(s3, top, tmp_path):
    """Not to a file, not to a bucket; and no request that is signed goes to another host than the one it was signed for."""
    s3.anonymous = True
    for there in ("file:///etc/passwd", "s3://data/small", "ftp://127.0.0.1/x", "http://user:secret@127.0.0.1/x", "http://127.0.0.1:99999/", "//", "http://"):
        s3.rules.clear()
        s3.fail(times=-1, key="moved", redirect=there, status=302)
        err = leat(s3, "cp", s3.url + "/data/moved", tmp_path / "out", check=1).stderr.decode()
        assert "/data/moved" in err and "secret" not in err and not (tmp_path / "out").exists()
    s3.anonymous = False
    with s3fault.S3Fault(top) as other:
        s3.rules.clear()
        s3.fail(times=-1, redirect=other.url + "/data/small", status=307)
        assert "307" in get(s3, "small", tmp_path, check=1) and "307" in leat(s3, "ls", "s3://data", check=1).stderr.decode()
        assert not other.log


def test_an_encoding_that_was_not_asked_for(s3, tmp_path):
    """An object is the bytes that were stored, whatever its headers say that they are."""
    data = gzip.compress(SMALL)
    (s3.top / "data" / "packed").write_bytes(data)
    etag = hashlib.md5(data).hexdigest().encode()
    head = b'HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nETag: "%s"\r\nContent-Length: %d\r\n\r\n' % (etag, len(data))
    s3.fail(method="GET", key="packed", raw=head + data)
    get(s3, "packed", tmp_path, data)


@pytest.mark.parametrize("region", ["eu\r\nx-evil: 1", "evil.example/?", "\x1b[31mred", "a" * 64, ""])
def test_a_region_that_is_none(s3, tmp_path, region):
    """It would become part of a host's name and of each signature: it is not believed, and what comes next is signed as before."""
    body = f"<Error><Code>AuthorizationHeaderMalformed</Code><Message>no</Message><Region>{escape(region, {chr(13): '&#13;', chr(27): ' '})}</Region></Error>"
    s3.fail(status=400, body=body.encode(), key="dir/03", times=-1)
    done = leat(s3, "cp", "-r", "s3://data/dir", tmp_path / "dir", check=4)
    assert b"400 AuthorizationHeaderMalformed" in done.stderr and len(list((tmp_path / "dir").iterdir())) == 19


def test_names_that_mean_ill(s3, tmp_path):
    """Of a list: nothing is written outside of the folder, nothing reaches a terminal as it is, and no name is cut."""
    long = "é" * 512  # 1,024 bytes

    def page(*keys):
        items = "".join(f"<Contents><Key>{urllib.parse.quote(k)}</Key><Size>3</Size><ETag>&quot;a&quot;</ETag></Contents>" for k in keys)
        s3.rules.clear()
        s3.fail(times=-1, method="GET", key="", status=200, body=f"<ListBucketResult><EncodingType>url</EncodingType>{items}</ListBucketResult>".encode())
        s3.fail(times=-1, method="GET", status=200, body=b"abc", headers={"ETag": '"a"'})

    page("in/\x1b[31mred\nline", "in/" + long[:-2], "in/ok")
    master, terminal = os.openpty()
    subprocess.run([LEAT, "ls", "-r", "s3://data/in/"], stdout=terminal, env={**CLEAN, "LC_ALL": "C.UTF-8", **s3.env()}, check=True, timeout=60)
    shown = os.read(master, 65536)
    os.close(master)
    os.close(terminal)
    assert b"\\x1b[31mred\\x0aline\r\n" in shown and b"\x1b" not in shown and shown.endswith(b"ok\r\n")
    assert long[:-2] + "\n" in leat(s3, "ls", "-r", "s3://data/in/").stdout.decode()
    for key in ("in/../out", "in/../../out", "in//etc/x", "in/a\nb", "in/" + "x" * 300):
        page(key, "in/ok")
        done = leat(s3, "cp", "-r", "s3://data/in", tmp_path / "to" / "here", check=None)
        inside = {p for p in tmp_path.rglob("*") if p.is_file()}
        assert all((tmp_path / "to" / "here") in p.parents for p in inside) and tmp_path / "to/here/ok" in inside or done.returncode, key
        assert b"in/a\nb" not in done.stderr
    for key in ("in/a\0b", "in/" + "x" * 1022):
        page(key)
        assert "s3://data/in" in leat(s3, "ls", "-r", "s3://data/in/", check=7).stderr.decode()


def test_a_changed_object_is_an_error_never_a_mixture(s3, tmp_path):
    s3.fail(method="GET", key="big", change=random.Random(3).randbytes(len(BIG)))
    err = get(s3, "big", tmp_path, check=9)
    assert "GET s3://data/big [" in err and ("412" in err or "changed" in err)


def test_a_changed_object_where_conditions_are_ignored(s3, tmp_path, monkeypatch):
    """The ETag of each answer is compared as well."""
    real = s3fault._Handler.serve

    def serve(self, query, body, rule):
        del self.headers["if-match"]
        return real(self, query, body, rule)

    monkeypatch.setattr(s3fault._Handler, "serve", serve)
    s3.fail(method="GET", key="big", change=random.Random(3).randbytes(len(BIG)))
    err = get(s3, "big", tmp_path, check=9)
    assert "its ETag was" in err


def test_an_object_that_became_shorter(s3, tmp_path):
    s3.fail(method="GET", key="big", change=b"short")
    assert "s3://data/big" in get(s3, "big", tmp_path, check=9)


@pytest.mark.parametrize("what", [dict(body=b"<ListBucketResult><Contents>"), dict(body=b"\0\1\2garbage"), dict(body=b"<html>hello</html>"),
                                  dict(body=b'<!DOCTYPE x [<!ENTITY a "aaaa">]><ListBucketResult>&a;</ListBucketResult>'), dict(body=b""),
                                  dict(body=b"<ListBucketResult>" + b"<x>" * 1000), dict(body=b"<ListBucketResult><Contents><Key>elsewhere</Key></Contents></ListBucketResult>")])
def test_garbage_where_a_list_is_due(s3, what):
    s3.fail(times=-1, status=200, **what)
    err = leat(s3, "ls", "s3://data/dir/", check=7).stderr.decode()
    assert "s3://data/dir/" in err


def test_garbage_where_an_error_is_due(s3, tmp_path):
    s3.fail(times=-1, status=403, body=b"\x1b[31m<<<&&&" * 1000)
    err = leat(s3, "ls", "s3://data", check=4).stderr.decode()
    assert "403" in err and "\x1b" not in err and len(err) < 600


def test_a_list_that_goes_round(s3):
    s3.endless = True
    assert "without end" in leat(s3, "ls", "s3://data", check=7).stderr.decode()


def test_pages(s3):
    s3.page = 3
    assert json.loads(leat(s3, "ls", "-r", "s3://data/dir/", "--json").stdout)["count"] == 20


@pytest.mark.parametrize("off", [3600, -3600])
def test_a_clock_that_is_off_by_an_hour(s3, tmp_path, off):
    s3.clock = off
    get(s3, "small", tmp_path, SMALL)
    err = leat(s3, "ls", "s3://data").stderr.decode()
    assert "the clock of this machine is off by" in err


@pytest.mark.parametrize("kind", ["crc32c", "crc64nvme", "crc32"])
def test_checksums(s3, tmp_path, kind):
    s3.checksum = kind
    get(s3, "small", tmp_path, SMALL)
    (tmp_path / "out").unlink()
    s3.fail(method="GET", key="small", corrupt=True)  # once: tried again
    get(s3, "small", tmp_path, SMALL)
    (tmp_path / "out").unlink()
    s3.fail(method="GET", key="small", wrong_sum=True, times=-1)
    err = get(s3, "small", tmp_path, check=7)
    assert f"do not match the server's {kind.upper()}" in err and "s3://data/small" in err


@pytest.mark.long
@pytest.mark.parametrize("kind", ["crc32c", "crc64nvme", "crc32"])
def test_checksums_of_what_comes_in_blocks(s3, top, tmp_path, kind):
    """Answers to ranges have none: that of all of the object is asked for beside them, and compared with theirs joined."""
    data = BIG[:1 * MIB + 13]
    (top / "data" / "blocks").write_bytes(data)
    s3.checksum = kind
    get(s3, "blocks", tmp_path, data)
    (tmp_path / "out").unlink()
    ranges = [r for method, path, r, _ in s3.log if method == "GET" and "blocks" in path]
    assert len(ranges) > 2 and None not in ranges
    s3.fail(method="GET", key="blocks", corrupt=True)  # one byte of one block
    err = get(s3, "blocks", tmp_path, check=7)
    assert f"all of the object does not match the server's {kind.upper()}" in err and "s3://data/blocks" in err
    s3.fail(method="HEAD", key="blocks", hang=0.3)  # which answers late: after all of the blocks, by another try
    get(s3, "blocks", tmp_path, data)
    (tmp_path / "out").unlink()
    s3.checksum = None  # a server that has none, or one of parts: there is nothing to compare with
    s3.fail(method="HEAD", key="blocks", sum=(f"x-amz-checksum-{kind}", "MTIzNA==-3"))
    get(s3, "blocks", tmp_path, data)


def test_the_server_copies(s3, top, tmp_path):
    """Between its buckets no byte comes here; where it ignores that, or refuses, they do."""
    (top / "other").mkdir(exist_ok=True)
    asked = lambda method: [path for m, path, _, _ in s3.log if m == method]  # noqa: E731
    leat(s3, "cp", "s3://data/big", "s3://other/a+b c")
    assert (top / "other/a+b c").read_bytes() == BIG and not asked("GET")
    s3.fail(method="PUT", status=200, body=b"<Error><Code>InternalError</Code><Message>again</Message></Error>")
    leat(s3, "cp", "s3://other/a+b c", "s3://other/again")  # 200, and an error in it: tried again
    assert (top / "other/again").read_bytes() == BIG and not asked("GET")
    s3.fail(method="PUT", status=200, body=b"<Error><Code>NoSuchKey</Code></Error>", times=-1)
    assert "NoSuchKey" in leat(s3, "cp", "s3://data/big", "s3://other/none", check=3).stderr.decode()
    assert not (top / "other/none").exists()
    for refusal in ({"status": 501, "code": "NotImplemented"}, {"status": 403, "code": "AccessDenied"}):
        s3.rules.clear()
        s3.log.clear()
        s3.fail(method="PUT", **refusal)
        leat(s3, "cp", "s3://data/small", "s3://other/small")
        assert (top / "other/small").read_bytes() == SMALL and asked("GET")
        (top / "other/small").unlink()
    s3.rules.clear()
    s3.fail(method="PUT", status=412, code="PreconditionFailed", times=-1)  # it changed, and it did
    s3.fail(method="GET", key="small", change=BIG)
    assert "412" in leat(s3, "cp", "s3://data/small", "s3://other/small", check=9).stderr.decode()
    (top / "data/small").write_bytes(SMALL)
    s3.rules.clear()
    s3.copies = False  # it takes the request for an object of no bytes
    leat(s3, "cp", "s3://data/small", "s3://other/small")
    assert (top / "other/small").read_bytes() == SMALL


def test_the_server_copies_in_parts(s3, top):
    (top / "other").mkdir(exist_ok=True)
    with open(top / "data" / "huge", "wb") as f:  # larger than one request copies
        f.write(BIG)
        f.seek(70 * MIB)
        f.write(SMALL)
    leat(s3, "cp", "s3://data/huge", "s3://other/huge")
    assert (top / "other/huge").read_bytes() == (top / "data/huge").read_bytes()
    assert not [path for method, path, _, _ in s3.log if method == "GET"] and not s3.parts
    s3.fail(method="PUT", query="partNumber=2", status=404, code="NoSuchKey", times=-1)  # it was removed by now
    leat(s3, "cp", "s3://data/huge", "s3://other/gone", check=3)
    assert s3.aborted == 1 and not (top / "other/gone").exists()
    (top / "data/huge").unlink()


def test_a_server_without_ranges(s3, tmp_path):
    s3.ranges = False
    get(s3, "small", tmp_path, SMALL)  # asked for as a whole
    (tmp_path / "out").unlink()
    assert "does not answer ranges" in get(s3, "big", tmp_path, check=1)


def test_what_is_stored_is_checked(s3, tmp_path):
    (tmp_path / "big").write_bytes(BIG)
    (tmp_path / "parts").write_bytes(PARTS)
    leat(s3, "cp", tmp_path / "parts", "s3://data/up")
    assert (s3.top / "data" / "up").read_bytes() == PARTS
    for rule in (dict(status=500), dict(reset=True), dict(status=503, code="SlowDown")):
        s3.rules.clear()
        s3.fail(method="PUT", times=2, **rule)
        leat(s3, "cp", tmp_path / "big", "s3://data/again")
        assert (s3.top / "data" / "again").read_bytes() == BIG
        (s3.top / "data" / "again").unlink()


def test_an_upload_that_fails_leaves_no_parts(s3, tmp_path):
    (tmp_path / "big").write_bytes(PARTS)
    s3.fail(method="PUT", query="partNumber=2", status=403, code="AccessDenied", times=-1)
    err = leat(s3, "cp", tmp_path / "big", "s3://data/up2", check=4).stderr.decode()
    assert "PUT s3://data/up2" in err and "403 AccessDenied" in err
    assert s3.aborted == 1 and not s3.parts and not (s3.top / "data" / "up2").exists()


def test_completed_with_an_error_in_its_body(s3, tmp_path):
    (tmp_path / "big").write_bytes(PARTS)
    s3.fail(method="POST", query="uploadId", status=200, body=b"<Error><Code>InternalError</Code><Message>oops</Message></Error>", times=-1)
    err = leat(s3, "cp", tmp_path / "big", "s3://data/up3", check=1).stderr.decode()
    assert "was not completed" in err and s3.aborted == 1


def certificate(tmp_path, name):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-keyout",
                    tmp_path / "key.pem", "-out", tmp_path / "cert.pem", "-subj", "/CN=test", "-addext", f"subjectAltName={name}"], check=True,
                   capture_output=True)
    return tmp_path / "cert.pem", tmp_path / "key.pem"


@pytest.mark.long
def test_tls(s3, top, tmp_path):
    cert, key = certificate(tmp_path, "IP:127.0.0.1")
    with s3fault.S3Fault(top, (cert, key)) as tls:
        leat(tls, "cp", "s3://data/big", tmp_path / "out", "--ca-bundle", cert)
        assert (tmp_path / "out").read_bytes() == BIG
        leat(tls, "cp", tmp_path / "out", "s3://data/up4", "--ca-bundle", cert)
        assert (top / "data" / "up4").read_bytes() == BIG
        err = leat(tls, "ls", "s3://data", check=4).stderr.decode()
        assert "not trusted" in err
        leat(tls, "ls", "s3://data", "--no-verify-ssl")
        tls.fail(method="GET", times=3, reset=True, after=300000)
        leat(tls, "cp", "s3://data/big", tmp_path / "out", "--ca-bundle", cert)
        assert (tmp_path / "out").read_bytes() == BIG


def test_a_tls_name_that_does_not_match(s3, top, tmp_path):
    cert, key = certificate(tmp_path, "DNS:other.example")
    with s3fault.S3Fault(top, (cert, key)) as tls:
        err = leat(tls, "ls", "s3://data", "--ca-bundle", cert, check=4).stderr.decode()
        assert "127.0.0.1" in err and "mismatch" in err and not tls.log


def test_tls_where_http_is_spoken(s3):
    env = {**s3.env(), "AWS_ENDPOINT_URL": s3.url.replace("http:", "https:")}
    assert "TLS" in leat(s3, "ls", "s3://data", check=None, env=env).stderr.decode()


def test_nobody_there(s3, tmp_path):
    begun = time.monotonic()
    err = leat(s3, "ls", "s3://data", check=6, env={**s3.env(), "AWS_ENDPOINT_URL": f"http://127.0.0.1:{lib_host.free_port()}"}).stderr.decode()
    assert "Connection refused" in err and time.monotonic() - begun < 20
    err = leat(s3, "ls", "s3://data", check=3, env={**s3.env(), "AWS_ENDPOINT_URL": "http://no-such-host.invalid"}).stderr.decode()
    assert "no-such-host.invalid: no address" in err


def test_one_failure_among_many(s3, tmp_path):
    s3.fail(method="GET", key="dir/07", status=403, code="AccessDenied", times=-1)
    done = leat(s3, "cp", "-r", "s3://data/dir", tmp_path / "dir", check=4)
    assert len(list((tmp_path / "dir").iterdir())) == 19
    assert done.stderr.decode().count("s3://data/dir/07") == 1 and b"failed: 1" in done.stdout


@pytest.mark.plain
def test_memory_stays_bounded(s3, top, tmp_path):
    """A gigabyte in and out, a body and a head without end: a few hundred MiB at most."""
    with open(top / "data" / "huge", "wb") as f:
        f.truncate(600 * MIB)

    def limit():
        resource.setrlimit(resource.RLIMIT_DATA, (400 * MIB, 400 * MIB))

    try:
        leat(s3, "cp", "s3://data/huge", tmp_path / "out", preexec_fn=limit, timeout=120)
        assert (tmp_path / "out").stat().st_size == 600 * MIB
    finally:
        (top / "data" / "huge").unlink()
    s3.fail(times=-1, status=200, body=b"<ListBucketResult>" + b"x" * (200 * MIB))
    assert "s3://data" in leat(s3, "ls", "s3://data", check=7, preexec_fn=limit).stderr.decode()
    s3.rules.clear()
    s3.fail(times=-1, status=500, headers={"X-Long": "y" * (20 * MIB)}, body=b"")
    assert "a head of more than" in leat(s3, "ls", "s3://data", check=5, preexec_fn=limit).stderr.decode()
