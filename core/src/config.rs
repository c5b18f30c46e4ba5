//! Every bound of an engine, in one struct.

use crate::error::Result;
use crate::reason::refuse;

/// QPNs are shared out among the processes of one address in blocks of this many: 1024 of them make
/// the 24 bits.
pub const QPN_UNIT: u32 = 1 << 14;

/// The number of the block that has a QPN.
pub const fn qpn_block(qpn: u32) -> u16 {
    (qpn / QPN_UNIT) as u16
}

/// Room for the headers of a packet, beyond its payload, in [`Config::burst_bytes`].
const BURST_HEADERS: u32 = 256;

/// Entries of the smallest CQ: one that a receive may reserve, and one that it may not.
pub const MIN_CQE: u32 = 2;

/// Most regions and windows of an engine: the index is 20 bits of a key.
pub const REGIONS_MAX: usize = 1 << 20;

/// The bounds of a context. All memory follows from these numbers
/// ([`crate::engine::Engine::memsize`]).
///
/// A field of 0 takes the value of [`Config::DEFAULT`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Factor by which tables may grow beyond `max_pd`, `max_mr`, ... when memory is added, within
    /// the bounds of [`Config::table`].
    pub growth: u32,
    /// Number of the context in its process: handles of other contexts are refused.
    pub context: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// Memory regions and windows together, at most [`REGIONS_MAX`].
    pub max_mr: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Queue pairs, at most 262,144: what three levels of 64 bits hold ([`crate::bitmap`]).
    pub max_qp: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Peer addresses: one for every distinct address and port that QPs and AHs name.
    pub max_peer: u32,
    /// Bytes for the rings of QPs, SRQs and CQs and for table growth.
    pub ring_bytes: u64,
    /// Largest scatter/gather list.
    pub max_sge: u32,
    /// Largest inline data.
    pub max_inline: u32,
    /// READ and atomic requests that a QP holds as responder, at most 128.
    pub max_rd_atomic: u32,
    /// Responder contexts of all DC targets together: initiators that they serve at a time, at most
    /// 4096. Made with the first DC target.
    pub max_dc_context: u32,
    /// First QPN of this engine's block. 0: chosen at random by the caller of init.
    pub qpn_base: u32,
    /// Size of the block, a power of two and at least `4 * max_qp`; 0: [`QPN_UNIT`], or more where
    /// `max_qp` asks for it.
    pub qpn_count: u32,
    /// Largest path MTU in bytes that the port carries: 256 to 4096.
    pub max_mtu: u32,
    /// Silence of the peer, in nanoseconds, after which a request fails on a QP without an ACK
    /// timeout; 0: none does, as on a NIC, unless the peer is known to have ended.
    pub deadline_ns: u64,
    /// Largest window of unacknowledged bytes to one peer address. It begins at
    /// 64 KiB and grows with the acknowledged bytes to 192 KiB; beyond, it grows slowly, and a loss
    /// lowers its limit for good.
    pub window_max: u32,
    /// Ids of the connection manager: listeners and connections together. Rounded up to a multiple
    /// of 4. Peers that have not shown that they receive have further ids (`cm::admit`).
    pub max_cm_ids: u32,
    /// Seed of keys and start PSNs. The caller takes it from the system's random source.
    pub seed: u64,
    /// Rate of the link in bytes per second: initial and largest rate under congestion control.
    pub line_rate_bytes_per_s: u64,
    /// Most bytes that pass between the engine and its port, or between two QPs of the engine, at a
    /// time: at least `max_mtu` + 256, at most 65,536. Buffers for packets follow it.
    pub burst_bytes: u32,
    /// Silence, in nanoseconds, after which an RC QP with nothing in flight checks its peer; 0:
    /// never.
    pub keepalive_ns: u64,
    /// Behaviour switches: [`config_flags`].
    pub flags: u32,
    /// Smaller bounds, for tests of programs.
    pub limits: LoweredLimits,
}

