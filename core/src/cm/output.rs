//! Messages out, and timers.

use super::conn::{owe, Id, State};
use super::ends::SILENT;
use super::mad::{
    Dreq, Ids, IpHeader, Mad, Message, Mra, Rej, Rep, Req, SidrRep, SidrReq, IP_HEADER_LEN, MAD_LEN,
};
use super::types::{cm_event, port_space, reject};
use super::{
    timeout_ns, Addressee, Cm, Local, Reply, ReplyKind, MAX_RETRIES, REP_RETRIES, SERVICE_TIMEOUT,
};
use crate::roce::peer::PeerAddr;
use crate::verbs::types::qp_type;
use crate::wire::DEFAULT_PKEY;

/// Timeout code of this device's ACK delay: 0.13 s, as processes on few cores need.
const ACK_DELAY: u8 = 15;
/// Packet rate code "10 Gbit/s". It has no effect here, but 0 would be no rate.
const RATE: u8 = 3;
/// Room for the private data of REQ and SIDR_REQ, and more.
const PRIVATE_DATA_MAX: usize = 256;

/// The private data of REQ and SIDR_REQ: rdma_cm's header, then the program's.
fn with_ip_header(id: &Id, local: &Local) -> ([u8; PRIVATE_DATA_MAX], usize) {
    let mut buf = [0; PRIVATE_DATA_MAX];
    if let Some((head, rest)) = buf.split_first_chunk_mut::<IP_HEADER_LEN>() {
        // Linux cma.c cma_format_hdr: In REQ and SIDR_REQ the header of rdma_cm stands before the
        // private data of the program: version, port, both addresses.
        IpHeader { src_port: id.port, src: local.gid, dst: id.peer.gid }.emit(head);
        let data = id.data_out.get();
        if let Some(to) = rest.get_mut(..data.len()) {
            to.copy_from_slice(data);
        }
    }
    (buf, IP_HEADER_LEN + id.data_out.get().len())
}

fn service_id(id: &Id) -> u64 {
    // Linux cma.c rdma_get_service_id: A service id is rdma_cm's prefix, the port space and the
    // port.
    u64::from(id.ps) << 16 | u64::from(if id.passive { id.port } else { id.remote_port })
}

impl Cm {
    /// Whether `poll_transmit` has something.
    #[inline]
    pub fn is_ready(&self) -> bool {
        !self.tx.is_empty()
    }

    /// The bit of `tx` that says that there are replies.
    pub(super) fn replies_bit(&self) -> usize {
        self.ids.len() + 1
    }

    /// Destination of the next message, without taking it.
    pub fn next_destination(&self) -> Option<PeerAddr> {
        if let Some(reply) = self.replies[0].front() {
            return Some(reply.to);
        }
        match self.ids.get(self.next_tx()?) {
            Some(id) => Some(id.peer),
            None => self.other_mads.destination(),
        }
    }

    /// Whether the next message, if its destination is this device's own address, is for this
    /// connection manager.
    pub fn next_is_mine(&self) -> bool {
        let to = if let Some(reply) = self.replies[0].front() {
            let id = match reply.what {
                ReplyKind::Rej { remote_id, .. } | ReplyKind::Drep { remote_id, .. } => remote_id,
                ReplyKind::Sidr { request_id, .. } => request_id,
            };
            Addressee::of_id(id)
        } else {
            let Some(i) = self.next_tx() else { return false };
            match self.ids.get(i) {
                // A datagram of another class to the own address is for this device.
                None => return true,
                Some(id) if id.owes & id.owes.wrapping_neg() & (owe::REQ | owe::SIDR_REQ) != 0 => {
                    Addressee::Service { port_space: id.ps, port: id.remote_port }
                }
                Some(id) => Addressee::of_id(id.remote_id),
            }
        };
        self.is_mine(to)
    }

    fn next_tx(&self) -> Option<usize> {
        self.tx.next_from(self.tx_cursor).or_else(|| self.tx.next_from(0))
    }

