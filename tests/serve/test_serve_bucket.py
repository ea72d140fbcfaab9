# SPDX-License-Identifier: Apache-2.0
"""`leat bucket create`: what it makes, what it prints, what it says when the server, the remote or the user is wrong."""

import json
import subprocess

import lib_host
import pytest


@pytest.fixture
def bucket(server, tmp_path):
    """bucket("create", ...) as the server's administrator, or with other environment; answers the process."""
    def run(*line, check=0, text=None, **env):
        done = subprocess.run([lib_host.LEAT, "bucket", *map(str, line)], capture_output=True, text=True, timeout=60, input=text or "",
                              env={**server.env_for(tmp_path), **env})
        assert done.returncode == check, (line, done)
        return done

    return run


def test_plain(server, bucket, tmp_path):
    assert bucket("create", "plain-1").stdout == "plain-1: made\n"
    assert server.request("HEAD", "/plain-1").status == 200
    assert json.loads(bucket("create", "plain-2", "--json").stdout) == {"bucket": "plain-2", "remote": None}
    assert bucket("create", "plain-1").stdout == "plain-1: made\n", "one's own in us-east-1, as on AWS"
    again = bucket("create", "plain-1", "--remote", f"file://{tmp_path}", check=1)
    assert "there is a bucket plain-1 already" in again.stderr and again.stdout == ""


def test_in_front_of_a_folder(server, bucket, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "k").write_bytes(b"from there")
    done = bucket("create", "front-1", "--remote", f"file://{tmp_path}/data", "--mode", "back", "--check", "age", "--check-age", "7")
    assert done.stdout == f"front-1: made, in front of file://{tmp_path}/data\n" and done.stderr == ""
    assert server.request("GET", "/front-1/k").body == b"from there"
    done = bucket("create", "front-2", "--remote", f"file://{tmp_path}/data", "--check", "always", "--json")
    assert json.loads(done.stdout) == {"bucket": "front-2", "remote": {"uri": f"file://{tmp_path}/data", "check": "always"}}


def test_in_front_of_a_server_with_keys(server, bucket, far, tmp_path):
    """Keys come by a file or standard input, and are not shown."""
    there = far.top / "far" / "pre"
    there.mkdir()
    (there / "k").write_bytes(b"far away")
    keys = {"access_key": "AK", "secret_key": "SK", "uri": "s3://elsewhere"}
    (tmp_path / "keys.json").write_text(json.dumps(keys))
    for name, given in ("keys-1", tmp_path / "keys.json"), ("keys-2", "-"):
        done = bucket("create", name, "--remote", "s3://far/pre", "--remote-endpoint", far.url, "--remote-settings", given, "--remote-timeout", 5,
                      "--json", text=json.dumps(keys))
        assert json.loads(done.stdout)["remote"] == {"uri": "s3://far/pre", "endpoint": far.url, "timeout_s": 5, "access_key": "AK"}
        assert "SK" not in done.stdout + done.stderr
        assert server.request("GET", f"/{name}/k").body == b"far away"
    # Nor where they are not JSON: neither here nor by the server.
    for broken in '{"secret_key": "HIDDEN', '{"secret_key": HIDDEN}', '{"secret_key" "HIDDEN"}':
        (tmp_path / "keys.json").write_text(broken)
        done = bucket("create", "keys-3", "--remote", "s3://far/pre", "--remote-settings", tmp_path / "keys.json", check=1)
        assert "settings are one JSON object" in done.stderr and "HIDDEN" not in done.stderr, done.stderr
        reply = server.request("PUT", "/keys-3", headers={"x-leat-remote": broken})
        assert reply.status == 400 and b"a JSON object" in reply.body and b"HIDDEN" not in reply.body, reply.body


def test_a_remote_that_does_not_answer(server, bucket, tmp_path):
    done = bucket("create", "away-1", "--remote", "s3://b", "--remote-endpoint", "http://127.0.0.1:1", "--remote-anonymous", check=8)
    assert "away-1: made" in done.stdout
    assert "the bucket was created" in done.stderr and "127.0.0.1:1" in done.stderr, done.stderr
    bucket("create", "away-2", "--remote", "s3://b", "--remote-endpoint", "http://127.0.0.1:1", "--remote-anonymous", "--no-test")
    assert server.request("HEAD", "/away-2").status == 200


def test_what_is_wrong_is_said(server, bucket, far, tmp_path):
    for line, says in ((("--remote", "gs://x"), "s3://BUCKET/PREFIX or file:///FOLDER"),
                       (("--remote", "s3://b", "--mode", "both"), '"through" or "back"'),
                       (("--remote", "s3://b", "--check", "now"), '"never", "age" or "always"'),
                       (("--remote-settings", tmp_path / "nothing"), "settings are one JSON object"),
                       (("--remote-settings", "-"), "settings are one JSON object")):
        done = bucket("create", "wrong-1", *line, check=1)
        assert says in done.stderr and done.stdout == "", (line, done.stderr)
    assert server.request("HEAD", "/wrong-1").status == 404
    # Not an administrator's key; no key that is known.
    maker = {"AWS_ACCESS_KEY_ID": "LEATTESTMAKER0000001", "AWS_SECRET_ACCESS_KEY": "secret-of-the-maker"}
    assert "administrator" in bucket("create", "wrong-2", "--remote", "file:///etc", check=4, **maker).stderr
    assert server.request("HEAD", "/wrong-2").status == 404


def test_other_servers(bucket, far):
    """Amazon gets no request; another S3 server makes a plain bucket, which is no success."""
    done = bucket("create", "x-1", "--remote", "s3://b", check=1, AWS_ENDPOINT_URL="")
    assert "Leat server" in done.stderr and "http://127.0.0.1:9000" in done.stderr, done.stderr
    far.fail(method="PUT", status=200, body=b"")
    done = bucket("create", "x-2", "--remote", "s3://b", "--endpoint-url", far.url, check=1, AWS_ACCESS_KEY_ID="AK", AWS_SECRET_ACCESS_KEY="SK")
    assert "no Leat server" in done.stderr, done.stderr
