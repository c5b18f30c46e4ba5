//! The soname of libmempool.so: FreeFlow's library has none, so that programs ask for it by the
//! name of its file.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libmempool.so");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,defs");
}
