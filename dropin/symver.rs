//! Makes the exported names of a library from a table: shared by the build scripts of the drop-in
//! and of its `libmlx5.so.1`.
//!
//! Rust cannot express a symbol with a version. So each name is a jump in assembly, under a local
//! name, with a `.symver` line. The version script declares the versions without names, since the
//! `.symver` lines assign these. rustc gives the linker a version script of its own; LLD, which
//! rustc contains and uses by default on x86-64 Linux since 1.90, accepts both. GNU ld does not, so
//! a build needs LLD where it is not the default.

use std::fmt::Write;
use std::path::Path;

/// A library whose names are made.
pub struct Library {
    /// Its name for the loader.
    pub soname: &'static str,
    /// The table: lines `name version home`. `A_1,2` stands for the versions A_1 and A_2.
    pub table: &'static str,
    /// The beginning of its public versions, before their number: `IBVERBS_1.`.
    pub public: &'static str,
    /// The beginning of those that are private to rdma-core.
    pub private: Option<&'static str>,
    /// The beginning of the jumps' local names.
    pub local: &'static str,
    /// Homes that are functions of the module which includes the jumps, and the function of each.
    pub own_homes: &'static [(&'static str, &'static str)],
    /// Whether the public names jump through a table of addresses, `slots` behind `local`, which
    /// the library may change: [`Library::slots`].
    pub has_slots: bool,
}

struct Symbol {
    name: String,
    version: String,
    home: String,
}

impl Library {
    /// Writes `versions.map` and `symbols.rs` into the build's folder, and gives the linker its
    /// arguments.
    ///
    /// # Panics
    /// A table cannot be read or has a line that is not as described.
    pub fn make(&self) {
        let out = std::env::var("OUT_DIR").expect("cargo sets it");
        let path = self.table;
        println!("cargo:rerun-if-changed={path}");
        let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{path}: {e}"));
        let lines = text.lines().filter(|l| !l.starts_with('#'));
        let symbols: Vec<Symbol> = lines.flat_map(|l| parse(path, l)).collect();
        let versions = self.versions(&symbols);
        let script = Path::new(&out).join("versions.map");
        std::fs::write(&script, self.version_script(&versions)).expect("OUT_DIR can be written");
        std::fs::write(Path::new(&out).join("symbols.rs"), self.jumps(&symbols, &versions))
            .expect("OUT_DIR can be written");
        println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", script.display());
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{}", self.soname);
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,defs");
        println!("cargo:rerun-if-changed=build.rs");
    }

    fn is_private(&self, version: &str) -> bool {
        self.private.is_some_and(|p| version.starts_with(p))
    }

    /// The versions in their order: public ones by number, each chained to the one before, private
    /// ones alone.
    fn versions(&self, symbols: &[Symbol]) -> Vec<String> {
        let rank = |v: &str| {
            let number = |beginning: &str| -> Vec<u32> {
                let rest = v.strip_prefix(beginning).unwrap_or_else(|| panic!("version {v}"));
                rest.split('.').map(|n| n.parse().expect("a number")).collect()
            };
            match self.private.filter(|_| self.is_private(v)) {
                Some(private) => (1, number(private)),
                None => (0, number(self.public)),
            }
        };
        let mut all: Vec<String> = symbols.iter().map(|s| s.version.clone()).collect();
        all.sort_by_key(|v| rank(v));
        all.dedup();
        all
    }

    fn version_script(&self, versions: &[String]) -> String {
        let mut script = String::new();
        let mut before: Option<&String> = None;
        for v in versions {
            let private = self.is_private(v);
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

    /// Whether the version of a symbol is that of programs which request none: of several versions
    /// of a name the newest public one, or the private one that the table has first.
    fn is_default(&self, s: &Symbol, symbols: &[Symbol], versions: &[String]) -> bool {
        let place = |v: &str| versions.iter().position(|x| x == v);
        let same = || symbols.iter().filter(|o| o.name == s.name);
        let newest =
            same().filter(|o| !self.is_private(&o.version)).max_by_key(|o| place(&o.version));
        newest.or_else(|| same().next()).is_some_and(|o| o.version == s.version)
    }

    /// The symbols whose jumps go through the table: of each public name its default version.
    fn slots<'a>(&self, symbols: &'a [Symbol], versions: &[String]) -> Vec<&'a Symbol> {
        let may = |s: &&Symbol| {
            self.has_slots
                && s.home != "data"
                && !self.is_private(&s.version)
                && self.is_default(s, symbols, versions)
        };
        symbols.iter().filter(may).collect()
    }

