//! FLUSH on the libibverbs drop-in, as a C program of rdma-core 45 or newer sees it.

use gdrcore_tests::dropin::command;
use gdrcore_tests::skip;
use gdrcore_tests::tools::{compile, find, loopback, run, scratch};
use std::path::Path;

#[test]
fn programs_flush_what_they_have_written() {
    if find("cc").is_none() || !Path::new("/usr/include/infiniband/verbs.h").exists() {
        skip!("no cc or libibverbs headers");
    }
    let dir = scratch("flush");
    let program = compile("cc", "flush", &dir, &["-libverbs"]);
    let done = run(&mut command(&program, &loopback(157, 1)), 30);
    assert!(done.ok() && done.output.contains("ok"), "{}", done.output);
}
