//! The connection manager's messages as Linux put them on the wire: read, written again, and
//! understood.

mod common;

use common::{golden, packet};
use gdrcore_core::cm::mad::{IpHeader, Mad, Message, MAD_LEN};
use gdrcore_core::wire::ip::gid_of_v4;
use gdrcore_testkit::packet::View;

/// The messages of a capture of rping: what its two QP1s said.
fn messages() -> Vec<[u8; MAD_LEN]> {
    let mut all = Vec::new();
    for (name, _, roce) in golden() {
        let Ok(view) = View::parse(packet(&roce)) else { continue };
        if name == "cm_rping" && view.deth().is_some() {
            all.push(view.payload().try_into().expect("a MAD"));
        }
    }
    all
}

// Linux ibta_vol1_c12.h
#[test]
fn messages_of_linux_parse_and_emit_the_same_bytes() {
    let all = messages();
    assert_eq!(all.len(), 5, "REQ, REP, RTU, DREQ, DREP");
    for bytes in &all {
        let mad = Mad::parse(bytes).unwrap();
        let mut again = [0xEE; MAD_LEN];
        mad.emit(&mut again);
        assert_eq!(&again, bytes, "{mad:?}");
    }
}

// Linux ibta_vol1_c12.h
// Linux cma.c cma_format_hdr
#[test]
fn messages_of_linux_are_understood() {
    let all = messages();
    let parsed: Vec<Mad<'_>> = all.iter().map(|b| Mad::parse(b).unwrap()).collect();
    assert!(parsed[..3].iter().all(|m| m.tid == 0x2_b241_1a65));
    let (client, server) = (gid_of_v4([10, 77, 0, 1]), gid_of_v4([10, 77, 0, 2]));
    let Message::Req(req) = parsed[0].message else { panic!("{:?}", parsed[0]) };
    assert_eq!((req.local_comm_id, req.service_id), (0x651a_41b2, 0x0106_1c06));
    assert_eq!(
        (req.local_ca_guid, req.local_qpn, req.starting_psn),
        (0xff_fe77_0001, 0x22, 0x9b231a)
    );
    assert_eq!((req.responder_resources, req.initiator_depth, req.transport), (1, 1, 0));
    assert_eq!((req.remote_cm_response_timeout, req.local_cm_response_timeout), (20, 20));
    assert_eq!(
        (req.retry_count, req.rnr_retry_count, req.max_cm_retries, req.pkey),
        (7, 7, 15, 0xffff)
    );
    assert_eq!((req.path_mtu, req.local_ack_timeout, req.srq, req.hop_limit), (5, 19, false, 64));
    assert_eq!((req.local_gid, req.remote_gid, req.flow_label), (client, server, 0x273eb));
    let header = IpHeader::parse(req.private_data);
    assert_eq!(header, Some(IpHeader { src_port: 0x977b, src: client, dst: server }));
    let Message::Rep(rep) = parsed[1].message else { panic!("{:?}", parsed[1]) };
    assert_eq!(
        (rep.local_comm_id, rep.remote_comm_id, rep.local_qpn),
        (0x661a_41b2, 0x651a_41b2, 0x22)
    );
    assert_eq!((rep.starting_psn, rep.rnr_retry_count, rep.target_ack_delay), (0xdb652d, 7, 15));
    // A starting PSN is what its receiver begins with: the client's first SEND, the server's first
    // READ.
    let first = |from: [u8; 4]| {
        let mut all = golden()
            .into_iter()
            .filter(|(name, _, roce)| name == "cm_rping" && roce.ip_packet[12..16] == from);
        let (.., roce) = all
            .find(|(.., roce)| {
                View::parse(packet(roce)).unwrap().bth().dest_qp.get() == 0x22
                    && !matches!(packet(roce)[0], 0x11)
            })
            .unwrap();
        View::parse(packet(&roce)).unwrap().bth().psn.get()
    };
    assert_eq!(first([10, 77, 0, 1]), rep.starting_psn);
    assert_eq!(first([10, 77, 0, 2]), req.starting_psn);
    assert!(
        matches!(parsed[2].message, Message::Rtu(ids) if ids.remote_comm_id == rep.local_comm_id)
    );
    assert!(matches!(parsed[3].message, Message::Dreq(d) if d.remote_qpn == 0x22));
    assert!(matches!(parsed[4].message, Message::Drep(_)));
}
