//! Every opcode, every size, every MTU, without faults.

use gdrcore_core::verbs::types::*;
use gdrcore_core::wire::IcrcFlow;

use crate::util::*;

pub const MTUS: [u32; 5] =
    [mtu::MTU_256, mtu::MTU_512, mtu::MTU_1024, mtu::MTU_2048, mtu::MTU_4096];

pub fn sizes(mtu_code: u32) -> Vec<usize> {
    let m = 128 << mtu_code as usize;
    vec![0, 1, 3, 8, m - 1, m, m + 1, 2 * m, 65_536 + 7, 200_000]
}

/// SEND, WRITE and READ of one size, both buffers checked whole.
pub fn all_three(net: &mut Net, a: &End, b: &End, len: usize) {
    let (src, dst) = (64, 128);
    let data = pattern(len as u64, len);
    let clean = |e: &End| e.buf.write(0, &vec![0xaa; e.buf.len()]);
    let check = |e: &End, at: usize, data: &[u8], what: &str| {
        assert!(e.buf.read(at, data.len()) == data, "{what} of {len}");
        let after = at + data.len();
        assert!(e.buf.read(0, at).iter().all(|&x| x == 0xaa), "{what} of {len}: before");
        assert!(
            e.buf.read(after, e.buf.len() - after).iter().all(|&x| x == 0xaa),
            "{what} of {len}: after"
        );
    };

    clean(b);
    a.buf.write(src, &data);
    net.recv(b, 77, &[(dst, len)]);
    let wc = net.ok(a, Wr::new(wr_opcode::SEND).id(5).local(a, src, len));
    assert_eq!((wc.wr_id, wc.opcode, wc.qp_num), (5, wc_opcode::SEND, a.qpn));
    let wc = net.wait(b.host, b.rcq, 1)[0];
    let got = (wc.wr_id, wc.status, wc.opcode, wc.byte_len as usize, wc.qp_num, wc.wc_flags);
    assert_eq!(got, (77, 0, wc_opcode::RECV, len, b.qpn, 0));
    check(b, dst, &data, "SEND");

    clean(b);
    let data = pattern(len as u64 + 1, len);
    a.buf.write(src, &data);
    let wc = net.ok(a, Wr::new(wr_opcode::RDMA_WRITE).id(6).local(a, src, len).remote(b, dst));
    assert_eq!((wc.wr_id, wc.opcode), (6, wc_opcode::RDMA_WRITE));
    check(b, dst, &data, "WRITE");

    clean(a);
    let data = pattern(len as u64 + 2, len);
    b.buf.write(dst, &data);
    let wc = net.ok(a, Wr::new(wr_opcode::RDMA_READ).id(7).local(a, src, len).remote(b, dst));
    assert_eq!((wc.wr_id, wc.opcode, wc.byte_len as usize), (7, wc_opcode::RDMA_READ, len));
    check(a, src, &data, "READ");
}

fn sweep(o: Opts) {
    for code in MTUS {
        let o = Opts { mtu: code, bytes: 210_000, ..o };
        let (mut net, a, b) = Net::pair(o);
        for len in sizes(code) {
            all_three(&mut net, &a, &b, len);
            all_three(&mut net, &b, &a, len);
        }
        net.assert_faultless();
    }
}

// rxe rxe_resp.c do_complete
#[test]
fn send_write_read_of_all_sizes_over_ipv4() {
    sweep(Opts::default());
}

#[test]
fn send_write_read_of_all_sizes_over_ipv6() {
    sweep(Opts { v6: true, ..Opts::default() });
}

#[test]
fn send_write_read_of_all_sizes_over_a_link() {
    sweep(Opts { way: Way::Link, ..Opts::default() });
    sweep(Opts { way: Way::Link, v6: true, srq: true, mtu: mtu::MTU_4096, ..Opts::default() });
}

#[test]
fn send_write_read_of_all_sizes_over_loopback() {
    sweep(Opts { way: Way::Loopback, ..Opts::default() });
}

#[test]
fn send_write_read_of_all_sizes_with_an_srq() {
    sweep(Opts { srq: true, ..Opts::default() });
}

#[test]
fn a_mebibyte_at_once() {
    for way in WAYS {
        let (mut net, a, b) = Net::pair(Opts { mtu: mtu::MTU_4096, way, ..Opts::default() });
        all_three(&mut net, &a, &b, 1 << 20);
        all_three(&mut net, &b, &a, (1 << 20) + 5);
    }
}

