"""Deliberate faults in what the device says of its port and its failed requests; see mutate.py.

A row: what is wrong, the file, its text, what replaces it, and the stage that notices it (a name of
`mutate.NAMED`, or a test of tests/tests)."""

N = "backends/net/src/"
D = "dropin/src/"

FAULTS = [
    ("of several events of a port the present state's comes first", "core/src/verbs/port_events.rs",
     "let former = if self.is_down { PORT_ACTIVE } else { PORT_ERR };",
     "let former = if self.is_down { PORT_ERR } else { PORT_ACTIVE };", "unit"),
    ("an id that the program does not know hears of the interface", "core/src/cm/mod.rs",
     "if self.pool.is_live(i) && !self.is_unheard(i) {", "if self.pool.is_live(i) {", "unit"),
    ("a link that blinked was never down", N + "link_state.rs",
     "                self.set_up(is_up, note);\n", "                let _ = is_up;\n", "net"),
    ("what notifications would have told is lost with them", N + "link_state.rs",
     "Notified::Lost => ask = true,", "Notified::Lost => {}", "net"),
    ("an address that moves to another interface stays with the first", N + "link_state.rs",
     "        self.state.interface = now.interface;\n", "", "net"),
    ("an interface that leaves a bridge is removed", N + "link_state.rs",
     "if head[0] != libc::AF_UNSPEC as u8 {", "if head[0] > 200 {", "net"),
    ("every engine tells of the port", N + "soft/engine_set/engines.rs",
     "        self.engines.first().watch_link();\n",
     "        self.engines.iter().for_each(|engine| engine.watch_link());\n", "ports"),
    ("the MTU is that of an interface that is gone", N + "soft/link.rs",
     "net.set_interface(link.interface());", "let _ = net;", "ports"),
    ("a port is active whatever its link", N + "soft/device.rs",
     "let is_up = state.is_none_or(|link| link.is_up);", "let is_up = true;", "ports"),
    ("a listener at all addresses loses a device", "dropin/ucma/src/session/session_events.rs",
     "i.uid != 0 && !(of_interface && i.device.is_none())", "i.uid != 0 || of_interface", "ports"),
    ("a GID stays without its address", D + "query_verbs.rs",
     "let used = gids::entry(index)?.filter(|_| present(c).has_gid != 0);",
     "let used = gids::entry(index)?;", "ports"),
    ("the table of GIDs stays without their address", D + "query_verbs.rs",
     "let used = if present(c).has_gid != 0 { gids::USED } else { 0 };",
     "let used = gids::USED;", "ports"),
    ("the files of a port ignore its link", D + "sysfs/mod.rs",
     "(link.is_up, link.has_address)", "(true, link.has_address)", "ports"),
    ("the device promises no PORT_ACTIVE", D + "query_verbs.rs",
     "1 << 7 | 1 << 10 | 1 << 11", "1 << 7 | 1 << 11", "dropin_events"),
    ("flushed requests are explained, too", D + "failed_requests.rs",
     "wc_status::SUCCESS | wc_status::WR_FLUSH_ERR)", "wc_status::SUCCESS)", "dropin_verbose"),
    ("each failed request of a queue pair is explained", D + "qp_verbs.rs",
     "!self.explained.swap(true, Ordering::Relaxed)", "true", "dropin_verbose"),
    ("the second connection's failure is not explained", D + "qp_verbs.rs",
     "                q.explained.store(false, Ordering::Relaxed);\n", "", "dropin_verbose"),
    ("an extended CQ explains nothing", D + "cq_ex_verbs.rs",
     "failed_requests::explain(cq.hca, &wc);", "let _ = &failed_requests::explain;",
     "dropin_verbose"),
]
