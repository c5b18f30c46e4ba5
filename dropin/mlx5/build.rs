//! Makes the exported names of `libmlx5.so.1` from `symbols/mlx5.txt`.

#[path = "../symver.rs"]
mod symver;

const LIBRARY: symver::Library = symver::Library {
    soname: "libmlx5.so.1",
    table: "../symbols/mlx5.txt",
    public: "MLX5_1.",
    private: None,
    local: "gdrc_mlx5",
    own_homes: &[],
    has_slots: false,
};

fn main() {
    println!("cargo:rerun-if-changed=../symver.rs");
    LIBRARY.make();
}
