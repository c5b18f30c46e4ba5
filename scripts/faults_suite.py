"""Deliberate faults in verbs of newer releases of libibverbs, and in the management datagrams of
tools; see mutate.py.

A row: what is wrong, the file, its text, what replaces it, and the stage that notices it (a name of
`mutate.NAMED`, or a test of tests/tests)."""

C = "core/src/cm/"
D = "dropin/src/"

FAULTS = [
    ("a DMA handle ends under its region", D + "dmah_verbs.rs",
     "        if users != 0 {", "        if users > u32::MAX - 1 {", "dropin_extended"),
    ("a DMA handle names any CPU", D + "dmah_verbs.rs",
     "if a.comp_mask & CPU_ID != 0 && !may_run_on(a.cpu_id)? {",
     "if a.comp_mask & CPU_ID != 0 && may_run_on(a.cpu_id).is_err() {", "dropin_extended"),
    ("a region on demand has a DMA handle", D + "dmah_verbs.rs",
     " || flags & access::ON_DEMAND != 0 {", " {", "dropin_extended"),
    ("exported device memory may be cut", "backends/net/src/memfd.rs",
     "check(unsafe { libc::fcntl(fd.raw(), libc::F_ADD_SEALS, FIXED_SIZE) })?;",
     "let _ = FIXED_SIZE;", "dropin_extended"),
    ("a permission that a device does not need is refused", D + "pd_verbs.rs",
     "const PARENT_DOMAIN_ATTRS: u32 = 7;", "const PARENT_DOMAIN_ATTRS: u32 = 3;",
     "dropin_extended"),
    ("a field that a CQ was made with has no function", D + "cq_ex_verbs.rs",
     "    ex.read_flow_tag = Some(read_flow_tag);\n", "    let _ = read_flow_tag;\n",
     "dropin_extended"),
    ("a performance query of another port gets no answer", D + "umad/mod.rs",
     "class::PERFORMANCE if !mad.is_response() => {",
     "class::PERFORMANCE if mad.is_response() => {", "umad"),
    ("a request without an answer is never ended", D + "umad/mod.rs",
     "        file.expire(now);\n", "        let _ = now;\n", "umad"),
    ("a query of another port is answered", D + "umad/agents.rs",
     "            if select != ALL_PORTS {\n", "            if select > 9 {\n", "dropin_unit"),
    ("a request is answered by any port", D + "umad/file.rs",
     "                    && w.to.dgid == *from\n", "", "dropin_unit"),
    ("a request is sent again without end", D + "umad/file.rs",
     "            match (w.retries, self.hca) {\n", "            match (1, self.hca) {\n", "umad"),
    ("a program learns nothing of an agent that it does not have", D + "umad/file.rs",
     "            return self.fail(&head, &mad, libc::EINVAL);\n", "            return;\n", "umad"),
    ("two agents get the same requests", D + "umad/proto.rs",
     "self.class == other.class && self.methods & other.methods != 0",
     "self.class == other.class && self.methods == u128::MAX", "umad"),
    ("programs take the connection manager's messages", D + "umad/file.rs",
     "let own = agent.class == class::COMMUNICATION;", "let own = false;", "umad"),
    ("a closed file stays with the thread", D + "umad/mod.rs",
     "            files.open.remove(at).close();\n", "            let _ = at;\n", "umad"),
    ("a datagram of another class leaves behind nothing but itself", C + "general.rs",
     "        if self.general.leaving.len == 0 {\n",
     "        if self.general.leaving.len < PLACES {\n", "unit"),
    ("a message of the connection manager leaves as another's", C + "general.rs",
     "        if !is_general(&d.mad) {\n", "        if d.mad.is_empty() {\n", "unit"),
    ("a datagram that was cut is kept", C + "general.rs",
     "let whole = <[u8; MAD_LEN]>::try_from(bytes).ok();",
     "let mut all = [0; MAD_LEN];\n        let n = bytes.len().min(MAD_LEN);\n        "
     "all[..n].copy_from_slice(&bytes[..n]);\n        let whole = Some(all);", "unit"),
    ("a counter of a port is told at another's place", D + "sysfs/tree.rs",
     '"rcvd_pkts", 1, (36, 4), (32, 8))', '"rcvd_pkts", 1, (32, 4), (32, 8))', "umad"),
]
