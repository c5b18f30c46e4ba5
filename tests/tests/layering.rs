//! Checks that imports go down only: inside `core` from module to module, and from crate to crate.

use gdrcore_tests::source::{
    code, files, is_test_only, named_paths, relative, root, without_tests, words,
};
use std::path::Path;

/// The modules of core, low to high. An entry may import itself and earlier entries.
///
/// `verbs::types`, `verbs::cause`, `cm::types` and `device` (a trait and its arguments) are plain
/// data that every layer uses, so they are low, although the code that implements them (the objects
/// of `verbs`, the engine) is high.
const CORE: &[&[&str]] = &[
    &["error"],
    &["reason"],
    &["config"],
    &["counters"],
    &["numbers"],
    &["sync"],
    &["verbs::types", "verbs::cause"],
    &["cm::types"],
    &["device"],
    &["arena"],
    &["random"],
    &["pool"],
    &["ring", "sleep", "turns", "lease", "frame_len", "bitmap", "wheel", "bucket"],
    &["dcqcn"],
    &["wire"],
    &["inject"],
    &["receipt"],
    &["mem"],
    &["verbs"],
    &["roce"],
    &["cm"],
    &["engine"],
];

/// `wire` knows bytes only.
const WIRE_MAY: &[&str] = &["error", "wire"];

/// Names that core's root re-exports, and the modules that define them.
const REEXPORTS: &[(&str, &str)] = &[
    ("Error", "error"),
    ("Result", "error"),
    ("Config", "config"),
    ("refuse", "reason"),
    ("consts", "numbers"),
    ("numbered", "numbers"),
    ("copy_fields", "verbs::types"),
];

/// Which workspace crates a crate may import outside of its tests.
const CRATES: &[(&str, &[&str])] = &[
    ("gdrcore-core", &[]),
    ("gdrcore-net", &["gdrcore-core"]),
    ("gdrcore-testkit", &["gdrcore-core", "gdrcore-net"]),
    ("gdrcore-verbs", &["gdrcore-core"]),
    ("gdrcore-verbs-module", &["gdrcore-core", "gdrcore-verbs"]),
    ("gdrcore-cuda", &["gdrcore-core"]),
    ("gdrcore-strict", &["gdrcore-core", "gdrcore-net", "gdrcore-calls"]),
    (
        "gdrcore",
        &["gdrcore-core", "gdrcore-net", "gdrcore-verbs", "gdrcore-cuda", "gdrcore-strict"],
    ),
    ("gdrcore-router-feed", &[]),
    (
        "gdrcore-router",
        &["gdrcore-core", "gdrcore-net", "gdrcore-cuda", "gdrcore-router-feed", "gdrcore-verbs"],
    ),
    ("gdrcore-router-etcd", &["gdrcore-router-feed"]),
    ("gdrcore-mempool", &[]),
    ("gdrcore-ucma", &["gdrcore-core"]),
    ("gdrcore-preload", &["gdrcore-calls"]),
    ("gdrcore-mlx5", &[]),
    ("gdrcore-calls", &[]),
    ("gdrcore-run", &["gdrcore-calls", "gdrcore-core"]),
    ("gdrcore-cli", &["gdrcore-core", "gdrcore-net", "gdrcore-run"]),
    (
        "gdrcore-dropin",
        &["gdrcore-core", "gdrcore-net", "gdrcore-calls", "gdrcore-strict", "gdrcore-ucma"],
    ),
    ("sim", &["gdrcore-core", "gdrcore-testkit"]),
    (
        "gdrcore-fuzz",
        &["gdrcore-core", "gdrcore-net", "gdrcore-router", "gdrcore", "gdrcore-testkit"],
    ),
    ("bench", &["gdrcore-core", "gdrcore-net", "gdrcore-router", "gdrcore-testkit"]),
    (
        "gdrcore-tests",
        &[
            "gdrcore-testkit",
            "gdrcore-core",
            "gdrcore-net",
            "gdrcore-router-feed",
            "gdrcore-verbs",
            "gdrcore-cuda",
            "gdrcore-strict",
        ],
    ),
];

