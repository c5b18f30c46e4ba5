"""Deliberate faults in what a call leaves behind that failed or undid something; see mutate.py.

A row: what is wrong, the file, its text, what replaces it, and the stage that notices it (a name of
`mutate.NAMED`, or a test of tests/tests)."""

C = "core/src/"
N = "backends/net/src/"
D = "dropin/src/"
U = "dropin/ucma/src/session/"

FAULTS = [
    ("a request before a refused one waits for those that it announced", C + "verbs/post.rs",
     "        posted.more = false;\n", "", "engine"),
    ("a wrong belief in the state is refused in RTS alone", C + "verbs/transition.rs",
     "if mask & m::CUR_STATE != 0 && attr.cur_qp_state != from {",
     "if mask & m::CUR_STATE != 0 && from == s::RTS && attr.cur_qp_state != from {", "unit"),
    ("an address handle keeps its second peer record", C + "engine/control.rs",
     "            inner.transport.peer_leave(a.others);\n", "", "engine"),
    ("a CQ keeps another size in the engines before the one that refused it",
     N + "soft/engine_set/branches.rs",
     "                        let _ = engine.cq_resize(ring, before);\n",
     "                        let _ = (engine, ring, before);\n", "engines_cqs"),
    ("the last cause of a device is that of its first engine", N + "soft/engine_set/device.rs",
     "if cause.time_ns > last.time_ns {", "if cause.time_ns < last.time_ns {", "engines_cqs"),
    ("an RTU that has not left is dropped when its connection ends", C + "cm/program.rs",
     "id.owes &= owe::RTU;", "id.owes = 0;", "unit"),
    ("one former listener is remembered, not all", C + "cm/program.rs",
     "self.former[self.former_next % FORMER] = gone;", "self.former[0] = gone;", "unit"),
    ("a bind that one device refuses leaves ids on the others", U + "session_commands.rs",
     "                        let _ = end.manager.destroy(end.handle);\n",
     "                        let _ = end;\n", "ucma"),
    ("requests that wait stay on the channel that their listener has left", U + "session_events.rs",
     "                    request.channel = to;\n", "                    let _ = request;\n",
     "ucma"),
    ("a QP's rate is told in bytes a second", D + "qp_verbs.rs",
     "u32::try_from(a.rate_limit_bytes_per_s / KBPS)", "u32::try_from(a.rate_limit_bytes_per_s)",
     "dropin_extended"),
    ("what a program's struct has beyond ours stays as it was", D + "query_verbs.rs",
     "        to.add(n).write_bytes(0, size - n);\n", "", "dropin_extended"),
    ("a released driver role is offered to nobody", N + "soft/channels.rs",
     "        self.holder.store(FREE, Ordering::SeqCst);\n        self.offer();\n",
     "        self.holder.store(FREE, Ordering::SeqCst);\n", "net"),
    ("a region may end behind its buffer", D + "buf_verbs.rs",
     "if end.is_none_or(|end| end > b.length as u64) {", "if end.is_none() {", "dropin_extended"),
    ("a buffer's memory is registered in any domain", D + "buf_verbs.rs",
     "if w.pd != b.pd {", "if w.pd.is_null() {", "dropin_extended"),
    ("a buffer does not count in its domain", D + "buf_verbs.rs",
     "domain: domain.hold() };", "domain };", "dropin_extended"),
    # Second barriers: the first one hides them in a whole program.
    ("a UC message that is not whole yet keeps its entry of the CQ", C + "roce/responder.rs",
     "                if !run.last {\n"
     "                    // The rest may never come: until then the CQE is free for others.\n"
     "                    self.release_cqe();\n",
     "                if !run.last {\n", "engine"),
    ("a connection to another user's process stands", N + "local.rs",
     "    if is_trusted(fd.raw()) {\n        Ok(fd)", "    if true {\n        Ok(fd)", "net"),
    ("a datagram that was cut is a packet", N + "udp/rx.rs",
     "if msg.msg_hdr.msg_flags & libc::MSG_TRUNC != 0 {", "if false {", "net"),
    ("a request for memory is sent once", N + "shm/grant.rs",
     "now.saturating_sub(entry.requested_ns) > REQUEST_AGAIN_NS =>",
     "now.saturating_sub(entry.requested_ns) > u64::MAX - 1 =>", "net"),
    # What dlclose leaves behind.
    ("a library that is unmapped leaves its fault handlers", N + "soft/leave.rs",
     "        fault::uninstall();\n", "", "ends"),
    ("a spent handler is armed again when ours goes", N + "fault.rs",
     "            behind.sa_sigaction = libc::SIG_DFL;\n", "", "fault_chain"),
]
