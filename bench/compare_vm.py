# SPDX-License-Identifier: MIT OR Apache-2.0
"""Makes the page of `make compare-vm` from lines "ours|rxe VERB lat|bw SIZE FIGURE"."""

import collections
import datetime
import sys

NAMES = {64: "64 B", 4096: "4 KiB", 65536: "64 KiB", 1048576: "1 MiB"}

figures = collections.defaultdict(list)
for line in open(sys.argv[1]):
    words = line.split()
    if len(words) != 5:
        sys.exit(f"no figure in: {line.strip()}")
    figures[tuple(words[:4])].append(float(words[4]))

print(f"""# Beside rxe, in an emulated machine

Written by `make compare-vm`; not by hand. Our soft device and Linux's rxe over the same pair of
virtual interfaces (MTU 4200, path MTU 4096), in one machine that QEMU emulates without hardware
help, by turns in one run; rxe is driven by perftest, ours by `perf` of the C examples. **The guest
is emulated**: what is compared is instructions, our user's and the kernel's together, and no figure
says anything about hardware. A system call and a copy cost what their instructions cost, and our
CRC-32 finds only those vector instructions that the emulator has.

- date: {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M UTC}
- commit: {sys.argv[2]}
- rounds: {sys.argv[3]}, the figures are the best of each: what else the host does only ever slows
  them
- load average of the host at the end: {" ".join(sys.argv[4].split()[:3])}
""")
for mode, title, unit, better in (
    ("lat", "Latency", "us, median of a run", min), ("bw", "Bandwidth", "MB/s", max),
):
    print(
        f"## {title}\n\n| {unit} | gdrcore | rxe | gdrcore / rxe | ahead |\n"
        f"|---|---:|---:|---:|---|"
    )
    for verb in ("send", "write", "read"):
        for size, name in NAMES.items():
            ours, rxe = (better(figures[who, verb, mode, str(size)]) for who in ("ours", "rxe"))
            ahead = "gdrcore" if better(ours, rxe) == ours else "rxe"
            print(
                f"| {verb.upper()} {name} | {ours:.1f} | {rxe:.1f} | {ours / rxe:.2f} | {ahead} |"
            )
    print()
floor = {size: min(figures["bare", "send", "lat", str(size)]) for size in (64, 4096)}
print(f"""Latency is half of the time there and back, for READ the whole of it. 64 requests
outstanding for bandwidth. The link's counters saw every message of every figure pass.

What bounds our latency: a message of ours is a system call that sends and one that receives, rxe's
is one that rings a bell: the kernel fetches the request, and at the other end puts data and
completion into the program's memory, all outside of any call. An echo of bare UDP sockets over the
same link, which does nothing else, takes {floor[64]:.1f} us for 64 bytes and {floor[4096]:.1f} us
for 4096.

What bounds long messages and bandwidth: each end of ours receives and acknowledges in its own
process, which must have a CPU at that moment, where rxe works in the softirq of whichever CPU is
there. Four guest CPUs on a host with fewer free ones are taken away for some 4 ms at a time (seen
as medians of just that), and our sender then waits for its ACK. So these rows say more of the
host's load (above) than of either stack; on a quiet host one call of ours carries up to 64 KiB of
packets through both halves of the network stack, where rxe sends and receives each for itself.""")
