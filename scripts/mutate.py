#!/usr/bin/env python3
"""Deliberate faults: each is applied to a copy of the sources, and some named test must notice it.

Usage: mutate.py [--list] [--only N[,N...]] [--stages NAME[,NAME...]] [--write]

The copy is a git worktree of HEAD under build/mutants, with a target folder of its own, so that only what a
fault touches is compiled again. For each fault the stages below run in order until one fails; the test that
failed first is its witness. A fault that nothing notices is a survivor, and makes the exit status 1.
--write puts the table between the marks in docs/PROOF.md.
"""
import os, re, signal, subprocess, sys, tempfile, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TREE = os.path.join(ROOT, "build", "mutants")
TARGET = os.path.join(ROOT, "build", "mutants-target")
LIMIT = 60

# Cheap and precise first.
STAGES = [
    ("unit", ["cargo", "test", "-q", "-p", "gdrcore-core", "--lib"]),
    ("golden", ["cargo", "test", "-q", "-p", "gdrcore-core", "--test", "golden"]),
    ("engine", ["cargo", "test", "-q", "-p", "gdrcore-core", "--test", "engine"]),
    ("sim", ["cargo", "run", "--release", "-q", "-p", "sim", "--", "--seeds", "0..60"]),
    ("sockets", ["cargo", "test", "-q", "-p", "gdrcore-net", "--test", "soft"]),
    ("hostile", ["cargo", "test", "-q", "-p", "gdrcore-tests", "--test", "hostile", "--test", "bounds", "--test", "unhappy"]),
    ("fuzz", ["cargo", "test", "-q", "-p", "gdrcore-fuzz"]),
]

R = "core/src/roce/"
# What is wrong then | file | text | what stands there instead.
FAULTS = [
    ("a request ahead of the expected PSN by one is executed", R + "responder.rs", "if ahead > 0 {", "if ahead > 1 {"),
    ("duplicates are executed again", R + "responder.rs", "if ahead < 0 {", "if ahead < -4_000_000 {"),
    ("acknowledged before slow memory has placed", R + "responder.rs",
     "let waits = resp.placing.is_some() || resp.fence_len > 0;", "let waits = false;"),
    ("the window to a peer never closes", R + "peer.rs", "self.size.saturating_sub(self.inflight)", "self.size"),
    ("an RNR NAK counts as silence", R + "completer.rs", "if qp.attr.rnr_retry != 7 {", "if true {"),
    ("the low byte of a remote key is not looked at", "core/src/mem/region.rs",
     "if s.key != rkey || s.kind == Kind::Free {", "if s.key >> 8 != rkey >> 8 || s.kind == Kind::Free {"),
    ("the ICRC covers the traffic class", "core/src/wire/icrc.rs", "&[0x45, 0xFF, 0, 0, 0, 0, 0x40", "&[0x45, 0x00, 0, 0, 0, 0, 0x40"),
    ("an ACK that passes an unfinished READ is taken for its answer", R + "completer.rs",
     "implied = Some(ws.psn.add(ws.done_pkts));", "implied = None;"),
    ("a READ response of any length is taken", R + "completer.rs",
     "if payload.len() as u64 != want || run.n", "if payload.is_empty() && want > 0 || run.n"),
    ("access flags of a region are not looked at", "core/src/mem/region.rs", "if s.access & need != need {", "if false {"),
    ("a region may be written without LOCAL_WRITE", "core/src/mem/region.rs",
     "if write && s.access & access::LOCAL_WRITE == 0 {", "if false {"),
    ("a retransmission begins one packet late", R + "requester.rs", "qp.req.cur_pkt = into as u32;",
     "qp.req.cur_pkt = (into as u32 + 1).min(ws.npkts - 1);"),
    ("a receive does not reserve its completion", R + "queues.rs", "self.cqs[rcq].reserved += 1;", ""),
    ("FENCE is ignored", R + "requester.rs", "if wqe.is_fenced() {", "if false {"),
    ("the Q_Key of a datagram is not looked at", R + "datagram.rs", "run.qkey != qp.attr.qkey", "false"),
    ("the P_Key is not looked at", R + "mod.rs", "if run.pkey & 0x7fff != 0x7fff {", "if false {"),
    ("packets are taken from any address", R + "mod.rs", "if peer.addr.gid != from.gid ||", "if false &&"),
    ("a QPN is used again at once", "core/src/engine/qpn.rs", "first.until_ms > now_ns / 1_000_000", "false"),
    ("an unsignalled failure is not reported", R + "queues.rs", "if status != wc_status::SUCCESS || wqe.is_signaled() {",
     "if wqe.is_signaled() {"),
    ("retries never run out", R + "requester.rs", "qp.req.retry_left -= 1;", ""),
    ("a READ forgets what has arrived", R + "completer.rs", "qp.wqe(index).done_pkts = done;", "qp.wqe(index).done_pkts = done - 1;"),
    ("pad bytes count as payload", R + "run.rs", "usize::from(bth.pad)", "usize::from(bth.pad & 0)"),
    ("receives are not flushed", R + "queues.rs", "self.flush_rq(s, qi);\n", "()\n"),
    ("an atomic may be misaligned", R + "responder.rs", "if run.va & 7 != 0 {", "if false {"),
    ("a WRITE may be longer than it said", R + "responder.rs",
     "if if run.last { end != total } else { end >= total } {", "if end == u64::MAX && total == 1 {"),
    ("an atomic's duplicate is looked up under any key", R + "responder.rs", "&& r.rkey == run.rkey", ""),
    ("a message may be longer than its receive buffer", R + "responder.rs", "if end > u64::from(recv.length) {", "if false {"),
    ("messages are not counted", R + "responder.rs", "qp.resp.msn = qp.resp.msn.wrapping_add(1);", ""),
    ("a sequence NAK is sent only once, whatever is lost again", R + "responder.rs",
     "if resp.nak_sent && psn.diff(resp.nak_high) > 0 {", "if resp.nak_sent {"),
    ("an RNR timer of the table is wrong", "core/src/wire/timing.rs", "8192, 12288", "8192, 12282"),
]


