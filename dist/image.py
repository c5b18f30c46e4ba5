"""The OCI archive: an image of a small Debian with the tools of libibverbs, in which gdrcore-run is
the entry point."""

import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import tarfile
import time

import tars

# Of the packages' programs, the tools of libibverbs and perftest.
TOOLS = "usr/bin/ib"
# What libc loads by itself.
LOADED = ["libnss_files.so.2"]
OF_GDRCORE = ("usr/bin/", "usr/lib/", "usr/share/doc/gdrcore/LICENSE")
DROPPED = (".a", ".pc", ".cmake", ".conf", ".service", ".socket")
USERS = "root:x:0:0:root:/:/usr/sbin/nologin\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"


def needed(file):
    """The names of the libraries that a program or library is linked to."""
    told = subprocess.run(["readelf", "-d", str(file)], check=True, stdout=subprocess.PIPE)
    return re.findall(r"\(NEEDED\).*\[(.*)\]", told.stdout.decode())


def chosen(release):
    """Files by their names in the image."""
    base, system = (release.trees / "base").resolve(), release.trees / "system"
    found, libraries = {}, {}
    for file in tars.files(base):
        name = str(file.relative_to(base))
        if ".so" in file.name:
            libraries.setdefault(file.name, []).append((name, file))
        if name.startswith(TOOLS) or name.endswith("/copyright"):
            found[name] = file
    for file in tars.files(system):
        name = str(file.relative_to(system))
        if name.startswith(OF_GDRCORE) and not name.endswith(DROPPED):
            found[name] = file
            libraries.setdefault(file.name, [])
    # With the libraries of all of them, and those of these.
    wanted = LOADED + [lib for file in found.values() if tars.is_elf(file) for lib in needed(file)]
    while wanted:
        # Emptied, once they are found. One that is nowhere is an error.
        library = wanted.pop()
        of_name, libraries[library] = libraries[library], []
        for name, file in of_name:
            found[name] = file
            if file.is_symlink():
                wanted.append(os.path.basename(os.readlink(file)))
            elif tars.is_elf(file):
                wanted += needed(file)
    return found


def layer(release):
    """The tar of all files, without compression."""
    out = io.BytesIO()
    with tars.Tar(out, release) as tar:
        for name, mode in (("dev", 0o755), ("proc", 0o555), ("sys", 0o555), ("tmp", 0o1777)):
            tar.put(name, kind=tarfile.DIRTYPE, mode=mode)
        tar.put("etc/passwd", USERS.encode())
        found = chosen(release)
        # From Debian 13 on, libc lies below usr alone. Programs name their loader without it.
        for top in ("lib", "lib64"):
            below = any(name.startswith(f"usr/{top}/") for name in found)
            if below and not any(name.startswith(f"{top}/") for name in found):
                tar.put(top, kind=tarfile.SYMTYPE, mode=0o777, link=f"usr/{top}")
        for name, file in sorted(found.items()):
            tar.add(file, name)
    return out.getvalue()


def make(release):
    entries = []

    def blob(kind, content):
        digest = hashlib.sha256(content).hexdigest()
        entries.append((f"blobs/sha256/{digest}", content))
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}

    def of(value):
        return json.dumps(value, sort_keys=True).encode()

    files = layer(release)
    media = "application/vnd.oci.image"
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(release.epoch))
    config = {
        "architecture": release.debian_arch, "os": "linux", "created": created,
        "config": {
            # Without rights, and without a command: the list of devices.
            "User": "65534:65534", "Env": ["PATH=/usr/bin:/bin"],
            "Entrypoint": ["gdrcore-run"], "Cmd": ["ibv_devinfo"],
            "Labels": {
                "org.opencontainers.image.title": "gdrcore",
                "org.opencontainers.image.version": release.version,
                "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(files).hexdigest()}"]},
    }
    manifest = {
        "schemaVersion": 2, "mediaType": f"{media}.manifest.v1+json",
        "config": blob(f"{media}.config.v1+json", of(config)),
        "layers": [blob(f"{media}.layer.v1.tar+gzip", gzip.compress(files, 9, mtime=0))],
    }
    top = blob(manifest["mediaType"], of(manifest))
    top["annotations"] = {"org.opencontainers.image.ref.name": f"gdrcore:{release.version}"}
    entries.append(("index.json", of({"schemaVersion": 2, "manifests": [top]})))
    entries.append(("oci-layout", of({"imageLayoutVersion": "1.0.0"})))
    path = release.out / f"gdrcore-{release.version}-{release.arch}.oci.tar"
    with tars.Tar(path, release) as tar:
        for name, content in sorted(entries):
            tar.put(name, content)
