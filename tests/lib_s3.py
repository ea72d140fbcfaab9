# SPDX-License-Identifier: Apache-2.0
"""Real S3 servers for tests: OpenStack Swift with its S3 service, nginx for plain HTTP. Each in a folder of its own, on ports of its own,
ended with the test session.

Swift checks signatures, conditions, ranges and multipart uploads. Its setup here: one replica, one device, tempauth, no other daemons
than the four servers and memcached; rings are made by its own library. Access key `test:tester`, secret `testing`.
"""

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys

import lib_host

PYTHON = "/usr/bin/python3"
ACCESS, SECRET = "test:tester", "testing"


def wait_for_port(port, process, log, seconds=30):
    def listens():
        if process.poll() is not None:
            raise RuntimeError(f"ended with {process.returncode}: {pathlib.Path(log).read_text()[-2000:]}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.5):
            return True

    lib_host.wait_for(listens, seconds, lambda: f"no process listens on {port} after {seconds} s: {pathlib.Path(log).read_text()[-2000:]}")


class Server:
    """Processes that end together."""

    def __init__(self):
        self.processes = []

    def start(self, args, port, log, **options):
        with open(log, "ab") as out:
            process = subprocess.Popen(args, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True, **options)
        self.processes.append(process)
        wait_for_port(port, process, log)
        return process

    def stop(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes = []


# --- Swift --------------------------------------------------------------------------------------------------------------------

def swift_missing():
    """What is not there for a Swift of ours, or None."""
    for name in ("swift-proxy-server", "swift-account-server", "swift-container-server", "swift-object-server", "memcached"):
        if not shutil.which(name):
            return f"{name} is not installed (tools/deps s3)"
    return None


_PROXY = """[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
swift_dir = {top}
user = {user}
workers = 0
max_clients = 1024
log_level = WARNING
log_address = {top}/log

[pipeline:main]
pipeline = catch_errors proxy-logging cache listing_formats s3api tempauth copy slo dlo proxy-logging proxy-server

[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true

[filter:s3api]
use = egg:swift#s3api
s3_acl = false
location = {region}
max_upload_part_num = 10000
allow_multipart_uploads = true
force_swift_request_proxy_log = false

[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = testing .admin

[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:{memcached}

[filter:catch_errors]
use = egg:swift#catch_errors
[filter:proxy-logging]
use = egg:swift#proxy_logging
[filter:listing_formats]
use = egg:swift#listing_formats
[filter:copy]
use = egg:swift#copy
[filter:slo]
use = egg:swift#slo
[filter:dlo]
use = egg:swift#dlo
"""

_STORAGE = """[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
swift_dir = {top}
devices = {top}/devices
mount_check = false
fallocate_reserve = 0
disable_fallocate = true
user = {user}
workers = 0
log_level = WARNING
log_address = {top}/log

[pipeline:main]
pipeline = {kind}-server

[app:{kind}-server]
use = egg:swift#{kind}
allow_versions = true
"""

_RINGS = """
import sys
from swift.common.ring import RingBuilder
top, *ports = sys.argv[1:]
for kind, port in zip(("account", "container", "object"), ports):
    b = RingBuilder(4, 1, 0)
    b.add_dev({"region": 1, "zone": 1, "ip": "127.0.0.1", "port": int(port), "device": "d1", "weight": 1,
               "replication_ip": "127.0.0.1", "replication_port": int(port)})
    b.rebalance(seed=1)
    b.get_ring().save(f"{top}/{kind}.ring.gz")
"""


class Swift(Server):
    """`url`, `access`, `secret`, `region`; `env()` for programs that read AWS's variables."""

    region = "us-east-1"
    access, secret = ACCESS, SECRET

    def __init__(self, top):
        super().__init__()
        top = pathlib.Path(top)
        (top / "devices/d1").mkdir(parents=True)
        user = __import__("pwd").getpwuid(os.geteuid()).pw_name
        (top / "swift.conf").write_text("[swift-hash]\nswift_hash_path_suffix = leat\nswift_hash_path_prefix = leat\n")
        ports = {kind: lib_host.free_port() for kind in ("account", "container", "object", "proxy", "memcached")}
        subprocess.run([PYTHON, "-W", "ignore", "-c", _RINGS, top, *(str(ports[k]) for k in ("account", "container", "object"))],
                       check=True, stdout=subprocess.DEVNULL)
        env = {**os.environ, "PYTHONWARNINGS": "ignore", "SWIFT_DIR": str(top)}
        log = top / "log.txt"
        self.url = f"http://127.0.0.1:{ports['proxy']}"
        try:
            self.start(["memcached", "-l", "127.0.0.1", "-p", str(ports["memcached"]), "-U", "0", "-u", user], ports["memcached"], log)
            for kind in ("account", "container", "object"):
                conf = top / f"{kind}.conf"
                conf.write_text(_STORAGE.format(kind=kind, port=ports[kind], top=top, user=user))
                self.start([PYTHON, shutil.which(f"swift-{kind}-server"), conf], ports[kind], log, env=env)
            (top / "proxy.conf").write_text(_PROXY.format(port=ports["proxy"], memcached=ports["memcached"], top=top, user=user,
                                                          region=self.region))
            self.start([PYTHON, shutil.which("swift-proxy-server"), top / "proxy.conf"], ports["proxy"], log, env=env)
        except BaseException:
            self.stop()
            raise

    def env(self):
        return {"AWS_ACCESS_KEY_ID": self.access, "AWS_SECRET_ACCESS_KEY": self.secret, "AWS_ENDPOINT_URL": self.url,
                "AWS_REGION": self.region, "AWS_EC2_METADATA_DISABLED": "true"}


# --- versitygw ----------------------------------------------------------------------------------------------------------------

def versitygw():
    """Its program: LEAT_VERSITYGW, or in PATH; None."""
    return os.environ.get("LEAT_VERSITYGW") or shutil.which("versitygw")


def versitygw_missing():
    """Why there is none, or None. `go install github.com/versity/versitygw/cmd/versitygw@latest` makes one."""
    return None if versitygw() else "versitygw is not installed (go install github.com/versity/versitygw/cmd/versitygw@latest; LEAT_VERSITYGW or PATH)"


class Versity(Server):
    """Versity's gateway on a folder: buckets are folders of it. `keep_alive`: else it closes each connection behind its answer."""

    region, access, secret = "us-west-7", "versity", "versity-secret"

    def __init__(self, top, keep_alive=True):
        super().__init__()
        top = pathlib.Path(top)
        self.root, meta = top / "root", top / "meta"
        for folder in (self.root, meta):
            folder.mkdir(parents=True)
        port = lib_host.free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.start([versitygw(), "--port", f"127.0.0.1:{port}", "--access", self.access, "--secret", self.secret, "--region", self.region,
                    "--quiet", *(["--keep-alive"] if keep_alive else []), "posix", "--sidecar", str(meta), str(self.root)], port, top / "log.txt")

    env = Swift.env


# --- s3rver -------------------------------------------------------------------------------------------------------------------

def s3rver():
    """Its program: LEAT_S3RVER, or in PATH; None."""
    return os.environ.get("LEAT_S3RVER") or shutil.which("s3rver")


def s3rver_missing():
    """Why there is none, or None."""
    return None if s3rver() else "s3rver is not installed (npm install s3rver; LEAT_S3RVER or PATH)"


class S3rver(Server):
    """A server in Node.js that people try programs against. It looks at few signatures and at no conditions: for smoke, not for proof."""

    region, access, secret = "us-east-1", "S3RVER", "S3RVER"

    def __init__(self, top, *buckets):
        super().__init__()
        top = pathlib.Path(top)
        (top / "root").mkdir(parents=True)
        port = lib_host.free_port()
        self.url = f"http://127.0.0.1:{port}"
        made = [word for bucket in buckets for word in ("--configure-bucket", bucket)]
        self.start([s3rver(), "-d", str(top / "root"), "-a", "127.0.0.1", "-p", str(port), "--silent", "--no-vhost-buckets", *made], port, top / "log.txt")

    env = Swift.env


# --- reading ------------------------------------------------------------------------------------------------------------------

def reads_exactly(leat, uri, data, **how):
    """One shuffled epoch of the set at `uri` has each row of `data` once, and as it is."""
    with leat.open(uri, **how) as ws:
        seen = []
        for batch in leat.batches(ws, 50, seed=1):
            assert (data[batch.ids] == batch.data).all()
            seen += batch.ids.tolist()
            batch.release()
    assert sorted(seen) == list(range(len(data)))


# --- nginx --------------------------------------------------------------------------------------------------------------------

_NGINX = """{user} daemon off; worker_processes 1; pid {top}/pid; error_log {top}/log.txt;
events {{ worker_connections 1024; }}
http {{
    access_log off; sendfile on; keepalive_requests 1000000; default_type application/octet-stream;
    client_body_temp_path {top}/t1; proxy_temp_path {top}/t2; fastcgi_temp_path {top}/t3; uwsgi_temp_path {top}/t4; scgi_temp_path {top}/t5;
    server {{ listen 127.0.0.1:{port}{tls}; root {root}; {more} }}
}}
"""


class Nginx(Server):
    """Files of a folder by HTTP, with ranges and ETags; with `certificate` (certificate, key) by HTTPS."""

    def __init__(self, top, root, certificate=None):
        super().__init__()
        top = pathlib.Path(top)
        top.mkdir(parents=True, exist_ok=True)
        port = lib_host.free_port()
        more = "" if certificate is None else f"ssl_certificate {certificate[0]}; ssl_certificate_key {certificate[1]};"
        (top / "nginx.conf").write_text(_NGINX.format(user="user root;" if os.geteuid() == 0 else "", top=top, root=root, port=port, tls="" if certificate is None else " ssl", more=more))
        self.url = f"{'http' if certificate is None else 'https'}://127.0.0.1:{port}"
        self.start([shutil.which("nginx") or "/usr/sbin/nginx", "-c", top / "nginx.conf", "-p", top], port, top / "out.txt")


if __name__ == "__main__":  # a Swift to try things with: tests/lib_s3.py FOLDER
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    swift = Swift(sys.argv[1])
    print("\n".join(f"export {name}={value}" for name, value in swift.env().items()), flush=True)
    try:
        signal.pause()
    finally:
        swift.stop()
