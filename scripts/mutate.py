#!/usr/bin/env python3
"""Deliberate faults: each is applied to a copy of the sources, and some named test must notice it.

Usage: mutate.py [--list] [--stale] [--only N[,N...]] [--stages NAME[,NAME...]] [--write]

The copy is a git worktree of HEAD under build/mutants, with a target folder of its own, so that
only what a fault touches is compiled again. For each fault the stages below run in order until one
fails; the test that failed first, or that never ends, is its witness. A fault that nothing notices
is a survivor, and makes the exit status 1. Faults that only another interleaving of threads would
show run under loom alone. The test that noticed a fault when it was last recorded runs first, by
itself. --stale only says which faults have no place in the sources any more. --write puts the rows
into the table between the marks in docs/records/PROOF.md; those of other faults stay."""

import os, subprocess, sys, time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
import faults_capi
import faults_class
import faults_dc
import faults_dist
import faults_door
import faults_ends
import faults_flow
import faults_flush
import faults_hosts
import faults_house
import faults_left
import faults_life
import faults_nic
import faults_ports
import faults_qos
import faults_shares
import faults_singles
import faults_strangers
import faults_suite
import faults_tenants
import faults_threads
import faults_transport
import faults_words
import faults_xrc
from fault_trial import BUILD_LIMIT, ROOT, TREE, has_place, record, recorded, sh, try_fault

CORE = ["cargo", "test", "-q", "-p", "gdrcore-core"]
SIM = ["-q", "--release", "-p", "sim"]

# Cheap and precise ones first: name, build command, test command.
STAGES = [
    ("unit", CORE + ["--lib", "--no-run"], CORE + ["--lib"]),
    ("golden", CORE + ["--test", "golden", "--no-run"], CORE + ["--test", "golden"]),
    ("engine", CORE + ["--test", "engine", "--no-run"], CORE + ["--test", "engine"]),
    ("sim", ["cargo", "build"] + SIM, ["cargo", "run"] + SIM + ["--", "--seeds", "0..60"]),
]
# Shows faults that need another order of two threads' steps.
LOOM_TEST = CORE + [
    "--release", "--test", "loom_ring", "--test", "loom_sleep", "--test", "loom_shared",
]
LOOM = ("loom", LOOM_TEST + ["--no-run"], LOOM_TEST)

# Show faults of the library's own processes, and of those of two users (as root).
NET_TEST = ["cargo", "test", "-q", "-p", "gdrcore-net", "--lib"]
NET = ("net", NET_TEST + ["--no-run"], NET_TEST)
USERS_TEST = ["cargo", "test", "-q", "-p", "gdrcore-tests", "--test", "other_users"]
USERS = ("users", USERS_TEST + ["--no-run"], USERS_TEST)

# Shows faults of the handlers of faults.
CHAIN_TEST = ["cargo", "test", "-q", "-p", "gdrcore-net", "--test", "fault_chain"]
CHAIN = ("fault_chain", CHAIN_TEST + ["--no-run"], CHAIN_TEST)

# Shows faults of rdma_copy_file beside files that change.
CHANGING_TEST = ["cargo", "test", "-q", "-p", "gdrcore-tests", "--test", "copy"]
CHANGING = ("changing", CHANGING_TEST + ["--no-run"], CHANGING_TEST + ["changing"])

# Shows faults of the router.
ROUTER_TEST = ["cargo", "test", "-q", "-p", "gdrcore-router"]
ROUTER = ("router", ROUTER_TEST + ["--no-run"], ROUTER_TEST)

def whole(test):
    """The stage of a test that builds whole routers itself."""
    run = ["cargo", "test", "-q", "-p", "gdrcore-tests", "--test", test]
    return (test, run + ["--no-run"], run)


# What those of libmempool.so show.
MEMPOOL_TEST = ["cargo", "test", "-q", "-p", "gdrcore-mempool"]
MEMPOOL = ("mempool", MEMPOOL_TEST + ["--no-run"], MEMPOOL_TEST)

# Those of the kernel's end of librdmacm.
UCMA_TEST = ["cargo", "test", "-q", "-p", "gdrcore-ucma"]
UCMA = ("ucma", UCMA_TEST + ["--no-run"], UCMA_TEST)

# Those of the C API's own crate.
CAPI_TEST = ["cargo", "test", "-q", "-p", "gdrcore"]
CAPI = ("capi", CAPI_TEST + ["--no-run"], CAPI_TEST)

# And those of the libibverbs drop-in.
DROPIN_TEST = ["cargo", "test", "-q", "-p", "gdrcore-dropin", "--lib"]
DROPIN = ("drop-in", DROPIN_TEST + ["--no-run"], DROPIN_TEST)

# And those of the adapter of etcd.
ETCD_TEST = ["cargo", "test", "-q", "-p", "gdrcore-router-etcd"]
ETCD = ("etcd", ETCD_TEST + ["--no-run"], ETCD_TEST)

# Stages by name, for faults that one of them shows.
UNIT, _, ENGINE, _ = STAGES

