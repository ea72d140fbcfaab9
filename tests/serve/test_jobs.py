# SPDX-License-Identifier: Apache-2.0
"""Jobs of a server that is killed, restarted, or cannot write its journal: they continue, stay ended, and keep their ids."""

import shutil
import stat
import threading

import lib_host
import pytest
from lib_host import wait_for
from lib_serve import MIB, content
from test_admin import Node, conforms


@pytest.fixture
def node(tmp_path):
    if not lib_host.LEAT.exists():
        pytest.skip(f"{lib_host.LEAT} is not built")
    made = Node(tmp_path / "node")
    yield made
    if made.server.process.poll() is None:
        made.server.stop()


@pytest.fixture
def cold(node, far):
    """A bucket in front of 30 objects of another S3; the gate that its GETs wait for while it is set up so."""
    far.rules.clear()
    folder = far.top / "far" / "jobs"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for i in range(30):
        (folder / f"x{i:02}").write_bytes(content(f"x{i}", 1000))
    remote = {"uri": "s3://far/jobs", "endpoint": far.url, "access_key": "AK", "secret_key": "SK", "timeout_s": 60}
    assert node.ask("PUT", "/v1/buckets/cold", {"remote": remote}).status == 201
    yield "cold"
    far.rules.clear()


def start(node, **what):
    made = node.ask("POST", "/v1/jobs", {"bucket": "cold", **what})
    assert made.status == 202, made.text
    return made.json["id"]


def job(node, number):
    answer = node.ask("GET", f"/v1/jobs/{number}")
    assert answer.status == 200, answer.text
    return answer.json


def ended(node, number):
    wait_for(lambda: job(node, number)["state"] != "running")
    return job(node, number)


def test_killed(node, far, cold):
    """kill -9 in the middle of a prefetch: it continues, and brings what is missing. One that was aborted does not, whatever it had begun."""
    described = node.ask("GET", "/v1/openapi.json").json
    first = start(node, kind="prefetch", keys=["x00", "x01"])
    assert ended(node, first)["done"] == 2
    gate = threading.Event()
    far.fail(query="/jobs/x1", times=-1, wait=gate)
    going, aborted = start(node, kind="prefetch"), start(node, kind="check", keys=["x15"], update=True)
    assert (going, aborted) == (first + 1, first + 2)
    wait_for(lambda: job(node, going)["done"] + job(node, going)["skipped"] >= 10)
    now = conforms(described, node.ask("GET", f"/v1/jobs/{going}"), "/v1/jobs/{name}", "get").json
    assert now["state"] == "running" and now["durable"] and now["restarts"] == 0 and now["subject"] == "cold/"
    assert conforms(described, node.ask("DELETE", f"/v1/jobs/{aborted}"), "/v1/jobs/{name}", "delete").status == 202
    node.server.kill()
    far.rules.clear()
    gate.set()
    node.server.start()
    now = ended(node, going)
    assert now["state"] == "done" and now["restarts"] == 1 and now["failed"] == 0, now
    assert now["done"] + now["skipped"] == 30 and now["skipped"] >= 2, now
    assert job(node, aborted)["state"] == "cancelled"
    assert job(node, first)["state"] == "done" and job(node, first)["done"] == 2
    far.log.clear()
    assert node.server.request("GET", "/cold/x17").body == content("x17", 1000) and not far.log
    evict = start(node, kind="evict")
    assert evict > aborted and ended(node, evict)["done"] == 30
    node.server.stop()
    node.server.start()
    assert [j["id"] for j in node.ask("GET", "/v1/jobs").json["jobs"]] == [evict, aborted, going, first]
    journal = node.server.store / "jobs" / "journal"
    assert stat.S_IMODE(journal.stat().st_mode) == 0o600 and stat.S_IMODE(journal.parent.stat().st_mode) == 0o700


def test_lists(node, cold):
    described = node.ask("GET", "/v1/openapi.json").json
    a, b, c = start(node, kind="prefetch", prefix="x1"), start(node, kind="prefetch", prefix="x2"), start(node, kind="evict", prefix="x1")
    for number in (a, b, c):
        assert ended(node, number)["state"] == "done"

    def listed(query):
        answer = conforms(described, node.ask("GET", f"/v1/jobs?{query}"), "/v1/jobs", "get")
        return [j["id"] for j in answer.json["jobs"]] if answer.status == 200 else answer.json["error"]["message"]

    assert listed("") == [c, b, a]
    assert listed("kind=prefetch") == [b, a]
    assert listed("match=d/x1") == [c, a] and listed("match=D/x1") == [] and listed("match=") == [c, b, a]
    assert listed("kind=evict&match=cold/") == [c] and listed("match=fetch") == [b, a]
    # No text is more than text: an expression like this one would take all memory.
    assert listed("match=" + "(" * 4 + "a%7B9%7D" + "%2B" * 40) == []
    assert listed("running=false") == [c, b, a] and listed("running=true") == []
    for query, word in (("match=" + "x" * 101, "101 bytes"), ("kind=" + "x" * 40, "at most 15"), ("running=yes", "true or false"),
                        ("running=yes-and-more", "at most"), ("match=%zz", "encoded"), ("match=%00", "encoded")):
        assert word in listed(query), query


