//! Finds circles of imports: no file may import a file that imports it in turn, directly or through
//! others. A file and the modules inside it count as one: imports between a child and its parent
//! are allowed.

use gdrcore_tests::source::{
    code, files, is_test_only, named_paths, relative, root, without_tests,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A module's path from the root of its crate.
type Module = Vec<String>;

/// The module of a source file, by its path below `src`; `None`: a program of its own.
fn module_of(file: &str) -> Option<Module> {
    let stem = file.strip_suffix(".rs")?;
    let mut path: Module = stem.split('/').map(str::to_string).collect();
    if path[0] == "bin" {
        return None;
    }
    if matches!(path.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        path.pop();
    }
    Some(path)
}

fn is_within(inner: &Module, outer: &Module) -> bool {
    inner.starts_with(outer)
}

/// The imports of each module; `sources` are file names and texts.
fn imports(sources: &[(String, String)]) -> BTreeMap<Module, BTreeSet<Module>> {
    let modules: BTreeSet<Module> =
        sources.iter().filter_map(|(file, _)| module_of(file)).collect();
    let mut all = BTreeMap::new();
    for (file, text) in sources {
        let Some(own) = module_of(file) else { continue };
        let names: Vec<&str> = own.iter().map(String::as_str).collect();
        let found = named_paths(&without_tests(&code(text)), &names);
        let homes = found.iter().filter_map(|named| {
            (0..=named.path.len())
                .rev()
                .map(|n| named.path[..n].to_vec())
                .find(|path| modules.contains(path))
        });
        let others = homes.filter(|home| !is_within(home, &own) && !is_within(&own, home));
        all.insert(own.clone(), others.collect());
    }
    all
}

/// Sets of modules in which each imports every other, directly or through others.
fn circles(imports: &BTreeMap<Module, BTreeSet<Module>>) -> Vec<BTreeSet<Module>> {
    let reach = |from: &Module| {
        let (mut seen, mut todo) = (BTreeSet::new(), vec![from.clone()]);
        while let Some(at) = todo.pop() {
            for next in imports.get(&at).into_iter().flatten() {
                if seen.insert(next.clone()) {
                    todo.push(next.clone());
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&Module, BTreeSet<Module>> =
        imports.keys().map(|m| (m, reach(m))).collect();
    let mut found: Vec<BTreeSet<Module>> = Vec::new();
    for (module, seen) in &reached {
        if !seen.contains(*module) || found.iter().any(|circle| circle.contains(*module)) {
            continue;
        }
        found.push(seen.iter().filter(|other| reached[other].contains(*module)).cloned().collect());
    }
    found
}

/// The `src` folders of this workspace's crates.
fn crates() -> Vec<std::path::PathBuf> {
    let manifests = files(&root(), &["toml"]).into_iter().filter(|f| f.ends_with("Cargo.toml"));
    manifests
        .map(|f| f.parent().expect("a folder").join("src"))
        .filter(|src| src.is_dir())
        .collect()
}

fn sources(src: &Path) -> Vec<(String, String)> {
    let read = |f: &Path| std::fs::read_to_string(f).expect("a source");
    let name = |f: &Path| f.strip_prefix(src).expect("below").to_string_lossy().into_owned();
    let all: Vec<(String, String)> =
        files(src, &["rs"]).iter().map(|f| (name(f), read(f))).collect();
    let root_of_crate = all
        .iter()
        .find(|(f, _)| f == "lib.rs" || f == "main.rs")
        .map(|(_, t)| t.clone())
        .unwrap_or_default();
    all.into_iter().filter(|(f, _)| !is_test_only(f, &root_of_crate)).collect()
}

#[test]
fn files_import_each_other_in_no_circle() {
    let mut faults = Vec::new();
    for src in crates() {
        for circle in circles(&imports(&sources(&src))) {
            let names: Vec<String> = circle.iter().map(|m| m.join("::")).collect();
            faults.push(format!("{}: {names:?} import each other in a circle", relative(&src)));
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn a_circle_is_found_and_a_child_is_no_circle() {
    let source = |file: &str, text: &str| (file.to_string(), text.to_string());
    let of = |all: &[(String, String)]| circles(&imports(all)).len();
    let (a, b) = (source("a.rs", "use crate::b::B;"), source("b.rs", "use crate::c::C;"));
    assert_eq!(of(&[a.clone(), b.clone(), source("c.rs", "use crate::d;")]), 0);
    assert_eq!(of(&[a.clone(), b.clone(), source("c.rs", "fn f() { super::a::f() }")]), 1);
    assert_eq!(of(&[a, b, source("c.rs", "#[cfg(test)]\nmod tests { use crate::a; }")]), 0);
    assert_eq!(of(&[source("m/mod.rs", "use self::x::X;"), source("m/x.rs", "use super::M;")]), 0);
}
