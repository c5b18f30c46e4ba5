//! The messages of the connection manager as they travel: MADs of 256 bytes.
//!
//! Layouts are those of IBTA volume 1, chapter 12 (Linux's `ibta_vol1_c12.h` has them as offsets);
//! all fields are big-endian. A [`Mad`] borrows its private data. Reserved fields are ignored when
//! read and written as zero.

/// Bytes of a MAD.
pub const MAD_LEN: usize = 256;
/// Bytes of the header that all MADs begin with.
const HEADER: usize = 24;
/// Bytes of what follows it.
const BODY: usize = MAD_LEN - HEADER;
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

pub use super::types::mad_attribute as attribute;

/// Where private data begins in each message that has some, counted from the end of the MAD header;
/// it ends with the MAD.
mod private_at {
    pub const REQ: usize = 140;
    pub const REJ: usize = 84;
    pub const REP: usize = 36;
    pub const SIDR_REQ: usize = 16;
    pub const SIDR_REP: usize = 96;
}

/// Bytes of private data in each message.
pub mod private_len {
    use super::{private_at, BODY};
    /// Of a REQ.
    pub const REQ: usize = BODY - private_at::REQ;
    /// Of a REJ.
    pub const REJ: usize = BODY - private_at::REJ;
    /// Of a REP.
    pub const REP: usize = BODY - private_at::REP;
    /// Of a SIDR_REQ.
    pub const SIDR_REQ: usize = BODY - private_at::SIDR_REQ;
    /// Of a SIDR_REP.
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

/// The content of messages: what each field is, and its place.
macro_rules! contents {
    ($($(#[$m:meta])* $name:ident$(<$a:lifetime>)? {
        $($(#[$f:meta])* $field:ident: $ty:ty = $place:expr,)*
    })*) => {$(
        $(#[$m])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name$(<$a>)? { $($(#[$f])* pub $field: $ty,)* }

        impl$(<$a>)? $name$(<$a>)? {
            fn parse(body: &$($a)? Body) -> Self {
                $(const { assert!($place.0 * 8 + $place.1 + $place.2 <= 8 * BODY) };)*
                $name { $($field: Field::read(body, $place),)* }
            }

            /// Writes it into a body whose bits of these fields are zero.
            fn emit(&self, body: &mut Body) {
                $(self.$field.write(body, $place);)*
            }
        }
    )*};
}

// Linux ibta_vol1_c12.h: The fields of each message lie where chapter 12 of the standard has them.
// IBTA CA17-34: LIDs in a REQ have no effect.
contents! {
    /// REQ: asks for a connection (IBTA 12.6.5).
    Req<'a> {
        /// The sender's communication id.
        local_comm_id: u32 = (0, 0, 32),
        /// What is asked for.
        service_id: u64 = (8, 0, 64),
        /// The sender's CA GUID.
        local_ca_guid: u64 = (16, 0, 64),
        /// Q_Key, for what needs one; else 0.
        local_qkey: u32 = (28, 0, 32),
        /// The sender's QPN.
        local_qpn: u32 = (32, 0, 24),
        /// READs and atomics that the sender serves at once.
        responder_resources: u8 = (35, 0, 8),
        /// READs and atomics that the sender wants outstanding.
        initiator_depth: u8 = (39, 0, 8),
        /// Timeout code within which the sender expects an answer.
        remote_cm_response_timeout: u8 = (43, 0, 5),
        /// Transport: 0 RC, 1 UC, 2 RD, 3 extended.
        transport: u8 = (43, 5, 2),
        /// End-to-end credits.
        flow_control: bool = (43, 7, 1),
        /// First PSN that the receiver shall send: what the sender expects.
        starting_psn: u32 = (44, 0, 24),
        /// Timeout code within which the sender answers.
        local_cm_response_timeout: u8 = (47, 0, 5),
        /// Transport retries.
        retry_count: u8 = (47, 5, 3),
        /// P_Key.
        pkey: u16 = (48, 0, 16),
        /// Path MTU code.
        path_mtu: u8 = (50, 0, 4),
        /// RNR retries.
        rnr_retry_count: u8 = (50, 5, 3),
        /// How often a message is sent again.
        max_cm_retries: u8 = (51, 0, 4),
        /// The sender's QP has an SRQ.
        srq: bool = (51, 4, 1),
        /// The sender's GID.
        local_gid: [u8; 16] = (56, 0, 128),
        /// The receiver's GID.
        remote_gid: [u8; 16] = (72, 0, 128),
        /// Flow label of the path.
        flow_label: u32 = (88, 0, 20),
        /// Packet rate code of the path.
        packet_rate: u8 = (91, 2, 6),
        /// Traffic class of the path.
        traffic_class: u8 = (92, 0, 8),
        /// Hop limit of the path.
        hop_limit: u8 = (93, 0, 8),
        /// Service level.
        sl: u8 = (94, 0, 4),
        /// ACK timeout code that the receiver's QP shall use.
        local_ack_timeout: u8 = (95, 0, 5),
        /// Private data.
        private_data: &'a [u8] = (private_at::REQ, 0, 8 * private_len::REQ),
    }

    /// MRA: "wait, the answer takes longer" (IBTA 12.6.6).
    Mra {
        /// The sender's communication id.
        local_comm_id: u32 = (0, 0, 32),
        /// The receiver's.
        remote_comm_id: u32 = (4, 0, 32),
        /// Which message: 0 REQ, 1 REP, 2 LAP.
        message: u8 = (8, 0, 2),
        /// Timeout code within which the answer will come.
        service_timeout: u8 = (9, 0, 5),
    }

    /// REJ: no connection (IBTA 12.6.7).
    Rej<'a> {
        /// The sender's communication id, 0 if it has none.
        local_comm_id: u32 = (0, 0, 32),
        /// The receiver's, 0 if unknown.
        remote_comm_id: u32 = (4, 0, 32),
        /// Which message: 0 REQ, 1 REP, 2 none.
        message: u8 = (8, 0, 2),
        /// Why: [`super::reject`].
        reason: u16 = (10, 0, 16),
        /// Additional information, by reason.
        info: &'a [u8] = (12, 0, 8 * REJ_ARI_LEN),
        /// Private data.
        private_data: &'a [u8] = (private_at::REJ, 0, 8 * private_len::REJ),
    }

    /// REP: accepts (IBTA 12.6.8).
    Rep<'a> {
        /// The sender's communication id.
        local_comm_id: u32 = (0, 0, 32),
        /// The receiver's.
        remote_comm_id: u32 = (4, 0, 32),
        /// Q_Key, for what needs one; else 0.
        local_qkey: u32 = (8, 0, 32),
        /// The sender's QPN.
        local_qpn: u32 = (12, 0, 24),
        /// First PSN that the receiver shall send: what the sender expects.
        starting_psn: u32 = (20, 0, 24),
        /// READs and atomics that the sender serves at once.
        responder_resources: u8 = (24, 0, 8),
        /// READs and atomics that the sender will have outstanding.
        initiator_depth: u8 = (25, 0, 8),
        /// Timeout code of the sender's ACK delay.
        target_ack_delay: u8 = (26, 0, 5),
        /// 0: alternate path accepted.
        failover: u8 = (26, 5, 2),
        /// End-to-end credits.
        flow_control: bool = (26, 7, 1),
        /// RNR retries.
        rnr_retry_count: u8 = (27, 0, 3),
        /// The sender's QP has an SRQ.
        srq: bool = (27, 3, 1),
        /// The sender's CA GUID.
        local_ca_guid: u64 = (28, 0, 64),
        /// Private data.
        private_data: &'a [u8] = (private_at::REP, 0, 8 * private_len::REP),
    }

    /// The communication ids of RTU and DREP.
    Ids {
        /// The sender's.
        local_comm_id: u32 = (0, 0, 32),
        /// The receiver's.
        remote_comm_id: u32 = (4, 0, 32),
    }

    /// DREQ: ends a connection (IBTA 12.6.10).
    Dreq {
        /// The sender's communication id.
        local_comm_id: u32 = (0, 0, 32),
        /// The receiver's.
        remote_comm_id: u32 = (4, 0, 32),
        /// The receiver's QPN.
        remote_qpn: u32 = (8, 0, 24),
    }

    /// SIDR_REQ: asks for the UD QP of a service (IBTA 12.11.1).
    SidrReq<'a> {
        /// The sender's number for the question.
        request_id: u32 = (0, 0, 32),
        /// P_Key.
        pkey: u16 = (4, 0, 16),
        /// What is asked for.
        service_id: u64 = (8, 0, 64),
        /// Private data.
        private_data: &'a [u8] = (private_at::SIDR_REQ, 0, 8 * private_len::SIDR_REQ),
    }

