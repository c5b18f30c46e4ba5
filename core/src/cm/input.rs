//! Messages in. Anything that a network can bring is legal input here.

use super::admit::{NoPlace, PeerKey};
use super::conn::{owe, Id, State};
use super::mad::{
    Dreq, IpHeader, Mad, Message, Mra, Rej, Rep, Req, SidrRep, SidrReq, IP_HEADER_LEN,
};
use super::types::{cm_event, port_space, reject, sidr_status};
use super::{
    timeout_ns, Cm, Refusal, ReplyKind, MAX_RETRIES, REP_RETRIES, RESPONSE_TIMEOUT,
    SERVICE_TIMEOUT, TIMEOUT_MAX,
};
use crate::roce::peer::PeerAddr;
use crate::verbs::types::qp_type;
use crate::wire::is_default_partition;

pub(super) fn is_port_space(ps: u16) -> bool {
    matches!(ps, port_space::IB | port_space::TCP | port_space::UDP)
}

/// The port space and port of a service id of rdma_cm's.
pub(super) fn service(id: u64) -> Option<(u16, u16)> {
    let (ps, port) = (u16::try_from(id >> 16).ok()?, id as u16);
    is_port_space(ps).then_some((ps, port))
}

/// The port that a request asks for, in a port space for requests of its kind.
pub(super) fn asked(service_id: u64, datagram: bool) -> Option<(u16, u16)> {
    service(service_id).filter(|&(ps, _)| (ps == port_space::UDP) == datagram)
}

/// A peer that may have restarted is asked at most this often.
const DOUBT_NS: u64 = 1_000_000_000;
/// Delay of the question.
const DOUBT_DELAY_NS: u64 = 10_000_000;
/// Shortest time, by its code, in which a REP is to be answered: 17 ms.
const RESPONSE_TIMEOUT_MIN: u8 = 12;
/// Shortest time-wait.
const TIME_WAIT_MIN_NS: u64 = 100_000_000;

impl Cm {
    /// Takes a message from `from`, whose port is where answers go.
    pub fn handle_mad(&mut self, now: u64, from: &PeerAddr, bytes: &[u8]) {
        self.counters.rcvd += 1;
        if !self.keep_other_mad(from, bytes) {
            self.dispatch(now, from, bytes);
        }
    }

    pub(super) fn dispatch(&mut self, now: u64, from: &PeerAddr, bytes: &[u8]) {
        let Ok(mad) = Mad::parse(bytes) else {
            self.counters.dropped += 1;
            return;
        };
        if self.keep_early(now, from, &mad.message, bytes) {
            return;
        }
        let taken = match mad.message {
            Message::Req(m) => self.on_req(now, from, mad.tid, &m),
            Message::Mra(m) => self.on_mra(now, from, &m),
            Message::Rej(m) => self.on_rej(now, from, &m),
            Message::Rep(m) => self.on_rep(from, mad.tid, &m),
            Message::Rtu(m) => self.on_rtu(now, from, m.remote_comm_id, m.local_comm_id),
            Message::Dreq(m) => self.on_dreq(now, from, mad.tid, &m),
            Message::Drep(m) => self.on_drep(now, from, m.remote_comm_id, m.local_comm_id),
            Message::SidrReq(m) => self.on_sidr_req(now, from, mad.tid, &m),
            Message::SidrRep(m) => self.on_sidr_rep(from, &m),
        };
        if taken.is_none() {
            self.counters.dropped += 1;
        }
    }

    /// The conversation with both ids and the source address.
    fn named(&self, local_id: u32, remote_id: u32, from: &PeerAddr) -> Option<usize> {
        self.by_local_id(local_id).filter(|&i| self.ids[i].is_named(local_id, remote_id, from))
    }

    /// A passive conversation, by the peer's communication id.
    pub(super) fn by_remote_id(
        &self,
        remote_id: u32,
        from: &PeerAddr,
        datagram: bool,
    ) -> Option<usize> {
        let is = |id: &Id| {
            id.passive && id.remote_id == remote_id && (id.ps == port_space::UDP) == datagram
        };
        self.find(from, PeerKey::RemoteId(remote_id), is)
    }

    pub(super) fn listener(&self, ps: u16, port: u16) -> Option<usize> {
        self.listening.iter().find(|&i| self.ids[i].ps == ps && self.ids[i].port == port)
    }

