//! The messages of the connection manager as they travel: MADs of 256 bytes.
//!
//! Layouts are those of IBTA volume 1, chapter 12 (Linux's `ibta_vol1_c12.h` has them as offsets);
//! all fields are big-endian. A [`Mad`] borrows its private data. Reserved fields are ignored when
//! read and written as zero.

use core::fmt;

/// Bytes of a MAD.
pub const MAD_LEN: usize = 256;
/// Bytes of the header that all MADs begin with.
const HEADER: usize = 24;
/// Management class of communication management.
pub(super) const CLASS_CM: u8 = 0x07;
/// Its version.
const CLASS_VERSION: u8 = 2;
/// Method Send.
const METHOD_SEND: u8 = 0x03;

/// Offset of the receiver's communication id in a MAD, except in the messages of the next two
/// offsets.
pub const REMOTE_ID_AT: u32 = HEADER as u32 + 4;
/// Offset of the request id in SIDR_REP.
pub const REQUEST_ID_AT: u32 = HEADER as u32;
/// Offset of the service id, 8 bytes, in REQ and SIDR_REQ.
pub const SERVICE_AT: u32 = HEADER as u32 + 8;

/// Offsets of the GIDs in REQ: sender and receiver of the primary path, then of the alternate path.
pub const GIDS_OF_REQ: [usize; 4] = [HEADER + 56, HEADER + 72, HEADER + 100, HEADER + 116];
/// Offset of rdma_cm's header in REQ.
pub const HEADER_OF_REQ: usize = HEADER + private_at::REQ;
/// Offset of rdma_cm's header in SIDR_REQ.
pub const HEADER_OF_SIDR_REQ: usize = HEADER + private_at::SIDR_REQ;

/// Attribute ids, which say what message it is (IBTA 12.6).
#[allow(missing_docs)]
pub mod attribute {
    pub const REQ: u16 = 0x10;
    pub const MRA: u16 = 0x11;
    pub const REJ: u16 = 0x12;
    pub const REP: u16 = 0x13;
    pub const RTU: u16 = 0x14;
    pub const DREQ: u16 = 0x15;
    pub const DREP: u16 = 0x16;
    pub const SIDR_REQ: u16 = 0x17;
    pub const SIDR_REP: u16 = 0x18;
}

/// Where private data begins in each message, counted from the end of the MAD header; it ends with
/// the MAD.
mod private_at {
    pub const REQ: usize = 140;
    pub const MRA: usize = 10;
    pub const REJ: usize = 84;
    pub const REP: usize = 36;
    pub const RTU: usize = 8;
    pub const DREQ: usize = 12;
    pub const DREP: usize = 8;
    pub const SIDR_REQ: usize = 16;
    pub const SIDR_REP: usize = 96;
}

/// Bytes of private data in each message.
pub mod private_len {
    use super::{private_at, HEADER, MAD_LEN};
    const BODY: usize = MAD_LEN - HEADER;
    /// REQ.
    pub const REQ: usize = BODY - private_at::REQ;
    /// REJ.
    pub const REJ: usize = BODY - private_at::REJ;
    /// REP.
    pub const REP: usize = BODY - private_at::REP;
    /// SIDR_REQ.
    pub const SIDR_REQ: usize = BODY - private_at::SIDR_REQ;
    /// SIDR_REP.
    pub const SIDR_REP: usize = BODY - private_at::SIDR_REP;
}

/// Bytes of additional information in a REJ.
pub const REJ_ARI_LEN: usize = 72;

/// Why bytes are no message of the connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadMad {
    /// Not 256 bytes.
    Length,
    /// Another management class, version or method.
    Class,
    /// A message that is not known (LAP and APR among them: there are no alternate paths here).
    Attribute(u16),
}

impl fmt::Display for BadMad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadMad::Length => f.write_str("not 256 bytes"),
            BadMad::Class => f.write_str("not a message of communication management version 2"),
            BadMad::Attribute(a) => write!(f, "message {a:#06x} is not known"),
        }
    }
}

