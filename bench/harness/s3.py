# SPDX-License-Identifier: Apache-2.0
"""Suite `s3`: Leat's client for object storage beside a bare receive loop, libcurl, boto3, s3fs and rclone mount, all against one nginx.

s3.4k.rate, .cpu         small objects, each of them asked for by itself: objects a second; CPU
s3.SIZE.cpu, .rate       ranges of 128 KiB, 1 MiB, 8 MiB of one large object, in random order, 16 connections
s3.tls.cpu, .rate        1 MiB ranges over TLS; the limit is the bare loop with SSL_read
s3.first                 one small object at a time on an open connection: from the question to its last byte
s3.train.rate, .cpu      a cold .npy in a bucket, opened by its address and read through a view in batches, by leatd and a client
s3.scan.rate, .first     the small objects read once, in order, from Python: leat.scan beside leat.open of the same prefix; until the first of them is there
s3.stream.block, .full   a cold epoch over tar shards of 27 MB in a bucket 30 ms away (bench/http_far, 2 Gbit/s), samples of 110 KB, by a leatd whose pool is
                         36 % of the set: in blocks, and in full order; the rivals fetch whole shards, one after another, over two connections
s3.blocks.RTT.*          only when asked for: fixed sizes of block beside the one that is chosen, against a server 10 and 30 ms away (bench/http_far):
                         .first  a read of 1 MiB on connections that are new; .1m, .4m, .16m, .64m  one such read at a time; .many  16 reads of 8 MiB
s3.list.rate             keys a second out of 1,000 to a page; the limit is taking the same pages apart without a server

CPU is the client's alone (user and system, all its threads; a mount's daemon too). nginx has one worker, its files in memory, and takes
any signature; what it costs stands in `server_cpu` of each row.
"""
import contextlib
import io
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time

from . import supervisor
from .rows import in_turns, median, row
from .suite import Base
from .workers import Daemon, Failed, Worker, children, cpu_seconds, leatd

KIB, MIB = 1024, 1024 * 1024
SIZES = {"4k": 4 * KIB, "128k": 128 * KIB, "1m": MIB, "8m": 8 * MIB}
OBJECTS, LARGE = 4096, 256 * MIB
CONNECTIONS, DEPTH = 16, 8  # so many small requests on each
PAGES, PAGE = 8, 1000
TRAIN = (4096, 150528)  # samples, bytes of one
STREAM = {"shards": 16, "samples": 245, "bytes": 110_000, "pool": 0.36, "rtt_ms": 30, "mbit": 2000, "connections": 2}
KEYS = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_EC2_METADATA_DISABLED": "true"}

NGINX = """daemon off; worker_processes 1; pid {top}/pid; error_log {top}/nginx.log crit;
events {{ worker_connections 1024; }}
http {{
  access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000000; keepalive_timeout 600s; default_type application/octet-stream;
  open_file_cache max=8192 inactive=10m; ssl_session_cache shared:s:1m; ssl_certificate {top}/cert.pem; ssl_certificate_key {top}/key.pem;
  client_body_temp_path {top}/t1; proxy_temp_path {top}/t2; fastcgi_temp_path {top}/t3; uwsgi_temp_path {top}/t4; scgi_temp_path {top}/t5;
  server {{
    listen 127.0.0.1:{port}; listen 127.0.0.1:{tls_port} ssl; root {top}/root;
    location ~ ^/keys/?$ {{
      set $page 0;
      if ($args ~ "continuation-token=([0-9]+)") {{ set $page $1; }}
      rewrite ^ /pages/$page.xml last;
    }}
    location ~ ^/bench/?$ {{
      set $page top;
      if ($args ~ "prefix=o") {{ set $page o; }}
      if ($args ~ "prefix=shards") {{ set $page shards; }}
      rewrite ^ /pages/$page.xml last;
    }}
    location = /bench/o/ {{ default_type application/x-directory; return 200 ""; }}
  }}
}}
"""


