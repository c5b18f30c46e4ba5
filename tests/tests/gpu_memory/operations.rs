//! Every operation over GPU memory, with every byte compared.

use super::*;

#[test]
fn every_operation_moves_every_byte_between_gpus() {
    let (_alone, driver) = alone();
    over_each(|x, y, port| {
        let (mut a, mut b) = connected_pair(x.soft.dev(), y.soft.dev());
        const LEN: usize = 3 << 20;
        let (here, there) = (x.alloc(&a, LEN), y.alloc(&b, LEN));
        aim(&mut a, &there);
        let mut id = 0;
        for (round, len) in [1usize, 7, 8, 1024, 4097, 65_536, 131_072, 131_073, 1_000_003, LEN]
            .into_iter()
            .enumerate()
        {
            let bytes = pattern(round as u64 + 1, len);
            let at = (LEN - len) / 3;
            here.write(at, &bytes);
            a.post_wr(&a.request(
                id,
                Op::Write(at as u64, None),
                &[here.piece(at as u64, len as u32)],
            ))
            .unwrap();
            succeed(&mut a, &mut b, id);
            assert!(there.read(at, len) == bytes, "{port}: WRITE of {len}");
            memory::fill(here.at, 0xEE, LEN).unwrap();
            a.post_wr(&a.request(
                id + 1,
                Op::Read(at as u64),
                &[here.piece(at as u64, len as u32)],
            ))
            .unwrap();
            succeed(&mut a, &mut b, id + 1);
            assert!(here.read(at, len) == bytes, "{port}: READ of {len}");
            assert!(
                at == 0 || here.read(at - 1, 1) == [0xEE],
                "{port}: READ wrote before its buffer"
            );
            memory::fill(there.at, 0xDD, LEN).unwrap();
            b.buffer.write(0, &[0; 8]);
            receive(&b, id, there.piece(0, LEN as u32));
            a.post_wr(&a.request(id + 2, Op::Send(Some(7)), &[here.piece(at as u64, len as u32)]))
                .unwrap();
            succeed(&mut a, &mut b, id + 2);
            let wc = complete(&mut b, &mut a, id, Duration::from_secs(20));
            assert_eq!(
                (wc.status, wc.byte_len as usize, wc.opcode),
                (0, len, wc_opcode::RECV),
                "{port}"
            );
            assert!(there.read(0, len) == bytes, "{port}: SEND of {len}");
            id += 3;
        }
        there.write(64, &5u64.to_ne_bytes());
        for (op, before, after) in [
            (Op::FetchAdd(64, 3), 5u64, 8u64),
            (Op::CmpSwap(64, 8, 1 << 40), 8, 1 << 40),
            (Op::CmpSwap(64, 8, 9), 1 << 40, 1 << 40),
        ] {
            a.post_wr(&a.request(id, op, &[here.piece(8, 8)])).unwrap();
            succeed(&mut a, &mut b, id);
            assert_eq!(here.read(8, 8), before.to_ne_bytes(), "{port}: {op:?}");
            assert_eq!(there.read(64, 8), after.to_ne_bytes(), "{port}: {op:?}");
            id += 1;
        }
        x.forget(&a, &here);
        y.forget(&b, &there);
        for r in [here, there] {
            memory::free(r.at).unwrap();
        }
        for e in [a, b] {
            e.destroy().expect("destroy");
        }
    });
    if driver == Driver::Fake {
        assert_eq!(cuda::stat(Stat::Pageable), 0, "a copy from or to memory that is not pinned");
        assert!(cuda::stat(Stat::Copies) > 100);
    }
}

/// Data that is read ahead for one message must not be sent for another.
#[test]
fn a_message_sends_the_bytes_of_the_time_of_its_posting() {
    let (_alone, _) = alone();
    over_each(|x, y, port| {
        let (mut a, mut b) = connected_pair(x.soft.dev(), y.soft.dev());
        const LEN: usize = 600_000;
        let (here, there) = (x.alloc(&a, LEN), y.alloc(&b, LEN));
        aim(&mut a, &there);
        for round in 0..40u64 {
            // The same addresses, other bytes; lengths that end within chunks.
            let len = LEN - (round as usize % 7) * 1000;
            let bytes = pattern(round, len);
            here.write(0, &bytes);
            a.post_wr(&a.request(round, Op::Write(0, None), &[here.piece(0, len as u32)])).unwrap();
            succeed(&mut a, &mut b, round);
            assert!(there.read(0, len) == bytes, "{port}: round {round}");
        }
        // The other direction: the responder's memory changes between READs.
        for round in 100..130u64 {
            let bytes = pattern(round, LEN);
            there.write(0, &bytes);
            a.post_wr(&a.request(round, Op::Read(0), &[here.piece(0, LEN as u32)])).unwrap();
            succeed(&mut a, &mut b, round);
            assert!(here.read(0, LEN) == bytes, "{port}: round {round}");
        }
        end(a, x, Some(here));
        end(b, y, Some(there));
    });
}

