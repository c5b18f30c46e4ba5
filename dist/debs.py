"""The Debian packages, by dpkg-deb, of the tree that is installed below /usr."""

import gzip
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import textwrap
import time
from pathlib import Path

import tars

MAINTAINER = "gdrcore maintainers <maintainers@gdrcore.invalid>"
# By package: section, what it is, in a line and in a paragraph, what it needs besides libc, and
# its files below /usr; LIB is the folder of the architecture's libraries.
PACKAGES = {
    "libgdrcore0": (
        "libs", "RDMA without an RDMA NIC (library)",
        "A program with this library is an RDMA device: RoCEv2 in user space, without privileges\n"
        "and without a kernel module.",
        [], ["LIB/libgdrcore.so.*"],
    ),
    "libgdrcore-dev": (
        "libdevel", "RDMA without an RDMA NIC (header and static library)",
        "What programs are compiled with that use libgdrcore.",
        ["libgdrcore0 (= VERSION)"],
        ["include/gdrcore.h", "LIB/libgdrcore.so", "LIB/libgdrcore.a", "LIB/pkgconfig/*",
         "LIB/cmake/*"],
    ),
    "gdrcore-tools": (
        "net", "measure, ping and copy by RDMA, with or without an RDMA NIC",
        "The command gdrcore, whose doctor says what keeps RDMA from working, and programs over\n"
        "libgdrcore: a measurement of rates and latencies, a ping, a ping-pong, a list of\n"
        "devices, and a file copy.",
        ["libgdrcore0 (= VERSION)"],
        ["bin/gdrcore", "bin/gdrcore-perf", "bin/gdrcore-pingpong", "bin/gdrcore-devinfo",
         "bin/gdrcore-ping", "bin/gdrcore-gpu-*", "bin/rdma_copy_file",
         "share/gdrcore/gdrcore.lua", "share/man/man1/gdrcore-doctor.1",
         "share/man/man1/gdrcore-top.1"],
    ),
    "gdrcore-ibverbs": (
        "net", "run programs of libibverbs without an RDMA NIC",
        "gdrcore-run starts a program that was written for libibverbs or librdmacm, with a\n"
        "libibverbs over a soft RoCEv2 device in place of the system's. The system's stays.",
        [], ["bin/gdrcore-run", "LIB/gdrcore/*.so*"],
    ),
    "gdrcore-router": (
        "net", "router of RDMA for the containers of a host",
        "gdrcore-routerd joins containers of one host or of many by RDMA, with permissions,\n"
        "addresses, rates and weights by tenant. It starts when its policy is written and its\n"
        "socket unit is enabled.",
        ["adduser"], ["bin/gdrcore-router*", "LIB/gdrcore/mempool/*", "lib/systemd/system/*"],
    ),
}
# Of each program of a package, besides.
OF_PROGRAM = ["share/man/*/%s.[1-8]", "share/bash-completion/*/%s", "share/zsh/*/_%s",
              "share/fish/*/%s.fish"]
# What no package has as it stands: each has pages of its own, the router's makes its user, and the
# module for NICs, where it was built, is of this machine.
NOT_PACKED = re.compile("share/doc/|lib/sysusers.d/|.*/libgdrcore_verbs.so$")
LDCONFIG = "activate-noawait ldconfig\n"
# The router's user, and a service that ends with its package.
ROUTER_SCRIPTS = {
    "postinst": """if [ "$1" = configure ]; then
    adduser --system --group --quiet --home /nonexistent --no-create-home gdrcore
    if [ -d /run/systemd/system ]; then
        systemctl --system daemon-reload || true
        deb-systemd-invoke try-restart gdrcore-routerd.service || true
    fi
fi
""",
    "prerm": """if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    deb-systemd-invoke stop gdrcore-routerd.socket gdrcore-routerd.service || true
fi
""",
    "postrm": """if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl --system daemon-reload || true
fi
if [ "$1" = purge ]; then
    if command -v deb-systemd-helper >/dev/null; then
        deb-systemd-helper purge gdrcore-routerd.socket gdrcore-routerd.service || true
    fi
    # The key of sessions: the user's number may be given to another.
    rm -rf /run/gdrcore
    if command -v deluser >/dev/null; then
        deluser --system --quiet gdrcore
    fi
fi
""",
}
COPYRIGHT = """Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: gdrcore

Files: *
Copyright: The gdrcore authors
License: Expat or Apache-2.0

License: Apache-2.0
 On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.

License: Expat
"""


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(0o644)


def packed(text):
    return gzip.compress(text.encode(), 9, mtime=0)


def indented(text):
    """A paragraph as it stands in a field of Debian's: a blank line is a dot."""
    return "".join(f" {line.rstrip() or '.'}\n" for line in text.splitlines())