/// REQ: asks for a connection (IBTA 12.6.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Req<'a> {
    /// The sender's communication id.
    pub local_comm_id: u32,
    /// What is asked for.
    pub service_id: u64,
    /// The sender's CA GUID.
    pub local_ca_guid: u64,
    /// Q_Key, for what needs one; else 0.
    pub local_qkey: u32,
    /// The sender's QPN.
    pub local_qpn: u32,
    /// READs and atomics that the sender serves at once.
    pub responder_resources: u8,
    /// READs and atomics that the sender wants outstanding.
    pub initiator_depth: u8,
    /// Timeout code within which the sender expects an answer.
    pub remote_cm_response_timeout: u8,
    /// Transport: 0 RC, 1 UC, 2 RD, 3 extended.
    pub transport: u8,
    /// End-to-end credits.
    pub flow_control: bool,
    /// First PSN that the receiver shall send: what the sender expects.
    pub starting_psn: u32,
    /// Timeout code within which the sender answers.
    pub local_cm_response_timeout: u8,
    /// Transport retries.
    pub retry_count: u8,
    /// P_Key.
    pub pkey: u16,
    /// Path MTU code.
    pub path_mtu: u8,
    /// RNR retries.
    pub rnr_retry_count: u8,
    /// How often a message is sent again.
    pub max_cm_retries: u8,
    /// The sender's QP has an SRQ.
    pub srq: bool,
    /// The sender's GID.
    pub local_gid: [u8; 16],
    /// The receiver's GID.
    pub remote_gid: [u8; 16],
    /// Flow label of the path.
    pub flow_label: u32,
    /// Packet rate code of the path.
    pub packet_rate: u8,
    /// Traffic class of the path.
    pub traffic_class: u8,
    /// Hop limit of the path.
    pub hop_limit: u8,
    /// Service level.
    pub sl: u8,
    /// ACK timeout code that the receiver's QP shall use.
    pub local_ack_timeout: u8,
    /// Private data.
    pub private_data: &'a [u8],
}

/// MRA: "wait, the answer takes longer" (IBTA 12.6.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mra {
    /// The sender's communication id.
    pub local_comm_id: u32,
    /// The receiver's.
    pub remote_comm_id: u32,
    /// Which message: 0 REQ, 1 REP, 2 LAP.
    pub message: u8,
    /// Timeout code within which the answer will come.
    pub service_timeout: u8,
}

/// REJ: no connection (IBTA 12.6.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rej<'a> {
    /// The sender's communication id, 0 if it has none.
    pub local_comm_id: u32,
    /// The receiver's, 0 if unknown.
    pub remote_comm_id: u32,
    /// Which message: 0 REQ, 1 REP, 2 none.
    pub message: u8,
    /// Why: [`super::reject`].
    pub reason: u16,
    /// Additional information, by reason.
    pub info: &'a [u8],
    /// Private data.
    pub private_data: &'a [u8],
}

/// REP: accepts (IBTA 12.6.8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rep<'a> {
    /// The sender's communication id.
    pub local_comm_id: u32,
    /// The receiver's.
    pub remote_comm_id: u32,
    /// Q_Key, for what needs one; else 0.
    pub local_qkey: u32,
    /// The sender's QPN.
    pub local_qpn: u32,
    /// First PSN that the receiver shall send: what the sender expects.
    pub starting_psn: u32,
    /// READs and atomics that the sender serves at once.
    pub responder_resources: u8,
    /// READs and atomics that the sender will have outstanding.
    pub initiator_depth: u8,
    /// Timeout code of the sender's ACK delay.
    pub target_ack_delay: u8,
    /// 0: alternate path accepted.
    pub failover: u8,
    /// End-to-end credits.
    pub flow_control: bool,
    /// RNR retries.
    pub rnr_retry_count: u8,
    /// The sender's QP has an SRQ.
    pub srq: bool,
    /// The sender's CA GUID.
    pub local_ca_guid: u64,
    /// Private data.
    pub private_data: &'a [u8],
}

