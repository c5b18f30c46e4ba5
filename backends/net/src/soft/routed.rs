//! Peers by way of a router ([`crate::via`]): no socket and no names of this host's, but a session,
//! which gives the address, the queue pair numbers and, when a queue pair is connected, a link to
//! the process at the other end.
//!
//! The router is asked without the engine's lock: whoever holds that never waits for it.

use super::budget::Round;
use super::{Port, SoftDevice};
use crate::addr::Endpoint;
use crate::clock::now_ns;
use crate::shm::relay::Relay;
use crate::shm::{Peer, ShmPort};
use crate::via::find::SocketPath;
use crate::via::proto::Route;
use crate::via::session::{Arrival, Asker, Direct, Session};
use crate::wait::Waiter;
use gdrcore_core::config::{Config, QPN_UNIT};
use gdrcore_core::engine::Guard;
use gdrcore_core::error::{Error, Result};
use gdrcore_core::refuse;
use gdrcore_core::verbs::types::AhAttr;
use std::os::fd::AsRawFd;

/// What the router has answered: a link, perhaps, that nobody has taken yet. While it lives nobody else asks,
/// so that two threads do not make two.
pub(super) struct Way<'s> {
    /// `None`: by its rings.
    direct: Option<Direct>,
    _asker: Asker<'s>,
}

/// Opens a session, and takes from it what the engine must know; its rings, if it has any.
///
/// # Errors
/// As [`Session::open`]; [`Error::Invalid`]: the program names queue pair numbers of its own.
pub(super) fn open(
    at: &SocketPath,
    core: &mut Config,
    waiter: &Waiter,
) -> Result<(Session, Option<Relay>)> {
    if core.qpn_base != 0 {
        let base = core.qpn_base;
        return Err(refuse!(
            Invalid,
            "qpn_base {base:#x}: with a router it must be 0, since the router gives the numbers"
        ));
    }
    let wanted = core.resolve()?.qpn_count.max(QPN_UNIT);
    let (session, relay) = Session::open(at, wanted)?;
    (core.qpn_base, core.qpn_count) = (session.welcome().qpns.0, wanted);
    waiter.add_socket(session.fd())?;
    if let Some(relay) = &relay {
        waiter.add_socket(relay.fd().as_raw_fd())?;
    }
    Ok((session, relay))
}

/// Throws away what would leave by a socket that this device has not: queue pairs whose link is
/// gone then find out by their timers, as they do behind a wire.
#[cold]
pub(super) fn discard(g: &mut Guard<'_>, now: u64) {
    let mut space = [0; 4608];
    while g.poll_transmit(now, &mut space).is_some() {}
}

impl SoftDevice {
    /// Whether datagrams, and with them requests of the connection manager, reach an address.
    ///
    /// # Errors
    /// [`Error::Unsupported`]: they go by way of a router that does not carry them.
    pub(super) fn check_datagrams(&self, to: &AhAttr) -> Result<()> {
        let near = self.via.is_none() || self.named_by(to).same_host(&self.local);
        if near || self.relays() {
            Ok(())
        } else {
            Err(no_datagrams())
        }
    }

