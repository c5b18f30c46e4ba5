//! Who may reach whom from a device: the `allow` of its tenants.
//!
//! All tenants of a device have its address. So another tenant is told by the number of its queue
//! pair, and both have to allow each other, as everywhere. Any other destination is an address, and
//! a tenant with an `allow` reaches those of its ranges alone.
//!
//! It is looked at where a destination is named: a queue pair's in RTR, an address handle's, a
//! datagram's to this device, a multicast group, and a connection's, at the end that asks and, for
//! another tenant, at the end that is asked.

use crate::policy::{show, wants, Tenant};
use gdrcore_core::device::DeviceAttr;
use gdrcore_core::error::Result;
use gdrcore_core::refuse;
use gdrcore_core::verbs::types::AhAttr;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

#[derive(Default)]
struct State {
    /// By their numbers on the device.
    tenants: HashMap<u16, Tenant>,
    /// Queue pairs of sessions, and whose they are.
    numbers: HashMap<u32, u16>,
    gid: [u8; 16],
    udp_port: u16,
}

impl State {
    fn is_here(&self, to: &AhAttr) -> bool {
        to.dgid == self.gid && (to.udp_port == 0 || to.udp_port == self.udp_port)
    }
}

/// The rules of a device. Its sessions share it; the thread of the device alone uses it.
#[derive(Default)]
pub(super) struct Guard {
    /// A tenant has an `allow`.
    has_rules: AtomicBool,
    state: RwLock<State>,
}

impl Guard {
    /// Of a device with these facts.
    pub(super) fn of(attr: &DeviceAttr) -> Guard {
        let (gid, udp_port) = (attr.gid, attr.udp_port as u16);
        let state = RwLock::new(State { gid, udp_port, ..State::default() });
        Guard { has_rules: AtomicBool::new(false), state }
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the rules of a tenant.
    pub(super) fn set(&self, number: u16, tenant: &Tenant) {
        let mut state = self.write();
        state.tenants.insert(number, tenant.clone());
        let has_rules = state.tenants.values().any(|t| t.allow.is_some());
        self.has_rules.store(has_rules, Ordering::Relaxed);
    }

    /// Whether a tenant has an `allow`, so that there is something to look at.
    pub(super) fn has_rules(&self) -> bool {
        self.has_rules.load(Ordering::Relaxed)
    }

    /// A tenant has a new queue pair.
    pub(super) fn made(&self, qpn: u32, tenant: u16) {
        self.write().numbers.insert(qpn, tenant);
    }

    /// A queue pair is gone.
    pub(super) fn ended(&self, qpn: u32) {
        self.write().numbers.remove(&qpn);
    }

    /// Whether a destination is the device itself.
    pub(super) fn is_here(&self, to: &AhAttr) -> bool {
        self.read().is_here(to)
    }

    /// Whether a tenant may reach a queue pair. `qpn` 0: of any number.
    ///
    /// # Errors
    /// [`gdrcore_core::Error::Access`]: it may not.
    pub(super) fn check(&self, from: u16, to: &AhAttr, qpn: u32) -> Result<()> {
        if !self.has_rules() {
            return Ok(());
        }
        let state = self.read();
        let Some(tenant) = state.tenants.get(&from) else { return Ok(()) };
        let other = match state.is_here(to) {
            true => state.numbers.get(&qpn).and_then(|number| state.tenants.get(number)),
            false => None,
        };
        let may = match other {
            Some(other) => {
                wants(tenant, &other.name, &to.dgid) && wants(other, &tenant.name, &to.dgid)
            }
            None => wants(tenant, "", &to.dgid),
        };
        match may {
            true => Ok(()),
            false => {
                let (name, at) = (&tenant.name, show(&to.dgid));
                Err(refuse!(
                    Access,
                    "policy does not allow tenant {name} to reach {at}, QP {qpn:#x}"
                ))
            }
        }
    }
}