/// The communication ids of RTU and DREP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ids {
    /// The sender's.
    pub local_comm_id: u32,
    /// The receiver's.
    pub remote_comm_id: u32,
}

/// DREQ: ends a connection (IBTA 12.6.10).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dreq {
    /// The sender's communication id.
    pub local_comm_id: u32,
    /// The receiver's.
    pub remote_comm_id: u32,
    /// The receiver's QPN.
    pub remote_qpn: u32,
}

/// SIDR_REQ: asks for the UD QP of a service (IBTA 12.11.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SidrReq<'a> {
    /// The sender's number for the question.
    pub request_id: u32,
    /// P_Key.
    pub pkey: u16,
    /// What is asked for.
    pub service_id: u64,
    /// Private data.
    pub private_data: &'a [u8],
}

/// SIDR_REP: answers it (IBTA 12.11.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SidrRep<'a> {
    /// The number of the question.
    pub request_id: u32,
    /// [`super::sidr_status`].
    pub status: u8,
    /// QPN of the service.
    pub qpn: u32,
    /// What was asked for.
    pub service_id: u64,
    /// Q_Key of the QP.
    pub qkey: u32,
    /// Private data.
    pub private_data: &'a [u8],
}

/// One message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Message<'a> {
    Req(Req<'a>),
    Mra(Mra),
    Rej(Rej<'a>),
    Rep(Rep<'a>),
    Rtu(Ids),
    Dreq(Dreq),
    Drep(Ids),
    SidrReq(SidrReq<'a>),
    SidrRep(SidrRep<'a>),
}

/// A message and its transaction id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mad<'a> {
    /// Transaction id, chosen by the sender of the first message; answers repeat it.
    pub tid: u64,
    /// Its content.
    pub message: Message<'a>,
}

type Body = [u8; MAD_LEN - HEADER];

/// Fields of a body; every offset is a constant within it.
struct Fields<'a>(&'a Body);

impl<'a> Fields<'a> {
    fn u8(&self, at: usize) -> u8 {
        self.0.get(at).copied().unwrap_or(0)
    }
    fn u16(&self, at: usize) -> u16 {
        u16::from(self.u8(at)) << 8 | u16::from(self.u8(at + 1))
    }
    fn u24(&self, at: usize) -> u32 {
        u32::from(self.u16(at)) << 8 | u32::from(self.u8(at + 2))
    }
    fn u32(&self, at: usize) -> u32 {
        u32::from(self.u16(at)) << 16 | u32::from(self.u16(at + 2))
    }
    fn u64(&self, at: usize) -> u64 {
        u64::from(self.u32(at)) << 32 | u64::from(self.u32(at + 4))
    }
    fn gid(&self, at: usize) -> [u8; 16] {
        self.0.get(at..).and_then(|b| b.first_chunk()).copied().unwrap_or_default()
    }
    fn bytes(&self, at: usize, len: usize) -> &'a [u8] {
        self.0.get(at..at + len).unwrap_or(&[])
    }
    fn from(&self, at: usize) -> &'a [u8] {
        self.0.get(at..).unwrap_or(&[])
    }
}

/// Writes fields of a body that is zero so far.
struct Writer<'a>(&'a mut [u8]);

impl Writer<'_> {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        let room = self.0.len().saturating_sub(at);
        let n = bytes.len().min(room);
        if let (Some(to), Some(from)) = (self.0.get_mut(at..at + n), bytes.get(..n)) {
            to.copy_from_slice(from);
        }
    }
    fn u8(&mut self, at: usize, v: u8) {
        self.put(at, &[v]);
    }
    fn u16(&mut self, at: usize, v: u16) {
        self.put(at, &v.to_be_bytes());
    }
    fn u24(&mut self, at: usize, v: u32) {
        let [_, a, b, c] = v.to_be_bytes();
        self.put(at, &[a, b, c]);
    }
    fn u32(&mut self, at: usize, v: u32) {
        self.put(at, &v.to_be_bytes());
    }
    fn u64(&mut self, at: usize, v: u64) {
        self.put(at, &v.to_be_bytes());
    }
}