    /// SIDR_REP: answers it (IBTA 12.11.2).
    SidrRep<'a> {
        /// The number of the question.
        request_id: u32 = (0, 0, 32),
        /// [`super::sidr_status`].
        status: u8 = (4, 0, 8),
        /// QPN of the service.
        qpn: u32 = (8, 0, 24),
        /// What was asked for.
        service_id: u64 = (12, 0, 64),
        /// Q_Key of the QP.
        qkey: u32 = (20, 0, 32),
        /// Private data.
        private_data: &'a [u8] = (private_at::SIDR_REP, 0, 8 * private_len::SIDR_REP),
    }
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

type Body = [u8; BODY];

/// Where a field lies in a body: byte, bit in it from the most significant on, and width in bits.
type BitField = (usize, usize, usize);

trait Field<'a> {
    fn read(body: &'a Body, place: BitField) -> Self;
    /// Writes it, as much of it as has room.
    fn write(&self, body: &mut Body, place: BitField);
}

/// A number of at most 64 bits, which lies in at most 8 bytes.
macro_rules! numbers {
    ($($ty:ty: |$n:ident| $of:expr;)*) => {$(
        impl Field<'_> for $ty {
            fn read(body: &Body, (byte, bit, width): BitField) -> $ty {
                let end = (bit + width).div_ceil(8);
                let all = body[byte..byte + end].iter().fold(0, |n, &b| n << 8 | u64::from(b));
                let $n = all >> (8 * end - bit - width) & (u64::MAX >> (64 - width));
                $of
            }
            fn write(&self, body: &mut Body, (byte, bit, width): BitField) {
                let end = (bit + width).div_ceil(8);
                let n = u64::from(*self) & (u64::MAX >> (64 - width));
                let bytes = (n << (8 * end - bit - width)).to_be_bytes();
                for (to, from) in body[byte..].iter_mut().zip(&bytes[8 - end..]) {
                    *to |= from;
                }
            }
        }
    )*};
}

