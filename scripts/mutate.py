#!/usr/bin/env python3
"""Deliberate faults: each is applied to a copy of the sources, and some named test must notice it.

Usage: mutate.py [--list] [--stale] [--only N[,N...]] [--stages NAME[,NAME...]] [--write]

The copy is a git worktree of HEAD under build/mutants, with a target folder of its own, so that only what a
fault touches is compiled again. For each fault the stages below run in order until one fails; the test that
failed first, or that never ends, is its witness. A fault that nothing notices is a survivor, and makes the exit
status 1. Faults that only another interleaving of threads would show run under loom alone.
--stale only says which faults have no place in the sources any more.
--write puts the rows into the table between the marks in docs/PROOF.md; those of other faults stay.
"""
import os, re, signal, subprocess, sys, tempfile, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TREE = os.path.join(ROOT, "build", "mutants")
TARGET = os.path.join(ROOT, "build", "mutants-target")
# Seconds that a stage may run; more than the 60 after which the test runner names the test that does not end.
LIMIT = 100
# Seconds that compiling may take.
BUILD_LIMIT = 1800
CORE = ["cargo", "test", "-q", "-p", "gdrcore-core"]
SIM = ["-q", "--release", "-p", "sim"]

# Cheap and precise first: name, how it is compiled, how it is run.
STAGES = [
    ("unit", CORE + ["--lib", "--no-run"], CORE + ["--lib"]),
    ("golden", CORE + ["--test", "golden", "--no-run"], CORE + ["--test", "golden"]),
    ("engine", CORE + ["--test", "engine", "--no-run"], CORE + ["--test", "engine"]),
    ("sim", ["cargo", "build"] + SIM, ["cargo", "run"] + SIM + ["--", "--seeds", "0..60"]),
]
# What only another order of two threads' steps shows.
LOOM_TEST = CORE + ["--release", "--test", "loom_ring", "--test", "loom_sleep"]
LOOM = ("loom", LOOM_TEST + ["--no-run"], LOOM_TEST)

