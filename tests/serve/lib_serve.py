# SPDX-License-Identifier: Apache-2.0
"""`leat serve` for tests: a process of its own, and requests put together by hand and signed from the specification, by nothing of ours
("Signature Version 4 signing process")."""

import binascii
import contextlib
import datetime
import hashlib
import hmac
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import threading
import urllib.parse
import xml.etree.ElementTree as ElementTree
import zlib

import lib_host

MIB = 1 << 20
ACCESS, SECRET = "LEATTESTADMIN0000001", "test-secret-of-the-administrator-0001"
REGION = "us-east-1"

#: Users of every server here; tests of permissions have their own.
KEYS = f"""[default]
aws_access_key_id = {ACCESS}
aws_secret_access_key = {SECRET}
access = admin

[maker]
aws_access_key_id = LEATTESTMAKER0000001
aws_secret_access_key = secret-of-the-maker
access = create
read = shared-*

[reader]
aws_access_key_id = LEATTESTREADER000001
aws_secret_access_key = secret-of-the-reader
read = shared-a

[anonymous]
read = public-*
"""


class Server:
    """One `leat serve`. `url`, `port`; ended by stop() or kill(). keys None: --anonymous."""

    def __init__(self, top, *options, keys=KEYS, store=None, env=None, preexec=None):
        self.top = pathlib.Path(top)
        self.top.mkdir(parents=True, exist_ok=True)
        self.store = pathlib.Path(store or self.top / "store")
        self.keys = self.top / "keys"
        self.anonymous = keys is None
        if keys and not self.keys.exists():
            self.keys.touch(mode=0o600)
            self.keys.write_text(keys)
        self.options, self.env, self.preexec, self.process = options, env, preexec, None
        self.log = self.top / "log.txt"
        self.start()

    def start(self):
        who = ["--anonymous"] if self.anonymous else ["--keys", self.keys]
        line = [lib_host.LEAT, "serve", "--json", "--store", self.store, *who, *self.options]
        if "--listen" not in self.options:
            line += ["--listen", "127.0.0.1:0"]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, env=self.env,
                                            preexec_fn=self.preexec)
        line = self.process.stdout.readline()
        assert line, self.log.read_text()
        self.says = json.loads(line)
        self.url = self.says["endpoints"][0]
        parts = urllib.parse.urlsplit(self.url)
        self.host, self.port = parts.hostname, parts.port

    def stop(self, check=True):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        rc = self.process.wait(120)
        self.process.stdout.close()
        if check:
            assert rc == 0, self.log.read_text()[-4000:]

    def kill(self):
        self.process.kill()
        self.process.wait(60)
        self.process.stdout.close()

    def env_for(self, home, access=ACCESS, secret=SECRET):
        """The environment of a tool that asks this server."""
        env = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "LEAT_S3_", "S3_", "RCLONE_"))}
        env.update(HOME=str(home), AWS_ACCESS_KEY_ID=access, AWS_SECRET_ACCESS_KEY=secret, AWS_REGION=REGION, AWS_DEFAULT_REGION=REGION,
                   AWS_ENDPOINT_URL=self.url, AWS_EC2_METADATA_DISABLED="true", LC_ALL="C.UTF-8")
        return env

    # --- requests -------------------------------------------------------------------------------------------------------

    def connect(self):
        return http.client.HTTPConnection(self.host, self.port, timeout=120)

    def request(self, method, path, body=b"", headers=None, query=(), access=ACCESS, secret=SECRET, **sign):
        """One signed request (access None: unsigned). Answers Reply."""
        target, headers = self.prepare(method, path, body, headers, query, access, secret, **sign)
        return self.send(method, target, body, headers)

    def send(self, method, target, body, headers):
        """One request as it stands, on a connection of its own."""
        with contextlib.closing(self.connect()) as connection:
            return send(connection, method, target, body, headers)

    def prepare(self, method, path, body=b"", headers=None, query=(), access=ACCESS, secret=SECRET, **sign):
        """Target and headers as they go over the wire. path is not escaped yet."""
        headers = {k.lower(): v for k, v in (headers or {}).items()}
        headers.setdefault("host", f"{self.host}:{self.port}")
        target = urllib.parse.quote(path, safe="/~")
        pairs = sorted((urllib.parse.quote(k, safe="~"), urllib.parse.quote(v, safe="~")) for k, v in query)
        text = "&".join(f"{k}={v}" for k, v in pairs)
        if access:
            headers = signed(method, target, text, headers, body, access, secret, **sign)
        return target + ("?" + text if text else ""), headers

    def raw(self, data, half_close=False):
        """Bytes to the server; all that it answers until it closes."""
        with socket.create_connection((self.host, self.port), 120) as s:
            s.settimeout(120)
            with contextlib.suppress(OSError):
                s.sendall(data)
                if half_close:
                    s.shutdown(socket.SHUT_WR)
            out = b""
            with contextlib.suppress(OSError):
                while piece := s.recv(65536):
                    out += piece
            return out


