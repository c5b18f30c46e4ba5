//! Limits of a tenant, and their notation.

use serde::de::{Deserializer, Error, Visitor};
use serde::Deserialize;
use std::fmt;
use std::ops::RangeInclusive;

/// Valid rates, in bytes a second.
const RATES: RangeInclusive<u64> = 1_000..=1_000_000_000_000;
/// Valid rates, in packets a second.
const PPS: RangeInclusive<u64> = 1..=1_000_000_000;
/// Valid bursts, in bytes: a packet of any size fits.
const BURSTS: RangeInclusive<u64> = 8 << 10..=4_000_000_000;
/// Valid bytes of registered memory.
const MEMORY: RangeInclusive<u64> = 4 << 10..=1 << 40;
/// Valid weights.
const WEIGHTS: RangeInclusive<u64> = 1..=1000;
/// The least burst where none is named.
const BURST: u64 = 256 << 10;
/// The least burst in packets.
const PACKET_BURST: u32 = 64;
/// Bursts in a second: one has what a rate gives in 2 ms, which is longer than the worker
/// oversleeps.
const BURSTS_A_SECOND: u32 = 500;

/// Limits of a tenant's traffic by the relay. All its sessions share them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes a second that it may send; `None`: any.
    pub tx_rate: Option<u64>,
    /// Bytes a second that it may receive; `None`: any.
    pub rx_rate: Option<u64>,
    /// Packets a second that it may send; `None`: any.
    pub tx_pps: Option<u32>,
    /// Bytes that may be sent at once after a pause; `None`: see [`burst_of`].
    pub burst: Option<u32>,
    /// Its weight among the tenants.
    pub weight: u32,
    /// No direct links, so that all traffic is counted, even without a limit.
    pub metered: bool,
}

/// Default burst: the bytes of 2 ms at the rate, and 256 KiB at least.
pub fn burst_of(rate: u64) -> u32 {
    u32::try_from((rate / u64::from(BURSTS_A_SECOND)).max(BURST)).unwrap_or(u32::MAX)
}

/// Burst of a limit of packets a second: those of 2 ms, and 64 at least.
pub fn packet_burst_of(rate: u32) -> u32 {
    (rate / BURSTS_A_SECOND).max(PACKET_BURST)
}

impl Limits {
    /// The limits of a tenant for which the file sets none.
    pub const NONE: Limits = Limits {
        tx_rate: None,
        rx_rate: None,
        tx_pps: None,
        burst: None,
        weight: 1,
        metered: false,
    };

    /// Whether the limits require that the tenant's traffic goes by the relay.
    pub fn need_relay(&self) -> bool {
        self.metered || self.tx_rate.is_some() || self.rx_rate.is_some() || self.tx_pps.is_some()
    }

    /// The keys that a device of the router does not have.
    pub const OF_RELAY: [&str; 3] = ["rx_rate", "tx_pps", "metered"];

    /// Changes one of them by its key, as in the file; `off` takes a limit away.
    ///
    /// # Errors
    /// In words: there is no such key, or the value is not valid.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let is_off = value == "off";
        let small = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        match key {
            "tx_rate" if is_off => self.tx_rate = None,
            "rx_rate" if is_off => self.rx_rate = None,
            "tx_pps" if is_off => self.tx_pps = None,
            "burst" if is_off => self.burst = None,
            "tx_rate" => self.tx_rate = Some(rate(key, value)?),
            "rx_rate" => self.rx_rate = Some(rate(key, value)?),
            "tx_pps" => self.tx_pps = Some(small(number(key, value, PPS)?)),
            "burst" => self.burst = Some(small(burst(key, value)?)),
            "weight" => self.weight = small(number(key, value, WEIGHTS)?),
            "metered" => {
                self.metered = match value {
                    "true" => true,
                    "false" => false,
                    _ => return Err(format!("metered '{value}': true or false")),
                }
            }
            _ => {
                return Err(format!(
                    "no such limit: {key}; there are tx_rate, rx_rate, tx_pps, burst, weight and \
                     metered"
                ))
            }
        }
        Ok(())
    }
}

