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
]