// rxe rxe_req.c next_opcode_rc
// rxe rxe_resp.c check_resource, immediate
// rxe rxe_resp.c do_complete
#[test]
fn immediate_data_reaches_the_receiver() {
    for way in WAYS {
        let (mut net, a, b) = Net::pair(Opts { way, ..Opts::default() });
        for len in [0usize, 1, 1024, 5000] {
            let data = pattern(9, len);
            a.buf.write(0, &data);
            net.recv(&b, 1, &[(0, 8192)]);
            net.ok(&a, Wr::new(wr_opcode::SEND_WITH_IMM).imm(0xdead_beef).local(&a, 0, len));
            let wc = net.wait(b.host, b.rcq, 1)[0];
            let want = (0, wc_opcode::RECV, 0xdead_beef, wc_flags::WITH_IMM, len as u32);
            assert_eq!((wc.status, wc.opcode, wc.imm_data, wc.wc_flags, wc.byte_len), want);
            assert!(b.buf.read(0, len) == data);

            net.recv(&b, 2, &[]);
            net.ok(
                &a,
                Wr::new(wr_opcode::RDMA_WRITE_WITH_IMM)
                    .imm(0x0102_0304)
                    .local(&a, 0, len)
                    .remote(&b, 9000),
            );
            let wc = net.wait(b.host, b.rcq, 1)[0];
            let want =
                (0, wc_opcode::RECV_RDMA_WITH_IMM, 0x0102_0304, wc_flags::WITH_IMM, len as u32, 2);
            assert_eq!(
                (wc.status, wc.opcode, wc.imm_data, wc.wc_flags, wc.byte_len, wc.wr_id),
                want
            );
            assert!(b.buf.read(9000, len) == data);
        }
    }
}

// rxe rxe_resp.c atomic_reply, value
// rxe rxe_comp.c do_atomic
#[test]
fn atomics_change_and_return() {
    for way in WAYS {
        let (mut net, a, b) = Net::pair(Opts { way, ..Opts::default() });
        b.buf.write_u64(64, 100);
        let add =
            Wr::new(wr_opcode::ATOMIC_FETCH_AND_ADD).local(&a, 0, 8).atomic(&b, 64, u64::MAX, 0);
        let wc = net.ok(&a, add);
        assert_eq!((wc.opcode, wc.byte_len), (wc_opcode::FETCH_ADD, 8));
        assert_eq!((a.buf.read_u64(0), b.buf.read_u64(64)), (100, 99));
        let swap = |old, new| {
            Wr::new(wr_opcode::ATOMIC_CMP_AND_SWP).local(&a, 8, 8).atomic(&b, 64, old, new)
        };
        let wc = net.ok(&a, swap(1, 2));
        assert_eq!(wc.opcode, wc_opcode::COMP_SWAP);
        assert_eq!((a.buf.read_u64(8), b.buf.read_u64(64)), (99, 99));
        net.ok(&a, swap(99, 0x0102_0304_0506_0708));
        assert_eq!((a.buf.read_u64(8), b.buf.read_u64(64)), (99, 0x0102_0304_0506_0708));
    }
}

