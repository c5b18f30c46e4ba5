//! Builds libgdrcore, the C examples, the drop-in and the router for tests, once per test process,
//! by the Makefile.

use crate::source::root;
use crate::tools::{compile, run, target_dir};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Runs `make TARGET` once in this process; panics with its output if it fails.
fn make(target: &str, once: &OnceLock<()>) {
    once.get_or_init(|| {
        let done = run(
            Command::new("make").args(["--no-print-directory", "-C"]).arg(root()).arg(target),
            900,
        );
        assert!(done.ok(), "make {target}: {done}");
    });
}

/// Builds libgdrcore.so and .a; returns the folder of libgdrcore.so.
pub fn build() -> PathBuf {
    static ONCE: OnceLock<()> = OnceLock::new();
    make("lib", &ONCE);
    target_dir().join("release")
}

/// Flags of the compiler for what is linked to libgdrcore.so and lies in a folder: it finds the
/// library there.
pub fn flags(dir: &Path) -> [String; 4] {
    let built = build();
    std::os::unix::fs::symlink(built.join("libgdrcore.so"), dir.join("libgdrcore.so.0"))
        .expect("a link");
    let include = format!("-I{}", root().join("include").display());
    let folder = format!("-L{}", built.display());
    [include, folder, "-Wl,-rpath,$ORIGIN".into(), "-lgdrcore".into()]
}

/// Compiles a program of `tests/c` into a folder of its own, with [`flags`].
pub fn program(name: &str, dir: &Path) -> PathBuf {
    compile("cc", name, dir, &flags(dir).each_ref().map(String::as_str))
}

/// Builds the static library as `make install` installs it; returns its path.
pub fn archive() -> PathBuf {
    build();
    root().join("build/lib/libgdrcore.a")
}

/// Builds the C examples as well; returns the folder that holds the programs' folders.
pub fn examples() -> PathBuf {
    static ONCE: OnceLock<()> = OnceLock::new();
    make("examples", &ONCE);
    root().join("build/bin")
}

/// Builds the libibverbs drop-in; returns the folder for LD_LIBRARY_PATH.
pub fn dropin() -> PathBuf {
    static ONCE: OnceLock<()> = OnceLock::new();
    make("dropin", &ONCE);
    root().join("build/dropin")
}

/// Builds the router; returns the folder of its programs.
pub fn router() -> PathBuf {
    static ONCE: OnceLock<()> = OnceLock::new();
    make("router", &ONCE);
    root().join("build/bin")
}

/// Builds the command `gdrcore`; returns its path.
pub fn cli() -> PathBuf {
    static ONCE: OnceLock<()> = OnceLock::new();
    make("cli", &ONCE);
    root().join("build/bin/gdrcore")
}

/// Builds the adapter of etcd; returns its path.
pub fn router_etcd() -> PathBuf {
    static ONCE: OnceLock<()> = OnceLock::new();
    make("router-etcd", &ONCE);
    root().join("build/bin/gdrcore-router-etcd")
}

/// Builds libmempool.so; returns its folder.
pub fn mempool() -> PathBuf {
    router();
    root().join("build/mempool")
}

/// Sets the variables by which cargo and rustc are found for a command that gets another HOME.
pub fn keep_toolchain(command: &mut Command) -> &mut Command {
    let home = PathBuf::from(std::env::var_os("HOME").unwrap_or_default());
    for (name, folder) in [("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")] {
        if std::env::var_os(name).is_none() && home.join(folder).is_dir() {
            command.env(name, home.join(folder));
        }
    }
    command
}
