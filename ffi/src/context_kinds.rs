//! The kinds of devices: their names, memory sizes, functions to open them, and the texts of
//! refusals.
//!
//! A new kind is one row of [`KINDS`].

use crate::c_consts::config_flags;
use crate::c_result::refuse;
use crate::context_device::ContextDevice;
use crate::context_slots::{FastDevice, OpenDevice};
use crate::open_config::OpenConfig;
use crate::open_error::{self, Stage};
use core::fmt;
use gdrcore_core::config::LoweredLimits;
use gdrcore_core::inject::Faults;
use gdrcore_core::{Error, Result};
use gdrcore_net::inject::{
    check_log, count_one, device_keys, note_repeat, FaultSpec, FaultyDevice,
};
use gdrcore_net::reason;
use gdrcore_net::remote::client::RemoteDevice;
use gdrcore_net::soft::{soft_flags, EngineCount, PathChoice, SoftConfig, SoftDevice};
use gdrcore_strict::device::StrictDevice;
use gdrcore_strict::process::{install, Settings};
use gdrcore_verbs::VerbsDevice;

/// The form of the names of a kind.
enum NameForm {
    /// They begin with this word and a colon.
    Prefix(&'static str),
    /// The only name.
    Word(&'static str),
}

impl NameForm {
    fn word(&self) -> &'static str {
        match self {
            NameForm::Prefix(word) | NameForm::Word(word) => word,
        }
    }

    fn is_of(&self, name: &str) -> bool {
        match self {
            NameForm::Prefix(prefix) => {
                name.split_once(':').is_some_and(|(kind, _)| kind == *prefix)
            }
            NameForm::Word(word) => name == *word,
        }
    }
}

/// A kind of device.
pub(crate) struct DeviceKind {
    form: NameForm,
    /// The form in words, for the refusal of an unknown name.
    words: &'static str,
    /// Refuses options that the device does not support, in words that name the device:
    /// `Unsupported`.
    pub(crate) check: fn(&str, &OpenConfig<'_>) -> Result<()>,
    /// Bytes of memory that the device needs. Errors: the name or a bound of the configuration:
    /// `Invalid` and others.
    pub(crate) memsize: fn(&str, &OpenConfig<'_>) -> Result<usize>,
    /// Opens the device in memory of at least `memsize` bytes. Errors: those of the device, with
    /// their reasons. Safety: the memory is page-aligned, has no other user, and lives until
    /// [`ContextDevice::close`] has returned.
    ///
    /// [`ContextDevice::close`]: crate::context_device::ContextDevice::close
    pub(crate) open: unsafe fn(*mut u8, usize, &str, &OpenConfig<'_>) -> Result<OpenDevice>,
}

static KINDS: &[DeviceKind] = &[
    DeviceKind {
        form: NameForm::Prefix("soft"),
        words: "\"soft:<address>[:port]\" (IPv6 in brackets)",
        check: |_, _| Ok(()),
        memsize: soft_memsize,
        open: open_soft,
    },
    DeviceKind {
        form: NameForm::Prefix("verbs"),
        words: "\"verbs:<NIC>[:port][:gid-index]\"",
        check: check_verbs,
        memsize: |name, config| VerbsDevice::memsize(name, &config.core),
        open: open_verbs,
    },
    DeviceKind {
        form: NameForm::Prefix("router"),
        words: "\"router:[<name or socket>]\"",
        check: |_, _| Ok(()),
        memsize: soft_memsize,
        open: open_routed,
    },
    DeviceKind {
        form: NameForm::Word("loopback"),
        words: "\"loopback\"",
        check: |_, _| Ok(()),
        memsize: soft_memsize,
        open: open_soft,
    },
];

impl DeviceKind {
    /// The kind of a device's name.
    ///
    /// # Errors
    /// `Invalid`: a name of no kind.
    pub(crate) fn find(name: &str) -> Result<&'static DeviceKind> {
        KINDS.iter().find(|kind| kind.form.is_of(name)).ok_or_else(|| {
            let (word, more) = name.split_once(':').map_or((name, None), |(w, m)| (w, Some(m)));
            match (KINDS.iter().find(|kind| kind.form.word() == word), more) {
                (Some(kind), Some(more)) => refuse!(
                    Invalid,
                    "device '{name}': nothing follows \"{word}\", and ':{more}' does: it is {}",
                    kind.words
                ),
                (Some(kind), None) => refuse!(
                    Invalid,
                    "device '{name}': \"{word}\" needs a ':' and more: it is {}",
                    kind.words
                ),
                (None, Some(_)) => {
                    refuse!(Invalid, "device type '{word}': a device is {KnownNames}")
                }
                (None, None) => {
                    refuse!(Invalid, "no device type before a ':': a device is {KnownNames}")
                }
            }
        })
    }
}

/// The forms of all kinds, as a list in words.
struct KnownNames;

impl fmt::Display for KnownNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, kind) in KINDS.iter().enumerate() {
            f.write_str(match i {
                0 => "",
                i if i + 1 == KINDS.len() => " or ",
                _ => ", ",
            })?;
            f.write_str(kind.words)?;
        }
        Ok(())
    }
}

