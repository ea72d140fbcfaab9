# SPDX-License-Identifier: Apache-2.0
"""Where credentials of S3 are found, each place against endpoints of this machine; botocore, with the same environment, is the oracle. What
counts is the key that a server sees: s3fault.py computes the signature again."""

import contextlib
import json
import os
import pathlib
import subprocess
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import s3fault

ROOT = pathlib.Path(__file__).resolve().parent.parent
LEAT = pathlib.Path(os.environ.get("LEAT_BUILD", ROOT / "build")) / "src" / "apps" / "leat"
pytestmark = pytest.mark.skipif(not LEAT.exists(), reason=f"{LEAT} is not built")
CLEAN = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
LATER = "2099-01-01T00:00:00Z"
KEYS = {"ENV": ("SeCrEt1", None), "ENVT": ("SeCrEt2", "tok/en+="), "FILE": ("SeCrEt3", None), "CONF": ("SeCrEt4", "ToKeN4"), "NAMED": ("SeCrEt5", None), "PROC": ("SeCrEt6", "ToKeN6"),
        "CONTAINER": ("SeCrEt7", "ToKeN7"), "INSTANCE": ("SeCrEt8", "ToKeN8"), "WEB": ("SeCrEt9", "ToKeN9")}

ORACLE = """
import botocore.session, json, sys
s = botocore.session.Session(profile=sys.argv[1] or None)
c = s.get_credentials()
c = c and c.get_frozen_credentials()
print(json.dumps([c.access_key, c.secret_key, c.token] if c else None))
"""


def document(name, session="Token"):
    secret, token = KEYS[name]
    return json.dumps({"Code": "Success", "Version": 1, "AccessKeyId": name, "SecretAccessKey": secret, session: token, "Expiration": LATER}).encode()


class _Endpoints(BaseHTTPRequestHandler):
    """The container's, the instance's (version 2) and STS, each by its path."""

    def log_message(self, *_):
        pass

    def say(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self):
        self.server.seen.append(("PUT", self.path))
        if self.path == "/latest/api/token" and self.headers["x-aws-ec2-metadata-token-ttl-seconds"]:
            return self.say(200, b"imds-token")
        self.say(404, b"")

    def do_GET(self):
        self.server.seen.append(("GET", self.path))
        if self.path == "/container" and self.headers.get("authorization") == "let-me":
            return self.say(200, document("CONTAINER"))
        if self.path.startswith("/latest/") and self.headers.get("x-aws-ec2-metadata-token") != "imds-token":
            return self.say(401, b"")
        if self.path == "/latest/meta-data/iam/security-credentials/":
            return self.say(200, b"my-role")
        if self.path == "/latest/meta-data/iam/security-credentials/my-role":
            return self.say(200, document("INSTANCE"))
        self.say(403, b"no")

    def do_POST(self):
        form = dict(urllib.parse.parse_qsl(self.rfile.read(int(self.headers["content-length"])).decode()))
        self.server.seen.append(("POST", self.path))
        if form.get("Action") == "AssumeRoleWithWebIdentity" and form["WebIdentityToken"] == "web.token" and form["RoleArn"] == "arn:aws:iam::1:role/x":
            secret, token = KEYS["WEB"]
            return self.say(200, f"""<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>WEB</AccessKeyId><SecretAccessKey>{secret}</SecretAccessKey>
<SessionToken>{token}</SessionToken><Expiration>{LATER}</Expiration></Credentials><AssumedRoleUser><Arn>a</Arn><AssumedRoleId>b</AssumedRoleId>
</AssumedRoleUser></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>""".encode())
        self.say(403, b"<ErrorResponse><Error><Code>AccessDenied</Code><Message>Not you</Message></Error></ErrorResponse>")


@pytest.fixture(scope="module")
def endpoints():
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Endpoints)
    server.seen = []
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


@pytest.fixture
def s3(tmp_path):
    (tmp_path / "top" / "data").mkdir(parents=True)
    (tmp_path / "top" / "data" / "x").write_bytes(b"x")
    with s3fault.S3Fault(tmp_path / "top") as server:
        server.keys = dict(KEYS)
        yield server


