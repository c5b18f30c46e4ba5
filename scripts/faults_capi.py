"""Deliberate faults in the C API's groups, in its words, and in what pages say; see mutate.py.

A row: what is wrong, the file, its text, what replaces it, and the stage that notices it (a name of
`mutate.NAMED`, or a test of tests/tests)."""

C = "core/src/"
F = "ffi/src/"
N = "backends/net/src/"

FAULTS = [
    ("the page of rules lacks an operation that the table of opcodes has",
     "docs/records/SPEC-MAP.md", "| partitions |", "| FLUSH, partitions |", "spec_map"),
    ("the page of rules has other opcodes than the table", "docs/records/SPEC-MAP.md",
     "| FLUSH | 1C |", "| FLUSH | |", "spec_map"),
    ("gdrc_qp_detach_mcast makes a member", F + "qp_calls.rs",
     "device(ctx)?.mcast_detach(qp.handle, &gid)?;", "device(ctx)?.mcast_attach(qp.handle, &gid)?;",
     "multicast"),
    ("a NIC's group is left when it is joined", "backends/verbs/src/control.rs",
     "errno(unsafe { (self.module.mcast_attach)(qp.object(), gid) })",
     "errno(unsafe { (self.module.mcast_detach)(qp.object(), gid) })", "verbs_on_dropin"),
    ("a firewall's refusal in the name of a socket that is there counts as the peer's end",
     N + "soft/witness.rs", "|| has_socket(dst)", "|| false",
     "causes"),
    ("this host's firewall that also sends an ICMP message counts as the network",
     N + "udp/tx/refusal.rs", "        libc::EPERM => ErrorKind::Send,\n", "", "net"),
    ("a rejection does not know the port", C + "verbs/cause.rs",
     "port as u64 | if datagram", "0 | if datagram", "causes"),
    ("a CQ in use does not say by whom", C + "engine/control.rs",
     "self.first_user(|qp| qp.scq == at || qp.rcq == at)", "self.first_user(|_| false)", "capi"),
    ("memory that is not mapped has no address in its refusal", N + "fault.rs",
     "\"addr {addr:#x}: of the", "\"of the", "capi"),
    ("what follows \"loopback\" is not said", F + "context_kinds.rs",
     "nothing follows \\\"{word}\\\", and", "no \\\"{word}\\\", and", "capi"),
    ("a queue pair in a group is destroyed", C + "engine/qp.rs", "if groups > 0 {",
     "if groups > 99 {", "multicast"),
    ("a queue pair in a multicast group is destroyed", "dropin/src/qp_verbs.rs",
     "        if groups > 0 {", "        if groups > 99 {", "man_pages"),
    ("a dma-buf's address may have another offset in its page", "dropin/src/mr_verbs.rs",
     "    if iova % page != into {", "    if iova % page > page {", "man_pages"),
    ("a rate limit takes fields that it does not know", "dropin/src/qp_verbs.rs",
     "        if attr.comp_mask != 0 {", "        if attr.comp_mask == 99 {", "man_pages"),
    ("an advice takes any flags", "dropin/src/mr_verbs.rs", "        if flags & !FLUSH != 0 {",
     "        if flags & !FLUSH == 99 {", "man_pages"),
    ("a sentence of a man page has no row", "tests/data/man-pages.tsv", "a_refused_object_is",
     "an_object_is", "man_pages"),
    ("a device that is closed waits for a group's queue pair", "dropin/src/hca.rs",
     "let _ = self.device.mcast_detach(handle, &gid);", "_ = gid;", "man_pages"),
    ("each flow label of IPv4 has a peer record", C + "roce/peer.rs",
     "let has_label = ip::v4_of_gid(&ah.dgid).is_none();", "let has_label = true;", "unit"),
    ("a group's refusal names an argument of another call", C + "engine/control.rs",
     "unusable(\"gid\", gid, ", "unusable(\"dgid\", gid, ", "capi"),
]
