# SPDX-License-Identifier: Apache-2.0
"""The rival DDStore (github.com/ORNL/DDStore, over MPI), where LEAT_BENCH_DDSTORE names a checkout, and mpicxx and libfabric's
headers are there. It is compiled from that checkout into the run's own folder; none of it is ours to ship."""
import os
import shutil
import subprocess

from .workers import Failed, Group, Worker


def _program(suite):
    checkout, out = os.environ.get("LEAT_BENCH_DDSTORE"), os.path.join(suite.args.folder, "ddstore_read")
    if os.path.exists(out):
        return out
    if not checkout or not shutil.which("mpicxx") or not shutil.which("mpirun"):
        suite.skip("DDStore", "LEAT_BENCH_DDSTORE names no checkout" if not checkout else "mpicxx and mpirun are not installed")
        return None
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    made = subprocess.run(["mpicxx", "-O2", "-g", "-w", "-I", os.path.join(checkout, "include"), os.path.join(here, "ddstore_read.cpp"),
                           os.path.join(checkout, "src/ddstore.cxx"), os.path.join(checkout, "src/common.cxx"), "-lfabric", "-o", out],
                          capture_output=True, text=True)
    if made.returncode:
        suite.skip("DDStore", "it does not build: " + made.stderr.strip()[-300:])
        return None
    return out


def reader(suite, stack, array, batch, consumers):
    """A Group of one mpirun with a rank a consumer, verified; or None."""
    program = _program(suite)
    if not program:
        return None
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    try:
        worker = Worker(["mpirun", *root, "--oversubscribe", "--bind-to", "none", "-n", consumers, program,
                         array.path, array.samples, array.sample_bytes, batch],
                        env={"OMPI_MCA_btl": "vader,self"})  # all ranks are here: Open MPI's shared memory alone is the fastest
        stack.callback(worker.close)
        group = Group([worker])
        found = group.ask("verify")["verified"]
    except Failed as why:
        suite.skip("DDStore", str(why)[-300:])
        return None
    if found != array.samples:
        suite.skip("DDStore", f"it read {found} samples of {array.samples}")
        return None
    return group
