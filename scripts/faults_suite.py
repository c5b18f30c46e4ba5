"""Deliberate faults in verbs of newer releases of libibverbs, and in the management datagrams of
tools; see mutate.py.

A row: what is wrong, the file, its text, what replaces it, and the stage that notices it (a name of
`mutate.NAMED`, or a test of tests/tests)."""

D = "dropin/src/"

FAULTS = [
    ("a DMA handle ends under its region", D + "dmah_verbs.rs",
     "        if users != 0 {", "        if users > u32::MAX - 1 {", "dropin_extended"),
    ("a DMA handle names any CPU", D + "dmah_verbs.rs",
     "if a.comp_mask & CPU_ID != 0 && !may_run_on(a.cpu_id)? {",
     "if a.comp_mask & CPU_ID != 0 && may_run_on(a.cpu_id).is_err() {", "dropin_extended"),
    ("a region on demand has a DMA handle", D + "dmah_verbs.rs",
     " || flags & access::ON_DEMAND != 0 {", " {", "dropin_extended"),
    ("exported device memory may be cut", "backends/net/src/sys.rs",
     "check(unsafe { libc::fcntl(fd.raw(), libc::F_ADD_SEALS, FIXED_SIZE) })?;",
     "let _ = FIXED_SIZE;", "dropin_extended"),
    ("a permission that a device does not need is refused", D + "pd_verbs.rs",
     "const PARENT_DOMAIN_ATTRS: u32 = 7;", "const PARENT_DOMAIN_ATTRS: u32 = 3;",
     "dropin_extended"),
]
