# SPDX-License-Identifier: Apache-2.0
"""/v1, /metrics and health over a real server, beside its own description; permissions."""

import contextlib
import http.client
import json
import os
import socket
import subprocess

import lib_host
import lib_serve
import pytest

TOKEN = "0123456789abcdef0123456789abcdef"


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=120)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(120)
        self.sock.connect(self.path)


class Node:
    """A server with a token file, at a TCP address and a unix socket."""

    def __init__(self, top):
        top.mkdir(parents=True, exist_ok=True)
        self.token_file = top / "token"
        self.token_file.touch(mode=0o600)
        self.token_file.write_text(TOKEN + "\n")
        self.socket = top / "http.sock"
        self.server = lib_serve.Server(top, "--admin-token", self.token_file, "--listen", "127.0.0.1:0", "--listen", f"unix:{self.socket}")

    def ask(self, method, path, body=None, token=TOKEN, local=False, **headers):
        headers = {k.replace("_", "-"): v for k, v in headers.items()}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
            body = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection = UnixConnection(self.socket) if local else self.server.connect()
        with contextlib.closing(connection):
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            answer.text = answer.read().decode()
            answer.json = json.loads(answer.text) if answer.getheader("Content-Type") == "application/json" and answer.text else None
            return answer


@pytest.fixture(scope="module")
def node(quick_folder):
    if not lib_host.LEAT.exists():
        pytest.skip(f"{lib_host.LEAT} is not built")
    made = Node(quick_folder / "admin")
    yield made
    made.server.stop()


@pytest.fixture(scope="module")
def described(node):
    return node.ask("GET", "/v1/openapi.json").json