def _list_page(keys, prefix="", folders=(), following=None):
    """An answer of ListObjectsV2. keys: (key, bytes), or (key, bytes, ETag)."""
    parts = ['<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>bench</Name>'
             f"<Prefix>{prefix}</Prefix><KeyCount>{len(keys)}</KeyCount><MaxKeys>1000</MaxKeys><EncodingType>url</EncodingType>"
             f"<IsTruncated>{'true' if following else 'false'}</IsTruncated>"]
    if following:
        parts.append(f"<NextContinuationToken>{following}</NextContinuationToken>")
    for i, (key, size, *etag) in enumerate(keys):
        parts.append(f"<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;{etag[0] if etag else f'{i:032x}'}&quot;</ETag>"
                     f"<Size>{size}</Size><StorageClass>STANDARD</StorageClass></Contents>")
    parts += [f"<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>" for folder in folders]
    return "".join(parts) + "</ListBucketResult>"


def _free_ports(n):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]


def _accepts(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.5):
        return True
    return False


class Server:
    """nginx with the data in memory."""

    def __init__(self, args):
        program = shutil.which("nginx") or "/usr/sbin/nginx"
        if not os.path.exists(program):
            raise Failed("nginx is not installed (tools/deps bench-s3)")
        self.top = tempfile.mkdtemp(prefix=supervisor.mark(), dir="/dev/shm")
        os.chmod(self.top, 0o755)
        try:
            self._fill(4 if args.quick else 1)
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj",
                            "/CN=bench", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{self.top}/key.pem", "-out", self.ca],
                           check=True, capture_output=True)
            self.port, self.tls_port = _free_ports(2)
            conf = f"{self.top}/nginx.conf"
            with open(conf, "w") as f:
                f.write(NGINX.format(top=self.top, port=self.port, tls_port=self.tls_port))
            self.daemon = Daemon([program, "-c", conf, "-p", self.top], self._is_up, f"{self.top}/out.log")
        except BaseException:
            shutil.rmtree(self.top, ignore_errors=True)
            raise

    @property
    def ca(self):
        return f"{self.top}/cert.pem"

    @property
    def root(self):
        return f"{self.top}/root"

    def _fill(self, scale):
        self.large, self.objects = LARGE // scale, OBJECTS // scale
        os.makedirs(f"{self.root}/bench/o")
        os.makedirs(f"{self.root}/pages")
        with open(f"{self.root}/bench/data", "wb") as f:
            for _ in range(self.large // (16 * MIB)):
                f.write(os.urandom(16 * MIB))
        for i in range(self.objects):
            with open(f"{self.root}/bench/o/{i:06d}", "wb") as f:
                f.write(os.urandom(4 * KIB))
        times = [int(os.stat(f"{self.root}/bench/o/{i:06d}").st_mtime) for i in range(self.objects)]
        small = [(f"o/{i:06d}", 4 * KIB, f"{t:x}-{4 * KIB:x}") for i, t in enumerate(times)]  # ETags as nginx makes them
        pages = {"top": _list_page([("data", self.large)], folders=["o/"]), "o": _list_page(small, prefix="o/")}
        for i in range(PAGES):
            keys = [(f"train/shard-{i:05d}/sample-{k:08d}.jpg", 110_000 + k) for k in range(PAGE)]
            pages[str(i)] = _list_page(keys, following=i + 1 if i + 1 < PAGES else None)
        for name, text in pages.items():
            with open(f"{self.root}/pages/{name}.xml", "w") as f:
                f.write(text)

    def make_shards(self, shards, samples, size):
        """Tar shards below bench/shards, once. Their paths, as the server has them."""
        paths = [f"/bench/shards/{k:04d}.tar" for k in range(shards)]
        if not os.path.exists(f"{self.root}/bench/shards"):
            os.makedirs(f"{self.root}/bench/shards")
            for k, path in enumerate(paths):
                with tarfile.open(self.root + path, "w", format=tarfile.USTAR_FORMAT) as tar:
                    for i in range(samples):
                        info = tarfile.TarInfo(f"{k * samples + i:08d}.jpg")
                        info.size = size
                        tar.addfile(info, io.BytesIO(os.urandom(size)))
            stats = [os.stat(self.root + path) for path in paths]
            keys = [(path[len("/bench/"):], st.st_size, f"{int(st.st_mtime):x}-{st.st_size:x}") for path, st in zip(paths, stats)]
            with open(f"{self.root}/pages/shards.xml", "w") as f:
                f.write(_list_page(keys, prefix="shards/"))
        return paths

    def _is_up(self):
        return _accepts(self.port)

    def cpu(self):
        return sum(map(cpu_seconds, [self.daemon.pid] + children(self.daemon.pid)))

    def close(self):
        self.daemon.close()
        shutil.rmtree(self.top, ignore_errors=True)


class Mount:
    """A bucket as a folder, by s3fs or rclone; `why` says why it is not there."""

    def __init__(self, name, server, folder):
        self.name, self.folder, self.why, self.proc = name, os.path.join(folder, name), None, None
        if not shutil.which(name):
            self.why = "not installed (tools/deps bench-s3)"
        elif not os.access("/dev/fuse", os.W_OK):
            self.why = "/dev/fuse cannot be used here"
        if self.why:
            return
        os.makedirs(self.folder)
        url = f"http://127.0.0.1:{server.port}"
        if name == "s3fs":
            argv = ["s3fs", "bench", self.folder, "-f", "-o", f"url={url},use_path_request_style,sigv4,parallel_count={CONNECTIONS},ro"]
            env = {"AWSACCESSKEYID": "bench", "AWSSECRETACCESSKEY": "secret"}
        else:
            argv = ["rclone", "mount", f":s3,provider=Other,env_auth=true,endpoint='{url}':bench", self.folder, "--read-only", "--no-modtime",
                    "--dir-cache-time", "1h", "--vfs-cache-mode", "off", "--config", "/dev/null"]
            env = KEYS
        self.log = tempfile.TemporaryFile(mode="w+")
        self.proc = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env={**os.environ, **env})
        deadline = time.monotonic() + 15
        while not os.path.ismount(self.folder):
            if self.proc.poll() is not None or time.monotonic() > deadline:
                self.log.seek(0)
                self.why = f"does not mount: {self.log.read()[-300:].strip()}"
                self.close()
                return
            time.sleep(0.05)

    def close(self):
        if not self.proc:
            return
        subprocess.run(["fusermount3", "-u", "-q", self.folder], capture_output=True)
        try:
            self.proc.wait(5)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()
            subprocess.run(["umount", "-l", self.folder], capture_output=True)
        self.proc = None


