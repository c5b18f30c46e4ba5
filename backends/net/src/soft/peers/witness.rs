//! Causes of silence of peers of this host.
//!
//! The engine knows only that a peer is silent. For a peer behind a link, this host knows that the
//! process lives, and whether it reads its ring. For a peer with a socket of this host, it knows
//! whether the process reads the socket. So the error of a failed request can say that the peer
//! does not poll or has no such queue pair, not only that it may be dead. A process that has ended
//! may have left a receipt of what it had accepted.
//!
//! With `GDRC_VERBOSE=1` in the environment, failed connections are also printed, at both ends.

use crate::addr::Endpoint;
use crate::clock::now_ns;
use crate::reason::{is_verbose, say};
use crate::sock_diag::{receiving_user, unread, Unread};
use crate::soft::peers::ports::LookUps;
use crate::soft::{endpoint, peer_addr, PortState};
use gdrcore_core::cm::types::{cm_event, CmEvent};
use gdrcore_core::cm::{Refusal, REFUSALS};
use gdrcore_core::config::qpn_block;
use gdrcore_core::engine::EngineGuard;
use gdrcore_core::error::Error;
use gdrcore_core::roce::peer::{Path, PeerAddr};
use gdrcore_core::roce::witness::Suspect;
use gdrcore_core::verbs::cause::{rejection, Cause, CauseCode};
use gdrcore_core::verbs::types::{qp_type, AhAttr};
use std::net::{IpAddr, Ipv6Addr};

/// Adds causes for peers that are about to be given up. Cost: one comparison if there is no such
/// peer.
#[inline]
pub(in crate::soft) fn testify(g: &mut EngineGuard<'_>, port: &PortState, now: u64) {
    if g.has_suspects() {
        testify_all(g, port, now);
    }
}

#[cold]
fn testify_all(g: &mut EngineGuard<'_>, port: &PortState, now: u64) {
    while let Some(Suspect { qi, peer, path, dest_qpn }) = g.next_suspect() {
        let drained = |link| port.shm.as_ref().and_then(|shm| shm.is_drained(link));
        let cause = match path {
            Path::Link(link) => drained(link).map(cause_of_silence),
            Path::Port => match unread(&endpoint(&peer)) {
                Unread::Taken => Some(cause_of_silence(true)),
                Unread::Waits => Some(cause_of_silence(false)),
                Unread::Nobody => Some(CauseCode::PeerUnreachable),
                Unread::Unknown => None,
            },
            Path::Loopback | Path::Lost => None,
        };
        let left = |qpn| {
            let block = qpn_block(qpn);
            port.member.as_ref()?.receipts_of(&endpoint(&peer), block, false)?.find(qpn)
        };
        if let Some(psn) = dest_qpn.filter(|_| path == Path::Port).and_then(left) {
            g.take_receipt(now, qi, psn);
        }
        g.testify(now, qi, cause);
    }
}

/// The cause of a peer's silence, by whether its process reads its input.
fn cause_of_silence(reads: bool) -> CauseCode {
    match reads {
        true => CauseCode::Unanswered,
        false => CauseCode::NotPolled,
    }
}

/// Notes why a connection request got no answer: the peer's process may live and not poll.
#[cold]
pub(in crate::soft) fn explain(g: &mut EngineGuard<'_>, now: u64, e: &CmEvent) {
    let AhAttr { dgid, scope_id, udp_port, .. } = e.peer;
    let peer = PeerAddr { gid: dgid, scope_id, port: udp_port, ..PeerAddr::default() };
    let peer = endpoint(&peer);
    if e.event != cm_event::UNREACHABLE {
        return;
    }
    if e.status == -Error::TimedOut.errno() && unread(&peer) == Unread::Waits {
        g.cm_note(now, e, CauseCode::NotPolled, 0, 0);
    } else if e.status == -libc::ECONNREFUSED && has_socket(&peer) {
        g.cm_note(now, e, CauseCode::Firewall, libc::ECONNREFUSED as u64, 0);
    }
}

/// Whether this host has a socket at the very address that an ICMP error calls unreachable. Cost:
/// four system calls.
#[cold]
fn has_socket(at: &Endpoint) -> bool {
    receiving_user(&Endpoint { port: 0, ..*at }, at).is_some()
}

/// Notes that the network, or a firewall of this host, has refused packets to a destination.
/// Anybody can send such messages, so look-ups of the destination's socket get only a share of the
/// time, as look-ups of ports do ([`super::ports`]).
#[cold]
pub(in crate::soft) fn note_refusal(
    g: &mut EngineGuard<'_>,
    look_ups: &mut LookUps,
    now: u64,
    dst: &Endpoint,
    errno: i32,
) {
    let may_be_there = errno == libc::ECONNREFUSED;
    match may_be_there && look_ups.take(now_ns, || has_socket(dst)) == Some(true) {
        true => g.peer_rejected(now, &peer_addr(dst), errno),
        false => g.peer_unreachable(now, &peer_addr(dst), errno),
    }
}

fn ip(gid: &[u8; 16]) -> IpAddr {
    Ipv6Addr::from(*gid).to_canonical()
}

/// The lines to be printed of failed connections. They are collected under the engine's lock and
/// printed without it, because standard error may be a pipe that no process reads.
#[derive(Default)]
pub(in crate::soft) struct News {
    refusals: heapless::Vec<Refusal, REFUSALS>,
    cause: Cause,
}

/// Takes the requests that this side has refused; `cause`: of the event.
pub(in crate::soft) fn gather(g: &mut EngineGuard<'_>, cause: Cause) -> News {
    let mut news = News { cause, ..News::default() };
    while let Some(r) = g.cm().take_refusal() {
        // Further refusals are counted, but not printed.
        let _ = news.refusals.push(r);
    }
    news
}

/// Prints the lines if the environment enables it.
pub(in crate::soft) fn print(news: &News, event: Option<&CmEvent>) {
    let refused = event.filter(|e| matches!(e.event, cm_event::REJECTED | cm_event::UNREACHABLE));
    if news.refusals.is_empty() && refused.is_none() || !is_verbose() {
        return;
    }
    for r in &news.refusals {
        let words = rejection(r.reason.into(), r.datagram);
        let (peer, port, reason) = (ip(&r.peer), r.port, r.reason);
        say(format_args!("rejected {peer}, which requested port {port}: reason {reason}: {words}"));
    }
    let Some(e) = refused else { return };
    let (peer, port) = (ip(&e.peer.dgid), e.remote_port);
    if e.event == cm_event::REJECTED {
        let words = rejection(e.status.unsigned_abs().into(), e.qp_type == qp_type::UD);
        say(format_args!(
            "{peer} rejected the connection with its port {port}: reason {}: {words}",
            e.status
        ));
    } else {
        say(format_args!(
            "no connection with {peer}, port {port}: errno {}: {}",
            -e.status, news.cause
        ));
    }
}
