//! Programs of librdmacm and rsockets whose peer is killed.

use gdrcore_tests::rdmacm::command;
use gdrcore_tests::skip;
use gdrcore_tests::tools::{compile, find, loopback, run, scratch};
use std::path::Path;

#[test]
fn a_killed_peer_is_noticed_by_librdmacm_and_rsockets() {
    if find("cc").is_none() || !Path::new("/usr/include/rdma/rsocket.h").exists() {
        skip!("no compiler, or no librdmacm-dev");
    }
    let dir = scratch("dead_peer");
    let program = compile("cc", "dead_peer", &dir, &["-lrdmacm", "-libverbs"]);
    for path in ["auto", "udp"] {
        let addresses = [1, 2].map(|last| loopback(97, last));
        let done = run(command(None, &["--path", path], &program).args(addresses), 90);
        assert!(done.ok() && done.output.contains("ok"), "{path}: {done}");
    }
}