    /// Whether a port had a listener a moment ago, in any port space: the next one may be for
    /// datagrams.
    pub(super) fn is_former(&self, now: u64, port: u16) -> bool {
        self.former_ports.iter().any(|&(p, until)| p == port && now < until)
    }

    fn on_req(&mut self, now: u64, from: &PeerAddr, tid: u64, m: &Req<'_>) -> Option<()> {
        if let Some(i) = self.by_remote_id(m.local_comm_id, from, false) {
            // Linux cm.c cm_dup_req_handler: A REQ that comes again is answered as before, or by an
            // MRA while the program decides.
            match self.ids[i].state {
                State::ReqRcvd => {
                    self.ids[i].about = 0;
                    self.owe(i, owe::MRA);
                }
                State::RepSent => self.owe(i, owe::REP),
                State::Rejecting => self.owe(i, owe::REJ),
                _ => return None,
            }
            return Some(());
        }
        // IBTA 12.6.7.2: A REQ that cannot be accepted is rejected with the reason that the
        // standard has for it.
        let refuse = |cm: &mut Cm, reason, info| {
            let port = asked(m.service_id, false).map_or(0, |(_, port)| port);
            cm.note_refusal(Refusal { peer: from.gid, port, reason, datagram: false });
            let (local_id, remote_id, about) = (0, m.local_comm_id, 0);
            cm.reply(from, tid, ReplyKind::Rej { local_id, remote_id, about, reason, info });
        };
        let qp_type = match m.transport {
            0 => qp_type::RC,
            1 => qp_type::UC,
            _ => {
                refuse(self, reject::INVALID_TRANSPORT, None);
                return Some(());
            }
        };
        let header = IpHeader::parse(m.private_data);
        let asked = asked(m.service_id, false);
        let listener = asked.and_then(|(ps, port)| self.listener(ps, port));
        let (Some((ps, port)), Some(l), Some(header)) = (asked, listener, header) else {
            refuse(self, reject::INVALID_SERVICE_ID, None);
            return Some(());
        };
        // The REQ must name the path by which it came, not one to a third party.
        if m.local_gid != from.gid || header.src != from.gid || m.remote_gid != self.local.gid {
            refuse(self, reject::INVALID_GID, None);
            return Some(());
        }
        if !is_default_partition(m.pkey) || m.local_qpn <= 1 {
            refuse(self, reject::UNSUPPORTED, None);
            return Some(());
        }
        let path_mtu = u32::from(m.path_mtu);
        if path_mtu == 0 || path_mtu > self.local.path_mtu {
            let largest = self.local.path_mtu as u8;
            refuse(self, reject::INVALID_MTU, Some(largest));
            return Some(());
        }
        // IBTA 12.9.8.3.1: A REQ from a queue pair that has a connection is rejected as stale, and
        // the old connection ends unless its peer confirms it.
        if let Some(old) = self.stale(from, m) {
            refuse(self, reject::STALE_CONNECTION, None);
            self.on_stale(now, old);
            return Some(());
        }
        let mut id = Id::new(ps, 0);
        id.state = State::ReqRcvd;
        id.passive = true;
        id.port = port;
        id.remote_port = header.src_port;
        // Linux cm.c cm_format_paths_from_req: Answers have the class of the REQ's path.
        id.peer = from.reply_addr(m.traffic_class);
        id.tid = tid;
        id.remote_id = m.local_comm_id;
        id.remote_guid = m.local_ca_guid;
        id.remote_qpn = m.local_qpn;
        id.sq_psn = m.starting_psn;
        id.qp_type = qp_type;
        id.path_mtu = path_mtu;
        // Linux cm.c cm_req_handler: One side serves as many READs and atomics as the other may
        // have outstanding.
        id.initiator_depth = m.responder_resources.min(self.local.max_rd_atomic);
        id.responder_resources = m.initiator_depth.min(self.local.max_rd_atomic);
        id.retry_count = m.retry_count;
        id.rnr_retry = m.rnr_retry_count;
        id.peer_srq = m.srq;
        id.ack_timeout = m.local_ack_timeout.clamp(1, TIMEOUT_MAX);
        // A peer that repeats its REQ sooner than this only sends a duplicate.
        id.response_timeout =
            m.local_cm_response_timeout.clamp(RESPONSE_TIMEOUT_MIN, RESPONSE_TIMEOUT + 1);
        id.retries_left = m.max_cm_retries;
        id.mras_left = MAX_RETRIES;
        id.data_in.set(m.private_data.get(IP_HEADER_LEN..).unwrap_or(&[]));
        let admitted = self.admit(now, l, from, id);
        if admitted == Err(NoPlace::Full) {
            refuse(self, reject::NO_RESOURCES, None);
        }
        admitted.ok()
    }

