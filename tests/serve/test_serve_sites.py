# SPDX-License-Identifier: Apache-2.0
"""Pages of other sites, in a browser on a host that reaches the server: what they can send without a signature, and what objects may do."""

import shutil
import socket

import lib_host
import lib_serve
import pytest
from lib_serve import error, get, put

REBOUND = "a-page.example:9000"


@pytest.fixture(scope="module")
def open_server(quick_folder):
    """Everybody on this machine may do everything."""
    if not lib_host.LEAT.exists():
        pytest.skip(f"{lib_host.LEAT} is not built")
    top = quick_folder / "sites"
    server = lib_serve.Server(top, "--listen", "127.0.0.1:0", "--listen", f"unix:{top}/http.sock", "--domain", "data.example.org", "--domain", "localhost",
                              keys=None)
    put(server, "/open", b"", access=None)
    put(server, "/open/k", b"an object", access=None, headers={"content-type": "text/html"})
    yield server
    server.stop()
    shutil.rmtree(top)


def ask(server, method, path, body=b"", query=(), **headers):
    return server.request(method, path, body, query=query, access=None, headers={k.replace("_", "-"): v for k, v in headers.items()})


def test_a_name_that_was_made_to_mean_this_host(open_server):
    """DNS rebinding: the browser takes the server for a host of the page's own site."""
    for method, path in (("GET", "/open/k"), ("HEAD", "/open/k"), ("GET", "/open"), ("PUT", "/open/new"), ("DELETE", "/open/k"), ("PUT", "/taken"),
                         ("OPTIONS", "/open/k"), ("POST", "/open?batch")):
        path, _, query = path.partition("?")
        reply = ask(open_server, method, path, query=[(query, "")] if query else (), host=REBOUND)
        assert reply.status == 403 and b"an object" not in reply.body, (method, reply)
        assert method == "HEAD" or (b"domains in [serve]" in reply.body and REBOUND.encode() in reply.body)
    for host in ("open.a-page.example", "localhost.a-page.example", "127.0.0.1.a-page.example"):
        assert error(ask(open_server, "GET", "/k", host=host)) == (403, "AccessDenied")
    assert open_server.raw(f"GET http://{REBOUND}/open/k HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()).startswith(b"HTTP/1.1 403 ")
    assert ask(open_server, "GET", "/open/k").body == b"an object"


def test_names_of_this_server(open_server):
    port = open_server.port
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", "LOCALHOST", f"[::1]:{port}", "192.0.2.7", f"{socket.gethostname()}:{port}",
                 socket.gethostname().partition(".")[0], "data.example.org"):
        assert ask(open_server, "GET", "/open/k", host=host).body == b"an object", host
    for host in (f"open.localhost:{port}", "open.data.example.org"):
        assert ask(open_server, "GET", "/k", host=host).body == b"an object", host
    # HTTP/1.0 has no Host, and no browser speaks it.
    assert open_server.raw(b"GET /open/k HTTP/1.0\r\n\r\n").endswith(b"an object")
    # No browser comes by a unix socket, whatever its clients call it.
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(60)
        s.connect(str(open_server.top / "http.sock"))
        s.sendall(b"GET /open/k HTTP/1.1\r\nHost: any-name\r\nConnection: close\r\n\r\n")
        assert b"".join(iter(lambda: s.recv(65536), b"")).endswith(b"an object")


@pytest.mark.parametrize("headers", [{"origin": "http://a-page.example"}, {"origin": "null"}, {"sec_fetch_site": "cross-site"},
                                     {"sec_fetch_site": "same-site"}, {"origin": "http://127.0.0.1:1"}])
def test_what_a_page_of_another_site_sends(open_server, headers):
    """Forms and text need no permission by CORS: they arrive, and change nothing."""
    for method, path, query in (("POST", "/open/form", [("uploads", "")]), ("POST", "/open", [("delete", "")]), ("PUT", "/open/k", ()),
                                ("DELETE", "/open/k", ()), ("PUT", "/taken", ())):
        reply = ask(open_server, method, path, b"<Delete><Object><Key>k</Key></Object></Delete>", query=query, **headers)
        assert error(reply) == (403, "AccessDenied") and b"another site" in reply.body, (method, path, reply)
        assert "access-control-allow-origin" not in reply.headers
    assert ask(open_server, "GET", "/open/k", **headers).body == b"an object", "reads are for images and links; their bytes stay with the browser"


def test_programs_and_its_own_pages_may_change_things(open_server):
    here = f"http://{open_server.host}:{open_server.port}"
    for headers in ({}, {"origin": here}, {"origin": here, "sec_fetch_site": "same-origin"}, {"sec_fetch_site": "none"}):
        assert ask(open_server, "PUT", "/open/own", b"x", **headers).status == 200
        assert ask(open_server, "DELETE", "/open/own", **headers).status == 204


def test_signed_requests_need_no_name(server, bucket):
    """A signature proves what no page knows; and it covers Host."""
    headers = {"host": REBOUND, "origin": "http://a-page.example", "sec-fetch-site": "cross-site"}
    put(server, f"/{bucket}/k", b"signed", headers=headers)
    assert get(server, f"/{bucket}/k", headers=headers) == b"signed"
    target, headers = lib_serve.presigned(server, "GET", f"/{bucket}/k", headers={"host": REBOUND})
    assert server.send("GET", target, b"", headers).body == b"signed"


def test_public_buckets(server):
    try:
        put(server, "/public-sites", b"")
        put(server, "/public-sites/k", b"public")
        assert ask(server, "GET", "/public-sites/k").body == b"public"
        assert error(ask(server, "GET", "/public-sites/k", host=REBOUND)) == (403, "AccessDenied")
    finally:
        server.request("DELETE", "/public-sites/k")
        server.request("DELETE", "/public-sites")


def test_objects_run_nothing(server, bucket):
    """A page among the objects gets no script, and is of no origin: it may not ask for others."""
    put(server, f"/{bucket}/page.html", b"<script>1</script>", headers={"content-type": "text/html"})
    put(server, f"/{bucket}/a.zip", b"x")
    for method, path, query, body in (("GET", "/page.html", (), b""), ("HEAD", "/page.html", (), b""), ("GET", "", (), b""), ("GET", "/none", (), b""),
                                      ("GET", "/a.zip", [("archpath", "x")], b""), ("POST", "", [("batch", "")], b'[{"key":"page.html"}]')):
        reply = server.request(method, f"/{bucket}{path}", body, query=query)
        assert reply.headers.get("content-security-policy") == "sandbox", (method, path, query, reply)
        assert reply.headers.get("x-content-type-options") == "nosniff", (method, path, query, reply)
    part = server.request("GET", f"/{bucket}/page.html", headers={"range": "bytes=0-3"})
    assert part.status == 206 and part.headers["content-security-policy"] == "sandbox"
