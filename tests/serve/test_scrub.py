# SPDX-License-Identifier: Apache-2.0
"""Bits that flip on the disks of a server: found without a reader, repaired where there is another copy, named where there is none."""

import json
import subprocess

import lib_host
import pytest
from lib_host import wait_for
from lib_serve import MIB, content
from test_admin import Node, conforms


@pytest.fixture
def node(tmp_path):
    if not lib_host.LEAT.exists():
        pytest.skip(f"{lib_host.LEAT} is not built")
    made = Node(tmp_path)
    yield made
    if made.server.process.poll() is None:
        made.server.stop()


def scrub(node, *args, check=0, **kwargs):
    line = [lib_host.LEAT, "scrub", "--endpoint-url", f"unix:{node.socket}", *args]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, **kwargs)
    assert done.returncode == check, (args, done.stdout, done.stderr)
    return done


def rot(node, data, at):
    """Flips a bit in the file that holds `data`."""
    for path in node.server.store.glob("objects/*/*"):
        whole = path.read_bytes()
        if whole.startswith(data):
            with open(path, "r+b") as file:
                file.seek(at)
                file.write(bytes([whole[at] ^ 0x20]))
            return
    raise AssertionError("no file has it")


def filled(node, tmp_path):
    """A bucket of our own and one in front of a folder, an object of three blocks in each, and a few small ones."""
    server, behind = node.server, tmp_path / "behind"
    behind.mkdir()
    (behind / "cached").write_bytes(content("cached", 3 * MIB + 5))
    assert server.request("PUT", "/own").status == 200
    for i in range(8):
        assert server.request("PUT", f"/own/small-{i}", body=content(f"small-{i}", 5000)).status == 200
    assert server.request("PUT", "/own/large", body=content("large", 3 * MIB)).status == 200
    assert node.ask("PUT", "/v1/buckets/front", {"remote": {"uri": f"file://{behind}"}}).status == 201
    assert server.request("GET", "/front/cached").body == content("cached", 3 * MIB + 5)
    wait_for(lambda: node.ask("GET", "/v1/status").json["store"]["paths"][0]["objects"] == 10)


def test_rot(node, tmp_path):
    server = node.server
    filled(node, tmp_path)
    assert json.loads(scrub(node, "--json").stdout)["paths"][0]["scrub"]["state"] == "waiting"
    done = json.loads(scrub(node, "--now", "--json").stdout)
    assert done["damaged"] == []
    last = done["paths"][0]["scrub"]["last"]
    assert last["objects"] == 10 and last["bytes"] > 6 * MIB and last["damaged"] == 0
    rot(node, content("small-3", 5000), 4321)
    rot(node, content("large", 3 * MIB), MIB + 17)
    rot(node, content("cached", 3 * MIB + 5), 3 * MIB + 2)
    done = scrub(node, "--now", check=7)
    assert "damaged: s3://own/small-3 on" in done.stdout and "damaged: s3://own/large on" in done.stdout
    assert "front" not in done.stdout and "damaged 3, unreadable 0, repaired 1" in done.stdout
    metrics = node.ask("GET", "/metrics").text
    assert f'leat_store_scrub_damaged_objects{{path="{server.store}"}} 2\n' in metrics
    for name in ("repaired", "mended"):  # the second is its old name
        assert f'leat_store_scrub_{name}_total{{path="{server.store}"}} 1\n' in metrics
    assert server.request("GET", "/own/large").status == 500
    assert server.request("GET", "/own/small-4").body == content("small-4", 5000)
    assert server.request("GET", "/front/cached").body == content("cached", 3 * MIB + 5)  # from the folder, again
    # An object stored again, or deleted, is not damaged any more; and findings are known after a restart.
    assert server.request("PUT", "/own/large", body=b"new").status == 200
    server.stop()
    server.start()
    done = json.loads(scrub(node, "--json", check=7).stdout)
    assert [(d["bucket"], d["key"], d["what"]) for d in done["damaged"]] == [("own", "small-3", "damaged")]
    assert done["paths"][0]["scrub"]["last"]["damaged"] == 3
    assert server.request("DELETE", "/own/small-3").status == 204
    assert "own" not in scrub(node).stdout.replace(str(server.store), "")