class Reply:
    def __init__(self, response):
        self.status = response.status
        self.headers = {k.lower(): v for k, v in response.getheaders()}
        self.body = response.read()

    @property
    def xml(self):
        root = ElementTree.fromstring(self.body)
        for element in root.iter():
            element.tag = element.tag.rpartition("}")[2]
        return root

    @property
    def code(self):
        """Of an <Error>."""
        return self.xml.findtext("Code") if self.body.startswith(b"<?xml") else None

    def __repr__(self):
        return f"{self.status} {self.headers} {self.body[:500]}"


def send(connection, method, target, body, headers):
    connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name, value)
    if "content-length" not in headers and "transfer-encoding" not in headers and (body or method in ("PUT", "POST")):
        connection.putheader("content-length", str(len(body)))
    connection.endheaders(body if body else None)
    return Reply(connection.getresponse())


# --- one call of S3 each -----------------------------------------------------------------------------------------------------

def put(server, path, body=b"x", **more):
    reply = server.request("PUT", path, body, **more)
    assert reply.status == 200, reply
    return reply


def get(server, path, **more):
    reply = server.request("GET", path, **more)
    assert reply.status in (200, 206), reply
    return reply.body


def error(reply):
    return reply.status, reply.code


class Upload:
    def __init__(self, server, path, **headers):
        self.server, self.path = server, path
        reply = server.request("POST", path, query=[("uploads", "")], headers={k.replace("_", "-"): v for k, v in headers.items()})
        assert reply.status == 200, reply
        self.id, self.etags = reply.xml.findtext("UploadId"), {}

    def part(self, number, data, **headers):
        reply = self.server.request("PUT", self.path, data, query=[("partNumber", str(number)), ("uploadId", self.id)],
                                    headers={k.replace("_", "-"): v for k, v in headers.items()})
        if reply.status == 200:
            self.etags[number] = reply.headers.get("etag") or reply.xml.findtext("ETag")
        return reply

    def complete(self, parts=None, headers=None):
        parts = self.etags.items() if parts is None else parts
        body = "".join(f"<Part><PartNumber>{n}</PartNumber><ETag>{e}</ETag></Part>" for n, e in parts)
        return self.server.request("POST", self.path, f"<CompleteMultipartUpload>{body}</CompleteMultipartUpload>".encode(),
                                   query=[("uploadId", self.id)], headers=headers)


# --- signatures -----------------------------------------------------------------------------------------------------------

def _hmac(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def signing_key(secret, date, region=REGION, service="s3"):
    return _hmac(_hmac(_hmac(_hmac(b"AWS4" + secret.encode(), date), region), service), "aws4_request")


def now(offset=0):
    return (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=offset)).strftime("%Y%m%dT%H%M%SZ")


def signature(method, path, query, headers, names, payload, secret, when, region=REGION, service="s3"):
    canonical = "\n".join([method, path, query, *(f"{n}:{' '.join(headers[n].split())}" for n in names), "", ";".join(names), payload])
    scope = f"{when[:8]}/{region}/{service}/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", when, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    return hmac.new(signing_key(secret, when[:8], region, service), text.encode(), hashlib.sha256).hexdigest()