impl<'a> Mad<'a> {
    /// Reads a message. Any bytes are legal input.
    ///
    /// # Errors
    /// [`BadMad`] says what it is not.
    pub fn parse(bytes: &'a [u8]) -> Result<Mad<'a>, BadMad> {
        let bytes: &[u8; MAD_LEN] = bytes.try_into().map_err(|_| BadMad::Length)?;
        let (head, body) = bytes.split_first_chunk::<HEADER>().ok_or(BadMad::Length)?;
        let body: &Body = body.try_into().map_err(|_| BadMad::Length)?;
        if head[..4] != [1, CLASS_CM, CLASS_VERSION, METHOD_SEND] {
            return Err(BadMad::Class);
        }
        let mut tid = [0; 8];
        tid.copy_from_slice(&head[8..16]);
        let attribute = u16::from_be_bytes([head[16], head[17]]);
        let f = Fields(body);
        let ids = || Ids { local_comm_id: f.u32(0), remote_comm_id: f.u32(4) };
        // Linux ibta_vol1_c12.h: The fields of each message lie where chapter 12 of the standard
        // has them.
        let message = match attribute {
            attribute::REQ => Message::Req(Req::parse(&f)),
            attribute::MRA => Message::Mra(Mra {
                local_comm_id: f.u32(0),
                remote_comm_id: f.u32(4),
                message: f.u8(8) >> 6,
                service_timeout: f.u8(9) >> 3,
            }),
            attribute::REJ => Message::Rej(Rej {
                local_comm_id: f.u32(0),
                remote_comm_id: f.u32(4),
                message: f.u8(8) >> 6,
                reason: f.u16(10),
                info: f.bytes(12, usize::from(f.u8(9) >> 1).min(REJ_ARI_LEN)),
                private_data: f.from(private_at::REJ),
            }),
            attribute::REP => Message::Rep(Rep::parse(&f)),
            attribute::RTU => Message::Rtu(ids()),
            attribute::DREQ => Message::Dreq(Dreq {
                local_comm_id: f.u32(0),
                remote_comm_id: f.u32(4),
                remote_qpn: f.u24(8),
            }),
            attribute::DREP => Message::Drep(ids()),
            attribute::SIDR_REQ => Message::SidrReq(SidrReq {
                request_id: f.u32(0),
                pkey: f.u16(4),
                service_id: f.u64(8),
                private_data: f.from(private_at::SIDR_REQ),
            }),
            attribute::SIDR_REP => Message::SidrRep(SidrRep {
                request_id: f.u32(0),
                status: f.u8(4),
                qpn: f.u24(8),
                service_id: f.u64(12),
                qkey: f.u32(20),
                private_data: f.from(private_at::SIDR_REP),
            }),
            other => return Err(BadMad::Attribute(other)),
        };
        Ok(Mad { tid: u64::from_be_bytes(tid), message })
    }

    /// Writes the message. Private data that is longer than the message has room for is cut.
    pub fn emit(&self, bytes: &mut [u8; MAD_LEN]) {
        bytes.fill(0);
        bytes[..4].copy_from_slice(&[1, CLASS_CM, CLASS_VERSION, METHOD_SEND]);
        bytes[8..16].copy_from_slice(&self.tid.to_be_bytes());
        let (head, body) = bytes.split_at_mut(HEADER);
        let mut w = Writer(body);
        let (id, private) = self.message.emit_body(&mut w);
        let (at, data) = private;
        w.put(at, data);
        head[16..18].copy_from_slice(&id.to_be_bytes());
    }
}

impl<'a> Message<'a> {
    /// Writes all but private data. Returns the attribute id, and the offset and bytes of private
    /// data.
    fn emit_body(&self, w: &mut Writer<'_>) -> (u16, (usize, &'a [u8])) {
        let mut ids = |local: u32, remote: u32| {
            w.u32(0, local);
            w.u32(4, remote);
        };
        match *self {
            Message::Req(ref m) => {
                m.emit(w);
                (attribute::REQ, (private_at::REQ, m.private_data))
            }
            Message::Mra(m) => {
                ids(m.local_comm_id, m.remote_comm_id);
                w.u8(8, m.message << 6);
                w.u8(9, m.service_timeout << 3);
                (attribute::MRA, (private_at::MRA, &[]))
            }
            Message::Rej(m) => {
                ids(m.local_comm_id, m.remote_comm_id);
                let info = if m.info.len() > REJ_ARI_LEN { &[] } else { m.info };
                w.u8(8, m.message << 6);
                w.u8(9, (info.len() as u8) << 1);
                w.u16(10, m.reason);
                w.put(12, info);
                (attribute::REJ, (private_at::REJ, m.private_data))
            }
            Message::Rep(ref m) => {
                m.emit(w);
                (attribute::REP, (private_at::REP, m.private_data))
            }
            Message::Rtu(m) => {
                ids(m.local_comm_id, m.remote_comm_id);
                (attribute::RTU, (private_at::RTU, &[]))
            }
            Message::Dreq(m) => {
                ids(m.local_comm_id, m.remote_comm_id);
                w.u24(8, m.remote_qpn);
                (attribute::DREQ, (private_at::DREQ, &[]))
            }
            Message::Drep(m) => {
                ids(m.local_comm_id, m.remote_comm_id);
                (attribute::DREP, (private_at::DREP, &[]))
            }
            Message::SidrReq(m) => {
                w.u32(0, m.request_id);
                w.u16(4, m.pkey);
                w.u64(8, m.service_id);
                (attribute::SIDR_REQ, (private_at::SIDR_REQ, m.private_data))
            }
            Message::SidrRep(m) => {
                w.u32(0, m.request_id);
                w.u8(4, m.status);
                w.u24(8, m.qpn);
                w.u64(12, m.service_id);
                w.u32(20, m.qkey);
                (attribute::SIDR_REP, (private_at::SIDR_REP, m.private_data))
            }
        }
    }
}

