//! A single message and the window that all queue pairs to one peer share.

use gdrcore_core::roce::peer::Peer;

use super::{worlds, SMALL_WRITE};
use crate::util::*;

#[test]
fn a_single_message_waits_while_others_fill_the_window() {
    for way in [Way::Link, Way::Wire] {
        let [mut single, _] = worlds(Opts { way, ..Opts::default() });
        let fill = |peer: &mut Peer| {
            peer.tx.on_sent(peer.tx.size());
            peer.tx.size()
        };
        let size = single.with_peer(0, fill).expect("a peer");
        single.post(1, &SMALL_WRITE).unwrap();
        assert!(single.ring(0).is_none(), "{way:?}");
        single.with_peer(0, |peer| peer.tx.on_acked(size)).expect("a peer");
        let e = &single.ends[0];
        single.net.lock(e).wake(index(e.qp));
        single.net.settle();
        assert_eq!(single.net.poll(e.host, e.scq).len(), 1, "{way:?}");
    }
}
