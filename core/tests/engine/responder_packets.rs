//! The responder, packet by packet: which answer each packet of a request draws, and which none.

use gdrcore_core::config::Config;
use gdrcore_core::verbs::types::*;
use gdrcore_core::wire::{Opcode, Psn, Qpn};

use crate::raw_packet::{answers, Raw};
use crate::util::*;

/// Bytes of a packet's payload.
const MTU: usize = 1024;
const ACK: u8 = 0x1f;
const NAK_PSN: u8 = 0x60;
const NAK_INVALID: u8 = 0x61;
const NAK_ACCESS: u8 = 0x62;

/// A packet of a message as it stands there, with as many bytes as it must have, or 8.
fn packet(b: &End, op: Opcode, ahead: u32) -> Raw {
    let len = if op.is_last() { 8 } else { MTU };
    sized(b, op, ahead, len)
}

/// The same with so many bytes. The whole message is 2 KiB where it has more than a packet.
fn sized(b: &End, op: Opcode, ahead: u32, len: usize) -> Raw {
    let whole = if op.is_last() { len as u32 } else { 2 * MTU as u32 };
    let raw = Raw::new(op, b, ahead).asks();
    match op {
        _ if op.has_atomic_eth() => {
            let mut eth = b.mr.iova.to_be_bytes().to_vec();
            eth.extend_from_slice(&b.mr.rkey.to_be_bytes());
            eth.extend_from_slice(&[0; 16]);
            raw.bytes(&eth)
        }
        _ if op.has_feth() => raw.bytes(&[0, 0, 0, 1]).reth(b.mr.iova, b.mr.rkey, whole),
        _ if op.has_reth() && op.has_payload() => {
            raw.reth(b.mr.iova, b.mr.rkey, whole).payload(len)
        }
        _ if op.has_reth() => raw.reth(b.mr.iova, b.mr.rkey, whole),
        _ => raw.payload(len),
    }
}

/// A peer that has a receive request for a message of several packets.
fn ready(o: Opts) -> (Net, End) {
    let (net, _, b) = Net::pair(o);
    net.recv(&b, 1, &[(0, 8 * MTU)]);
    (net, b)
}

// rxe rxe_resp.c check_psn, gap
// IBTA 9.7.7.2, granted
#[test]
fn a_gap_draws_one_nak_for_the_expected_psn_until_it_is_closed() {
    let (mut net, b) = ready(Opts::default());
    let nak = |ahead| (Opcode::RC_ACK, ahead, Some(NAK_PSN));
    let write = |ahead| packet(&b, Opcode::RC_WRITE_ONLY, ahead);
    assert_eq!(answers(&mut net, &[write(1)]), [nak(0)]);
    assert_eq!(answers(&mut net, &[write(2), write(3)]), [], "the peer has been told");
    assert_eq!(answers(&mut net, &[write(0)]), [(Opcode::RC_ACK, 0, Some(ACK))]);
    assert_eq!(answers(&mut net, &[write(2)]), [nak(1)], "another gap");
    assert_eq!(net.state(&b), qp_state::RTS);
}

// rxe rxe_resp.c check_op_seq, RC
// rxe rxe_resp.c do_class_ac_error
#[test]
fn opcodes_out_of_sequence_are_invalid_requests() {
    use Opcode as O;
    // What has come in order before, and what may not follow it.
    let wrong: [(&[Opcode], Opcode); 14] = [
        (&[], O::RC_SEND_MIDDLE),
        (&[], O::RC_SEND_LAST),
        (&[], O::RC_WRITE_MIDDLE),
        (&[], O::RC_WRITE_LAST),
        (&[O::RC_SEND_FIRST], O::RC_SEND_FIRST),
        (&[O::RC_SEND_FIRST], O::RC_SEND_ONLY),
        (&[O::RC_SEND_FIRST], O::RC_WRITE_LAST),
        (&[O::RC_SEND_FIRST], O::RC_READ_REQUEST),
        (&[O::RC_SEND_FIRST, O::RC_SEND_MIDDLE], O::RC_FETCH_ADD),
        (&[O::RC_WRITE_FIRST], O::RC_SEND_LAST),
        (&[O::RC_WRITE_FIRST], O::RC_WRITE_ONLY),
        (&[O::RC_WRITE_FIRST], O::RC_CMP_SWAP),
        (&[O::RC_WRITE_FIRST], O::RC_FLUSH),
        (&[O::RC_WRITE_FIRST], O::RC_ATOMIC_WRITE),
    ];
    for (before, then) in wrong {
        let (mut net, b) = ready(Opts::default());
        let good: Vec<Raw> =
            before.iter().zip(0..).map(|(op, ahead)| packet(&b, *op, ahead)).collect();
        answers(&mut net, &good);
        assert_eq!(net.state(&b), qp_state::RTS, "{before:?}");
        let at = before.len() as u32;
        let said = answers(&mut net, &[packet(&b, then, at)]);
        assert_eq!(said, [(O::RC_ACK, at, Some(NAK_INVALID))], "{then:?} after {before:?}");
        assert_eq!(net.state(&b), qp_state::ERR);
    }
}