/// The LID for "see the GIDs".
const LID_PERMISSIVE: u16 = 0xffff;

impl<'a> Req<'a> {
    fn parse(f: &Fields<'a>) -> Self {
        Req {
            local_comm_id: f.u32(0),
            service_id: f.u64(8),
            // IBTA CA17-34: LIDs in a REQ have no effect.
            local_ca_guid: f.u64(16),
            local_qkey: f.u32(28),
            local_qpn: f.u24(32),
            responder_resources: f.u8(35),
            initiator_depth: f.u8(39),
            remote_cm_response_timeout: f.u8(43) >> 3,
            transport: f.u8(43) >> 1 & 3,
            flow_control: f.u8(43) & 1 != 0,
            starting_psn: f.u24(44),
            local_cm_response_timeout: f.u8(47) >> 3,
            retry_count: f.u8(47) & 7,
            pkey: f.u16(48),
            path_mtu: f.u8(50) >> 4,
            rnr_retry_count: f.u8(50) & 7,
            max_cm_retries: f.u8(51) >> 4,
            srq: f.u8(51) & 8 != 0,
            local_gid: f.gid(56),
            remote_gid: f.gid(72),
            flow_label: f.u24(88) >> 4,
            packet_rate: f.u8(91) & 0x3f,
            traffic_class: f.u8(92),
            hop_limit: f.u8(93),
            sl: f.u8(94) >> 4,
            local_ack_timeout: f.u8(95) >> 3,
            private_data: f.from(private_at::REQ),
        }
    }