// rxe rxe_verbs.c validate_send_wr
#[test]
fn the_result_of_an_atomic_fills_the_first_8_bytes_of_its_list() {
    for (way, kind) in WAYS.into_iter().flat_map(|w| [(w, qp_type::RC), (w, qp_type::DCI)]) {
        let (mut net, a, b) = Net::pair(Opts { way, kind, ..Opts::default() });
        let result = pattern(3, 8);
        // Where the pieces lie, and where the result does.
        let lists: [&[(usize, usize)]; 5] = [
            &[(0, 100)],
            &[(0, 1 << 20)],
            &[(0, 3), (3, 100)],
            &[(0, 3), (3, 0), (3, 4), (7, 1), (500, 9)],
            &[(0, 8), (500, 8)],
        ];
        for pieces in lists {
            for op in [wr_opcode::ATOMIC_FETCH_AND_ADD, wr_opcode::ATOMIC_CMP_AND_SWP] {
                a.buf.write(0, &[0xee; 600]);
                b.buf.write(64, &result);
                let at = |wr: Wr, &(at, len): &(usize, usize)| wr.local(&a, at, len);
                let wr = pieces.iter().fold(Wr::new(op), at).atomic(&b, 64, 0, 0);
                let wc = net.ok(&a, wr);
                assert_eq!(wc.byte_len, 8);
                assert_eq!(a.buf.read(0, 8), result, "{pieces:?}");
                assert!(a.buf.read(8, 592) == [0xee; 592], "{pieces:?}");
            }
        }
        for len in [0, 1, 7] {
            let short = Wr::new(wr_opcode::ATOMIC_FETCH_AND_ADD).local(&a, 0, len);
            assert_eq!(
                net.try_post(&a, short.atomic(&b, 64, 1, 0)),
                Err(gdrcore_core::Error::Invalid)
            );
        }
        // Of a longer piece only what is written has to be in its region.
        let at = a.buf.len() - 8;
        let wr = Wr::new(wr_opcode::ATOMIC_FETCH_AND_ADD).local(&a, at, 100).atomic(&b, 64, 0, 0);
        net.ok(&a, wr);
        assert_eq!(a.buf.read(at, 8), result);
    }
}

#[test]
fn inline_data_and_many_pieces() {
    let (mut net, a, b) = Net::pair(Opts::default());
    // Inline: the buffer may change as soon as post returns.
    let data = pattern(3, 100);
    a.buf.write(0, &data);
    net.recv(&b, 1, &[(0, 30), (50, 0), (100, 200)]);
    net.post(
        &a,
        Wr::new(wr_opcode::SEND).local(&a, 0, 60).local(&a, 60, 40).add_flags(send_flags::INLINE),
    );
    a.buf.write(0, &[0; 100]);
    net.wait(a.host, a.scq, 1);
    assert_eq!(net.wait(b.host, b.rcq, 1)[0].byte_len, 100);
    assert!(b.buf.read(0, 30) == data[..30] && b.buf.read(100, 70) == data[30..]);

    // Pieces that do not end where packets end, on both sides.
    let data = pattern(4, 10_000);
    a.buf.write(0, &data);
    net.recv(&b, 2, &[(0, 1), (1000, 4095), (8000, 3), (10_000, 9000)]);
    net.ok(
        &a,
        Wr::new(wr_opcode::SEND)
            .local(&a, 0, 3000)
            .local(&a, 3000, 1)
            .local(&a, 3001, 0)
            .local(&a, 3001, 6999),
    );
    net.wait(b.host, b.rcq, 1);
    let got =
        [b.buf.read(0, 1), b.buf.read(1000, 4095), b.buf.read(8000, 3), b.buf.read(10_000, 5901)]
            .concat();
    assert!(got == data);

    b.buf.write(20_000, &data);
    net.ok(
        &a,
        Wr::new(wr_opcode::RDMA_READ)
            .local(&a, 30_000, 5000)
            .local(&a, 50_000, 5000)
            .remote(&b, 20_000),
    );
    assert!([a.buf.read(30_000, 5000), a.buf.read(50_000, 5000)].concat() == data);
}

// IBTA 10.7.3.1
#[test]
fn unsignalled_requests_complete_silently_and_free_their_slots() {
    let (mut net, a, b) = Net::pair(Opts { sq: 8, ..Opts::default() });
    for i in 0..100u64 {
        while net
            .try_post(
                &a,
                Wr::new(wr_opcode::RDMA_WRITE).id(i).flags(0).local(&a, 0, 100).remote(&b, 0),
            )
            .is_err()
        {
            net.settle();
        }
    }
    let wc = net.ok(&a, Wr::new(wr_opcode::RDMA_WRITE).id(1000).local(&a, 0, 100).remote(&b, 0));
    assert_eq!(wc.wr_id, 1000);
    let (mut net, a, b) = Net::pair(Opts { sig_all: true, ..Opts::default() });
    net.post(&a, Wr::new(wr_opcode::RDMA_WRITE).flags(0).local(&a, 0, 100).remote(&b, 0));
    assert_eq!(net.wait(a.host, a.scq, 1).len(), 1);
}

