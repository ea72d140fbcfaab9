# SPDX-License-Identifier: Apache-2.0
"""Suite `store`: `leat serve` and leatd's store beside nginx (the same files, one core each), fio, and the bare cost of hashes.

store.small.get.rate           4 KiB objects by wrk, 32 connections, anonymous; .sigv4: presigned, beside anonymous; .tls: beside nginx's
store.large.get.cpu            the server's CPU-s for a GB of 64 MiB objects
store.put.64k.cpu, .1m.cpu     the server's CPU-s for a GB of PUTs; the limit is nginx's (WebDAV, which flushes nothing) and MD5's bare cost;
                               beside it what two flushes of a file and its folder cost, and ratio_with_flushes, against the sum of the three
store.idle.memory              KiB of memory for an idle connection
store.restart                  ms until a store of a million objects (--quick: 100,000) answers
store.list.rate                keys a second of ListObjectsV2, the same objects
store.batchget                 ms for 256 members of a tar in one batch; the limit is 256 GETs of them
store.region.rate              a shard in a bucket to the pool's regions, cold; the limit is fio
store.readthrough.rate         an object through a bucket in front of another leat serve; the limit is that one's own speed
store.readthrough.shaped       the same where that one is 20 ms and a link of 1 Gbit/s away (bench/http_far)
"""
import contextlib
import glob
import hashlib
import hmac
import http.client
import io
import json
import os
import re
import shutil
import socket
import subprocess
import tarfile
import time
import urllib.parse

from .pauses import touch_memory
from .rows import in_turns, median, row
from .s3 import _free_ports
from .suite import Base
from .workers import Daemon, Failed, Group, Worker, children, cpu_seconds

KIB, MIB = 1024, 1024 * 1024
OBJECTS, LARGE = 4096, 64 * MIB
KEYS = ("LEATBENCH00000000001", "secret-of-the-benchmark")
BATCH, MEMBER = 256, 10 * KIB

NGINX = """{user}daemon off; worker_processes 1; pid {top}/pid; error_log {top}/nginx.log crit;
events {{ worker_connections 4096; }}
http {{
  access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000000; keepalive_timeout 600s; default_type application/octet-stream;
  open_file_cache max=8192 inactive=10m; client_max_body_size 0; client_body_temp_path {top}/t1; proxy_temp_path {top}/t2; fastcgi_temp_path {top}/t3;
  uwsgi_temp_path {top}/t4; scgi_temp_path {top}/t5; ssl_certificate {top}/cert.pem; ssl_certificate_key {top}/key.pem;
  server {{
    listen 127.0.0.1:{port}; listen 127.0.0.1:{tls_port} ssl; root {top}/root;
    location /put/ {{ dav_methods PUT; create_full_put_path on; }}
  }}
}}
"""

#: Requests are put together before the clock starts.
LUA = """
local requests, n = {}, 0
init = function(args)
  for line in io.lines(args[1]) do requests[#requests + 1] = wrk.format("GET", line) end
end
request = function() n = n % #requests + 1; return requests[n] end
"""


def pinned(argv, cpu):
    """On one core, where there are two: the client takes another."""
    return [*(["taskset", "-c", str(cpu)] if (os.cpu_count() or 1) > 1 and shutil.which("taskset") else []), *map(str, argv)]


