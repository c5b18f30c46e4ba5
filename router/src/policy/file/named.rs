//! What a file names outside of itself, with its place, for a check before the router runs.

use super::super::hosts;
use super::{fault, path, tables, Fault, File, Wrong, NO_DEVICE};
use gdrcore_net::addr::Endpoint;
use std::net::SocketAddr;
use std::path::PathBuf;
use toml::Spanned;

/// A thing outside of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Thing {
    /// A socket that the router makes.
    Socket(PathBuf),
    /// A file that the router writes.
    Written(PathBuf),
    /// A network namespace.
    Netns(PathBuf),
    /// A user, by name.
    User(String),
    /// The address of `[host]`.
    Host(Endpoint),
    /// The address of a router's soft device.
    Device(Endpoint),
    /// A NIC, as a device of the router.
    Nic(String),
    /// An address of this host, with the interface of a link-local one.
    Address(SocketAddr),
}

/// A thing, and the place of its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// From 1 on.
    pub line: usize,
    /// In characters, from 1 on.
    pub column: usize,
    /// What it is.
    pub thing: Thing,
}

impl Named {
    /// What is wrong with it, as a fault of the file.
    pub fn fault(&self, what: String) -> Fault {
        Fault { line: self.line, column: self.column, what }
    }
}

/// All that a file names, in its order.
///
/// # Errors
/// The file is no policy.
pub fn named(text: &str) -> Result<Vec<Named>, Fault> {
    let file = tables(text)?;
    let mut all = things(&file).map_err(|Wrong(at, what)| fault(text, at, what))?;
    all.sort_by_key(|(at, _)| *at);
    let place = |(at, thing)| {
        let Fault { line, column, .. } = fault(text, at, String::new());
        Named { line, column, thing }
    };
    Ok(all.into_iter().map(place).collect())
}

/// Each thing with its byte offset.
fn things(file: &File) -> Result<Vec<(usize, Thing)>, Wrong> {
    let mut all = Vec::new();
    let mut paths = |at: Option<&Spanned<String>>, of: fn(PathBuf) -> Thing| {
        let found = path(at, false)?;
        all.extend(at.zip(found).map(|(at, path)| (at.span().start, of(path))));
        Ok(())
    };
    let router = &file.router;
    paths(router.listen.as_ref(), Thing::Socket)?;
    paths(router.admin.as_ref(), Thing::Socket)?;
    paths(router.key.as_ref(), Thing::Written)?;
    paths(file.host.as_ref().and_then(|host| host.feed.as_ref()), Thing::Socket)?;
    for table in file.tenant.values() {
        paths(table.listen.as_ref(), Thing::Socket)?;
        paths(table.rules.as_ref().and_then(|rules| rules.netns.as_ref()), Thing::Netns)?;
    }
    let of_tenants = file.tenant.values().filter_map(|table| table.device.as_ref());
    let devices = of_tenants.filter(|at| at.get_ref() != NO_DEVICE).chain(&router.device);
    for at in devices {
        all.push((at.span().start, super::device(at)?));
    }
    let users = file.tenant.values().filter_map(|t| t.rules.as_ref()?.uid.as_ref());
    for at in users.filter(|at| at.get_ref().0.parse::<i64>().is_err()) {
        all.push((at.span().start, Thing::User(at.get_ref().0.clone())));
    }
    if let Some(host) = &file.host {
        let at = hosts::endpoint(&host.address, host.port.as_ref())?;
        all.push((host.address.span().start, Thing::Host(at)));
    }
    if let Some(at) = &router.metrics {
        let address = at.get_ref().parse().ok().map(Thing::Address);
        all.extend(address.map(|thing| (at.span().start, thing)));
    }
    Ok(all)
}
