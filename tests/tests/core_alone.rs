//! Links `core` alone and checks that it imports no allocator and no system call.

use gdrcore_tests::source::root;
use gdrcore_tests::{skip, tools};
use std::process::Command;

#[test]
fn core_alone_imports_no_allocator() {
    for tool in ["cc", "readelf", "nm"] {
        if tools::find(tool).is_none() {
            skip!("{tool} is not installed, so core cannot be linked alone and read");
        }
    }
    let done = tools::run(&mut Command::new(root().join("scripts/core_alone.sh")), 600);
    println!("{}", done.output);
    assert!(done.ok(), "{done}");
}
