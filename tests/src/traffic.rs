//! Checked traffic: every operation of a transport, at the lengths around packet boundaries, with
//! all bytes compared.

use crate::ends::{complete, connected, pattern, succeed, End, Op, Shape};
use crate::patience::until;
use gdrcore_core::device::Device;
use gdrcore_core::verbs::cause::Cause;
use gdrcore_core::verbs::types::{qp_type, wc_flags, wc_opcode, wc_status, Wc};
use std::time::Duration;

/// Bytes of the GRH in front of a UD message.
pub const GRH: u32 = 40;

/// Runs every operation of the ends' transport from `a` to `b`, one at a time; returns the number
/// of messages. Both buffers must hold twice `longest` plus 64 bytes.
pub fn every_operation(a: &mut End, b: &mut End, longest: u32) -> usize {
    let mtu = 128 << a.shape.mtu;
    let mut lengths = vec![0, 1, 2, 3, 4, 5, 64, mtu - 1, mtu];
    if a.shape.qp_type != qp_type::UD {
        lengths.extend([mtu + 1, 2 * mtu, 2 * mtu + 3, 9 * mtu + 1, longest]);
    }
    lengths.retain(|&l| l <= longest);
    let mut n = 0;
    for length in lengths {
        let mut id = || {
            n += 1;
            n as u64
        };
        send(a, b, id(), length, None);
        send(a, b, id(), length, Some(0xCAFE_0000u32.to_be()));
        if a.shape.qp_type != qp_type::UD {
            write(a, b, id(), length, true);
        }
        if a.shape.qp_type == qp_type::RC {
            write(a, b, id(), length, false);
            read(a, b, id(), length);
        }
    }
    if a.shape.qp_type == qp_type::RC {
        atomics(a, b, 1000);
        n += 3;
    }
    n
}

/// Bytes from `a` to `b` by SEND, and on RC there by WRITE and back by READ, all compared. Both
/// buffers must hold twice as many and one more; `seed` and the two numbers behind it are the
/// requests'.
pub fn exchange(a: &mut End, b: &mut End, seed: u64, bytes: usize) {
    send(a, b, seed, bytes as u32, None);
    if a.shape.qp_type == qp_type::RC {
        write(a, b, seed + 1, bytes as u32, false);
        read(a, b, seed + 2, bytes as u32);
    }
}

/// [`exchange`] between two new ends.
pub fn exchange_between(a: &dyn Device, b: &dyn Device, shape: Shape, bytes: usize) {
    let (mut a, mut b) = connected(a, b, shape).expect("connected ends");
    let seed = u64::from(a.own.qpn);
    exchange(&mut a, &mut b, seed, bytes);
    a.destroy().expect("nothing in use");
    b.destroy().expect("nothing in use");
}

/// Posts WRITEs until one fails: its status, and the cause.
pub fn failure(a: &mut End, b: &mut End) -> (u32, Cause) {
    let mut id = 1000;
    until(
        60,
        || "no request fails".to_string(),
        || {
            id += 1;
            a.post(id, Op::Write(0, None), 0, 100).expect("post_send");
            let status = complete(a, b, id, Duration::from_secs(60)).status;
            let failed = status != wc_status::SUCCESS;
            failed.then(|| (status, a.dev.qp_cause(a.qp).expect("qp_cause")))
        },
    )
}

/// Where the target half of a buffer begins.
fn half(end: &End) -> usize {
    end.shape.buffer / 2
}

/// Runs both ends until `b` has completed the receive `wr_id`.
pub fn received(a: &mut End, b: &mut End, wr_id: u64) -> Wc {
    let dev = b.dev;
    let wc = until(
        60,
        || format!("nothing received for {wr_id}; counters {:?}", dev.counters()),
        || {
            a.poll();
            b.poll();
            let is = |wc: &Wc| wc.wr_id == wr_id && wc.opcode & wc_opcode::RECV != 0;
            b.done.iter().position(is).map(|at| b.done.remove(at))
        },
    );
    assert_eq!(wc.status, wc_status::SUCCESS, "receive {wr_id}: {wc:?}");
    wc
}