    /// Before a control call takes the lock: asks the router for a link to the peer that an address
    /// vector and a queue pair number name, unless there is one, or none is needed.
    ///
    /// # Errors
    /// As [`Asker::route`].
    pub(super) fn ask_way(&self, ah: &AhAttr, dest_qpn: Option<u32>) -> Result<Option<Way<'_>>> {
        let (Some(via), Some(qpn)) = (&self.via, dest_qpn) else { return Ok(None) };
        let to = self.named_by(ah);
        let mut asker = via.asker();
        let mut held = self.lock_held();
        let own = to.same_host(&self.local) && held.guard.owns(qpn);
        let linked = |shm: &mut ShmPort| shm.linked(&to, block_of(qpn)).is_some();
        if own || held.port().shm.as_mut().is_some_and(linked) {
            return Ok(None);
        }
        drop(held);
        let traffic_class = ah.traffic_class.into();
        let route = Route { gid: to.ip, sgid_index: 0, qpn, traffic_class };
        let answer = self.ask(&mut asker, |asker| asker.route(route));
        Ok(Some(Way { direct: answer?, _asker: asker }))
    }

    /// Asks the router, without the engine's lock.
    pub(super) fn ask<R>(
        &self,
        asker: &mut Asker<'_>,
        question: impl FnOnce(&mut Asker<'_>) -> R,
    ) -> R {
        let answer = question(asker);
        // What came meanwhile has woken nobody for good: whoever looked found this thread asking.
        let mut held = self.lock_held();
        let (port, mut came) = (held.port(), false);
        if let Some(shm) = &mut port.shm {
            asker.arrivals(|arrival| {
                came = true;
                self.arrive(shm, now_ns(), arrival);
            });
        }
        if came {
            (port.tend_at, port.due_at) = (0, 0);
        }
        drop(held);
        if came {
            self.run(Round::Full);
        }
        answer
    }

    /// Tells the engine how a peer is reached: within it, over a link that stands, over the one that
    /// the router has just made, or by its rings.
    pub(super) fn choose_way(
        &self,
        g: &mut Guard<'_>,
        port: &mut Port,
        to: &Endpoint,
        dest_qpn: Option<u32>,
        way: Option<Way<'_>>,
    ) -> Result<()> {
        let own = *to == self.local;
        let relays = port.relay.is_some();
        let Some(qpn) = dest_qpn else {
            return if own || relays { Ok(()) } else { Err(no_datagrams()) };
        };
        if own && g.owns(qpn) {
            return Ok(());
        }
        let Some(shm) = &mut port.shm else { return Err(Error::NoDevice) };
        let link = match way {
            Some(Way { direct: Some(direct), .. }) => {
                let peer = Peer { at: *to, session: direct.routed.peer, loans: direct.loans() };
                let link = shm.adopt(&peer, block_of(qpn), direct.fd, &self.waiter);
                Some(link.map_err(|e| hung_up(e, qpn))?)
            }
            Some(Way { direct: None, .. }) => None,
            // A call that cannot ask, or a link that ended meanwhile.
            None => shm.linked(to, block_of(qpn)),
        };
        if link.is_none() && !relays {
            return Err(refuse!(
                Os(libc::ENETUNREACH),
                "queue pair {qpn:#x}: there is neither a link to it nor a router that relays"
            ));
        }
        g.set_elsewhere(own);
        g.set_link(link);
        Ok(())
    }

    /// Takes what the router has brought: links of others, and the ends of some.
    pub(super) fn hear_router(&self, shm: &mut ShmPort, now: u64) {
        let Some(via) = &self.via else { return };
        let ends = via.hear(|arrival| self.arrive(shm, now, arrival));
        if ends {
            // It would wake every sleeper at once.
            let _ = self.waiter.remove_socket(via.fd());
        }
    }
}

impl SoftDevice {
    fn arrive(&self, shm: &mut ShmPort, now: u64, arrival: Arrival) {
        match arrival {
            Arrival::Link { gid, peer, loans, fd } => {
                let at = Endpoint::new(gid, 0, self.local.port);
                shm.admit(now, &Peer { at, session: peer, loans }, fd, &self.waiter);
            }
            Arrival::Revoked { peer } => shm.part_with(peer, true),
        }
    }
}

fn block_of(qpn: u32) -> u16 {
    (qpn / QPN_UNIT) as u16
}

/// The other end may have closed the link's socket before anything was said on it.
#[cold]
fn hung_up(e: Error, qpn: u32) -> Error {
    match e {
        Error::Os(libc::EPIPE | libc::ECONNRESET) => refuse!(
            Os(libc::EHOSTUNREACH),
            "the process of queue pair {qpn:#x} has hung up on the link: it is gone, or has no \
             descriptor left for it"
        ),
        e => e,
    }
}

#[cold]
fn no_datagrams() -> Error {
    refuse!(
        Unsupported,
        "peer: datagrams (UD), and with them rdma_cm, reach other processes by way of a router that \
         relays, and this device has none, or it is gone"
    )
}