numbers! {
    bool: |n| n != 0;
    u8: |n| n as u8;
    u16: |n| n as u16;
    u32: |n| n as u32;
    u64: |n| n;
}

impl<'a> Field<'a> for &'a [u8] {
    fn read(body: &'a Body, (byte, _, width): BitField) -> &'a [u8] {
        &body[byte..byte + width / 8]
    }
    fn write(&self, body: &mut Body, (byte, _, width): BitField) {
        let room = &mut body[byte..byte + width / 8];
        room.iter_mut().zip(*self).for_each(|(to, from)| *to = *from);
    }
}

/// A GID.
impl Field<'_> for [u8; 16] {
    fn read(body: &Body, place: BitField) -> [u8; 16] {
        <&[u8]>::read(body, place).first_chunk().copied().unwrap_or_default()
    }
    fn write(&self, body: &mut Body, place: BitField) {
        self.as_slice().write(body, place);
    }
}

/// Where REJ has the length of its additional information.
const INFO_LEN: BitField = (9, 0, 7);
/// The LIDs of a REQ, which say "see the GIDs".
const LIDS: core::ops::Range<usize> = 52..56;

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
        let message = match u16::from_be_bytes([head[16], head[17]]) {
            attribute::REQ => Message::Req(Req::parse(body)),
            attribute::MRA => Message::Mra(Mra::parse(body)),
            attribute::REJ => {
                let rej = Rej::parse(body);
                let len = usize::from(u8::read(body, INFO_LEN));
                Message::Rej(Rej { info: rej.info.get(..len).unwrap_or(rej.info), ..rej })
            }
            attribute::REP => Message::Rep(Rep::parse(body)),
            attribute::RTU => Message::Rtu(Ids::parse(body)),
            attribute::DREQ => Message::Dreq(Dreq::parse(body)),
            attribute::DREP => Message::Drep(Ids::parse(body)),
            attribute::SIDR_REQ => Message::SidrReq(SidrReq::parse(body)),
            attribute::SIDR_REP => Message::SidrRep(SidrRep::parse(body)),
            other => return Err(BadMad::Attribute(other)),
        };
        Ok(Mad { tid: u64::from_be_bytes(tid), message })
    }

    /// Writes the message. Private data that is too long is cut; additional information of a REJ
    /// that is too long is left out.
    pub fn emit(&self, bytes: &mut [u8; MAD_LEN]) {
        let mut body = [0; BODY];
        let id = self.message.emit(&mut body);
        let (head, rest) = bytes.split_at_mut(HEADER);
        head.fill(0);
        head[..4].copy_from_slice(&[1, CLASS_CM, CLASS_VERSION, METHOD_SEND]);
        head[8..16].copy_from_slice(&self.tid.to_be_bytes());
        head[16..18].copy_from_slice(&id.to_be_bytes());
        rest.copy_from_slice(&body);
    }
}