    fn emit(&self, w: &mut Writer<'_>) {
        w.u32(0, self.local_comm_id);
        w.u64(8, self.service_id);
        w.u64(16, self.local_ca_guid);
        w.u32(28, self.local_qkey);
        w.u24(32, self.local_qpn);
        w.u8(35, self.responder_resources);
        w.u8(39, self.initiator_depth);
        w.u8(
            43,
            self.remote_cm_response_timeout << 3
                | (self.transport & 3) << 1
                | u8::from(self.flow_control),
        );
        w.u24(44, self.starting_psn);
        w.u8(47, self.local_cm_response_timeout << 3 | self.retry_count & 7);
        w.u16(48, self.pkey);
        w.u8(50, self.path_mtu << 4 | self.rnr_retry_count & 7);
        w.u8(51, self.max_cm_retries << 4 | u8::from(self.srq) << 3);
        w.u16(52, LID_PERMISSIVE);
        w.u16(54, LID_PERMISSIVE);
        w.put(56, &self.local_gid);
        w.put(72, &self.remote_gid);
        w.u24(88, self.flow_label << 4);
        w.u8(91, self.packet_rate & 0x3f);
        w.u8(92, self.traffic_class);
        w.u8(93, self.hop_limit);
        w.u8(94, self.sl << 4);
        w.u8(95, self.local_ack_timeout << 3);
    }
}

impl<'a> Rep<'a> {
    fn parse(f: &Fields<'a>) -> Self {
        Rep {
            local_comm_id: f.u32(0),
            remote_comm_id: f.u32(4),
            local_qkey: f.u32(8),
            local_qpn: f.u24(12),
            starting_psn: f.u24(20),
            responder_resources: f.u8(24),
            initiator_depth: f.u8(25),
            target_ack_delay: f.u8(26) >> 3,
            failover: f.u8(26) >> 1 & 3,
            flow_control: f.u8(26) & 1 != 0,
            rnr_retry_count: f.u8(27) >> 5,
            srq: f.u8(27) & 0x10 != 0,
            local_ca_guid: f.u64(28),
            private_data: f.from(private_at::REP),
        }
    }

    fn emit(&self, w: &mut Writer<'_>) {
        w.u32(0, self.local_comm_id);
        w.u32(4, self.remote_comm_id);
        w.u32(8, self.local_qkey);
        w.u24(12, self.local_qpn);
        w.u24(20, self.starting_psn);
        w.u8(24, self.responder_resources);
        w.u8(25, self.initiator_depth);
        w.u8(
            26,
            self.target_ack_delay << 3 | (self.failover & 3) << 1 | u8::from(self.flow_control),
        );
        w.u8(27, self.rnr_retry_count << 5 | u8::from(self.srq) << 4);
        w.u64(28, self.local_ca_guid);
    }
}

/// Bytes of rdma_cm's own header at the front of the private data of REQ and SIDR_REQ.
pub const IP_HEADER_LEN: usize = 36;

/// The addresses by which rdma_cm knows the two ends (Linux `struct cma_hdr`; IBTA annex A11, "RDMA
/// IP CM service").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpHeader {
    /// The asker's port.
    pub src_port: u16,
    /// The asker's address as a GID.
    pub src: [u8; 16],
    /// The asked address as a GID.
    pub dst: [u8; 16],
}

impl IpHeader {
    /// Reads the header; `None` where the version is not known.
    pub fn parse(b: &[u8]) -> Option<IpHeader> {
        let b: &[u8; IP_HEADER_LEN] = b.first_chunk()?;
        let address = |at: usize| -> [u8; 16] {
            let mut a = [0; 16];
            a.copy_from_slice(&b[at..at + 16]);
            a
        };
        let (src, dst) = match (b[0], b[1] >> 4) {
            (0, 4) => (v4_gid(address(4)), v4_gid(address(20))),
            (0, 6) => (address(4), address(20)),
            _ => return None,
        };
        Some(IpHeader { src_port: u16::from_be_bytes([b[2], b[3]]), src, dst })
    }