@pytest.fixture
def home(tmp_path):
    """An environment with files, and the two programs run in it."""
    script = tmp_path / "process"
    script.write_text(f"#!/bin/sh\n[ \"$1\" = 'an argument' ] && echo '{document('PROC', 'SessionToken').decode()}'\n")
    script.chmod(0o755)
    (tmp_path / "token").write_text("web.token\n")
    (tmp_path / "credentials").write_text("""
# a comment
[other]
aws_access_key_id = WRONG
aws_secret_access_key = WRONG

[named]
aws_access_key_id=NAMED
aws_secret_access_key = SeCrEt5
[half]
aws_access_key_id = NAMED
""")
    (tmp_path / "config").write_text(f"""[default]
region = eu-north-1
[profile conf]
aws_access_key_id = CONF
aws_secret_access_key = SeCrEt4
aws_session_token = ToKeN4
s3 =
    addressing_style = path
    max_concurrent_requests = 20
[profile proc]
credential_process = {script} "an argument"
[profile role]
role_arn = arn:aws:iam::1:role/x
source_profile = named
[profile sso]
sso_start_url = https://example.awsapps.com/start
sso_region = us-east-1
sso_account_id = 1
sso_role_name = x
[profile web]
role_arn = arn:aws:iam::1:role/x
web_identity_token_file = {tmp_path}/token
[profile broken]
credential_process = false
""")
    return {**CLEAN, "HOME": str(tmp_path), "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"), "AWS_CONFIG_FILE": str(tmp_path / "config"),
            "AWS_EC2_METADATA_DISABLED": "true", "LC_ALL": "C.UTF-8"}


def ls(s3, env, *options, check=0):
    done = subprocess.run([LEAT, "ls", "s3://data", "--endpoint-url", s3.url, "--region", "us-east-1", *options], env=env, capture_output=True, timeout=60)
    assert done.returncode == check, done.stderr
    assert b"SeCrEt" not in done.stderr and b"ToKeN" not in done.stderr
    return done.stderr.decode()


def used(s3):
    return s3.log[-1][3].split("Credential=")[1].split("/")[0] if s3.log else None


def oracle(env, profile=""):
    done = subprocess.run(["/usr/bin/python3", "-c", ORACLE, profile], env=env, capture_output=True, timeout=60)
    return json.loads(done.stdout) if done.returncode == 0 else None


PLACES = {
    "environment": (dict(AWS_ACCESS_KEY_ID="ENV", AWS_SECRET_ACCESS_KEY="SeCrEt1"), None, "ENV"),
    "environment with a token": (dict(AWS_ACCESS_KEY_ID="ENVT", AWS_SECRET_ACCESS_KEY="SeCrEt2", AWS_SESSION_TOKEN="tok/en+="), None, "ENVT"),
    "environment before AWS_PROFILE": (dict(AWS_ACCESS_KEY_ID="ENV", AWS_SECRET_ACCESS_KEY="SeCrEt1", AWS_PROFILE="named"), None, "ENV"),
    "--profile before the environment": (dict(AWS_ACCESS_KEY_ID="ENV", AWS_SECRET_ACCESS_KEY="SeCrEt1"), "named", "NAMED"),
    "AWS_PROFILE": (dict(AWS_PROFILE="named"), None, "NAMED"),
    "config file": (dict(AWS_PROFILE="conf"), None, "CONF"),
    "credential_process": ({}, "proc", "PROC"),
    "container": (dict(AWS_CONTAINER_CREDENTIALS_FULL_URI="{url}/container", AWS_CONTAINER_AUTHORIZATION_TOKEN="let-me"), None, "CONTAINER"),
    "instance": (dict(AWS_EC2_METADATA_DISABLED="false", AWS_EC2_METADATA_SERVICE_ENDPOINT="{url}"), None, "INSTANCE"),
    "container before instance": (dict(AWS_CONTAINER_CREDENTIALS_FULL_URI="{url}/container", AWS_CONTAINER_AUTHORIZATION_TOKEN="let-me",
                                       AWS_EC2_METADATA_DISABLED="false", AWS_EC2_METADATA_SERVICE_ENDPOINT="{url}"), None, "CONTAINER"),
    "web identity": (dict(AWS_WEB_IDENTITY_TOKEN_FILE="{home}/token", AWS_ROLE_ARN="arn:aws:iam::1:role/x", AWS_ENDPOINT_URL_STS="{url}/"), None, "WEB"),
    "web identity before files": (dict(AWS_WEB_IDENTITY_TOKEN_FILE="{home}/token", AWS_ROLE_ARN="arn:aws:iam::1:role/x", AWS_ENDPOINT_URL_STS="{url}",
                                       AWS_PROFILE="named"), None, "WEB"),
    "web identity of a profile": (dict(AWS_ENDPOINT_URL_STS="{url}"), "web", "WEB"),
}