    /// A connection to the QP that a new request comes from.
    fn stale(&self, from: &PeerAddr, m: &Req<'_>) -> Option<usize> {
        self.find(from, PeerKey::RemoteQpn(m.local_qpn), |id| {
            let connected = matches!(
                id.state,
                State::ReqRcvd | State::RepSent | State::RepRcvd | State::Established
            );
            connected
                && id.ps != port_space::UDP
                && id.remote_qpn == m.local_qpn
                && id.peer.port == from.port
                && (!id.passive || id.remote_guid == m.local_ca_guid)
        })
    }

    /// A REQ came from a QP with which we have a connection: the peer has restarted, or the REQ is
    /// forged. A copy of our REP finds out: a peer that has the connection answers by an RTU,
    /// another one refuses the REP or is silent. If the peer was the passive side there is no
    /// message to ask by, and our program learns from failing requests.
    fn on_stale(&mut self, now: u64, i: usize) {
        if self.is_unheard(i) {
            return self.free(i);
        }
        let id = &mut self.ids[i];
        if id.state != State::Established {
            return self.end_with_event(i, cm_event::DISCONNECTED);
        }
        let may_doubt = id.since == 0 || now >= id.since.saturating_add(DOUBT_NS);
        if id.passive && !id.doubted && may_doubt {
            id.doubted = true;
            id.since = now.max(1);
            id.retries_left = REP_RETRIES;
            // Later, because the refusal of the REQ is the one answer that a message draws.
            self.wheel.arm(i, now.saturating_add(DOUBT_DELAY_NS));
        }
    }

    fn on_rep(&mut self, from: &PeerAddr, tid: u64, m: &Rep<'_>) -> Option<()> {
        let known = self.by_local_id(m.remote_comm_id).filter(|&i| {
            let id = &self.ids[i];
            !id.passive && id.ps != port_space::UDP && id.peer.gid == from.gid
        });
        // Linux cm.c cm_rep_handler: A REP that answers no REQ is rejected: its communication id is
        // invalid.
        let Some(i) = known else {
            self.note_refusal(Refusal {
                peer: from.gid,
                reason: reject::INVALID_COMM_ID,
                ..Refusal::default()
            });
            let (local_id, remote_id) = (m.remote_comm_id, m.local_comm_id);
            let reason = reject::INVALID_COMM_ID;
            self.reply(
                from,
                tid,
                ReplyKind::Rej { local_id, remote_id, about: 1, reason, info: None },
            );
            return Some(());
        };
        let id = &mut self.ids[i];
        match id.state {
            State::ReqSent if m.local_qpn > 1 => {
                id.remote_id = m.local_comm_id;
                id.remote_guid = m.local_ca_guid;
                id.remote_qpn = m.local_qpn;
                id.sq_psn = m.starting_psn;
                id.initiator_depth = id.initiator_depth.min(m.responder_resources);
                id.rnr_retry = m.rnr_retry_count;
                id.peer_srq = m.srq;
                id.data_in.set(m.private_data);
                self.store_peer_hashes(i);
                self.drop_owed(i);
                self.enter(i, State::RepRcvd);
                self.raise(i, cm_event::CONNECT_RESPONSE);
            }
            // Linux cm.c cm_dup_rep_handler: A REP that comes again is answered by the same RTU, or
            // by an MRA while the program decides.
            State::RepRcvd if id.remote_id == m.local_comm_id => {
                id.about = 1;
                self.owe(i, owe::MRA);
            }
            State::Established if id.remote_id == m.local_comm_id => self.owe(i, owe::RTU),
            _ => return None,
        }
        Some(())
    }