// IBTA C9-92
#[test]
fn packets_of_other_lengths_than_their_place_allows_are_invalid_requests() {
    use Opcode as O;
    let wrong: [(&[Opcode], Opcode, usize); 8] = [
        (&[], O::RC_SEND_FIRST, MTU - 4),
        (&[], O::RC_SEND_FIRST, MTU + 4),
        (&[], O::RC_SEND_ONLY, MTU + 4),
        (&[O::RC_SEND_FIRST], O::RC_SEND_MIDDLE, MTU - 1),
        (&[O::RC_SEND_FIRST], O::RC_SEND_LAST, 0),
        (&[O::RC_SEND_FIRST], O::RC_SEND_LAST, MTU + 4),
        (&[], O::RC_WRITE_FIRST, MTU - 4),
        (&[], O::RC_WRITE_ONLY, MTU + 4),
    ];
    for (before, then, len) in wrong {
        let (mut net, b) = ready(Opts::default());
        let mut all: Vec<Raw> =
            before.iter().zip(0..).map(|(op, ahead)| packet(&b, *op, ahead)).collect();
        let at = all.len() as u32;
        all.push(sized(&b, then, at, len));
        let said = answers(&mut net, &all);
        let last = said.last().copied();
        assert_eq!(last, Some((O::RC_ACK, at, Some(NAK_INVALID))), "{then:?} of {len} bytes");
    }
    // The longest of each, and the shortest.
    for (first, last, len) in
        [(O::RC_SEND_FIRST, O::RC_SEND_LAST, MTU), (O::RC_SEND_FIRST, O::RC_SEND_LAST, 1)]
    {
        let (mut net, b) = ready(Opts::default());
        let said = answers(&mut net, &[packet(&b, first, 0), sized(&b, last, 1, len)]);
        assert_eq!(said, [(O::RC_ACK, 1, Some(ACK))]);
        assert_eq!(net.poll(1, b.rcq)[0].byte_len as usize, MTU + len);
    }
}

// IBTA C9-94
#[test]
fn a_message_longer_than_2_gib_is_an_invalid_request() {
    let (mut net, b) = ready(Opts::default());
    let said = |net: &mut Net, b: &End, op, len: u32| {
        let raw = Raw::new(op, b, 0).reth(b.mr.iova, b.mr.rkey, len);
        let raw = if op == Opcode::RC_WRITE_FIRST { raw.payload(MTU) } else { raw };
        answers(net, &[raw])
    };
    for op in [Opcode::RC_READ_REQUEST, Opcode::RC_WRITE_FIRST] {
        // 2^31 bytes may be asked for; this region does not have them.
        for (len, nak) in [(1 << 31, NAK_ACCESS), ((1 << 31) + 1, NAK_INVALID)] {
            let (mut net, b) = ready(Opts::default());
            let got = said(&mut net, &b, op, len);
            assert_eq!(got, [(Opcode::RC_ACK, 0, Some(nak))], "{op:?} of {len}");
        }
    }
    assert_eq!(said(&mut net, &b, Opcode::RC_READ_REQUEST, 4).len(), 1);
}