    /// Writes the next message, a datagram from QP1 to QP1, and returns its destination.
    pub fn poll_transmit(&mut self, mad: &mut [u8; MAD_LEN]) -> Option<PeerAddr> {
        if let Some(reply) = self.replies[0].pop_front() {
            if self.replies[0].is_empty() {
                self.tx.clear(self.replies_bit());
            }
            self.counters.sent += 1;
            emit_reply(&reply, mad);
            return Some(reply.to);
        }
        let i = self.next_tx()?;
        self.tx_cursor = i + 1;
        let Some(id) = self.ids.get_mut(i) else { return self.transmit_other_mad(mad) };
        let what = id.owes & id.owes.wrapping_neg();
        id.owes &= !what;
        if id.owes == 0 {
            self.tx.clear(i);
        }
        let id = &self.ids[i];
        emit(id, what, &self.local, mad);
        let to = id.peer;
        self.counters.sent += 1;
        if id.orphan && id.owes == 0 && id.state == State::Dead {
            self.free(i);
        }
        Some(to)
    }

    /// When `handle_timeout` must run next.
    pub fn next_timeout(&self) -> Option<u64> {
        self.wheel.next_deadline()
    }

    /// Sends again what was not answered, gives up after the last retry, and ends time-waits.
    pub fn handle_timeout(&mut self, now: u64) {
        while let Some(i) = self.wheel.pop_expired(now) {
            self.on_timer(now, i);
        }
    }

    /// Notes that messages to an address do not arrive, with this `errno`. `local`: the kernel has
    /// refused to send, which ends connection attempts there. Otherwise the network says so, which
    /// may be forged: `errno` becomes the status if no answer comes.
    pub fn note_unreachable(&mut self, dst: &PeerAddr, errno: i32, local: bool) {
        for i in 0..self.ids.len() {
            let id = &mut self.ids[i];
            let asks = matches!(id.state, State::ReqSent | State::SidrSent);
            let there = id.peer.gid == dst.gid && (id.peer.port == dst.port || dst.port == 0);
            if !there || !(asks || id.state == State::RepSent) || !self.pool.is_live(i) {
                continue;
            }
            id.network_errno = errno;
            if local && asks {
                id.status = -errno;
                id.kernel_refused = true;
                self.end_with_event(i, cm_event::UNREACHABLE);
            }
        }
    }

    fn on_timer(&mut self, now: u64, i: usize) {
        let id = &mut self.ids[i];
        let what = match id.state {
            State::ReqSent => owe::REQ,
            State::RepSent => owe::REP,
            State::Established if id.doubted => owe::REP,
            State::DreqSent => owe::DREQ,
            State::SidrSent => owe::SIDR_REQ,
            State::TimeWait => {
                self.raise(i, cm_event::TIMEWAIT_EXIT);
                return self.enter(i, State::Dead);
            }
            State::Rejecting | State::SidrDone if id.orphan => return self.free(i),
            State::Rejecting => return self.enter(i, State::Dead),
            _ => return,
        };
        // Linux cm.c cm_process_send_error: A message without an answer is sent again as often as
        // agreed; then the peer is unreachable.
        if id.retries_left > 0 {
            id.retries_left -= 1;
            // The REQ may have been forged, so copies of the REP come ever later.
            let longer = if what == owe::REP {
                REP_RETRIES.saturating_sub(id.retries_left).min(2)
            } else {
                0
            };
            let wait = timeout_ns(id.response_timeout) << longer;
            self.counters.retries += 1;
            self.owe(i, what);
            self.wheel.arm(i, now.saturating_add(wait));
            return;
        }
        match what {
            // No DREP came, or a doubted peer has not confirmed the connection.
            _ if matches!(id.state, State::DreqSent | State::Established) => {
                self.drop_owed(i);
                self.enter_time_wait(now, i, SILENT);
            }
            owe::SIDR_REQ => {
                id.status = id.silence_status();
                self.end_with_event(i, cm_event::UNREACHABLE);
            }
            _ => self.fail_exchange(i),
        }
    }
}

