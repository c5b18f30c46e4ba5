//! include/gdrcore.h is what cbindgen makes of ffi/src today.
//! With GDRC_BLESS=1 (`make header`) the file is written instead of compared.

use std::path::{Path, PathBuf};

/// Structs without typedef, as a call has the same name.
const TAGS_ONLY: &[&str] = &["gdrc_async_event", "gdrc_cm_event"];
/// In the order in which they appear in the header.
const SOURCES: &[&str] = &[
    "c_consts.rs",
    "c_handles.rs",
    "c_wr_types.rs",
    "c_device_types.rs",
    "c_qp_types.rs",
    "context_slots.rs",
    "open_config.rs",
    "lifecycle.rs",
    "error_detail.rs",
    "open_error.rs",
    "string_calls.rs",
    "pd_calls.rs",
    "mr_calls.rs",
    "ah_calls.rs",
    "cq_calls.rs",
    "srq_calls.rs",
    "gpu_calls.rs",
    "qp_calls.rs",
    "data_calls.rs",
    "channel_calls.rs",
    "pin_calls.rs",
    "endpoint_calls.rs",
    "connect_calls.rs",
    "c_cm_types.rs",
    "cm_calls.rs",
    "stats_calls.rs",
    "topology_calls.rs",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests lies in the workspace")
        .to_path_buf()
}

fn generate() -> String {
    let ffi = root().join("ffi");
    let mut config =
        cbindgen::Config::from_file(ffi.join("cbindgen.toml")).expect("ffi/cbindgen.toml");
    config.trailer =
        Some(std::fs::read_to_string(ffi.join("src/pinned.h")).expect("ffi/src/pinned.h"));
    let mut builder = cbindgen::Builder::new().with_config(config);
    for file in SOURCES {
        builder = builder.with_src(ffi.join("src").join(file));
    }
    let mut out = Vec::new();
    builder.generate().expect("cbindgen reads ffi/src").write(&mut out);
    let mut text = String::from_utf8(out).expect("the header is UTF-8");
    text.push('\n');
    // As with stat(2): the struct keeps its tag, and the name alone is the call.
    for tag in TAGS_ONLY {
        let (begin, end) = (format!("typedef struct {tag} {{"), format!("}} {tag};"));
        assert!(
            text.contains(&begin) && text.contains(&end),
            "{tag} is no longer a struct of the header"
        );
        text = text.replace(&begin, &format!("struct {tag} {{")).replace(&end, "};");
    }
    text
}

#[test]
fn header_is_what_the_sources_say() {
    let path = root().join("include/gdrcore.h");
    let fresh = generate();
    if std::env::var_os("GDRC_BLESS").is_some() {
        std::fs::write(&path, &fresh).expect("write the header");
        return;
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    if kept != fresh {
        let line = kept.lines().zip(fresh.lines()).take_while(|(a, b)| a == b).count() + 1;
        panic!(
            "include/gdrcore.h differs from ffi/src at line \
             {line}: run `make header` and commit the result"
        );
    }
}

#[test]
fn header_has_every_exported_function() {
    let header = generate();
    let mut found = 0;
    for entry in std::fs::read_dir(root().join("ffi/src")).expect("ffi/src") {
        let path = entry.expect("a file").path();
        if path.extension().is_none_or(|e| e != "rs") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a source file");
        for (_, rest) in
            text.match_indices("extern \"C\" fn gdrc_").map(|(i, m)| (i, &text[i + m.len()..]))
        {
            let name: String =
                rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            assert!(
                header.contains(&format!("gdrc_{name}(")),
                "{}: gdrc_{name} is not in the header",
                path.display()
            );
            found += 1;
        }
    }
    assert!(found >= 60, "only {found} functions found: has the way of declaring them changed?");
}
