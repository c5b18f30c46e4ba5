# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a page of results says of the machine, its load and the programs."""

import datetime
import os
import platform
import subprocess
import time

import proc

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def shell(*command):
    try:
        return subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=10
        ).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def first_line(path, field):
    try:
        return next(line.split(":", 1)[1].strip() for line in open(path) if line.startswith(field))
    except (OSError, StopIteration):
        return "unknown"


def busy(seconds=1.0):
    """The share of the CPUs that other programs take while this one is idle."""
    def ticks():
        values = [int(v) for v in open("/proc/stat").readline().split()[1:9]]
        return sum(values), values[3] + values[4]

    total, idle = ticks()
    time.sleep(seconds)
    total_after, idle_after = ticks()
    return 1 - (idle_after - idle) / max(1, total_after - total)


class Before:
    """The machine before the first measurement, which is printed."""

    def __init__(self):
        self.load, self.began = os.getloadavg(), datetime.datetime.now(datetime.timezone.utc)
        self.busy = busy()
        print(
            f"load average {self.load[0]:.2f}, {self.busy:.0%} of the CPUs busy; cores "
            f"{proc.cores()}",
            flush=True,
        )


def compiled(folder, name, *libraries):
    """Compiles a program of this folder into another one; returns its path."""
    program = os.path.join(folder, name)
    subprocess.run([os.environ.get("CC", "cc"), "-std=c11", "-O2",
                    "-I", os.path.join(ROOT, "tests/c"), "-o", program,
                    os.path.join(ROOT, f"bench/compare/{name}.c"), *libraries], check=True)
    return program


def compile_bare(folder):
    """The program of bare sockets."""
    return compiled(folder, "bare", "-lm")


def compile_floor(folder):
    """The program of the floor of a SEND and RECV."""
    return compiled(folder, "floor")


def compile_verbs_rate(folder):
    """The program of threads on verbs. None: there are no headers of libibverbs."""
    if not os.path.exists("/usr/include/infiniband/verbs.h"):
        return None
    return compiled(folder, "verbs_rate", "-libverbs", "-lpthread")


def tools(*names):
    """The versions of other programs, of those that are installed."""
    known = {
        "iperf3": " ".join(shell("iperf3", "--version").split()[1:2]),
        "rsync": " ".join(shell("rsync", "--version").split()[2:3]),
    }
    return [f"{name} {known[name]}" for name in names if known[name]]


def facts_of(args, before, peers):
    """`peers`: their names and versions."""
    commit = shell("git", "rev-parse", "--short=12", "HEAD") or "unknown"
    changed = [
        line
        for line in shell("git", "status", "--porcelain", "--untracked-files=no").splitlines()
        if not line[2:]
        .strip()
        .startswith(("bench/RESULTS", "bench/latency.svg", "bench/bandwidth.svg"))
    ]
    load = lambda values: " ".join(f"{v:.2f}" for v in values)
    busy_after = busy()
    quiet = "" if max(before.busy, busy_after) < 0.1 else ": take the figures with care"
    return [
        ("date", before.began.strftime("%Y-%m-%d %H:%M UTC")),
        ("commit", commit + (" with local changes" if changed else "")),
        (
            "machine",
            f"{first_line('/proc/cpuinfo', 'model name')}, {os.cpu_count()} CPUs, "
            f"{int(first_line('/proc/meminfo', 'MemTotal').split()[0]) // 1048576} GiB",
        ),
        ("kernel", f"{platform.system()} {platform.release()} {platform.machine()}"),
        (
            "socket buffers",
            "default " + open("/proc/sys/net/core/rmem_default").read().strip() + " bytes",
        ),
        ("cores", "server %d, client %d" % proc.cores()),
        ("load average before", load(before.load)),
        ("load average after", load(os.getloadavg())),
        (
            "CPUs busy with other programs",
            f"{before.busy:.0%} before, {busy_after:.0%} after{quiet}",
        ),
        ("rounds", f"{args.rounds}, counts x {args.scale:g}"),
        ("peers", ", ".join(peers) or "none installed"),
    ]