/// All dependencies that core may have; `loom` only under its own cfg.
const CORE_DEPENDENCIES: &[&str] = &["heapless", "crossbeam-utils", "siphasher", "loom"];

/// The entry of a path in [`CORE`]: that of its longest known prefix.
fn layer(path: &[String]) -> Option<(usize, &'static str)> {
    let known = |len: usize| {
        let name = path[..len].join("::");
        CORE.iter()
            .enumerate()
            .find_map(|(rank, group)| group.iter().find(|m| **m == name).map(|m| (rank, *m)))
    };
    (1..=path.len()).rev().find_map(known)
}

/// The forbidden imports of a file of core; `module` is its module path.
fn core_faults(file: &str, module: &[&str], text: &str) -> Vec<String> {
    let shipped = without_tests(&code(text));
    let mut faults = Vec::new();
    let own: Vec<String> = module.iter().map(|s| s.to_string()).collect();
    let Some((own_rank, own_name)) = layer(&own) else {
        return vec![format!(
            "{file}: module {} has no place in the table of layers",
            module.join("::")
        )];
    };
    for named in named_paths(&shipped, module) {
        let mut path = named.path;
        if let Some((_, home)) =
            REEXPORTS.iter().find(|(name, _)| path.first().is_some_and(|p| p == name))
        {
            path = vec![home.to_string()];
        }
        let Some((rank, name)) = layer(&path) else {
            let inside = path.len() >= own.len() && path[..own.len()] == own[..];
            let parent = own.starts_with(&path[..path.len().min(own.len())]);
            if !inside && !parent {
                faults.push(format!("{file}:{}: {} is in no layer", named.line, path.join("::")));
            }
            continue;
        };
        let down = rank < own_rank || name == own_name || path.starts_with(&own);
        let wire_leaves = own_name == "wire" && !WIRE_MAY.contains(&name);
        if !down || wire_leaves {
            faults.push(format!("{file}:{}: {own_name} must not import {name}", named.line));
        }
    }
    for outside in ["std", "alloc", "libc"] {
        let path = format!("{outside}::");
        let named = shipped.match_indices(&path).any(|(at, _)| {
            !shipped[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':')
        });
        if named || shipped.contains(&format!("extern crate {outside}")) {
            faults.push(format!("{file}: core must not use {outside}"));
        }
    }
    faults
}

/// The module path of a file below `core/src`.
fn module_of(src: &Path, file: &Path) -> Vec<String> {
    let rel = file.strip_prefix(src).expect("a file of core").with_extension("");
    let mut parts: Vec<String> =
        rel.components().map(|c| c.as_os_str().to_string_lossy().into_owned()).collect();
    if parts.last().is_some_and(|p| p == "mod" || p == "lib") {
        parts.pop();
    }
    parts
}