fn emit_reply(r: &Reply, mad: &mut [u8; MAD_LEN]) {
    let byte;
    let message = match r.what {
        ReplyKind::Rej { local_id, remote_id, about, reason, info } => {
            byte = [info.unwrap_or(0)];
            let info: &[u8] = if info.is_some() { &byte } else { &[] };
            let ids = Rej { local_comm_id: local_id, remote_comm_id: remote_id, ..Rej::default() };
            Message::Rej(Rej { message: about, reason, info, ..ids })
        }
        ReplyKind::Drep { local_id, remote_id } => {
            Message::Drep(Ids { local_comm_id: local_id, remote_comm_id: remote_id })
        }
        ReplyKind::Sidr { request_id, status, service_id } => {
            Message::SidrRep(SidrRep { request_id, status, service_id, ..SidrRep::default() })
        }
    };
    Mad { tid: r.tid, message }.emit(mad);
}

fn emit(id: &Id, what: u16, local: &Local, mad: &mut [u8; MAD_LEN]) {
    let (data, len);
    let grh = id.peer.grh().sent();
    let guid = local.guid.to_be_bytes();
    let (local_comm_id, remote_comm_id) = (id.local_id, id.remote_id);
    let message = match what {
        owe::REQ => {
            (data, len) = with_ip_header(id, local);
            Message::Req(Req {
                local_comm_id,
                service_id: service_id(id),
                local_ca_guid: local.guid,
                local_qkey: 0,
                local_qpn: id.local_qpn,
                responder_resources: id.responder_resources,
                initiator_depth: id.initiator_depth,
                remote_cm_response_timeout: id.response_timeout,
                transport: u8::from(id.qp_type == qp_type::UC),
                flow_control: false,
                starting_psn: id.rq_psn,
                local_cm_response_timeout: id.response_timeout,
                retry_count: id.retry_count,
                pkey: DEFAULT_PKEY,
                path_mtu: id.path_mtu as u8,
                rnr_retry_count: id.peer_rnr_retry,
                max_cm_retries: MAX_RETRIES,
                srq: id.srq,
                local_gid: local.gid,
                remote_gid: id.peer.gid,
                flow_label: grh.flow_label,
                packet_rate: RATE,
                traffic_class: grh.traffic_class,
                hop_limit: grh.hop_limit,
                sl: 0,
                local_ack_timeout: id.ack_timeout,
                private_data: data.get(..len).unwrap_or(&[]),
            })
        }
        owe::REP => Message::Rep(Rep {
            local_comm_id,
            remote_comm_id,
            local_qkey: 0,
            local_qpn: id.local_qpn,
            starting_psn: id.rq_psn,
            responder_resources: id.responder_resources,
            initiator_depth: id.initiator_depth,
            target_ack_delay: ACK_DELAY,
            failover: 0,
            flow_control: false,
            rnr_retry_count: id.peer_rnr_retry,
            srq: id.srq,
            local_ca_guid: local.guid,
            private_data: id.data_out.get(),
        }),
        owe::RTU => Message::Rtu(Ids { local_comm_id, remote_comm_id }),
        owe::MRA => Message::Mra(Mra {
            local_comm_id,
            remote_comm_id,
            message: id.about,
            service_timeout: SERVICE_TIMEOUT,
        }),
        owe::DREQ => {
            Message::Dreq(Dreq { local_comm_id, remote_comm_id, remote_qpn: id.remote_qpn })
        }
        owe::DREP => Message::Drep(Ids { local_comm_id, remote_comm_id }),
        owe::SIDR_REQ => {
            (data, len) = with_ip_header(id, local);
            Message::SidrReq(SidrReq {
                request_id: local_comm_id,
                pkey: DEFAULT_PKEY,
                service_id: service_id(id),
                private_data: data.get(..len).unwrap_or(&[]),
            })
        }
        owe::SIDR_REP => Message::SidrRep(SidrRep {
            request_id: remote_comm_id,
            status: id.reason as u8,
            qpn: id.local_qpn,
            service_id: service_id(id),
            qkey: id.qkey,
            private_data: id.data_out.get(),
        }),
        _ => Message::Rej(Rej {
            local_comm_id,
            remote_comm_id,
            message: id.about,
            reason: id.reason,
            // A peer that does not know our id finds its REQ by the GUID.
            info: if id.reason == reject::TIMEOUT { &guid } else { &[] },
            private_data: id.data_out.get(),
        }),
    };
    debug_assert!(
        id.ps != port_space::UDP || matches!(message, Message::SidrReq(_) | Message::SidrRep(_))
    );
    Mad { tid: id.tid, message }.emit(mad);
}