@pytest.mark.long
@pytest.mark.parametrize("place", PLACES)
def test_places(s3, home, endpoints, place):
    extra, profile, expected = PLACES[place]
    env = {**home, **{k: v.format(url=endpoints.url, home=home["HOME"]) for k, v in extra.items()}}
    ls(s3, env, *(["--profile", profile] if profile else []))
    assert used(s3) == expected
    said = oracle({**env, "AWS_DEFAULT_REGION": "us-east-1"}, profile or "")
    if said is not None:  # there is none, or an old one, which knows no AWS_ENDPOINT_URL_STS
        assert said == [expected, *KEYS[expected]]


def test_what_leat_does_not_do_is_said(s3, home):
    err = ls(s3, home, "--profile", "role", check=1)
    assert "role arn:aws:iam::1:role/x" in err and "export-credentials" in err
    err = ls(s3, home, "--profile", "sso", check=1)
    assert "aws sso login" in err
    assert "ended with status 1" in ls(s3, home, "--profile", "broken", check=4)
    assert "only one of them" in ls(s3, home, "--profile", "half", check=4)
    assert "only one of them" in ls(s3, {**home, "AWS_ACCESS_KEY_ID": "ENV"}, check=4)
    assert "nowhere" in ls(s3, home, "--profile", "nowhere", check=3)
    assert "no credentials for S3" in ls(s3, home, check=4)
    assert not s3.log


def test_refusals_of_endpoints(s3, home, endpoints):
    env = {**home, "AWS_CONTAINER_CREDENTIALS_FULL_URI": endpoints.url + "/container", "AWS_CONTAINER_AUTHORIZATION_TOKEN": "wrong"}
    assert "answered 403" in ls(s3, env, check=4)
    env["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = "http://example.com/container"  # in plain text to a stranger
    assert "AWS_CONTAINER_CREDENTIALS_FULL_URI" in ls(s3, env, check=4)
    env["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = "http://127.0.0.1.example.com/container"
    assert "https, or an address of this machine" in ls(s3, env, check=4)
    env = {**home, "AWS_WEB_IDENTITY_TOKEN_FILE": home["HOME"] + "/token", "AWS_ROLE_ARN": "arn:other", "AWS_ENDPOINT_URL_STS": endpoints.url}
    assert "AccessDenied Not you" in ls(s3, env, check=4)
    env["AWS_WEB_IDENTITY_TOKEN_FILE"] = "/nonexistent"
    assert "/nonexistent" in ls(s3, env, check=4)
    assert not any("web.token" in path for _, path in endpoints.seen)


class _Stalls(BaseHTTPRequestHandler):
    """An endpoint that means ill: what it does is its path's."""
    def log_message(self, *_):
        pass

    def do_GET(self):
        with contextlib.suppress(OSError):
            if "silent" in self.path:
                self.server.over.wait(60)
            elif "moved" in self.path:
                self.send_response(302)
                self.send_header("Location", self.server.elsewhere)
                self.send_header("Content-Length", "0")
                self.end_headers()
            else:
                self.send_response(200)
                self.end_headers()
                while not self.server.over.wait(0.01 if "slow" in self.path else 0):
                    self.wfile.write(b"{" if "slow" in self.path else b"{" * 65536)


@pytest.mark.parametrize("how", ["silent", "slow", "endless", "moved"])
def test_an_endpoint_that_stalls(s3, home, endpoints, how):
    """An error with its address; the redirection is not followed, since a secret would go there."""
    seen = len(endpoints.seen)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Stalls) as server:
        server.over, server.daemon_threads, server.elsewhere = threading.Event(), True, endpoints.url + "/container"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        uri = f"http://127.0.0.1:{server.server_port}/{how}"
        err = ls(s3, {**home, "AWS_CONTAINER_CREDENTIALS_FULL_URI": uri, "AWS_CONTAINER_AUTHORIZATION_TOKEN": "secret-token"}, check=4 if how == "moved" else 6)
        server.over.set()
        server.shutdown()
    assert ("container's credentials endpoint answered 302" if how == "moved" else f"127.0.0.1:{server.server_port}") in err and "secret-token" not in err and not s3.log and len(endpoints.seen) == seen


def test_anonymous(s3, home):
    s3.anonymous = True
    ls(s3, home, "--no-sign-request")
    assert s3.log[-1][3] is None
    ls(s3, {**home, "LEAT_S3_ANONYMOUS": "1"})
    assert s3.log[-1][3] is None