class Suite(Base):
    def __init__(self, args, emit, server, stack):
        super().__init__(args, emit)
        self.server, self.stack = server, stack
        self.seconds = 0.3 if args.quick else 1
        self.mounts = {}

    def program(self, name):
        path = os.path.join(self.args.build, "bench", name)
        return path if os.path.exists(path) else None

    def mount(self, name):
        if name not in self.mounts:
            self.mounts[name] = Mount(name, self.server, self.args.folder)
            self.stack.callback(self.mounts[name].close)
        return self.mounts[name]

    def clients(self, stack, size, connections, depth, tls=False, python=True):
        """{name: Worker} of those that are there; each has read everything once and compared it."""
        server = self.server
        common = ["--host", "127.0.0.1", "--port", server.tls_port if tls else server.port, "--bucket", "bench", "--root", server.root, "--bytes",
                  size, "--connections", connections, "--depth", depth,
                  *(["--objects", server.objects] if size < 64 * KIB else ["--of", server.large]), *(["--ca", server.ca] if tls else [])]
        curl = self.program("s3_curl")
        argvs = {"leat": [self.program("s3_leat")], "limit": [self.program("http_bare")]}
        if curl:
            argvs.update({"libcurl": [curl, "--sign"], "libcurl, unsigned": [curl]})
        else:
            self.skip("libcurl", "its headers are not installed (tools/deps bench-s3, then meson setup --reconfigure)")
        got = {}

        def start(name, argv, servers=(), env=None):
            worker = Worker([*argv, *common], servers, {**KEYS, **(env or {})})
            stack.callback(worker.close)
            worker.send("verify")
            if worker._read()["verified"] == 0:
                raise Failed(f"{name} read nothing")
            got[name] = worker

        for name, argv in argvs.items():
            start(name, argv)
        if not python:
            return got
        try:
            start("boto3", [sys.executable, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "s3_boto.py")])
        except Failed as why:
            self.skip("boto3", str(why).strip().splitlines()[-1][:200])
        for name in () if tls else ("s3fs", "rclone"):
            mount = self.mount(name)
            if mount.why:
                self.skip(name, mount.why)
                continue
            try:
                start("rclone mount" if name == "rclone" else name, [self.program("s3_files")], [mount.proc.pid], {"BENCH_MOUNTED": mount.folder})
            except Failed as why:
                self.skip(name, str(why).strip().splitlines()[-1][:200])
        return got

    def measure(self, worker):
        def once():
            before, served = sum(map(cpu_seconds, worker.pids())), self.server.cpu()
            worker.send(f"run {self.seconds}")
            got = worker._read()
            cpu, served = sum(map(cpu_seconds, worker.pids())) - before, self.server.cpu() - served
            gb = got["bytes"] / 1e9
            return {"rate": got["bytes"] / got["ns"], "objects": got["samples"] / got["ns"] * 1e9, "cpu": cpu / gb, "server_cpu": served / gb,
                    "p50": got["p50_us"]}
        return once

    def turns(self, workers):
        return in_turns({name: self.measure(worker) for name, worker in workers.items()}, self.args.repeats)

    def row(self, metric, unit, got, figure, limit_name):
        self.put(row(metric, unit, got["leat"][figure], got["limit"][figure],
                     {name: v[figure] for name, v in got.items() if name not in ("leat", "limit")}, limit_name,
                     server_cpu={name: median(v["server_cpu"]) for name, v in got.items()}))

    def ranges(self):
        for name, size in SIZES.items():
            if not self.wanted(f"s3.{name}.rate", f"s3.{name}.cpu"):
                continue
            with contextlib.ExitStack() as stack:
                got = self.turns(self.clients(stack, size, CONNECTIONS, DEPTH if name == "4k" else 1))
            small = name == "4k"
            self.row(f"s3.{name}.rate", "objects/s" if small else "GB/s", got, "objects" if small else "rate", "bare receive loop")
            self.row(f"s3.{name}.cpu", "CPU-s/GB", got, "cpu", "bare receive loop")

    def tls(self):
        if not self.wanted("s3.tls.rate", "s3.tls.cpu"):
            return
        with contextlib.ExitStack() as stack:
            got = self.turns(self.clients(stack, MIB, CONNECTIONS, 1, tls=True))
        self.row("s3.tls.rate", "GB/s", got, "rate", "bare receive loop over SSL_read")
        self.row("s3.tls.cpu", "CPU-s/GB", got, "cpu", "bare receive loop over SSL_read")

    def first(self):
        if not self.wanted("s3.first"):
            return
        with contextlib.ExitStack() as stack:
            got = self.turns(self.clients(stack, 4 * KIB, 1, 1))
        self.row("s3.first", "us", got, "p50", "bare receive loop")

    def train(self):
        if not self.wanted("s3.train.rate", "s3.train.cpu"):
            return
        samples, size = TRAIN[0] // (4 if self.args.quick else 1), TRAIN[1]
        os.makedirs(f"{self.server.root}/train", exist_ok=True)
        shutil.copy(self.args.data.sized(samples, size), f"{self.server.root}/train/a.npy")
        with contextlib.ExitStack() as stack:
            pool = (-(-samples * size // (512 * MIB)) + 1) * 512 * MIB  # all of it ready: nothing is cleared while it is measured
            daemon = leatd(self.args.build, self.args.folder, pool, ready=pool)
            stack.callback(daemon.close)
            bare = Worker([self.program("http_bare"), "--host", "127.0.0.1", "--port", self.server.port, "--bucket", "bench", "--root",
                           self.server.root, "--bytes", MIB, "--of", self.server.large, "--connections", CONNECTIONS])
            stack.callback(bare.close)
            job = Worker([self.program("load_leat"), daemon.socket], [daemon.pid],
                         {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.server.port}", "AWS_REGION": "us-east-1"})
            stack.callback(job.close)

            def ask(line):
                job.send(line)
                return job._read()

            def train():
                daemon.wait_ready()
                before, served = sum(map(cpu_seconds, job.pids())), self.server.cpu()
                got = ask("train bench s3://train/a.npy")
                cpu, served = sum(map(cpu_seconds, job.pids())) - before, self.server.cpu() - served
                if got["bytes"] != samples * size or ask("check bench")["bad"]:
                    raise Failed("s3.train: what came is not what was stored")
                ask("drop bench")
                return {"rate": got["bytes"] / got["ns"], "cpu": cpu / got["bytes"] * 1e9, "server_cpu": served / got["bytes"] * 1e9, "p50": 0}
            got = in_turns({"leat": train, "limit": self.measure(bare)}, self.args.repeats)
        self.row("s3.train.rate", "GB/s", got, "rate", "bare receive loop, 1 MiB ranges")
        self.row("s3.train.cpu", "CPU-s/GB", got, "cpu", "bare receive loop, 1 MiB ranges")

    def scan(self):
        if not self.wanted("s3.scan.rate", "s3.scan.first"):
            return
        with contextlib.ExitStack() as stack:
            daemon = leatd(self.args.build, self.args.folder, 512 * MIB)
            stack.callback(daemon.close)
            bare = Worker([self.program("http_bare"), "--host", "127.0.0.1", "--port", self.server.port, "--bucket", "bench", "--root", self.server.root,
                           "--bytes", 4 * KIB, "--objects", self.server.objects, "--connections", CONNECTIONS, "--depth", DEPTH])
            stack.callback(bare.close)
            program = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "s3_scan.py")
            job = Worker(["/usr/bin/python3", program, daemon.socket], [daemon.pid],
                         {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.server.port}", "AWS_REGION": "us-east-1",
                          "PYTHONPATH": os.path.join(self.args.build, "python")})
            stack.callback(job.close)

            def read(word):
                def once():
                    before, served = sum(map(cpu_seconds, job.pids())), self.server.cpu()
                    job.send(f"{word} s3://bench/o/")
                    got = job._read()
                    if got["samples"] != self.server.objects:
                        raise Failed(f"s3.scan: {got['samples']} objects came of {self.server.objects}")
                    cpu, served = sum(map(cpu_seconds, job.pids())) - before, self.server.cpu() - served
                    return {"objects": got["samples"] / got["ns"] * 1e9, "first": got["first_ns"] / 1e6, "cpu": cpu, "server_cpu": served}
                return once
            got = in_turns({"leat": read("scan"), "leat.open": read("open"), "limit": self.measure(bare)}, self.args.repeats)
        self.row("s3.scan.rate", "objects/s", got, "objects", "bare receive loop")
        self.put(row("s3.scan.first", "ms", got["leat"]["first"], got["leat.open"]["first"], None, "leat.open of the same prefix"))

    def far(self, *path):
        """The server at the end of a path: (port, Daemon)."""
        port, = _free_ports(1)
        return port, Daemon([self.program("http_far"), port, self.server.port, *path], lambda: _accepts(port), os.path.join(self.args.folder, "far.log"))

    def stream(self):
        """Each order with the limit and the rival in turns of its own: what is in the pool after a turn is dropped."""
        orders = [order for order in ("block", "full") if self.wanted(f"s3.stream.{order}")]
        if not orders:
            return
        shards = STREAM["shards"] // (4 if self.args.quick else 1)
        paths = self.server.make_shards(shards, STREAM["samples"], STREAM["bytes"])
        samples, total = shards * STREAM["samples"], shards * STREAM["samples"] * STREAM["bytes"]
        top = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        with contextlib.ExitStack() as stack:
            port, far = self.far(STREAM["rtt_ms"], STREAM["mbit"])
            stack.callback(far.close)
            daemon = leatd(self.args.build, self.args.folder, int(STREAM["pool"] * total))
            stack.callback(daemon.close)

            def worker(*argv, env=None):
                one = Worker(argv, env=env, timeout=300)
                stack.callback(one.close)
                return one
            job = worker("/usr/bin/python3", f"{top}/s3_stream.py", daemon.socket, "jpg",
                         env={**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_REGION": "us-east-1",
                              "PYTHONPATH": os.path.join(self.args.build, "python")})
            rival = worker("/usr/bin/python3", f"{top}/s3_shards.py", "127.0.0.1", port, STREAM["connections"])
            bare = worker(self.program("http_bare"), "--host", "127.0.0.1", "--port", port, "--bucket", "bench", "--root", self.server.root,
                          "--bytes", MIB, "--of", self.server.large, "--connections", CONNECTIONS)

            def all_of_it(one, line):
                def once():
                    one.send(line)
                    got = one._read()
                    if (got["samples"], got["bytes"]) != (samples, total):
                        raise Failed(f"s3.stream: {got['samples']} samples of {samples} came, {got['bytes']} bytes of {total}")
                    return {"rate": got["bytes"] / got["ns"] * 1000}
                return once

            def limit():
                bare.send("run 2")
                got = bare._read()
                return {"rate": got["bytes"] / got["ns"] * 1000}
            job.send("index s3://bench/shards/")
            job._read()
            for order in orders:
                rivals = {"whole shards": all_of_it(rival, " ".join(["new", *paths])),
                          "whole shards, connections kept": all_of_it(rival, " ".join(["kept", *paths]))}
                got = in_turns({"leat": all_of_it(job, f"{order} s3://bench/shards/"), "limit": limit, **rivals}, self.args.repeats)
                self.put(row(f"s3.stream.{order}", "MB/s", got["leat"]["rate"], got["limit"]["rate"], {name: got[name]["rate"] for name in rivals},
                             "bare receive loop, 1 MiB ranges"))

    def blocks(self):
        """Of Leat alone: the limit is the best of the sizes that were fixed."""
        if not self.args.only or not self.wanted("s3.blocks"):
            return
        for rtt in (10, 30):
            port, far = self.far(rtt)
            try:
                for name, size, inflight in (("first", MIB, 1), ("1m", MIB, 1), ("4m", 4 * MIB, 1), ("16m", 16 * MIB, 1), ("64m", 64 * MIB, 1),
                                             ("many", 8 * MIB, 16)):
                    if self.wanted(f"s3.blocks.{rtt}ms.{name}"):
                        self.blocks_of(f"s3.blocks.{rtt}ms.{name}", port, size, inflight, name == "first")
            finally:
                far.close()

    def blocks_of(self, metric, port, size, inflight, first):
        def measure(block):
            def once():
                worker = Worker([self.program("s3_leat"), "--host", "127.0.0.1", "--port", port, "--bucket", "bench", "--root", self.server.root,
                                 "--bytes", size, "--of", self.server.large, "--connections", CONNECTIONS, "--inflight", inflight,
                                 "--block", block], env=KEYS)
                try:
                    for seconds in (0.001,) if first else (0.5, 0.5):
                        worker.send(f"run {seconds}")
                        got = worker._read()
                finally:
                    worker.close()
                return {"ms": got["p50_us"] / 1000, "rate": got["bytes"] / got["ns"] * 1000}
            return once
        sizes = [b for b in (128 * KIB, 256 * KIB, 512 * KIB, MIB, 2 * MIB, 4 * MIB, 8 * MIB) if b <= size]
        cases = {"chosen": measure(0), **{f"{b // KIB} KiB": measure(b) for b in sizes}}
        got = in_turns(cases, max(2, self.args.repeats // 2))
        figure, unit, best = ("ms", "ms", min) if inflight == 1 else ("rate", "MB/s", max)
        fixed = {name: v[figure] for name, v in got.items() if name != "chosen"}
        name = best(fixed, key=lambda n: median(fixed[n]))
        self.put(row(metric, unit, got["chosen"][figure], fixed[name], fixed, f"the best fixed size ({name})"))

    def lists(self):
        if not self.wanted("s3.list.rate"):
            return
        pages = [f"{self.server.root}/pages/{i}.xml" for i in range(PAGES)]
        with contextlib.ExitStack() as stack:
            worker = Worker([self.program("s3_list"), f"http://127.0.0.1:{self.server.port}", "s3://keys/train/", *pages], env=KEYS)
            stack.callback(worker.close)

            def keys(word):
                def once():
                    before = cpu_seconds(worker.proc.pid)
                    worker.send(f"{word} {self.seconds}")
                    got = worker._read()
                    return {"rate": got["samples"] / got["ns"] * 1e9, "cpu": (cpu_seconds(worker.proc.pid) - before) / got["samples"] * 1e6}
                return once
            got = in_turns({"leat": keys("list"), "limit": keys("parse")}, self.args.repeats)
        self.put(row("s3.list.rate", "keys/s", got["leat"]["rate"], got["limit"]["rate"], None, "the same pages taken apart without a server",
                     us_a_key={name: median(got[name]["cpu"]) for name in got}))


def run(args, emit):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]  # the user's own
    with contextlib.ExitStack() as stack:
        server = Server(args)
        stack.callback(server.close)
        suite = Suite(args, emit, server, stack)
        suite.ranges()
        suite.tls()
        suite.first()
        suite.train()
        suite.scan()
        suite.stream()
        suite.lists()
        suite.blocks()