def changelog(name, release):
    date = time.strftime("%a, %d %b %Y %H:%M:%S +0000", time.gmtime(release.epoch))
    return (
        f"{name} ({release.version}) unstable; urgency=medium\n\n"
        f"  * Release {release.version}.\n\n -- {MAINTAINER}  {date}\n"
    )


def fill(at, name, row, release):
    """Lays out a package's files in a folder; returns what it took of the tree."""
    section, is_what, text, needs, patterns = row
    system = release.trees / "system/usr"
    lib = f"lib/{release.arch}-linux-gnu"
    linked = sorted(p for g in patterns for p in system.glob(g.replace("LIB", lib)))
    assert linked, name
    programs = [file.name for file in linked if file.parent == system / "bin"]
    linked += [f for p in programs for pattern in OF_PROGRAM for f in system.glob(pattern % p)]
    for file in linked:
        to = at / "usr" / file.relative_to(system)
        if to.parent.name == "site-functions":
            # Debian's zsh looks for those of packages elsewhere.
            to = to.parent.with_name("vendor-completions") / to.name
        if file.is_relative_to(system / "share/man"):
            put(to.with_name(f"{to.name}.gz"), packed(file.read_text()))
            continue
        to.parent.mkdir(parents=True, exist_ok=True)
        if file.is_dir() and not file.is_symlink():
            shutil.copytree(file, to, symlinks=True)
        else:
            shutil.copy2(file, to, follow_symlinks=False)
        if ".so" in to.name and to.is_file() and not to.is_symlink():
            # The loader needs no right to execute them, and Debian gives none.
            to.chmod(0o644)
    share = at / f"usr/share/doc/{name}"
    put(share / "copyright", COPYRIGHT + indented((release.root / "LICENSE-MIT").read_text()))
    put(share / "changelog.gz", packed(changelog(name, release)))
    control = at / "DEBIAN"
    depends = [f"libc6 (>= {release.glibc[0]}.{release.glibc[1]})"]
    if name != "libgdrcore-dev":
        depends.append("libgcc-s1 (>= 4.2)")
    depends += [need.replace("VERSION", release.version) for need in needs]
    if name == "libgdrcore0":
        put(control / "triggers", LDCONFIG)
        put(control / "shlibs", f"libgdrcore 0 libgdrcore0 (>= {release.version})\n")
    if name == "gdrcore-router":
        put(share / "examples/router.toml", (release.root / "router/units/router.toml").read_text())
        for page in ("ROUTER", "ROUTER-OPERATE", "ROUTER-HOSTS", "REMOTE"):
            text = (release.root / f"docs/using/{page}.md").read_text()
            put(share / f"{page}.md.gz", packed(text))
        unit = at / "usr/lib/systemd/system/gdrcore-routerd.service"
        unit.write_text(
            unit.read_text().replace(
                "/usr/share/doc/gdrcore/docs/using/ROUTER-OPERATE.md",
                f"/usr/share/doc/{name}/ROUTER-OPERATE.md.gz",
            )
        )
        for step, script in ROUTER_SCRIPTS.items():
            put(control / step, f"#!/bin/sh\nset -e\n{script}")
            (control / step).chmod(0o755)
    content = [p for p in sorted(at.glob("usr/**/*")) if p.is_file() and not p.is_symlink()]
    sums = [f"{hashlib.md5(p.read_bytes()).hexdigest()}  {p.relative_to(at)}\n" for p in content]
    put(control / "md5sums", "".join(sums))
    put(
        control / "control",
        f"Package: {name}\nSource: gdrcore\nVersion: {release.version}\n"
        f"Architecture: {release.debian_arch}\nMaintainer: {MAINTAINER}\n"
        f"Installed-Size: {sum(p.stat().st_size for p in content) // 1024 + 1}\n"
        f"Depends: {', '.join(depends)}\nSection: {section}\nPriority: optional\n"
        + ("Multi-Arch: same\n" if name.startswith("lib") else "")
        + f"Description: {is_what}\n{indented(textwrap.fill(text, 72))}",
    )
    return linked


def make(release):
    system = release.trees / "system/usr"
    left = {f for f in tars.files(system) if not NOT_PACKED.match(str(f.relative_to(system)))}
    with tempfile.TemporaryDirectory() as scratch:
        for name, row in PACKAGES.items():
            at = Path(scratch) / name
            at.mkdir()
            taken = fill(at, name, row, release)
            left = {f for f in left if f not in taken and not set(f.parents) & set(taken)}
            for path in [at, *sorted(at.rglob("*"))]:
                if path.is_dir():
                    path.chmod(0o755)
                os.utime(path, (release.epoch, release.epoch), follow_symlinks=False)
            file = release.out / f"{name}_{release.version}_{release.debian_arch}.deb"
            subprocess.run(
                ["dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(at), str(file)],
                check=True, stdout=subprocess.DEVNULL,
                env=dict(os.environ, SOURCE_DATE_EPOCH=str(release.epoch)),
            )
    assert not left, f"in no package: {sorted(left)}"
