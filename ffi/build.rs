//! Build script of `ffi`: the soname of libgdrcore.so and the versions of its functions. The soname
//! changes only when the ABI breaks (docs/using/ABI.md).

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libgdrcore.so.0");
    let here = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    // rustc gives the linker a version script that has no version, and no linker takes a second one
    // for the same names. So the compiler runs the linker by a script that leaves rustc's out.
    println!("cargo:rerun-if-changed=linker.sh");
    println!("cargo:rerun-if-changed=gdrcore.map");
    if std::env::var("RUSTC_LINKER").is_ok_and(|linker| linker.contains("clang")) {
        println!("cargo:warning=linked by clang: the functions of libgdrcore.so have no versions");
    } else {
        for arg in ["-wrapper", &format!("{here}/linker.sh")] {
            println!("cargo:rustc-cdylib-link-arg={arg}");
        }
        println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={here}/gdrcore.map");
    }
    // A missing symbol is an error of the build, not of the first program that loads the library.
    // A fuzzer's instrumentation is defined in the fuzzer alone.
    if std::env::var_os("CARGO_CFG_FUZZING").is_none() {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,defs");
    }
}
