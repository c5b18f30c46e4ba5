use super::*;
use crate::soft::{EngineCount, MAX_ENGINES};

#[test]
fn blocks_of_loopback_engines_are_apart_and_within_24_bits() {
    let config = |max_qp, engines| SoftConfig {
        engines: EngineCount::all(engines),
        core: gdrcore_core::Config { max_qp, ..Default::default() },
        ..SoftConfig::default()
    };
    for seed in [0, 1, u64::MAX, 0x1234_5678_9abc_def0] {
        for engines in [1, 2, MAX_ENGINES as u32] {
            let siblings = Siblings::choose(&config(0, engines), seed).unwrap();
            assert!(siblings.qpns.first >= siblings.qpns.count, "above the reserved numbers");
            assert!(siblings.qpns.first + engines * siblings.qpns.count < 1 << 24);
            for k in 0..engines as usize {
                let base = siblings.qpns.first_of(k);
                assert_eq!(siblings.engine_of(base), Some(k));
                assert_eq!(siblings.engine_of(base + siblings.qpns.count - 1), Some(k));
            }
            for none in [0, 1, siblings.qpns.first - 1, siblings.qpns.first_of(engines as usize)] {
                assert_eq!(siblings.engine_of(none), None);
            }
        }
    }
    // 262,144 QPNs each.
    assert!(Siblings::choose(&config(1 << 16, 62), 1).is_ok());
    assert_eq!(Siblings::choose(&config(1 << 16, 63), 1).err(), Some(Error::Invalid));
}
