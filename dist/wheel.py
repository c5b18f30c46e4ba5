"""The wheel: the module of dist/python, and the relocatable tree below it."""

import base64
import hashlib
import time
import zipfile

METADATA = """Metadata-Version: 2.1
Name: gdrcore
Version: {version}
Summary: RDMA without an RDMA NIC: a soft RoCEv2 device, and programs of libibverbs on it
License: MIT OR Apache-2.0
Classifier: Operating System :: POSIX :: Linux
Classifier: Framework :: Pytest
Classifier: Typing :: Typed
Requires-Python: >=3.8
Description-Content-Type: text/markdown
License-File: LICENSE-APACHE
License-File: LICENSE-MIT

{description}"""

DESCRIPTION = """# gdrcore

RoCEv2 in user space: RDMA programs run where there is no RDMA NIC.

    pip install gdrcore-*.whl
    gdrcore-run ibv_rc_pingpong -g 0

`gdrcore.include_dir()` and `gdrcore.lib_dir()` are for programs in C; the pytest fixtures
`rdma_device` and `rdma_pair` are addresses with a device each.
"""
# Of the tree, what a wheel has: no pages, no units, no static library (a sixth of the wheel, which
# the tarball and libgdrcore-dev have), no libraries under two names.
KEPT = ("bin", "include", "lib")
DROPPED = ("lib/systemd",)


def contents(release):
    """Pairs of a name in the wheel and (bytes, mode)."""
    tree = release.trees / "any/usr/local"
    made = {}
    for source in sorted((release.root / "dist/python/gdrcore").glob("*")):
        if source.is_file():
            text = source.read_text().replace("@VERSION@", release.version)
            made[f"gdrcore/{source.name}"] = (text.encode(), 0o644)
    for file in sorted(tree.rglob("*")):
        name = str(file.relative_to(tree))
        kept = name.startswith(KEPT) and not name.startswith(DROPPED) and file.suffix != ".a"
        if not file.is_file() or not kept:
            continue
        content = file.read_bytes()
        if file.is_symlink():
            # Wheels have no links. Where one is for linking, a line for the linker does; what
            # programs load by that name is a library (trees.sh).
            final = file.resolve().name
            stub = release.trees / "stubs" / file.name
            if stub.is_file():
                content = stub.read_bytes()
            elif name.endswith(".so"):
                soname = final if not final.count(".so.") else ".".join(final.split(".")[:3])
                content = f"INPUT({soname})\n".encode()
        elif name.endswith(f".so.{release.version}"):
            continue
        mode = 0o755 if file.stat().st_mode & 0o100 and content[:4] == b"\x7fELF" else 0o644
        made[f"gdrcore/_root/{name}"] = (content, mode)
    return made


def make(release):
    tag = "py3-none-manylinux_%d_%d_%s" % (*release.glibc, release.arch)
    info = f"gdrcore-{release.version}.dist-info"
    made = contents(release)
    tree = release.trees / "any/usr/local"
    scripts = "".join(
        f"{file.name} = gdrcore.__main__:main\n" for file in sorted((tree / "bin").iterdir())
    )
    texts = {
        "METADATA": METADATA.format(version=release.version, description=DESCRIPTION),
        "WHEEL": f"Wheel-Version: 1.0\nGenerator: gdrcore\nRoot-Is-Purelib: false\nTag: {tag}\n",
        "entry_points.txt": f"[console_scripts]\n{scripts}\n[pytest11]\ngdrcore = "
        "gdrcore.pytest_plugin\n",
        "LICENSE-APACHE": (release.root / "LICENSE-APACHE").read_text(),
        "LICENSE-MIT": (release.root / "LICENSE-MIT").read_text(),
    }
    made.update({f"{info}/{name}": (text.encode(), 0o644) for name, text in texts.items()})
    record = ""
    for name, (content, _) in made.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(content)}\n"
    made[f"{info}/RECORD"] = (f"{record}{info}/RECORD,,\n".encode(), 0o644)
    # Times of zip files begin in 1980.
    when = time.gmtime(max(release.epoch, 315532800))[:6]
    path = release.out / f"gdrcore-{release.version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        for name, (content, mode) in made.items():
            entry = zipfile.ZipInfo(name, when)
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(entry, content)
