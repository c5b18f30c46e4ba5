//! Words and attributes of netlink messages (netlink(7), rtnetlink(7)), in the machine's byte
//! order.

/// Attributes behind a netlink struct: type and value.
pub(super) fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    core::iter::from_fn(move || {
        let (len, kind) = rest.get(..4).map(|h| (usize::from(half(h, 0)), half(h, 2)))?;
        let value = rest.get(4..len)?;
        rest = rest.get((len + 3) & !3..).unwrap_or(&[]);
        // The two highest bits are flags.
        Some((kind & 0x3fff, value))
    })
}

pub(super) fn word(b: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

pub(super) fn half(b: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([b[at], b[at + 1]])
}