R = "core/src/roce/"
# What is wrong then | file | text | what stands there instead | the one stage that can see it, if only one can.
FAULTS = [
    ("a request ahead of the expected PSN by one is executed", R + "responder.rs", "if ahead == 0 {", "if ahead == 0 || ahead == 1 {"),
    ("duplicates are executed again", R + "responder.rs", "if ahead == 0 {", "if ahead <= 0 && ahead > -4_000_000 {"),
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
    ("a WRITE may be longer or shorter than it said", R + "responder.rs",
     "if if run.last { end != total } else { end >= total } {", "if end == u64::MAX && total == 1 {"),
    ("an atomic's duplicate is looked up under any key", R + "responder.rs", "&& r.rkey == run.rkey", ""),
    ("a message may be longer than its receive buffer", R + "responder.rs", "if end > u64::from(recv.length) {", "if false {"),
    ("messages are not counted", R + "responder.rs", "qp.resp.msn = qp.resp.msn.wrapping_add(1);", ""),
    ("a sequence NAK is sent only once, whatever is lost again", R + "responder.rs",
     "if resp.nak_sent && psn.diff(resp.nak_high) > 0 {", "if resp.nak_sent {"),
    ("an RNR timer of the table is wrong", "core/src/wire/timing.rs", "8192, 12288", "8192, 12282"),
    ("an aligned request may reach a misaligned word", R + "responder.rs", "if target.addr & 7 != 0 {", "if false {"),
    ("the lost end of a message is not probed for", R + "mod.rs", "            req.probe = true;\n", ""),
    ("a probe that is lost as well is not repeated", R + "mod.rs",
     "req.probe_at = now.saturating_add(req.probe_wait);", "req.probe_at = 0;"),
    ("a packet larger than the first may join a burst", R + "txbuf.rs", "&& size <= self.seg &&", "&&"),
    ("a burst goes on behind a packet that is shorter", R + "txbuf.rs", "self.closed = true;", ""),
    ("a burst may be larger than a datagram", R + "txbuf.rs", "self.buf.len().min(MAX_BURST)", "self.buf.len()"),
    ("a number rests for one timeout, not four", "core/src/engine/qpn.rs", "saturating_mul(4)", "saturating_mul(1)"),
    ("an SRQ tells its limit one too early", R + "queues.rs", "len - 1 < q.limit", "len - 1 <= q.limit"),
    ("an SRQ tells its limit again and again", R + "queues.rs", "                q.limit = 0;\n", ""),
    ("a SEND that invalidates closes no window", R + "responder.rs",
     "if self.regions.invalidate(run.imm, pd, qpn).is_err() {", "if pd == u32::MAX && qpn == 0 {"),
    ("a window outlives its QP", "core/src/mem/region.rs", "if s.kind == Kind::Mw2 && s.bound && s.qp == qp {", "if false && s.qp == qp {"),
    ("a type 2 window serves every QP", "core/src/mem/region.rs", "if s.kind == Kind::Mw2 && s.qp != qp {", "if false {"),
    ("the ICRC covers the traffic class of IPv6", "core/src/wire/icrc.rs", "&[0x6F, 0xFF, 0xFF, 0xFF,", "&[0x60, 0xFF, 0xFF, 0xFF,"),
    ("the ICRC covers the hop limit of IPv6", "core/src/wire/icrc.rs", "0, 0, ip::PROTO_UDP, 0xFF]", "0, 0, ip::PROTO_UDP, 0x40]"),
    ("a handle outlives its object", "core/src/pool.rs", "g.load(Ordering::Acquire) == generation", "g.load(Ordering::Acquire) >= generation"),
    ("a handle is good for an object of another type", "core/src/pool.rs", "tag == self.tag && generation", "generation"),
    ("a full ring takes one more", "core/src/ring.rs", "self.capacity.saturating_sub(self.tail", "(self.capacity + 1).saturating_sub(self.tail"),
    ("a ring's cursors may not pass 2^32", "core/src/ring.rs", "self.tail = self.tail.wrapping_add(n);", "self.tail = self.tail.saturating_add(n);"),
    ("a cancelled timer fires", "core/src/wheel.rs",
     "if self.is_armed(id) {\n            self.unlink(id as u32);", "if self.is_armed(id) {\n            self.nodes[id].deadline_ns = 0;"),
    ("a timer fires up to a tick early", "core/src/wheel.rs", ".deadline_ns.div_ceil(1 << TICK_SHIFT)", ".deadline_ns.wrapping_shr(TICK_SHIFT)"),
    ("a gap in a UC message is not noticed", R + "responder.rs", "let gap = run.psn != qp.resp.epsn;", "let gap = false;"),
    ("READs under way are not bounded", R + "requester.rs",
     "if is_read {\n            if qp.req.rd_out >= u32::from(qp.attr.max_rd_atomic).max(1) {", "if is_read {\n            if false {"),
    ("PSNs do not wrap", "core/src/wire/psn.rs", "(self.0.wrapping_sub(other.0) << 8) as i32 >> 8", "self.0 as i32 - other.0 as i32"),
    ("a sleeper looks before it has said so", "core/src/sleep.rs",
     "// The sleeper's fence: our word is written before we look for work. Pairs with the producer's.\n        fence(Ordering::SeqCst);",
     "fence(Ordering::AcqRel);", LOOM),
    ("a producer looks before it has published", "core/src/sleep.rs",
     "// The producer's fence: what we have published is written before we look at the word. Pairs with the sleeper's.\n        fence(Ordering::SeqCst);",
     "fence(Ordering::AcqRel);", LOOM),
    ("two producers wake the same sleeper", "core/src/sleep.rs", "self.0.swap(AWAKE, Ordering::Relaxed) >= urgency",
     "{ self.0.store(AWAKE, Ordering::Relaxed); true }", LOOM),
    ("a ring publishes before the slot is written", "core/src/ring.rs",
     "self.ring.producing.cursor.store(self.tail, Ordering::Release)", "self.ring.producing.cursor.store(self.tail, Ordering::Relaxed)", LOOM),
    ("a bit may be seen before what was written ahead of it", "core/src/bitmap.rs",
     "self.leaves[leaf].fetch_or(bit, Ordering::Release)", "self.leaves[leaf].fetch_or(bit, Ordering::Relaxed)", LOOM),
    ("a bitmap's summary is only set where it looks clear", "core/src/bitmap.rs",
     "self.leaves[leaf].fetch_or(bit, Ordering::Release) & bit == 0 {",
     "self.leaves[leaf].fetch_or(bit, Ordering::Release) & bit == 0 && self.top.summary.load(Ordering::Relaxed) >> (leaf % WORD) & 1 == 0 {", LOOM),
    ("a window is filled with bursts of any size", R + "requester.rs", "fits < burst / 2 && self.req.una_psn", "false && self.req.una_psn"),
    ("a small message is taken whatever its PSN", R + "lone.rs", "if psn != qp.resp.epsn ||", "if"),
    ("a small message may be longer than its receive buffer", R + "lone.rs", "if len as u64 > u64::from(sge.length) {", "if false {"),
    ("a small message is not kept back by a closed window", R + "lone.rs", "if peer.tx.available(0) == 0 {", "if false {"),
    ("an ACK ends a small request that it is not about", R + "lone.rs", "ws.npkts != 1 || ws.psn != psn ||", "ws.npkts != 1 ||"),
    ("a small request takes a promised completion", R + "lone.rs", "if ring.free() <= cq.reserved {", "if ring.free() == 0 {"),
    ("a small message is taken from any address", R + "lone.rs", "if peer.addr.gid != *gid ||", "if"),
    ("a WRITE into mapped memory overtakes what was posted before", R + "mapped.rs",
     "r.acked == r.next && r.una_psn == r.max_psn && r.next_psn == r.max_psn", "true"),
    ("memory that ends half way counts as written", R + "mapped.rs", "Stretch::No => placed = false,", "Stretch::No => at = wqe.length,"),
    ("a region is lent to whoever names its key", R + "mapped.rs", "&& qp.attr.dest_qp_num == from_qpn", ""),
    ("a region that peers may not write is lent", R + "mapped.rs",
     ".filter(|region| region.access & access::REMOTE_WRITE != 0)", ""),
    ("READs that a limit of the rate has cut stay counted", R + "completer.rs", "qp.req.rd_out = 0;", ""),
    ("what is handed to a poll raises no armed CQ", R + "lone.rs", "!self.has && cq.armed == Armed::No &&", "!self.has &&"),
    ("a request that left without a date never gets one", "core/src/engine/tx.rs",
     "        inner.transport.date(now);\n        let t = &inner.transport;", "        let t = &inner.transport;"),
    ("a request that is posted alone is not signalled where all are", "core/src/verbs/post.rs",
     "let signaled = if qp.sig_all.load(Relaxed) != 0 { send_flags::SIGNALED } else { 0 };", "let signaled = 0;"),
    ("a WRITE into mapped memory takes a promised completion", R + "mapped.rs",
     "completion.as_ref().is_none_or(|(ring, cq)| ring.free() <= cq.reserved)", "completion.is_none()"),
    ("a short WRITE takes a system call", R + "mapped.rs", "if wqe.length < CARRY_MIN || wqe.inline != 0 {", "if wqe.inline != 0 {"),
    ("a stream of long WRITEs never leaves the packets", R + "mapped.rs",
     "len >= CARRY_MIN && len.saturating_mul(before.into()) >= FILLS_A_RING", "false"),
    ("a call takes the bytes of a key that was refused", R + "mapped.rs", "            _ => return (0, 0),", "            _ => break,"),
]


