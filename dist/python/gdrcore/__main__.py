"""The commands of the package: each is the program of its name. `python -m gdrcore` is
gdrcore-run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from . import program


def main() -> None:
    name = Path(sys.argv[0]).name
    if name == "__main__.py":
        name = "gdrcore-run"
    found = program(name)
    os.execv(found, [name, *sys.argv[1:]])


if __name__ == "__main__":
    main()