impl Message<'_> {
    /// Writes the message into a body of zeroes. Returns the attribute id.
    fn emit(&self, body: &mut Body) -> u16 {
        macro_rules! emit {
            ($m:expr, $id:ident) => {{
                $m.emit(body);
                attribute::$id
            }};
        }
        match *self {
            Message::Req(m) => {
                body[LIDS].fill(0xff);
                emit!(m, REQ)
            }
            Message::Mra(m) => emit!(m, MRA),
            Message::Rej(m) => {
                let info = if m.info.len() > REJ_ARI_LEN { &[] } else { m.info };
                (info.len() as u8).write(body, INFO_LEN);
                emit!(Rej { info, ..m }, REJ)
            }
            Message::Rep(m) => emit!(m, REP),
            Message::Rtu(m) => emit!(m, RTU),
            Message::Dreq(m) => emit!(m, DREQ),
            Message::Drep(m) => emit!(m, DREP),
            Message::SidrReq(m) => emit!(m, SIDR_REQ),
            Message::SidrRep(m) => emit!(m, SIDR_REP),
        }
    }
}

/// The attribute id of a message of the connection manager; `None`: it is none.
pub fn attribute_of(mad: Option<&[u8]>) -> Option<u16> {
    let head = mad?.first_chunk::<HEADER>()?;
    let is_cm = head[..4] == [1, CLASS_CM, CLASS_VERSION, METHOD_SEND];
    is_cm.then_some(u16::from_be_bytes([head[16], head[17]]))
}

/// The private data of a message, behind rdma_cm's own header; `None`: it has none.
pub fn private_data(mad: &mut [u8]) -> Option<&mut [u8]> {
    let at = match attribute_of(Some(mad))? {
        attribute::REQ => private_at::REQ + IP_HEADER_LEN,
        attribute::REJ => private_at::REJ,
        attribute::REP => private_at::REP,
        attribute::SIDR_REQ => private_at::SIDR_REQ + IP_HEADER_LEN,
        attribute::SIDR_REP => private_at::SIDR_REP,
        _ => return None,
    };
    mad.get_mut(HEADER + at..)
}

/// The transaction id of a REQ, and its sender's communication id; `None`: it is no REQ.
pub fn request_of(mad: &[u8]) -> Option<(u64, u32)> {
    match Mad::parse(mad) {
        Ok(Mad { tid, message: Message::Req(req) }) => Some((tid, req.local_comm_id)),
        _ => None,
    }
}

/// The REJ that refuses such a REQ for a reason, from a peer that has no communication id for it.
pub fn rejection((tid, remote_comm_id): (u64, u32), reason: u16) -> [u8; MAD_LEN] {
    let rej = Rej { local_comm_id: 0, remote_comm_id, message: 0, reason, ..Rej::default() };
    let mut mad = [0; MAD_LEN];
    Mad { tid, message: Message::Rej(rej) }.emit(&mut mad);
    mad
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
