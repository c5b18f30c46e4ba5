//! Makes the exported names of `libibverbs.so.1` from `symbols/ibverbs.txt`.

#[path = "symver.rs"]
mod symver;

const LIBRARY: symver::Library = symver::Library {
    soname: "libibverbs.so.1",
    table: "symbols/ibverbs.txt",
    public: "IBVERBS_1.",
    private: Some("IBVERBS_PRIVATE_"),
    local: "gdrc_ibverbs",
    own_homes: &[("old", "refuse"), ("refuse", "refuse"), ("none", "none"), ("minus", "minus")],
    has_slots: true,
};

fn main() {
    println!("cargo:rerun-if-changed=symver.rs");
    LIBRARY.make();
}
