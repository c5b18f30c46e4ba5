//! Releases of rdma-core.

/// The release in the name of libibverbs' file, such as `libibverbs.so.1.14.44.0` from rdma-core's
/// own build or a distribution. 0: the name has none, as for a vendor's or a bundled copy.
pub fn of_file(name: &str) -> u32 {
    let Some(numbers) = name.strip_prefix("libibverbs.so.") else { return 0 };
    let mut parts = numbers.split('.');
    match [(); 5].map(|()| parts.next()) {
        [Some("1"), Some(_), Some(release), Some(_), None] => release.parse().unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::of_file;

    #[test]
    fn only_rdma_cores_own_names_have_a_release() {
        for (name, release) in [
            ("libibverbs.so.1.14.44.0", 44),
            ("libibverbs.so.1.14.56.1", 56),
            ("libibverbs.so.1.16.65.0", 65),
            ("libibverbs.so.1", 0),
            ("libibverbs.so.1.14.44", 0),
            ("libibverbs.so.1.14.44.0.1", 0),
            ("libibverbs.so.2.14.44.0", 0),
            ("libibverbs.so.1.14.2410mlnx54.2", 0),
            ("libibverbs-1de1263b.so.1.14.56.0", 0),
            ("libgdrcore_dropin.so", 0),
            ("", 0),
        ] {
            assert_eq!(of_file(name), release, "{name}");
        }
    }
}
