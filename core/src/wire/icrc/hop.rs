//! The change of ICRCs from one flow to another, for many packets alike.

use super::{Bth, IcrcFlow, ICRC_LEN};

/// Differences of identifications that are remembered: those within a burst.
const KNOWN: usize = 16;

/// [`IcrcFlow::icrc_after`] for many packets that go from one flow to another. The change of the
/// ICRC depends on the flows, the packet's length, and the bits in which the identifications
/// differ. It is remembered for the flows and the length of the last packet.
///
/// # Thread-safety
/// One thread at a time.
#[derive(Clone, Debug, Default)]
pub struct Hop {
    flows: Option<(IcrcFlow, IcrcFlow)>,
    len: usize,
    /// Bits of the entries of `changes` that are valid.
    valid: u16,
    changes: [u32; KNOWN],
}

impl Hop {
    /// As `flow.icrc_after(ident, was, packet)`: some 2 ns if a packet of the same length, whose
    /// identifications differed in the same bits, went the same way before.
    #[inline]
    pub fn icrc_after(
        &mut self,
        flow: &IcrcFlow,
        ident: u16,
        was: (&IcrcFlow, u16),
        packet: &[u8],
    ) -> u32 {
        let Some(icrc) = packet.last_chunk::<ICRC_LEN>() else { return 0 };
        if packet.len() < Bth::LEN + ICRC_LEN {
            return 0;
        }
        let (icrc, flows) = (u32::from_le_bytes(*icrc), Some((*was.0, *flow)));
        if self.flows != flows || self.len != packet.len() {
            (self.flows, self.len, self.valid) = (flows, packet.len(), 0);
        }
        // The CRC is linear, and both have the identification as far from the packet's end, so only
        // their difference counts. IPv6 has none.
        let entry = usize::from(ident ^ was.1);
        let Some(change) = self.changes.get_mut(entry).filter(|_| flow.v6 == was.0.v6) else {
            return flow.icrc_after(ident, was, packet);
        };
        if self.valid & 1 << entry == 0 {
            *change = flow.icrc_after(ident, was, packet) ^ icrc;
            self.valid |= 1 << entry;
        }
        icrc ^ *change
    }
}
