# SPDX-License-Identifier: Apache-2.0
"""An S3 server that breaks on command, for tests: folders are buckets, and each signature is computed again from the specification, by
nothing of ours ("Signature Version 4 signing process"). What is to go wrong is a list of rules: the first one that matches a request acts, and
counts down.

    with S3Fault(folder) as server:
        server.fail(status=503, headers={"Retry-After": "1"}, times=2)
        server.fail(key="a.bin", reset=True)

Rules say when (method, key, bucket; a request matches all that are given) and what:
    status, code, message, headers, body     an answer of this kind
    reset, close                             the connection is cut, before or (after=N) behind N bytes of the payload
    wait                                     a threading.Event: nothing is answered before it is set
    slow                                     seconds between bytes of the payload
    length                                   Content-Length is off by so much
    two_lengths, garbage                     a head with two lengths; no HTTP at all
    corrupt                                  a byte of the payload is another one
    redirect                                 Location
    raw                                      these bytes, and the connection is cut
    interim                                  so many answers of status 100 come first (-1: without end)
    change                                   the object gets this content before it is answered
"""

import base64
import datetime
import email.utils
import hashlib
import hmac
import itertools
import pathlib
import socket
import ssl
import struct
import threading
import time
import urllib.parse
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.sax.saxutils import escape

import lib_crc


def crc32c(data):
    return base64.b64encode(struct.pack(">I", lib_crc.crc32c(data))).decode()


def crc64nvme(data):
    return base64.b64encode(struct.pack(">Q", lib_crc.crc64nvme(data))).decode()


def crc32(data):
    return base64.b64encode(struct.pack(">I", zlib.crc32(data))).decode()


class Rule:
    def __init__(self, times=1, method=None, key=None, bucket=None, query=None, **what):
        self.left, self.method, self.key, self.bucket, self.query, self.what, self.hits = times, method, key, bucket, query, what, 0

    def matches(self, request):
        return (self.left != 0 and self.method in (None, request.command) and self.key in (None, request.key) and
                self.bucket in (None, request.bucket) and (self.query is None or self.query in request.path))