def sh(args, timeout):
    """Runs a command in the copy. What it started ends with it, also when its time is over."""
    env = dict(os.environ, CARGO_TARGET_DIR=TARGET, CARGO_PROFILE_RELEASE_LTO="off", RUST_BACKTRACE="0")
    with tempfile.TemporaryFile("w+") as out:
        p = subprocess.Popen(args, cwd=TREE, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = p.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(p.pid, signal.SIGKILL)
            p.wait()
            raise
        out.seek(0)
        return subprocess.CompletedProcess(args, code, out.read())


def witness(stage, text):
    for pattern in (r"^---- (\S+) stdout ----", r"^test (\S+) \.\.\. FAILED", r"(seed \d+)"):
        found = re.search(pattern, text, re.M)
        if found:
            return f"{stage}: {found.group(1)}"
    return None


def try_fault(fault):
    what, path, old, new = fault
    full = os.path.join(TREE, path)
    source = open(full).read()
    if old not in source:
        return "stale: the text is not there any more", False
    try:
        with open(full, "w") as f:
            f.write(source.replace(old, new))
        for stage, command in STAGES:
            try:
                run = sh(command, timeout=LIMIT)
            except subprocess.TimeoutExpired:
                return f"{stage}: did not end", True
            if run.returncode:
                if "could not compile" in run.stdout:
                    return "stale: does not compile\n" + run.stdout[-2000:], False
                return witness(stage, run.stdout) or f"{stage}: exit {run.returncode}", True
        return "SURVIVES", False
    finally:
        with open(full, "w") as f:
            f.write(source)


def main():
    args = sys.argv[1:]
    if "--list" in args:
        for i, f in enumerate(FAULTS, 1):
            print(f"{i:2} {f[0]} ({f[1]})")
        return 0
    only = None
    if "--only" in args:
        only = {int(n) for n in args[args.index("--only") + 1].split(",")}
    if "--stages" in args:
        wanted = args[args.index("--stages") + 1].split(",")
        STAGES[:] = [s for s in STAGES if s[0] in wanted]
    if not os.path.isdir(TREE):
        subprocess.run(["git", "worktree", "add", "--detach", TREE], cwd=ROOT, check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    subprocess.run(["git", "checkout", "-q", "--force", "--detach", head], cwd=TREE, check=True)
    for stage, command in STAGES:
        if sh(command, timeout=1800).returncode:
            print(f"{stage} fails without any fault; nothing can be learnt")
            return 1
    rows, bad = [], 0
    for i, fault in enumerate(FAULTS, 1):
        if only and i not in only:
            continue
        start = time.time()
        result, noticed = try_fault(fault)
        bad += not noticed
        print(f"{i:2} {fault[0]}: {result} ({time.time() - start:.0f} s)", flush=True)
        rows.append(f"| {i} | {fault[0]} | `{fault[1]}` | {result.splitlines()[0]} |")
    print(f"{len(rows) - bad} passed, {bad} failed")
    if "--write" in args:
        page = os.path.join(ROOT, "docs", "PROOF.md")
        text = open(page).read()
        table = "\n".join(["| | fault | where | noticed by |", "|---|---|---|---|"] + rows)
        text = re.sub(r"(<!-- mutants -->\n).*?(<!-- end -->)", lambda m: m[1] + table + "\n" + m[2], text, flags=re.S)
        with open(page, "w") as f:
            f.write(text)
    return 1 if bad else 0


sys.exit(main())
