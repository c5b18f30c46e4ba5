//! The objects of the host that a file names, each with its place in the file, for a check before
//! the router runs.

use super::super::hosts;
use super::{device_object, fault, file_path, Fault, File, Wrong, NO_DEVICE};
use crate::policy::checks::read_toml;
use gdrcore_net::addr::Endpoint;
use std::net::SocketAddr;
use std::path::PathBuf;
use toml::Spanned;

/// An object of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostObject {
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

/// An object that the file names, and the place of its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostReference {
    /// From 1 on.
    pub line: usize,
    /// In characters, from 1 on.
    pub column: usize,
    /// The object.
    pub object: HostObject,
}

impl HostReference {
    /// What is wrong with the object, as a fault of the file.
    pub fn fault(&self, what: String) -> Fault {
        Fault { line: self.line, column: self.column, what }
    }
}

/// The objects of the host that a file names, in its order.
///
/// # Errors
/// The file is no policy.
pub fn host_references(text: &str) -> Result<Vec<HostReference>, Fault> {
    let file: File = read_toml(text)?;
    let mut all = objects(&file).map_err(|Wrong(at, what)| fault(text, at, what))?;
    all.sort_by_key(|(at, _)| *at);
    let reference = |(at, object)| {
        let Fault { line, column, .. } = fault(text, at, String::new());
        HostReference { line, column, object }
    };
    Ok(all.into_iter().map(reference).collect())
}

/// Each object with the byte offset of its name.
fn objects(file: &File) -> Result<Vec<(usize, HostObject)>, Wrong> {
    let mut all = Vec::new();
    let mut paths = |at: Option<&Spanned<String>>, of: fn(PathBuf) -> HostObject| {
        let found = file_path(at)?;
        all.extend(at.zip(found).map(|(at, path)| (at.span().start, of(path))));
        Ok(())
    };
    let router = &file.router;
    paths(router.listen.as_ref(), HostObject::Socket)?;
    paths(router.admin.as_ref(), HostObject::Socket)?;
    paths(router.key.as_ref(), HostObject::Written)?;
    paths(file.host.as_ref().and_then(|host| host.feed.as_ref()), HostObject::Socket)?;
    for table in file.tenant.values() {
        paths(table.listen.as_ref(), HostObject::Socket)?;
        paths(table.rules.as_ref().and_then(|rules| rules.netns.as_ref()), HostObject::Netns)?;
    }
    let of_tenants = file.tenant.values().filter_map(|table| table.device.as_ref());
    let devices = of_tenants.filter(|at| at.get_ref() != NO_DEVICE).chain(&router.device);
    for at in devices {
        all.push((at.span().start, device_object(at)?));
    }
    let users = file.tenant.values().filter_map(|t| t.rules.as_ref()?.uid.as_ref());
    for at in users.filter(|at| at.get_ref().0.parse::<i64>().is_err()) {
        all.push((at.span().start, HostObject::User(at.get_ref().0.clone())));
    }
    if let Some(host) = &file.host {
        let at = hosts::endpoint(&host.address, host.port.as_ref())?;
        all.push((host.address.span().start, HostObject::Host(at)));
    }
    if let Some(at) = &router.metrics {
        let address = at.get_ref().parse().ok().map(HostObject::Address);
        all.extend(address.map(|object| (at.span().start, object)));
    }
    Ok(all)
}