// rxe rxe_comp.c do_complete
#[test]
fn many_requests_complete_in_order() {
    for way in WAYS {
        let (mut net, a, b) = Net::pair(Opts { way, sq: 64, ..Opts::default() });
        b.buf.write(0, &pattern(1, 100_000));
        for i in 0..64u64 {
            let len = 1 + (i as usize * 700) % 9000;
            let w = match i % 4 {
                0 => Wr::new(wr_opcode::RDMA_READ).local(&a, 200_000, len).remote(&b, 0),
                1 => Wr::new(wr_opcode::ATOMIC_FETCH_AND_ADD)
                    .local(&a, 100_000, 8)
                    .atomic(&b, 500_000, 1, 0),
                2 => Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, len).remote(&b, 600_000),
                _ => {
                    net.recv(&b, i, &[(700_000, 10_000)]);
                    Wr::new(wr_opcode::SEND).local(&a, 0, len)
                }
            };
            net.post(&a, w.id(i));
        }
        let wc = net.wait(a.host, a.scq, 64);
        assert!(wc.iter().enumerate().all(|(i, w)| w.wr_id == i as u64 && w.status == 0), "{wc:?}");
        let wc = net.wait(b.host, b.rcq, 16);
        assert!(
            wc.iter().enumerate().all(|(i, w)| w.wr_id == 4 * i as u64 + 3 && w.status == 0),
            "{wc:?}"
        );
        assert_eq!(b.buf.read_u64(500_000), 16);
    }
}

// rxe rxe_req.c rxe_wqe_is_fenced
#[test]
fn a_fence_waits_for_reads_before_it() {
    let (mut net, a, b) = Net::pair(Opts::default());
    b.buf.write(0, &pattern(5, 50_000));
    // READ into a buffer, then send that buffer: without the fence the old bytes would leave.
    net.recv(&b, 1, &[(100_000, 50_000)]);
    net.post(&a, Wr::new(wr_opcode::RDMA_READ).local(&a, 0, 50_000).remote(&b, 0));
    net.post(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 50_000).add_flags(send_flags::FENCE));
    assert_eq!(net.wait(a.host, a.scq, 2).len(), 2);
    net.wait(b.host, b.rcq, 1);
    assert!(b.buf.read(100_000, 50_000) == pattern(5, 50_000));
}

#[test]
fn windows_of_both_types_bind_serve_and_close() {
    let (mut net, a, b) = Net::pair(Opts::default());
    let both = access::REMOTE_WRITE | access::REMOTE_READ;
    let info = |len| MwBindInfo { addr: b.mr.iova + 4096, ..b.window(len, both) };
    let write = |at: u64, key: u32| {
        Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 100).key(b.mr.iova + at, key)
    };
    a.buf.write(0, &pattern(8, 100));
    for kind in [1, 2] {
        let (mw, key) = net.lock(&b).mw_alloc(b.pd, kind).unwrap();
        let key = (key & !0xff) | (key.wrapping_add(1) & 0xff);
        let wc = net.ok(&b, Wr::new(wr_opcode::BIND_MW).bind(mw, key, info(4096)));
        assert_eq!(wc.opcode, wc_opcode::BIND_MW);
        net.ok(&a, write(4096, key));
        assert!(b.buf.read(4096, 100) == pattern(8, 100));
        b.buf.write(4096, &[0; 100]);
        if kind == 2 {
            // SEND with invalidate closes it; a second bind is allowed then, with another key.
            net.recv(&b, 4, &[(0, 100)]);
            net.ok(&a, Wr::new(wr_opcode::SEND_WITH_INV).imm(key).local(&a, 0, 10));
            let wc = net.wait(b.host, b.rcq, 1)[0];
            assert_eq!((wc.wc_flags, wc.imm_data, wc.status), (wc_flags::WITH_INV, key, 0));
            let key = (key & !0xff) | (key.wrapping_add(1) & 0xff);
            net.ok(&b, Wr::new(wr_opcode::BIND_MW).bind(mw, key, info(100)));
            net.ok(&a, write(4096, key));
            let wc = net.ok(&b, Wr::new(wr_opcode::LOCAL_INV).imm(key));
            assert_eq!(wc.opcode, wc_opcode::LOCAL_INV);
            let wc = net.run_one(&a, write(4096, key));
            assert_eq!(wc.status, wc_status::REM_ACCESS_ERR);
        }
        net.lock(&b).mw_dealloc(mw).unwrap();
    }
}

