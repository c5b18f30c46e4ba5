//! Fuzzes the messages between the processes of one address: any content, and tables with one wrong
//! byte.

use crate::coverage::counts;
use gdrcore_net::addr_group::group_msg::{parse, Received};
use gdrcore_net::addr_group::numbers::BLOCK_MAX;
use gdrcore_net::addr_group::steer::{Program, BY_HASH, INSTRUCTIONS};
use gdrcore_net::addr_group::table::{Table, BYTES};

counts! {
    Mailed {
        /// Messages that were accepted.
        read: u64,
        /// Tables among them, each of which became a BPF program.
        tables: u64,
        /// Packets among them.
        packets: u64,
    }
}

/// One message as a member reads it. The first byte selects its kind. One kind is a valid table
/// with a wrong byte, because random bytes seldom begin with the magic number.
pub fn mail(data: &[u8]) -> Mailed {
    let mut seen = Mailed::default();
    let Some((&plan, rest)) = data.split_first() else { return seen };
    let mut message = b"gdrm\x01".to_vec();
    message.extend_from_slice(&[plan % 8, 1, 0]);
    if plan < 128 {
        message.extend_from_slice(rest);
    } else {
        message[5] = 2;
        message.extend_from_slice(&almost(rest));
    }
    match parse(&message) {
        None => return seen,
        Some((_, Received::TableUpdate(table))) => {
            let mut bytes = [0; BYTES];
            let n = table.emit(&mut bytes);
            assert_eq!(bytes[..n], message[8..]);
            check(&Program::new(&mut [BY_HASH; INSTRUCTIONS], &table));
            seen.tables = 1;
        }
        Some((_, Received::Packets(p))) => {
            assert!(p.seg > 0 && p.data.len() <= rest.len());
            seen.packets = 1;
        }
        Some(_) => {}
    }
    seen.read = 1;
    seen
}

/// A valid table with one byte changed by the string's last two.
fn almost(data: &[u8]) -> Vec<u8> {
    let mut t = Table::EMPTY;
    t.begin_next_version(1);
    for e in data.chunks_exact(4) {
        let word = |i: usize| u16::from_le_bytes([e[i], e[i + 1]]);
        let block = word(0) % (BLOCK_MAX + 1);
        t.set(block, word(2) % 1024, block..block + 1);
        t.set_services(block, [u32::from(word(2)), 0x106_0000 | u32::from(word(0))].into_iter());
    }
    let mut bytes = [0; BYTES];
    let n = t.emit(&mut bytes);
    let mut bytes = bytes[..n].to_vec();
    if let [.., at, x] = *data {
        bytes[usize::from(at) % n] ^= x & 3;
    }
    bytes
}

/// The kernel's own checks: every jump goes forward inside the program, which ends with a return.
fn check(program: &Program) {
    let code = program.code();
    for (at, i) in code.iter().enumerate() {
        // BPF_JMP is class 5, BPF_RET class 6; BPF_JA (0x05) has its distance in k.
        let furthest = match i.code & 7 {
            5 if i.code == 5 => i.k as usize,
            5 => usize::from(i.jt.max(i.jf)),
            _ => 0,
        };
        assert!(
            at + 1 + furthest < code.len() || i.code & 7 == 6,
            "instruction {at} of {}",
            code.len()
        );
    }
    assert!(code.len() <= 4096 && code.last().is_some_and(|i| i.code & 7 == 6));
}
