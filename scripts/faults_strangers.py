"""Deliberate faults in what other users of the host and of the network may cost; see mutate.py.

A row: what is wrong, the file, its text, what replaces it, and the stage that notices it (a name of
`mutate.NAMED`, or a test of tests/tests)."""

C = "core/src/"
N = "backends/net/src/"

FAULTS = [
    ("a socket that another user binds to a peer's address elsewhere makes ports the peer's",
     N + "soft/peer_ports.rs", ".filter(|_| is_local(&own))", "", "net"),
    ("a socket of all addresses counts as a soft device's", N + "sock_diag.rs",
     ".filter(|s| s.exact)", "", "net"),
    ("a look-up that takes long is followed by the next at once", N + "soft/peer_ports.rs",
     "self.ask_at = ended + (SHARE - 1) * ended.saturating_sub(began);", "self.ask_at = began;",
     "net"),
    ("ports of a peer of another host are looked up", N + "soft/peer_ports.rs",
     "        [0, port].iter().any(|&port| {", "        [port].iter().any(|&port| {", "net"),
    ("one socket of those that share a port speaks for all", N + "sock_diag.rs",
     "const SENDERS: u16 = 16;", "const SENDERS: u16 = 1;", "net"),
    ("what is sent again leaves by the connected socket that the peer refuses",
     N + "soft/progress.rs", "                net.doubt_connected();\n", "", "other_users"),
    ("an answer that is asked for again leaves by the connected socket that the peer refuses",
     C + "roce/responder.rs",
     "        self.common.repeats = self.common.repeats.wrapping_add(1);\n", "", "other_users"),
    ("a connected socket that the peer refuses comes back as soon each time",
     N + "udp/tx/single.rs", "CONNECT_AFTER_MAX.min(2 * self.connect_after)", "CONNECT_AFTER",
     "net"),
    ("ports are checked where nothing can be looked up", N + "soft/open.rs",
     "g.check_ports(socket.is_some_and(|own| receiving_user(own, own).is_some()));",
     "g.check_ports(socket.is_some());", "other_users"),
    ("the first name of the user's directory is the only one", N + "local/socket_dir.rs",
     "const NAMES: usize = 32;", "const NAMES: usize = 1;", "net"),
    ("thread-local variables are taken from the stacks of our threads", N + "soft/stack.rs",
     ".stack_size(stack + taken_by_libc())", ".stack_size(stack)", "stacks"),
    ("an open reads directories through a large buffer on the stack", N + "local/socket_dir.rs",
     ("struct Buffer([u8; 1024]);", "Buffer([0; 1024]);"),
     ("struct Buffer([u8; 65536]);", "Buffer([0; 65536]);"), "stacks"),
]
