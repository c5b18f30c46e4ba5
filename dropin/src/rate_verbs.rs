//! Verbs that convert static rates: codes of `ibv_rate`, multiples of 2.5 Gb/s, Mb/s.

use core::ffi::c_int;

/// Code, multiple of 2.5 Gb/s (0: none), Mb/s. IBTA's SDR rates are multiples; those of FDR and
/// later lanes are not.
const RATES: &[(u32, c_int, c_int)] = &[
    (2, 1, 2_500),
    (5, 2, 5_000),
    (3, 4, 10_000),
    (6, 8, 20_000),
    (4, 12, 30_000),
    (7, 16, 40_000),
    (8, 24, 60_000),
    (9, 32, 80_000),
    (10, 48, 120_000),
    (11, 0, 14_062),
    (12, 0, 56_250),
    (13, 0, 112_500),
    (14, 0, 168_750),
    (15, 0, 25_781),
    (16, 0, 103_125),
    (17, 0, 206_250),
    (18, 0, 309_375),
    (19, 11, 28_125),
    (20, 20, 53_125),
    (21, 160, 425_000),
    (22, 240, 637_500),
    (23, 320, 850_000),
    (24, 480, 1_275_000),
];

/// The rounded multiples that tools expect for rates that are not exact multiples.
const ABOUT: &[(u32, c_int)] =
    &[(11, 6), (12, 23), (13, 45), (14, 68), (15, 10), (16, 40), (17, 80), (18, 120)];

/// `IBV_RATE_MAX`: the port's own rate.
const RATE_MAX: u32 = 0;

fn mult(rate: u32) -> Option<c_int> {
    let exact = RATES.iter().find(|r| r.0 == rate && r.1 != 0).map(|r| r.1);
    exact.or_else(|| ABOUT.iter().find(|r| r.0 == rate).map(|r| r.1))
}

/// `ibv_rate_to_mult`: −1 for the port's own rate and unknown codes.
pub unsafe extern "C" fn rate_to_mult(rate: u32) -> c_int {
    mult(rate).unwrap_or(-1)
}

/// `mult_to_ibv_rate`.
pub unsafe extern "C" fn mult_to_rate(n: c_int) -> u32 {
    RATES.iter().find(|r| r.1 == n && n > 0).map_or(RATE_MAX, |r| r.0)
}

/// `ibv_rate_to_mbps`: −1 as above.
pub unsafe extern "C" fn rate_to_mbps(rate: u32) -> c_int {
    RATES.iter().find(|r| r.0 == rate).map_or(-1, |r| r.2)
}

/// `mbps_to_ibv_rate`.
pub unsafe extern "C" fn mbps_to_rate(mbps: c_int) -> u32 {
    RATES.iter().find(|r| r.2 == mbps).map_or(RATE_MAX, |r| r.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_go_there_and_back() {
        for &(code, _, mbps) in RATES {
            // SAFETY: plain numbers.
            unsafe {
                assert_eq!(mbps_to_rate(rate_to_mbps(code)), code);
                assert_eq!(rate_to_mbps(code), mbps);
            }
        }
        // SAFETY: plain numbers.
        unsafe {
            assert_eq!(rate_to_mult(5), 2);
            assert_eq!(mult_to_rate(4), 3);
            assert_eq!((rate_to_mult(0), rate_to_mult(1), mult_to_rate(3)), (-1, -1, RATE_MAX));
        }
    }
}
