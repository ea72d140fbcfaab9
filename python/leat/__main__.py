# SPDX-License-Identifier: Apache-2.0
"""`python -m leat`: the command line, as `leat`."""

from __future__ import annotations

import os
import pathlib
import shutil
import sys


def program() -> str | None:
    """The `leat` of this package: of the wheel, of the build tree, or the one on PATH."""
    here = pathlib.Path(__file__).resolve().parent
    for path in (here / "bin" / "leat", here.parent.parent / "src" / "apps" / "leat"):
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    return shutil.which("leat")


def main() -> int:
    path = program()
    if path is None:
        print("leat: the program is neither in this package nor on PATH", file=sys.stderr)
        return 127
    os.execv(path, [path, *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
