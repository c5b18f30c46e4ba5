"""RDMA without an RDMA NIC: gdrcore's library, and programs of libibverbs on its soft device.

`run` runs an unmodified verbs program; `include_dir` and `lib_dir` are for programs that are
compiled against gdrcore.h."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any, Sequence

__version__ = "@VERSION@"
__all__ = ["__version__", "env", "include_dir", "lib_dir", "program", "run"]

_ROOT = Path(__file__).resolve().parent / "_root"


def include_dir() -> Path:
    """The folder of gdrcore.h."""
    return _ROOT / "include"


def lib_dir() -> Path:
    """The folder of libgdrcore.so; pkgconfig/gdrcore.pc is below it."""
    return _ROOT / "lib"


def program(name: str) -> Path:
    """The path of a program of the package, such as gdrcore-run."""
    found = _ROOT / "bin" / name
    if not found.is_file():
        raise FileNotFoundError(f"gdrcore has no program {name}")
    return found


def env(address: str | None = None, **settings: str) -> dict[str, str]:
    """The environment in which a verbs program uses the soft device, as gdrcore-run sets it:
    this process's own, and the drop-in before the system's libibverbs.

    settings are variables without their GDRC_, in lower case: env("127.0.0.2", path="udp")."""
    drop_in = _ROOT / "lib" / "gdrcore"
    preloads = [drop_in / "libgdrcore_preload.so", drop_in / "libibverbs.so.1"]
    made = dict(os.environ)
    for name, first in (("LD_LIBRARY_PATH", True), ("LD_PRELOAD", False)):
        ours = [str(drop_in)] if first else [str(p) for p in preloads]
        own = [made[name]] if made.get(name) else []
        made[name] = ":".join(ours + own if first else own + ours)
    if address is not None:
        settings["address"] = address
    made.update({f"GDRC_{name.upper()}": value for name, value in settings.items()})
    return made


def run(
    command: Sequence[str | os.PathLike[str]],
    address: str | None = None,
    options: Sequence[str] = (),
    **more: Any,
) -> subprocess.CompletedProcess[Any]:
    """Runs a verbs program by gdrcore-run, with options of gdrcore-run such as "--stats"; more is
    what subprocess.run takes."""
    device = [] if address is None else ["--address", address]
    return subprocess.run([program("gdrcore-run"), *device, *options, "--", *command], **more)
