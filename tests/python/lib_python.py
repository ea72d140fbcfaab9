# SPDX-License-Identifier: Apache-2.0
"""What tests share beside fixtures. Not in conftest.py: there are two of that name, and a process that was spawned imports whichever
folder came last on the path; a test's function that does not import there makes a pool of workers start new ones for ever."""

import os
import pathlib

import numpy as np

from lib_host import proc_text

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("LEAT_BUILD", ROOT / "build"))
IMAGES = np.arange(36, dtype="<f4").reshape(6, 2, 3)
LABELS = np.array([0, 0, 1, 1, 2, 2])
FILES = {"a/1.jpg": b"first picture", "a/2.jpg": b"second", "b/3.jpg": b"third picture"}


def daemons(runtime):
    """Processes of leatd that serve a socket in this folder."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        words = proc_text(pid, "cmdline").split(b"\0")
        if words[0].endswith(b"leatd") and any(os.fsencode(runtime) in word for word in words):
            found.append(int(pid))
    return found
