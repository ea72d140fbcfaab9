# SPDX-License-Identifier: Apache-2.0
"""Progress bars: on terminals, and nowhere else."""

import io
import os
import pty
import sys

import leat
from leat._base.progress import Bar, Reporter


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_on_a_terminal(monkeypatch):
    out = Terminal()
    monkeypatch.setattr(sys, "stderr", out)
    with Reporter(True, "train") as report:
        report(1, 10, 0, 0, 0)
        report(2, 0, 100, 0, 1 << 30)
        report(2, 100, 100, 1 << 30, 1 << 30)
    text = out.getvalue()
    assert "train: index  10 samples" in text and "100 %  1.0 GiB of 1.0 GiB" in text and text.endswith("\n")


def test_none_elsewhere(monkeypatch, npy):
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    with Reporter(True, "train") as report:
        assert report is None
    leat.preload(npy, progress=True)
    assert out.getvalue() == ""


def test_no_time_left_before_anything_came():
    assert "left" not in Bar("x").line(leat.Progress("load", 0, 10, 0, 100), 0.0)
    assert "1:00:00 left" in Bar("x").line(leat.Progress("load", 0, 10, 1, 3601), 1.0)


def test_a_real_terminal(npy):
    """A child whose stderr is a pty; small sets are there before a bar is due, so only the absence of errors is sure."""
    pid, fd = pty.fork()
    if pid == 0:
        try:
            sys.stderr = os.fdopen(2, "w", closefd=False)
            leat.preload(npy, progress=True)
            os._exit(0)
        except BaseException:
            os._exit(1)
    while True:
        try:
            if not os.read(fd, 4096):
                break
        except OSError:
            break
    os.close(fd)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
