//! The class of a connection's packets.

use super::*;
use crate::verbs::types::AhAttr;

// Linux cm.c cm_format_paths_from_req
#[test]
fn both_sides_have_the_class_of_the_request() {
    let mut w = World::new(3);
    w.listen(1, port_space::TCP);
    let id = w.cm[0].create(port_space::TCP, 77).unwrap();
    let to = PeerAddr { traffic_class: 0xb8, flow_label: 0xa_bcde, ..address(2) };
    w.cm[0].connect(w.now, id, &to, PORT, 0, &rc(5, b"")).unwrap();
    let request = w.event(1);
    let of = |ah: AhAttr| (ah.traffic_class, ah.flow_label, ah.hop_limit);
    assert_eq!(of(request.peer), (0xb8, 0, 0));
    w.cm[1].accept(w.now, request.id, 0, &rc(6, b"")).unwrap();
    assert_eq!(w.event(0).event, cm_event::CONNECT_RESPONSE);
    for (side, id, class) in [(0, id, (0xb8, 0xa_bcde, 0)), (1, request.id, (0xb8, 0, 0))] {
        let (attr, mask) = w.cm[side].qp_attr(id, qp_state::RTR).unwrap();
        assert!(mask & qp_attr_mask::AV != 0);
        assert_eq!(of(attr.ah), class, "side {side}");
    }
}