    fn on_rtu(&mut self, now: u64, from: &PeerAddr, local_id: u32, remote_id: u32) -> Option<()> {
        let i = self.named(local_id, remote_id, from)?;
        let id = &mut self.ids[i];
        match id.state {
            // Linux cm.c cm_rtu_handler: An RTU establishes the connection at the passive side.
            State::RepSent => self.establish_passive(now, i),
            State::Established => {
                if core::mem::take(&mut id.doubted) {
                    self.wheel.cancel(i);
                }
            }
            _ => return None,
        }
        Some(())
    }

    fn on_mra(&mut self, now: u64, from: &PeerAddr, m: &Mra) -> Option<()> {
        let i = self.by_local_id(m.remote_comm_id)?;
        let id = &mut self.ids[i];
        if id.peer.gid != from.gid || id.mras_left == 0 {
            return None;
        }
        match (id.state, m.message) {
            (State::ReqSent, 0) => {}
            (State::RepSent, 1) if id.remote_id == m.local_comm_id => {}
            _ => return None,
        }
        // Linux cm.c cm_mra_handler: An MRA makes its receiver wait as long as it says, up to a
        // bound.
        id.network_errno = 0;
        id.mras_left -= 1;
        id.retries_left = id.retries_left.max(1);
        let wait =
            timeout_ns(id.response_timeout) + timeout_ns(m.service_timeout.min(SERVICE_TIMEOUT));
        self.wheel.arm(i, now.saturating_add(wait));
        self.note_receives(now, i);
        Some(())
    }

    fn on_rej(&mut self, now: u64, from: &PeerAddr, m: &Rej<'_>) -> Option<()> {
        let i = if m.remote_comm_id != 0 {
            // A peer that refuses a REQ may have no communication id of its own.
            let i = self.by_local_id(m.remote_comm_id)?;
            let id = &self.ids[i];
            let ours = id.peer.gid == from.gid
                && (id.remote_id == m.local_comm_id || id.state == State::ReqSent);
            self.note_receives(now, ours.then_some(i)?);
            i
        } else {
            // A peer may give up before it knows our id.
            let begins = |i: &usize| matches!(self.ids[*i].state, State::ReqRcvd | State::RepSent);
            self.by_remote_id(m.local_comm_id, from, false)
                .filter(begins)
                .filter(|_| m.reason == reject::TIMEOUT)?
        };
        if self.is_unheard(i) {
            self.free(i);
            return Some(());
        }
        let id = &mut self.ids[i];
        let event = match id.state {
            State::ReqSent | State::ReqRcvd | State::RepSent | State::RepRcvd => {
                // Linux cm.c cm_rej_handler: A REJ ends the attempt with its reason and private
                // data.
                id.status = i32::from(m.reason);
                id.data_in.set(m.private_data);
                // Events of an accepted connection that the program has not taken are void.
                self.events.clear(i);
                self.counters.rejects_rcvd += 1;
                cm_event::REJECTED
            }
            State::Established => cm_event::DISCONNECTED,
            _ => return None,
        };
        self.end_with_event(i, event);
        Some(())
    }

    fn on_dreq(&mut self, now: u64, from: &PeerAddr, tid: u64, m: &Dreq) -> Option<()> {
        let Some(i) = self.named(m.remote_comm_id, m.local_comm_id, from) else {
            // Linux cm.c cm_issue_drep: A DREQ for a connection that is over or unknown is answered
            // by a DREP.
            // Over for this side already: the DREP lets the peer finish. It needs no state, and is
            // no larger than the DREQ.
            self.reply(
                from,
                tid,
                ReplyKind::Drep { local_id: m.remote_comm_id, remote_id: m.local_comm_id },
            );
            return None;
        };
        let id = &mut self.ids[i];
        if id.local_qpn != m.remote_qpn || id.ps == port_space::UDP {
            return None;
        }
        self.note_receives(now, i);
        let id = &mut self.ids[i];
        match id.state {
            // IBTA 12.10.8: A DREQ ends the connection at both sides and is answered by a DREP.
            State::RepSent | State::Established | State::DreqSent => {
                id.tid = tid;
                self.drop_owed(i);
                self.owe(i, owe::DREP);
                self.enter_time_wait(now, i, 0);
            }
            State::TimeWait => {
                id.tid = tid;
                self.owe(i, owe::DREP);
            }
            _ => return None,
        }
        Some(())
    }

