# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium that is driven over a pipe (the DevTools protocol); nothing but Chromium itself is needed."""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import time

import lib_host

PATIENCE = 120


def chromium():
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """One page. Ended, with all of its processes, by close()."""

    def __init__(self, folder, dark=False, width=1280, height=1000):
        pipes = [*os.pipe(), *os.pipe()]
        told, tell, hear, said = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in pipes)  # none of them is 3 or 4
        for fd in pipes:
            os.close(fd)
        # Chromium reads commands at 3 and answers at 4, each ended by a NUL.
        line = [chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage",
                "--disable-component-update", "--no-first-run", "--hide-scrollbars", f"--user-data-dir={folder}", f"--window-size={width},{height}",
                "--remote-debugging-pipe", "about:blank"]
        folder.mkdir()
        self.log = open(folder.parent / (folder.name + ".log"), "wb")
        # A shell puts the descriptors where they are wanted, whatever their numbers are here.
        self.process = subprocess.Popen(["bash", "-c", f'exec "$@" 3<&{told} 4>&{said}', "bash", *line], stdin=subprocess.DEVNULL, stdout=self.log,
                                        stderr=self.log, pass_fds=(told, said), start_new_session=True,
                                        env={**os.environ, "HOME": str(folder), "XDG_RUNTIME_DIR": str(folder)})
        os.close(told)
        os.close(said)
        self.tell, self.hear, self.buffer, self.number, self.session, self.events = tell, hear, b"", 0, None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def _message(self):
        end = time.monotonic() + PATIENCE
        while b"\0" not in self.buffer:
            assert select.select([self.hear], [], [], max(0, end - time.monotonic()))[0], "Chromium says nothing"
            piece = os.read(self.hear, 1 << 20)
            assert piece, "Chromium has ended"
            self.buffer += piece
        text, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(text)

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.tell, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def open(self, url):
        self.call("Page.navigate", url=url)

    def value(self, expression, fails=False):
        """What it is, as JSON. fails: None where it throws."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if fails and "exceptionDetails" in answer:
            return None
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, expression):
        """Its value, once it is true."""
        return lib_host.wait_for(lambda: self.value(expression, fails=True),  # its elements may not be there yet
                                 PATIENCE, lambda: f"{expression} does not come true\n{self.value('document.body.innerText')}")

    def text(self):
        return self.value("document.body.innerText")

    def complaints(self):
        """Exceptions, and what the console and the content security policy had to say."""
        found = [e["params"] for e in self.events if e.get("method") == "Runtime.exceptionThrown"]
        found += [e["params"]["entry"] for e in self.events if e.get("method") == "Log.entryAdded" and e["params"]["entry"]["level"] == "error"]
        return found

    def asked(self):
        """URLs of all requests."""
        return [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]

    def screenshot(self, path, full=True):
        height = self.value("document.documentElement.scrollHeight")
        width = self.value("innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=full, **({"clip": clip} if full else {}))["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self):
        with contextlib.suppress(OSError):
            os.close(self.tell)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            pass
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)
        os.close(self.hear)
        self.log.close()