// IBTA C9-88
#[test]
fn an_operation_of_no_bytes_needs_no_key() {
    for way in WAYS {
        let (mut net, a, b) = Net::pair(Opts { way, ..Opts::default() });
        for op in [wr_opcode::RDMA_READ, wr_opcode::RDMA_WRITE] {
            net.ok(&a, Wr::new(op).key(u64::MAX, 0));
        }
        net.recv(&b, 5, &[]);
        net.ok(&a, Wr::new(wr_opcode::RDMA_WRITE_WITH_IMM).imm(3).key(1, 0x1234_5678));
        let wc = net.wait(b.host, b.rcq, 1)[0];
        assert_eq!((wc.wr_id, wc.imm_data, wc.byte_len), (5, 3, 0), "{way:?}");
        // One byte does.
        let wc = net.run_one(&a, Wr::new(wr_opcode::RDMA_READ).local(&a, 0, 1).key(b.mr.iova, 0));
        assert_eq!(wc.status, wc_status::REM_ACCESS_ERR, "{way:?}");
    }
}

// rxe rxe_resp.c check_resource, depth
#[test]
fn more_reads_and_atomics_than_the_device_serves_are_invalid_requests() {
    let read = |b: &End, ahead| packet(b, Opcode::RC_READ_REQUEST, ahead);
    let add = |b: &End, ahead| packet(b, Opcode::RC_FETCH_ADD, ahead);
    let store = |b: &End, ahead| packet(b, Opcode::RC_ATOMIC_WRITE, ahead);
    let flush = |b: &End, ahead| packet(b, Opcode::RC_FLUSH, ahead);
    for depth in [1, 2] {
        for first in [read, add, store, flush] {
            let config = Config { max_rd_atomic: depth, ..Opts::default().config };
            let o = Opts { rd_atomic: depth as u8, config, ..Opts::default() };
            let (mut net, b) = ready(o);
            // They come before any is answered.
            let mut all = vec![first(&b, 0)];
            all.extend((1..depth).map(|ahead| read(&b, ahead)));
            assert_eq!(answers(&mut net, &all).len(), depth as usize, "so many it serves");
            let (mut net, b) = ready(o);
            all = vec![first(&b, 0)];
            all.extend((1..=depth).map(|ahead| read(&b, ahead)));
            let said = answers(&mut net, &all);
            assert_eq!(said, [(Opcode::RC_ACK, depth, Some(NAK_INVALID))], "{depth}");
        }
    }
}

// rxe rxe_resp.c check_resource, depth
#[test]
fn a_queue_pair_serves_no_more_reads_and_atomics_at_once_than_its_attribute_says() {
    for depth in [0, 1, 3] {
        for op in [
            Opcode::RC_READ_REQUEST,
            Opcode::RC_FETCH_ADD,
            Opcode::RC_ATOMIC_WRITE,
            Opcode::RC_FLUSH,
        ] {
            let o = Opts { rd_atomic: depth, ..Opts::default() };
            let (mut net, b) = ready(o);
            let all: Vec<_> = (0..depth.into()).map(|ahead| packet(&b, op, ahead)).collect();
            assert_eq!(answers(&mut net, &all).len(), depth.into(), "{op:?}: so many it serves");
            assert_eq!(net.state(&b), qp_state::RTS);
            let (mut net, b) = ready(o);
            let all: Vec<_> = (0..=depth.into()).map(|ahead| packet(&b, op, ahead)).collect();
            let refused = (Opcode::RC_ACK, depth.into(), Some(NAK_INVALID));
            assert_eq!(answers(&mut net, &all).last(), Some(&refused), "{op:?}, {depth}");
            assert_eq!(net.state(&b), qp_state::ERR);
        }
    }
}

// rxe rxe_resp.c invalidate_rkey
#[test]
fn a_send_that_invalidates_a_key_that_is_no_windows_draws_an_access_nak() {
    for stranger in [0x1234_5678u32, 0] {
        let (mut net, b) = ready(Opts::default());
        let window = net.window(&b, 4096, access::REMOTE_WRITE);
        // Its low byte is part of the key.
        let key = if stranger == 0 { window ^ 1 } else { stranger };
        let op = Opcode::RC_SEND_ONLY_INV;
        let send = Raw::new(op, &b, 0).asks().bytes(&key.to_be_bytes()).payload(8);
        assert_eq!(answers(&mut net, &[send]), [(Opcode::RC_ACK, 0, Some(NAK_ACCESS))]);
        assert_eq!(net.state(&b), qp_state::ERR);
        let ended = net.poll(1, b.rcq);
        assert_eq!(ended.len(), 1, "the receive reports it");
        assert_eq!((ended[0].status, ended[0].wc_flags), (wc_status::LOC_PROT_ERR, 0));
    }
}