def test_rot_is_fetched_at_once(node, tmp_path):
    """A reader does not wait for the scrub: what the remote has is fetched with the request that finds the damage; of the rest it is said what to do."""
    server = node.server
    filled(node, tmp_path)
    small, cached = content("small-remote", 4000), content("cached", 3 * MIB + 5)
    (tmp_path / "behind" / "small").write_bytes(small)
    assert server.request("GET", "/front/small").body == small
    wait_for(lambda: node.ask("GET", "/v1/status").json["store"]["paths"][0]["objects"] == 11)
    server.stop()  # so that nothing is open and verified
    for data, at in ((cached, MIB + 9), (small, 17), (content("large", 3 * MIB), 5), (content("small-3", 5000), 3)):
        rot(node, data, at)
    server.start()
    assert server.request("GET", "/front/cached").body == cached
    assert server.request("GET", "/front/small", headers={"Range": "bytes=10-19"}).body == small[10:20]
    for key in ("large", "small-3"):
        for _ in range(2):
            answer = server.request("GET", f"/own/{key}")
            assert answer.status == 500 and "store it again, or delete it" in answer.xml.findtext("Message"), answer.body
    # A file that cannot be read: as if its sectors gave EIO.
    wait_for(lambda: node.ask("GET", "/v1/status").json["store"]["paths"][0]["objects"] == 11)
    server.stop()
    for data in (small, content("small-4", 5000)):
        path = next(p for p in server.store.glob("objects/*/*") if p.read_bytes().startswith(data))
        path.unlink()
        path.mkdir()
    server.start()
    assert server.request("GET", "/front/small").body == small
    answer = server.request("GET", "/own/small-4")
    assert answer.status == 503 and "Store the object again" in answer.xml.findtext("Message"), answer.body


def test_slow(tmp_path):
    """A pass at 1 MiB a second is seen on its way, killed, and continues from its last record, or from the start: each object is read."""
    top = tmp_path / "slow"
    top.mkdir()
    node = Node(top)
    options = node.server.options
    node.server.stop()
    node.server.options = (*options, "--scrub-rate", "1M", "--scrub", "off")
    node.server.start()
    filled(node, tmp_path)
    described = node.ask("GET", "/v1/openapi.json").json
    assert conforms(described, node.ask("GET", "/v1/scrub"), "/v1/scrub", "get").json["paths"][0]["scrub"]["state"] == "off"
    assert conforms(described, node.ask("POST", "/v1/scrub", {}), "/v1/scrub", "post").status == 202
    wait_for(lambda: node.ask("GET", "/v1/scrub").json["paths"][0]["scrub"]["pass"]["bytes"] > MIB)
    status = conforms(described, node.ask("GET", "/v1/status"), "/v1/status", "get").json["store"]["paths"][0]["scrub"]
    assert status["state"] == "running" and status["asked"] and status["pass"]["bytes"] < status["of_bytes"]
    node.server.stop()  # the end of a server is that of its scrub, also in the middle of an object
    node.server.options = (*options, "--scrub", "off")
    node.server.start()
    wait_for(lambda: node.ask("GET", "/v1/scrub").json["paths"][0]["scrub"]["last"])
    last = node.ask("GET", "/v1/scrub").json["paths"][0]["scrub"]["last"]
    assert last["objects"] == 10 and last["began"] == status["pass"]["began"]
    # Stopped, it ends, where it does not run by itself.
    node.server.stop()
    node.server.options = (*options, "--scrub-rate", "64K", "--scrub", "off")
    node.server.start()
    scrub(node, "--now", "--no-wait")
    assert node.ask("GET", "/v1/scrub").json["paths"][0]["scrub"]["state"] == "running"
    assert conforms(described, node.ask("DELETE", "/v1/scrub"), "/v1/scrub", "delete").json["paths"][0]["scrub"]["state"] == "off"
    assert node.ask("POST", "/v1/scrub", {"bucket": "own"}).status == 400
    node.server.stop()


def test_who_may(node):
    """By TCP with the token; without one, or with another, it is said what is missing."""
    line = [lib_host.LEAT, "scrub", "--now", "--endpoint-url", node.server.url]
    done = subprocess.run([*line, "--token", node.token_file, "--json"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["damaged"] == []
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert done.returncode == 4 and "a token is wanted" in done.stderr
    done = subprocess.run([*line[:-1], "unix:/nowhere.sock"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 3 and "no server answers there" in done.stderr


def test_options():
    wrong = [("--scrub", "soon", "scrub"), ("--scrub", "3m", "at least 1h"), ("--scrub", "0", "at least 1h"),
             ("--upload-age", "off", "upload_age"), ("--upload-age", "59m", "at least 1h")]
    for option, value, words in wrong:
        done = subprocess.run([lib_host.LEAT, "serve", option, value], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and words in done.stderr, (option, value, done.stderr)