fn number(key: &str, text: &str, range: RangeInclusive<u64>) -> Result<u64, String> {
    let fits = text.parse().ok().filter(|n| range.contains(n));
    fits.ok_or_else(|| format!("{key} '{text}': from {} to {}", range.start(), range.end()))
}

/// Bytes a second of a text such as `1Gbit`.
///
/// # Errors
/// In words, with the key.
pub(super) fn rate(key: &str, text: &str) -> Result<u64, String> {
    bytes(text.strip_suffix("/s").unwrap_or(text)).filter(|n| RATES.contains(n)).ok_or_else(|| {
        format!("{key} '{text}': bytes a second, such as 1Gbit or 100MiB, from 1kB to 1TB")
    })
}

fn burst(key: &str, text: &str) -> Result<u64, String> {
    bytes(text)
        .filter(|n| BURSTS.contains(n))
        .ok_or_else(|| format!("{key} '{text}': bytes, such as 256KiB, from 8KiB to 4GB"))
}

/// Bytes that may be registered, of a text such as `4GiB`.
///
/// # Errors
/// In words.
pub(super) fn memory(text: &str) -> Result<u64, String> {
    bytes(text)
        .filter(|n| MEMORY.contains(n))
        .ok_or_else(|| format!("memory '{text}': bytes, such as 4GiB, from 4KiB to 1TiB"))
}

/// Bytes of a text: a number, perhaps with a fraction, and a unit, `bit` or `B` (or none: bytes)
/// behind `k`, `M`, `G`, `T`, `Ki`, `Mi`, `Gi`, `Ti` or nothing. The result is rounded down to
/// whole bytes.
fn bytes(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..end], text[end..].trim_start());
    let (prefix, per_byte) = match unit.strip_suffix("bit") {
        Some(prefix) => (prefix, 8),
        None if unit.is_empty() => ("", 1),
        None => (unit.strip_suffix('B')?, 1),
    };
    let factor: u128 = match prefix {
        "" => 1,
        "k" | "K" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    // So that the product does not overflow.
    if whole.len() > 18 || fraction.len() > 9 {
        return None;
    }
    let scale = 10u128.pow(fraction.len() as u32);
    let n = whole.parse::<u128>().ok()? * scale + fraction.parse::<u128>().ok()?;
    u64::try_from(n * factor / (scale * per_byte)).ok()
}

/// A value of the file: a number or a text, kept as a text.
pub(super) struct Amount(pub(super) String);

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Amount, D::Error> {
        struct Words;
        impl Visitor<'_> for Words {
            type Value = Amount;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number or a string")
            }
            fn visit_i64<E: Error>(self, n: i64) -> Result<Amount, E> {
                Ok(Amount(n.to_string()))
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Amount, E> {
                // Only `set` knows this word.
                if text == "off" {
                    return Err(E::custom("off: leave the key out"));
                }
                Ok(Amount(text.into()))
            }
        }
        from.deserialize_any(Words)
    }
}

