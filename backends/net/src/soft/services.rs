//! Registers the device's listeners with the router, so that requests for them come here: one
//! listener for each port among all sessions of an address.

use super::SoftEngine;
use crate::via::proto::Service;
use gdrcore_core::error::Result;
use gdrcore_core::refuse;
use gdrcore_core::verbs::types::Handle;
use heapless::LinearMap;

/// Most listeners of a device at a time, as many as a policy allows by default.
const SERVICES: usize = 256;

/// The ids that listen, their ports, and whether the router knows them.
#[derive(Default)]
pub(super) struct Services(LinearMap<Handle, (Service, bool), SERVICES>);

impl Services {
    /// Notes an id's port. Returns false if it is noted already.
    fn note(&mut self, id: Handle, at: Service) -> Result<bool> {
        if self.0.contains_key(&id) {
            return Ok(false);
        }
        self.0.insert(id, (at, true)).map(|_| true).map_err(|_| {
            refuse!(NoMemory, "listeners: a device over a router has {SERVICES} at most")
        })
    }

    fn forget(&mut self, id: Handle) -> Option<Service> {
        self.0.remove(&id).map(|(at, _)| at)
    }

    /// Marks all services as unknown to the router, after a reconnect.
    pub(super) fn tell_again(&mut self) {
        self.0.values_mut().for_each(|(_, known)| *known = false);
    }

    /// Announces at most `most` services that the router does not know. `send` returns false if it
    /// cannot send. Returns true if some are left.
    pub(super) fn announce(&mut self, most: usize, mut send: impl FnMut(Service) -> bool) -> bool {
        for (at, known) in self.0.values_mut().filter(|(_, known)| !known).take(most) {
            *known = send(*at);
            if !*known {
                break;
            }
        }
        self.0.values().any(|(_, known)| !known)
    }
}

/// Control: listeners that the router knows of.
impl SoftEngine {
    /// Announces to the router that an id will listen at its port. No effect without a router.
    ///
    /// # Errors
    /// As [`crate::via::session::RequestGuard::listen`]; `NoMemory`: too many ids listen. As
    /// [`gdrcore_core::cm::Cm::bound`].
    pub(super) fn offer_service(&self, id: Handle) -> Result<()> {
        let Some(via) = &self.via else { return Ok(()) };
        let mut held = self.lock_control();
        let (space, port) = held.cm().bound(id)?;
        let at = Service { space, port };
        if !held.port().router.services.note(id, at)? {
            return Ok(());
        }
        drop(held);
        let mut request_guard = via.request_guard();
        let told = self.ask(&mut request_guard, |request_guard| request_guard.listen(at, true));
        drop(request_guard);
        if told.is_err() {
            self.lock_control().port().router.services.forget(id);
        }
        told
    }

    /// Withdraws the service of an id that has ended, or no longer listens.
    pub(super) fn withdraw_service(&self, id: Handle) {
        let Some(via) = &self.via else { return };
        let Some(at) = self.lock_control().port().router.services.forget(id) else { return };
        let mut request_guard = via.request_guard();
        // A router that has ended needs no message.
        let _ = self.ask(&mut request_guard, |request_guard| request_guard.listen(at, false));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_noted_once_and_forgotten_once() {
        let mut s = Services::default();
        let at = |port| Service { space: 0x106, port };
        assert_eq!(s.note(1, at(7)), Ok(true));
        assert_eq!(s.note(1, at(7)), Ok(false));
        assert_eq!((s.forget(2), s.forget(1), s.forget(1)), (None, Some(at(7)), None));
        for id in 0..3 {
            assert_eq!(s.note(id, at(id as u16)), Ok(true));
        }
        assert!(!s.announce(8, |_| panic!("the router knows them")));
        s.tell_again();
        let mut told = Vec::new();
        let mut note = |at: Service| {
            told.push(at.port);
            true
        };
        assert!(s.announce(8, |_| false) && s.announce(2, &mut note) && !s.announce(2, &mut note));
        assert_eq!(told.len(), 3, "{told:?}");
        assert!((0..3).all(|id| s.forget(id).is_some()));
        for id in 0..SERVICES as u64 {
            assert_eq!(s.note(id, at(1)), Ok(true));
        }
        assert_eq!(s.note(9999, at(2)), Err(gdrcore_core::Error::NoMemory));
    }
}
