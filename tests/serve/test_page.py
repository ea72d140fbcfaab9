# SPDX-License-Identifier: Apache-2.0
"""The page for people in a real browser: it shows what /v1 says, as text whatever the names are, and sends requests to no other server."""

import shutil
import socket

import lib_host
import lib_page
import lib_serve
import pytest

pytestmark = pytest.mark.skipif(lib_page.chromium() is None, reason="no Chromium: tools/deps browser")

TOKEN = "0123456789abcdef0123456789abcdef"
#: A bucket may not be called so, a folder may.
NASTY = "<taken>&amp;\"'"


@pytest.fixture
def browser(tmp_path):
    made = []

    def open_browser(url, **options):
        made.append(lib_page.Browser(tmp_path / f"chromium-{len(made)}", **options))
        made[-1].open(url)
        return made[-1]

    yield open_browser
    for b in made:
        b.close()


@pytest.fixture(scope="module")
def nasty(quick_folder):
    if not lib_host.LEAT.exists():
        pytest.skip(f"{lib_host.LEAT} is not built")
    server = lib_serve.Server(quick_folder / NASTY)
    for i in range(3):
        assert server.request("PUT", f"/bucket-{i}").status == 200
        assert server.request("PUT", f"/bucket-{i}/key", body=b"x" * 100000).status == 200
    yield server
    server.stop()
    shutil.rmtree(server.top)


def test_live(nasty, browser):
    page = browser(nasty.url)
    page.until("document.querySelectorAll('#buckets tbody tr').length === 3")
    page.until("document.querySelectorAll('#plot path.line').length === 2")  # two answers at least, a second apart
    text = page.text()
    assert "bucket-1" in text and "OBJECTS" in text.upper() and "live" in text
    assert str(nasty.store) in text  # with its angle brackets: text, not elements
    assert page.value("document.querySelectorAll('taken').length") == 0
    assert "Scrub" in text and "never ended a pass" in text
    before = page.value("document.querySelector('#tiles span').textContent")
    for _ in range(20):
        nasty.request("GET", "/bucket-0/key")
    page.until(f"document.querySelector('#tiles span').textContent !== {before!r}")
    assert page.complaints() == []
    assert {u.partition("?")[0].removeprefix(nasty.url) for u in page.asked() if not u.startswith("about:")} <= {"/", "/v1/status", "/v1/buckets", "/favicon.ico"}


def test_narrow(nasty, browser):
    """A telephone's width: nothing but a wide table's own card is pushed aside, and the buckets need not be."""
    page = browser(nasty.url, width=420)
    page.until("document.querySelectorAll('#buckets tbody tr').length === 3")
    assert page.value("document.documentElement.scrollWidth") == 420
    assert page.value("document.getElementById('buckets').scrollWidth <= document.getElementById('buckets').clientWidth")
    assert page.value("new Set([...document.querySelectorAll('#tiles .card')].map(c => c.getBoundingClientRect().top)).size") == 1


def test_policy(nasty, browser):
    """What a name that became an element would try is refused by the browser itself."""
    page = browser(nasty.url)
    page.until("document.querySelectorAll('#buckets tbody tr').length === 3")
    page.value("(() => { const s = document.createElement('script'); s.textContent = 'window.taken = 1'; document.body.append(s); })()")
    page.value("(() => { const d = document.createElement('div'); d.innerHTML = '<img src=x onerror=\"window.taken = 2\">'; document.body.append(d); })()")
    page.until("performance.now() > 0")
    assert page.value("window.taken") is None
    assert any("Content Security Policy" in str(c) for c in page.complaints())


def test_token(quick_folder, browser):
    top = quick_folder / "page-token"
    top.mkdir()
    (top / "token").touch(mode=0o600)
    (top / "token").write_text(TOKEN)
    server = lib_serve.Server(top, "--admin-token", top / "token")
    try:
        page = browser(server.url)
        page.until("!document.getElementById('token-form').hidden")
        assert page.value("document.getElementById('all').hidden")
        page.value("document.getElementById('token').value = 'wrong', document.getElementById('token-form').requestSubmit()")
        page.until("document.body.innerText.includes('not the server')")
        page.value(f"document.getElementById('token').value = '{TOKEN}', document.getElementById('token-form').requestSubmit()")
        page.until("!document.getElementById('all').hidden && document.querySelectorAll('#disks tbody tr').length === 1")
        # In memory alone: not where a browser keeps things, and gone with the page.
        assert page.value("[localStorage.length, sessionStorage.length, document.cookie, location.href]") == [0, 0, "", server.url + "/"]
        page.open("about:blank")
        page.until("location.href === 'about:blank'")
        page.open(server.url)
        page.until("!document.getElementById('token-form').hidden")
        server.kill()
        page.until("document.body.innerText.includes('does not answer')")
        server.start()
    finally:
        server.stop()


def test_pool(host, quick_folder, browser):
    """Working sets of a daemon, and what of them is in memory; dark as well."""
    numpy = pytest.importorskip("numpy")
    top = quick_folder / "page-leatd"
    top.mkdir()
    (top / "keys").touch(mode=0o600)
    (top / "keys").write_text(lib_serve.KEYS)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        address = "127.0.0.1:%d" % s.getsockname()[1]
    daemon = host.daemon({"store": {"paths": top / "store"}, "serve": {"listen": address, "keys_file": top / "keys"}})
    samples = host.folder / "samples.npy"
    numpy.save(samples, numpy.arange(8000, dtype="<u4").reshape(1000, 8))
    assert host.cli("--socket", daemon.socket, "preload", "--name", "on-the-page", samples).returncode == 0
    page = browser(f"http://{address}", dark=True)
    page.until("document.querySelectorAll('#sets tbody tr').length === 1")
    text = page.text()
    assert "on-the-page" in text and "1,000 of 1,000" in text and "No job runs." in text
    assert page.value("getComputedStyle(document.body).backgroundColor") == "rgb(22, 22, 21)"
    assert page.complaints() == []
