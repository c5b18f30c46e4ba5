//! DC: the responder contexts of an engine, and the lives of initiators and targets.

use super::{EngineGuard, Inner};
use crate::error::Result;
use crate::roce::dc::contexts::{Context, NUMBERS};
use crate::roce::peer::{Path, Peer, PeerAddr};
use crate::verbs::association::Association;
use crate::verbs::kind::QpKind;
use crate::verbs::shared::Shared;
use crate::verbs::types::{qp_type, QpInit};
use crate::verbs::NONE;

impl Inner {
    /// Makes all responder contexts, and a record of an address for each, so that a later
    /// association needs no memory. The first DC target calls it.
    ///
    /// # Errors
    /// [`crate::Error::NoMemory`]: nothing has changed then.
    pub(super) fn make_contexts(&mut self, s: &Shared, now: u64) -> Result<()> {
        if !self.transport.dc.list.is_empty() {
            return Ok(());
        }
        let config = self.transport.common.config;
        let n = config.max_dc_context as usize;
        let each = (config.qpn_count as usize / 2 / n).clamp(1, NUMBERS);
        self.reserve_peers(n)?;
        let mut list = self.heap.slice(n, Context::FREE)?;
        let mut numbers = match self.heap.slice(n * each, 0u32) {
            Ok(numbers) => numbers,
            Err(e) => {
                self.heap.free_slice(list);
                return Err(e);
            }
        };
        for at in 0..n {
            match self.make_context(s, now, at, &mut numbers[at * each..][..each]) {
                Ok(qi) => list[at] = Context { qi: qi as u32, ..Context::FREE },
                Err(e) => {
                    for (k, made) in list.iter().take(at).enumerate() {
                        // This frees the context's first number.
                        let _ = self.end_qp(s, now, made.qi as usize);
                        let others = &numbers[k * each + 1..][..each - 1];
                        others.iter().for_each(|&number| self.qpns.free(number, now, 0));
                    }
                    self.heap.free_slice(numbers);
                    self.heap.free_slice(list);
                    return Err(e);
                }
            }
        }
        let dc = &mut self.transport.dc;
        (dc.list, dc.numbers) = (list, numbers);
        Ok(())
    }

    /// Makes one context, which gets `numbers`. Returns the index of its queue pair.
    fn make_context(
        &mut self,
        s: &Shared,
        now: u64,
        at: usize,
        numbers: &mut [u32],
    ) -> Result<usize> {
        let init = QpInit { qp_type: qp_type::DCT, ..QpInit::default() };
        let (qi, ..) = self.make_qp(s, now, QpKind::DcContext, &init, &super::qp::Uses::NOTHING)?;
        let t = &mut self.transport;
        t.qps[qi].context = at as u32;
        // Only a context in use is found by a number.
        let first = t.qps[qi].qpn;
        t.common.by_qpn[(first - t.common.qpn_base) as usize] = 0;
        for k in 1..numbers.len() {
            match self.qpns.alloc(now) {
                Ok((number, _)) => numbers[k] = number,
                Err(e) => {
                    numbers[1..k].iter().for_each(|&number| self.qpns.free(number, now, 0));
                    numbers.fill(0);
                    let _ = self.end_qp(s, now, qi);
                    return Err(e);
                }
            }
        }
        numbers[0] = first;
        Ok(qi)
    }

    /// Makes sure that so many records of addresses are free.
    fn reserve_peers(&mut self, n: usize) -> Result<()> {
        let t = &mut self.transport;
        loop {
            let free = (0..t.peers.len()).filter(|&i| t.peers[i].refs == 0).count();
            if free >= n {
                return Ok(());
            }
            t.peers.grow(&mut self.heap, |_| Peer::empty())?;
        }
    }

    /// Gives a DC initiator a new association. Answers to its former one are ignored from then on.
    pub(super) fn renew_association(&mut self, qi: usize) {
        let id = self.transport.dc.new_life();
        *self.transport.qps[qi].association() = Association { id, ..Association::default() };
    }
}

/// Data: links for the contexts of DC.
impl EngineGuard<'_> {
    /// Whether [`EngineGuard::next_unlinked`] may return a context.
    #[inline(always)]
    pub fn wants_links(&self) -> bool {
        self.transport.dc.want_links
    }

    /// Takes a responder context that answers through the port although its initiator came over a
    /// link. Returns the place of the context, and the initiator's address and QPN. The caller
    /// looks for a link to the initiator, and passes it to [`EngineGuard::set_context_link`].
    pub fn next_unlinked(&mut self) -> Option<(usize, PeerAddr, u32)> {
        let t = &mut self.split().0.transport;
        let at = t.dc.list.iter().position(|context| context.wants_link);
        t.dc.want_links = at.is_some();
        let context = &mut t.dc.list[at?];
        context.wants_link = false;
        let peer = t.qps[context.qi as usize].conn.peer as usize;
        Some((at?, t.peers[peer].addr, context.qpn))
    }

    /// Makes a responder context answer over a link from now on.
    pub fn set_context_link(&mut self, at: usize, link: u16) {
        let (inner, s) = self.split();
        let t = &mut inner.transport;
        let Some(context) = t.dc.list.get(at).filter(|context| context.dct != NONE) else { return };
        let qi = context.qi as usize;
        let old = t.qps[qi].conn.peer;
        let addr = t.peers[old as usize].addr;
        // Without a free record the context continues to answer through the port.
        if let Some(peer) = t.peer_join(addr, Path::Link(link)) {
            t.qps[qi].conn.peer = peer;
            t.conn(s, qi).begin_acks();
            t.peer_leave(old);
        }
    }
}
