#!/usr/bin/env python3
"""Packs installed trees into a tarball, a wheel, Debian packages, an OCI archive and a list of
parts, with SHA256SUMS.

Usage: pack.py --trees DIR... --out DIR. A DIR of --trees is what dist.sh made for an architecture.
The same trees and the same SOURCE_DATE_EPOCH give the same bytes."""

import argparse
import gzip
import hashlib
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
import debs
import image
import parts
import tars
import weaken
import wheel

ROOT = Path(__file__).resolve().parent.parent
EPOCH = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))


class Release:
    """What all artifacts of a build have in common."""

    def __init__(self, trees, out):
        manifest = (ROOT / "Cargo.toml").read_text()
        for tree in ("any", "system"):
            for file in programs(trees / tree):
                weaken.in_file(file)
        self.root, self.trees, self.out, self.epoch = ROOT, trees, out, EPOCH
        self.version = re.search(r'^version = "(.*)"', manifest, re.M).group(1)
        self.arch = machine(trees / "any/usr/local/bin/gdrcore-run")
        self.glibc = newest_glibc(trees / "any")
        self.debian_arch = {"x86_64": "amd64", "aarch64": "arm64"}[self.arch]


def machine(program):
    """The architecture of a program, as uname names it."""
    (number,) = struct.unpack_from("<H", program.read_bytes(), 18)
    return {62: "x86_64", 183: "aarch64"}[number]


def newest_glibc(tree):
    """The newest version of glibc's symbols that a file of the tree needs, as (2, minor)."""
    newest = (2, 17)
    for file in programs(tree):
        told = subprocess.run(
            ["readelf", "-W", "--version-info", str(file)], check=True, stdout=subprocess.PIPE
        ).stdout.decode()
        found = re.findall(r"Name: GLIBC_(\d+)\.(\d+)", told)
        newest = max([newest] + [tuple(map(int, f)) for f in found])
    return newest


def programs(tree):
    """Programs and shared libraries of a tree."""
    return filter(tars.is_elf, tars.files(tree))


def tarball(name, tree, release):
    """NAME.tar.gz with the files of a tree below a folder of that name."""
    path = release.out / f"{name}.tar.gz"
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed:
        with tars.Tar(packed, release) as tar:
            for file in tars.files(tree):
                tar.add(file, f"{name}/{file.relative_to(tree)}")


def pack(release):
    """All artifacts of an architecture."""
    name = f"gdrcore-{release.version}-{release.arch}-linux-gnu"
    tarball(name, release.trees / "any/usr/local", release)
    tarball(f"{name}-debug", release.trees / "debug", release)
    if (release.trees / "musl").is_dir():
        tarball(name.replace("linux-gnu", "linux-musl"), release.trees / "musl", release)
    wheel.make(release)
    debs.make(release)
    if (release.trees / "base").is_dir():
        image.make(release)
    parts.make(release, name)


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--trees", type=Path, required=True, nargs="+")
    arguments.add_argument("--out", type=Path, required=True)
    a = arguments.parse_args()
    shutil.rmtree(a.out, ignore_errors=True)
    a.out.mkdir(parents=True)
    for trees in a.trees:
        release = Release(trees.resolve(), a.out.resolve())
        pack(release)
        print("%s needs glibc %d.%d" % (release.arch, *release.glibc))
    sums = [
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n"
        for file in tars.files(a.out)
    ]
    (a.out / "SHA256SUMS").write_text("".join(sums))
    for file in tars.files(a.out):
        print(f"{file.stat().st_size:>9} {file}")


if __name__ == "__main__":
    main()
