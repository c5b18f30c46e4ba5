//! XRC: the SRQ that each request of an initiator names. The target has no PD and no CQ of its own:
//! each request uses those of its SRQ.

use crate::roce::conn::Conn;
use crate::roce::run::Run;
use crate::roce::Common;
use crate::verbs::objects::Srq;
use crate::verbs::resp::Incoming;

impl Common {
    /// The XRC SRQ of a number in a domain, by index, with its CQ.
    fn xrc_srq(&self, number: u32, domain: u32) -> Option<(u32, u32, &Srq)> {
        let i = self.srq_of(number)?;
        let srq = self.srqs.get(i)?;
        // Annex A14 of IBTA: The SRQ that a request of XRC names must be of the XRC domain of the
        // target; another is an invalid request.
        let (_, cq) = srq.xrc.filter(|(xrcd, _)| *xrcd == domain)?;
        Some((i as u32, cq, srq))
    }
}

impl Conn<'_> {
    /// Gives this XRC target the SRQ that a request names, with the PD and the CQ of that SRQ.
    /// False: there is no such SRQ in its domain, or the request may not change to it.
    #[inline(never)]
    pub(in crate::roce) fn bind_srq(&mut self, run: &Run) -> bool {
        let found = self.common.xrc_srq(run.srqn(), self.qp.xrcd);
        let Some((srq, cq, pd)) = found.map(|(i, cq, srq)| (i, cq, srq.pd)) else { return false };
        let qp = &mut *self.qp;
        if qp.srq == srq {
            return true;
        }
        // A message under way stays with its SRQ, and so does a message that has its receive
        // request and is requested again.
        if qp.conn.resp.incoming() != Incoming::Idle || qp.conn.resp.recv.taken {
            return false;
        }
        (qp.srq, qp.rcq, qp.pd, qp.recv_pd) = (srq, cq, pd, pd);
        true
    }
}
