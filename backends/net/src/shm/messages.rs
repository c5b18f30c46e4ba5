//! Messages about loans of memory, between the two ends of a link: what is asked for, and what is
//! lent.

use super::ring::LOANS;

/// First bytes of the messages: name and version.
pub(super) const ASK: [u8; 8] = *b"gdrask\x01\0";
pub(super) const LOAN: [u8; 8] = *b"gdrlon\x01\0";
/// Of loans by address: only said to those who offer them, and to those who ask for them.
pub(super) const ASK_FAR: [u8; 8] = *b"gdrakf\x01\0";
const LOAN_FAR: [u8; 8] = *b"gdrlnf\x01\0";
/// Bytes of the messages.
pub(super) const ASK_LEN: usize = 24;
pub(super) const LOAN_LEN: usize = 56;

/// Between which queue pairs, and with which key of the lender's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The borrower's QPN.
    pub from_qpn: u32,
    /// The lender's QPN.
    pub qpn: u32,
    /// The lender's key.
    pub rkey: u32,
}

/// A loan as it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loan {
    pub(super) ask: Ask,
    pub(super) number: u32,
    pub(super) serial: u32,
    pub(super) iova: u64,
    pub(super) length: u64,
    /// Where the region begins in what the descriptor stands for; or the lender's address of it.
    pub(super) offset: u64,
    /// There is no descriptor.
    pub(super) far: bool,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn long(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

impl Ask {
    pub(super) fn emit(&self, head: [u8; 8]) -> [u8; ASK_LEN] {
        let mut bytes = [0; ASK_LEN];
        bytes[..8].copy_from_slice(&head);
        for (at, value) in [(8, self.from_qpn), (12, self.qpn), (16, self.rkey)] {
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    fn fields(bytes: &[u8]) -> Ask {
        Ask { from_qpn: word(bytes, 8), qpn: word(bytes, 12), rkey: word(bytes, 16) }
    }

    /// And whether a loan by address is meant. `None`: these bytes are none.
    pub(super) fn parse(bytes: &[u8]) -> Option<(Ask, bool)> {
        let (head, _) = bytes.split_first_chunk()?;
        let known = bytes.len() == ASK_LEN && [ASK, ASK_FAR].contains(head);
        known.then(|| (Ask::fields(bytes), *head == ASK_FAR))
    }
}

impl Loan {
    pub(super) fn emit(&self) -> [u8; LOAN_LEN] {
        let mut bytes = [0; LOAN_LEN];
        bytes[..ASK_LEN].copy_from_slice(&self.ask.emit(if self.far { LOAN_FAR } else { LOAN }));
        bytes[20..24].copy_from_slice(&self.number.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.serial.to_le_bytes());
        for (at, value) in [(32, self.iova), (40, self.length), (48, self.offset)] {
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    /// `None`: these bytes are none, or the kind that comes with a descriptor (`!far`) or without.
    pub(super) fn parse(bytes: &[u8], far: bool) -> Option<Loan> {
        let head = if far { LOAN_FAR } else { LOAN };
        (bytes.len() == LOAN_LEN && bytes[..8] == head).then(|| Loan {
            ask: Ask::fields(bytes),
            number: word(bytes, 20),
            serial: word(bytes, 24),
            iova: long(bytes, 32),
            length: long(bytes, 40),
            offset: long(bytes, 48),
            far,
        })
    }

    /// Whether the numbers can be true.
    pub(super) fn is_sound(&self) -> bool {
        self.number < LOANS as u32
            && self.serial != 0
            && self.length != 0
            && self.iova.checked_add(self.length - 1).is_some()
            && self.offset.checked_add(self.length - 1).is_some()
    }
}