/// The configuration in the soft device's terms.
fn soft_config<'a>(config: &'a OpenConfig<'a>) -> SoftConfig<'a> {
    let flags = [
        (config_flags::HELPER, soft_flags::HELPER),
        (config_flags::NO_GSO, soft_flags::NO_GSO),
        (config_flags::CMA, soft_flags::CMA),
    ];
    let flags =
        flags.iter().filter(|(c, _)| config.flags & c != 0).fold(0, |all, (_, soft)| all | soft);
    let path = match () {
        _ if config.flags & config_flags::SHM_ONLY != 0 => PathChoice::Shm,
        _ if config.flags & config_flags::UDP_ONLY != 0 => PathChoice::Udp,
        _ if config.flags & config_flags::SHM != 0 => PathChoice::Auto,
        // A capture shows all packets, unless the program selects a path.
        _ if config.pcap.is_some() || config.faults.is_some() => PathChoice::Udp,
        _ => PathChoice::Auto,
    };
    let engines = EngineCount::all(config.engines);
    let faults = config.faults.as_ref();
    let mut core = config.core;
    // A program that is checked meets the errors of a NIC.
    core.limits.cq_overrun |= strict(config).is_some() && config.engines == 1;
    SoftConfig { core, flags, path, pcap: config.pcap, faults, engines }
}

/// What is asked for of the program's calls: by who has started it, or else by itself.
fn strict(config: &OpenConfig<'_>) -> Option<Settings> {
    Settings::of_environment().or(config.strict)
}

/// Wraps the device in a [`StrictDevice`] if `settings` ask for it. `behind`: the same device,
/// whose calls no rule fails. Not inlined: few opens need its stack.
#[inline(never)]
fn watched(
    open: OpenDevice,
    behind: &'static dyn ContextDevice,
    settings: Option<Settings>,
) -> OpenDevice {
    if settings.is_none() {
        return open;
    }
    let device = Box::leak(Box::new(StrictDevice::new(open.device, behind)));
    OpenDevice { device, fast: FastDevice::None }
}

/// Bytes of memory of a soft device.
fn soft_memsize(name: &str, config: &OpenConfig<'_>) -> Result<usize> {
    SoftDevice::memsize(name, &soft_config(config))
}

