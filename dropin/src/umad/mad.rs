//! A management datagram (IBTA 13.4): 256 bytes.

/// Its length, and that of the head that all classes have.
pub const MAD: usize = 256;
pub const HEAD: usize = 24;
/// Offset of the attribute, in the classes that are answered here.
pub const DATA: usize = 64;

/// Management classes.
pub mod class {
    pub const SMP: u8 = 0x01;
    pub const ADMINISTRATION: u8 = 0x03;
    pub const PERFORMANCE: u8 = 0x04;
    pub const COMMUNICATION: u8 = 0x07;
    /// Vendors' classes that name the vendor.
    pub const VENDORS: core::ops::RangeInclusive<u8> = 0x30..=0x4f;
    pub const DIRECTED: u8 = 0x81;
}

/// Methods; a response has the bit [`method::RESPONSE`].
pub mod method {
    pub const GET: u8 = 0x01;
    pub const SET: u8 = 0x02;
    pub const RESPONSE: u8 = 0x80;
}

/// Attributes of subnet management and of performance management.
pub mod attribute {
    pub const CLASS_PORT_INFO: u16 = 0x01;
    pub const NODE_DESCRIPTION: u16 = 0x10;
    pub const NODE_INFO: u16 = 0x11;
    pub const GUID_INFO: u16 = 0x14;
    pub const PORT_INFO: u16 = 0x15;
    pub const PKEY_TABLE: u16 = 0x16;
    pub const PORT_COUNTERS: u16 = 0x12;
    pub const PORT_COUNTERS_EXTENDED: u16 = 0x1d;
}

/// Values of the status.
pub mod status {
    pub const NO_SUCH_METHOD: u16 = 2 << 2;
    pub const NO_SUCH_ATTRIBUTE: u16 = 3 << 2;
    pub const INVALID_FIELD: u16 = 7 << 2;
}

/// The bit of a directed datagram's status: it is on its way back.
const ON_THE_WAY_BACK: u16 = 1 << 15;

/// A datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mad([u8; MAD]);

impl Mad {
    /// Reads the datagram that a program has written; short ones are padded with zeroes. `None`: no
    /// head, or longer than a datagram.
    pub fn parse(bytes: &[u8]) -> Option<Mad> {
        let mut mad = Mad([0; MAD]);
        if bytes.len() < HEAD {
            return None;
        }
        mad.0.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(mad)
    }

    pub fn bytes(&self) -> &[u8; MAD] {
        &self.0
    }

    #[cfg(test)]
    pub fn request(class: u8, method: u8, attribute: u16, modifier: u32) -> Mad {
        let mut mad = Mad([0; MAD]);
        mad.0[..4].copy_from_slice(&[1, class, 1, method]);
        mad.0[16..18].copy_from_slice(&attribute.to_be_bytes());
        mad.0[20..24].copy_from_slice(&modifier.to_be_bytes());
        mad
    }

    fn half(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.0[at], self.0[at + 1]])
    }

    pub fn class(&self) -> u8 {
        self.0[1]
    }

    pub fn method(&self) -> u8 {
        self.0[3]
    }

    /// Whether it answers a request: a response, or a repressed trap.
    pub fn is_response(&self) -> bool {
        self.method() & method::RESPONSE != 0 || self.method() == 0x07
    }

    #[cfg(test)]
    pub fn status(&self) -> u16 {
        self.half(4)
    }

    /// The number of links that a directed datagram must take.
    pub fn hops(&self) -> u8 {
        self.0[7]
    }

    pub fn transaction(&self) -> u64 {
        u64::from_be_bytes(*self.0[8..].first_chunk().unwrap_or(&[0; 8]))
    }

    pub fn set_transaction(&mut self, tid: u64) {
        self.0[8..16].copy_from_slice(&tid.to_be_bytes());
    }

    pub fn attribute(&self) -> u16 {
        self.half(16)
    }

    pub fn modifier(&self) -> u32 {
        u32::from_be_bytes([self.0[20], self.0[21], self.0[22], self.0[23]])
    }

    /// The vendor of a datagram of a vendor's class.
    pub fn oui(&self) -> [u8; 3] {
        [self.0[37], self.0[38], self.0[39]]
    }

    /// The attribute.
    #[cfg(test)]
    pub fn data(&self) -> &[u8] {
        &self.0[DATA..]
    }

    /// The first bytes of the attribute.
    pub fn data_mut(&mut self, len: usize) -> &mut [u8] {
        &mut self.0[DATA..DATA + len]
    }

    /// Turns a request into its response.
    pub fn respond(&mut self, status: u16) {
        self.0[3] |= method::RESPONSE;
        let back = if self.class() == class::DIRECTED { ON_THE_WAY_BACK } else { 0 };
        self.0[4..6].copy_from_slice(&(status | back).to_be_bytes());
    }
}
