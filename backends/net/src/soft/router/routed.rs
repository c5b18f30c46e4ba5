//! Peers over a router ([`crate::via`]). A session takes the place of a socket and of names in the
//! file system: it gives the address, the queue pair numbers and, for each connected queue pair, a
//! link to the process at the other end.
//!
//! Requests to the router are made without the engine's lock, whose holder never waits for the
//! router.

use crate::addr::Endpoint;
use crate::clock::now_ns;
use crate::shm::relay::Relay;
use crate::shm::{Peer, ShmPort};
use crate::soft::router::outage;
use crate::soft::router::relayed;
use crate::soft::router::status_place::StatusPlace;
use crate::soft::{services, PortState, SoftEngine};
use crate::via::find::SocketPath;
use crate::via::proto::Route;
use crate::via::session::{Arrival, Direct, RequestGuard, Session};
use crate::wait::Waiter;
use gdrcore_core::config::{qpn_block, Config, QPN_UNIT};
use gdrcore_core::engine::EngineGuard;
use gdrcore_core::error::{Error, Result};
use gdrcore_core::refuse;
use gdrcore_core::verbs::types::AhAttr;
use std::os::fd::AsRawFd;

/// The most ended sessions whose links are still open. The links of further ones are closed at
/// once.
type Revoked = heapless::Vec<u32, 32>;

/// What a device over a router keeps about it, protected by the engine's lock.
#[derive(Default)]
pub(in crate::soft) struct RouterState {
    /// The rings to and from the router; `None`: there are none, or they are lost.
    pub(in crate::soft) relay: Option<Relay>,
    /// Memory beside the rings; `None`: not a device over a router.
    pub(in crate::soft) room: Option<relayed::Room>,
    /// Where other processes of the user ask for the device's status.
    pub(in crate::soft) status: Option<StatusPlace>,
    /// Listeners that the router knows of.
    pub(in crate::soft) services: services::Services,
    /// A router that is away.
    pub(in crate::soft) outage: outage::Outage,
    /// Sessions that have ended and whose links are still to be closed.
    pub(in crate::soft) revoked: Revoked,
}

/// The router's answer, with a link that is not adopted yet, if the router made one. While the
/// answer lives no other thread can make a request, so two threads do not make two links for one
/// peer.
pub(in crate::soft) struct RouterLink<'s> {
    /// `None`: the peer is reached over the router's rings.
    direct: Option<Direct>,
    _asker: RequestGuard<'s>,
}

/// Opens a session, and puts its queue pair numbers into the engine's configuration. Writes the
/// session and its rings, if any, into `out`.
///
/// # Errors
/// As [`Session::open`]; [`Error::Invalid`]: the program names queue pair numbers of its own.
#[inline(never)]
pub(in crate::soft) fn open(
    at: &SocketPath,
    core: &mut Config,
    waiter: &Waiter,
    out: (&mut Option<Session>, &mut Option<Relay>),
) -> Result<()> {
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
    (*out.0, *out.1) = (Some(session), relay);
    Ok(())
}

/// Drops packets that would leave by a socket, which this device lacks: queue pairs whose link is
/// lost fail by their timers, as over a network that loses all packets.
#[cold]
pub(in crate::soft) fn discard(g: &mut EngineGuard<'_>, now: u64) {
    let mut space = [0; 4608];
    while g.poll_transmit(now, &mut space).is_some() {}
}

/// Control: requests to a router, and its unsolicited messages.
impl SoftEngine {
    /// Checks that datagrams, and so the connection manager, reach an address.
    ///
    /// # Errors
    /// [`Error::Unsupported`]: the router does not carry them.
    pub(in crate::soft) fn check_datagrams(&self, to: &AhAttr) -> Result<()> {
        let near = self.via.is_none() || self.named_by(to).same_host(&self.local);
        if near || self.relays() {
            Ok(())
        } else {
            Err(no_datagrams())
        }
    }

