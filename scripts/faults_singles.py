"""Deliberate faults of DC's single messages, and of refusals behind answers, for mutate.py.

What is wrong then | file | text | what stands there instead | the one stage that can see it."""

R = "core/src/roce/"
D = R + "dc/"
FAULTS = [
    ("an address handle that has ended still names its target", D + "initiator.rs",
     "association.named == (*addr, self.ahs_ended)", "association.named.0 == *addr",
     "engine"),
    ("a single request of DC leaves by an association that may be over", D + "initiator.rs",
     " && !qp.association().is_stale(now)", "",
     "engine"),
    ("a single request of DC goes before what is owed to its target", D + "initiator.rs",
     "self.is_associated(qp, addr) && !qp.association().asks", "self.is_associated(qp, addr)",
     "engine"),
    ("a single request of DC does not count as use of its association",
     R + "frame/record.rs",
     "c.qp.association().used_at = now;", "let _ = now;",
     "engine"),
    ("single messages of DC raise no limit event of their SRQ", R + "rules/accept.rs",
     "note_left(self.s, &mut common.srqs, srq, rq.ready());", "let _ = note_left;",
     "engine"),
    ("a single message of DC does not name its initiator", R + "rules/accept.rs",
     "let src_qp = if DC { qp.src_qp() } else { 0 };", "let src_qp = 0;",
     "engine"),
    ("an ACK ends the last request of an association that its target wants back",
     "core/src/verbs/objects.rs",
     "self.state == qp_state::RTS && !self.dci[0].wanted", "self.state == qp_state::RTS",
     "engine"),
    ("a refusal goes before the answers to earlier requests", R + "responder.rs",
     "Nak(..) if answers_owed(self.qp) > 0 => Later,", "",
     "engine"),
    ("a peer whose process lives is given up as early as one that is gone", R + "witness.rs",
     "timeout_ns.saturating_mul(u64::from(attr.retry_cnt) + 1).clamp(least, most)", "least",
     "engine"),
]
