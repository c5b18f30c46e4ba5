use super::*;

#[test]
fn a_thread_keeps_its_number() {
    let mut threads = Threads::default();
    let tokens: std::vec::Vec<usize> = (1..=THREADS + 9).map(|n| n << 12 | 0x740).collect();
    for _ in 0..2 {
        for (n, token) in tokens.iter().enumerate() {
            let expected = if n < THREADS { n } else { n + 1 };
            assert_eq!(threads.number(*token), expected);
        }
    }
}

#[test]
fn a_handle_names_its_engine() {
    for (k, h) in
        [(0, 0x0000_0001_0500_0000u64), (63, 0xffff_ffff_0500_ffff), (7, 0x0000_0003_0000_c401)]
    {
        assert_eq!(h & NUMBER, 0, "an index has 16 bits");
        let given = outer(k, h);
        assert_eq!((inner(given), (given & NUMBER) >> NUMBER_SHIFT), (h, k as u64));
    }
}

#[test]
fn blocks_of_loopback_engines_are_apart_and_within_24_bits() {
    let config = |max_qp| SoftConfig {
        core: gdrcore_core::Config { max_qp, ..Default::default() },
        ..SoftConfig::default()
    };
    for seed in [0, 1, u64::MAX, 0x1234_5678_9abc_def0] {
        for engines in [1, 2, MAX_ENGINES as u32] {
            let blocks = Blocks::choose(&config(0), seed, engines).unwrap();
            assert!(blocks.first >= blocks.count, "above the reserved numbers");
            assert!(blocks.first + engines * blocks.count < 1 << 24);
            for k in 0..engines {
                let base = blocks.first + k * blocks.count;
                assert_eq!(blocks.engine_of(base), k as usize);
                assert_eq!(blocks.engine_of(base + blocks.count - 1), k as usize);
            }
            assert!(blocks.engine_of(blocks.first - 1) >= engines as usize);
        }
    }
    // 262,144 QPNs each.
    assert!(Blocks::choose(&config(1 << 16), 1, 62).is_ok());
    assert_eq!(Blocks::choose(&config(1 << 16), 1, 63).err(), Some(Error::Invalid));
}
