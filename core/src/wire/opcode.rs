//! BTH opcodes: their names, their headers, and their place in a message.

use core::fmt;

/// The service that an opcode belongs to: its top three bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram, which RoCE does not use.
    Rd,
    /// Unreliable datagram.
    Ud,
    /// Congestion notification.
    Cnp,
    /// Extended reliable connection: the opcodes of RC, each request with an XRCETH.
    Xrc,
    /// DC in the format of this library ([`crate::wire::dceth`]), in the range that is left to
    /// manufacturers: the opcodes of RC, and one for packets that make and end associations.
    Dc,
    /// All others, also other opcodes of manufacturers.
    Other,
}

impl Class {
    /// The difference of its opcodes from those of RC that mean the same; 0 for classes with
    /// opcodes of their own.
    #[inline(always)]
    const fn above_rc(self) -> u8 {
        match self {
            Class::Xrc => XRC,
            Class::Dc => DC,
            Class::Rc | Class::Uc | Class::Rd | Class::Ud | Class::Cnp | Class::Other => 0,
        }
    }
}

/// Operation of a packet, whatever its place in the message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PacketKind {
    /// Not an opcode that this library knows.
    #[default]
    Unknown = 0,
    /// SEND, with or without immediate or invalidate.
    Send,
    /// RDMA WRITE, with or without immediate.
    Write,
    /// RDMA READ request.
    ReadRequest,
    /// RDMA READ response; also the answer to FLUSH and ATOMIC WRITE.
    ReadResponse,
    /// ACK or NAK.
    Ack,
    /// Answer to CMP_SWAP and FETCH_ADD.
    AtomicAck,
    /// Compare and swap.
    CmpSwap,
    /// Fetch and add.
    FetchAdd,
    /// FLUSH.
    Flush,
    /// ATOMIC WRITE of 8 bytes.
    AtomicWrite,
    /// Congestion notification packet.
    Cnp,
    /// Packet of DC that makes, keeps or ends an association.
    DcControl,
}

impl PacketKind {
    /// Whether a packet answers a request.
    #[inline(always)]
    pub const fn is_answer(self) -> bool {
        matches!(self, PacketKind::Ack | PacketKind::ReadResponse | PacketKind::AtomicAck)
    }

    /// The kind of its answer, if a request is not answered by an ACK.
    #[inline(always)]
    pub const fn answer(self) -> Option<PacketKind> {
        match self {
            PacketKind::ReadRequest | PacketKind::Flush | PacketKind::AtomicWrite => {
                Some(PacketKind::ReadResponse)
            }
            PacketKind::CmpSwap | PacketKind::FetchAdd => Some(PacketKind::AtomicAck),
            _ => None,
        }
    }

    /// Whether a READ response of no bytes answers it.
    #[inline(always)]
    pub const fn has_empty_answer(self) -> bool {
        matches!(self, PacketKind::Flush | PacketKind::AtomicWrite)
    }
}

/// A BTH opcode; any byte is one, [`Opcode::is_known`] says whether it means something here.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Opcode(pub u8);

const FIRST: u16 = 1 << 0;
const LAST: u16 = 1 << 1;
const ONLY: u16 = FIRST | LAST;
const MIDDLE: u16 = 0;
const IMM: u16 = 1 << 2;
const IETH: u16 = 1 << 3;
const RETH: u16 = 1 << 4;
const AETH: u16 = 1 << 5;
const DETH: u16 = 1 << 6;
const ATOMIC: u16 = 1 << 7;
const ATOMIC_ACK: u16 = 1 << 8;
const FETH: u16 = 1 << 9;
const PAYLOAD: u16 = 1 << 10;
const XRCETH: u16 = 1 << 11;

/// The difference of XRC's opcodes from those of RC.
const XRC: u8 = 0xA0;
/// The difference of DC's.
const DC: u8 = 0xC0;

#[derive(Clone, Copy)]
struct Info {
    name: &'static str,
    flags: u16,
    kind: PacketKind,
    header_len: u8,
}