#[test]
fn unreliable_messages_and_the_header_before_a_datagram_land_too() {
    let (_alone, driver) = alone();
    over_each(|x, y, port| {
        for qp_type in [qp_type::UC, qp_type::UD] {
            let shape = Shape { qp_type, ..Shape::default() };
            let (mut a, mut b) =
                connected(x.soft.dev(), y.soft.dev(), shape).expect("connected ends");
            let (here, there) = (x.alloc(&a, 8192), y.alloc(&b, 8192));
            let header = if qp_type == qp_type::UD { 40 } else { 0 };
            for round in 0..20u64 {
                let bytes = pattern(round, 1000);
                here.write(0, &bytes);
                // In turn: everything into the GPU; only the header (or the first bytes); only the
                // rest.
                let into = match round % 3 {
                    0 => vec![there.piece(0, header + 1000)],
                    1 => vec![there.piece(0, 40), b.piece(0, header + 960)],
                    _ => vec![b.piece(0, 40), there.piece(0, header + 960)],
                };
                let before = if driver == Driver::Fake { cuda::stat(Stat::Bytes) } else { 0 };
                receive_all(&b, round, &into);
                a.post_wr(&a.request(round, Op::Send(None), &[here.piece(0, 1000)])).unwrap();
                let wc = complete(&mut b, &mut a, round, Duration::from_secs(20));
                assert_eq!((wc.status, wc.byte_len), (0, header + 1000), "{port}");
                let gpu: u64 =
                    into.iter().filter(|p| p.lkey == there.key).map(|p| u64::from(p.length)).sum();
                if driver == Driver::Fake {
                    let moved = cuda::stat(Stat::Bytes) - before;
                    assert!(
                        moved >= 1000 + gpu,
                        "{port} {qp_type} {round}: received after {moved} bytes"
                    );
                }
                let got: Vec<u8> = into
                    .iter()
                    .flat_map(|p| {
                        let n = p.length as usize;
                        if p.lkey == there.key {
                            there.read(0, n)
                        } else {
                            b.buffer.read(0, n)
                        }
                    })
                    .collect();
                assert!(got[header as usize..] == bytes, "{port} {qp_type} {round}");
                succeed(&mut a, &mut b, round);
            }
            end(a, x, Some(here));
            end(b, y, Some(there));
        }
    });
}

/// Copies into and out of GPU memory use two streams. An atomic does both, and the ACK of the WRITE
/// does not hold it back.
#[test]
fn an_atomic_sees_the_write_before_it() {
    let (_alone, driver) = alone();
    if driver == Driver::Real {
        skip!("a real GPU's copies take the time that they take");
    }
    over_each(|x, y, port| {
        let (mut a, mut b) = connected_pair(x.soft.dev(), y.soft.dev());
        let there = y.alloc(&b, 4096);
        aim(&mut a, &there);
        there.write(0, &[0; 16]);
        a.buffer.write(0, &5u64.to_ne_bytes());
        // The WRITE's copy takes long, those of the atomic do not.
        cuda::option("FAKECUDA_DELAY_US", 60_000);
        a.post(1, Op::Write(0, None), 0, 8).unwrap();
        for _ in 0..2000 {
            a.poll();
            b.poll();
        }
        cuda::option("FAKECUDA_DELAY_US", 20);
        a.post(2, Op::FetchAdd(0, 3), 8, 8).unwrap();
        succeed(&mut a, &mut b, 2);
        assert_eq!(a.buffer.read(8, 8), 5u64.to_ne_bytes(), "{port}");
        assert_eq!(there.read(0, 8), 8u64.to_ne_bytes(), "{port}");
        end(b, y, Some(there));
        end(a, x, None);
    });
}

