# SPDX-License-Identifier: MIT OR Apache-2.0
"""The peers' programs: the newest release that a package has, in a private folder, beside what the
distribution installs."""

import os
import platform
import shutil
import subprocess
import sys
import zipfile

from machine import ROOT, shell

FOLDER = os.path.join(ROOT, "target/peers")
UCX_VERSION = "1.22.0"
# PyPI's wheel for x86-64 and aarch64.
UCX_WHEEL = f"""libucx-cu12=={UCX_VERSION} \
--hash=sha256:5cbbef0c140a0a158ae3486089af659b38822b2234cd3dc90ba40a5e6553402a \
--hash=sha256:269aa884c3f83ced2ffb5f7704fb3a2da56d9402431222ddbe2901c1ae4fb227
"""
LIBFABRIC_FROM = "trixie"
SECONDS = 300


class Release:
    """One release of a peer: how its programs are called. `folder`: of the programs; `prefix`: what
    stands before each; `env`: what they need."""

    def __init__(self, version, source, folder="", prefix=(), env=None):
        self.version, self.source, self.folder = version, source, folder
        self.prefix, self.env = list(prefix), env or {}

    def program(self, name):
        return os.path.join(self.folder, name)

    def command(self, name):
        return [*self.prefix, self.program(name)]


def run(*command, env=None):
    """Raises OSError with the command's last line if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=env)
    if done.returncode:
        said = (done.stderr + done.stdout).strip().splitlines() or ["no message"]
        raise OSError(f"{os.path.basename(command[0])}: {said[-1]}")


def kept(name, make):
    """The folder `name` among the private ones, which `make(folder)` fills once. It appears whole
    or not at all."""
    folder, part = os.path.join(FOLDER, name), os.path.join(FOLDER, name + ".part")
    if not os.path.isdir(folder):
        shutil.rmtree(part, ignore_errors=True)
        os.makedirs(part)
        make(part)
        os.rename(part, folder)
    return folder


def newest_ucx():
    def make(folder):
        wanted = os.path.join(folder, "requirements.txt")
        with open(wanted, "w") as file:
            file.write(UCX_WHEEL)
        run(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:",
            "--require-hashes", "-q", "-d", folder, "-r", wanted)
        wheel = next(name for name in os.listdir(folder) if name.endswith(".whl"))
        with zipfile.ZipFile(os.path.join(folder, wheel)) as archive:
            archive.extractall(folder)
        for program in os.listdir(os.path.join(folder, "libucx/bin")):
            os.chmod(os.path.join(folder, "libucx/bin", program), 0o755)

    libucx = os.path.join(kept(f"ucx-{UCX_VERSION}", make), "libucx")
    libraries = [os.path.join(libucx, "lib"), os.path.join(libucx, "lib/ucx")]
    release = Release(
        UCX_VERSION, "PyPI", os.path.join(libucx, "bin"),
        env={"LD_LIBRARY_PATH": ":".join(libraries)},
    )
    run(*release.command("ucx_info"), "-v", env={**os.environ, **release.env})
    return release


def newest_libfabric():
    """A newer Debian's, in a root of its own with its own C library."""
    def make(folder):
        run("mmdebstrap", "--variant=extract", "--include=libfabric-bin", LIBFABRIC_FROM, folder)

    root = kept(f"libfabric-{LIBFABRIC_FROM}", make)
    at = os.path.join(root, "usr/lib", platform.machine() + "-linux-gnu")
    loader = next(name for name in os.listdir(at) if name.startswith("ld-linux"))
    prefix = [os.path.join(at, loader), "--library-path", at]
    folder = os.path.join(root, "usr/bin")
    version = fabric_version(*prefix, os.path.join(folder, "fi_info"))
    if not version:
        raise OSError("fi_info does not start")
    return Release(version, f"Debian {LIBFABRIC_FROM}", folder, prefix)


def fabric_version(*fi_info):
    lines = shell(*fi_info, "--version").splitlines()
    return next((line.split(":")[1].strip() for line in lines if "libfabric:" in line), "")


def installed_ucx():
    version = " ".join(next(iter(shell("ucx_info", "-v").splitlines()), "").split()[-1:])
    return Release(version, "installed") if version else None


def installed_libfabric():
    version = fabric_version("fi_info")
    return Release(version, "installed") if version else None


class Peers:
    """`ucx`, `libfabric`: the newest, or what is installed if it cannot be had, or None.
    `older_ucx`: the installed one beside a newer. `notes`: what could not be had, and why."""

    def __init__(self, libfabric=True):
        self.notes = []
        installed = installed_ucx()
        self.ucx = self._newest("UCX", newest_ucx, installed)
        self.older_ucx = installed if self.ucx is not installed else None
        self.libfabric = libfabric and self._newest(
            "libfabric", newest_libfabric, installed_libfabric()
        )

    def _newest(self, name, newest, installed):
        try:
            return newest()
        except (
            OSError, StopIteration, subprocess.TimeoutExpired, zipfile.BadZipFile
        ) as error:
            instead = f"{installed.version} in its place" if installed else "none in its place"
            self.notes.append(f"the newest {name} could not be had ({error}): {instead}")
            return installed

    def versions(self):
        named = [("UCX", self.ucx), ("UCX", self.older_ucx), ("libfabric", self.libfabric)]
        return [f"{name} {r.version} ({r.source})" for name, r in named if r]
