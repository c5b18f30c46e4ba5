//! How much of a READ one request asks for.

use crate::roce::peer::Window;
use crate::roce::run::Run;
use crate::roce::READ_PIECE;
use crate::verbs::objects::Qp;

/// One request asks for at most this part of the window, so that another one is under way.
const WINDOW_PART: u32 = 2;
/// Packets of a piece at the largest MTU.
const LEAST_PIECE: u32 = READ_PIECE / 4096;

impl Qp {
    /// Packets of a piece of a READ, at least [`LEAST_PIECE`].
    #[inline(always)]
    pub(in crate::roce) fn read_piece(&self) -> u32 {
        READ_PIECE / self.conn.mtu
    }

    /// How many pieces of a READ `n` packets of its response are in. `first`: the first of the
    /// packets.
    #[cold]
    pub(in crate::roce) fn read_pieces(&self, first: u32, n: u32) -> u32 {
        let piece = self.read_piece();
        (first % piece + n).div_ceil(piece)
    }

    /// How many pieces of a READ end when its response has come up to packet `done`, after it had
    /// come up to packet `before`. A piece ends at a multiple of its size, and at the READ's end.
    #[inline(always)]
    pub(in crate::roce) fn read_pieces_ended(&self, before: u32, done: u32, finished: bool) -> u32 {
        let piece = self.read_piece();
        done / piece - before / piece + u32::from(finished && done % piece != 0)
    }

    /// Whether packets of a READ's response, of `npkts` in all, may stand behind its packet `done`.
    // rxe rxe_comp.c check_ack, READ: The response to a READ begins with a FIRST or ONLY packet and
    // ends with a LAST or ONLY one; one that comes elsewhere is a bad response.
    pub(in crate::roce) fn has_place(&self, run: &Run, done: u32, npkts: u32) -> bool {
        // Each request is answered as a READ. It ends at a multiple of a piece unless something has
        // cut it, and begins anywhere if packets were lost.
        let end = done + run.n;
        let begins = run.first || done > 0;
        let ends = self.conn.req.reads_cut || end % self.read_piece() == 0;
        begins && if end == npkts { run.last } else { !run.last || ends }
    }

    /// How many packets of the response the next request of a READ asks for, of `left` from packet
    /// `first` on. 0: the request waits for room in the window.
    ///
    /// A request ends at a multiple of a piece. It asks for as many pieces as half of the window
    /// holds, because each request costs both ends a packet, and the responder two bursts that are
    /// not full (FIRST and LAST have another length than MIDDLE). While responses are on their way
    /// it waits for room for so many pieces; otherwise each request would ask for one piece, as
    /// soon as another has arrived. A peer that serves few READs at once is asked for at most half
    /// of them, as each piece counts as one.
    #[inline(always)]
    pub(in crate::roce) fn read_packets(&self, rx: &Window, first: u32, left: u32) -> u32 {
        match rx.available() {
            0 => 0,
            _ if first + left <= LEAST_PIECE => left,
            room => self.read_packets_of_many(rx, room, first, left),
        }
    }

    /// This is a function of its own, so that requests of one piece pay nothing for it.
    #[cold]
    fn read_packets_of_many(&self, rx: &Window, room: u32, first: u32, left: u32) -> u32 {
        let piece = self.read_piece();
        let to_serve = u32::from(self.attr.max_rd_atomic).max(1);
        let most = (rx.size() / WINDOW_PART / READ_PIECE).min(to_serve / 2).max(1);
        let pieces = most.min(self.read_pieces(first, left));
        let req = &self.conn.req;
        let fits = (room / READ_PIECE).min(to_serve.saturating_sub(req.rd_out)).max(1);
        if fits < pieces && req.read_inflight > 0 {
            return 0;
        }
        left.min(pieces.min(fits) * piece - first % piece)
    }
}