def signed(method, path, query, headers, body, access, secret, when=None, region=REGION, service="s3", payload=None, unsigned=()):
    """The headers with those of a signature. unsigned: names that are left out of it."""
    when = when or now()
    payload = payload or hashlib.sha256(body).hexdigest()
    headers = {**headers, "x-amz-date": when, "x-amz-content-sha256": payload}
    names = sorted(n for n in headers if n not in unsigned)
    value = signature(method, path, query, headers, names, payload, secret, when, region, service)
    headers["authorization"] = (f"AWS4-HMAC-SHA256 Credential={access}/{when[:8]}/{region}/{service}/aws4_request, "
                                f"SignedHeaders={';'.join(names)}, Signature={value}")
    return headers


def presigned(server, method, path, expires=600, when=None, access=ACCESS, secret=SECRET, query=(), headers=None):
    when = when or now()
    headers = {"host": f"{server.host}:{server.port}", **(headers or {})}
    names = sorted(headers)
    pairs = [*query, ("X-Amz-Algorithm", "AWS4-HMAC-SHA256"), ("X-Amz-Credential", f"{access}/{when[:8]}/{REGION}/s3/aws4_request"),
             ("X-Amz-Date", when), ("X-Amz-Expires", str(expires)), ("X-Amz-SignedHeaders", ";".join(names))]
    text = "&".join(f"{k}={v}" for k, v in sorted((urllib.parse.quote(k, safe="~"), urllib.parse.quote(v, safe="~")) for k, v in pairs))
    path = urllib.parse.quote(path, safe="/~")
    value = signature(method, path, text, headers, names, "UNSIGNED-PAYLOAD", secret, when)
    return f"{path}?{text}&X-Amz-Signature={value}", headers


class Chunks:
    """A body in aws-chunked coding, its chunks signed one after the other."""

    def __init__(self, seed, when, secret=SECRET):
        self.previous, self.when, self.secret = seed, when, secret
        self.scope = f"{when[:8]}/{REGION}/s3/aws4_request"
        self.key = signing_key(secret, when[:8])

    def _sign(self, kind, *lines):
        text = "\n".join([kind, self.when, self.scope, self.previous, *lines])
        self.previous = hmac.new(self.key, text.encode(), hashlib.sha256).hexdigest()
        return self.previous

    def chunk(self, data):
        empty = hashlib.sha256(b"").hexdigest()
        value = self._sign("AWS4-HMAC-SHA256-PAYLOAD", empty, hashlib.sha256(data).hexdigest())
        return b"%x;chunk-signature=%s\r\n%s" % (len(data), value.encode(), data + b"\r\n" if data else b"")

    def trailer(self, name, value):
        text = f"{name}:{value}\n"
        mark = self._sign("AWS4-HMAC-SHA256-TRAILER", hashlib.sha256(text.encode()).hexdigest())
        return f"{name}:{value}\r\nx-amz-trailer-signature:{mark}\r\n\r\n".encode()


def seed_of(headers):
    return headers["authorization"].rpartition("Signature=")[2]


def base64(data):
    return binascii.b2a_base64(data, newline=False).decode()


#: Of 123456789.
SUMS = {"crc32": base64(zlib.crc32(b"123456789").to_bytes(4, "big")), "crc32c": base64(bytes.fromhex("e3069283")),
        "crc64nvme": base64(bytes.fromhex("ae8b14860a799888")), "sha1": base64(hashlib.sha1(b"123456789").digest()),
        "sha256": base64(hashlib.sha256(b"123456789").digest())}


def content(name, size):
    """Bytes that follow from the name."""
    blocks = (hashlib.sha256(f"{name}/{i}".encode()).digest() * 64 for i in range(size // 2048 + 1))
    return b"".join(blocks)[:size]


def at_once(n, work):
    """work(i) in n threads; the first exception is ours."""
    failed = []

    def run(i):
        try:
            work(i)
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if failed:
        raise failed[0]
