//! `core` linked alone imports no allocator and nothing else of a system.

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
    assert!(done.ok(), "{}", done.output);
}
