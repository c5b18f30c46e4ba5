//! Reads gdrc_config, and writes its defaults.

use crate::c_consts::*;
use crate::c_result::{call, refuse};
use crate::c_types::*;
use crate::ptr::{self, sized_in_optional, sized_out};
use core::ffi::{c_char, c_int, CStr};
use core::sync::atomic::{AtomicU32, Ordering};
use gdrcore_core::config::LoweredLimits;
use gdrcore_core::inject::Faults;
use gdrcore_core::{copy_fields, Config, Result};
use gdrcore_net::inject::FaultSpec;
use gdrcore_strict::process::Settings;

/// The number of the next context of the process.
static CONTEXTS: AtomicU32 = AtomicU32::new(1);

/// A checked configuration, the same for all kinds of devices.
pub(crate) struct OpenConfig<'a> {
    pub(crate) core: Config,
    /// GDRC_CONFIG_ flags, all known and none excluding another.
    pub(crate) flags: u32,
    /// The capture file.
    pub(crate) pcap: Option<&'a CStr>,
    /// Engines of the device, at least 1.
    pub(crate) engines: u32,
    /// Injected faults of packets.
    pub(crate) faults: Option<FaultSpec<'a>>,
    /// Injected faults of calls: with a seed, and as they were read.
    pub(crate) call_faults: Option<(FaultSpec<'a>, Box<Faults>)>,
    /// The keys follow from these faults, which have a seed.
    pub(crate) keys: Option<FaultSpec<'a>>,
    /// The program's calls are looked at.
    pub(crate) strict: Option<Settings>,
}

/// Longest rules of injected faults, in bytes.
const FAULTS_MAX: usize = 4096;
/// Longest words of [`gdrc_config::strict`], in bytes.
const STRICT_MAX: usize = 64;

/// Copies the limits that have one name and unit here and in core.
macro_rules! copy_limits {
    ($from:expr => $to:expr) => {
        copy_fields! { $from => $to;
            max_pd max_mr max_cq max_qp max_srq max_ah max_peer ring_bytes max_sge max_inline
            max_rd_atomic max_dc_context burst_bytes max_mtu window_max max_cm_ids
            line_rate_bytes_per_s
        }
    };
}

/// Reads the caller's configuration.
///
/// # Errors
/// `Invalid`: an unknown flag, flags that contradict each other, a bad pointer. `TooBig`: a field
/// of a newer header.
pub(crate) fn read<'a>(cfg: *const gdrc_config) -> Result<OpenConfig<'a>> {
    let c = sized_in_optional!(cfg);
    let known = config_flags::STRICT_CQ
        | config_flags::HELPER
        | config_flags::NO_GSO
        | config_flags::SHM
        | config_flags::SHM_ONLY
        | config_flags::UDP_ONLY
        | config_flags::CMA
        | config_flags::DCQCN;
    if c.flags & !known != 0 {
        let unknown = c.flags & !known;
        return Err(refuse!(
            Invalid,
            "cfg->flags {:#x}: this library knows no flag {unknown:#x}",
            c.flags
        ));
    }
    let pcap: Option<&'a CStr> = if c.pcap_path.is_null() {
        None
    } else {
        // SAFETY: the header's contract: a NUL-terminated string that stays during the call.
        Some(unsafe { ptr::cstr(c.pcap_path, libc::PATH_MAX as usize, "cfg->pcap_path") }?)
    };
    let rules = if c.faults.is_null() {
        None
    } else {
        // SAFETY: as above.
        let text = unsafe { ptr::cstr(c.faults, FAULTS_MAX, "cfg->faults") }?;
        let rules: &'a str =
            text.to_str().map_err(|_| refuse!(Invalid, "cfg->faults: not UTF-8"))?;
        Some(FaultSpec { rules, seed: c.seed, launched: None })
    };
    const SHARED_MEMORY: u32 = config_flags::SHM | config_flags::SHM_ONLY;
    if c.flags & config_flags::UDP_ONLY != 0 && c.flags & SHARED_MEMORY != 0 {
        let both = "GDRC_CONFIG_UDP_ONLY excludes GDRC_CONFIG_SHM and GDRC_CONFIG_SHM_ONLY";
        return Err(refuse!(Invalid, "cfg->flags {:#x}: {both}", c.flags));
    }
    let mut core = Config {
        qpn_base: c.qpn_base,
        qpn_count: c.qpn_count,
        deadline_ns: u64::from(c.deadline_ms) * 1_000_000,
        seed: c.seed,
        keepalive_ns: u64::from(c.keepalive_ms) * 1_000_000,
        flags: c.flags & (config_flags::STRICT_CQ | config_flags::DCQCN),
        growth: 0,
        context: CONTEXTS.fetch_add(1, Ordering::Relaxed),
        ..Config::DEFAULT
    };
    copy_limits!(c => core);
    let (engines, strict) = (c.engines.max(1), read_strict(c.strict)?);
    let (faults, call_faults, keys) = (None, None, None);
    let mut config =
        OpenConfig { core, flags: c.flags, pcap, engines, faults, call_faults, keys, strict };
    if let Some(spec) = rules {
        read_faults(spec, &mut config)?;
    }
    Ok(config)
}

/// Reads the words of [`gdrc_config::strict`].
fn read_strict(words: *const c_char) -> Result<Option<Settings>> {
    if words.is_null() {
        return Ok(None);
    }
    // SAFETY: the header's contract: a NUL-terminated string that stays during the call.
    let text = unsafe { ptr::cstr(words, STRICT_MAX, "cfg->strict") }?;
    let settings = text.to_str().ok().and_then(Settings::parse);
    settings.map(Some).ok_or_else(|| {
        let wanted = "report, abort or exit=N, and perhaps a comma and mlx5, rxe, efa or hns";
        refuse!(Invalid, "cfg->strict {text:?}: not {wanted}")
    })
}

/// Reads the rules of faults. In a frame of its own, since rules are large, and threads of programs
/// may have small stacks.
#[cold]
#[inline(never)]
fn read_faults<'a>(mut spec: FaultSpec<'a>, config: &mut OpenConfig<'a>) -> Result<()> {
    let read = spec.read()?;
    config.core.limits = read.limits();
    if config.core.limits != LoweredLimits::NONE && config.engines > 1 {
        return Err(refuse!(Unsupported, "cfg->faults: a device with limits has one engine"));
    }
    spec.seed = spec.drawn_seed()?;
    config.keys = read.sets_keys().then_some(spec);
    config.faults = read.hits_packets().then_some(spec);
    if read.hits_calls() || read.shortens_polls() {
        config.call_faults = Some((spec, Box::new(read)));
    }
    Ok(())
}

/// Fills `cfg` with the default of every limit, so that a program can print them or scale one.
/// `cfg->struct_size` must be set before the call. A struct whose other fields are 0 means the
/// same.
///
/// Errors: -EINVAL: cfg is NULL, misaligned, or its struct_size is 0. -E2BIG: struct_size is over
/// 4096. Threads: any. Cost: none.
#[no_mangle]
pub unsafe extern "C" fn gdrc_config_default(cfg: *mut gdrc_config) -> c_int {
    call(|| {
        let d = Config::DEFAULT;
        let mut c = gdrc_config {
            deadline_ms: u32::try_from(d.deadline_ns / 1_000_000).unwrap_or(u32::MAX),
            engines: 1,
            ..ptr::zeroed()
        };
        copy_limits!(d => c);
        sized_out!(cfg).write(&c);
        Ok(())
    })
}
