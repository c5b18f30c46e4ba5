//! Which implementation a machine can run, and the calls into them.

use core::sync::atomic::{AtomicU8, Ordering};

#[cfg(all(target_arch = "aarch64", target_os = "linux", not(miri)))]
use super::armv8;
#[cfg(all(target_arch = "x86_64", not(miri)))]
use super::{clmul, V4_FOLD, V6_FOLD};
use super::{table, MaskedHeaders, V4_BETWEEN, V6_BETWEEN};

/// An implementation of the CRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Impl {
    /// Tables: any machine.
    Table = 1,
    /// The instruction CRC32X, which has zlib's polynomial: Armv8's FEAT_CRC32.
    #[cfg(target_arch = "aarch64")]
    Crc32 = 2,
    /// Carry-less multiplication of 128 bits: PCLMULQDQ and SSE4.1.
    #[cfg(not(target_arch = "aarch64"))]
    Clmul = 2,
    /// Carry-less multiplication of 256 bits: VPCLMULQDQ and AVX2.
    #[cfg(not(target_arch = "aarch64"))]
    Vpclmul256 = 3,
    /// Carry-less multiplication of 512 bits: VPCLMULQDQ and AVX-512.
    #[cfg(not(target_arch = "aarch64"))]
    Vpclmul512 = 4,
}

/// The best implementation as a number, 0 before it was looked for.
static BEST: AtomicU8 = AtomicU8::new(0);

impl Impl {
    /// Every implementation, slowest first.
    #[cfg(target_arch = "aarch64")]
    pub const ALL: &'static [Impl] = &[Impl::Table, Impl::Crc32];
    /// Every implementation, slowest first.
    #[cfg(not(target_arch = "aarch64"))]
    pub const ALL: &'static [Impl] =
        &[Impl::Table, Impl::Clmul, Impl::Vpclmul256, Impl::Vpclmul512];

    /// Whether this machine can run it.
    pub fn is_available(self) -> bool {
        self <= Impl::best()
    }

    /// The fastest that this machine can run. Cost: one load, but for the first call.
    #[inline]
    pub fn best() -> Impl {
        // Relaxed: the number guards no other memory, and every thread finds the same one.
        match BEST.load(Ordering::Relaxed) {
            1 => Impl::Table,
            #[cfg(target_arch = "aarch64")]
            2 => Impl::Crc32,
            #[cfg(not(target_arch = "aarch64"))]
            2 => Impl::Clmul,
            #[cfg(not(target_arch = "aarch64"))]
            3 => Impl::Vpclmul256,
            #[cfg(not(target_arch = "aarch64"))]
            4 => Impl::Vpclmul512,
            _ => find_best(),
        }
    }
}

#[cold]
fn find_best() -> Impl {
    let best = detect();
    BEST.store(best as u8, Ordering::Relaxed);
    best
}

/// Proof that an implementation can run here. Only this module makes one.
#[derive(Clone, Copy)]
pub(super) struct Runnable(Impl);

impl Runnable {
    /// The fastest.
    #[inline]
    pub(super) fn best() -> Runnable {
        Runnable(Impl::best())
    }

    /// `which`, or the fastest if the machine lacks that.
    pub(super) fn at_most(which: Impl) -> Runnable {
        Runnable(which.min(Impl::best()))
    }

    /// The state after `data`.
    #[inline]
    pub(super) fn update(self, state: u32, data: &[u8]) -> u32 {
        match self.0 {
            Impl::Table => table::update(state, data),
            // SAFETY: `detect` found the instructions of this implementation, or this value would
            // not exist.
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Impl::Clmul => unsafe { clmul::update_128(state, data) },
            // SAFETY: as above.
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Impl::Vpclmul256 => unsafe { clmul::wide_256::update_256(state, data) },
            // SAFETY: as above.
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Impl::Vpclmul512 => unsafe { clmul::wide_512::update_512(state, data) },
            // SAFETY: as above.
            #[cfg(all(target_arch = "aarch64", target_os = "linux", not(miri)))]
            Impl::Crc32 => unsafe { armv8::update(state, data) },
            #[cfg(not(all(target_arch = "x86_64", not(miri))))]
            #[allow(unreachable_patterns)] // on aarch64
            _ => table::update(state, data),
        }
    }

    /// The state after a packet that begins with `head`.
    #[inline]
    pub(super) fn icrc(self, head: MaskedHeaders, rest: &[u8]) -> u32 {
        // Numbers, not a struct, go into the call: six of them travel in registers.
        let MaskedHeaders { varying, v6, last: [begin, end] } = head;
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        let fold = if v6 { V6_FOLD } else { V4_FOLD };
        match self.0 {
            Impl::Table => icrc_table(varying, v6, begin, end, rest),
            // SAFETY: as in `update`.
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Impl::Clmul => unsafe { clmul::icrc_128(varying, fold, begin, end, rest) },
            // SAFETY: as in `update`.
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Impl::Vpclmul256 => unsafe {
                clmul::wide_256::icrc_256(varying, fold, begin, end, rest)
            },
            // SAFETY: as in `update`.
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Impl::Vpclmul512 => unsafe {
                clmul::wide_512::icrc_512(varying, fold, begin, end, rest)
            },
            // SAFETY: as in `update`.
            #[cfg(all(target_arch = "aarch64", target_os = "linux", not(miri)))]
            Impl::Crc32 => unsafe { armv8::icrc(varying, v6, begin, end, rest) },
            #[cfg(not(all(target_arch = "x86_64", not(miri))))]
            #[allow(unreachable_patterns)] // on aarch64
            _ => icrc_table(varying, v6, begin, end, rest),
        }
    }
}

fn icrc_table(varying: u64, v6: bool, begin: u64, end: u64, rest: &[u8]) -> u32 {
    let varying = table::update(0, &varying.to_le_bytes());
    let varying = if v6 {
        table::update(varying, &[0; V6_BETWEEN])
    } else {
        table::update(varying, &[0; V4_BETWEEN])
    };
    let state = table::update(varying, &begin.to_le_bytes());
    table::update(table::update(state, &end.to_le_bytes()), rest)
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn detect() -> Impl {
    if clmul::features::has_512() {
        Impl::Vpclmul512
    } else if clmul::features::has_256() {
        Impl::Vpclmul256
    } else if clmul::features::has_128() {
        Impl::Clmul
    } else {
        Impl::Table
    }
}

#[cfg(all(target_arch = "aarch64", target_os = "linux", not(miri)))]
fn detect() -> Impl {
    if armv8::is_here() {
        Impl::Crc32
    } else {
        Impl::Table
    }
}

// Miri knows few of the instructions.
#[cfg(not(all(
    any(target_arch = "x86_64", all(target_arch = "aarch64", target_os = "linux")),
    not(miri)
)))]
fn detect() -> Impl {
    Impl::Table
}