class Refused(Exception):
    def __init__(self, status, code, message="", **headers):
        super().__init__(code)
        self.status, self.code, self.message, self.headers = status, code, message, {k.replace("_", "-"): v for k, v in headers.items()}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def date_time_string(self, timestamp=None):
        return email.utils.formatdate(time.time() + self.s.clock if timestamp is None else timestamp, usegmt=True)

    @property
    def s(self):
        return self.server.owner

    # --- signatures -----------------------------------------------------------------------------------------------------------

    def check_signature(self, body):
        s = self.s
        if self.headers["host"] != s.url.partition("//")[2]:
            raise Refused(400, "InvalidRequest", f"this is {s.url}, not {self.headers['host']}")
        if s.anonymous:
            return
        if "X-Amz-Signature=" in self.path:
            path, _, query = self.path.partition("?")
            if s.presigned(self.command, path, self.headers["host"], query.partition("&X-Amz-Signature=")[0]) != self.path:
                raise Refused(403, "SignatureDoesNotMatch", "computed again it is another one")
            return
        fields = self.headers.get("authorization", "")
        if not fields.startswith("AWS4-HMAC-SHA256 "):
            raise Refused(403, "AccessDenied", "not signed")
        parts = dict(p.strip().split("=", 1) for p in fields[17:].split(","))
        access, date, region, service, end = parts["Credential"].rsplit("/", 4)
        if (service, end) != ("s3", "aws4_request"):
            raise Refused(403, "AuthorizationHeaderMalformed", "scope")
        if access not in s.keys:
            raise Refused(403, "InvalidAccessKeyId")
        secret, token = s.keys[access]
        when = self.headers["x-amz-date"]
        stamp = datetime.datetime.strptime(when, "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.timezone.utc).timestamp()
        if abs(stamp - time.time() - s.clock) > 900:
            raise Refused(403, "RequestTimeTooSkewed", "the difference is too large")
        if region != s.region:
            raise Refused(400, "AuthorizationHeaderMalformed", f"expecting '{s.region}'", x_amz_bucket_region=s.region)
        if token != self.headers.get("x-amz-security-token"):
            raise Refused(403, "InvalidToken")
        sent = self.headers["x-amz-content-sha256"]
        if sent != "UNSIGNED-PAYLOAD" and hashlib.sha256(body).hexdigest() != sent:
            raise Refused(400, "XAmzContentSHA256Mismatch")
        signed = parts["SignedHeaders"].split(";")
        for name in self.headers:
            if name.lower().startswith("x-amz-") and name.lower() not in signed:
                raise Refused(403, "AccessDenied", f"{name} is not signed")
        assert signed == sorted(signed) and "host" in signed
        path, _, query = self.path.partition("?")
        pairs = sorted((urllib.parse.quote(urllib.parse.unquote(n), safe="-_.~"), urllib.parse.quote(urllib.parse.unquote(v), safe="-_.~"))
                       for n, _, v in (p.partition("=") for p in query.split("&") if p))
        canonical = "\n".join([self.command, urllib.parse.quote(urllib.parse.unquote(path), safe="/-_.~"),
                               "&".join(f"{n}={v}" for n, v in pairs),
                               *(f"{n}:{' '.join(self.headers[n].split())}" for n in signed), "", ";".join(signed), sent])
        text = "\n".join(["AWS4-HMAC-SHA256", when, f"{date}/{region}/s3/aws4_request", hashlib.sha256(canonical.encode()).hexdigest()])
        key = b"AWS4" + secret.encode()
        for part in (date, region, "s3", "aws4_request"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        if parts["Signature"] != hmac.new(key, text.encode(), hashlib.sha256).hexdigest():
            raise Refused(403, "SignatureDoesNotMatch", "computed again it is another one")
        if access in s.expired:
            raise Refused(400, "ExpiredToken", "The provided token has expired.")

    # --- answers --------------------------------------------------------------------------------------------------------------

    def answer(self, status, body=b"", headers=(), rule=None):
        what = rule.what if rule else {}
        self.send_response(status)
        length = len(body) + what.get("length", 0)
        if self.command == "HEAD":
            length = dict(headers).get("content-length", length)
        for name, value in dict(headers).items():
            if name != "content-length":
                self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        if what.get("two_lengths"):
            self.send_header("Content-Length", str(length + 1))
        self.end_headers()
        if self.command == "HEAD":
            return
        if what.get("corrupt") and body:
            body = body[:-1] + bytes([body[-1] ^ 1])
        if "after" in what:
            body = body[:what["after"]]
        if "slow" in what:
            for i in range(len(body)):
                self.wfile.write(body[i:i + 1])
                time.sleep(what["slow"])
        else:
            self.wfile.write(body)
        if what.get("close") or what.get("reset") or what.get("length", 0) < 0:
            self.cut(what.get("reset"))

    def cut(self, reset):
        self.close_connection = True
        if reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.wfile = self.rfile
        else:
            self.connection.shutdown(socket.SHUT_RDWR)

    def refuse(self, status, code, message="", headers=()):
        body = (f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{escape(code)}</Code><Message>{escape(message)}</Message></Error>').encode()
        self.answer(status, b"" if self.command == "HEAD" else body, headers)

    def handle_one(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        path = urllib.parse.unquote(self.path.partition("?")[0])
        _, self.bucket, *rest = path.split("/", 2)
        self.key = rest[0] if rest else ""
        query = dict(urllib.parse.parse_qsl(self.path.partition("?")[2], keep_blank_values=True))
        self.s.log.append((self.command, self.path, self.headers.get("range"), self.headers.get("authorization")))
        rule = self.s.match(self)
        what = rule.what if rule else {}
        if what.get("garbage"):
            self.wfile.write(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
            return self.cut(False)
        if "raw" in what:
            self.wfile.write(what["raw"])
            return self.cut(False)
        for n in itertools.count() if what.get("interim") == -1 else range(what.get("interim", 0)):
            self.wfile.write(b"HTTP/1.1 100 Continue\r\nX-Number: %d\r\n\r\n" % n)
        if "hang" in what:
            time.sleep(what["hang"])
            return self.cut(False)
        if (what.get("reset") or what.get("close")) and "after" not in what:
            return self.cut(what.get("reset"))
        if "redirect" in what:
            return self.answer(what.get("status", 307), b"", {"Location": what["redirect"]})
        if "status" in what and "body" in what:
            return self.answer(what["status"], what["body"], what.get("headers", {}))
        if "status" in what:
            return self.refuse(what["status"], what.get("code", "InternalError"), what.get("message", ""), what.get("headers", {}))
        try:
            self.check_signature(body)
            return self.serve(query, body, rule)
        except Refused as e:
            return self.refuse(e.status, e.code, e.message, e.headers)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_one

    def serve(self, query, body, rule):
        if rule and "wait" in rule.what:
            rule.what["wait"].wait(120)
        bucket = self.s.top / self.bucket
        if not self.bucket or not bucket.is_dir():
            raise Refused(404, "NoSuchBucket")
        if self.command == "GET" and not self.key:
            return self.list(bucket, query, rule)
        file = bucket / self.key
        if self.command == "PUT":
            # Of large bodies the signature's SHA-256 has to do: this is Python.
            if len(body) < 1 << 18 and "x-amz-checksum-crc32c" in self.headers and self.headers["x-amz-checksum-crc32c"] != crc32c(body):
                raise Refused(400, "BadDigest")
            copied = self.headers.get("x-amz-copy-source") if self.s.copies else None
            if copied:
                body = self.copy_source(copied)
            if "partNumber" in query:
                if (parts := self.s.parts.get(query["uploadId"])) is None:  # it was aborted while the body came
                    raise Refused(404, "NoSuchUpload", "The specified upload does not exist.")
                parts[int(query["partNumber"])] = body
            else:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(body)
            etag = f'"{hashlib.md5(body).hexdigest()}"'
            if copied:
                name = "CopyPartResult" if "partNumber" in query else "CopyObjectResult"
                return self.answer(200, f"<?xml version='1.0'?>\n   <{name}><ETag>{escape(etag)}</ETag></{name}>".encode(), {}, rule)
            return self.answer(200, b"", {"ETag": etag}, rule)
        if self.command == "POST" and "uploads" in query:
            name = f"upload-{next(self.s.uploads)}"
            self.s.parts[name] = {}
            return self.answer(200, f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId></InitiateMultipartUploadResult>".encode())
        if self.command == "POST":
            if (parts := self.s.parts.pop(query["uploadId"], None)) is None:
                raise Refused(404, "NoSuchUpload", "The specified upload does not exist.")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"".join(parts[n] for n in sorted(parts)))
            return self.answer(200, b"<CompleteMultipartUploadResult/>", {}, rule)
        if self.command == "DELETE":
            if "uploadId" in query:
                self.s.parts.pop(query["uploadId"], None)
                self.s.aborted += 1
            else:
                file.unlink(missing_ok=True)
            return self.answer(204)
        if rule and "change" in rule.what:
            new = file.with_name(f"{file.name}.{threading.get_ident()}.new")
            new.write_bytes(rule.what["change"])
            new.replace(file)
        if not file.is_file():
            raise Refused(404, "NoSuchKey", "The specified key does not exist.")
        data, etag = self.s.read(file)
        if self.headers.get("if-match") not in (None, etag):
            raise Refused(412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold")
        headers = {"ETag": etag, "Last-Modified": email.utils.formatdate(file.stat().st_mtime, usegmt=True), "Accept-Ranges": "bytes"}
        if self.s.checksum and self.headers.get("x-amz-checksum-mode") == "ENABLED" and "range" not in self.headers:
            of = data if not (rule and rule.what.get("wrong_sum")) else data + b"x"
            headers[f"x-amz-checksum-{self.s.checksum}"] = {"crc32c": crc32c, "crc64nvme": crc64nvme, "crc32": crc32}[self.s.checksum](of)
        if rule and "sum" in rule.what:
            headers[rule.what["sum"][0]] = rule.what["sum"][1]
        status = 200
        if "range" in self.headers and self.s.ranges:
            first, last = self.headers["range"].removeprefix("bytes=").split("-")
            first, last = int(first), min(int(last or len(data)), len(data) - 1)
            if first >= len(data):
                raise Refused(416, "InvalidRange")
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
            data, status = data[first:last + 1], 206
        if self.command == "HEAD":
            headers["content-length"] = len(data)
        self.answer(status, data, headers, rule)

    def copy_source(self, name):
        file = self.s.top / urllib.parse.unquote(name).lstrip("/")
        if not file.is_file():
            raise Refused(404, "NoSuchKey")
        data, etag = self.s.read(file)
        if self.headers.get("x-amz-copy-source-if-match") not in (None, etag):
            raise Refused(412, "PreconditionFailed")
        if "x-amz-copy-source-range" in self.headers:
            first, last = self.headers["x-amz-copy-source-range"].removeprefix("bytes=").split("-")
            data = data[int(first):int(last) + 1]
        return data

    def list(self, bucket, query, rule):
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        token = query.get("continuation-token", query.get("start-after", ""))
        keys = sorted(str(p.relative_to(bucket)) for p in bucket.rglob("*") if p.is_file())
        keys = [k for k in keys if k.startswith(prefix) and k > token]
        page, rest = keys[:self.s.page], keys[self.s.page:]
        out, cuts, seen = [], [], set()
        for key in page:
            cut = key.find(delimiter, len(prefix)) if delimiter else -1
            if cut >= 0:
                if key[:cut + 1] not in seen:
                    seen.add(key[:cut + 1])
                    cuts.append(f"<CommonPrefixes><Prefix>{urllib.parse.quote(key[:cut + 1])}</Prefix></CommonPrefixes>")
                continue
            data, etag = self.s.read(bucket / key)
            out.append(f"<Contents><Key>{urllib.parse.quote(key)}</Key><Size>{len(data)}</Size>"
                       f"<ETag>{escape(etag)}</ETag><LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>")
        more = "<IsTruncated>false</IsTruncated>"
        if rest or self.s.endless:
            more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{'same' if self.s.endless else escape(page[-1])}</NextContinuationToken>"
        text = f"<ListBucketResult><EncodingType>url</EncodingType>{''.join(out + cuts)}{more}</ListBucketResult>"
        self.answer(200, text.encode(), {"Content-Type": "application/xml"}, rule)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, address):  # connections that we cut
        pass


class S3Fault:
    """`url`; `rules`; `log`: (method, path, range, authorization) of each request. Access key AK, secret SK."""

    region = "us-east-1"

    def __init__(self, top, certificate=None, address="127.0.0.1"):
        self.top, self.rules, self.log, self.parts, self.expired = pathlib.Path(top), [], [], {}, set()
        self.cache = {}
        self.keys = {"AK": ("SK", None)}  # access key: (secret, token)
        self.clock = self.aborted = 0
        self.uploads = itertools.count()
        self.page, self.checksum, self.anonymous, self.ranges, self.endless, self.copies = 1000, None, False, True, False, True
        self.lock = threading.Lock()
        self.server = _Server((address, 0), _Handler)
        self.server.owner = self
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"{'https' if certificate else 'http'}://{address}:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def read(self, file):
        """Its bytes and ETag; hashed once."""
        stat = file.stat()
        seen = self.cache.get(file)
        if not seen or seen[0] != (stat.st_mtime_ns, stat.st_size):
            data = file.read_bytes()
            seen = self.cache[file] = ((stat.st_mtime_ns, stat.st_size), data, f'"{hashlib.md5(data).hexdigest()}"')
        return seen[1], seen[2]

    def fail(self, **rule):
        self.rules.append(Rule(**rule))
        return self.rules[-1]

    def match(self, request):
        with self.lock:
            for rule in self.rules:
                if rule.matches(request):
                    rule.left -= 1
                    rule.hits += 1
                    return rule
        return None

    def presigned(self, method, path, host, query=None):
        """Path and query of a link that is signed for this host, with this query or one of now."""
        when = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        scope = f"{when[:8]}/{self.region}/s3/aws4_request"
        query = query or "&".join(["X-Amz-Algorithm=AWS4-HMAC-SHA256", f"X-Amz-Credential=AK%2F{scope.replace('/', '%2F')}", f"X-Amz-Date={when}",
                                   "X-Amz-Expires=600", "X-Amz-SignedHeaders=host"])
        scope = query.partition("X-Amz-Credential=AK%2F")[2].partition("&")[0].replace("%2F", "/")
        when = query.partition("X-Amz-Date=")[2].partition("&")[0]
        canonical = "\n".join([method, path, query, f"host:{host}", "", "host", "UNSIGNED-PAYLOAD"])
        text = "\n".join(["AWS4-HMAC-SHA256", when, scope, hashlib.sha256(canonical.encode()).hexdigest()])
        key = b"AWS4" + self.keys["AK"][0].encode()
        for part in scope.split("/"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        return f"{path}?{query}&X-Amz-Signature={hmac.new(key, text.encode(), hashlib.sha256).hexdigest()}"

    def env(self, access="AK"):
        secret, token = self.keys[access]
        env = {"AWS_ACCESS_KEY_ID": access, "AWS_SECRET_ACCESS_KEY": secret, "AWS_ENDPOINT_URL": self.url, "AWS_REGION": "us-east-1",
               "AWS_EC2_METADATA_DISABLED": "true"}
        return env | ({"AWS_SESSION_TOKEN": token} if token else {})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
