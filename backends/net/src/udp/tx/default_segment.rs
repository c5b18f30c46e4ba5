//! The socket's own segment size, by which single bursts of one kind leave without ancillary data.

use super::UdpPort;
use crate::sys::set_option;
use crate::udp::SMALL;

/// The socket's own segment size (UDP_SEGMENT as an option): a longer datagram without ancillary
/// data is segmented by it. It pays because a program that exchanges messages of one size sends
/// bursts of one segment size.
///
/// With a size set, the kernel checks every datagram as one to be segmented: whether the link can
/// segment, and whether a segment fits its MTU. So the size stays within [`DefaultSegment::SIZES`],
/// and the first refusal clears it for good.
#[derive(Clone, Copy, Default)]
pub(super) struct DefaultSegment {
    /// 0: none.
    pub(super) size: u16,
    /// The size that the last bursts needed instead, and the number of those bursts.
    wanted: u16,
    times: u8,
    /// The kernel has refused a send while a size was set.
    off: bool,
}

impl DefaultSegment {
    /// The allowed sizes: from the longest datagram that may be sent without the port, up to sizes
    /// that fit any link.
    const SIZES: core::ops::RangeInclusive<u16> = SMALL as u16..=500;
    /// Consecutive bursts after which the size changes.
    const TIMES: u8 = 16;

    /// Whether a burst is segmented right without ancillary data.
    #[inline]
    pub(super) fn suits(&self, len: usize, seg: u16) -> bool {
        let own = usize::from(self.size);
        if len > usize::from(seg) {
            seg == self.size && seg != 0
        } else {
            own == 0 || len <= own
        }
    }
}

impl UdpPort {
    /// Clears the socket's own segment size for good.
    #[cold]
    pub(super) fn clear_default_segment(&mut self) {
        self.tx.default_segment.off = true;
        if self.tx.default_segment.size != 0
            && set_option(self.fd.raw(), libc::SOL_UDP, libc::UDP_SEGMENT, 0i32).is_ok()
        {
            self.tx.default_segment.size = 0;
        }
    }

    /// Notes a single burst that needs ancillary data: after several bursts of one kind, their
    /// segment size becomes the socket's own.
    pub(super) fn adapt_default_segment(&mut self, i: usize) {
        let s = *self.tx.slot(i);
        let size = if s.len > u32::from(s.seg) { s.seg } else { 0 };
        let default_segment = &mut self.tx.default_segment;
        if default_segment.off
            || !self.gso
            || size == default_segment.size
            || size != 0 && !DefaultSegment::SIZES.contains(&size)
        {
            return;
        }
        default_segment.times =
            if default_segment.wanted == size { default_segment.times + 1 } else { 1 };
        default_segment.wanted = size;
        if default_segment.times == DefaultSegment::TIMES {
            default_segment.times = 0;
            // The ancillary data of this burst is right under either size.
            if set_option(self.fd.raw(), libc::SOL_UDP, libc::UDP_SEGMENT, i32::from(size)).is_ok()
            {
                self.tx.default_segment.size = size;
                self.tx.write_headers(i);
            } else {
                self.tx.default_segment.off = true;
            }
        }
    }
}
