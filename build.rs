//! Build script of `ffi`: the soname of libgdrcore.so. It changes only when the ABI breaks
//! (docs/using/ABI.md).

fn main() {
    println!("cargo:rerun-if-changed=../build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libgdrcore.so.0");
    // A missing symbol is an error of the build, not of the first program that loads the library.
    // A fuzzer's instrumentation is defined in the fuzzer alone.
    if std::env::var_os("CARGO_CFG_FUZZING").is_none() {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,defs");
    }
}