unsafe fn open_soft(
    memory: *mut u8,
    bytes: usize,
    name: &str,
    config: &OpenConfig<'_>,
) -> Result<OpenDevice> {
    let explain = |&e: &Error| open_error::explain(name, Stage::Device, e);
    let mut soft = soft_config(config);
    if let Some(spec) = &config.keys {
        soft.core.seed = device_keys(spec.seed, name);
    }
    let of_config = |&e: &Error| open_error::explain(name, Stage::Config, e);
    if config.faults.is_some() || config.call_faults.is_some() {
        check_log().inspect_err(of_config)?;
    }
    let strict = strict(config);
    strict.map_or(Ok(()), install).inspect_err(of_config)?;
    // SAFETY: the contract of `DeviceKind::open` is that of `init`.
    let device = unsafe { SoftDevice::init(memory, bytes, name, &soft) }.inspect_err(explain)?;
    if let Some(spec) = &config.keys {
        note_repeat(spec, spec.seed);
        count_one();
    }
    let open = match &config.call_faults {
        Some((spec, rules)) => with_call_faults(device, spec, rules),
        None => {
            let fast = device.only_engine().map_or(FastDevice::Engines(device), FastDevice::Engine);
            OpenDevice { device, fast }
        }
    };
    Ok(watched(open, device, strict))
}

/// A device whose calls fail by rules. In a frame of its own, since rules are large.
#[cold]
#[inline(never)]
fn with_call_faults(
    device: &'static SoftDevice,
    spec: &FaultSpec<'_>,
    rules: &Faults,
) -> OpenDevice {
    let faulty = Box::leak(Box::new(FaultyDevice::new(device, spec, rules.clone())));
    OpenDevice { device: faulty, fast: FastDevice::None }
}

/// A tenant's own device, or one of the router's: as the router's policy says.
unsafe fn open_routed(
    memory: *mut u8,
    bytes: usize,
    name: &str,
    config: &OpenConfig<'_>,
) -> Result<OpenDevice> {
    // SAFETY: our contract.
    match unsafe { open_soft(memory, bytes, name, config) } {
        Err(Error::Os(libc::EREMOTE)) => {}
        done => return done,
    }
    check_remote(name, config)?;
    let device =
        RemoteDevice::open(name).inspect_err(|&e| open_error::explain(name, Stage::Device, e))?;
    let device: &'static RemoteDevice = Box::leak(Box::new(device));
    // `open_soft` has begun to look.
    Ok(watched(OpenDevice { device, fast: FastDevice::None }, device, strict(config)))
}

fn has_faults(config: &OpenConfig<'_>) -> bool {
    config.faults.is_some() || config.call_faults.is_some() || config.keys.is_some()
}

/// Refuses options of a device in this process: one of the router's is all tenants'.
fn check_remote(name: &str, config: &OpenConfig<'_>) -> Result<()> {
    let option = match () {
        _ if config.pcap.is_some() => "pcap_path",
        _ if has_faults(config) => "faults",
        _ if config.core.limits != LoweredLimits::NONE => "a lowered limit",
        _ if config.engines != 1 => "engines",
        _ if config.core.keepalive_ns != 0 => "keepalive_ms",
        _ => return Ok(()),
    };
    Err(refuse!(Unsupported, "'{name}': the device is the router's, which has no {option}"))
}

/// Refuses options of the soft device: a NIC's packets do not pass through this library, so it can
/// neither capture them nor send keepalives.
fn check_verbs(name: &str, config: &OpenConfig<'_>) -> Result<()> {
    let instead = match () {
        _ if config.pcap.is_some() => {
            "pcap_path is for the soft device; capture a NIC's packets with tcpdump"
        }
        _ if has_faults(config) || config.core.limits != LoweredLimits::NONE => {
            "faults are of the soft device; a NIC has its own"
        }
        _ if config.strict.is_some() => "strict is of the soft device",
        _ if config.engines != 1 => {
            "engines are of the soft device; a NIC serves all threads at once"
        }
        _ if config.core.keepalive_ns != 0 => {
            "keepalive_ms is for the soft device; WRITE 0 bytes now and then"
        }
        _ => return Ok(()),
    };
    Err(refuse!(Unsupported, "'{name}': {instead}"))
}