R = "core/src/roce/"
C = "core/src/cm/"
N = "backends/net/src/"
B = "router/src/broker/"
P = "router/src/policy/"
W = "router/src/relay/"
# The fault in words | file | text, or several | its replacement | the one stage that can notice it,
# if only one can.
FAULTS = [
    ("a request ahead of the expected PSN by one is executed", R + "responder.rs",
     "if ahead == 0 {", "if ahead == 0 || ahead == 1 {"),
    ("duplicates are executed again", R + "responder.rs",
     "if ahead == 0 {", "if ahead <= 0 && ahead > -4_000_000 {"),
    ("a message is acknowledged before slow memory has placed its bytes", R + "responder.rs",
     "let waits = resp.is(rx_block::PLACING | rx_block::FENCES);", "let waits = false;"),
    ("the window to a peer never closes", R + "peer.rs",
     "self.size.saturating_sub(self.inflight)", "self.size"),
    ("an RNR NAK counts as silence", R + "rnr.rs", "if qp.attr.rnr_retry != 7 {", "if true {"),
    ("the low byte of a remote key is not checked", "core/src/mem/region.rs",
     "if s.key != rkey || s.kind == Kind::Free {",
     "if s.key >> 8 != rkey >> 8 || s.kind == Kind::Free {"),
    ("the ICRC covers the traffic class", "core/src/wire/icrc.rs",
     "[0x45, 0xFF, 0, 0, 0, 0, 0x40", "[0x45, 0x00, 0, 0, 0, 0, 0x40"),
    ("an ACK that passes an unfinished READ is taken for its answer", R + "completer.rs",
     "implied = Some(ws.psn.add(ws.done_pkts));", "implied = None;"),
    ("a READ response of any length is accepted", R + "completer.rs",
     "(payload.len() as u64 != want || run.n", "(payload.is_empty() && want > 0 || run.n"),
    ("access flags of a region are not checked", "core/src/mem/region.rs",
     "if s.access & need != need {", "if false {"),
    ("a region may be written without LOCAL_WRITE", "core/src/mem/region.rs",
     "if write && s.access & access::LOCAL_WRITE == 0 {", "if false {"),
    ("a retransmission begins one packet late", R + "requester.rs",
     "qp.conn.req.cur_pkt = into as u32;",
     "qp.conn.req.cur_pkt = (into as u32 + 1).min(ws.npkts - 1);"),
    ("a receive does not reserve its completion", R + "rules/cq.rs", "self.cq.reserved += 1;", ""),
    ("FENCE is ignored", R + "requester.rs",
     "if wqe.is_fenced() && waits_at_fence(qp, sq, index) {", "if false {"),
    ("the Q_Key of a datagram is not checked", R + "datagram.rs",
     "run.qkey != qp.attr.qkey", "false"),
    ("the P_Key is not checked", R + "rules/receive.rs", "|| run.pkey & 0x7fff != 0x7fff {", "{"),
    ("messages are accepted from any address", R + "rules/receive.rs",
     "peer.addr.gid == *gid &&", ""),
    ("a QPN is used again at once", "core/src/engine/qpn.rs",
     "!all && self.slots[list.first as usize].rested_ms(now_ms) < rest_of(class)", "false"),
    ("an unsignalled failure is not reported", R + "rules/complete.rs",
     "if status != wc_status::SUCCESS || wqe.is_signaled() {", "if wqe.is_signaled() {"),
    ("retries never run out", R + "requester.rs", "qp.conn.req.retry_left -= 1;", ""),
    ("a READ forgets what has arrived", R + "completer.rs",
     "qp.wqe(index).done_pkts = done;", "qp.wqe(index).done_pkts = done - 1;"),
    ("pad bytes count as payload", R + "run.rs",
     "usize::from(bth.pad)", "usize::from(bth.pad & 0)"),
    ("receives are not flushed", R + "queues.rs", "self.flush_rq();\n", "()\n"),
    ("an atomic may be misaligned", R + "responder.rs", "if run.va & 7 != 0 {", "if false {"),
    ("a WRITE may be longer or shorter than its DMA length", R + "responder.rs",
     "if if run.last { end != total } else { end >= total } {",
     "if end == u64::MAX && total == 1 {"),
    ("an atomic's duplicate is looked up under any key", R + "responder.rs",
     "&& (bare || r.rkey == run.rkey)", ""),
    ("a message may be longer than its receive buffer", R + "responder.rs",
     "if end > u64::from(recv.length) {", "if false {"),
    ("messages are not counted", R + "rules/accept.rs",
     "self.msn = self.msn.wrapping_add(u32::from(ends));", "let _ = ends;"),
    ("a sequence NAK is sent only once, whatever is lost again", R + "responder.rs",
     "if resp.nak_sent && psn.diff(resp.nak_high) > 0 {", "if resp.nak_sent {"),
    ("an RNR timer of the table is wrong", "core/src/wire/timing.rs", "8192, 12288", "8192, 12282"),
    ("an aligned request may reach a misaligned word", R + "responder.rs",
     "if target.addr & 7 != 0 {", "if false {"),
    ("the lost end of a message is not probed for", R + "timers.rs",
     "            req.set(tx_block::PROBE, true);\n", ""),
    ("a probe that is lost as well is not repeated", R + "timers.rs",
     "req.probe_at = now.saturating_add(req.probe_wait);", "req.probe_at = 0;"),
    ("a packet larger than the first may join a burst", R + "txbuf.rs",
     "&& size <= self.seg &&", "&&"),
    ("a burst goes on behind a packet that is shorter", R + "txbuf.rs", "self.closed = true;", ""),
    ("a burst may be larger than a datagram", R + "txbuf.rs",
     "self.buf.len().min(MAX_BURST)", "self.buf.len()"),
    ("a number rests for one timeout, not four", "core/src/engine/qpn.rs",
     "saturating_mul(4)", "saturating_mul(1)"),
    ("an SRQ reports its limit one receive too early", R + "rules/recv.rs",
     "left < srq.limit", "left <= srq.limit"),
    ("an SRQ reports its limit repeatedly", R + "rules/recv.rs",
     "        srq.limit = 0;\n", ""),
    ("a SEND that invalidates closes no window", R + "responder.rs",
     "self.common.memory.regions.invalidate(key, qp.pd, qp.qpn).map_err(bad)",
     "Ok::<(), crate::Error>(()).map_err(bad)"),
    ("a window outlives its QP", "core/src/mem/region.rs",
     "if s.kind == Kind::Mw2 && s.bound && s.qp == qp {", "if false && s.qp == qp {"),
    ("a type 2 window serves every QP", "core/src/mem/region.rs",
     "if s.kind == Kind::Mw2 && s.qp != qp {", "if false {"),
    ("the ICRC covers the traffic class of IPv6", "core/src/wire/icrc.rs",
     "&[0x6F, 0xFF, 0xFF, 0xFF,", "&[0x60, 0xFF, 0xFF, 0xFF,"),
    ("the ICRC covers the hop limit of IPv6", "core/src/wire/icrc.rs",
     "0, 0, ip::PROTO_UDP, 0xFF]", "0, 0, ip::PROTO_UDP, 0x40]"),
    ("a handle outlives its object", "core/src/pool.rs",
     "at.load(Ordering::Acquire) == h =>", "at.load(Ordering::Acquire) >= h =>"),
    ("a handle is good for an object of another type", "core/src/pool.rs",
     "at.load(Ordering::Acquire) == h =>",
     "at.load(Ordering::Acquire) | 0xff << INDEX_BITS == h | 0xff << INDEX_BITS =>"),
    ("a full ring takes one more", "core/src/ring.rs",
     "self.capacity.saturating_sub(self.tail", "(self.capacity + 1).saturating_sub(self.tail"),
    ("a ring's cursors may not pass 2^32", "core/src/ring.rs",
     "self.tail = self.tail.wrapping_add(n);", "self.tail = self.tail.saturating_add(n);"),
    ("a cancelled timer fires", "core/src/wheel.rs",
     "if self.is_armed(id) {\n            self.unlink(id as u32);",
     "if self.is_armed(id) {\n            self.nodes[id].deadline_ns = 0;"),
    ("a timer fires up to a tick early", "core/src/wheel.rs",
     ".deadline_ns.div_ceil(1 << TICK_SHIFT)", ".deadline_ns.wrapping_shr(TICK_SHIFT)"),
    ("a gap in a UC message is not noticed", R + "responder.rs",
     "let gap = run.psn != self.qp.conn.resp.epsn;", "let gap = false;"),
    ("READs in flight are not bounded", R + "requester.rs",
     "wqe.is_answered() && qp.conn.req.rd_out >= u32::from(qp.attr.max_rd_atomic).max(1)",
     "false"),
    ("PSNs do not wrap", "core/src/wire/psn.rs",
     "(self.0.wrapping_sub(other.0) << 8) as i32 >> 8", "self.0 as i32 - other.0 as i32"),
    ("a sleeper checks before it has announced its sleep", "core/src/sleep.rs",
     "// The sleeper's fence: our word is written before we look for work. Pairs with the "
     "producer's.\n        fence(Ordering::SeqCst);",
     "fence(Ordering::AcqRel);", LOOM),
    ("a producer checks for sleepers before it has published", "core/src/sleep.rs",
     "// The producer's fence: what we have published is written before we look at the word. Pairs "
     "with the sleeper's.\n        fence(Ordering::SeqCst);",
     "fence(Ordering::AcqRel);", LOOM),
    ("two producers wake the same sleeper", "core/src/sleep.rs",
     "self.0.swap(AWAKE, Ordering::Relaxed) >= urgency",
     "{ self.0.store(AWAKE, Ordering::Relaxed); true }", LOOM),
    ("a ring publishes before the slot is written", "core/src/ring.rs",
     "self.ring.producing.cursor.store(self.tail, Ordering::Release)",
     "self.ring.producing.cursor.store(self.tail, Ordering::Relaxed)", LOOM),
    ("a bit may be seen before the data written ahead of it", "core/src/bitmap.rs",
     "self.leaves[leaf].fetch_or(bit, Ordering::Release)",
     "self.leaves[leaf].fetch_or(bit, Ordering::Relaxed)", LOOM),
    ("a bitmap's summary is set only if it reads as clear", "core/src/bitmap.rs",
     "self.leaves[leaf].fetch_or(bit, Ordering::Release) & bit == 0 {",
     "self.leaves[leaf].fetch_or(bit, Ordering::Release) & bit == 0 && "
     "self.top.summary.load(Ordering::Relaxed) >> (leaf % WORD) & 1 == 0 {",
     LOOM),
    ("a window is filled with bursts of any size", R + "requester.rs",
     "fits < burst / 2 && self.conn.req.una_psn", "false && self.conn.req.una_psn"),
    ("a small message is accepted with any PSN", R + "rules/accept.rs",
     "if psn != qp.conn.resp.epsn ||", "if"),
    ("a small message may be longer than its receive buffer", R + "rules/accept.rs",
     "if len as u64 > u64::from(sge.length) {", "if false {"),
    ("a small message is not held by a closed window", R + "frame/record.rs",
     "if self.peer.tx.available() == 0 {", "if false {"),
    ("an ACK ends a small request that it does not acknowledge", R + "rules/single.rs",
     "ws.npkts != 1 || ws.psn != psn ||", "ws.npkts != 1 ||"),
    ("a request takes a reserved completion", R + "rules/cq.rs",
     "self.ring.free() > self.cq.reserved", "self.ring.free() > 0"),
    ("messages are accepted over a path that their peer does not use", R + "rules/receive.rs",
     "&& peer.path.answers(path, mixed)", "&& (mixed() || !mixed())"),
    ("a WRITE into mapped memory overtakes earlier requests", R + "peer_write.rs",
     "r.acked == r.next && r.una_psn == r.max_psn && r.next_psn == r.max_psn", "true"),
    ("memory that ends in the middle of a copy counts as written", R + "peer_write.rs",
     "None => placed = false,", "None => at = wqe.length,"),
    ("a region is granted to any peer that names its key", R + "peer_write.rs",
     "&& qp.attr.dest_qp_num == from_qpn", ""),
    ("a region that peers may not write is granted", R + "peer_write.rs",
     ".filter(|region| region.access & access::REMOTE_WRITE != 0)", ""),
    ("READs that the rate limit has cut stay counted", R + "rules/ack.rs",
     "req.rd_out = 0;", ""),
    ("a completion passed directly to a poll raises no event of an armed CQ", R + "rules/cq.rs",
     "!to.has && self.cq.armed == Armed::No;", "!to.has;"),
    ("a request sent without a timer never gets one", "core/src/engine/tx.rs",
     "        inner.transport.arm_deferred_timer(s, now);\n        let t = &inner.transport;",
     "        let t = &inner.transport;"),
    ("a request that is posted alone is not signalled where all are", "core/src/verbs/post.rs",
     "let signaled = if qp.sig_all.load(Relaxed) != 0 { send_flags::SIGNALED } else { 0 };",
     "let signaled = 0;"),
    ("an ACK does not reset the number of retries", R + "rules/ack.rs",
     "qp.conn.req.retry_left = qp.attr.retry_cnt;", ""),
    ("a short WRITE takes a system call", R + "peer_write.rs",
     "if wqe.length < COPY_REMOTE_MIN || wqe.inline != 0 {",
     "if wqe.inline != 0 {"),
    ("a stream of long WRITEs never leaves the packets", R + "peer_write.rs",
     "len >= COPY_REMOTE_MIN && len.saturating_mul(before.into()) >= FILLS_A_RING",
     "false"),
    ("a gather uses the bytes of a refused key", R + "rules/sge.rs",
     "            _ => return (0, 0),",
     "            _ => break,"),
    ("a message of the group is accepted from every user", N + "addr_group/group_msg.rs",
     "trusted = is_own_user(cred.uid);",
     "trusted = true;",
     USERS),
    ("a connection is accepted from every user", N + "local.rs",
     "Ok(fd) if is_trusted(fd.raw()) => Accepted::Peer(fd),",
     "Ok(fd) => Accepted::Peer(fd),",
     USERS),
    ("every user may enter the directory of names", N + "local/socket_dir.rs",
     "name.as_c_str().as_ptr(), 0o700)",
     "name.as_c_str().as_ptr(), 0o777)",
     NET),
    ("a directory of names that others may enter is used", N + "local/socket_dir.rs",
     "s.st_mode & 0o777 == 0o700",
     "true",
     NET),
    ("the overflow uid counts as a user", N + "local.rs",
     "own_uid() != overflow || maps_all_uids(",
     "true || maps_all_uids(",
     USERS),
    ("a ring is accepted although it may shrink", N + "shm/segment.rs",
     "if sealed_len(fd, FIXED_SIZE) != Some(",
     "if sealed_len(fd, FIXED_SIZE & !libc::F_SEAL_SHRINK) != Some(", NET),
    ("granted memory is mapped although it may shrink", N + "shm/grant.rs",
     "sealed_len(fd.raw(), libc::F_SEAL_SHRINK)",
     "sealed_len(fd.raw(), 0)",
     NET),
    ("an older table of the group is adopted", N + "addr_group/member/messages.rs",
     "if table.age() <= self.table.age() {",
     "if table.age() == self.table.age() {",
     NET),
    ("any process's packet counts as one to oneself", N + "addr_group/member/own_index.rs",
     "if packet[12..20] != self.nonce.to_le_bytes() {",
     "if false {",
     NET),
    ("a connection without a free descriptor wakes the process for ever",
     N + "shm/port/maintain.rs",
     "let _ = waiter.remove_socket(listener.fd());",
     "let _ = listener.fd();",
     USERS),
    ("a besieged queue pair accepts packets from any port", R + "siege.rs",
     "if !qp.knows_port(from.port) {", "if false {"),
    ("a soft device as peer may send from any port", N + "soft/peer_ports.rs",
     "Some(_) if receiving_user(local, &Endpoint { port, ..own }) == user => Found::Peers,",
     "Some(_) if port != 0 => Found::Peers,",
     USERS),
    ("a forged path MTU is obeyed", N + "udp/socket.rs",
     "libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE",
     "libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO", NET),
    ("a number whose QP never had a peer rests", "core/src/engine/qpn.rs",
     "if !qp.met {", "if false {", ENGINE),
    ("a rest that was cut short is forgotten", "core/src/engine/qpn.rs",
     "rest_ms = rest_ms.max(left.into());", "", UNIT),
    ("a number that was used goes on with its former rest alone", "core/src/engine/qpn.rs",
     "if rest_ms == 0 && left > 0 {", "if u64::from(left) > rest_ms {", UNIT),
    ("numbers come in the order of the block", "core/src/engine/qpn.rs",
     "self.order.at(self.used - 1)", "(self.used - 1)", UNIT),
    ("if all numbers rest no queue pair can be made", "core/src/engine/qpn.rs",
     "self.wake_early(now_ms).map(|at| (self.base + at, true))", "None", UNIT),
    ("requests that have ended fill a backlog", C + "admit.rs",
     "l.pending = l.pending.saturating_sub(1);", "", UNIT),
    ("connections that have ended count as half-open", C + "admit.rs",
     "l.half_open = l.half_open.saturating_sub(1);", "", UNIT),
    ("sources of requests that have ended count on", C + "admit.rs",
     "self.load[at] = self.load[at].saturating_sub(1);", "", UNIT),
    ("strangers fill the program's table", C + "admit.rs",
     "cm.pool.live() as u32 - cm.guests", "cm.pool.live() as u32", UNIT),
    ("one address may take all places of a listener", C + "admit.rs",
     "if mine >= self.bounds.source() {", "if false {", UNIT),
    ("an accepted connection may be replaced at once", C + "admit.rs",
     "id.since.saturating_add(FAIR_NS) <= now", "true", UNIT),
    ("an accepted connection is never replaced", C + "admit.rs",
     "id.since.saturating_add(FAIR_NS) <= now", "false", UNIT),
    ("a known peer waits like a stranger", C + "admit.rs",
     "known.gid == *gid && now < known.until", "false", UNIT),
    ("peers are known for ever", C + "admit.rs",
     "known.gid == *gid && now < known.until", "known.gid == *gid", UNIT),
    ("a REP is sent again as often as the REQ says", C + "program.rs",
     "x.retries = x.retries.min(REP_RETRIES);", "", UNIT),
    ("an unconfirmed connection sends sixteen DREQs", C + "program.rs",
     "id.retries = if id.guest { REP_RETRIES } else { MAX_RETRIES };", "id.retries = MAX_RETRIES;",
     UNIT),
    ("a connection has no time-wait", C + "input.rs",
     "self.wheel.arm(i, now.saturating_add(wait.max(TIME_WAIT_MIN_NS)));",
     "self.wheel.arm(i, now);", UNIT),
    (
        "a repeated REQ is recognised by its number alone",
        C + "admit.rs",
        (
            "self.random.of(&[self.source_of(gid), number.into()])",
            "&& self.ids[i].peer.gid == from.gid",
        ),
        ("self.random.of(&[u64::from(gid.is_empty()), number.into()])", ""),
        UNIT,
    ),
    ("a REQ may name a third party as its source", C + "input.rs",
     "header.src != from.gid || m.remote_gid", "m.remote_gid", UNIT),
    ("the path of a REQ may be a third party's", C + "input.rs",
     "m.local_gid != from.gid || header.src", "header.src", UNIT),
    ("an MRA is accepted from any address", C + "input.rs",
     "if id.peer.gid != from.gid || id.mras == 0 {", "if id.mras == 0 {", UNIT),
    ("another machine's QP of the same number makes a connection stale", C + "input.rs",
     "&& (!id.passive || id.remote_guid == m.local_ca_guid)", "", UNIT),
    ("a REQ that names a connected QP ends its connection", C + "input.rs",
     "if id.state != State::Established {", "if true {", UNIT),
    ("communication ids show their index", C + "mod.rs",
     ("self.order.place_of(local_id & ID_MASK)", "self.order.at(place)"),
     ("(local_id & ID_MASK)", "place"), UNIT),
    ("data in order does not confirm a connection", "core/src/engine/cm.rs",
     "let t = &self.transport;\n            self.cm.confirm(now, |qpn| t.has_heard(qpn));", "",
     ENGINE),
    ("any packet from its address confirms a connection", R + "mod.rs",
     "qp.conn.resp.epsn.get() != qp.attr.rq_psn", "qp.counters.rcvd_pkts > 0", ENGINE),
    ("a CNP that an ended QP owes stays owed", R + "queues.rs",
     "self.common.cnp_owed.clear(self.qi);", "", ENGINE),
    ("a CNP stays owed that nothing carries", R + "congestion.rs",
     "// The QP has ended meanwhile.\n                self.common.cnp_owed.clear(qi);", "", ENGINE),
    ("CNPs take effect where no packet can be marked", R + "congestion.rs",
     "let handled = ours && capable &&", "let handled = ours &&", ENGINE),
    ("more CNPs take effect than packets were sent", R + "congestion.rs",
     "        now >= self.conn.cnp_deaf\n", "        true\n", ENGINE),
    ("a READ that ends with a part is subtracted twice", R + "rules/read.rs",
     "u32::from(finished && done % piece != 0)", "u32::from(finished)", ENGINE),
    ("a request that found no room is never requested again", R + "answers.rs",
     "if resp.is(rx_block::NAK_LATER) && !resp.is(rx_block::FENCES | rx_block::NAK) {",
     "if false {", ENGINE),
    ("a peer may request the same packet for ever", R + "completer.rs",
     "if qp.conn.req.naks > NAK_MAX {", "if false {", ENGINE),
    ("a peer may request the same packet only a few times", R + "completer.rs",
     "const NAK_MAX: u8 = 200;", "const NAK_MAX: u8 = 20;", ENGINE),
    ("answers to requests that are not outstanding count", R + "completer.rs",
     "if off != 0 {", "if off < -1 {", ENGINE),
    ("a request far ahead is a loss at once", R + "siege.rs",
     "if !far && !self.is_besieged(now) {", "if true {", ENGINE),
    ("a besieged queue pair answers any request ahead", R + "siege.rs",
     "if !far && !self.is_besieged(now) {", "if !far {", ENGINE),
    ("a besieged queue pair ends at one NAK", R + "siege.rs",
     "if known && !self.is_besieged(now) {", "if known {", ENGINE),
    ("a besieged queue pair waits for the full time of an RNR NAK", R + "rnr.rs",
     "wait = wait.min(RNR_NS);", "", ENGINE),
    ("NAKs acknowledge to a besieged queue pair", R + "completer.rs",
     "if code != NakCode::Psn || !besieged {", "if true {", ENGINE),
    ("the ICRC of packets far from the expected PSN is computed", "core/src/engine/rx.rs",
     "if late < t.common.siege_until &&", "if false &&", ENGINE),
    ("old duplicates of READ requests are dropped", R + "siege.rs",
     "Kind::ReadRequest => false,", "Kind::ReadRequest => true,", ENGINE),
    ("messages of soft devices are accepted from any port", R + "rules/receive.rs",
     "self.qp.conn.own_port && from.path == Path::Port && !self.peer.sends_from(from.port)",
     "false",
     ENGINE),
    ("the owner of a refused port is not checked", R + "rules/receive.rs",
     "self.common.refused_port = Some((self.peer.addr, from.port));", ""),
    ("a peer uses a grant before it has pinned it", "core/src/lease.rs",
     "// The peer's fence: the pin word is written before the serial is read. Pairs with the "
     "one\n        // in `revoke`.\n        fence(Ordering::SeqCst);",
     "fence(Ordering::AcqRel);",
     LOOM),
    ("an owner reads the pin before the grant has ended", "core/src/lease.rs",
     "// The owner's fence: the serial is cleared before the pin word is read. Pairs with the "
     "one\n        // in `pin`.\n        fence(Ordering::SeqCst);",
     "fence(Ordering::AcqRel);",
     LOOM),
    ("a peer has unpinned before its bytes are there", "core/src/lease.rs",
     "self.0.store(0, Ordering::Release);",
     "self.0.store(0, Ordering::Relaxed);",
     LOOM),
    (
        "a frame's length is there before the zero behind it",
        "core/src/frame.rs",
        (
            "if !cleared || !behind.looks_empty() {\n            behind.clear();\n        }",
            "self.0.store(len, Ordering::Release);",
        ),
        (
            "",
            "self.0.store(len, Ordering::Release);\n"
            "        if !cleared || !behind.looks_empty() {\n            behind.clear();\n"
            "        }",
        ),
        LOOM,
    ),
    ("a frame's length is there before its bytes", "core/src/frame.rs",
     "self.0.store(len, Ordering::Release);", "self.0.store(len, Ordering::Relaxed);", LOOM),
    ("data written over a cleared length stays", "core/src/frame.rs",
     "if !cleared || !behind.looks_empty() {", "if !cleared {", UNIT),
    ("after an RNR NAK the whole window is sent again", R + "rnr.rs",
     "(qp.conn.ready, qp.conn.ready_psn) = (Ready::Refused, psn);", ""),
    ("a peer that was late counts as ready for the next message", R + "rnr.rs",
     "Ready::Refused if accepted => Ready::Doubtful,",
     "Ready::Refused if accepted => Ready::Yes,", ENGINE),
    ("a peer that was late once counts as late for good", R + "rnr.rs",
     "Ready::Tried if accepted => self.try_more(),",
     "Ready::Tried if accepted => Ready::Doubtful,", ENGINE),
    ("a request without a receive leaves the peer counted as late", R + "rnr.rs",
     "if self.conn.req.una_psn == self.conn.req.max_psn && !wqe.takes_receive() {",
     "if false {", ENGINE),
    ("a WRITE is refused whole for the receive request of its last packet", R + "responder.rs",
     "Rnr(_) if run.n > 1 &&",
     "Rnr(_) if run.n > u32::MAX - 1 &&",
     ENGINE),
    ("a single message overtakes a refused one", R + "rnr.rs",
     "self.conn.req.set_send_block(if self.conn.ready == Ready::Yes {",
     "self.conn.req.set_send_block(if true {", ENGINE),
    ("a single message is handled before the ACK beside it", R + "frame/record.rs",
     "if !acked && psn.is_some() && (!is_write || op.0 & 1 != 0) {", "if false {", ENGINE),
    ("a peer of the same host is probed for messages that cannot be lost", R + "peer.rs",
     "if matches!(self.path, Path::Port) {", "if true {", ENGINE),
    ("a small ACK counts without its AETH where it arrives", R + "rules/single.rs",
     "counters.count_received(1, ACK_BYTES);", "counters.count_received(1, 16);", ENGINE),
    ("a probe counts no bytes", R + "requester.rs",
     "c.count_sent(done.packets, u64::from(done.packets) * wire_bytes);",
     "c.count_sent(done.packets, 0);", ENGINE),
    ("padding is not counted", R + "run.rs",
     "payload as usize + pad_len(payload as usize);", "payload as usize;", ENGINE),
    ("an RNR NAK counts before it is sent", R + "responder.rs",
     "Rnr(timer) => {\n",
     "Rnr(timer) => {\n                self.count(|c| &mut c.send_rnr_err);\n",
     ENGINE),
    ("the ACK of a message that waits for slow memory is dropped with an earlier one",
     R + "rules/ack.rs",
     "resp.ack_owed = resp.is(rx_block::FENCES);", "resp.ack_owed = false;", ENGINE),
    ("a NAK from any port ends a connection", R + "siege.rs",
     "let known = self.knows_port(port);", "let known = true;", ENGINE),
    ("a session may request routes without end", B + "route.rs",
     "if !up.rate.take(now) {",
     "if false {",
     ROUTER),
    ("a session may have any number of links to one process made", B + "route.rs",
     "if !up.rates.entry(owner).or_insert_with(|| Rate::new(now, LINKS_PER_SECOND)).take(now) {",
     "if false {",
     ROUTER),
    ("an unbounded number of links waits for a process that takes none", B + "route.rs",
     "if !leaves_enough(of_tenant.count(), other.unanswered.len(), UNANSWERED) {",
     "if !leaves_enough(of_tenant.count() * 0, 0, UNANSWERED) {",
     ROUTER),
    ("routes have no quota", B + "session.rs",
     "if self.routes.len() >= self.tenant.quotas.routes as usize {",
     "if false {",
     ROUTER),
    ("a link is made against the policy", B + "route.rs",
     "        may_talk(up, other)?;\n",
     "",
     ROUTER),
    ("one end's policy is enough for a link", B + "route.rs",
     "    may_talk_to(&b.tenant, &a.tenant.name, &a.gid)\n",
     "    Ok(())\n",
     ROUTER),
    ("a queue pair of another network is found", B + "route.rs",
     "other.tenant.network == up.tenant.network && other.gid == route.gid",
     "other.gid == route.gid",
     ROUTER),
    ("a queue pair is found at any address", B + "route.rs",
     "other.tenant.network == up.tenant.network && other.gid == route.gid",
     "other.tenant.network == up.tenant.network",
     ROUTER),
    ("a session is linked to itself", B + "route.rs",
     "Some(owner) if owner == id =>",
     "Some(owner) if owner == id && id == 0 =>",
     ROUTER),
    ("memory is granted between tenants", B + "route.rs",
     "let loans = up.tenant.name == other.tenant.name;",
     "let loans = true;",
     ROUTER),
    ("descriptors of any message are accepted", B + "mod.rs",
     "if fds > 0 {",
     "if false {",
     ROUTER),
    ("a connection without HELLO may make requests", B + "mod.rs",
     "(true, false, Message::Route(route)) =>",
     "(_, false, Message::Route(route)) =>",
     ROUTER),
    ("an answer without a LINK counts", B + "mod.rs",
     "up.unanswered.remove(&e.seq).is_some())",
     "up.unanswered.remove(&e.seq).is_some() || true)",
     ROUTER),
    ("two processes of an address listen at a port", B + "mod.rs",
     "same(other) && other.listens_at(s)",
     "same(other) && false",
     ROUTER),
    ("a port of another network counts as taken", B + "mod.rs",
     "other.gid == up.gid && other.tenant.network == up.tenant.network;",
     "other.gid == up.gid;",
     ROUTER),
    ("listeners have no quota", B + "mod.rs",
     "|| up.listens.len() >= up.tenant.quotas.listens as usize",
     "|| false",
     ROUTER),
    ("a connection without a message is never closed", B + "mod.rs",
     "now.saturating_sub(since) >= HELLO_NS",
     "now.saturating_sub(since) == u64::MAX",
     ROUTER),
    ("sessions have no quota", B + "welcome.rs",
     "if self.of_tenant(name).count() >= quotas.sessions as usize {",
     "if false {",
     ROUTER),
    ("queue pair numbers have no quota", B + "welcome.rs",
     "has + blocks as usize > quotas.blocks as usize",
     "has == usize::MAX",
     ROUTER),
    ("any version is accepted", B + "welcome.rs",
     "if common_version(h.versions, VERSIONS).is_none() {",
     "if false {",
     ROUTER),
    ("numbers of an ended session are given out at once", B + "blocks.rs",
     "let until = now + REST_NS;",
     "let until = now;",
     ROUTER),
    ("links that a policy forbids stay", B + "reload.rs",
     "for (a, b, cause) in self.forbidden() {",
     "for (a, b, cause) in self.forbidden().into_iter().take(0) {",
     ROUTER),
    ("a session that is another tenant's by a new policy stays", B + "reload.rs",
     "let same = before == (tenant.name.clone(), tenant.network.clone()) && vip == gid;",
     "let same = before.0.is_empty() || !vip.is_empty() || vip == gid;",
     ROUTER),
    ("two tenants have one address", B + "vips.rs",
     "!taken.contains(vip) && !is_taken(vip)",
     "(taken.is_empty() || !is_taken(vip))",
     ROUTER),
    ("a tenant's address by name is another's from the pool", B + "vips.rs",
     "!taken.contains(vip) && !is_taken(vip)",
     "!taken.contains(vip)",
     ROUTER),
    ("the user of a process is not checked", "router/src/identity.rs",
     "    uid && cgroup && netns\n",
     "    (uid || true) && cgroup && netns\n",
     ROUTER),
    ("the cgroup of a process is not checked", "router/src/identity.rs",
     "    uid && cgroup && netns\n",
     "    uid && (cgroup || true) && netns\n",
     ROUTER),
    ("the network namespace of a process is not checked", "router/src/identity.rs",
     "    uid && cgroup && netns\n",
     "    uid && cgroup && (netns || true)\n",
     ROUTER),
    ("an unknown namespace matches any rule", "router/src/identity.rs",
     "seen.netns.is_some() && world.netns(path)",
     "world.netns(path)",
     ROUTER),
    ("a tenant's rules are not checked at its own socket", "router/src/identity.rs",
     ".filter(|t| fits(&t.rules, seen, world)).cloned()",
     ".filter(|t| fits(&t.rules, seen, world) || true).cloned()",
     ROUTER),
    ("FFR_ID chooses a tenant that does not fit", "router/src/identity.rs",
     "let wished = fitting().find(",
     "let wished = policy.tenants.iter().find(",
     ROUTER),
    ("a tenant that no other may reach is reached", P + "mod.rs",
     "tenant.name == other || tenant.allow",
     "true || tenant.allow",
     ROUTER),
    ("a range allows every address", P + "mod.rs",
     "Allow::Range(range) => range.contains(gid),",
     "Allow::Range(range) => range.contains(gid) || true,",
     ROUTER),
    ("two tenants of a file have one address, or one socket", P + "file.rs",
     "        clash(&tenants, &tenant, table)?;\n",
     "        let _ = clash(&tenants, &tenant, table);\n",
     ROUTER),
    ("a datagram names any source", W + "switch.rs",
     "Class::Ud if !own.contains(&(run.src_qpn / QPN_UNIT)) => Err(Refused::Source),",
     "Class::Ud if run.src_qpn == u32::MAX => Err(Refused::Source),",
     ROUTER),
    ("any queue pair may send for the connection manager", W + "switch.rs",
     "if run.src_qpn != GSI_QPN {",
     "if false {",
     ROUTER),
    ("the relay checks no policy", W + "switch.rs",
     "if self.slots.may(from, to) {",
     "if true {",
     ROUTER),
    ("the relay reaches other networks", W + "switch.rs",
     "(self.place(slot)?.network == network).then_some(slot)",
     "Some(slot)",
     ROUTER),
    ("the relay finds a queue pair at any address", W + "switch.rs",
     "(self.place(slot)?.gid == *gid).then_some(slot)",
     "Some(slot)",
     ROUTER),
    ("requests to an address without a listener reach another", W + "switch.rs",
     "m.place.network == network && m.place.gid == *gid",
     "m.place.network == network",
     ROUTER),
    ("requests of the connection manager have no rate", W + "switch.rs",
     "if !sender.is_some_and(|m| m.mads.take(now)) {",
     "if !sender.is_some_and(|m| m.mads.take(now) || true) {",
     ROUTER),
    ("a notification may carry anything", W + "switch.rs",
     "Class::Cnp if payload.len() <= CNP_PAYLOAD => Ok((run.dest_qpn, None)),",
     "Class::Cnp => Ok((run.dest_qpn, None)),",
     ROUTER),
    ("numbers of a session that has left lead to its slot", W + "switch.rs",
     "self.blocks.iter_mut().filter(|b| **b == slot).for_each(|b| *b = NOBODY);",
     "",
     ROUTER),
    ("ports of a session that has left stay taken", W + "switch.rs",
     "self.listens.retain(|(_, of)| *of != slot);",
     "",
     ROUTER),
    ("another session of the address ends a listener", W + "switch.rs",
     "Ok(at) if !on && self.listens[at].1 == slot =>",
     "Ok(at) if !on =>",
     ROUTER),
    ("a slot is given out before the worker has released it", W + "slots.rs",
     "self.state(slot) == State::Free)?;",
     "self.state(slot) != State::Taken)?;",
     ROUTER),
    ("the worker of the relay allocates", "router/src/daemon/lanes.rs",
     "        let bytes = came.len();\n        self",
     "        let bytes = came.first.to_vec().len().max(came.len());\n        self",
     ROUTER),
    ("frames that a session sent before its end are lost", "router/src/daemon/worker.rs",
     "                    self.empty(slot);\n",
     "",
     ROUTER),
    ("the head of a relayed frame may hold anything", N + "shm/relay.rs",
     "if flags & !CONGESTED != 0 || unknown != 0 || !(seg == 0 || several) {",
     "if !(seg == 0 || several) {",
     NET),
    ("a writer that waits for room in the relay's ring is not woken", N + "shm/relay.rs",
     "            wants_room.store(0, Ordering::Relaxed);\n            self.socket.wake();\n",
     "",
     NET),
    ("a WELCOME with rings may come without them", N + "via/client.rs",
     "=> RINGS..=RINGS,",
     "=> 0..=RINGS,",
     NET),
    ("a copy by address that was stopped before its call is made although its grant is revoked",
     N + "rseq.rs",
     '"jmp 5b",',
     '"mov eax, {number}", "syscall", "jmp 3b",',
     NET),
]
NAMED = {
    "unit": UNIT, "engine": ENGINE, "net": NET, "router": ROUTER, "mempool": MEMPOOL, "etcd": ETCD,
    "ucma": UCMA, "fault_chain": CHAIN, "changing": CHANGING, "capi": CAPI, "dropin_unit": DROPIN,
}


