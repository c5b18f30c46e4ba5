//! Makes the exported names of `libibverbs.so.1` from `symbols/*.txt`.
//!
//! Rust cannot express a symbol with a version. So each name is a jump in assembly, under a local
//! name, with a `.symver` line. The version script declares the versions without names, since the
//! `.symver` lines assign these. rustc gives the linker a version script of its own; LLD, which
//! rustc contains and uses by default on x86-64 Linux since 1.90, accepts both. GNU ld does not, so
//! this script selects LLD where it is not the default.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

/// The tables; the first one has the versions for programs that request none.
const TABLES: &[&str] = &["debian-12.txt", "rdma-core-57-to-64.txt", "rdma-core-65.txt"];

struct Symbol {
    name: String,
    version: String,
    home: String,
}

fn main() {
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    let mut seen = BTreeSet::new();
    let mut symbols = Vec::new();
    for table in TABLES {
        let path = format!("symbols/{table}");
        println!("cargo:rerun-if-changed={path}");
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
        for s in text.lines().filter(|l| !l.starts_with('#')).filter_map(|l| parse(&path, l)) {
            if seen.insert((s.name.clone(), s.version.clone())) {
                symbols.push(s);
            }
        }
    }
    let versions = versions(&symbols);
    let script = Path::new(&out).join("versions.map");
    std::fs::write(&script, version_script(&versions)).expect("OUT_DIR can be written");
    std::fs::write(Path::new(&out).join("symbols.rs"), jumps(&symbols, &versions))
        .expect("OUT_DIR can be written");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", script.display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,defs");
    println!("cargo:rerun-if-changed=build.rs");
}

fn parse(path: &str, line: &str) -> Option<Symbol> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        [] => None,
        [name, version, home] => {
            Some(Symbol { name: name.into(), version: version.into(), home: home.into() })
        }
        _ => panic!("{path}: not three fields: {line}"),
    }
}

/// The versions in their order: public ones by number, each chained to the one before, private ones
/// alone.
fn versions(symbols: &[Symbol]) -> Vec<String> {
    let rank = |v: &str| {
        let number = |s: &str| s.parse::<u32>().unwrap_or_else(|_| panic!("version {v}"));
        match v.strip_prefix("IBVERBS_PRIVATE_") {
            Some(n) => (1, number(n)),
            None => {
                (0, number(v.strip_prefix("IBVERBS_1.").unwrap_or_else(|| panic!("version {v}"))))
            }
        }
    };
    let mut all: Vec<String> = symbols.iter().map(|s| s.version.clone()).collect();
    all.sort_by_key(|v| rank(v));
    all.dedup();
    all
}

fn version_script(versions: &[String]) -> String {
    let mut script = String::new();
    let mut before: Option<&String> = None;
    for v in versions {
        let private = v.contains("PRIVATE");
        match before.filter(|_| !private) {
            Some(b) => writeln!(script, "{v} {{}} {b};"),
            None => writeln!(script, "{v} {{}};"),
        }
        .expect("a String");
        if !private {
            before = Some(v);
        }
    }
    script
}

/// The jumps as Rust source.
fn jumps(symbols: &[Symbol], versions: &[String]) -> String {
    let place = |v: &str| versions.iter().position(|x| x == v);
    let mut asm = String::new();
    let mut homes: Vec<&str> = Vec::new();
    for (i, s) in symbols.iter().enumerate() {
        // Of several versions of a name the newest public one is the default, or the private one of
        // the first table.
        let same = || symbols.iter().filter(|o| o.name == s.name);
        let private = |o: &&Symbol| o.version.contains("PRIVATE");
        let newest = same().filter(|o| !private(o)).max_by_key(|o| place(&o.version));
        let default = newest.or_else(|| same().next()).is_some_and(|o| o.version == s.version);
        let at = if default { "@@" } else { "@" };
        let local = format!("gdrc_ibverbs_{i}");
        if s.home == "data" {
            // One byte of zero: "no".
            writeln!(
                asm,
                r#"".pushsection .bss.{local},\"aw\",@nobits",
                ".globl {local}", ".type {local}, @object", ".size {local}, 1",
                "{local}:", ".zero 1", ".popsection","#
            )
        } else {
            let k = homes.iter().position(|h| *h == s.home).unwrap_or_else(|| {
                homes.push(&s.home);
                homes.len() - 1
            });
            writeln!(
                asm,
                r#"".pushsection .text.{local},\"ax\",@progbits",
                ".globl {local}", ".type {local}, @function",
                "{local}:", concat!(jump!(), " {{f{k}}}"),
                ".size {local}, . - {local}", ".popsection","#
            )
        }
        .expect("a String");
        writeln!(asm, r#"".symver {local}, {}{at}{}","#, s.name, s.version).expect("a String");
    }
    let mut operands = String::new();
    for (k, h) in homes.iter().enumerate() {
        let path = match *h {
            "old" | "refuse" => "refuse".to_string(),
            "none" | "minus" => h.to_string(),
            h => format!("crate::{h}"),
        };
        writeln!(operands, "f{k} = sym {path},").expect("a String");
    }
    format!(
        "#[cfg(target_arch = \"x86_64\")]\nmacro_rules! jump {{ () => {{ \"jmp\" }} }}\n\
         #[cfg(target_arch = \"aarch64\")]\nmacro_rules! jump {{ () => {{ \"b\" }} }}\n\
         core::arch::global_asm!(\n{asm}{operands});\n"
    )
}