// rxe rxe_req.c rxe_requester, UC
#[test]
fn uc_sends_and_writes() {
    for (way, srq) in WAYS.into_iter().flat_map(|way| [(way, false), (way, true)]) {
        let (mut net, a, b) = Net::pair(Opts { kind: qp_type::UC, way, srq, ..Opts::default() });
        for len in [0usize, 1, 1023, 1024, 1025, 70_000] {
            let data = pattern(len as u64, len);
            a.buf.write(0, &data);
            net.recv(&b, 1, &[(0, 80_000)]);
            net.ok(&a, Wr::new(wr_opcode::SEND).local(&a, 0, len));
            assert_eq!(net.wait(b.host, b.rcq, 1)[0].byte_len as usize, len);
            assert!(b.buf.read(0, len) == data);
            net.recv(&b, 2, &[]);
            net.ok(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, len).remote(&b, 100_000));
            net.ok(
                &a,
                Wr::new(wr_opcode::RDMA_WRITE_WITH_IMM)
                    .imm(7)
                    .local(&a, 0, len)
                    .remote(&b, 200_000),
            );
            let wc = net.wait(b.host, b.rcq, 1)[0];
            assert_eq!(
                (wc.byte_len as usize, wc.imm_data, wc.opcode),
                (len, 7, wc_opcode::RECV_RDMA_WITH_IMM)
            );
            assert!(b.buf.read(100_000, len) == data && b.buf.read(200_000, len) == data);
        }
    }
}

// IBTA A17.4.5.2
#[test]
fn ud_datagrams_come_with_a_grh() {
    use Way::{Link, Loopback, Wire};
    for (v6, way, srq) in [
        (false, Wire, false),
        (true, Wire, false),
        (false, Loopback, false),
        (true, Loopback, true),
        (true, Link, true),
    ] {
        let (mut net, a, b) =
            Net::pair(Opts { kind: qp_type::UD, v6, way, srq, ..Opts::default() });
        let ah = net.ah(&a, &b);
        for len in [0usize, 1, 4095, 4096] {
            let data = pattern(len as u64, len);
            a.buf.write(0, &data);
            net.recv(&b, 3, &[(0, 20), (1000, 4116)]);
            b.buf.write(0, &[0xee; 2000]);
            net.ok(
                &a,
                Wr::new(wr_opcode::SEND_WITH_IMM).imm(9).local(&a, 0, len).ud(ah, b.qpn, 0x1111),
            );
            let wc = net.wait(b.host, b.rcq, 1)[0];
            let want = (len + 40, a.qpn, wc_flags::GRH | wc_flags::WITH_IMM, 9, 3);
            assert_eq!((wc.byte_len as usize, wc.src_qp, wc.wc_flags, wc.imm_data, wc.wr_id), want);
            let got = [b.buf.read(0, 20), b.buf.read(1000, len + 20)].concat();
            assert!(got[40..] == data);
            let (src, dst) = (net.hosts[a.host].addr.gid, net.hosts[b.host].addr.gid);
            if v6 {
                assert_eq!((got[0] >> 4, &got[8..24], &got[24..40]), (6, &src[..], &dst[..]));
            } else {
                let want = (&[0; 20][..], 0x45, &src[12..], &dst[12..]);
                assert_eq!((&got[..20], got[20], &got[32..36], &got[36..40]), want);
            }
        }
    }
}

#[test]
fn an_srq_serves_several_qps_and_tells_its_limit() {
    use gdrcore_core::device::async_event;
    let o = Opts { srq: true, ..Opts::default() };
    let (mut net, a, b) = Net::pair(o);
    for i in 0..8 {
        net.recv(&b, i, &[(i as usize * 100, 100)]);
    }
    net.lock(&b).srq_modify(b.srq, 4).unwrap();
    for i in 0..4u64 {
        net.ok(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 10));
        let wc = net.wait(b.host, b.rcq, 1);
        assert_eq!(wc[0].wr_id, i);
    }
    assert!(net.lock(&b).take_async_event().is_none());
    net.ok(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 10));
    let event = net.lock(&b).take_async_event().unwrap();
    assert_eq!((event.event, event.handle), (async_event::SRQ_LIMIT_REACHED, b.srq));
    assert!(net.lock(&b).take_async_event().is_none());
}

