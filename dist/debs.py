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

MAINTAINER = "The gdrcore maintainers <gdrcore@example.org>"
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
         "share/bash-completion/completions/gdrcore"],
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
        [], ["bin/gdrcore-router*", "LIB/gdrcore/mempool/*", "lib/systemd/system/*"],
    ),
}
POLICY = """# A policy of gdrcore-routerd: two containers of this host, which may reach each
# other. It is read as /etc/gdrcore/router.toml.
[tenant.blue]
listen = "/run/gdrcore/t/blue/tenant.gdrc"
[tenant.red]
listen = "/run/gdrcore/t/red/tenant.gdrc"
"""
LDCONFIG = "activate-noawait ldconfig\n"
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


def man_page(name, is_what, program, release, lib):
    """A manual page: the program's --help as it is."""
    environment = dict(os.environ, LD_LIBRARY_PATH=str(lib), LC_ALL="C", HOME="/nonexistent")
    help_text = subprocess.run(
        [str(program), "--help"], check=True, stdout=subprocess.PIPE, env=environment, timeout=60
    ).stdout.decode()
    verbatim = help_text.replace("\\", "\\e").replace("-", "\\-")
    verbatim = re.sub(r"^(['.])", r"\\&\1", verbatim, flags=re.M)
    date = time.strftime("%Y-%m-%d", time.gmtime(release.epoch))
    escaped = name.replace("-", "\\-")
    section = "8" if name.startswith("gdrcore-router") else "1"
    page = (
        f'.TH "{name.upper()}" "{section}" "{date}" "gdrcore {release.version}"\n'
        f".SH NAME\n{escaped} \\- {is_what}\n.SH DESCRIPTION\n.nf\n{verbatim}.fi\n"
    )
    return section, page


def changelog(name, release):
    date = time.strftime("%a, %d %b %Y %H:%M:%S +0000", time.gmtime(release.epoch))
    return (
        f"{name} ({release.version}) unstable; urgency=medium\n\n"
        f"  * Release {release.version}.\n\n -- {MAINTAINER}  {date}\n"
    )


def fill(at, name, row, release):
    """Lays out a package's files in a folder."""
    section, is_what, text, needs, patterns = row
    system = release.trees / "system/usr"
    lib = f"lib/{release.arch}-linux-gnu"
    linked = sorted(p for g in patterns for p in system.glob(g.replace("LIB", lib)))
    assert linked, name
    for file in linked:
        to = at / "usr" / file.relative_to(system)
        to.parent.mkdir(parents=True, exist_ok=True)
        if file.is_dir() and not file.is_symlink():
            shutil.copytree(file, to, symlinks=True)
        else:
            shutil.copy2(file, to, follow_symlinks=False)
        if ".so" in to.name and to.is_file() and not to.is_symlink():
            # The loader needs no right to execute them, and Debian gives none.
            to.chmod(0o644)
        if file.parent == system / "bin":
            told = release.programs[file.name]
            number, page = man_page(file.name, told, file, release, system / lib)
            put(at / f"usr/share/man/man{number}/{file.name}.{number}.gz", packed(page))
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
        put(share / "examples/router.toml", POLICY)
        put(share / "ROUTER.md.gz", packed((release.root / "docs/ROUTER.md").read_text()))
        unit = at / "usr/lib/systemd/system/gdrcore-routerd.service"
        unit.write_text(
            unit.read_text().replace(
                "/usr/share/doc/gdrcore/docs/ROUTER.md", f"/usr/share/doc/{name}/ROUTER.md.gz"
            )
        )
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


def make(release):
    with tempfile.TemporaryDirectory() as scratch:
        for name, row in PACKAGES.items():
            at = Path(scratch) / name
            at.mkdir()
            fill(at, name, row, release)
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
