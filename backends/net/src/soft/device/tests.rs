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
        assert_eq!(h & ENGINE_MASK, 0, "an index has 16 bits");
        let given = program_handle(k, h);
        assert_eq!((given & !ENGINE_MASK, (given & ENGINE_MASK) >> ENGINE_SHIFT), (h, k as u64));
    }
}
