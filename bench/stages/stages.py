# SPDX-License-Identifier: MIT OR Apache-2.0
"""Instructions and nanoseconds of one operation by stage, from callgrind and from perf's samples.

    stages.py OPERATION LIBRARY COUNT CALLGRIND_FILE NANOSECONDS [PERF_SCRIPT]

The optimiser inlines the whole chain into a handful of functions, so function names are of little
use. Each address is therefore resolved to its inlined frames (addr2line -i), and counts for the
innermost frame whose file is in STAGES. Files that every stage uses (rings, tables, PSNs) are not
in that list: they count for the caller. """
import collections
import re
import subprocess
import sys

STAGES = [
    ("C call: context, fork, handles", ["ffi/src/"]),
    ("post: the request into its ring", ["core/src/verbs/post.rs"]),
    ("doorbell and lock", ["backends/net/src/soft/", "core/src/engine/mod.rs"]),
    ("ring of the link", ["backends/net/src/shm/"]),
    ("socket: headers of the calls", ["backends/net/src/udp", "backends/net/src/addr.rs"]),
    ("ICRC", ["core/src/wire/icrc"]),
    ("headers of packets", ["core/src/wire/", "core/src/roce/run.rs"]),
    ("packets in", ["core/src/engine/rx.rs"]),
    ("clock", ["backends/net/src/clock.rs"]),
    ("choice of queue pairs with work", ["core/src/engine/tx.rs"]),
    ("requester: WQE to run", ["core/src/roce/requester.rs", "core/src/roce/datagram.rs"]),
    ("hand-over of the run", ["core/src/roce/txbuf.rs"]),
    (
        "responder: sender, permission, order",
        ["core/src/roce/responder.rs", "core/src/roce/mod.rs", "core/src/roce/rules/receive.rs"],
    ),
    ("keys and placement", ["core/src/mem/"]),
    ("ACK or answer", ["core/src/roce/answers.rs"]),
    ("completer: acknowledged requests", ["core/src/roce/completer.rs"]),
    (
        "single path",
        ["core/src/roce/frame/", "core/src/roce/rules/single.rs", "core/src/roce/peer_write.rs"],
    ),
    ("completion into the CQ", ["core/src/roce/queues.rs"]),
    ("poll: completion to the program", []),
]
POLL = len(STAGES) - 1
CLOCK = next(i for i, (name, _) in enumerate(STAGES) if name == "clock")


def by_address(path):
    """Instructions by (object, address); costs of calls are in lines of their own, which are left
    out."""
    cost, names, current, called = collections.Counter(), {}, None, False
    for line in open(path):
        m = re.match(r"(c?)ob=\((\d+)\)(?: (.*))?", line.rstrip())
        if m:
            if m[3]:
                names[m[2]] = m[3]
            if not m[1]:
                current = names[m[2]]
        elif line.startswith("calls="):
            called = True
        elif line.startswith("0x"):
            if not called:
                address, _, n = line.split()
                cost[current, int(address, 16)] += int(n)
            called = False
    return cost


def samples(path, library):
    """Samples of perf script -F ip,sym,symoff,dso --no-demangle by (object, address)."""
    starts = {}
    for line in subprocess.check_output(["nm", library], text=True).splitlines():
        parts = line.split()
        if len(parts) == 3:
            starts[parts[2]] = int(parts[0], 16)
    count = collections.Counter()
    for line in open(path):
        m = re.match(r"\s*[0-9a-f]+ (\S+?)(?:\+0x([0-9a-f]+))? \((.*)\)", line)
        if m:
            known = "libgdrcore" in m[3] and m[1] in starts
            count[m[3], starts[m[1]] + int(m[2] or "0", 16) if known else 0] += 1
    return count


def frames(library, addresses):
    """Inlined frames of each address, the innermost first, as (function, file)."""
    asked = "\n".join(hex(a) for a in addresses)
    out = subprocess.run(
        ["addr2line", "-e", library, "-a", "-i", "-f", "-C"], input=asked, text=True,
        capture_output=True, check=True,
    )
    stacks, stack, lines = {}, None, iter(out.stdout.splitlines())
    for line in lines:
        if line.startswith("0x"):
            stack = stacks[int(line, 16)] = []
        else:
            stack.append((line, next(lines)))
    return stacks


def stage_of(where, address, stacks):
    """Index into STAGES, or a name for code outside of them."""
    if "libgdrcore" not in where:
        return (
            "the program itself"
            if where.endswith("/loop") or where.endswith("stages-loop")
            else CLOCK
            if "libc" in where or "vdso" in where or "slow.so" in where
            else "else (kernel, linker)"
        )
    for function, place in stacks.get(address, []):
        if "poll_cq" in function:
            return POLL
        for i, (_, files) in enumerate(STAGES):
            if any(f in place for f in files):
                return i
    return "else (kernel, linker)"


def main():
    operation, library, count, callgrind, nanoseconds = sys.argv[1:6]
    cost = by_address(callgrind)
    seen = samples(sys.argv[6], library) if len(sys.argv) > 6 else {}
    addresses = sorted({a for w, a in [*cost, *seen] if "libgdrcore" in w and a})
    stacks = frames(library, addresses)
    instructions, ticks = collections.Counter(), collections.Counter()
    for (where, address), n in cost.items():
        instructions[stage_of(where, address, stacks)] += n
    for (where, address), n in seen.items():
        ticks[stage_of(where, address, stacks)] += n
    total = sum(ticks.values())
    ns = lambda stage: f"{float(nanoseconds) * ticks[stage] / total:.1f}" if total else "-"
    print(f"\n| {operation} | instructions | ns |\n|---|---:|---:|")
    others = [
        s for s in ["the program itself", "else (kernel, linker)"] if instructions[s] or ticks[s]
    ]
    for key, name in [*((i, n) for i, (n, _) in enumerate(STAGES)), *((o, o) for o in others)]:
        if instructions[key] or ticks[key]:
            print(f"| {name} | {instructions[key] / int(count):.0f} | {ns(key)} |")
    print(
        f"| **all** | **{sum(instructions.values()) / int(count):.0f}** | "
        f"**{float(nanoseconds):.0f}** |"
    )


main()
