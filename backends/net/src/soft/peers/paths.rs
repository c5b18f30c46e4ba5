//! Chooses the path to a peer when a control call names it. With a router,
//! [`crate::soft::router::routed`] chooses.

use crate::addr::Endpoint;
use crate::soft::lock::EngineLock;
use crate::soft::router::routed::RouterLink;
use crate::soft::{PathChoice, PortState, SoftEngine};
use gdrcore_core::config::qpn_block;
use gdrcore_core::engine::EngineGuard;
use gdrcore_core::error::Result;
use gdrcore_core::roce::peer::PeerAddr;
use gdrcore_core::verbs::kind::QpKind;
use gdrcore_core::verbs::types::{AhAttr, Handle};

/// Control: the path to a peer.
impl SoftEngine {
    /// Chooses the path to a peer of datagrams, then makes a change that names the peer, under the
    /// lock.
    ///
    /// # Errors
    /// As [`SoftEngine::choose_path`]; those of the change.
    pub(in crate::soft) fn with_path<R>(
        &self,
        ah: &AhAttr,
        change: impl FnOnce(&mut EngineGuard<'_>) -> Result<R>,
    ) -> Result<R> {
        let mut held = self.lock()?;
        self.choose_path(&mut held, ah, None, None)?;
        change(&mut held)
    }

    /// Chooses the path of the peer of an address vector, and sets it in the engine, under the lock
    /// of the control call that names the peer. `dest_qpn`: the peer's QP if connected; `None`:
    /// datagrams. `way`: the result of [`SoftEngine::ask_router`].
    ///
    /// # Errors
    /// With a router: its refusal. Otherwise only for a device that uses shared memory alone:
    /// `Error::NoDevice`: no process of this host offers a link at that address; `Error::Access`: a
    /// process of another user does; `Error::NoMemory`.
    pub(in crate::soft) fn choose_path(
        &self,
        held: &mut EngineLock<'_>,
        ah: &AhAttr,
        dest_qpn: Option<u32>,
        way: Option<RouterLink<'_>>,
    ) -> Result<()> {
        let (g, port) = held.parts();
        self.find_path(g, port, ah, dest_qpn, way)?;
        let Some(qpn) = dest_qpn else { return Ok(()) };
        match (&port.shm, g.link(), &mut port.member) {
            (Some(shm), Some(link), _) => shm.forget_receipt(link, qpn),
            (_, None, Some(member)) if !g.owns(qpn) => {
                member.void_receipt(&self.named_by(ah), qpn);
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether the address vector of a queue pair names its peer. With DC it does not: programs
    /// leave the GID empty, or name one peer of many. UD has no address vector.
    ///
    /// # Errors
    /// `Error::StaleHandle`.
    pub(in crate::soft) fn has_fixed_peer(&self, qp: Handle) -> Result<bool> {
        let (_, init) = self.lock()?.qp_query(qp)?;
        Ok(QpKind::from_number(init.qp_type).is_some_and(QpKind::has_fixed_peer))
    }

    /// The endpoint that an address vector names.
    pub(in crate::soft) fn named_by(&self, ah: &AhAttr) -> Endpoint {
        let to = PeerAddr::from_ah(ah, self.local.port);
        Endpoint::new(
            to.gid,
            if to.scope_id == 0 { self.local.scope_id } else { to.scope_id },
            to.port,
        )
    }

    fn find_path(
        &self,
        g: &mut EngineGuard<'_>,
        port: &mut PortState,
        ah: &AhAttr,
        dest_qpn: Option<u32>,
        way: Option<RouterLink<'_>>,
    ) -> Result<()> {
        g.set_link(None);
        g.set_own_address_remote(false);
        let to = self.named_by(ah);
        if self.via.is_some() {
            return self.choose_router_path(g, port, &to, dest_qpn, way);
        }
        if let Some(siblings) = &self.siblings {
            self.choose_sibling_path(g, port, siblings, &to, dest_qpn);
            return Ok(());
        }
        if to == self.local {
            // The path of a datagram is chosen for each datagram.
            let is_own = port.member.is_none() || dest_qpn.is_none_or(|qpn| g.owns(qpn));
            // With faults the device's packets to itself leave through the port, too.
            if is_own && !port.has_faults() {
                return Ok(());
            }
            g.set_own_address_remote(true);
        }
        let Some(shm) = &mut port.shm else { return Ok(()) };
        match shm.connect(&to, dest_qpn.map(qpn_block), &self.waiter) {
            Ok(link) => g.set_link(Some(link)),
            Err(_) if self.path == PathChoice::Auto => {}
            Err(e) => return Err(e),
        }
        Ok(())
    }
}
