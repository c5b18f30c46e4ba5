"""The list of a release's parts (SBOM), as CycloneDX JSON: the crates that its programs and
libraries are linked from, with the checksums of Cargo.lock."""

import datetime
import json
import os
import re
import subprocess

# The packages whose programs and libraries are packed.
PACKED = [
    "gdrcore", "gdrcore-dropin", "gdrcore-mlx5", "gdrcore-preload", "gdrcore-run",
    "gdrcore-cli", "gdrcore-router", "gdrcore-mempool", "gdrcore-router-etcd",
]


def linked(root):
    """Each crate as (name, version, licence), those of build scripts and tests left out."""
    names = [word for package in PACKED for word in ("-p", package)]
    told = subprocess.run(
        [os.environ.get("CARGO", "cargo"), "tree", "--locked", "--offline", "--edges", "normal",
         "--prefix", "none", "--no-dedupe", "--format", "{p}|{l}", *names],
        cwd=root, check=True, stdout=subprocess.PIPE,
    ).stdout.decode()
    crates = set()
    for line in filter(None, told.splitlines()):
        package, licence = line.split("|")
        name, version = package.split(" ")[:2]
        crates.add((name, version.lstrip("v"), licence.replace("/", " OR ")))
    return sorted(crates)


def make(release, name):
    lock = (release.root / "Cargo.lock").read_text()
    sums = {
        (found[0], found[1]): found[2]
        for found in re.findall(
            r'name = "(.*)"\nversion = "(.*)"\nsource = ".*"\nchecksum = "(.*)"', lock
        )
    }
    components = []
    for crate, version, licence in linked(release.root):
        component = {
            "type": "library", "name": crate, "version": version,
            "purl": f"pkg:cargo/{crate}@{version}",
            "licenses": [{"expression": licence}],
        }
        if (crate, version) in sums:
            component["hashes"] = [{"alg": "SHA-256", "content": sums[crate, version]}]
        components.append(component)
    when = datetime.datetime.fromtimestamp(release.epoch, datetime.timezone.utc)
    listed = {
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {
            "timestamp": when.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {"type": "library", "name": "gdrcore", "version": release.version},
        },
        "components": components,
    }
    path = release.out / f"{name}.cdx.json"
    path.write_text(json.dumps(listed, indent=1) + "\n")
