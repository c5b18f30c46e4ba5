//! Finds the router that a process must use.
//!
//! | source | meaning |
//! |---|---|
//! | `GDRC_ROUTER=off` | none |
//! | `GDRC_ROUTER=/path/name.gdrc` | this socket |
//! | `GDRC_ROUTER=name` | `/freeflow/name.gdrc`, or `/run/gdrcore/name.gdrc` |
//! | `FFR_NAME=name` | `/freeflow/name.gdrc`, if it exists |
//! | `/run/gdrcore/tenant.gdrc` | if it exists |
//!
//! The first one that is set counts. `FFR_NAME` is also the variable of FreeFlow's own router. The
//! last source is the path of a mount that an injector adds to images without router settings. A
//! value of `GDRC_ROUTER` without a socket is an error, never a silent bypass of the router. A
//! device name may name the socket too: `router:/path/name.gdrc`; `router:` follows the table.

use crate::sys::stat_at;
use core::ffi::CStr;
use core::fmt;
use gdrcore_core::error::Result;
use gdrcore_core::refuse;

/// Bytes of a socket's path in unix(7), with the zero at the end.
const PATH_MAX: usize = 108;
/// Bytes of a variable that are read.
const VALUE_MAX: usize = 256;
/// The folder of router sockets in FreeFlow's containers.
const FREEFLOW: &str = "/freeflow";
/// The folder of our router's sockets.
const OWN: &str = "/run/gdrcore";
/// The name that is tried without a setting.
const TENANT: &str = "tenant";

/// The path of a router's socket.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SocketPath {
    bytes: [u8; PATH_MAX],
    len: usize,
}

impl SocketPath {
    /// A path as given.
    ///
    /// # Errors
    /// `Invalid`: it is empty, has a zero byte, or is longer than a socket's path may be (107
    /// bytes).
    pub fn new(path: &[u8]) -> Result<SocketPath> {
        let shown = String::from_utf8_lossy(path);
        if path.is_empty() || path.contains(&0) {
            return Err(refuse!(Invalid, "router '{shown}': no path of a socket"));
        }
        if path.len() >= PATH_MAX {
            return Err(refuse!(
                Invalid,
                "router '{shown}': {} bytes, and the path of a socket has at most 107",
                path.len()
            ));
        }
        let mut bytes = [0; PATH_MAX];
        bytes[..path.len()].copy_from_slice(path);
        Ok(SocketPath { bytes, len: path.len() })
    }

    /// The path's bytes, without the zero.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// For `connect` and `bind`.
    pub(super) fn to_sockaddr(self) -> (libc::sockaddr_un, libc::socklen_t) {
        // SAFETY: zeroes are a valid sockaddr_un.
        let mut addr: libc::sockaddr_un = unsafe { core::mem::zeroed() };
        addr.sun_family = libc::AF_UNIX as libc::sa_family_t;
        for (to, &from) in addr.sun_path.iter_mut().zip(self.as_bytes()) {
            *to = from as libc::c_char;
        }
        let start = core::mem::offset_of!(libc::sockaddr_un, sun_path);
        (addr, (start + self.len + 1) as libc::socklen_t)
    }

    fn is_there(&self) -> bool {
        // At least the last byte is zero (see `new`).
        CStr::from_bytes_until_nul(&self.bytes)
            .is_ok_and(|path| stat_at(libc::AT_FDCWD, path).is_ok())
    }
}

impl fmt::Display for SocketPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.as_bytes()))
    }
}

impl fmt::Debug for SocketPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&String::from_utf8_lossy(self.as_bytes()), f)
    }
}

/// The router setting of the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The setting asks for no router.
    Off,
    /// There is no setting, and no socket was found.
    Nothing,
    /// `GDRC_ROUTER` or `FFR_NAME` leads here.
    Named(SocketPath),
    /// There is no setting, but `/run/gdrcore/tenant.gdrc` exists.
    Mounted(SocketPath),
}

/// The router that the environment names, by the table of this module.
///
/// # Errors
/// `Invalid`: an impossible name or path. `NoDevice`: a name without a socket in either folder.
pub fn from_environment() -> Result<Found> {
    let (mut router, mut name) = ([0; VALUE_MAX], [0; VALUE_MAX]);
    decide(variable(c"GDRC_ROUTER", &mut router), variable(c"FFR_NAME", &mut name), [FREEFLOW, OWN])
}

/// The number that `FFR_ID` names; -1: none.
pub(super) fn ffr_id() -> i32 {
    let mut text = [0; VALUE_MAX];
    let value = variable(c"FFR_ID", &mut text).and_then(|v| core::str::from_utf8(v).ok());
    value.and_then(|v| v.parse().ok()).filter(|&n| n >= 0).unwrap_or(-1)
}

/// Copies a variable of the environment, without an allocation, like every step of an open. Copies
/// `VALUE_MAX` bytes of a longer value: more than any socket's path.
fn variable<'b>(name: &CStr, to: &'b mut [u8; VALUE_MAX]) -> Option<&'b [u8]> {
    // SAFETY: a C string. The value stays until the program changes its environment, which it must
    // not do meanwhile (getenv(3)).
    let value = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: not null, so a C string, which stays as was said.
    let value = unsafe { CStr::from_ptr(value) }.to_bytes();
    let len = value.len().min(VALUE_MAX);
    to[..len].copy_from_slice(&value[..len]);
    Some(&to[..len])
}

