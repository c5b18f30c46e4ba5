//! The codes that stand for times and sizes: RNR timers, ACK timeouts, path MTUs.

/// RNR NAK timer codes in nanoseconds; code 0 is the longest.
// IBTA 9.7.5.2.8: The five bits of an RNR NAK timer stand for 0.01 to 655.36 ms, by a table.
pub const RNR_TIMER_NS: [u64; 32] = {
    // Hundredths of a millisecond, which keeps the table readable against the standard's.
    const HUNDREDTHS_MS: [u64; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    let mut ns = [0; 32];
    let mut i = 0;
    while i < 32 {
        ns[i] = HUNDREDTHS_MS[i] * 10_000;
        i += 1;
    }
    ns
};

/// The ACK timeout in nanoseconds, 4.096 µs · 2^code; `None` where it is off (0) or no code (above
/// 31).
#[inline]
pub const fn ack_timeout_ns(code: u8) -> Option<u64> {
    match code {
        // IBTA C9-140: The ACK timeout is 4.096 us times 2 to the power of its code; code 0 is
        // none.
        1..=31 => Some(4096 << code),
        _ => None,
    }
}

/// Bytes of a path MTU code (1 to 5: 256 to 4096), `None` for others.
#[inline]
pub const fn mtu_bytes(code: u32) -> Option<u32> {
    match code {
        // rxe rxe_param.h rxe_mtu_int_to_enum: Path MTUs are 256, 512, 1024, 2048 and 4096 bytes of
        // payload.
        1..=5 => Some(128 << code),
        _ => None,
    }
}

/// The largest path MTU code whose bytes are at most `bytes`, `None` below 256.
#[inline]
pub const fn mtu_code(bytes: u32) -> Option<u32> {
    match bytes {
        0..=255 => None,
        256..=511 => Some(1),
        512..=1023 => Some(2),
        1024..=2047 => Some(3),
        2048..=4095 => Some(4),
        _ => Some(5),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // IBTA 9.7.5.2.8
    #[test]
    fn rnr_timers() {
        assert_eq!(RNR_TIMER_NS[0], 655_360_000);
        assert_eq!(RNR_TIMER_NS[1], 10_000);
        assert_eq!(RNR_TIMER_NS[12], 640_000);
        assert_eq!(RNR_TIMER_NS[24], 40_960_000);
        assert_eq!(RNR_TIMER_NS[25], 61_440_000);
        // By the law behind the standard's table: from code 2 on, each pair is one doubling of 20
        // and 30 µs; code 1 is 10 µs, and code 0 what would follow the last.
        for (code, &timer) in RNR_TIMER_NS.iter().enumerate().skip(2) {
            let base: u64 = if code % 2 == 0 { 20_000 } else { 30_000 };
            assert_eq!(timer, base << (code / 2 - 1), "code {code}");
        }
        assert_eq!(RNR_TIMER_NS[0], 20_000 << 15);
        assert_eq!(RNR_TIMER_NS[31], 491_520_000);
        assert!(RNR_TIMER_NS[1..].windows(2).all(|w| w[0] < w[1]));
    }

    // IBTA C9-140
    #[test]
    fn ack_timeouts() {
        assert_eq!(ack_timeout_ns(0), None);
        assert_eq!(ack_timeout_ns(1), Some(8192));
        assert_eq!(ack_timeout_ns(14), Some(67_108_864));
        assert_eq!(ack_timeout_ns(31), Some(4096 << 31));
        assert_eq!(ack_timeout_ns(32), None);
    }

    // rxe rxe_param.h rxe_mtu_int_to_enum
    #[test]
    fn mtus() {
        assert_eq!(mtu_bytes(0), None);
        assert_eq!(mtu_bytes(6), None);
        for code in 1..=5 {
            let bytes = mtu_bytes(code).unwrap();
            assert_eq!(mtu_code(bytes), Some(code));
            assert_eq!(mtu_code(bytes - 1), code.checked_sub(1).filter(|&c| c > 0));
        }
        assert_eq!(mtu_code(u32::MAX), Some(5));
    }
}