/// One message gathered from two GPUs and the host, and scattered over the same; its ACK waits for
/// all copies.
#[test]
fn a_message_crosses_gpus() {
    let (_alone, driver) = alone();
    if Device::count() == Ok(1) {
        skip!("one GPU");
    }
    over_each(|x, y, port| {
        let (mut a, mut b) = connected_pair(x.soft.dev(), y.soft.dev());
        const LEN: usize = 200_001;
        let on = |g: &Gpu, e: &End, n: u32| {
            let at = memory::alloc(Device::get(n).unwrap(), LEN, AllocationKind::Plain)
                .expect("GPU memory");
            assert_eq!(Span::look_up(at, 1).unwrap().device.ordinal, n);
            g.register(e, at, LEN as u64)
        };
        let here = [on(x, &a, 0), on(x, &a, 1)];
        let there = [on(y, &b, 1), on(y, &b, 0)];
        for round in 0..8u64 {
            let bytes = pattern(round, 2 * LEN + 5000);
            here[0].write(0, &bytes[..LEN]);
            a.buffer.write(0, &bytes[LEN..LEN + 5000]);
            here[1].write(0, &bytes[LEN + 5000..]);
            let length = LEN as u32;
            let into = [there[0].piece(0, length), there[1].piece(0, length), b.piece(0, 5000)];
            receive_all(&b, round, &into);
            let before = if driver == Driver::Fake { cuda::stat(Stat::Bytes) } else { 0 };
            let from = [here[0].piece(0, length), a.piece(0, 5000), here[1].piece(0, length)];
            a.post_wr(&a.request(round, Op::Send(None), &from)).unwrap();
            succeed(&mut a, &mut b, round);
            if driver == Driver::Fake {
                let moved = cuda::stat(Stat::Bytes) - before;
                assert!(moved >= 4 * LEN as u64, "{port}: acknowledged after {moved} bytes");
            }
            assert_eq!(complete(&mut b, &mut a, round, Duration::from_secs(20)).status, 0);
            assert!(
                there[0].read(0, LEN) == bytes[..LEN]
                    && there[1].read(0, LEN) == bytes[LEN..2 * LEN],
                "{port}"
            );
            assert!(b.buffer.read(0, 5000) == bytes[2 * LEN..], "{port}");
        }
        for (e, g, regions) in [(a, x, here), (b, y, there)] {
            for r in regions {
                g.forget(&e, &r);
                memory::free(r.at).unwrap();
            }
            e.destroy().expect("destroy");
        }
    });
}

#[test]
fn small_accesses_use_a_mapped_view_where_the_driver_offers_one() {
    let (_alone, driver) = alone();
    for (kind, mapped) in [(2, true), (1, false), (0, false)] {
        if driver == Driver::Fake {
            cuda::option("FAKECUDA_DMABUF", kind);
        }
        let x = Gpu::new(Soft::new("loopback"));
        let (mut a, mut b) = connected_pair(x.soft.dev(), x.soft.dev());
        let there = x.alloc(&b, 1 << 20);
        match driver {
            Driver::Fake => assert_eq!(x.staging.has_view(there.cookie), mapped),
            Driver::Real => println!("cuda: a mapped view: {}", x.staging.has_view(there.cookie)),
        }
        aim(&mut a, &there);
        let copies = || if driver == Driver::Fake { cuda::stat(Stat::Copies) } else { 0 };
        let before = copies();
        for round in 0..50u64 {
            let bytes = pattern(round, 64);
            a.buffer.write(0, &bytes);
            a.post(round, Op::Write(round * 64, None), 0, 64).unwrap();
            succeed(&mut a, &mut b, round);
            a.post(1000 + round, Op::Read(round * 64), 64, 64).unwrap();
            succeed(&mut a, &mut b, 1000 + round);
            assert!(
                a.buffer.read(64, 64) == bytes && there.read(round as usize * 64, 64) == bytes,
                "{round}"
            );
        }
        if driver == Driver::Fake {
            assert_eq!(copies() == before, mapped, "copies, with mapping {mapped}");
        }
        // Large accesses are copied by the GPU, in order with small ones.
        let large = pattern(77, 1 << 20);
        a.buffer.write(0, &large);
        a.post(1, Op::Write(0, None), 0, 1 << 20).unwrap();
        a.post(2, Op::Write(100, None), 5, 64).unwrap();
        succeed(&mut a, &mut b, 2);
        assert!(there.read(100, 64) == large[5..69] && there.read(164, 1000) == large[164..1164]);
        // Freed while a view maps it.
        memory::free(there.at).unwrap();
        a.post(3, Op::Write(0, None), 0, 64).unwrap();
        assert_eq!(
            complete(&mut a, &mut b, 3, Duration::from_secs(20)).status,
            wc_status::REM_OP_ERR
        );
        x.forget(&b, &there);
        for e in [a, b] {
            e.destroy().expect("destroy");
        }
    }
}