def staged(faults):
    """Their stages by name; another name is a test that builds whole routers itself."""
    return [fault[:4] + (NAMED.get(fault[4]) or whole(fault[4]),) for fault in faults]


# Their numbers are those of docs/records/PROOF.md: new ones come last.
FAULTS += staged(faults_qos.FAULTS)
FAULTS += [fault + (ROUTER,) for fault in faults_hosts.FAULTS]
FAULTS += staged(faults_transport.REFUSALS)
FAULTS += staged(faults_flow.FAULTS)
FAULTS += staged(faults_life.FAULTS)
FAULTS += staged(faults_tenants.FAULTS)
FAULTS += staged(faults_words.FAULTS)
FAULTS += staged(faults_xrc.FAULTS)
FAULTS += staged(faults_dc.FAULTS)
FAULTS += staged(faults_transport.BULK)
FAULTS += staged(faults_flush.FAULTS)
FAULTS += staged(faults_singles.FAULTS)
FAULTS += staged(faults_threads.FAULTS)
FAULTS += staged(faults_ends.FAULTS)
FAULTS += staged(faults_strangers.FAULTS)
FAULTS += staged(faults_shares.FAULTS)
FAULTS += staged(faults_nic.FAULTS)
FAULTS += staged(faults_left.FAULTS)
FAULTS += staged(faults_capi.FAULTS)
FAULTS += staged(faults_suite.FAULTS)
FAULTS += staged(faults_ports.FAULTS)
FAULTS += staged(faults_class.FAULTS)
FAULTS += staged(faults_dist.FAULTS)
FAULTS += staged(faults_house.FAULTS)
FAULTS += staged(faults_door.FAULTS)


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
        stale = [
            i
            for i, f in enumerate(FAULTS, 1)
            if not has_place(f, open(os.path.join(ROOT, f[1])).read())
        ]
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
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()
    subprocess.run(["git", "checkout", "-q", "--force", "--detach", head], cwd=TREE, check=True)
    own = {
        fault[4][0]
        for fault in (FAULTS if only is None else [FAULTS[i - 1] for i in only])
        if len(fault) > 4
    }
    more = {fault[4][0]: fault[4] for fault in FAULTS if len(fault) > 4 and fault[4][0] in own}
    for stage, build, command in STAGES + [s for s in more.values() if s not in STAGES]:
        if sh(build, BUILD_LIMIT).returncode or sh(command, BUILD_LIMIT).returncode != 0:
            print(f"{stage} fails without any fault; nothing can be learnt")
            return 1
    tried, bad, known = {}, 0, recorded()
    for i, fault in enumerate(FAULTS, 1):
        if only and i not in only:
            continue
        start = time.time()
        stages = fault[4:] or STAGES
        result, noticed = try_fault(fault, stages, known.get(fault[0], ""))
        bad += not noticed
        print(f"{i:2} {fault[0]}: {result} ({time.time() - start:.0f} s)", flush=True)
        tried[fault[0]] = result.splitlines()[0]
    print(f"{len(tried) - bad} passed, {bad} failed")
    if "--write" in args:
        record(FAULTS, {**known, **tried} if only else tried)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