def resolved(schema, document):
    """OpenAPI 3.0's schema as JSON Schema: references in place, "nullable" as a type."""
    if isinstance(schema, list):
        return [resolved(s, document) for s in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        at = document
        for part in schema["$ref"].removeprefix("#/").split("/"):
            at = at[part]
        return resolved({**at, **{k: v for k, v in schema.items() if k != "$ref"}}, document)
    schema = {k: resolved(v, document) for k, v in schema.items()}
    if schema.pop("nullable", False) is True:
        schema = {"anyOf": [schema, {"type": "null"}]}
    return schema


def conforms(described, answer, path, method):
    """The status is described, and the body is as its schema has it, with no field that is not."""
    jsonschema = pytest.importorskip("jsonschema")
    said = described["paths"][path][method]["responses"]
    assert str(answer.status) in said, (method, path, answer.status, answer.text)
    content = said[str(answer.status)].get("content")
    if content:
        schema = resolved(content["application/json"]["schema"], described)
        for part in walk(schema):
            if "properties" in part:
                part.setdefault("additionalProperties", False)
        jsonschema.validate(answer.json, schema)
    else:
        assert answer.text == ""
    return answer


def walk(schema):
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            yield schema
        for v in schema.values():
            yield from walk(v)
    elif isinstance(schema, list):
        for v in schema:
            yield from walk(v)


def test_description(described):
    assert described["openapi"].startswith("3.0.")
    seen = set()
    for path, item in described["paths"].items():
        names = [p["name"] for p in item.get("parameters", [])]
        assert [p.strip("{}") for p in path.split("/") if p.startswith("{")] == names
        for method, operation in item.items():
            if method == "parameters":
                continue
            assert method in ("get", "put", "post", "delete")
            assert operation["operationId"] not in seen
            seen.add(operation["operationId"])
            assert operation["summary"] and any(s.startswith("2") for s in operation["responses"])
            resolved(operation, described)  # every reference leads somewhere


def test_every_route_is_described_and_is_there(node, described):
    """A path with a method that it has not got says which it has: those are the described ones."""
    for path, item in described["paths"].items():
        answer = node.ask("PATCH", path.replace("{name}", "none"))
        assert answer.status == 405
        assert set(answer.getheader("Allow").lower().replace(",", "").split()) - {"head"} == set(item) - {"parameters"}
    assert node.ask("GET", "/v1/none").status == 404
    assert node.ask("GET", "/v1").status == 404


def test_status(node, described):
    node.server.request("PUT", "/status-bucket")
    node.server.request("PUT", "/status-bucket/key", body=b"x" * 1000)
    status = conforms(described, node.ask("GET", "/v1/status"), "/v1/status", "get").json
    assert status["store"]["paths"][0]["path"] == str(node.server.store)
    assert status["store"]["paths"][0]["objects"] >= 1
    responses = status["http"]["responses"]
    assert responses["2xx"] >= 2
    responses["broken_off"] = responses.pop("aborted")
    assert status["http"]["answers"] == responses  # the old names
    assert status["pool"] is None
    assert node.ask("HEAD", "/v1/status").text == ""


def test_buckets(node, described):
    path = "/v1/buckets/{name}"
    made = conforms(described, node.ask("PUT", "/v1/buckets/made-here", {"owner": "maker"}), path, "put")
    assert (made.status, made.json["owner"], made.json["remote"]) == (201, "maker", None)
    again = conforms(described, node.ask("PUT", "/v1/buckets/made-here", {"owner": "reader"}), path, "put")
    assert (again.status, again.json["owner"]) == (200, "reader")
    assert node.ask("PUT", "/v1/buckets/made-here", {}).json["owner"] == "reader"
    listed = conforms(described, node.ask("GET", "/v1/buckets"), "/v1/buckets", "get").json["buckets"]
    assert "made-here" in [b["name"] for b in listed]
    # Its owner may write there by S3, others may not.
    assert node.server.request("PUT", "/made-here/a", body=b"1", access="LEATTESTREADER000001", secret="secret-of-the-reader").status == 200
    assert node.server.request("PUT", "/made-here/b", body=b"1", access="LEATTESTMAKER0000001", secret="secret-of-the-maker").status == 403
    assert conforms(described, node.ask("DELETE", "/v1/buckets/made-here"), path, "delete").status == 409
    assert node.server.request("DELETE", "/made-here/a").status == 204
    assert conforms(described, node.ask("DELETE", "/v1/buckets/made-here"), path, "delete").status == 204
    assert conforms(described, node.ask("GET", "/v1/buckets/made-here"), path, "get").status == 404
    assert conforms(described, node.ask("DELETE", "/v1/buckets/made-here"), path, "delete").status == 404
    for name in ("A", "a%2Fb", "..%2F..", "x" * 64, "a b"):
        answer = node.ask("PUT", f"/v1/buckets/{name.replace(' ', '%20')}", {})
        assert answer.status in (400, 404), (name, answer.text)


@pytest.mark.parametrize("body, word", [
    (b"", "JSON object"), (b"[]", "JSON object"), (b"{", "JSON object"), (b'{"a":1,"a":2}', "JSON object"), ({"owner": 5}, "owner"),
    ({"remote": "s3://x"}, "remote"), ({"colour": "red"}, "colour"), ({"owner": "x" * 65}, "owner")])
def test_bodies_that_are_none(node, described, body, word):
    answer = conforms(described, node.ask("PUT", "/v1/buckets/never-made", body), "/v1/buckets/{name}", "put")
    assert answer.status == 400 and word in answer.json["error"]["message"]
    assert node.ask("GET", "/v1/buckets/never-made").status == 404


def test_bodies_that_are_too_much(node, described):
    answer = conforms(described, node.ask("PUT", "/v1/buckets/never-made", b" " * 70000), "/v1/buckets/{name}", "put")
    assert answer.status == 413
    answer = conforms(described, node.ask("PUT", "/v1/buckets/never-made", {}, Content_Type="text/plain"), "/v1/buckets/{name}", "put")
    assert answer.status == 415


def test_queries_that_are_too_long(node, described):
    """None is cut: what stood behind the cut would be left out, or half of a word would be looked for."""
    assert node.ask("GET", "/v1/jobs?running=true&match=" + "%61" * 100).status == 200
    answer = conforms(described, node.ask("GET", "/v1/jobs?" + "x=1&" * 130 + "running=maybe"), "/v1/jobs", "get")
    assert answer.status == 400 and "more than 511 bytes" in answer.json["error"]["message"]


def test_jobs_and_sets(node, described):
    assert conforms(described, node.ask("GET", "/v1/jobs"), "/v1/jobs", "get").json == {"jobs": []}
    for body in ({}, {"kind": "prefetch"}, {"kind": "burn", "bucket": "b"}, {"kind": "evict", "bucket": "no-such-bucket"},
                 {"kind": "check", "bucket": "b", "keys": []}, {"kind": "check", "bucket": "b", "update": "yes"}):
        assert conforms(described, node.ask("POST", "/v1/jobs", body), "/v1/jobs", "post").status in (400, 404)
    for number in ("7", "x", "-1", "99999999999999999999999"):
        assert conforms(described, node.ask("GET", f"/v1/jobs/{number}"), "/v1/jobs/{name}", "get").status == 404
        assert conforms(described, node.ask("DELETE", f"/v1/jobs/{number}"), "/v1/jobs/{name}", "delete").status == 404
    assert conforms(described, node.ask("GET", "/v1/sets"), "/v1/sets", "get").json == {"sets": []}
    assert conforms(described, node.ask("GET", "/v1/sets/x"), "/v1/sets/{name}", "get").status == 404
    assert conforms(described, node.ask("DELETE", "/v1/sets/x"), "/v1/sets/{name}", "delete").status == 404


def test_cold_jobs(node, described, tmp_path):
    """A bucket in front of a folder, made, filled and emptied by /v1."""
    for i in range(5):
        (tmp_path / f"part-{i}").write_bytes(b"x" * 1000 * (i + 1))
    made = conforms(described, node.ask("PUT", "/v1/buckets/in-front", {"owner": "maker", "remote": {"uri": f"file://{tmp_path}"}}),
                    "/v1/buckets/{name}", "put")
    assert made.status == 201 and made.json["cold"] and made.json["remote"]["uri"] == f"file://{tmp_path}"

    def job(**spec):
        started = conforms(described, node.ask("POST", "/v1/jobs", {"bucket": "in-front", **spec}), "/v1/jobs", "post")
        assert started.status == 202, started.text

        def ended():
            now = conforms(described, node.ask("GET", f"/v1/jobs/{started.json['id']}"), "/v1/jobs/{name}", "get").json
            return now["state"] != "running" and now

        now = lib_host.wait_for(ended)
        assert now["state"] == "done", now
        return now

    assert job(kind="prefetch", prefix="part-")["done"] == 5
    assert job(kind="prefetch", keys=["part-1"])["skipped"] == 1
    assert job(kind="evict", keys=["part-0", "part-4"])["done"] == 2
    listed = conforms(described, node.ask("GET", "/v1/jobs"), "/v1/jobs", "get").json["jobs"]
    assert [j["kind"] for j in listed] == ["evict", "prefetch", "prefetch"]
    status = conforms(described, node.ask("GET", "/v1/status"), "/v1/status", "get").json
    assert status["tier"]["fetches"] >= 5 and len(status["tier_jobs"]) == 3
    assert node.server.request("GET", "/in-front/part-4").body == b"x" * 5000
    assert conforms(described, node.ask("PUT", "/v1/buckets/in-front", {"remote": {"uri": "gopher://x"}}), "/v1/buckets/{name}", "put").status == 400


def test_who_may(node):
    for token in (None, "", "x", TOKEN[:-1], TOKEN + "0", TOKEN.upper()):
        for path in ("/v1/status", "/metrics", "/v1/openapi.json"):
            answer = node.ask("GET", path, token=token)
            assert answer.status == 401 and answer.getheader("WWW-Authenticate") == "Bearer"
            assert TOKEN not in answer.text
        assert node.ask("PUT", "/v1/buckets/never-made", {}, token=token).status == 401
    for path in ("/healthz", "/readyz"):
        assert node.ask("GET", path, token=None).status == 200
    # The same user over the unix socket needs none.
    assert node.ask("GET", "/v1/status", token=None, local=True).status == 200
    assert node.ask("PUT", "/v1/buckets/by-socket", {}, token=None, local=True).status == 201
    assert node.ask("DELETE", "/v1/buckets/by-socket", token=None, local=True).status == 204


def test_s3_is_not_in_its_way(node):
    """"/" is S3's for signed requests, the page's for browsers."""
    assert node.server.request("GET", "/").body.startswith(b"<?xml")
    page = node.ask("GET", "/", token=None, Accept="text/html,application/xhtml+xml")
    assert page.getheader("Content-Type") == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.getheader("Content-Security-Policy")
    assert node.server.request("GET", "/no-such-bucket-here/key").code == "NoSuchBucket"


def test_refusals_speak_the_language_of_their_path(node):
    answer = node.server.raw(b"GET /v1/status HTTP/1.1\r\nHost: x\r\nExpect: more\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 417 ") and b'"error":{"code":"expectation_failed"' in answer
    answer = node.server.raw(b"GET /bucket/key HTTP/1.1\r\nHost: x\r\nExpect: more\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 417 ") and b"<Error>" in answer


def test_without_token(quick_folder):
    """Requests from this host may read, by one of its names; no request may change anything."""
    server = lib_serve.Server(quick_folder / "admin-open")
    try:
        def ask(method, path, **headers):
            with contextlib.closing(server.connect()) as connection:
                connection.request(method, path, b"{}" if method == "PUT" else None, {k.replace("_", "-"): v for k, v in headers.items()})
                return connection.getresponse().status

        assert ask("GET", "/v1/status") == 200
        assert ask("GET", "/v1/status", Host=f"localhost:{server.port}") == 200
        assert ask("GET", "/v1/status", Host="a-page.example") == 403  # an attacker's name that resolves to 127.0.0.1
        assert ask("GET", "/v1/status", Host="localhost.a-page.example") == 403
        for path in ("/v1/status", "/metrics"):
            assert ask("GET", path) == 200
            for header in ("Forwarded", "X_Forwarded_For", "Via"):  # by a proxy on this host, for anywhere
                assert ask("GET", path, **{header: "192.0.2.1"}) == 403, (path, header)
        assert ask("PUT", "/v1/buckets/never-made", Content_Type="application/json") == 403
        assert ask("DELETE", "/v1/buckets/never-made") == 403
    finally:
        server.stop()


def test_tokens_that_cannot_be(quick_folder):
    top = quick_folder / "admin-token"
    top.mkdir()
    for i, (text, mode, word) in enumerate([("short", 0o600, "32"), ("x" * 40, 0o644, "chmod"), ("a b" * 20, 0o600, "printable"),
                                            (None, 0o600, "no token file")]):
        file = top / f"token-{i}"
        if text is not None:
            file.write_text(text)
            file.chmod(mode)
        done = subprocess.run([lib_host.LEAT, "serve", "--anonymous", "--store", top / "store", "--listen", "127.0.0.1:0", "--admin-token", file],
                              capture_output=True, text=True, timeout=120)
        assert done.returncode != 0 and word in done.stderr, done.stderr


def test_metrics(node):
    text = node.ask("GET", "/metrics")
    assert text.getheader("Content-Type") == "text/plain; version=0.0.4; charset=utf-8"
    for old, new in (("http_answers_total", "http_responses_total"), ("http_broken_off_total", "http_aborted_total"),
                     ("store_scrub_mended_total", "store_scrub_repaired_total")):
        assert f"# HELP leat_{old} Deprecated, use leat_{new}.\n" in text.text
        assert f"# TYPE leat_{new} counter\n" in text.text
    open_text = node.ask("GET", "/metrics", Accept="application/openmetrics-text;version=1.0.0")
    assert open_text.getheader("Content-Type") == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert open_text.text.endswith("# EOF\n")
    parser = pytest.importorskip("prometheus_client.parser", reason="python3-prometheus-client is not installed")
    from prometheus_client.openmetrics import parser as open_parser
    plain = {f.name: f for f in parser.text_string_to_metric_families(text.text)}
    opened = {f.name: f for f in open_parser.text_string_to_metric_families(open_text.text)}
    assert set(plain) == set(opened)
    assert opened["leat_http_requests"].type == "counter"
    assert opened["leat_http_request_seconds"].type == "histogram"
    assert opened["leat_store_path_up"].samples[0].labels == {"path": str(node.server.store)}
    assert opened["leat_store_path_up"].samples[0].value == 1


def test_pool(host, quick_folder):
    """A leatd with doors: its pool is looked at and changed by the control loop."""
    numpy = pytest.importorskip("numpy")
    top = quick_folder / "admin-leatd"
    top.mkdir()
    (top / "keys").touch(mode=0o600)
    (top / "keys").write_text(lib_serve.KEYS)
    daemon = host.daemon({"store": {"paths": top / "store"}, "serve": {"listen": f"unix:{top}/http.sock", "keys_file": top / "keys"}})
    samples = host.folder / "samples.npy"
    numpy.save(samples, numpy.arange(8000, dtype="<u4").reshape(1000, 8))
    done = host.cli("--socket", daemon.socket, "preload", "--name", "looked-at", samples)
    assert done.returncode == 0, done.stderr

    def ask(method, path):
        with contextlib.closing(UnixConnection(top / "http.sock")) as connection:
            connection.request(method, path)
            answer = connection.getresponse()
            text = answer.read().decode()
            return answer.status, json.loads(text) if text else None

    status = ask("GET", "/v1/status")[1]
    assert status["pool"]["pool"]["cap_bytes"] > 0
    assert [s["name"] for s in status["pool"]["sets"]] == ["looked-at"]
    assert ask("GET", "/v1/sets")[1]["sets"][0]["samples"] == 1000
    assert ask("GET", "/v1/sets/looked-at")[1]["fingerprint"]
    assert ask("GET", "/v1/sets/none")[0] == 404
    with contextlib.closing(UnixConnection(top / "http.sock")) as connection:
        connection.request("GET", "/metrics", headers={"Accept": "application/openmetrics-text"})
        text = connection.getresponse().read().decode()
    assert "leat_working_sets 1\n" in text and "leat_http_requests_total" in text and "leat_pool_cap_bytes" in text
    assert ask("DELETE", "/v1/sets/looked-at?force=maybe")[0] == 400
    assert ask("DELETE", "/v1/sets/looked-at")[0] == 204
    assert ask("GET", "/v1/sets")[1]["sets"] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a system daemon opens files as others")
def test_sets_of_a_system_daemon(host, quick_folder):
    """Without a token this host may look, and so may everybody on it: at what everybody may read."""
    numpy = pytest.importorskip("numpy")
    top = quick_folder / "admin-system"
    top.mkdir()
    host.data.chmod(0o755)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    daemon = host.daemon({"daemon": {"mode": "system", "roots": host.data}, "store": {"paths": top / "store"},
                          "serve": {"listen": f"127.0.0.1:{port} unix:{top}/http.sock", "anonymous": "yes"}})
    for name, options in (("own", ()), ("everybodys", ("--public",))):
        numpy.save(host.data / f"{name}.npy", numpy.arange(800, dtype="<u4").reshape(100, 8))
        done = host.cli("--socket", daemon.socket, "preload", "--name", name, *options, host.data / f"{name}.npy")
        assert done.returncode == 0, done.stderr
    # A loader reports while its loop runs: so it does, until the test ends it.
    code = """
import select
loader = leat.Loader(leat.open('leat://' + argv[0]), batch_size=10)
batches = (batch for _ in iter(int, 1) for batch in loader)
say(len(next(batches)))
while not select.select([sys.stdin], [], [], 0.02)[0]:
    next(batches)
"""
    readers = [host.python(code, name, env={"LEAT_SOCKET": str(daemon.socket), "LEAT_JOB": f"job-{name}"}) for name in ("own", "everybodys")]
    for reader in readers:
        reader.hear()

    def ask(connection, path):
        with contextlib.closing(connection):
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def outside(path):
        return ask(http.client.HTTPConnection("127.0.0.1", port, timeout=60), path)

    def inside(path):
        return ask(UnixConnection(top / "http.sock"), path)

    def names(answer):
        return sorted(s["name"] for s in answer)

    lib_host.wait_for(lambda: len(inside("/v1/status")[1]["pool"]["jobs"]) == 2)
    assert names(inside("/v1/sets")[1]["sets"]) == ["everybodys", "own"]
    assert names(outside("/v1/sets")[1]["sets"]) == ["everybodys"]
    assert inside("/v1/sets/own")[0] == 200 and outside("/v1/sets/own")[0] == 404 and outside("/v1/sets/everybodys")[0] == 200
    status = outside("/v1/status")[1]["pool"]
    assert names(status["sets"]) == ["everybodys"] and [j["set"] for j in status["jobs"]] == ["everybodys"]
    assert "own.npy" not in json.dumps(status) and status["pool"]["cap_bytes"] > 0
    for reader in readers:
        reader.tell()
        reader.finish()
