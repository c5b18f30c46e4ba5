"""Deliberate faults in what happens when a program ends; see mutate.py.

A row: what is wrong, the file, its text, what replaces it, and the stage that notices it (a name of
`mutate.NAMED`, or a test of tests/tests)."""

C = "core/src/"
N = "backends/net/src/"

FAULTS = [
    ("a single message leaves no receipt", C + "roce/frame/record.rs",
     "other = !DC && receipts.leave(h.dest_qpn, h.psn);", "", "ends"),
    ("a message of the general path leaves no receipt", C + "engine/rx.rs",
     "inner.transport.leave_receipt(run, receipts);", "_ = receipts;", "engine"),
    ("a lost link's receipts are not read", N + "soft/links.rs",
     "g.link_receipts(now, link, lost.receipts());", "", "ends"),
    ("a receipt is left for what was not accepted", C + "roce/receipts.rs",
     "qp.filter(|qp| qp.conn.resp.ack_owed)", "qp", "engine"),
    ("a receipt of another queue pair is overwritten, and its ACK waits on", C + "receipt.rs",
     "former != qpn && former != 0", "false", "unit"),
    ("receipts stay when a queue pair is connected anew", N + "soft/grant_checks.rs",
     "shm.retain_receipts(|qpn, psn| g.is_receipt(qpn, psn));", "", "ends"),
    ("a new connection's peer keeps the receipt of the last one", N + "soft/paths.rs",
     "shm.forget_receipt(link, qpn);", "let _ = (shm, link, qpn);", "ends"),
    ("a closed device keeps its ACKs", N + "soft/open.rs",
     "self.send_last(self.lock_engine());", "", "ends"),
    ("exit does not acknowledge", N + "soft/leave.rs",
     "static AT_LAST: extern \"C\" fn() = leave;", "static AT_LAST: extern \"C\" fn() = wipe;",
     "ends"),
    ("quick_exit does not acknowledge", N + "soft/leave.rs",
     "unsafe { at_quick_exit(leave) };", "let _ = unsafe { at_quick_exit(wipe) };", "ends"),
    ("an ACK through the port waits for a program that has never replied", C + "roce/rules/ack.rs",
     "let waits = matches!(self.peer.path, Path::Link(_));", "let waits = true;", "ends"),
    ("an ACK waits for a program that replies no more", C + "roce/rules/ack.rs",
     "(resp.ack_after, resp.acked_alone) = (1, true);", "resp.acked_alone = true;", "engine"),
    ("the ACK of a program that replies never waits", C + "roce/frame/packet.rs",
     "c.has_replied();", "", "engine"),
    ("the same, of replies that are no single message", C + "roce/requester.rs",
     "self.has_replied();", "", "engine"),
]