#[test]
fn core_imports_go_down_only() {
    let src = root().join("core/src");
    let lib = std::fs::read_to_string(src.join("lib.rs")).expect("core/src/lib.rs");
    let mut faults = Vec::new();
    let mut seen = 0;
    for file in files(&src, &["rs"]) {
        let module = module_of(&src, &file);
        if module.is_empty() || is_test_only(&relative(&file)["core/src/".len()..], &lib) {
            continue;
        }
        seen += 1;
        let module: Vec<&str> = module.iter().map(String::as_str).collect();
        let text = std::fs::read_to_string(&file).expect("readable source");
        faults.extend(core_faults(&relative(&file), &module, &text));
    }
    assert!(seen > 5, "core/src was not found");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn core_has_neither_std_nor_alloc() {
    let text = std::fs::read_to_string(root().join("core/src/lib.rs")).expect("core/src/lib.rs");
    let shipped = without_tests(&code(&text));
    assert!(
        shipped.contains("no_std]") || shipped.contains("no_std)]"),
        "core/src/lib.rs must be no_std"
    );
    assert!(!shipped.contains("extern crate"), "core links neither alloc nor std");
}

#[test]
fn a_wrong_import_is_found() {
    let bad = |module: &[&str], text: &str| core_faults("bad.rs", module, text);
    assert_eq!(
        bad(&["wire", "bth"], "use crate::mem::region::Regions;"),
        ["bad.rs:1: wire must not import mem"]
    );
    assert_eq!(bad(&["wire"], "use crate::{error::Error,\n verbs::types::Sge};").len(), 1);
    assert_eq!(bad(&["mem", "host"], "fn f() { super::super::engine::run() }").len(), 1);
    assert_eq!(bad(&["arena"], "use crate::pool::Pool;").len(), 1);
    assert_eq!(bad(&["roce"], "use std::vec::Vec;").len(), 1);
    assert_eq!(bad(&["roce"], "use crate::novel::Thing;").len(), 1);
    assert_eq!(bad(&["novel"], "").len(), 1);
    for good in [
        "use crate::error::Error;",
        "use crate::Result;",
        "use super::types::Sge;",
        "// crate::engine::Engine\n#[cfg(test)] mod tests { use crate::engine::E; }",
        "fn f() { self::helper() } mod inner { use super::helper; }",
    ] {
        assert_eq!(bad(&["verbs", "table"], good), [""; 0], "{good}");
    }
}

/// The dependencies of a manifest: name, and whether it is for tests only.
fn dependencies(manifest: &str) -> Vec<(String, bool)> {
    let mut section = String::new();
    let mut found = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            section = name.to_string();
        } else if section.ends_with("dependencies") && !line.starts_with('#') {
            if let Some(name) = line.split(['=', '.', ' ']).next().filter(|n| !n.is_empty()) {
                found.push((
                    name.trim_matches('"').to_string(),
                    section.ends_with("dev-dependencies"),
                ));
            }
        }
    }
    found
}

fn crate_faults(name: &str, manifest: &str) -> Vec<String> {
    let Some((_, may)) = CRATES.iter().find(|(n, _)| *n == name) else {
        return vec![format!("{name}: a crate without a place in the table of layers")];
    };
    let ours = |d: &str| CRATES.iter().any(|(n, _)| *n == d);
    let mut faults = Vec::new();
    for (dependency, only_tests) in dependencies(manifest) {
        let wrong = if ours(&dependency) {
            !may.contains(&dependency.as_str())
        } else {
            name == "gdrcore-core"
        } && !only_tests
            && !(name == "gdrcore-core" && CORE_DEPENDENCIES.contains(&dependency.as_str()));
        if wrong {
            faults.push(format!("{name} must not depend on {dependency}"));
        }
    }
    faults
}