    /// The jumps as Rust source, and the table of those that can be changed, with its names.
    fn jumps(&self, symbols: &[Symbol], versions: &[String]) -> String {
        let mut asm = String::new();
        let mut homes: Vec<&str> = Vec::new();
        let slots = self.slots(symbols, versions);
        let mut table = String::new();
        for (i, s) in symbols.iter().enumerate() {
            let at = if self.is_default(s, symbols, versions) { "@@" } else { "@" };
            let local = format!("{}_{i}", self.local);
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
                let jump = match slots.iter().position(|slot| std::ptr::eq(*slot, s)) {
                    Some(n) => {
                        write!(table, "\".quad {{f{k}}}\",").expect("a String");
                        format!("jump_by!(\"{}_slots + {}\")", self.local, 8 * n)
                    }
                    None => format!("jump_to!(\"{{f{k}}}\")"),
                };
                writeln!(
                    asm,
                    r#"".pushsection .text.{local},\"ax\",@progbits",
                    ".globl {local}", ".type {local}, @function",
                    "{local}:", {jump},
                    ".size {local}, . - {local}", ".popsection","#
                )
            }
            .expect("a String");
            writeln!(asm, r#"".symver {local}, {}{at}{}","#, s.name, s.version).expect("a String");
        }
        let mut operands = String::new();
        for (k, home) in homes.iter().enumerate() {
            let own = self.own_homes.iter().find(|(name, _)| name == home);
            let path = own.map_or(format!("crate::{home}"), |(_, function)| function.to_string());
            writeln!(operands, "f{k} = sym {path},").expect("a String");
        }
        let local = self.local;
        if !slots.is_empty() {
            let names: Vec<String> = slots.iter().map(|s| format!("{:?}", s.name)).collect();
            let n = names.len();
            write!(
                asm,
                r#"".pushsection .data.{local}_slots,\"aw\",@progbits", ".balign 8",
                ".globl {local}_slots", ".hidden {local}_slots", "{local}_slots:",
                {table} ".popsection","#
            )
            .expect("a String");
            writeln!(operands, ");").expect("a String");
            write!(
                operands,
                "extern \"C\" {{ static {local}_slots: [core::sync::atomic::AtomicUsize; {n}]; }}\n\
                 const SLOT_NAMES: [&str; {n}] = [{}];\n",
                names.join(", ")
            )
            .expect("a String");
        } else {
            writeln!(operands, ");").expect("a String");
        }
        format!("{JUMPS}core::arch::global_asm!(\n{asm}{operands}")
    }
}

/// How to jump to a function, and by the address at a place of the table.
const JUMPS: &str = r#"
#[cfg(target_arch = "x86_64")]
macro_rules! jump_to { ($to:literal) => { concat!("jmp ", $to) } }
#[cfg(target_arch = "x86_64")]
#[allow(unused_macros)]
macro_rules! jump_by { ($at:literal) => { concat!("jmp qword ptr [rip + ", $at, "]") } }
#[cfg(target_arch = "aarch64")]
macro_rules! jump_to { ($to:literal) => { concat!("b ", $to) } }
#[cfg(target_arch = "aarch64")]
#[allow(unused_macros)]
macro_rules! jump_by { ($at:literal) => { concat!(
    "adrp x16, ", $at, "\nldr x16, [x16, :lo12:", $at, "]\nbr x16"
) } }
"#;

/// The symbols of a line: one for each version.
fn parse(path: &str, line: &str) -> Vec<Symbol> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [name, versions, home] = words[..] else { panic!("{path}: not three fields: {line}") };
    let (family, numbers) = versions.rsplit_once('_').expect("a version with a number");
    let symbol = |number: &str| Symbol {
        name: name.into(),
        version: format!("{family}_{number}"),
        home: home.into(),
    };
    numbers.split(',').map(symbol).collect()
}
