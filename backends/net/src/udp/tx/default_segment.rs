//! The socket's own segment size, by which single bursts of one kind leave without ancillary data.

use super::UdpPort;
use crate::sys::set_option;
use crate::udp::SMALL;

/// The socket's own segment size (the option UDP_SEGMENT), by which the kernel segments a longer
/// datagram that has no ancillary data. It pays for programs whose messages have one size, because
/// then their bursts have one segment size.
///
/// While it is set, the kernel checks each datagram, also a short one, as one to be segmented:
/// whether the link can segment, and whether a segment fits its MTU. So the size stays within
/// [`DefaultSegment::SIZES`], and the first refusal clears it for good.
#[derive(Clone, Copy, Default)]
pub(super) struct DefaultSegment {
    /// 0: none.
    pub(super) size: u16,
    /// The size that the latest bursts needed instead, and their number.
    wanted: u16,
    wanted_times: u8,
    /// The kernel has refused a send while a size was set.
    given_up: bool,
}

impl DefaultSegment {
    /// The sizes that it may have. Other code sends datagrams up to `SMALL` by this socket, which
    /// must not be segmented; and a segment has to fit any link.
    const SIZES: core::ops::RangeInclusive<u16> = SMALL as u16..=500;
    /// Consecutive bursts after which the size changes.
    const ADOPT_AFTER: u8 = 16;

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
        self.tx.default_segment.given_up = true;
        if self.tx.default_segment.size != 0
            && set_option(self.fd.raw(), libc::SOL_UDP, libc::UDP_SEGMENT, 0i32).is_ok()
        {
            self.tx.default_segment.size = 0;
        }
    }

    /// Counts a burst that left alone and needed ancillary data. After enough of them with one
    /// segment size, that becomes the socket's own.
    pub(super) fn adapt_default_segment(&mut self, i: usize) {
        let s = *self.tx.slot(i);
        let size = if s.len > u32::from(s.seg) { s.seg } else { 0 };
        let default_segment = &mut self.tx.default_segment;
        if default_segment.given_up
            || !self.gso
            || size == default_segment.size
            || size != 0 && !DefaultSegment::SIZES.contains(&size)
        {
            return;
        }
        default_segment.wanted_times =
            if default_segment.wanted == size { default_segment.wanted_times + 1 } else { 1 };
        default_segment.wanted = size;
        if default_segment.wanted_times == DefaultSegment::ADOPT_AFTER {
            default_segment.wanted_times = 0;
            // This burst, which is sent next, has ancillary data, and so is right in any case.
            if set_option(self.fd.raw(), libc::SOL_UDP, libc::UDP_SEGMENT, i32::from(size)).is_ok()
            {
                self.tx.default_segment.size = size;
                self.tx.write_headers(i);
            } else {
                self.tx.default_segment.given_up = true;
            }
        }
    }
}