macro_rules! limits {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Bounds that the device is to have, where they are smaller than its own, and whether it
        /// is as strict as a NIC where one is exceeded.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct LoweredLimits {
            $($(#[$doc])* pub $name: Option<u64>,)*
            /// A completion that finds its CQ full ends the CQ, as on a NIC. Otherwise it waits
            /// for room.
            pub cq_overrun: bool,
        }

        impl LoweredLimits {
            /// None.
            pub const NONE: LoweredLimits = LoweredLimits { $($name: None,)* cq_overrun: false };

            /// All names.
            pub const NAMES: &[&str] = &[$(stringify!($name)),*];

            /// Lowers the bound of a name to `most`. Without such a name nothing happens.
            pub fn lower(&mut self, name: &str, most: u64) {
                // A ring has a power of two entries, and no more of them than the limit.
                let most = match name {
                    "max_cqe" => power_of_two_within(most).max(MIN_CQE.into()),
                    "max_qp_wr" => power_of_two_within(most),
                    _ => most,
                };
                let bound = match name {
                    $(stringify!($name) => &mut self.$name,)*
                    _ => return,
                };
                *bound = Some(bound.map_or(most, |other| other.min(most)));
            }
        }
    };
}

limits! {
    /// Protection domains.
    max_pd,
    /// Memory regions and windows together.
    max_mr,
    /// Bytes of a region.
    max_mr_size,
    /// Completion queues.
    max_cq,
    /// Entries of a CQ.
    max_cqe,
    /// Queue pairs.
    max_qp,
    /// Requests of a queue, shared ones too.
    max_qp_wr,
    /// Pieces of a request.
    max_sge,
    /// Bytes of inline data.
    max_inline,
    /// READs and atomics of a queue pair that are under way; at least 1.
    max_qp_rd_atom,
    /// Shared receive queues.
    max_srq,
    /// Address handles.
    max_ah,
    /// Bytes of memory that regions lock, in whole pages.
    memlock,
}

/// The largest power of two that is not above `most`; 0: there is none.
fn power_of_two_within(most: u64) -> u64 {
    most.checked_ilog2().map_or(0, |log| 1 << log)
}

/// A bound, or a limit that is smaller.
pub fn lowered(bound: u32, limit: Option<u64>) -> u32 {
    limit.map_or(bound, |limit| u64::from(bound).min(limit) as u32)
}

/// Flags of [`Config::flags`].
pub mod config_flags {
    /// QP creation fails if the depths of all queues of a CQ could overflow it.
    pub const STRICT_CQ: u32 = 1;
    /// CNPs set a rate for each QP (DCQCN). Without it they are only counted.
    pub const DCQCN: u32 = 32;
    /// A lost link ([`crate::engine::EngineGuard::link_lost`]) is silent, as a cut wire: its
    /// traffic goes through the port from then on, and requests end by their timers if no process
    /// answers there. Without it the link's queue pairs fail at once, idle ones too.
    pub const SILENT_LOSS: u32 = 64;
    /// An ACK timeout below 0.54 s lasts four times as long as its code says, the most that the
    /// standard allows, but not longer than that: for programs whose timeouts are for NICs.
    pub const LONG_TIMEOUTS: u32 = 128;
}

impl Config {
    /// How far a table for `n` objects may grow: at most to 65,536, or `n` if that is more.
    pub fn table(&self, n: u32) -> usize {
        self.grown(n, 1 << 16)
    }

    /// [`Config::table`] of regions and windows, of which there may be more.
    pub fn regions(&self) -> usize {
        self.grown(self.max_mr, REGIONS_MAX)
    }

    fn grown(&self, n: u32, most: usize) -> usize {
        let (n, growth) = (n as usize, self.growth as usize);
        n.max(16).saturating_mul(growth).min(n.max(most))
    }