    /// Replaces an address of the same family in a header, if it stands there; all else stays.
    pub fn replace(b: &mut [u8; IP_HEADER_LEN], from: &[u8; 16], to: &[u8; 16]) {
        use crate::wire::ip::v4_of_gid;
        let v4 = match (b[0], b[1] >> 4) {
            (0, 4) => true,
            (0, 6) => false,
            _ => return,
        };
        for at in [4, 20] {
            match (v4, v4_of_gid(from), v4_of_gid(to)) {
                (true, Some(from), Some(to)) if b[at + 12..at + 16] == from => {
                    b[at + 12..at + 16].copy_from_slice(&to);
                }
                (false, None, None) if b[at..at + 16] == *from => {
                    b[at..at + 16].copy_from_slice(to);
                }
                _ => {}
            }
        }
    }

    /// Writes the header: IPv4 where both are v4-mapped, else IPv6.
    pub fn emit(&self, b: &mut [u8; IP_HEADER_LEN]) {
        use crate::wire::ip::v4_of_gid;
        b.fill(0);
        b[2..4].copy_from_slice(&self.src_port.to_be_bytes());
        match (v4_of_gid(&self.src), v4_of_gid(&self.dst)) {
            (Some(src), Some(dst)) => {
                b[1] = 4 << 4;
                b[16..20].copy_from_slice(&src);
                b[32..36].copy_from_slice(&dst);
            }
            _ => {
                b[1] = 6 << 4;
                b[4..20].copy_from_slice(&self.src);
                b[20..36].copy_from_slice(&self.dst);
            }
        }
    }
}