def sh(args, timeout):
    """Runs a command in the copy. What it started ends with it, also when its time is over."""
    env = dict(os.environ, CARGO_TARGET_DIR=TARGET, RUST_BACKTRACE="0")
    # Compiling is most of the time.
    env.update(CARGO_PROFILE_RELEASE_LTO="off", CARGO_PROFILE_RELEASE_CODEGEN_UNITS="16", CARGO_PROFILE_DEV_DEBUG="0")
    if "loom_ring" in args:
        env.update(RUSTFLAGS="--cfg loom", CARGO_TARGET_DIR=TARGET + "-loom")
    with tempfile.TemporaryFile("w+") as out:
        p = subprocess.Popen(args, cwd=TREE, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = p.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(p.pid, signal.SIGKILL)
            p.wait()
            code = None
        out.seek(0)
        return subprocess.CompletedProcess(args, code, out.read())


def witness(stage, text):
    for pattern, ending in (
        (r"^---- (\S+) stdout ----", ""),
        (r"^test (\S+) \.\.\. FAILED", ""),
        (r"^test (\S+) has been running", ", which never ends"),
        (r"(seed \d+)", ""),
    ):
        found = re.search(pattern, text, re.M)
        if found:
            return f"{stage}: {found.group(1)}{ending}"
    return None


def try_fault(fault):
    what, path, old, new = fault[:4]
    stages = fault[4:] or STAGES
    full = os.path.join(TREE, path)
    source = open(full).read()
    if old not in source:
        return "stale: the text is not there any more", False
    try:
        with open(full, "w") as f:
            f.write(source.replace(old, new))
        for stage, build, command in stages:
            made = sh(build, BUILD_LIMIT)
            if made.returncode:
                return "stale: does not compile\n" + made.stdout[-2000:], False
            run = sh(command, LIMIT)
            if run.returncode is None:
                return witness(stage, run.stdout) or f"{stage}: did not end", True
            if run.returncode:
                return witness(stage, run.stdout) or f"{stage}: exit {run.returncode}", True
        return "**nobody yet** (" + ", ".join(s[0] for s in stages) + ")", False
    finally:
        with open(full, "w") as f:
            f.write(source)


def main():
    args = sys.argv[1:]
    known = ("--list", "--stale", "--only", "--stages", "--write")
    if any(a.startswith("-") and a not in known for a in args):
        # It would run for an hour.
        print(__doc__, file=sys.stdout if args in (["-h"], ["--help"]) else sys.stderr)
        return 0 if args in (["-h"], ["--help"]) else 2
    if "--list" in args:
        for i, f in enumerate(FAULTS, 1):
            print(f"{i:2} {f[0]} ({f[1]})")
        return 0
    if "--stale" in args:
        stale = [i for i, f in enumerate(FAULTS, 1) if open(os.path.join(ROOT, f[1])).read().count(f[2]) == 0]
        for i in stale:
            print(f"{i:2} {FAULTS[i - 1][0]} ({FAULTS[i - 1][1]})")
        print(f"{len(FAULTS) - len(stale)} passed, {len(stale)} failed")
        return 1 if stale else 0
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
    for stage, build, command in STAGES + [LOOM]:
        if sh(build, BUILD_LIMIT).returncode or sh(command, BUILD_LIMIT).returncode != 0:
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
        former = re.search(r"<!-- mutants -->\n(.*?)<!-- end -->", text, flags=re.S)[1] if only else ""
        numbered = {int(r.split("|")[1]): r for r in former.splitlines()[2:] + rows}
        table = "\n".join(["| | fault | where | noticed by |", "|---|---|---|---|"] + [numbered[i] for i in sorted(numbered)])
        text = re.sub(r"(<!-- mutants -->\n).*?(<!-- end -->)", lambda m: m[1] + table + "\n" + m[2], text, flags=re.S)
        with open(page, "w") as f:
            f.write(text)
    return 1 if bad else 0


sys.exit(main())
