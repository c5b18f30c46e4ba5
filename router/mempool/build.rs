//! Sets the soname of libmempool.so to its file name: FreeFlow's library has no soname, so programs
//! ask for the file name.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libmempool.so");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,defs");
}