/// The v4-mapped GID of an address field whose last four bytes are an IPv4 address.
fn v4_gid(field: [u8; 16]) -> [u8; 16] {
    crate::wire::ip::gid_of_v4([field[12], field[13], field[14], field[15]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ip::gid_of_v4;

    /// One of each, every field with a value of its own that fills its bits.
    fn all(data: &[u8]) -> [Message<'_>; 9] {
        let cut = |n: usize| data.get(..n).unwrap();
        [
            Message::Req(Req {
                local_comm_id: 0x8102_0304,
                service_id: 0x8106_1111_0106_1c06,
                local_ca_guid: 0x8000_0000_0000_0017,
                local_qkey: 0x8765_4321,
                local_qpn: 0xff_fffe,
                responder_resources: 0x81,
                initiator_depth: 0x82,
                remote_cm_response_timeout: 0x1e,
                transport: 1,
                flow_control: true,
                starting_psn: 0x80_0001,
                local_cm_response_timeout: 0x15,
                retry_count: 5,
                pkey: 0x8001,
                path_mtu: 5,
                rnr_retry_count: 6,
                max_cm_retries: 15,
                srq: true,
                local_gid: gid_of_v4([10, 0, 0, 1]),
                remote_gid: [9; 16],
                flow_label: 0xf_fff1,
                packet_rate: 0x27,
                traffic_class: 0x83,
                hop_limit: 64,
                sl: 9,
                local_ack_timeout: 0x13,
                private_data: cut(private_len::REQ),
            }),
            Message::Mra(Mra {
                local_comm_id: 1,
                remote_comm_id: 2,
                message: 1,
                service_timeout: 24,
            }),
            Message::Rej(Rej {
                local_comm_id: 3,
                remote_comm_id: 4,
                message: 2,
                reason: 28,
                info: cut(8),
                private_data: cut(private_len::REJ),
            }),
            Message::Rep(Rep {
                local_comm_id: 5,
                remote_comm_id: 6,
                local_qkey: 7,
                local_qpn: 0x80_0008,
                starting_psn: 0x90_0009,
                responder_resources: 16,
                initiator_depth: 17,
                target_ack_delay: 15,
                failover: 2,
                flow_control: true,
                rnr_retry_count: 7,
                srq: true,
                local_ca_guid: 18,
                private_data: cut(private_len::REP),
            }),
            Message::Rtu(Ids { local_comm_id: 7, remote_comm_id: 8 }),
            Message::Dreq(Dreq { local_comm_id: 9, remote_comm_id: 10, remote_qpn: 0x80_000b }),
            Message::Drep(Ids { local_comm_id: 11, remote_comm_id: 12 }),
            Message::SidrReq(SidrReq {
                request_id: 13,
                pkey: 0xffff,
                service_id: 0x0111_1c06,
                private_data: cut(private_len::SIDR_REQ),
            }),
            Message::SidrRep(SidrRep {
                request_id: 14,
                status: 3,
                qpn: 0x80_000f,
                service_id: 0x0111_1c06,
                qkey: 0x0123_4567,
                private_data: cut(private_len::SIDR_REP),
            }),
        ]
    }

    // Linux ibta_vol1_c12.h
    #[test]
    fn messages_survive_the_wire() {
        let data: [u8; 256] = core::array::from_fn(|i| i as u8 | 1);
        for (i, message) in all(&data).into_iter().enumerate() {
            let mad = Mad { tid: u64::MAX - i as u64, message };
            let mut bytes = [0xEE; MAD_LEN];
            mad.emit(&mut bytes);
            assert_eq!(Mad::parse(&bytes), Ok(mad));
        }
    }

    #[test]
    fn what_is_not_a_message_is_said_to_be_none() {
        let mut bytes = [0; MAD_LEN];
        assert_eq!(Mad::parse(&bytes), Err(BadMad::Class));
        Mad { tid: 0, message: Message::Rtu(Ids::default()) }.emit(&mut bytes);
        for at in 0..4 {
            let mut other = bytes;
            other[at] ^= 4;
            assert_eq!(Mad::parse(&other), Err(BadMad::Class), "byte {at}");
        }
        bytes[17] = 0x19; // LAP
        assert_eq!(Mad::parse(&bytes), Err(BadMad::Attribute(0x19)));
        assert_eq!(Mad::parse(&bytes[1..]), Err(BadMad::Length));
        assert_eq!(Mad::parse(&[]), Err(BadMad::Length));
    }

    #[test]
    fn rejected_information_never_reaches_beyond_its_field() {
        let mut bytes = [0; MAD_LEN];
        Mad {
            tid: 0,
            message: Message::Rej(Rej {
                info: &[5; 200],
                private_data: &[6; 999],
                ..Rej::default()
            }),
        }
        .emit(&mut bytes);
        bytes[HEADER + 9] = 0xff;
        let Ok(Mad { message: Message::Rej(rej), .. }) = Mad::parse(&bytes) else { panic!() };
        assert!(
            rej.info.len() == REJ_ARI_LEN && rej.info.iter().all(|&b| b == 0),
            "too long was not written at all"
        );
        assert_eq!(rej.private_data, [6; private_len::REJ]);
    }

    // Linux cma.c cma_format_hdr
    #[test]
    fn rdma_cm_header_of_both_families() {
        let v4 = IpHeader {
            src_port: 0x9876,
            src: gid_of_v4([10, 0, 0, 1]),
            dst: gid_of_v4([10, 0, 0, 2]),
        };
        let v6 = IpHeader { src_port: 1, src: [0xfd; 16], dst: [0xfc; 16] };
        for h in [v4, v6] {
            let mut b = [0xEE; IP_HEADER_LEN];
            h.emit(&mut b);
            assert_eq!(IpHeader::parse(&b), Some(h));
            b[0] = 1;
            assert_eq!(IpHeader::parse(&b), None, "another version");
        }
        assert_eq!(IpHeader::parse(&[0; 35]), None);
        assert_eq!(IpHeader::parse(&[0; 36]), None);
    }
}