// rxe rxe_recv.c check_type_state, service
#[test]
fn packets_of_another_service_are_refused() {
    for (kind, good, wrong) in [
        (qp_type::RC, Opcode::RC_SEND_ONLY, [Opcode::UC_SEND_ONLY, Opcode::UD_SEND_ONLY]),
        (qp_type::UC, Opcode::UC_SEND_ONLY, [Opcode::RC_SEND_ONLY, Opcode::UD_SEND_ONLY]),
        (qp_type::UD, Opcode::UD_SEND_ONLY, [Opcode::RC_SEND_ONLY, Opcode::UC_SEND_ONLY]),
    ] {
        let (mut net, b) = ready(Opts { kind, ..Opts::default() });
        let raw = |op: Opcode| {
            let raw = Raw::new(op, &b, 0);
            // DETH: Q_Key, source QP.
            if op.has_deth() { raw.bytes(&[0, 0, 0x11, 0x11, 0, 0, 0, 9]) } else { raw }.payload(8)
        };
        for op in wrong {
            let before = net.lock(&b).counters().rcvd_refused;
            assert_eq!(answers(&mut net, &[raw(op)]), [], "{op:?}");
            assert_eq!(net.lock(&b).counters().rcvd_refused, before + 1, "{op:?}");
        }
        answers(&mut net, &[raw(good)]);
        assert_eq!(net.poll(1, b.rcq).len(), 1, "{good:?}");
    }
}

// rxe rxe_recv.c check_type_state, state
#[test]
fn a_queue_pair_that_is_not_ready_to_receive_drops_without_an_answer() {
    let o = Opts::default();
    let (mut net, _, _) = Net::pair(o);
    let c = net.end(1, &o);
    for state in [qp_state::RESET, qp_state::INIT] {
        if state == qp_state::INIT {
            let attr = QpAttr { qp_state: state, port_num: 1, ..QpAttr::default() };
            let m = qp_attr_mask::PKEY_INDEX | qp_attr_mask::PORT | qp_attr_mask::ACCESS_FLAGS;
            net.modify(&c, &attr, qp_attr_mask::STATE | m).unwrap();
        }
        let before = net.lock(&c).counters().rcvd_no_qp;
        let send = Raw::new(Opcode::RC_SEND_ONLY, &c, 0).asks().payload(8);
        assert_eq!(answers(&mut net, &[send]), []);
        assert_eq!(net.lock(&c).counters().rcvd_no_qp, before + 1, "{state}");
    }
}

// IBTA CA17-33
#[test]
fn packets_for_qp0_and_for_numbers_that_nobody_has_are_dropped() {
    let (mut net, b) = ready(Opts::default());
    for qpn in [0, b.qpn + 1, 0xff_fffe] {
        let before = net.lock(&b).counters();
        let mut send = packet(&b, Opcode::RC_SEND_ONLY, 0);
        send.bth.dest_qp = Qpn::new(qpn);
        assert_eq!(answers(&mut net, &[send]), [], "{qpn}");
        let after = net.lock(&b).counters();
        assert_eq!(after.rcvd_no_qp + after.rcvd_refused, before.rcvd_no_qp + 1, "{qpn}");
    }
    assert!(net.poll(1, b.rcq).is_empty());
}

// IBTA CA17-29
#[test]
fn marks_of_infiniband_and_of_migration_change_nothing() {
    for bit in 0..3 {
        let (mut net, b) = ready(Opts::default());
        let mut send = packet(&b, Opcode::RC_SEND_ONLY, 0);
        (send.bth.fecn, send.bth.becn, send.bth.mig_req) = (bit == 0, bit == 1, bit == 2);
        assert_eq!(answers(&mut net, &[send]), [(Opcode::RC_ACK, 0, Some(ACK))]);
        assert_eq!(net.poll(1, b.rcq).len(), 1);
        assert_eq!(net.lock(&b).counters().np_cnp_sent, 0);
    }
}