fn send(a: &mut End, b: &mut End, id: u64, length: u32, imm: Option<u32>) {
    let (to, bytes) = (half(b), pattern(id, length as usize));
    let ahead = if a.shape.qp_type == qp_type::UD { GRH } else { 0 };
    a.buffer.write(0, &bytes);
    b.buffer.write(to, &vec![0xEE; (length + ahead) as usize + 1]);
    b.post_recv(id, to as u64, length + ahead + 1).expect("post_recv");
    a.post(id, Op::Send(imm), 0, length).expect("post_send");
    let wc = received(a, b, id);
    succeed(a, b, id);
    assert_eq!(wc.byte_len, length + ahead);
    assert_eq!(wc.wc_flags & wc_flags::WITH_IMM != 0, imm.is_some());
    assert_eq!(wc.wc_flags & wc_flags::GRH != 0, ahead > 0);
    if let Some(imm) = imm {
        assert_eq!(wc.imm_data, imm);
    }
    let got = b.buffer.read(to + ahead as usize, length as usize + 1);
    assert!(got[..length as usize] == bytes, "SEND of {length} bytes arrived with other bytes");
    assert_eq!(got[length as usize], 0xEE, "SEND of {length} bytes wrote beyond its length");
    if ahead > 0 {
        let grh = b.buffer.read(to, ahead as usize);
        // UDP, BTH, DETH, ImmDt, payload with padding, ICRC.
        let packet = 8 + 12 + 8 + 4 * u32::from(imm.is_some()) + length.next_multiple_of(4) + 4;
        let field = |at: usize| u32::from(u16::from_be_bytes([grh[at], grh[at + 1]]));
        let said = if grh[20] == 0x45 && grh[..20] == [0; 20] { field(22) - 20 } else { field(4) };
        assert_eq!(said, packet, "length in the GRH {grh:02x?}");
    }
}

fn write(a: &mut End, b: &mut End, id: u64, length: u32, with_imm: bool) {
    let (to, bytes) = (half(b), pattern(id, length as usize));
    a.buffer.write(0, &bytes);
    b.buffer.write(to, &vec![0xEE; length as usize + 1]);
    if with_imm {
        b.post_recv(id, 0, 0).expect("post_recv");
    }
    a.post(id, Op::Write(to as u64, with_imm.then_some(7)), 0, length).expect("post_send");
    if with_imm {
        let wc = received(a, b, id);
        assert_eq!(
            (wc.opcode, wc.byte_len, wc.imm_data),
            (wc_opcode::RECV_RDMA_WITH_IMM, length, 7)
        );
    }
    succeed(a, b, id);
    let got = b.buffer.read(to, length as usize + 1);
    assert!(got[..length as usize] == bytes, "WRITE of {length} bytes arrived with other bytes");
    assert_eq!(got[length as usize], 0xEE, "WRITE of {length} bytes wrote beyond its length");
}

fn read(a: &mut End, b: &mut End, id: u64, length: u32) {
    let (to, bytes) = (half(a), pattern(id, length as usize));
    b.buffer.write(0, &bytes);
    a.buffer.write(to, &vec![0xEE; length as usize + 1]);
    a.post(id, Op::Read(0), to as u64, length).expect("post_send");
    succeed(a, b, id);
    let got = a.buffer.read(to, length as usize + 1);
    assert!(got[..length as usize] == bytes, "READ of {length} bytes arrived with other bytes");
    assert_eq!(got[length as usize], 0xEE, "READ of {length} bytes wrote beyond its length");
}

/// FETCH_ADD, a CMP_SWAP that matches and one that does not.
fn atomics(a: &mut End, b: &mut End, id: u64) {
    let word = |end: &End, at: usize| {
        u64::from_ne_bytes(end.buffer.read(at, 8).try_into().expect("eight bytes"))
    };
    let to = half(a);
    b.buffer.write(0, &40u64.to_ne_bytes());
    for (n, op, found, left) in [
        (0, Op::FetchAdd(0, 2), 40, 42),
        (1, Op::CmpSwap(0, 42, 7), 42, 7),
        (2, Op::CmpSwap(0, 42, 9), 7, 7),
    ] {
        a.post(id + n, op, to as u64, 8).expect("post_send");
        succeed(a, b, id + n);
        assert_eq!((word(a, to), word(b, 0)), (found, left), "{op:?}");
    }
}
