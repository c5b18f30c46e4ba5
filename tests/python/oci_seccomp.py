#!/usr/bin/env python3
"""oci_seccomp.py PROFILE: a profile of docker's and podman's kind as the OCI's runtimes take it,
for a container without capabilities on this machine."""

import json
import os
import sys

profile = json.load(open(sys.argv[1]))
machine = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
rules = []
for rule in profile["syscalls"]:
    includes, excludes = rule.get("includes") or {}, rule.get("excludes") or {}
    if includes.get("caps") or machine not in (includes.get("arches") or [machine]):
        continue
    if machine in (excludes.get("arches") or []):
        continue
    kept = {key: rule[key] for key in ("action", "args", "errnoRet") if rule.get(key) is not None}
    rules.append({"names": rule["names"], **kept})
kernel = "SCMP_ARCH_" + os.uname().machine.upper()
keys = ("defaultAction", "defaultErrnoRet")
print(json.dumps({**{k: profile[k] for k in keys if k in profile},
                  "architectures": [kernel], "syscalls": rules}))
