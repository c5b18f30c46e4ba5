"""Deliberate faults in what verbs programs rely on; see mutate.py.

A row: what is wrong, the file, its text, what replaces it, and the stage that notices it (a name of
`mutate.NAMED`, or a test of tests/tests)."""

C = "core/src/"
D = "dropin/src/"
N = "backends/net/src/"

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
]