#[test]
fn both_directions_at_once() {
    let (mut net, a, b) = Net::pair(Opts::default());
    for i in 0..30u64 {
        let len = 1000 + 3000 * i as usize % 50_000;
        for (x, y) in [(&a, &b), (&b, &a)] {
            net.recv(y, i, &[(1 << 20, 60_000)]);
            net.post(x, Wr::new(wr_opcode::SEND).id(i).local(x, 0, len));
        }
    }
    for x in [&a, &b] {
        assert_eq!(net.wait(x.host, x.scq, 30).iter().filter(|w| w.status == 0).count(), 30);
        assert_eq!(net.wait(x.host, x.rcq, 30).iter().filter(|w| w.status == 0).count(), 30);
    }
}

#[test]
fn bursts_of_messages_of_all_sizes_are_cut_where_they_must_be() {
    for mtu in [mtu::MTU_256, mtu::MTU_4096] {
        let (mut net, a, b) = Net::pair(Opts { mtu, ..Opts::default() });
        let mut open = 0;
        // Several messages in one burst, and every packet of it where its segment says.
        let mut x = 1u32;
        for round in 0..40u64 {
            for i in 0..12u64 {
                x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let len = [0, 1, 8, 64, 250, 256, 257, 300, 1000, 5000][(x >> 16) as usize % 10];
                let (from, to) = if x >> 31 == 0 { (&a, &b) } else { (&b, &a) };
                let w = match x >> 28 & 3 {
                    0 => Wr::new(wr_opcode::RDMA_READ)
                        .local(from, 8192 * i as usize, len)
                        .remote(to, 1 << 20),
                    1 => {
                        net.recv(to, round, &[(2 << 20, 5000)]);
                        Wr::new(wr_opcode::SEND).local(from, 0, len)
                    }
                    2 => Wr::new(wr_opcode::RDMA_WRITE).local(from, 0, len).remote(to, 1 << 20),
                    _ => Wr::new(wr_opcode::ATOMIC_FETCH_AND_ADD).local(from, 0, 8).atomic(
                        to,
                        1 << 20,
                        1,
                        0,
                    ),
                };
                net.post(from, w);
                open += 1;
            }
            net.settle();
            for e in [&a, &b] {
                let wc = net.poll(e.host, e.scq);
                assert!(wc.iter().all(|w| w.status == wc_status::SUCCESS), "{wc:?}");
                open -= wc.len();
                net.poll(e.host, e.rcq);
            }
            assert_eq!(open, 0, "all of round {round} is done without a timer");
        }
        net.assert_faultless();
    }
}

/// Senders whose packets are numbered (rxe's, a connected socket's): whatever the number, however
/// it goes on, with losses between.
// IBTA CA17-24
#[test]
fn packets_with_any_identification_arrive_and_damaged_ones_do_not() {
    let (mut net, a, b) = Net::pair(Opts::default());
    let flows: Vec<IcrcFlow> = (0..2)
        .map(|i| (net.hosts[i].addr, net.hosts[1 - i].addr))
        .map(|(src, dst)| IcrcFlow::from_gids(&src.gid, &dst.gid, src.port, dst.port))
        .collect();
    let (mut idents, mut count) = ([0xfff0u16, 7], 0);
    net.tap = Some(Box::new(move |from, p| {
        count += 1;
        idents[from] = match count % 97 {
            50 => 0,
            90 => idents[from].wrapping_mul(31).wrapping_add(3),
            _ => idents[from].wrapping_add(1),
        };
        flows[from].append_icrc(idents[from], p);
        if count % 41 == 40 {
            // The payload, or the AETH: nothing that an identification could explain.
            p[13] ^= 0x20;
        }
        Fate::drop_if(count % 53 == 52)
    }));
    for k in 0..200usize {
        let data = pattern(k as u64, 64 + 2000 * (k % 3));
        a.buf.write(0, &data);
        net.recv(&b, k as u64, &[(8192, 8192)]);
        net.ok(&a, Wr::new(wr_opcode::SEND).local(&a, 0, data.len()));
        assert!(b.buf.read(8192, data.len()) == data, "message {k}");
        net.wait(b.host, b.rcq, 1);
    }
    let c = net.hosts[1].lock().counters();
    assert!(c.rcvd_icrc_err > 3, "{c:?}");
    assert_eq!((c.rcvd_malformed, c.rcvd_refused), (0, 0));
}