unsafe fn open_verbs(
    memory: *mut u8,
    bytes: usize,
    name: &str,
    config: &OpenConfig<'_>,
) -> Result<OpenDevice> {
    let mut why = gdrcore_verbs::Text::new();
    // SAFETY: the contract of `DeviceKind::open` is that of `init`.
    unsafe { VerbsDevice::init(memory, bytes, name, &config.core, &mut why) }
        .inspect_err(|&e| match (why.as_str(), e) {
            ("", e) => open_error::explain(name, Stage::Device, e),
            (words, e) => reason::set(e, format_args!("'{name}': {words}")),
        })
        .map(|device| OpenDevice { device, fast: FastDevice::Nic(device) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdrcore_core::config::Config;
    use gdrcore_net::inject::FaultSpec;

    fn plain<'a>() -> OpenConfig<'a> {
        let (core, flags, engines) = (Config::default(), 0, 1);
        let (faults, call_faults, keys) = (None, None, None);
        OpenConfig { core, flags, pcap: None, engines, faults, call_faults, keys, strict: None }
    }

    #[test]
    fn a_name_belongs_to_the_kind_that_it_begins_with() {
        let of = |name| DeviceKind::find(name).ok().map(|kind| kind.words);
        assert_eq!(of("soft:127.0.0.1"), Some(KINDS[0].words));
        assert_eq!(of("soft:"), Some(KINDS[0].words));
        assert_eq!(of("verbs:rxe0:1:3"), Some(KINDS[1].words));
        assert_eq!(of("router:"), Some(KINDS[2].words));
        assert_eq!(of("router:/run/gdrcore/tenant.gdrc"), Some(KINDS[2].words));
        assert_eq!(of("loopback"), Some(KINDS[3].words));
        for none in
            ["", "router", "soft", "softer:1", "verbs", "loopback:", "loopback2", "Soft:127.0.0.1"]
        {
            assert_eq!(of(none), None, "{none}");
        }
        assert_eq!(
            KnownNames.to_string(),
            "\"soft:<address>[:port]\" (IPv6 in brackets), \"verbs:<NIC>[:port][:gid-index]\", \
             \"router:[<name or socket>]\" or \"loopback\""
        );
    }

    #[test]
    fn options_that_a_device_of_the_router_lacks_are_refused() {
        let config = |engines, pcap, keepalive_ns| {
            let core = Config { keepalive_ns, ..Default::default() };
            check_remote("router:", &OpenConfig { core, pcap, engines, ..plain() })
        };
        let refused = Err(Error::Unsupported);
        assert_eq!(config(1, None, 0), Ok(()));
        assert_eq!(config(2, None, 0), refused);
        assert_eq!(config(1, Some(c"file"), 0), refused);
        assert_eq!(config(1, None, 1), refused);
        let keys = Some(FaultSpec { rules: "keys", seed: 1, launched: None });
        assert_eq!(check_remote("router:", &OpenConfig { keys, ..plain() }), refused);
        assert_eq!(check_verbs("verbs:a", &OpenConfig { keys, ..plain() }), refused);
        assert_eq!(check_verbs("verbs:a", &plain()), Ok(()));
        let strict = Settings::parse("report");
        assert_eq!(check_verbs("verbs:a", &OpenConfig { strict, ..plain() }), refused);
        assert_eq!(check_remote("router:", &OpenConfig { strict, ..plain() }), Ok(()));
    }

    #[test]
    fn the_path_follows_from_flags_and_capture() {
        let of = |flags, pcap| soft_config(&OpenConfig { flags, pcap, ..plain() }).path;
        for (flags, plain, captured) in [
            (0, PathChoice::Auto, PathChoice::Udp),
            (config_flags::SHM, PathChoice::Auto, PathChoice::Auto),
            (config_flags::SHM_ONLY, PathChoice::Shm, PathChoice::Shm),
            (config_flags::SHM | config_flags::SHM_ONLY, PathChoice::Shm, PathChoice::Shm),
            (config_flags::UDP_ONLY, PathChoice::Udp, PathChoice::Udp),
        ] {
            assert_eq!(
                (of(flags, None), of(flags, Some(c"file"))),
                (plain, captured),
                "{flags:#x}"
            );
        }
    }
}