// rxe rxe_recv.c hdr_check
// rxe rxe_recv.c rxe_rcv
#[test]
fn a_packet_of_another_version_or_opcode_or_padding_is_malformed() {
    let (mut net, b) = ready(Opts::default());
    let malformed = |net: &mut Net, raw: Raw| {
        let before = net.lock(&b).counters().rcvd_malformed;
        assert_eq!(answers(net, &[raw]), []);
        net.lock(&b).counters().rcvd_malformed - before
    };
    for tver in 1..16 {
        let mut raw = packet(&b, Opcode::RC_SEND_ONLY, 0);
        raw.bth.tver = tver;
        assert_eq!(malformed(&mut net, raw), 1, "version {tver}");
    }
    // Reliable datagrams, reserved codes, those of manufacturers.
    for op in [0x15, 0x18, 0x1f, 0x44, 0x66, 0x80, 0xdf, 0xe0, 0xff] {
        let raw = Raw::new(Opcode(op), &b, 0).payload(8);
        assert_eq!(malformed(&mut net, raw), 1, "opcode {op:#x}");
    }
    // More padding than there are bytes; a RETH that is cut off.
    let mut raw = Raw::new(Opcode::RC_SEND_ONLY, &b, 0);
    raw.bth.pad = 1;
    assert_eq!(malformed(&mut net, raw), 1);
    let raw = Raw::new(Opcode::RC_READ_REQUEST, &b, 0).bytes(&[0; 12]);
    assert_eq!(malformed(&mut net, raw), 1);
    assert!(net.poll(1, b.rcq).is_empty() && net.state(&b) == qp_state::RTS);
}

// rxe rxe_resp.c check_op_seq, UC
#[test]
fn uc_drops_what_may_not_be_and_takes_the_next_message() {
    use Opcode as O;
    let bad: [(&str, &[Opcode]); 6] = [
        ("a message without its beginning", &[O::UC_SEND_MIDDLE, O::UC_SEND_LAST]),
        ("a long message without it", &[O::UC_SEND_MIDDLE, O::UC_SEND_MIDDLE, O::UC_SEND_LAST]),
        ("a WRITE without its beginning", &[O::UC_WRITE_LAST]),
        ("two messages in each other", &[O::UC_SEND_FIRST, O::UC_WRITE_MIDDLE, O::UC_SEND_LAST]),
        ("a message that never ends", &[O::UC_SEND_FIRST, O::UC_SEND_MIDDLE]),
        ("a READ", &[O::RC_READ_REQUEST]),
    ];
    for (what, packets) in bad {
        let (mut net, b) = ready(Opts { kind: qp_type::UC, ..Opts::default() });
        let all: Vec<Raw> =
            packets.iter().zip(0..).map(|(op, ahead)| packet(&b, *op, ahead)).collect();
        assert_eq!(answers(&mut net, &all), [], "{what}");
        assert!(net.poll(1, b.rcq).is_empty(), "{what}");
        // It is one message, whatever its packets; one that does not end goes with the beginning of
        // the next.
        let is_dropped = !["a message that never ends", "a READ"].contains(&what);
        assert_eq!(net.lock(&b).counters().rcvd_dropped, u64::from(is_dropped), "{what}");
        let next = sized(&b, O::UC_SEND_ONLY, packets.len() as u32, 16);
        assert_eq!(answers(&mut net, &[next]), [], "{what}");
        let wc = net.poll(1, b.rcq);
        assert_eq!((wc.len(), wc[0].status, wc[0].byte_len), (1, 0, 16), "{what}");
    }
    // A key that is no key, an operation that is not allowed, no receive request.
    let wrong = [Opts::default(), Opts { access: access::LOCAL_WRITE, ..Opts::default() }];
    for (n, o) in wrong.into_iter().enumerate() {
        let (mut net, b) = ready(Opts { kind: qp_type::UC, ..o });
        let rkey = if n == 0 { b.mr.rkey ^ 1 } else { b.mr.rkey };
        b.buf.write(0, &[0xaa; 8]);
        let write = Raw::new(O::UC_WRITE_ONLY, &b, 0).reth(b.mr.iova, rkey, 8).payload(8);
        assert_eq!(answers(&mut net, &[write]), []);
        assert!(b.buf.read(0, 8) == [0xaa; 8] && net.state(&b) == qp_state::RTS);
        assert_eq!(net.lock(&b).counters().rcvd_dropped, 1);
    }
    let (mut net, _, b) = Net::pair(Opts { kind: qp_type::UC, ..Opts::default() });
    assert_eq!(answers(&mut net, &[packet(&b, O::UC_SEND_ONLY, 0)]), []);
    assert_eq!(net.lock(&b).counters().rcvd_dropped, 1);
}