#[test]
fn crate_imports_go_down_only() {
    let mut faults = Vec::new();
    let mut seen = 0;
    for manifest in files(&root(), &["toml"]).iter().filter(|f| f.ends_with("Cargo.toml")) {
        let text = std::fs::read_to_string(manifest).expect("readable manifest");
        let Some(name) = text.lines().find_map(|l| l.strip_prefix("name = \"")?.strip_suffix('"'))
        else {
            continue;
        };
        seen += 1;
        faults.extend(crate_faults(name, &text));
    }
    assert!(seen >= 5, "only {seen} crates were found");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_wrong_dependency_is_found() {
    assert_eq!(crate_faults("gdrcore-net", "[dependencies]\ngdrcore.workspace = true").len(), 1);
    assert_eq!(crate_faults("gdrcore-core", "[dependencies]\nlibc = \"0.2\"").len(), 1);
    assert_eq!(crate_faults("gdrcore-core", "[dev-dependencies]\nlibc = \"0.2\""), [""; 0]);
    assert_eq!(crate_faults("sim", "[dependencies]\ngdrcore-net = { path = \"x\" }").len(), 1);
    assert_eq!(crate_faults("unknown", "").len(), 1);
}

#[test]
fn backends_export_no_c_abi() {
    let mut faults = Vec::new();
    // The module's one symbol is for the verbs device, not for programs.
    let module = root().join("backends/verbs/module/src/lib.rs");
    for file in files(&root().join("backends"), &["rs"]).into_iter().filter(|f| *f != module) {
        let text = std::fs::read_to_string(&file).expect("readable source");
        let shipped = without_tests(&code(&text));
        for mark in ["no_mangle", "export_name"] {
            if words(&shipped).any(|w| w == mark) {
                faults.push(format!("{}: {mark}: the C ABI lives in ffi/", relative(&file)));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The names of `udp` that files of the soft device may use, to open the port: everything else goes
/// through the trait `port::Port`.
const OPENS_UDP: &[(&str, &[&str])] = &[
    ("soft/mod.rs", &["UdpPort"]),
    ("soft/open.rs", &["UdpPort"]),
    ("soft/layout.rs", &["UdpPort", "UdpConfig", "udp_flags"]),
    ("soft/group/open.rs", &["UdpPort", "UdpConfig", "udp_flags"]),
];

/// The forbidden paths below `udp` in a file of the soft device.
fn soft_faults(file: &str, module: &[&str], text: &str) -> Vec<String> {
    let may = OPENS_UDP.iter().find(|(name, _)| file.ends_with(name)).map_or(&[][..], |(_, w)| w);
    named_paths(&without_tests(&code(text)), module)
        .into_iter()
        .filter(|named| named.path.first().is_some_and(|p| p == "udp"))
        .filter(|named| !named.path.get(1).is_some_and(|item| may.contains(&item.as_str())))
        .map(|named| {
            format!("{file}:{}: {} is not a name of the port", named.line, named.path.join("::"))
        })
        .collect()
}

#[test]
fn the_soft_device_uses_udp_by_its_port_only() {
    let src = root().join("backends/net/src");
    let mut faults = Vec::new();
    let mut seen = 0;
    for file in files(&src.join("soft"), &["rs"]) {
        if file.ends_with("tests.rs") {
            continue;
        }
        seen += 1;
        let module = module_of(&src, &file);
        let module: Vec<&str> = module.iter().map(String::as_str).collect();
        let text = std::fs::read_to_string(&file).expect("readable source");
        faults.extend(soft_faults(&relative(&file), &module, &text));
    }
    assert!(seen > 10, "backends/net/src/soft was not found");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let bad = |file: &str, text: &str| soft_faults(file, &["soft", "socket_io"], text).len();
    assert_eq!(bad("soft/socket_io.rs", "use crate::udp::{Burst, UdpPort};"), 2);
    assert_eq!(bad("soft/mod.rs", "use crate::udp::{UdpConfig, UdpPort, MAX_BURST};"), 2);
    assert_eq!(bad("soft/socket_io.rs", "use crate::port::Port;"), 0);
}

/// A call that is not passed on would be refused there by the trait's default.
#[test]
fn each_call_of_a_device_is_passed_on() {
    let text = |file: &str| std::fs::read_to_string(root().join(file)).expect(file);
    let device = text("core/src/device.rs");
    let calls = device.split("pub trait Device").nth(1).and_then(|t| t.split("\n}\n").next());
    let heads = calls.expect("the trait").lines().filter_map(|line| line.trim().split_once("fn "));
    let calls = heads.filter(|(before, _)| ["", "unsafe "].contains(before));
    let all: Vec<_> = calls.filter_map(|(_, after)| after.split(['(', '<']).next()).collect();
    assert!(all.len() > 60, "{all:?}");
    for file in ["strict/src/device.rs", "backends/net/src/inject/calls.rs"] {
        let there = text(file);
        // The default of `take_completions` polls.
        let is_lost =
            |name: &&&str| !there.contains(&format!(" {name}(")) && **name != "take_completions";
        let lost: Vec<_> = all.iter().filter(is_lost).collect();
        assert!(lost.is_empty(), "{file}: {lost:?}");
    }
}