@pytest.mark.long
def test_scrub(node):
    """A scrub that was asked for is a job: one at a time, ended by an abort, and continued after a kill."""
    node.server.stop()
    node.server.options = (*node.server.options, "--scrub-rate", "1M", "--scrub", "off")
    node.server.start()
    assert node.server.request("PUT", "/own").status == 200
    for i in range(6):
        assert node.server.request("PUT", f"/own/{i}", body=content(f"{i}", MIB)).status == 200
    described = node.ask("GET", "/v1/openapi.json").json
    number = conforms(described, node.ask("POST", "/v1/scrub", {}), "/v1/scrub", "post").json["job"]
    assert job(node, number)["kind"] == "scrub"
    assert node.ask("POST", "/v1/scrub", {}).json["job"] == number
    wait_for(lambda: job(node, number)["bytes"] > MIB)
    began = node.ask("GET", "/v1/scrub").json["paths"][0]["scrub"]["pass"]["began"]
    node.server.kill()
    node.server.start()
    now = conforms(described, node.ask("GET", f"/v1/jobs/{number}"), "/v1/jobs/{name}", "get").json
    assert now["state"] == "running" and now["restarts"] == 1
    assert ended(node, number)["objects"] == 6
    done = node.ask("GET", "/v1/scrub").json
    assert done["job"] is None and done["paths"][0]["scrub"]["last"]["objects"] == 6 and done["paths"][0]["scrub"]["last"]["began"] >= began
    for again in range(number + 1, number + 40):  # an abort at once, before or after the job's thread has begun
        assert node.ask("POST", "/v1/scrub", {}).json["job"] == again
        assert node.ask("DELETE", f"/v1/jobs/{again}").status == 202
        assert ended(node, again)["state"] == "cancelled"
        assert node.ask("GET", "/v1/scrub").json["paths"][0]["scrub"]["state"] == "off"
    third = node.ask("POST", "/v1/scrub", {}).json["job"]
    assert node.ask("DELETE", "/v1/scrub").json["job"] is None
    assert ended(node, third)["state"] == "cancelled"


@pytest.mark.parametrize("lost", [False, True], ids=["aborted", "forgotten"])
def test_a_scrub_stays_away(node, lost):
    """A pass that was aborted does not come back after a kill, nor one whose job is not known any more."""
    node.server.stop()
    node.server.options = (*node.server.options, "--scrub-rate", "1M", "--scrub", "off")
    node.server.start()
    assert node.server.request("PUT", "/own").status == 200
    for i in range(6):
        assert node.server.request("PUT", f"/own/{i}", body=content(f"{i}", MIB)).status == 200
    number = node.ask("POST", "/v1/scrub", {}).json["job"]
    node.server.stop()  # the disk knows what was asked for
    if lost:
        (node.server.store / "jobs" / "journal").unlink()
        node.server.start()
    else:
        node.server.start()
        assert node.ask("GET", "/v1/scrub").json["paths"][0]["scrub"]["state"] == "running"
        assert node.ask("DELETE", f"/v1/jobs/{number}").status == 202
        node.server.kill()
        node.server.start()
    now = node.ask("GET", "/v1/scrub").json
    assert now["job"] is None and now["paths"][0]["scrub"]["state"] == "off" and not now["paths"][0]["scrub"]["asked"]


def test_two_paths(node, cold, tmp_path):
    """The journal lies in the first path that works. One that is found on another path moves there; while a path is away ids are new."""
    node.server.options = (*node.server.options, "--store", tmp_path / "second")
    node.server.stop()
    node.server.start()
    first = start(node, kind="prefetch", keys=["x00"])
    assert ended(node, first)["done"] == 1 and "leat_jobs_durable 1\n" in node.ask("GET", "/metrics").text
    node.server.stop()
    here, there = node.server.store / "jobs", tmp_path / "second" / "jobs"
    here.rename(there)
    node.server.start()
    assert job(node, first)["state"] == "done" and (here / "journal").exists() and not (there / "journal").exists()
    node.server.stop()
    away = tmp_path / "away"
    node.server.store.rename(away)
    node.server.store.mkdir()
    node.server.start()
    assert node.ask("GET", f"/v1/jobs/{first}").status == 404
    second = start(node, kind="evict", keys=["x09"])
    assert second > 10**12 and ended(node, second)["durable"] and (there / "journal").exists() and not here.exists()
    node.server.stop()
    shutil.rmtree(node.server.store)
    away.rename(node.server.store)
    node.server.start()
    assert [j["id"] for j in node.ask("GET", "/v1/jobs").json["jobs"]] == [second, first] and not (there / "journal").exists()


def test_bad_journal(node, cold):
    """Damage, another version, no folder: the service starts, and says what is lost; jobs run."""
    numbers = [start(node, kind="prefetch", keys=[f"x{i:02}"]) for i in range(3)]
    for number in numbers:
        ended(node, number)
    node.server.kill()
    folder = node.server.store / "jobs"
    whole = bytearray((folder / "journal").read_bytes())
    whole[-5] ^= 1
    (folder / "journal").write_bytes(whole)
    node.server.start()
    assert "is damaged" in node.server.log.read_text() and (folder / "journal.unread").read_bytes() == whole
    number = start(node, kind="prefetch", keys=["x05"])
    assert number > 10**12 and ended(node, number)["durable"]
    node.server.kill()
    (folder / "journal").write_bytes(b"leat-jobs 9\n" + b"x" * 100)
    node.server.start()
    assert "is none of this version" in node.server.log.read_text()
    assert node.ask("GET", "/v1/jobs").json["jobs"] == []
    node.server.kill()
    shutil.rmtree(folder)
    folder.write_bytes(b"no folder")
    node.server.start()
    assert "cannot be written" in node.server.log.read_text()
    number = start(node, kind="evict", keys=["x05"])
    assert ended(node, number)["state"] == "done" and not job(node, number)["durable"]
    assert "leat_jobs_durable 0\n" in node.ask("GET", "/metrics").text
    assert node.ask("GET", "/readyz").status == 200
