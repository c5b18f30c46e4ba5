//! XRC on the libibverbs drop-in: programs as Debian packages them, and domains as a C program sees
//! them.

use gdrcore_tests::dropin::{says_ok, Pair};
use gdrcore_tests::tools::loopback;
use gdrcore_tests::{or_skip, skip};

/// Server and client of a tool end well over shared memory and over UDP.
fn passes(tool: &str, n: u32, arguments: &str) {
    for path in ["shm", "udp"] {
        let pair = or_skip!(Pair::new(tool, arguments, n));
        let [server, client] = pair.over(path).run();
        assert!(
            server.ok() && client.ok(),
            "{tool} {arguments} over {path}\nserver:\n{server}\nclient:\n{client}"
        );
    }
}

#[test]
fn rdma_cores_ping_pong_runs_unmodified() {
    for arguments in ["-g 0 -n 100", "-g 0 -n 100 -e", "-g 0 -n 20 -s 100000 -m 1024"] {
        passes("ibv_xsrq_pingpong", 151, arguments);
    }
}

#[test]
fn perftest_runs_unmodified() {
    for tool in ["ib_send_lat", "ib_write_lat", "ib_read_lat", "ib_atomic_lat"] {
        passes(tool, 153, "-F -x 0 -n 300 -c XRC");
    }
    for tool in ["ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_atomic_bw"] {
        passes(tool, 153, "-F -x 0 -n 300 -c XRC");
    }
    passes("ib_send_bw", 153, "-F -x 0 -n 300 -c XRC -b");
    passes("ib_write_bw", 153, "-F -x 0 -n 300 -c XRC -q 4");
}

#[test]
fn domains_and_handles_are_counted() {
    if !says_ok("xrcd", &loopback(154, 1)) {
        skip!("no cc or libibverbs headers");
    }
}
