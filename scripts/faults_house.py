"""Deliberate faults in what several parts share: the numbers of the C header, hashes, the words of
command lines, the drop-in's threads; see mutate.py.

A row: what is wrong, the file, its text, what replaces it, and the stage that notices it (a name of
`mutate.NAMED`, or a test of tests/tests)."""

D = "dropin/src/"
S = "backends/net/src/soft/"

FAULTS = [
    ("a number of the library has no name in the C header", "ffi/header/layout.txt",
     "flags gdrc_mr_flags mr_flags GDRC_MR_\n", "", "header"),
    ("a list of words and one with zeroes behind have one hash", "core/src/random.rs",
     "words.iter().for_each(", "words.iter().filter(|&&word| word != 0).for_each(", "unit"),
    ("a status has the name of another", "core/src/numbers.rs",
     "$(if value == $c {", "$(if value <= $c {", "capi"),
    ("an unknown option of routerctl is passed over", "router/src/bin/routerctl/main.rs",
     "            _ => return Err(word.unexpected()),\n", "            _ => {}\n", "router"),
    ("a worker sleeps over its descriptors", D + "worker.rs",
     "chain(sleep.readable.iter().copied());", "chain(sleep.readable.iter().copied().take(0));",
     "dropin_unit"),
    ("a worker sleeps over its time", D + "worker.rs",
     "sleep.until.map_or(-1, |at| {", "sleep.until.filter(|_| false).map_or(-1, |at| {",
     "dropin_unit"),
    ("what a new link holds waits for a round that may not come", S + "links.rs",
     "return self.drain_links(g, port, now);", "return 0;", "ends"),
    ("a queue pair ends although the answer of a READ has found no room", "core/src/engine/qp.rs",
     "owes(qi) || has_job(qi)", "owes(qi) || (false && has_job(qi))", "router_full_ring"),
    ("a control call leaves posts that found the lock taken", S + "lock.rs",
     "        device.after_release(Round::Send);\n", "", "net"),
    ("rounds never read the clock", S + "schedule.rs",
     "self.stale < STALE_ROUNDS", "self.stale != u8::MAX", "net"),
    ("links are maintained ever more rarely though peers come", S + "schedule.rs",
     "if changed { MAINTAIN_NS.0 } else { twice }", "twice", "net"),
    ("busy links keep the socket from being polled", S + "schedule.rs",
     "self.is_last_vain() || now >= self.socket_at", "self.is_last_vain()", "net"),
    ("timers are taken for checked by a round that did not poll the socket", S + "schedule.rs",
     "tick == self.idle_tick || tick == (self.idle_tick.0, false)",
     "tick.0 == self.idle_tick.0", "net"),
]