const fn header_len(flags: u16) -> u8 {
    let mut len = 12;
    let sizes = [
        (IMM, 4),
        (IETH, 4),
        (RETH, 16),
        (AETH, 4),
        (DETH, 8),
        (ATOMIC, 28),
        (ATOMIC_ACK, 8),
        (FETH, 4),
        (XRCETH, 4),
    ];
    let mut i = 0;
    while i < sizes.len() {
        if flags & sizes[i].0 != 0 {
            len += sizes[i].1;
        }
        i += 1;
    }
    len
}

/// Flags of an XRC opcode, by kind and flags of RC's.
const fn xrc_flags(kind: PacketKind, flags: u16) -> u16 {
    match kind.is_answer() {
        true => flags,
        false => flags | XRCETH,
    }
}

const fn info(name: &'static str, kind: PacketKind, flags: u16) -> Info {
    Info { name, flags, kind, header_len: header_len(flags) }
}

/// The table of all opcodes; those of XRC and DC follow from those of RC.
macro_rules! opcodes {
    (
        rc { $($(#[$m:meta])* $rc:ident = $rc_value:literal, $rc_kind:ident, $rc_flags:expr;)* }
        $($(#[$n:meta])* $name:ident = $value:literal, $kind:ident, $flags:expr;)*
    ) => {
        impl Opcode {
            $($(#[$m])* pub const $rc: Opcode = Opcode($rc_value);)*
            $($(#[$n])* pub const $name: Opcode = Opcode($value);)*
            /// Every opcode that this library knows, in ascending order.
            pub const ALL: &'static [Opcode] = &[
                $(Opcode::$rc,)*
                $(Opcode::$name,)*
                $(Opcode::$rc.of_xrc(),)*
                $(Opcode::$rc.of_dc(),)*
                Opcode::DC_CONTROL,
            ];
        }
        static TABLE: [Info; 256] = {
            let mut table = [info("?", PacketKind::Unknown, 0); 256];
            $(
                table[$rc_value] = info(stringify!($rc), PacketKind::$rc_kind, $rc_flags);
                table[$rc_value | XRC as usize] = info(
                    concat!("X", stringify!($rc)),
                    PacketKind::$rc_kind,
                    xrc_flags(PacketKind::$rc_kind, $rc_flags),
                );
                table[$rc_value | DC as usize] =
                    info(concat!("D", stringify!($rc)), PacketKind::$rc_kind, $rc_flags);
            )*
            $(table[$value] = info(stringify!($name), PacketKind::$kind, $flags);)*
            table[Opcode::DC_CONTROL.0 as usize] =
                info("DC_CONTROL", PacketKind::DcControl, ONLY | PAYLOAD);
            table
        };
    };
}

// rxe rxe_opcode.c rxe_opcode: The opcode says which headers follow and where in its message the
// packet stands.
// Annex A14 of IBTA: XRC has the opcodes of RC plus A0 hex, and each request has an XRCETH behind
// the BTH.
opcodes! {
    rc {
        /// RC SEND, first packet.
        RC_SEND_FIRST = 0x00, Send, FIRST | PAYLOAD;
        /// RC SEND, middle packet.
        RC_SEND_MIDDLE = 0x01, Send, MIDDLE | PAYLOAD;
        /// RC SEND, last packet.
        RC_SEND_LAST = 0x02, Send, LAST | PAYLOAD;
        /// RC SEND, last packet with immediate.
        RC_SEND_LAST_IMM = 0x03, Send, LAST | IMM | PAYLOAD;
        /// RC SEND in one packet.
        RC_SEND_ONLY = 0x04, Send, ONLY | PAYLOAD;
        /// RC SEND in one packet with immediate.
        RC_SEND_ONLY_IMM = 0x05, Send, ONLY | IMM | PAYLOAD;
        /// RC RDMA WRITE, first packet.
        RC_WRITE_FIRST = 0x06, Write, FIRST | RETH | PAYLOAD;
        /// RC RDMA WRITE, middle packet.
        RC_WRITE_MIDDLE = 0x07, Write, MIDDLE | PAYLOAD;
        /// RC RDMA WRITE, last packet.
        RC_WRITE_LAST = 0x08, Write, LAST | PAYLOAD;
        /// RC RDMA WRITE, last packet with immediate.
        RC_WRITE_LAST_IMM = 0x09, Write, LAST | IMM | PAYLOAD;
        /// RC RDMA WRITE in one packet.
        RC_WRITE_ONLY = 0x0A, Write, ONLY | RETH | PAYLOAD;
        /// RC RDMA WRITE in one packet with immediate.
        RC_WRITE_ONLY_IMM = 0x0B, Write, ONLY | RETH | IMM | PAYLOAD;
        /// RC RDMA READ request.
        RC_READ_REQUEST = 0x0C, ReadRequest, ONLY | RETH;
        /// RC RDMA READ response, first packet.
        RC_READ_RESPONSE_FIRST = 0x0D, ReadResponse, FIRST | AETH | PAYLOAD;
        /// RC RDMA READ response, middle packet.
        RC_READ_RESPONSE_MIDDLE = 0x0E, ReadResponse, MIDDLE | PAYLOAD;
        /// RC RDMA READ response, last packet.
        RC_READ_RESPONSE_LAST = 0x0F, ReadResponse, LAST | AETH | PAYLOAD;
        /// RC RDMA READ response in one packet.
        RC_READ_RESPONSE_ONLY = 0x10, ReadResponse, ONLY | AETH | PAYLOAD;
        /// RC ACK or NAK.
        RC_ACK = 0x11, Ack, ONLY | AETH;
        /// RC answer to an atomic.
        RC_ATOMIC_ACK = 0x12, AtomicAck, ONLY | AETH | ATOMIC_ACK;
        /// RC compare and swap.
        RC_CMP_SWAP = 0x13, CmpSwap, ONLY | ATOMIC;
        /// RC fetch and add.
        RC_FETCH_ADD = 0x14, FetchAdd, ONLY | ATOMIC;
        /// RC SEND, last packet with an rkey to invalidate.
        RC_SEND_LAST_INV = 0x16, Send, LAST | IETH | PAYLOAD;
        /// RC SEND in one packet with an rkey to invalidate.
        RC_SEND_ONLY_INV = 0x17, Send, ONLY | IETH | PAYLOAD;
        /// RC FLUSH.
        RC_FLUSH = 0x1C, Flush, ONLY | FETH | RETH;
        /// RC ATOMIC WRITE of 8 bytes.
        RC_ATOMIC_WRITE = 0x1D, AtomicWrite, ONLY | RETH | PAYLOAD;
    }

    /// UC SEND, first packet.
    UC_SEND_FIRST = 0x20, Send, FIRST | PAYLOAD;
    /// UC SEND, middle packet.
    UC_SEND_MIDDLE = 0x21, Send, MIDDLE | PAYLOAD;
    /// UC SEND, last packet.
    UC_SEND_LAST = 0x22, Send, LAST | PAYLOAD;
    /// UC SEND, last packet with immediate.
    UC_SEND_LAST_IMM = 0x23, Send, LAST | IMM | PAYLOAD;
    /// UC SEND in one packet.
    UC_SEND_ONLY = 0x24, Send, ONLY | PAYLOAD;
    /// UC SEND in one packet with immediate.
    UC_SEND_ONLY_IMM = 0x25, Send, ONLY | IMM | PAYLOAD;
    /// UC RDMA WRITE, first packet.
    UC_WRITE_FIRST = 0x26, Write, FIRST | RETH | PAYLOAD;
    /// UC RDMA WRITE, middle packet.
    UC_WRITE_MIDDLE = 0x27, Write, MIDDLE | PAYLOAD;
    /// UC RDMA WRITE, last packet.
    UC_WRITE_LAST = 0x28, Write, LAST | PAYLOAD;
    /// UC RDMA WRITE, last packet with immediate.
    UC_WRITE_LAST_IMM = 0x29, Write, LAST | IMM | PAYLOAD;
    /// UC RDMA WRITE in one packet.
    UC_WRITE_ONLY = 0x2A, Write, ONLY | RETH | PAYLOAD;
    /// UC RDMA WRITE in one packet with immediate.
    UC_WRITE_ONLY_IMM = 0x2B, Write, ONLY | RETH | IMM | PAYLOAD;

    /// UD SEND.
    UD_SEND_ONLY = 0x64, Send, ONLY | DETH | PAYLOAD;
    /// UD SEND with immediate.
    UD_SEND_ONLY_IMM = 0x65, Send, ONLY | DETH | IMM | PAYLOAD;

    /// Congestion notification: 16 zero bytes after the BTH.
    CNP = 0x81, Cnp, ONLY | PAYLOAD;
}

/// How many kinds there are.
pub(crate) const KINDS: usize = PacketKind::DcControl as usize + 1;

/// [`Opcode::whole`] of each kind.
static WHOLE: [Opcode; KINDS] = {
    let mut all = [Opcode::CNP; KINDS];
    let mut i = 0;
    while i < Opcode::ALL.len() {
        let op = Opcode::ALL[i];
        if matches!(op.class(), Class::Rc | Class::Cnp) || op.0 == Opcode::DC_CONTROL.0 {
            all[op.kind() as usize] = op;
        }
        i += 1;
    }
    all
};

/// Questions that one flag of an opcode answers.
macro_rules! flags {
    ($($(#[$m:meta])* $name:ident = $flag:ident;)*) => {
        $($(#[$m])*
        #[inline]
        pub const fn $name(self) -> bool {
            self.info().flags & $flag != 0
        })*
    };
}

impl Opcode {
    /// DC: makes, keeps or ends an association; a [`DcEth`](crate::wire::dceth::DcEth) is its
    /// payload.
    pub const DC_CONTROL: Opcode = Opcode(DC | 0x1E);

    #[inline]
    const fn info(self) -> &'static Info {
        // 256 entries and a byte as index: the bound check folds away.
        &TABLE[self.0 as usize]
    }

    /// The service that the opcode belongs to.
    #[inline]
    pub const fn class(self) -> Class {
        match self.0 >> 5 {
            0 => Class::Rc,
            1 => Class::Uc,
            2 => Class::Rd,
            3 => Class::Ud,
            5 => Class::Xrc,
            6 => Class::Dc,
            _ if self.0 == 0x81 => Class::Cnp,
            _ => Class::Other,
        }
    }

    /// Whether its class is [`Class::Dc`].
    #[inline(always)]
    pub const fn is_of_dc(self) -> bool {
        self.0 & 0xE0 == DC
    }

    /// Operation of the packet; [`PacketKind::Unknown`] for opcodes that are not known.
    #[inline]
    pub const fn kind(self) -> PacketKind {
        self.info().kind
    }

    /// Whether this library knows the opcode; RD is unknown.
    #[inline]
    pub const fn is_known(self) -> bool {
        !matches!(self.info().kind, PacketKind::Unknown)
    }

    flags! {
        /// Whether the packet begins a message (FIRST and ONLY).
        is_first = FIRST;
        /// Whether the packet ends a message (LAST and ONLY).
        is_last = LAST;
        /// Whether an ImmDt follows.
        has_imm = IMM;
        /// Whether an IETH follows.
        has_ieth = IETH;
        /// Whether a RETH follows.
        has_reth = RETH;
        /// Whether an AETH follows.
        has_aeth = AETH;
        /// Whether a DETH follows.
        has_deth = DETH;
        /// Whether an AtomicETH follows.
        has_atomic_eth = ATOMIC;
        /// Whether an AtomicAckETH follows.
        has_atomic_ack = ATOMIC_ACK;
        /// Whether a FETH follows.
        has_feth = FETH;
        /// Whether an XRCETH follows.
        has_xrceth = XRCETH;
        /// Whether bytes may follow the headers.
        has_payload = PAYLOAD;
    }

    /// The opcode of XRC for one of RC.
    #[inline]
    pub const fn of_xrc(self) -> Opcode {
        Opcode(self.0 | XRC)
    }

    /// The opcode of a class for one of RC.
    #[inline(always)]
    pub const fn rc_to_class(self, class: Class) -> Opcode {
        Opcode(self.0 | class.above_rc())
    }

    /// The opcode of a kind that is always one packet: of RC, the CNP, or DC control.
    #[inline(always)]
    pub(crate) fn whole(kind: PacketKind) -> Opcode {
        WHOLE[kind as usize]
    }

    /// The opcode of RC for an opcode of a class. An opcode of another class becomes none of RC's.
    #[inline(always)]
    pub const fn class_to_rc(self, class: Class) -> Opcode {
        Opcode(self.0 ^ class.above_rc())
    }

    /// The opcode of DC for one of RC.
    #[inline]
    pub const fn of_dc(self) -> Opcode {
        Opcode(self.0 | DC)
    }

    /// Bytes of the BTH and the extended headers; 12 for unknown opcodes.
    #[inline]
    pub const fn header_len(self) -> usize {
        self.info().header_len as usize
    }

    /// The opcode's name as the constants have it, `"?"` where unknown.
    pub const fn name(self) -> &'static str {
        self.info().name
    }

    /// The RC SEND opcode for a packet's place; `imm` and `inv` count on last packets only, `imm`
    /// wins.
    #[inline]
    pub const fn rc_send(first: bool, last: bool, imm: bool, inv: bool) -> Opcode {
        match (first, last, imm, inv) {
            (true, true, true, _) => Opcode::RC_SEND_ONLY_IMM,
            (true, true, false, true) => Opcode::RC_SEND_ONLY_INV,
            (true, true, false, false) => Opcode::RC_SEND_ONLY,
            (false, true, true, _) => Opcode::RC_SEND_LAST_IMM,
            (false, true, false, true) => Opcode::RC_SEND_LAST_INV,
            (false, true, false, false) => Opcode::RC_SEND_LAST,
            (true, false, ..) => Opcode::RC_SEND_FIRST,
            (false, false, ..) => Opcode::RC_SEND_MIDDLE,
        }
    }

    /// The RC WRITE opcode for a packet's place; `imm` counts on last packets only.
    #[inline]
    pub const fn rc_write(first: bool, last: bool, imm: bool) -> Opcode {
        match (first, last, imm) {
            (true, true, true) => Opcode::RC_WRITE_ONLY_IMM,
            (true, true, false) => Opcode::RC_WRITE_ONLY,
            (false, true, true) => Opcode::RC_WRITE_LAST_IMM,
            (false, true, false) => Opcode::RC_WRITE_LAST,
            (true, false, _) => Opcode::RC_WRITE_FIRST,
            (false, false, _) => Opcode::RC_WRITE_MIDDLE,
        }
    }

    /// The READ response opcode for a packet's place.
    #[inline]
    pub const fn read_response(first: bool, last: bool) -> Opcode {
        match (first, last) {
            (true, true) => Opcode::RC_READ_RESPONSE_ONLY,
            (true, false) => Opcode::RC_READ_RESPONSE_FIRST,
            (false, true) => Opcode::RC_READ_RESPONSE_LAST,
            (false, false) => Opcode::RC_READ_RESPONSE_MIDDLE,
        }
    }

    /// The UC SEND opcode for a packet's place; `imm` counts on last packets only.
    #[inline]
    pub const fn uc_send(first: bool, last: bool, imm: bool) -> Opcode {
        Opcode(Opcode::rc_send(first, last, imm, false).0 | 0x20)
    }

    /// The UC WRITE opcode for a packet's place; `imm` counts on last packets only.
    #[inline]
    pub const fn uc_write(first: bool, last: bool, imm: bool) -> Opcode {
        Opcode(Opcode::rc_write(first, last, imm).0 | 0x20)
    }

    /// The UD SEND opcode.
    #[inline]
    pub const fn ud_send(imm: bool) -> Opcode {
        if imm {
            Opcode::UD_SEND_ONLY_IMM
        } else {
            Opcode::UD_SEND_ONLY
        }
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_known() {
            f.write_str(self.name())
        } else {
            write!(f, "Opcode({:#04x})", self.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // rxe rxe_opcode.c rxe_opcode
    #[test]
    fn lengths_and_places() {
        assert_eq!(Opcode::ALL.len(), 91);
        assert_eq!((0..=255).filter(|&b| Opcode(b).is_known()).count(), 91);
        assert_eq!(Opcode::RC_ACK.header_len(), 16);
        assert_eq!(Opcode::RC_ATOMIC_ACK.header_len(), 24);
        assert_eq!(Opcode::RC_CMP_SWAP.header_len(), 40);
        assert_eq!(Opcode::RC_WRITE_ONLY_IMM.header_len(), 32);
        assert_eq!(Opcode::RC_FLUSH.header_len(), 32);
        assert_eq!(Opcode::UD_SEND_ONLY_IMM.header_len(), 24);
        assert!(!Opcode::RC_READ_RESPONSE_MIDDLE.has_aeth());
        assert!(Opcode::ALL.iter().all(|op| op.header_len() % 4 == 0));
        assert!(Opcode::ALL.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }

    #[test]
    fn builders_keep_the_place() {
        for bits in 0..16u8 {
            let [first, last, imm, inv] = [1, 2, 4, 8].map(|bit| bits & bit != 0);
            let built = [
                (Opcode::rc_send(first, last, imm, inv), Class::Rc, PacketKind::Send),
                (Opcode::rc_write(first, last, imm), Class::Rc, PacketKind::Write),
                (Opcode::read_response(first, last), Class::Rc, PacketKind::ReadResponse),
                (Opcode::uc_send(first, last, imm), Class::Uc, PacketKind::Send),
                (Opcode::uc_write(first, last, imm), Class::Uc, PacketKind::Write),
            ];
            for (op, class, kind) in built {
                assert_eq!(
                    (op.is_first(), op.is_last(), op.class(), op.kind()),
                    (first, last, class, kind),
                    "{op:?}"
                );
                assert_eq!(op.has_imm(), last && imm && kind != PacketKind::ReadResponse, "{op:?}");
            }
            assert_eq!(Opcode::rc_send(first, last, imm, inv).has_ieth(), last && inv && !imm);
            assert_eq!(Opcode::ud_send(imm).has_imm(), imm);
        }
    }

    #[test]
    fn xrc_has_the_opcodes_of_rc_and_a_header_more_in_each_request() {
        for rc in (0..0x20).map(Opcode) {
            let xrc = rc.of_xrc();
            assert_eq!((xrc.kind(), xrc.is_known()), (rc.kind(), rc.is_known()), "{xrc:?}");
            assert_eq!((xrc.is_first(), xrc.is_last()), (rc.is_first(), rc.is_last()), "{xrc:?}");
            assert_eq!((rc.class(), xrc.class()), (Class::Rc, Class::Xrc));
            if !rc.is_known() {
                continue;
            }
            let more = if rc.kind().is_answer() { 0 } else { 4 };
            assert_eq!(xrc.header_len(), rc.header_len() + more, "{xrc:?}");
            assert_eq!((rc.has_xrceth(), xrc.has_xrceth()), (false, more > 0), "{xrc:?}");
            assert_eq!(xrc.name(), std::format!("X{}", rc.name()));
        }
    }

    #[test]
    fn dc_has_the_opcodes_of_rc_with_the_same_headers() {
        for rc in (0..0x1e).map(Opcode) {
            let dc = rc.of_dc();
            assert_eq!((dc.kind(), dc.is_known()), (rc.kind(), rc.is_known()), "{dc:?}");
            assert_eq!((dc.is_first(), dc.is_last()), (rc.is_first(), rc.is_last()), "{dc:?}");
            assert_eq!((dc.class(), dc.header_len()), (Class::Dc, rc.header_len()), "{dc:?}");
            if rc.is_known() {
                assert_eq!(dc.name(), std::format!("D{}", rc.name()));
            }
        }
        let control = Opcode::DC_CONTROL;
        assert_eq!((control.0, control.class(), control.header_len()), (0xDE, Class::Dc, 12));
        assert!(!Opcode(0xDF).is_known());
    }

    // rxe rxe_opcode.c rxe_opcode
    #[test]
    fn classes() {
        assert_eq!(Opcode::CNP.class(), Class::Cnp);
        assert_eq!(Opcode(0x44).class(), Class::Rd);
        assert_eq!(Opcode(0xE0).class(), Class::Other);
        assert_eq!(Opcode(0x80).class(), Class::Other);
        assert_eq!(Opcode(0x15).class(), Class::Rc);
        assert!(!Opcode(0x15).is_known());
    }
}