    fn on_drep(&mut self, now: u64, from: &PeerAddr, local_id: u32, remote_id: u32) -> Option<()> {
        let i = self.named(local_id, remote_id, from)?;
        if self.ids[i].state != State::DreqSent {
            return None;
        }
        self.note_receives(now, i);
        self.drop_owed(i);
        self.enter_time_wait(now, i, 0);
        Some(())
    }

    /// Ends a connection: raises the event, and waits for late packets. `status`: that of the
    /// event; 0: the peer has said so.
    pub(super) fn enter_time_wait(&mut self, now: u64, i: usize, status: i32) {
        self.ids[i].status = status;
        self.raise(i, cm_event::DISCONNECTED);
        // Linux cm.c cm_enter_timewait: After its end a connection stays in time-wait for twice the
        // ACK timeout.
        let wait = 2 * timeout_ns(self.ids[i].ack_timeout.min(TIMEOUT_MAX));
        self.enter(i, State::TimeWait);
        self.wheel.arm(i, now.saturating_add(wait.max(TIME_WAIT_MIN_NS)));
    }

    fn on_sidr_req(&mut self, now: u64, from: &PeerAddr, tid: u64, m: &SidrReq<'_>) -> Option<()> {
        if let Some(i) = self.by_remote_id(m.request_id, from, true) {
            match self.ids[i].state {
                // SIDR has no MRA; the peer repeats its request.
                State::SidrRcvd => {}
                State::SidrDone | State::Rejecting => self.owe(i, owe::SIDR_REP),
                _ => return None,
            }
            return Some(());
        }
        // Linux cm.c cm_sidr_req_handler: A SIDR_REQ for a service that nobody offers is answered
        // with a status.
        let refuse = |cm: &mut Cm, status: u8| {
            let port = asked(m.service_id, true).map_or(0, |(_, port)| port);
            cm.note_refusal(Refusal {
                peer: from.gid,
                port,
                reason: status.into(),
                datagram: true,
            });
            let what =
                ReplyKind::Sidr { request_id: m.request_id, status, service_id: m.service_id };
            cm.reply(from, tid, what);
        };
        let header = IpHeader::parse(m.private_data);
        let asked = asked(m.service_id, true);
        let listener = asked.and_then(|(ps, port)| self.listener(ps, port));
        let (Some((ps, port)), Some(l), Some(header)) = (asked, listener, header) else {
            refuse(self, sidr_status::UNSUPPORTED);
            return Some(());
        };
        if header.src != from.gid || !is_default_partition(m.pkey) {
            refuse(self, sidr_status::REJECTED);
            return Some(());
        }
        let mut id = Id::new(ps, 0);
        id.state = State::SidrRcvd;
        id.passive = true;
        id.port = port;
        id.remote_port = header.src_port;
        id.peer = *from;
        id.tid = tid;
        id.remote_id = m.request_id;
        id.qp_type = qp_type::UD;
        id.path_mtu = self.local.path_mtu;
        id.data_in.set(m.private_data.get(IP_HEADER_LEN..).unwrap_or(&[]));
        let admitted = self.admit(now, l, from, id);
        if admitted == Err(NoPlace::Full) {
            refuse(self, sidr_status::NO_QP);
        }
        admitted.ok()
    }

    fn on_sidr_rep(&mut self, from: &PeerAddr, m: &SidrRep<'_>) -> Option<()> {
        let i = self.by_local_id(m.request_id)?;
        let id = &mut self.ids[i];
        if id.state != State::SidrSent || id.peer.gid != from.gid {
            return None;
        }
        id.data_in.set(m.private_data);
        // Linux cm.c cm_sidr_rep_handler: A SIDR_REP brings QPN and Q_Key of the service, or the
        // status of a refusal.
        if m.status == sidr_status::SUCCESS && m.qpn > 1 {
            id.remote_qpn = m.qpn;
            id.remote_qkey = m.qkey;
            self.drop_owed(i);
            self.enter(i, State::Established);
            self.raise(i, cm_event::ESTABLISHED);
        } else {
            id.status = i32::from(m.status);
            self.counters.rejects_rcvd += 1;
            self.end_with_event(i, cm_event::REJECTED);
        }
        Some(())
    }
}
