//! The scenario of a seed: the size of the world, its faults, its connections.
//!
//! Each seed takes a subset of the features (swarm testing), since faults that always occur
//! together hide each other. [`Limits`] remove features and reduce the size without another seed,
//! which is how a failing world is shrunk.

use gdrcore_testkit::rng::Rng;

use crate::net::Faults;

/// The features of a world, as bits of a set.
pub mod feature {
    /// Declares the features and their names.
    macro_rules! features {
        ($($(#[$m:meta])* $name:ident = $bit:expr, $text:expr;)*) => {
            $($(#[$m])* pub const $name: u32 = 1 << $bit;)*
            /// Names and bits of all features.
            pub const NAMES: &[(&str, u32)] = &[$(($text, $name)),*];
        };
    }
    features! {
        /// Packets are lost.
        LOSS = 0, "loss";
        /// Packets are duplicated.
        DUP = 1, "dup";
        /// Packets are overtaken.
        REORDER = 2, "reorder";
        /// Packets are corrupted.
        CORRUPT = 3, "corrupt";
        /// Paths are partitioned and heal: one direction, both directions, whole hosts.
        PARTITION = 4, "partition";
        /// Packets of a period arrive in reverse order.
        REVERSE = 5, "reverse";
        /// Old packets are replayed after their connection has ended.
        REPLAY = 6, "replay";
        /// Processes are stopped for a while.
        STOP = 7, "stop";
        /// Clocks jump forward.
        JUMP = 8, "jump";
        /// An engine dies with all its objects, and another one starts at its address.
        RESTART = 9, "restart";
        /// One engine runs much less often than the others.
        STARVE = 10, "starve";
        /// Memory is slow.
        SLOW = 11, "slow";
        /// CQs are resized.
        RESIZE = 12, "resize";
        /// CQs are polled only after an event.
        ARM = 13, "arm";
        /// Receives are shared (SRQ).
        SRQ = 14, "srq";
        /// Windows are bound and invalidated, and requests use them.
        WINDOW = 15, "window";
        /// Send queues drain (SQD) and continue.
        DRAIN = 16, "drain";
        /// Regions are deregistered under traffic.
        DEREG = 17, "dereg";
        /// Many small packets.
        DENSE = 18, "dense";
        /// Links of DC, whose targets have few contexts.
        DC = 19, "dc";
        /// Devices of several engines, which share address, regions, windows and address handles.
        ENGINES = 20, "engines";
        /// Short WRITEs travel as a WRITE for each packet, as a port that segments bursts has them.
        DIVIDE = 21, "divide";
        /// Bytes are placed in any order, and READs are answered late.
        WEAK = 22, "weak";
    }
}

/// Upper limits of a seed's choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Hosts.
    pub hosts: usize,
    /// Links.
    pub links: usize,
    /// Requests per end.
    pub ops: u32,
    /// Features that are removed.
    pub without: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { hosts: 8, links: 12, ops: u32::MAX, without: 0 }
    }
}

/// The choices of a seed.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// The features of the world.
    pub features: u32,
    /// The network's faults.
    pub faults: Faults,
    /// Hosts.
    pub hosts: usize,
    /// Links.
    pub links: usize,
    /// Most requests per end.
    pub ops: u32,
    /// Whether addresses are IPv6.
    pub v6: bool,
    /// The host that rarely runs.
    pub starved: Option<usize>,
    /// Hosts that follow each other and are engines of one device.
    pub engines: usize,
}

impl Scenario {
    /// The scenario of a seed.
    pub fn new(seed: u64, limits: &Limits) -> Scenario {
        let rng = &mut Rng::new(seed ^ 0x5ce0_a210);
        let plenty = rng.below(4) == 0;
        let mut features = 0;
        for &(_, bit) in feature::NAMES {
            let take = match bit {
                feature::DENSE => rng.coin(),
                // Drawn apart, so that older seeds keep their other choices.
                feature::DC => Rng::new(seed ^ 0xdc_0000).below(4) == 0,
                // A target is called by its address; it is an engine alone.
                feature::ENGINES => {
                    features & feature::DC == 0 && Rng::new(seed ^ 0xe9_0000).below(4) == 0
                }
                feature::DIVIDE => Rng::new(seed ^ 0xd1_0000).coin(),
                feature::WEAK => Rng::new(seed ^ 0x3e_0000).below(4) == 0,
                _ => rng.below(if plenty { 2 } else { 6 }) == 0,
            };
            features |= u32::from(take) * bit;
        }
        features &= !limits.without;
        let has = |bit: u32| features & bit != 0;
        let dense = has(feature::DENSE);
        let delay_ns = rng.pick(&[0, 2_000, 20_000, 200_000]);
        let mut chance = |bit: u32, of: &[u32]| {
            let n = rng.pick(of);
            u32::from(has(bit)) * n
        };
        let faults = Faults {
            loss: chance(feature::LOSS, &[1000, 10_000, 50_000, 100_000, 200_000]),
            dup: chance(feature::DUP, &[1000, 50_000, 300_000]),
            reorder: chance(feature::REORDER, &[1000, 50_000, 300_000]),
            corrupt: chance(feature::CORRUPT, &[1000, 10_000, 50_000]),
            dark: chance(feature::PARTITION, &[20, 200]) / if dense { 10 } else { 1 },
            dark_ns: u64::from(chance(feature::PARTITION, &[1_000_000, 50_000_000, 300_000_000])),
            reverse_ns: u64::from(chance(feature::REVERSE, &[5_000, 100_000, 1_000_000])),
            keep: has(feature::REPLAY),
            delay_ns,
            late_ns: delay_ns * 4 + 1000,
            bursts: rng.coin(),
        };
        let hosts = (if rng.below(4) == 0 { rng.range(3, 8) } else { rng.range(1, 3) }) as usize;
        let links =
            (if dense { rng.range(1, 4) } else { rng.range(1, 4) + hosts as u64 / 2 }) as usize;
        let links = links + if has(feature::DC) { 3 } else { 0 };
        let (hosts, links) = (hosts.min(limits.hosts), links.min(limits.links));
        let starved = rng.below(hosts as u64) as usize;
        Scenario {
            features,
            faults,
            hosts,
            links,
            ops: limits.ops,
            // Over IPv4 a receiver cannot check 16 bits of the ICRC, so it would accept some
            // corrupted packets. On real networks the checksums of UDP and Ethernet protect it; the
            // simulator has none.
            v6: faults.corrupt > 0 || rng.coin(),
            starved: has(feature::STARVE).then_some(starved),
            engines: if has(feature::ENGINES) { 2 + (seed % 2) as usize } else { 1 },
        }
    }

    /// The device that a host is an engine of.
    pub fn device(&self, host: usize) -> usize {
        host / self.engines
    }

    /// The hosts that are engines of a host's device.
    pub fn engines_of(&self, host: usize) -> core::ops::Range<usize> {
        let first = host - host % self.engines;
        first..(first + self.engines).min(self.hosts)
    }

    /// Whether a feature is in.
    pub fn has(&self, bit: u32) -> bool {
        self.features & bit != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_feature_is_in_some_seed_and_limits_take_it_away() {
        let seeds = |limits: &Limits| {
            (0..300).map(|s| Scenario::new(s, limits).features).fold(0, |a, b| a | b)
        };
        let all = feature::NAMES.iter().fold(0, |a, f| a | f.1);
        assert_eq!(seeds(&Limits::default()), all);
        let without = feature::LOSS | feature::RESTART;
        assert_eq!(seeds(&Limits { without, ..Limits::default() }), all & !without);
        let small = Scenario::new(3, &Limits { hosts: 1, links: 1, ..Limits::default() });
        assert_eq!((small.hosts, small.links), (1, 1));
    }
}