    /// The configuration with every zero replaced by its default and every bound checked.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`]: a bound beyond what the engine can hold, or a QPN block that is
    /// not a power of two or leaves the 24 bits.
    pub fn resolve(mut self) -> Result<Self> {
        let d = Config::DEFAULT;
        macro_rules! default {
            ($($f:ident),*) => { $(if self.$f == 0 { self.$f = d.$f; })* };
        }
        default!(
            max_pd, max_mr, max_cq, max_qp, max_srq, max_ah, max_peer, ring_bytes, max_sge,
            max_inline
        );
        default!(
            growth,
            max_rd_atomic,
            max_dc_context,
            max_mtu,
            window_max,
            max_cm_ids,
            line_rate_bytes_per_s,
            burst_bytes
        );
        self.max_sge = lowered(self.max_sge, self.limits.max_sge);
        self.max_inline = lowered(self.max_inline, self.limits.max_inline);
        // A responder has room for one.
        self.max_rd_atomic = lowered(self.max_rd_atomic, self.limits.max_qp_rd_atom).max(1);
        let least = self.max_qp.saturating_mul(4).checked_next_power_of_two().unwrap_or(u32::MAX);
        if self.qpn_count == 0 {
            self.qpn_count = least.max(QPN_UNIT);
        }
        if self.qpn_base == 0 {
            // A block above the reserved numbers, chosen by the seed.
            let blocks = (1u32 << 24) / self.qpn_count.max(1);
            if blocks > 2 {
                self.qpn_base = (1 + (self.seed >> 17) as u32 % (blocks - 2)) * self.qpn_count;
            }
        }
        let end = u64::from(self.qpn_base) + u64::from(self.qpn_count);
        macro_rules! at_most {
            ($($f:ident: $most:expr),* $(,)?) => {
                $(if u64::from(self.$f) > $most {
                    return Err(refuse!(
                        Invalid,
                        concat!(stringify!($f), " {}: at most {}"),
                        self.$f,
                        $most
                    ));
                })*
            };
        }
        at_most! {
            max_pd: 1 << 16, max_cq: 1 << 16, max_qp: 1 << 18, max_srq: 1 << 16, max_ah: 1 << 16,
            max_peer: 1 << 16, max_cm_ids: 1 << 16, max_mr: 1 << 16, max_sge: 32, max_inline: 4096,
            max_rd_atomic: 128, max_dc_context: 4096, burst_bytes: 1 << 16,
        }
        if self.ring_bytes > 1 << 40 {
            return Err(refuse!(Invalid, "ring_bytes {}: at most {}", self.ring_bytes, 1u64 << 40));
        }
        if !matches!(self.max_mtu, 256 | 512 | 1024 | 2048 | 4096) {
            return Err(refuse!(Invalid, "max_mtu {}: 256, 512, 1024, 2048 or 4096", self.max_mtu));
        }
        if self.burst_bytes < self.max_mtu + BURST_HEADERS {
            let (n, least) = (self.burst_bytes, self.max_mtu + BURST_HEADERS);
            return Err(refuse!(Invalid, "burst_bytes {n}: for this max_mtu at least {least}"));
        }
        if !self.qpn_count.is_power_of_two() || self.qpn_count < least {
            let n = self.qpn_count;
            return Err(refuse!(
                Invalid,
                "qpn_count {n}: a power of two, for this max_qp at least {least}"
            ));
        }
        if self.qpn_base < 16 || end >= 1 << 24 {
            let (base, n) = (self.qpn_base, self.qpn_count);
            return Err(refuse!(
                Invalid,
                "qpn_base {base:#x}: at least 0x10, and with qpn_count {n:#x} below 0x1000000"
            ));
        }
        Ok(self)
    }

    /// Meaning of a zero field.
    pub const DEFAULT: Config = Config {
        max_pd: 64,
        max_mr: 1024,
        max_cq: 128,
        max_qp: 128,
        max_srq: 16,
        max_ah: 128,
        max_peer: 256,
        ring_bytes: 4 << 20,
        max_sge: 16,
        max_inline: 256,
        max_rd_atomic: 16,
        max_dc_context: 256,
        qpn_base: 0,
        qpn_count: 0,
        max_mtu: 4096,
        deadline_ns: 0,
        window_max: 1 << 20,
        max_cm_ids: 64,
        seed: 0,
        context: 0,
        growth: 16,
        line_rate_bytes_per_s: 12_500_000_000,
        burst_bytes: 64 << 10,
        keepalive_ns: 0,
        flags: 0,
        limits: LoweredLimits::NONE,
    };
}
