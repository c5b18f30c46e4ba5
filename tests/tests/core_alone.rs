//! Links `core` alone and checks that it imports no allocator and no system call.

use gdrcore_tests::source::root;
use gdrcore_tests::{or_skip, tools};
use std::process::Command;

#[test]
fn core_alone_imports_no_allocator() {
    or_skip!(tools::all_installed(&["cc", "readelf", "nm"]));
    let done = tools::run(&mut Command::new(root().join("scripts/core_alone.sh")), 600);
    println!("{}", done.output);
    assert!(done.ok(), "{done}");
}
