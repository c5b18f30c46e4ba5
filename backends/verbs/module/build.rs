//! Makes bindings of mlx5dv, which has DC, if its header is installed beside libibverbs'. Without
//! the header the module builds as well, but has no DC.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-check-cfg=cfg(mlx5dv)");
    #[cfg(feature = "ibverbs")]
    mlx5dv();
}

/// Binds only the names that `src/mlx5.rs` uses; libibverbs' own types are those of `rdma-sys`.
#[cfg(feature = "ibverbs")]
fn mlx5dv() {
    const HEADER: &str = "/usr/include/infiniband/mlx5dv.h";
    println!("cargo:rerun-if-changed={HEADER}");
    if !std::path::Path::new(HEADER).exists() {
        return;
    }
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    let bindings = bindgen::Builder::default()
        .header(HEADER)
        .allowlist_type("mlx5dv_(qp_ex|qp_init_attr|qp_init_attr_mask|dc_type|qp_create_flags)")
        .blocklist_type("ibv_.*")
        .layout_tests(false)
        .generate_comments(false)
        .prepend_enum_name(false)
        .size_t_is_usize(true)
        .generate()
        .expect("bindings of mlx5dv.h");
    let file = std::path::Path::new(&out).join("mlx5dv.rs");
    bindings.write_to_file(file).expect("OUT_DIR can be written");
    println!("cargo:rustc-cfg=mlx5dv");
}