// rxe rxe_resp.c check_resource, UD
#[test]
fn a_datagram_without_a_receive_request_is_dropped() {
    let (mut net, a, b) = Net::pair(Opts { kind: qp_type::UD, ..Opts::default() });
    let ah = net.ah(&a, &b);
    let send = || Wr::new(wr_opcode::SEND).local(&a, 0, 8).ud(ah, b.qpn, 0x1111);
    net.ok(&a, send());
    assert_eq!(net.lock(&b).counters().rcvd_dropped, 1);
    net.recv(&b, 1, &[(0, 100)]);
    net.ok(&a, send());
    assert_eq!(net.wait(b.host, b.rcq, 1).len(), 1, "it was not kept");
}

// rxe rxe_resp.c read_reply
#[test]
fn a_read_is_answered_by_packets_of_the_path_mtu_with_the_psns_that_it_took() {
    use Opcode as O;
    for (len, want) in [
        (0, &[(O::RC_READ_RESPONSE_ONLY, 0)][..]),
        (MTU, &[(O::RC_READ_RESPONSE_ONLY, 0)]),
        (MTU + 1, &[(O::RC_READ_RESPONSE_FIRST, 0), (O::RC_READ_RESPONSE_LAST, 1)]),
        (
            3 * MTU,
            &[
                (O::RC_READ_RESPONSE_FIRST, 0),
                (O::RC_READ_RESPONSE_MIDDLE, 1),
                (O::RC_READ_RESPONSE_LAST, 2),
            ],
        ),
    ] {
        let (mut net, b) = ready(Opts::default());
        let read = Raw::new(O::RC_READ_REQUEST, &b, 0).reth(b.mr.iova, b.mr.rkey, len as u32);
        let said = answers(&mut net, &[read]);
        let got: Vec<_> = said.iter().map(|&(op, psn, _)| (op, psn)).collect();
        assert_eq!(got, want, "{len} bytes");
        // All but those in the middle have an AETH.
        let middle = |op| op == O::RC_READ_RESPONSE_MIDDLE;
        let right = |&(op, _, aeth): &(Opcode, u32, Option<u8>)| match aeth {
            Some(syndrome) => syndrome == ACK && !middle(op),
            None => middle(op),
        };
        assert!(said.iter().all(right), "{said:?}");
        // The next request has the next PSN.
        let next = packet(&b, O::RC_WRITE_ONLY, want.len() as u32);
        let psn = want.len() as u32;
        assert_eq!(answers(&mut net, &[next]), [(O::RC_ACK, psn, Some(ACK))]);
    }
}

// rxe rxe_recv.c check_keys, QP1
#[test]
fn only_datagrams_between_qp1_and_qp1_reach_the_connection_manager() {
    let (mut net, b) = ready(Opts::default());
    // Q_Key and source QP; the last one is right, and 256 bytes of nothing are no message.
    let deths = [
        [0x80, 1, 0, 1, 0, 0, 0, 1],
        [0, 1, 0, 0, 0, 0, 0, 1],
        [0x80, 1, 0, 0, 0, 0, 0, 2],
        [0x80, 1, 0, 0, 0, 0, 0, 1],
    ];
    for (n, deth) in deths.iter().enumerate() {
        let before = net.lock(&b).counters();
        let mut raw = Raw::new(Opcode::UD_SEND_ONLY, &b, 0).bytes(deth).payload(256);
        (raw.bth.dest_qp, raw.bth.psn) = (Qpn::GSI, Psn::new(0));
        assert_eq!(answers(&mut net, &[raw]), []);
        let after = net.lock(&b).counters();
        let came = u64::from(n == 3);
        assert_eq!(after.rcvd_refused - before.rcvd_refused, 1 - came, "{n}");
        assert_eq!(after.rcvd_pkts - before.rcvd_pkts, came, "{n}");
    }
}
