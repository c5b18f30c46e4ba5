//! Options of the router, and its policy.

use super::users::Users;
use super::{note, sys};
use crate::firewall::{check as check_firewall, Firewall};
use crate::policy::{Lookup, Map, Policy, Unmatched};
use std::path::{Path, PathBuf};

/// Options of the router.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The policy's file; `None`: every user is a tenant of its own, at [`Options::listen`].
    pub file: Option<PathBuf>,
    /// The socket where there is no file.
    pub listen: Option<PathBuf>,
    /// The admin socket where there is no file, or none in it.
    pub admin: Option<PathBuf>,
    /// Log sessions as they come and go, on standard error.
    pub verbose: bool,
    /// Make no direct links: all packets go by the router.
    pub isolated: bool,
    /// Handling of the firewall's rule, if there are other hosts.
    pub firewall: Firewall,
    /// Confine the process, for the rest of its life, to what a router does. For a process that is
    /// nothing else.
    pub confine: bool,
    /// Rates of tenants by their `ffr_id`, see [`crate::policy::rate_limits`].
    pub rate_limits: Vec<(i32, Option<u64>)>,
}

/// Reads a policy.
///
/// # Errors
/// In words, with the file's name.
pub fn read_policy(file: &Path, users: &Users) -> Result<Policy, String> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let lookup = Lookup { map: &read_map, user: &|name| users.number(name) };
    Policy::parse_with(&text, lookup).map_err(|fault| format!("{}: {fault}", file.display()))
}

/// Reads a map of hosts; an error is in words, with the file's name.
pub(super) fn read_map(map: &Path) -> Result<Map, String> {
    let said = |what: String| format!("'{}': {what}", map.display());
    let text = std::fs::read_to_string(map).map_err(|e| said(e.to_string()))?;
    Map::parse(&text).map_err(|fault| said(fault.to_string()))
}

/// The policy where there is no file: one network, and every user is a tenant of its own.
///
/// # Errors
/// In words: the path is no socket's.
pub fn default_policy(listen: &Path) -> Result<Policy, String> {
    if !listen.is_absolute() {
        return Err(format!("{}: an absolute path", listen.display()));
    }
    let empty = Policy::parse("").map_err(|fault| fault.what)?;
    Ok(Policy { listen: Some(listen.into()), unmatched: Unmatched::Uid, ..empty })
}

impl Options {
    pub(super) fn policy(&self, users: &Users) -> Result<Policy, String> {
        let mut policy = match (&self.file, &self.listen) {
            (Some(file), _) => read_policy(file, users)?,
            (None, Some(listen)) => default_policy(listen)?,
            (None, None) => return Err("neither a policy file nor a socket to listen at".into()),
        };
        policy.admin = policy.admin.or_else(|| self.admin.clone());
        policy.limit_by_ffr_id(&self.rate_limits)?;
        Ok(policy)
    }

    /// Checks the firewall if there are other hosts: without its rule other processes could send as
    /// the router.
    pub(super) fn check_firewall(&self, policy: &Policy) -> Result<(), String> {
        if policy.host.is_none() || self.firewall == Firewall::Off {
            return Ok(());
        }
        match check_firewall(&policy.map.ports(), sys::own_uid()) {
            Err(why) if self.firewall == Firewall::Require => Err(format!("firewall: {why}")),
            Err(why) => {
                note(format_args!("firewall: {why}; others of this host may send as the router"));
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }
}