/// Rates of FreeFlow's environment in bytes a second, by the tenant's `ffr_id`: the variables
/// `RATE_LIMIT_<id>` in bits a second. 0: no limit.
///
/// # Errors
/// In words: the variable with an invalid value.
pub fn rate_limits(
    environment: impl Iterator<Item = (String, String)>,
) -> Result<Vec<(i32, Option<u64>)>, String> {
    let mut limits = Vec::new();
    for (name, value) in environment {
        let Some(id) = name.strip_prefix("RATE_LIMIT_") else { continue };
        let id = id.parse().ok().filter(|&id: &i32| id >= 0 && !name.contains('+'));
        let bits = value.parse::<u64>().ok();
        let bytes = bits.map(|n| n / 8).filter(|n| bits == Some(0) || RATES.contains(n));
        let (Some(id), Some(bytes)) = (id, bytes) else {
            return Err(format!(
                "{name}={value}: RATE_LIMIT_ and the ffr_id of a tenant, and bits a second, from \
                 8000 to 8000000000000; 0: no limit"
            ));
        };
        limits.push((id, Some(bytes).filter(|&n| n > 0)));
    }
    Ok(limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_units() {
        for (text, n) in [
            ("125000000", 125_000_000),
            ("1Gbit", 125_000_000),
            ("1 Gbit", 125_000_000),
            ("2.5Gbit", 312_500_000),
            ("100MiB", 100 << 20),
            ("100MB", 100_000_000),
            ("0.001GB", 1_000_000),
            ("8kbit", 1000),
            ("8Kibit", 1024),
            ("7bit", 0),
            ("1TiB", 1 << 40),
            ("999999999999999999B", 999_999_999_999_999_999),
        ] {
            assert_eq!(bytes(text), Some(n), "{text}");
        }
        for text in [
            "",
            "B",
            "Gbit",
            "1Gb",
            "1g",
            "1gbit",
            "-1",
            "+1",
            "1..2",
            "1.2.3",
            "1.",
            ".5",
            "1e9",
            "1 0",
            "0x10",
            "1000000000000000000B",
            "1.0000000000B",
            "99999999999TB",
            "١",
            "1PB",
        ] {
            assert_eq!(bytes(text), None, "{text}");
        }
        assert_eq!(rate("r", "1GB/s"), Ok(1_000_000_000));
        for text in ["999", "1.1TB", "0", "1Gb"] {
            assert!(rate("tx_rate", text).unwrap_err().contains(&format!("tx_rate '{text}'")));
        }
    }

    #[test]
    fn limits_are_changed_one_by_one() {
        let mut l = Limits::NONE;
        assert!(!l.need_relay());
        for (key, value) in [
            ("tx_rate", "8Mbit"),
            ("rx_rate", "2MB"),
            ("tx_pps", "5"),
            ("burst", "64KiB"),
            ("weight", "1000"),
            ("metered", "true"),
        ] {
            assert_eq!(l.set(key, value), Ok(()), "{key}");
            assert!(l.need_relay());
        }
        let all = Limits {
            tx_rate: Some(1_000_000),
            rx_rate: Some(2_000_000),
            tx_pps: Some(5),
            burst: Some(64 << 10),
            weight: 1000,
            metered: true,
        };
        assert_eq!(l, all);
        for (key, value) in [
            ("tx_rate", "fast"),
            ("tx_pps", "0"),
            ("burst", "4KiB"),
            ("burst", "5GB"),
            ("weight", "0"),
            ("weight", "1001"),
            ("weight", "off"),
            ("metered", "yes"),
            ("colour", "1"),
        ] {
            assert!(l.set(key, value).unwrap_err().contains(key), "{key}");
        }
        assert_eq!(l, all, "what is wrong changes nothing");
        for key in ["tx_rate", "rx_rate", "tx_pps", "burst"] {
            assert_eq!(l.set(key, "off"), Ok(()));
        }
        assert_eq!(l, Limits { weight: 1000, metered: true, ..Limits::NONE });
        for one in ["tx_rate", "rx_rate", "tx_pps"] {
            let mut l = Limits::NONE;
            l.set(one, "5000").unwrap();
            assert!(l.need_relay(), "{one}");
        }
        assert_eq!((burst_of(1_000), burst_of(1_000_000_000)), (256 << 10, 2_000_000));
        assert_eq!((packet_burst_of(1_000), packet_burst_of(1_000_000)), (64, 2_000));
    }

    #[test]
    fn rates_of_the_environment_are_bits() {
        let of = |pairs: &[(&str, &str)]| {
            rate_limits(pairs.iter().map(|(n, v)| (n.to_string(), v.to_string())))
        };
        assert_eq!(
            of(&[("PATH", "x"), ("RATE_LIMIT_7", "80000"), ("RATE_LIMIT_0", "0")]),
            Ok(vec![(7, Some(10_000)), (0, None)])
        );
        for (name, value) in [
            ("RATE_LIMIT_", "80000"),
            ("RATE_LIMIT_x", "80000"),
            ("RATE_LIMIT_-1", "80000"),
            ("RATE_LIMIT_+1", "80000"),
            ("RATE_LIMIT_1", ""),
            ("RATE_LIMIT_1", "10Mbit"),
            ("RATE_LIMIT_1", "7999"),
            ("RATE_LIMIT_1", "8000000000008"),
        ] {
            assert!(of(&[(name, value)]).unwrap_err().contains(name), "{name}={value}");
        }
    }
}