/// The router behind a device name, without its `router:`.
///
/// # Errors
/// As [`from_environment`]; `NoDevice` also if the environment names none.
pub fn of_device(at: &str) -> Result<SocketPath> {
    if !at.is_empty() {
        return named(at.as_bytes(), [FREEFLOW, OWN]);
    }
    match from_environment()? {
        Found::Named(path) | Found::Mounted(path) => Ok(path),
        Found::Off => Err(refuse!(NoDevice, "device 'router:': GDRC_ROUTER=off excludes one")),
        Found::Nothing => Err(refuse!(
            NoDevice,
            "device 'router:': GDRC_ROUTER is not set, and there \
             is no {OWN}/{TENANT}.gdrc; write 'router:<path>'"
        )),
    }
}

fn decide(router: Option<&[u8]>, ffr_name: Option<&[u8]>, folders: [&str; 2]) -> Result<Found> {
    match router {
        Some(b"off") => return Ok(Found::Off),
        None | Some(b"") => {}
        Some(value) => return named(value, folders).map(Found::Named),
    }
    if let Some(name) = ffr_name.filter(|n| !n.is_empty() && !n.contains(&b'/')) {
        if let Some(path) = below(folders[0], name).ok().filter(SocketPath::is_there) {
            return Ok(Found::Named(path));
        }
    }
    let mounted = below(folders[1], TENANT.as_bytes()).ok().filter(SocketPath::is_there);
    Ok(mounted.map_or(Found::Nothing, Found::Mounted))
}

/// A path, or a name for which the folders are searched.
fn named(value: &[u8], folders: [&str; 2]) -> Result<SocketPath> {
    if value.contains(&b'/') {
        return SocketPath::new(value);
    }
    for folder in folders {
        let path = below(folder, value)?;
        if path.is_there() {
            return Ok(path);
        }
    }
    let name = String::from_utf8_lossy(value);
    let [first, second] = folders;
    Err(refuse!(
        NoDevice,
        "router '{name}': there is neither {first}/{name}.gdrc \
         nor {second}/{name}.gdrc (GDRC_ROUTER, a device name)"
    ))
}

fn below(folder: &str, name: &[u8]) -> Result<SocketPath> {
    let mut path = [0; VALUE_MAX + 32];
    let mut len = 0;
    for part in [folder.as_bytes(), b"/", name, b".gdrc"] {
        let Some(place) = path.get_mut(len..len + part.len()) else {
            return SocketPath::new(&path);
        };
        place.copy_from_slice(part);
        len += part.len();
    }
    SocketPath::new(&path[..len])
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdrcore_core::error::Error;
    use gdrcore_testkit::place;

    fn os(text: &str) -> Option<&[u8]> {
        Some(text.as_bytes())
    }

    fn path(text: &str) -> SocketPath {
        SocketPath::new(text.as_bytes()).unwrap()
    }

    fn folders(name: &str) -> [String; 2] {
        let base = std::env::temp_dir().join(format!("gdrc-find-{name}-{}", place::port()));
        ["free", "own"].map(|f| {
            let folder = base.join(f);
            std::fs::create_dir_all(&folder).unwrap();
            folder.to_str().unwrap().to_string()
        })
    }

    #[test]
    fn the_first_source_that_is_set_counts() {
        let [free, own] = folders("first");
        let both = [&free[..], &own[..]];
        assert_eq!(decide(None, None, both), Ok(Found::Nothing));
        assert_eq!(decide(os(""), os(""), both), Ok(Found::Nothing));
        let tenant = format!("{own}/tenant.gdrc");
        std::fs::write(&tenant, "").unwrap();
        assert_eq!(decide(None, None, both), Ok(Found::Mounted(path(&tenant))));
        // FreeFlow's own router uses the variable too, and has no socket of ours.
        assert_eq!(decide(None, os("router1"), both), Ok(Found::Mounted(path(&tenant))));
        let theirs = format!("{free}/router1.gdrc");
        std::fs::write(&theirs, "").unwrap();
        assert_eq!(decide(None, os("router1"), both), Ok(Found::Named(path(&theirs))));
        assert_eq!(decide(None, os("../free/router1"), both), Ok(Found::Mounted(path(&tenant))));
        assert_eq!(decide(os("tenant"), os("router1"), both), Ok(Found::Named(path(&tenant))));
        assert_eq!(decide(os("off"), os("router1"), both), Ok(Found::Off));
        assert_eq!(
            decide(os("/x/y.sock"), os("router1"), both),
            Ok(Found::Named(path("/x/y.sock")))
        );
        std::fs::remove_dir_all(std::path::Path::new(&free).parent().unwrap()).unwrap();
    }

    #[test]
    fn a_value_without_a_socket_is_an_error() {
        let [free, own] = folders("nowhere");
        let both = [&free[..], &own[..]];
        assert_eq!(decide(os("nobody"), None, both), Err(Error::NoDevice));
        assert_eq!(decide(os(&"x".repeat(200)), None, both), Err(Error::Invalid));
        assert_eq!(decide(os(&format!("/{}", "x".repeat(107))), None, both), Err(Error::Invalid));
        assert!(decide(os(&format!("/{}", "x".repeat(106))), None, both).is_ok());
        std::fs::remove_dir_all(std::path::Path::new(&free).parent().unwrap()).unwrap();
    }
}
