//! A single message and the window that all queue pairs to one peer share.

use gdrcore_core::verbs::types::*;

use super::{worlds, Plan};
use crate::util::*;

#[test]
fn a_single_message_waits_while_others_fill_the_window() {
    for way in [Way::Link, Way::Wire] {
        let [mut single, _] = worlds(Opts { way, ..Opts::default() });
        let e = &single.ends[0];
        let size = {
            let mut g = single.net.lock(e);
            let t = &mut g.transport;
            let peer = t.peers.get_mut(t.qps[index(e.qp)].conn.peer as usize).unwrap();
            peer.tx.on_sent(peer.tx.size());
            peer.tx.size()
        };
        let plan = Plan {
            from: 0,
            opcode: wr_opcode::RDMA_WRITE,
            flags: send_flags::SIGNALED,
            len: 8,
            pieces: 1,
            src: 0,
            dst: 0,
            wrong: 0,
        };
        single.post(1, &plan).unwrap();
        assert!(single.ring(0).is_none(), "{way:?}");
        let e = &single.ends[0];
        {
            let mut g = single.net.lock(e);
            let t = &mut g.transport;
            let peer = t.peers.get_mut(t.qps[index(e.qp)].conn.peer as usize).unwrap();
            peer.tx.on_acked(size);
            g.wake(index(e.qp));
        }
        single.net.settle();
        assert_eq!(single.net.poll(e.host, e.scq).len(), 1, "{way:?}");
    }
}