class Server:
    """What both servers have: addresses, CPU, requests."""

    port = tls_port = 0

    def cpu(self):
        return sum(map(cpu_seconds, [self.daemon.pid] + children(self.daemon.pid)))

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)

    def answers(self):
        with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(self.connect()) as c:
            c.request("GET", "/")
            return c.getresponse().read() is not None
        return False

    def listens(self):
        """All that can be asked of TLS without a certificate at hand."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def put(self, path, data):
        with contextlib.closing(self.connect()) as c:
            c.request("PUT", path, data)
            answer = c.getresponse()
            body = answer.read()
            if answer.status not in (200, 201, 204):
                raise Failed(f"PUT {path}: {answer.status} {body[:300]!r}")


class Leat(Server):
    def __init__(self, build, top, name, *options, cpu=0, folder=None):
        self.top = os.path.join(top, name)
        os.makedirs(self.top, exist_ok=True)
        self.store, self.log = folder or os.path.join(self.top, "store"), os.path.join(self.top, "log")
        self.port, self.tls_port = _free_ports(2)
        listen = ["--listen", f"127.0.0.1:{self.port}"]
        self.daemon = Daemon(pinned([os.path.join(build, "src/apps/leat"), "serve", "--store", self.store, "--threads", "1",
                                     *(options or ["--anonymous"]), *listen], cpu),
                             self.listens if "--tls-cert" in options else self.answers, self.log)

    def close(self):
        self.daemon.close()


class Nginx(Server):
    def __init__(self, top):
        program = shutil.which("nginx") or "/usr/sbin/nginx"
        if not os.path.exists(program):
            raise Failed("nginx is not installed (tools/deps bench-store)")
        self.top = os.path.join(top, "nginx")
        self.port, self.tls_port = _free_ports(2)
        os.makedirs(f"{self.top}/root/put")
        os.chmod(top, 0o755)
        for folder in (self.top, f"{self.top}/root"):
            os.chmod(folder, 0o755)
        os.chmod(f"{self.top}/root/put", 0o777)
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=bench",
                        "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{self.top}/key.pem", "-out", f"{self.top}/cert.pem"],
                       check=True, capture_output=True)
        with open(f"{self.top}/nginx.conf", "w") as f:
            f.write(NGINX.format(user="user root; " if os.geteuid() == 0 else "", top=self.top, port=self.port, tls_port=self.tls_port))
        self.daemon = Daemon(pinned([program, "-c", f"{self.top}/nginx.conf", "-p", self.top], 0), self.answers, f"{self.top}/out.log")

    def close(self):
        self.daemon.close()


def presign(path, port):
    """Signature Version 4 in the query."""
    when = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    scope = f"{when[:8]}/us-east-1/s3/aws4_request"
    query = urllib.parse.urlencode([("X-Amz-Algorithm", "AWS4-HMAC-SHA256"), ("X-Amz-Credential", f"{KEYS[0]}/{scope}"), ("X-Amz-Date", when),
                                    ("X-Amz-Expires", "86400"), ("X-Amz-SignedHeaders", "host")], quote_via=urllib.parse.quote, safe="")
    canonical = f"GET\n{path}\n{query}\nhost:127.0.0.1:{port}\n\nhost\nUNSIGNED-PAYLOAD"
    text = f"AWS4-HMAC-SHA256\n{when}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = ("AWS4" + KEYS[1]).encode()
    for word in (when[:8], "us-east-1", "s3", "aws4_request"):
        key = hmac.new(key, word.encode(), hashlib.sha256).digest()
    return f"{path}?{query}&X-Amz-Signature={hmac.new(key, text.encode(), hashlib.sha256).hexdigest()}"


class Suite(Base):
    def __init__(self, args, emit, stack):
        super().__init__(args, emit)
        self.stack, self.top = stack, os.path.join(args.folder, "store-suite")
        self.seconds = 1 if args.quick else 4
        os.makedirs(self.top)
        self._pair = None

    def opened(self, server):
        self.stack.callback(server.close)
        return server

    # --- beside nginx -------------------------------------------------------------------------------------------------

    def pair(self):
        """Both with the same objects."""
        if self._pair:
            return self._pair
        nginx = self.opened(Nginx(self.top))
        keys = os.path.join(self.top, "keys")
        with open(os.open(keys, os.O_CREAT | os.O_WRONLY, 0o600), "w") as f:
            f.write(f"[bench]\naws_access_key_id = {KEYS[0]}\naws_secret_access_key = {KEYS[1]}\naccess = admin\n")
        leat = self.opened(Leat(self.args.build, self.top, "leat"))
        leat.put("/bench", b"")
        leat.put("/put", b"")
        self.objects = OBJECTS // (4 if self.args.quick else 1)
        os.makedirs(f"{nginx.top}/root/bench/o")
        for name, size in [(f"o/{i:06d}", 4 * KIB) for i in range(self.objects)] + [("large", LARGE)]:
            data = os.urandom(size)
            leat.put(f"/bench/{name}", data)
            with open(f"{nginx.top}/root/bench/{name}", "wb") as f:
                f.write(data)
        self._pair = leat, nginx
        return self._pair

    def wrk(self, server, paths, tls=False):
        """{rate, cpu} of one run; cpu in microseconds of the server for a request."""
        program = shutil.which("wrk")
        if not program:
            raise Failed("wrk is not installed (tools/deps bench-store)")
        script, listed = os.path.join(self.top, "wrk.lua"), os.path.join(self.top, "paths")
        with open(script, "w") as f:
            f.write(LUA)
        with open(listed, "w") as f:
            f.write("\n".join(paths) + "\n")
        url = f"https://127.0.0.1:{server.tls_port}" if tls else f"http://127.0.0.1:{server.port}"
        before = server.cpu()
        done = subprocess.run(pinned([program, "-t", "1", "-c", "32", "-d", f"{self.seconds}s", "-s", script, url, "--", listed], 1),
                              capture_output=True, text=True, timeout=300)
        cpu = server.cpu() - before
        total, rate = re.search(r"(\d+) requests in", done.stdout), re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)
        if done.returncode or not rate or "Non-2xx" in done.stdout:
            raise Failed(f"wrk {url}: {done.stdout[-400:]} {done.stderr[-200:]}")
        return {"rate": float(rate.group(1)), "cpu": cpu / int(total.group(1)) * 1e6}

    def small(self):
        metric = "store.small.get.rate"
        if not self.wanted(metric):
            return
        leat, nginx = self.pair()
        paths = [f"/bench/o/{(i * 7919) % self.objects:06d}" for i in range(self.objects)]
        for server in (leat, nginx):
            self.wrk(server, paths)  # into caches
        got = in_turns({"leat": lambda: self.wrk(leat, paths), "nginx": lambda: self.wrk(nginx, paths)}, self.args.repeats)
        self.put(row(metric, "req/s", got["leat"]["rate"], got["nginx"]["rate"], None, "nginx, the same files",
                     server_us={name: median(v["cpu"]) for name, v in got.items()}))
        if self.wanted(metric + ".sigv4"):
            keyed = self.keyed()
            ours = [presign(path, keyed.port) for path in paths]
            got = in_turns({"leat": lambda: self.wrk(keyed, ours), "plain": lambda: self.wrk(leat, paths)}, self.args.repeats)
            self.put(row(metric + ".sigv4", "req/s", got["leat"]["rate"], got["plain"]["rate"], None, "anonymous",
                         server_us={name: median(v["cpu"]) for name, v in got.items()}))
        if self.wanted(metric + ".tls"):
            tls = self.tls(nginx)
            got = in_turns({"leat": lambda: self.wrk(tls, paths, True), "nginx": lambda: self.wrk(nginx, paths, True)}, self.args.repeats)
            self.put(row(metric + ".tls", "req/s", got["leat"]["rate"], got["nginx"]["rate"], None, "nginx, TLS",
                         server_us={name: median(v["cpu"]) for name, v in got.items()}))

    def copy_of(self, name, *options):
        """Another server with the same small objects."""
        folder = os.path.join(self.top, name + "-store")
        maker = Leat(self.args.build, self.top, name + "-maker", folder=folder)
        try:
            maker.put("/bench", b"")
            for i in range(self.objects):
                maker.put(f"/bench/o/{i:06d}", os.urandom(4 * KIB))
        finally:
            maker.close()
        return self.opened(Leat(self.args.build, self.top, name, *options, folder=folder))

    def keyed(self):
        return self.copy_of("keyed", "--keys", os.path.join(self.top, "keys"))

    def tls(self, nginx):
        made = self.copy_of("tls", "--anonymous", "--tls-cert", f"{nginx.top}/cert.pem", "--tls-key", f"{nginx.top}/key.pem")
        made.tls_port = made.port
        return made

    def large(self):
        if not self.wanted("store.large.get.cpu"):
            return
        leat, nginx = self.pair()
        times = 4 if self.args.quick else 16

        def measure(server):
            def once():
                sink = memoryview(bytearray(MIB))
                with contextlib.closing(server.connect()) as c:
                    before = server.cpu()
                    for _ in range(times):
                        c.request("GET", "/bench/large")
                        answer, got = c.getresponse(), 0
                        while n := answer.readinto(sink):
                            got += n
                        if got != LARGE:
                            raise Failed(f"/bench/large has {got} bytes")
                    return {"cpu": (server.cpu() - before) / (times * LARGE / 1e9)}
            return once
        for server in (leat, nginx):
            measure(server)()
        got = in_turns({"leat": measure(leat), "nginx": measure(nginx)}, self.args.repeats)
        self.put(row("store.large.get.cpu", "CPU-s/GB", got["leat"]["cpu"], got["nginx"]["cpu"], None, "nginx, the same file"))

    def puts(self):
        for name, size, times in (("64k", 64 * KIB, 512), ("1m", MIB, 64)):
            metric = f"store.put.{name}.cpu"
            if not self.wanted(metric):
                continue
            leat, nginx = self.pair()
            times = times // (4 if self.args.quick else 1)
            data = os.urandom(size)

            def measure(server, size=size, times=times, data=data):
                def once():
                    with contextlib.closing(server.connect()) as c:
                        before = server.cpu()
                        for i in range(times):
                            c.request("PUT", f"/put/{size}-{i % 64}", data)
                            answer = c.getresponse()
                            answer.read()
                            if answer.status not in (200, 201, 204):
                                raise Failed(f"PUT: {answer.status}")
                        return {"cpu": (server.cpu() - before) / (times * size / 1e9)}
                return once

            def md5(size=size, times=times, data=data):
                before = time.thread_time()
                for _ in range(times):
                    hashlib.md5(data).digest()
                return {"cpu": (time.thread_time() - before) / (times * size / 1e9)}
            def flushes(size=size, times=times, data=data):
                return {"cpu": self.flushed(times, data) / (times * size / 1e9)}
            for server in (leat, nginx):
                measure(server)()
            got = in_turns({"leat": measure(leat), "nginx": measure(nginx), "md5": md5, "flushes": flushes}, self.args.repeats)
            limit = [a + b for a, b in zip(got["nginx"]["cpu"], got["md5"]["cpu"])]
            flushed = [a / (b + c) for a, b, c in zip(got["leat"]["cpu"], limit, got["flushes"]["cpu"])]
            self.put(row(metric, "CPU-s/GB", got["leat"]["cpu"], limit,
                         {"nginx": got["nginx"]["cpu"], "MD5": got["md5"]["cpu"], "two flushes": got["flushes"]["cpu"]},
                         "nginx, which flushes nothing, and MD5", ratio_with_flushes=median(flushed)))

    def flushed(self, times, data):
        """CPU-s of the flushes alone, where each of so many files is made durable: its own, and its folder's."""
        folder, spent = os.path.join(self.top, "flushed"), 0.0
        os.makedirs(folder, exist_ok=True)
        names = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for i in range(times):
                path = f"{folder}/{i % 64}"
                fd = os.open(path + "#tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                os.write(fd, data)
                before = time.thread_time()
                os.fdatasync(fd)
                spent += time.thread_time() - before
                os.close(fd)
                os.rename(path + "#tmp", path)
                before = time.thread_time()
                os.fsync(names)
                spent += time.thread_time() - before
        finally:
            os.close(names)
        return spent

    # --- promises -------------------------------------------------------------------------------------------------------

    def idle(self):
        if not self.wanted("store.idle.memory"):
            return
        leat = self.opened(Leat(self.args.build, self.top, "idle"))  # fresh: others have grown by what they did
        leat.put("/bench", b"")
        leat.put("/bench/x", b"x" * 4096)
        n = 200 if self.args.quick else 1000

        def anonymous():
            with open(f"/proc/{leat.daemon.pid}/status") as f:
                return next(int(line.split()[1]) for line in f if line.startswith("RssAnon:"))

        def once():
            before, connections = anonymous(), []
            try:
                for _ in range(n):
                    c = leat.connect()
                    c.request("GET", "/bench/x")
                    c.getresponse().read()
                    connections.append(c)
                time.sleep(1)  # what was kept for the request has gone
                return {"kib": max(anonymous() - before, 0) / n}
            finally:
                for c in connections:
                    c.close()
                time.sleep(0.2)
        got = in_turns({"leat": once}, 1)  # later ones find the first one's memory
        self.put(row("store.idle.memory", "KiB", got["leat"]["kib"], 8, None, "8 KiB, a promise"))

    def many(self):
        if not self.wanted("store.restart", "store.list.rate"):
            return
        objects = 100_000 if self.args.quick else 1_000_000
        folder = os.path.join(os.environ.get("LEAT_BENCH_DIR") or self.top, f"store-{objects}")
        if not os.path.exists(folder):
            subprocess.run([self.program("store_fill"), folder, "many", str(objects), "1"], check=True)

        def restart():
            began = time.monotonic()
            with contextlib.closing(Leat(self.args.build, self.top, "many", folder=folder)):
                return {"ms": (time.monotonic() - began) * 1e3}
        if self.wanted("store.restart"):
            got = in_turns({"leat": restart}, self.args.repeats)
            self.put(row("store.restart", "ms", got["leat"]["ms"], objects / 500, None, f"{objects / 500:.0f} ms for {objects:,} objects, a promise"))
        if self.wanted("store.list.rate"):
            page = os.path.join(self.top, "page.xml")  # of what it could take apart without a server; not asked for
            with open(page, "w") as f:
                f.write("<ListBucketResult/>")
            with contextlib.ExitStack() as stack:
                server = Leat(self.args.build, self.top, "many", folder=folder)
                stack.callback(server.close)
                worker = Worker([self.program("s3_list"), f"http://127.0.0.1:{server.port}", "s3://many/", page],
                                env={"AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none", "LEAT_S3_ANONYMOUS": "1",
                                     "AWS_EC2_METADATA_DISABLED": "true"})
                stack.callback(worker.close)

                def once():
                    worker.send("list 0.5")
                    got = worker._read()
                    return {"rate": got["samples"] / got["ns"] * 1e9}
                got = in_turns({"leat": once}, self.args.repeats)
            self.put(row("store.list.rate", "keys/s", got["leat"]["rate"], 200_000, None, "200,000 keys/s, a promise"))

    def batches(self):
        if not self.wanted("store.batchget"):
            return
        leat, _ = self.pair()
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            for i in range(BATCH * 4):
                info = tarfile.TarInfo(f"{i:05d}.bin")
                info.size = MEMBER
                tar.addfile(info, io.BytesIO(os.urandom(MEMBER)))
        leat.put("/bench/shard.tar", out.getvalue())
        names = [f"{(i * 37) % (BATCH * 4):05d}.bin" for i in range(BATCH)]
        body = json.dumps([{"key": "shard.tar", "archpath": name} for name in names]).encode()

        def one():
            with contextlib.closing(leat.connect()) as c:
                c.connect()
                began = time.monotonic()
                c.request("POST", "/bench?batch", body)
                answer = c.getresponse()
                got = len(answer.read())
                ms = (time.monotonic() - began) * 1e3
                if answer.status != 200 or got < BATCH * MEMBER or answer.getheader("x-leat-missing") != "0":
                    raise Failed(f"a batch: {answer.status}, {got} bytes")
                return {"ms": ms}

        def each():
            with contextlib.closing(leat.connect()) as c:
                c.connect()
                began = time.monotonic()
                for name in names:
                    c.request("GET", f"/bench/shard.tar?archpath={name}")
                    if len(c.getresponse().read()) != MEMBER:
                        raise Failed(f"{name}: not a member")
                return {"ms": (time.monotonic() - began) * 1e3}
        one(), each()
        got = in_turns({"leat": one, "each": each}, self.args.repeats)
        self.put(row("store.batchget", "ms", got["leat"]["ms"], got["each"]["ms"], None, "256 GETs on one connection"))

    # --- from disks and remotes -----------------------------------------------------------------------------------------

    def region(self):
        if not self.wanted("store.region.rate"):
            return
        if not shutil.which("fio"):
            self.skip("store.region.rate", "fio is not installed (tools/deps bench-store)")
            return
        size = (256 if self.args.quick else 2048) * MIB
        top, (port,) = os.path.join(self.top, "region"), _free_ports(1)
        os.makedirs(top)
        sock, store, conf = f"{top}/sock", f"{top}/store", f"{top}/leatd.conf"
        with open(conf, "w") as f:
            f.write(f"[pool]\nsize = {size + 256 * MIB}\n[store]\npaths = {store}\n[serve]\nlisten = 127.0.0.1:{port}\nanonymous = yes\n")
        server = Server()
        server.port = port
        daemon = Daemon([os.path.join(self.args.build, "src/apps/leatd"), "--config", conf, "--private", "--socket", sock, "--idle-timeout", "0"],
                        server.answers, f"{top}/log")
        self.stack.callback(daemon.close)
        server.put("/bench", b"")
        data = os.path.join(top, "x.npy")
        self._array(data, size)
        with open(data, "rb") as f:
            server.put("/bench/x.npy", f)
        worker = Worker([self.program("load_leat"), sock], [daemon.pid])
        group = Group([worker])
        self.stack.callback(group.close)

        def cold():
            for path in [data, *glob.glob(f"{store}/**", recursive=True)]:
                if os.path.isfile(path):
                    fd = os.open(path, os.O_RDONLY)
                    os.fsync(fd)
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                    os.close(fd)

        def ours():
            cold()
            touch_memory(size + 256 * MIB)
            got = group.ask("preload bench store://bench/x.npy")
            group.ask("drop bench")
            return {"rate": got["bytes"] / got["ns"]}

        def fio():
            done = subprocess.run(["fio", "--name=x", f"--filename={data}", "--direct=1", "--rw=read", "--bs=1M", "--iodepth=16", "--ioengine=io_uring",
                                   "--readonly", "--output-format=json"], capture_output=True, text=True)
            if done.returncode:
                raise Failed(f"fio: {done.stderr[-300:]}")
            return {"rate": json.loads(done.stdout)["jobs"][0]["read"]["bw_bytes"] / 1e9}
        got = in_turns({"leat": ours, "fio": fio}, self.args.repeats)
        self.put(row("store.region.rate", "GB/s", got["leat"]["rate"], got["fio"]["rate"], None, "fio, direct, 16 reads of 1 MiB"))

    @staticmethod
    def _array(path, size):
        header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({size // 65536}, 65536), }}"
        header = header.ljust(128 - 10 - 1) + "\n"
        with open(path, "wb") as f:
            f.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode())
            for _ in range(size // MIB):
                f.write(os.urandom(MIB))

    def readthrough(self):
        if not self.wanted("store.readthrough"):
            return
        token = os.path.join(self.top, "token")
        with open(os.open(token, os.O_CREAT | os.O_WRONLY, 0o600), "w") as f:
            f.write("a-token-of-the-benchmark-0123456789")
        far = self.opened(Leat(self.args.build, self.top, "far", cpu=1))
        front = self.opened(Leat(self.args.build, self.top, "front", "--anonymous", "--admin-token", token))
        far.put("/bench", b"")
        link, = _free_ports(1)

        def is_up():
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", link), 0.5):
                return True
            return False
        for name, port, size in (("rate", far.port, 512), ("shaped", link, 512)):
            metric, size = f"store.readthrough.{name}", size * MIB // (8 if self.args.quick else 1)
            if not self.wanted(metric):
                continue
            far.put(f"/bench/{name}", os.urandom(MIB) * (size // MIB))
            if name == "shaped":
                self.opened(Daemon([self.program("http_far"), link, far.port, 20, 1000], is_up, os.path.join(self.top, "link.log")))
            self.through(front, name, {"uri": "s3://bench/", "endpoint": f"http://127.0.0.1:{port}", "anonymous": True})
            got = in_turns({"leat": lambda: self.fetched(front, f"/{name}/{name}", size, name), "far": lambda: self.fetched(port, f"/bench/{name}", size)},
                           self.args.repeats)
            self.put(row(metric, "GB/s", got["leat"]["rate"], got["far"]["rate"], None, "the remote's own speed",
                         server_cpu_s_per_gb=median(got["leat"]["cpu"])))

    def admin(self, front, method, path, body=None):
        with contextlib.closing(front.connect()) as c:
            c.request(method, path, body and json.dumps(body), {"Authorization": "Bearer a-token-of-the-benchmark-0123456789", "Content-Type": "application/json"})
            answer = c.getresponse()
            said = answer.read()
            if answer.status >= 300:
                raise Failed(f"{method} {path}: {answer.status} {said[:200]!r}")
            return json.loads(said)

    def through(self, front, name, remote):
        self.admin(front, "PUT", f"/v1/buckets/{name}", {"remote": remote})

    def evict(self, front, bucket):
        """How many objects there were."""
        job = self.admin(front, "POST", "/v1/jobs", {"kind": "evict", "bucket": bucket})
        while (job := self.admin(front, "GET", f"/v1/jobs/{job['id']}"))["state"] == "running":
            time.sleep(0.01)
        return job["done"]

    def fetched(self, server, path, size, evicted=None):
        """One GET; by way of a server that has to fetch it, whose bucket is empty, and which has kept it in the end."""
        sink, got, before = memoryview(bytearray(MIB)), 0, server.cpu() if evicted else 0
        connection = server.connect() if evicted else http.client.HTTPConnection("127.0.0.1", server, timeout=60)
        with contextlib.closing(connection) as c:
            began = time.monotonic()
            c.request("GET", path)
            answer = c.getresponse()
            while n := answer.readinto(sink):
                got += n
            seconds = time.monotonic() - began
        if answer.status != 200 or got != size:
            raise Failed(f"{path}: {answer.status}, {got} bytes")
        cpu, end = (server.cpu() if evicted else 0) - before, time.monotonic() + 60
        while evicted and self.evict(server, evicted) != 1:  # it is kept a moment after its last byte was sent
            if time.monotonic() > end:
                raise Failed(f"{path} was not kept")
            time.sleep(0.05)
        return {"rate": got / seconds / 1e9, "cpu": cpu / (size / 1e9)}


def run(args, emit):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]  # the user's own
    with contextlib.ExitStack() as stack:
        suite = Suite(args, emit, stack)
        suite.small()
        suite.large()
        suite.puts()
        suite.idle()
        suite.batches()
        suite.many()
        suite.region()
        suite.readthrough()