    /// Requests a link from the router, to the peer of an address vector and a queue pair number,
    /// unless there is one or none is needed. A control call does this before it takes the lock.
    ///
    /// # Errors
    /// As [`RequestGuard::route`].
    pub(in crate::soft) fn ask_router(
        &self,
        ah: &AhAttr,
        dest_qpn: Option<u32>,
    ) -> Result<Option<RouterLink<'_>>> {
        let (Some(via), Some(qpn)) = (&self.via, dest_qpn) else { return Ok(None) };
        let to = self.named_by(ah);
        let mut request_guard = via.request_guard();
        let mut held = self.lock_control();
        let own = to.same_host(&self.local) && held.owns(qpn);
        let linked = |shm: &mut ShmPort| shm.find_link(&to, qpn_block(qpn)).is_some();
        if own || held.port().shm.as_mut().is_some_and(linked) {
            return Ok(None);
        }
        drop(held);
        let traffic_class = ah.traffic_class.into();
        let route = Route { gid: to.ip, sgid_index: 0, qpn, traffic_class };
        let answer = self.ask(&mut request_guard, |request_guard| request_guard.route(route));
        Ok(Some(RouterLink { direct: answer?, _asker: request_guard }))
    }

    /// Makes a request to the router, without the engine's lock.
    pub(in crate::soft) fn ask<R>(
        &self,
        request_guard: &mut RequestGuard<'_>,
        question: impl FnOnce(&mut RequestGuard<'_>) -> R,
    ) -> R {
        let answer = question(request_guard);
        // A thread that other messages woke found this request open and left them, so this thread
        // handles them.
        let mut held = self.lock_control();
        let (port, mut came) = (held.port(), false);
        if let PortState { shm: Some(shm), router, .. } = port {
            request_guard.arrivals(|arrival| {
                came = true;
                self.on_arrival(shm, &mut router.revoked, now_ns(), arrival);
            });
        }
        if came {
            port.schedule.look_at_links();
        }
        drop(held);
        if came {
            self.try_round(None);
        }
        answer
    }

    /// Sets a peer's path in the engine: within the engine, over an existing link, over the link
    /// that the router has just made, or over its rings.
    pub(in crate::soft) fn choose_router_path(
        &self,
        g: &mut EngineGuard<'_>,
        port: &mut PortState,
        to: &Endpoint,
        dest_qpn: Option<u32>,
        way: Option<RouterLink<'_>>,
    ) -> Result<()> {
        let own = *to == self.local;
        let relays = port.relays();
        let Some(qpn) = dest_qpn else {
            return if own || relays { Ok(()) } else { Err(no_datagrams()) };
        };
        if own && g.owns(qpn) {
            return Ok(());
        }
        let Some(shm) = &mut port.shm else { return Err(Error::NoDevice) };
        let link = match way {
            Some(RouterLink { direct: Some(direct), .. }) => {
                let (session, may_grant) = (direct.routed.peer, direct.may_grant());
                let peer = Peer { at: *to, session, may_grant };
                let link = shm.adopt(&peer, qpn_block(qpn), direct.fd, &self.waiter);
                Some(link.map_err(|e| closed_link(e, qpn))?)
            }
            Some(RouterLink { direct: None, .. }) => None,
            // The call could make no request, or the link has ended since.
            None => shm.find_link(to, qpn_block(qpn)),
        };
        if link.is_none() && !relays {
            return Err(refuse!(
                Os(libc::ENETUNREACH),
                "queue pair {qpn:#x}: there is neither a link to it nor a router that relays"
            ));
        }
        g.set_own_address_remote(own);
        g.set_link(link);
        Ok(())
    }

    /// Handles the router's messages: links of other sessions, and revoked ones.
    pub(in crate::soft) fn poll_router(
        &self,
        g: &mut EngineGuard<'_>,
        port: &mut PortState,
        now: u64,
    ) {
        let Some(via) = &self.via else { return };
        let PortState { shm: Some(shm), router, .. } = port else { return };
        let ends =
            via.receive_all(|arrival| self.on_arrival(shm, &mut router.revoked, now, arrival));
        if ends {
            // A closed socket is always readable and would end every sleep at once.
            let _ = self.waiter.remove_socket(via.fd());
        }
        if !port.router.revoked.is_empty() {
            self.end_revoked(g, port, now);
        }
        self.follow_router(g, port, now);
    }

    /// Closes the links of ended sessions. Frames that they had written before are read: one may be
    /// the ACK of a process that has ended, because the router may learn of the end first.
    #[cold]
    fn end_revoked(&self, g: &mut EngineGuard<'_>, port: &mut PortState, now: u64) {
        self.drain_links(g, port, now);
        if let PortState { shm: Some(shm), router, .. } = port {
            core::mem::take(&mut router.revoked)
                .iter()
                .for_each(|&peer| shm.close_session(peer, true));
        }
    }
}

/// Control and data: links that a router makes.
impl SoftEngine {
    /// Takes a link. A session that has ended is noted for [`SoftEngine::end_revoked`].
    fn on_arrival(&self, shm: &mut ShmPort, revoked: &mut Revoked, now: u64, arrival: Arrival) {
        match arrival {
            Arrival::Link { gid, peer, may_grant, fd } => {
                // Messages come in order. This link is newer than the revocation, so the older
                // links end now.
                if revoked.contains(&peer) {
                    revoked.retain(|&over| over != peer);
                    shm.close_session(peer, true);
                }
                let at = Endpoint::new(gid, 0, self.local.port);
                shm.admit(now, &Peer { at, session: peer, may_grant }, fd, &self.waiter);
            }
            Arrival::Revoked { peer } => {
                if revoked.push(peer).is_err() {
                    shm.close_session(peer, true);
                }
            }
        }
    }
}

/// The other end may have closed the link's socket before the hello.
#[cold]
fn closed_link(e: Error, qpn: u32) -> Error {
    match e {
        Error::Os(libc::EPIPE | libc::ECONNRESET) => refuse!(
            Os(libc::EHOSTUNREACH),
            "the process of queue pair {qpn:#x} has closed the \
             link: it has ended, or has no descriptor left for it"
        ),
        e => e,
    }
}

#[cold]
fn no_datagrams() -> Error {
    refuse!(
        Unsupported,
        "peer: datagrams (UD), and with them rdma_cm, reach other processes only through a router \
         that relays, and this device has none, or it has ended"
    )
}
