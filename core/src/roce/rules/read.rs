//! How a READ is divided into requests.
//!
//! Its answer is counted in cells of 84 KiB. A request asks for whole cells, up to [`MOST`]: each
//! costs the responder the work on a request, and two trains of segments more, because the first
//! and the last packet of an answer are longer than the others. A limit of the rate or of PSNs may
//! cut a request within a cell.

use crate::roce::peer::Window;

/// Bytes of a cell. [`MOST`] of them are an answer of 63 packets of the largest MTU: the first with
/// the second, four full trains of 15, and the last.
const CELL: u32 = 84 << 10;
/// Cells of a request at most.
const MOST: u32 = 3;

/// Packets of a cell.
pub(in crate::roce) fn cell(mtu: u32) -> u32 {
    (CELL / mtu).max(1)
}

/// How many packets of an answer, of which `left` are left from packet `first` on, a request may
/// ask for now. `None`: it waits for more room in the window.
///
/// Never more is under way than the window holds, and half a cell: so the peer's answers and
/// requests fit together into the receive buffer that Debian grants any socket. A request that
/// would be cut short waits, but not for more than a quarter of the window: what is left unused
/// meanwhile is missing where the way is long. If nothing is under way, one cell may always be
/// asked for.
pub(in crate::roce) fn piece(mtu: u32, first: u32, left: u32, window: &Window) -> Option<u32> {
    let (cell, room) = (cell(mtu), window.available());
    let (bytes, into) = (cell * mtu, first % cell);
    let fits = room.saturating_add(bytes / 2) / bytes;
    let wanted = left.saturating_add(into).div_ceil(cell).min(MOST).min(window.size() / 4 / bytes);
    let (rest, over) = (u64::from(left) * u64::from(mtu), bytes / 2);
    let is_rest = room > 0 && rest <= u64::from(room) + u64::from(over);
    let is_enough = fits >= wanted.max(1) || is_rest || window.inflight() == 0;
    let most = if is_rest { MOST } else { fits.clamp(1, MOST) };
    is_enough.then(|| left.min(most * cell - into))
}

/// Cells of which a request for `n` packets from packet `first` on asks for any part. So many count
/// as READs under way, of which a peer permits `max_rd_atomic`: never fewer than there are.
pub(in crate::roce) fn cells(mtu: u32, first: u32, n: u32) -> u32 {
    (first + n).div_ceil(cell(mtu)) - first / cell(mtu)
}

/// Cells that end with packets `from..to` of an answer of `all`.
pub(in crate::roce) fn ended(mtu: u32, from: u32, to: u32, all: u32) -> u32 {
    let cell = cell(mtu);
    to / cell - from / cell + u32::from(to == all && to % cell != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roce::peer::WINDOW_SURE;

    fn window(size: u32, inflight: u32) -> Window {
        let mut w = Window::new(size);
        // Grows to its size.
        while w.size() < size {
            w.on_sent(size);
            w.on_acked(size);
        }
        w.on_sent(inflight);
        w
    }

    #[test]
    fn a_request_asks_for_as_many_cells_as_there_is_room_for() {
        let with_room = |kib: u32, first, left| {
            piece(4096, first, left, &window(1 << 20, (1 << 20) - (kib << 10)))
        };
        assert_eq!(with_room(1024, 0, 1000), Some(63));
        assert_eq!(with_room(252, 0, 1000), Some(63));
        assert_eq!(with_room(252, 22, 1000), Some(62), "to the end of a cell");
        assert_eq!(with_room(190, 0, 1000), None, "waits for more");
        assert_eq!(with_room(190, 0, 42), Some(42), "all that is left");
        assert_eq!(with_room(100, 0, 42), None);
        assert_eq!(with_room(100, 0, 21), Some(21));
        assert_eq!(with_room(0, 0, 1), None);
        assert_eq!(piece(4096, 0, 1000, &window(WINDOW_SURE, 130 << 10)), Some(21));
    }

    /// What the window lets go fits with half a cell, whatever the requests.
    #[test]
    fn never_more_is_under_way_than_the_window_and_half_a_cell() {
        for mtu in [256, 512, 1024, 2048, 4096] {
            let mut w = window(WINDOW_SURE, 0);
            let mut first = 0;
            while let Some(n) = piece(mtu, first, 1 << 20, &w) {
                w.on_sent(n * mtu);
                first += n;
            }
            let most = WINDOW_SURE + CELL / 2;
            assert!((WINDOW_SURE - CELL / 2..=most).contains(&w.inflight()), "{}", w.inflight());
        }
    }

    #[test]
    fn something_may_always_be_asked_for_and_a_rest_that_nearly_fits_too() {
        let mut small = window(64 << 10, 0);
        (0..10).for_each(|i| small.on_timeout(i * 1_000_000 + 1));
        assert!(small.size() < CELL / 4);
        assert_eq!(piece(4096, 0, 1000, &small), Some(cell(4096)));
        assert_eq!(piece(4096, 20, 1, &window(1 << 20, (1 << 20) - 4096)), Some(1));
        assert_eq!(piece(4096, 20, 2, &window(1 << 20, (1 << 20) - 4096)), Some(2));
        assert_eq!(piece(4096, 20, 12, &window(1 << 20, (1 << 20) - 4096)), None);
    }

    /// However an answer is asked for, what is counted on comes off by its end.
    #[test]
    fn cells_that_were_counted_end() {
        for all in [1, 20, 21, 22, 63, 64, 100, 1000] {
            let (mut first, mut counted) = (0, 0);
            let w = window(1 << 20, 0);
            while first < all {
                let n = piece(4096, first, all - first, &w).unwrap();
                counted += cells(4096, first, n);
                first += n;
            }
            let off: u32 = (0..all).map(|k| ended(4096, k, k + 1, all)).sum();
            assert_eq!(counted, off, "{all} packets");
        }
    }
}
