"""Deliberate faults in what verbs programs rely on; see mutate.py.

A row: what is wrong, the file, its text, what replaces it, and the stage that notices it (a name of
`mutate.NAMED`, or a test of tests/tests)."""

C = "core/src/"
D = "dropin/src/"
N = "backends/net/src/"
U = "dropin/ucma/src/session/"

FAULTS = [
    ("programs see the engine's handle of a CQ", D + "cq_verbs.rs",
     "handle: number.get(),", "handle: handle as u32 & 0x00ff_ffff,", "dropin_nic"),
    ("a handle of an object is never given again", D + "object_numbers.rs",
     "self.free.push(Reverse(n as u32));", "", "dropin_nic"),
    ("handles of what a closed device had stay in use", D + "hca.rs",
     "object_numbers::free_all(self);", "", "dropin_nic"),
    ("a parent domain has a handle of its own", D + "pd_verbs.rs",
     "let theirs = unsafe { base.as_ref() }.map(|base| base.ibv.handle);",
     "let theirs: Option<u32> = None;", "dropin_nic"),
    ("an event of rdma_cm comes before those that came earlier", C + "cm/events.rs",
     "let at = (self.first != NONE).then_some(self.first as usize)?;",
     "let at = (self.last != NONE).then_some(self.last as usize)?;", "unit"),
    ("events of an id that ends stay in the list", C + "cm/events.rs",
     "if self.nodes[at].arrival != 0 {\n                self.unlink(at);",
     "if self.nodes[at].arrival == 1 {\n                self.unlink(at);", "unit"),
    ("an event's place in its channel is the end", U + "session_events.rs",
     "c.events.insert(c.events.len() - later, event);", "c.events.push_back(event);", "ucma"),
    ("an event of a command overtakes those that the device has", U + "session_events.rs",
     "        self.pump();\n        let arrival", "        let arrival", "ucma"),
    ("a window takes all of the key that the program names", C + "mem/region.rs",
     "let key = (w.key & !0xff) | (rkey & 0xff);", "let key = rkey;", "unit"),
    ("a window has its new key only when it is bound", D + "post_verbs.rs",
     "(*window).ibv.rkey = (mw.ibv.rkey & !0xff) | (b.rkey & 0xff);", "", "dropin_nic"),
    ("the window of a bind that was not posted has its new key", D + "post_verbs.rs",
     "unsafe { (*(w.wr.rdma.remote_addr as *mut Mw)).ibv.rkey = w.wr.rdma.rkey };", "",
     "dropin_nic"),
    ("a window is bound by a queue pair of any domain", C + "mem/region.rs",
     "if w.pd != by.0 {", "if false {", "unit"),
    ("the result of an atomic is as long as its list", C + "verbs/post.rs",
     "            wqe.length = 8;\n", "", "engine"),
    ("an atomic takes a list of fewer than 8 bytes", C + "verbs/post.rs",
     "if length < 8 {", "if length == 0 {", "engine"),
    ("a request without an ACK timeout ends after a while", C + "engine/qp.rs",
     "0 => NEVER_NS,", "0 => 30_000_000_000,", "engine"),
    ("what the network says ends a request without an ACK timeout", C + "roce/witness.rs",
     "if code == Some(CauseCode::PeerUnreachable) {", "if true {", "engine"),
    ("a process that has ended is waited for", C + "roce/timers.rs",
     "            self.end_if_alone(now);\n", "", "engine"),
    ("probes of a request without an ACK timeout come ever more rarely", C + "roce/timers.rs",
     "req.probe_wait.saturating_mul(2).min(PROBE_MAX_NS);", "req.probe_wait.saturating_mul(2);",
     "engine"),
    ("a socket of another host counts as closed", N + "proc_net/unread.rs",
     "(0, 0) if all > 0 && is_own(at) =>", "(0, 0) if all > 0 =>", "net"),
    ("receives of an SRQ are of the queue pair's domain", C + "engine/qp.rs",
     "recv_pd: shared.pd,", "recv_pd: pd,", "engine"),
    ("remote keys are of the SRQ's domain", C + "engine/qp.rs",
     "Ok(Uses { pd, recv_pd: shared.pd,", "Ok(Uses { pd: shared.pd, recv_pd: shared.pd,", "engine"),
    ("receives of a DC target's SRQ are of the target's domain", C + "roce/dc/target.rs",
     "let (pd, recv_pd, rcq, shown) = (t.pd, t.recv_pd, t.rcq, t.qpn);",
     "let (pd, recv_pd, rcq, shown) = (t.pd, t.pd, t.rcq, t.qpn);", "engine"),
    ("datagrams into an SRQ are of the queue pair's domain", C + "roce/datagram.rs",
     "let (pd, sges) = (self.qp.recv_pd,", "let (pd, sges) = (self.qp.pd,", "engine"),
]
