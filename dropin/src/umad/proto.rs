//! The messages between programs and the kernel's umad (`<rdma/ib_user_mad.h>`, ABI 5).

use super::mad::{Mad, MAD};

/// The head of a datagram that a program writes or reads, before its 256 bytes. Programs that did
/// not request P_Key indexes use the shorter one.
pub const HEAD: usize = 64;
pub const OLD_HEAD: usize = 56;

/// Limit of the bytes read of a program's write: one more than the longest message, so that longer
/// ones are noticed.
pub const ROOM: usize = HEAD + MAD + 1;

/// A head. Fields in network byte order are stored as the program has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UmadHeader([u8; HEAD]);

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_ne_bytes(*b))
}

impl UmadHeader {
    /// Splits a program's write into head and datagram. `len`: bytes of the file's heads. `None`:
    /// too short or too long.
    pub fn split(bytes: &[u8], len: usize) -> Option<(UmadHeader, Mad)> {
        let mut head = [0; HEAD];
        head[..len].copy_from_slice(bytes.get(..len)?);
        Some((UmadHeader(head), Mad::parse(&bytes[len..])?))
    }

    /// The head of an unsolicited datagram: the sender's GID, and its LID if it has one.
    pub fn from_sender(gid: &[u8; 16], lid: u16) -> UmadHeader {
        let mut head = UmadHeader([0; HEAD]);
        head.0[20..24].copy_from_slice(&1u32.to_be_bytes());
        head.0[28..30].copy_from_slice(&lid.to_be_bytes());
        head.0[32] = 1;
        head.0[36..52].copy_from_slice(gid);
        head
    }

    pub fn agent(&self) -> u32 {
        word(&self.0, 0)
    }

    pub fn timeout_ms(&self) -> u32 {
        word(&self.0, 8)
    }

    pub fn retries(&self) -> u32 {
        word(&self.0, 12)
    }

    pub fn lid(&self) -> u16 {
        u16::from_be_bytes([self.0[28], self.0[29]])
    }

    /// The GID of the other end, if there is a GRH.
    pub fn gid(&self) -> Option<[u8; 16]> {
        (self.0[32] != 0).then(|| *self.0[36..].first_chunk().unwrap_or(&[0; 16]))
    }

    /// A message for the program: a head with this agent and status (an errno), then `mad`. `len`:
    /// bytes of the file's heads.
    pub fn message(&self, agent: u32, status: i32, mad: &[u8], len: usize) -> Vec<u8> {
        let mut all = Vec::with_capacity(len + mad.len());
        all.extend_from_slice(&self.0[..len]);
        all.extend_from_slice(mad);
        for (at, value) in [(0, agent), (4, status as u32), (8, 0), (12, 0)] {
            all[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        }
        let whole = all.len() as u32;
        all[16..20].copy_from_slice(&whole.to_ne_bytes());
        all
    }
}

/// Commands of ioctl(2): their numbers, which contain the size of the argument.
pub const REGISTER: u64 = 0xc01c_1b01;
pub const UNREGISTER: u64 = 0x4004_1b02;
pub const ENABLE_PKEY: u64 = 0x0000_1b03;
pub const REGISTER_2: u64 = 0xc028_1b04;

/// Bytes of the argument of [`REGISTER`] and [`REGISTER_2`].
pub const REGISTER_LEN: usize = 28;
pub const REGISTER_2_LEN: usize = 40;

/// An agent: a program that sends requests of a class, and may get some.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    pub qpn: u32,
    pub class: u8,
    /// The methods of the requests that it gets, one bit each.
    pub methods: u128,
    pub oui: [u8; 3],
    /// Flags of [`REGISTER_2`].
    pub flags: u32,
}

impl Agent {
    /// The argument of [`REGISTER`], of 28 bytes.
    pub fn parse(b: &[u8; REGISTER_LEN]) -> Agent {
        let mut methods = [0; 16];
        methods.copy_from_slice(&b[4..20]);
        let (qpn, class) = (b[20].into(), b[21]);
        let methods = u128::from_ne_bytes(methods);
        Agent { qpn, class, methods, oui: [b[23], b[24], b[25]], flags: 0 }
    }

    /// The argument of [`REGISTER_2`], of 40 bytes.
    pub fn of_second(b: &[u8; REGISTER_2_LEN]) -> Agent {
        let mut methods = [0; 16];
        methods.copy_from_slice(&b[16..32]);
        let [_, oui @ ..] = word(b, 32).to_be_bytes();
        let (qpn, class, flags) = (word(b, 4), b[8], word(b, 12));
        Agent { qpn, class, methods: u128::from_ne_bytes(methods), oui, flags }
    }

    /// Whether a request from another port is for this agent.
    pub fn takes(&self, mad: &Mad) -> bool {
        self.class == mad.class()
            && self.methods >> (mad.method() & 0x7f) & 1 != 0
            && (!super::mad::class::VENDORS.contains(&self.class) || self.oui == mad.oui())
    }

    /// Whether two agents would get the same requests.
    pub fn overlaps(&self, other: &Agent) -> bool {
        self.class == other.class && self.methods & other.methods != 0 && self.oui == other.oui
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registrations_of_both_forms_mean_the_same() {
        let mut first = [0u8; REGISTER_LEN];
        first[4] = 2;
        first[20..26].copy_from_slice(&[1, 0x32, 1, 0, 0x14, 5]);
        let mut second = [0u8; REGISTER_2_LEN];
        second[4..8].copy_from_slice(&1u32.to_ne_bytes());
        second[8..10].copy_from_slice(&[0x32, 1]);
        second[16] = 2;
        second[32..36].copy_from_slice(&0x1405u32.to_ne_bytes());
        let agent = Agent::parse(&first);
        assert_eq!(agent, Agent::of_second(&second));
        let mut request = Mad::request(0x32, 1, 0, 0);
        assert!(!agent.takes(&request), "of another vendor");
        let mut bytes = *request.bytes();
        bytes[37..40].copy_from_slice(&[0, 0x14, 5]);
        request = Mad::parse(&bytes).unwrap();
        assert!(agent.takes(&request));
        bytes[3] = 2;
        assert!(!agent.takes(&Mad::parse(&bytes).unwrap()), "of another method");
        assert!(agent.overlaps(&agent) && !agent.overlaps(&Agent { methods: 4, ..agent.clone() }));
    }

    #[test]
    fn heads_have_two_lengths() {
        let mad = Mad::request(4, 1, 0x12, 0);
        for len in [HEAD, OLD_HEAD] {
            let bytes = UmadHeader::from_sender(&[7; 16], 5).message(3, 0, mad.bytes(), len);
            assert_eq!(bytes.len(), len + MAD);
            let (head, back) = UmadHeader::split(&bytes, len).unwrap();
            assert_eq!((head.agent(), head.lid(), head.gid()), (3, 5, Some([7; 16])));
            assert_eq!(back, mad);
            assert_eq!(UmadHeader::split(&bytes[..len + 23], len), None);
            assert_eq!(UmadHeader::split(&bytes[..len - 1], len), None);
        }
        let longer = [0; HEAD + MAD + 1];
        assert_eq!(UmadHeader::split(&longer, HEAD), None);
    }
}
