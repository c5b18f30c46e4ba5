//! The program that steers: to which of the sockets that share an address the kernel gives a packet.
//!
//! Classic BPF, attached to the group of sockets (SO_ATTACH_REUSEPORT_CBPF), which needs no privilege. It sees the UDP
//! payload, so BTH's DestQP is the lower 24 bits of the word at 4. What it returns is the index of a socket in the
//! kernel's list of the group; an index beyond the list means: whichever the hash of the addresses says.
//!
//! A program of its own words each: QPNs of [`PROBE`] and above name an index directly, so that whoever sends itself one
//! packet for each index learns its own; those of [`CHECK`] name a block, so that its owner can see that it is reached.

use crate::sys::set_option;
use gdrcore_core::config::QPN_UNIT;
use gdrcore_core::error::Result;
use std::os::fd::RawFd;

/// QPNs from here on name an index of the group.
pub const PROBE: u32 = 0xff_0000;
/// QPNs from here on to [`PROBE`] name a block.
pub const CHECK: u32 = 0xfe_0000;
/// Blocks that processes can own: 1 to this; block 0 has the QPNs that the standard reserves, those above are taken here.
pub const BLOCK_MAX: u16 = (CHECK / QPN_UNIT - 1) as u16;

const _: () = assert!(CHECK.is_multiple_of(QPN_UNIT) && PROBE.is_multiple_of(QPN_UNIT));

/// Instructions that a program may have (BPF_MAXINSNS).
const INSTRUCTIONS: usize = 4096;

type Insn = libc::sock_filter;

const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const SHIFT_RIGHT: u16 = (libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K) as u16;
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const JUMP_IF_NOT_LESS: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const RETURN_A: u16 = (libc::BPF_RET | 0x10) as u16;

const fn insn(code: u16, jt: u8, jf: u8, k: u32) -> Insn {
    Insn { code, jt, jf, k }
}

/// A program in the making.
pub struct Program {
    code: [Insn; INSTRUCTIONS],
    len: usize,
}

impl Program {
    /// The program for blocks and the indexes of their owners' sockets, in ascending order of blocks. A block that is not
    /// among them goes where the next lower one goes; whoever gets it passes it on or drops it.
    pub fn new(owners: &[(u16, u16)]) -> Program {
        let mut p = Program { code: [insn(RETURN, 0, 0, u32::MAX); INSTRUCTIONS], len: 0 };
        p.push(insn(LOAD_WORD, 0, 0, 4));
        p.push(insn(AND, 0, 0, 0xff_ffff));
        p.push(insn(JUMP_IF_NOT_LESS, 0, 2, PROBE));
        p.push(insn(AND, 0, 0, 0xffff));
        p.push(insn(RETURN_A, 0, 0, 0));
        p.push(insn(JUMP_IF_NOT_LESS, 0, 2, CHECK));
        p.push(insn(AND, 0, 0, 0xffff));
        p.push(insn(JUMP, 0, 0, 1));
        p.push(insn(SHIFT_RIGHT, 0, 0, QPN_UNIT.ilog2()));
        // A leaf takes one instruction, an inner node at most two.
        let room = (INSTRUCTIONS - p.len) / 3;
        p.tree(&owners[..owners.len().min(room)]);
        p
    }

    fn push(&mut self, i: Insn) {
        self.code[self.len] = i;
        self.len += 1;
    }

    /// A binary search; each half ends with a return.
    fn tree(&mut self, owners: &[(u16, u16)]) {
        match owners {
            [] => self.push(insn(RETURN, 0, 0, u32::MAX)),
            [(_, index)] => self.push(insn(RETURN, 0, 0, u32::from(*index))),
            _ => {
                let (low, high) = owners.split_at(owners.len() / 2);
                let at = self.len;
                self.push(insn(JUMP_IF_NOT_LESS, 0, 1, high[0].0.into()));
                self.push(insn(JUMP, 0, 0, 0));
                self.tree(low);
                self.code[at + 1].k = (self.len - at - 2) as u32;
                self.tree(high);
            }
        }
    }

    /// The instructions.
    pub fn code(&self) -> &[Insn] {
        &self.code[..self.len]
    }

    /// Makes it the program of the group that a bound socket belongs to.
    ///
    /// # Errors
    /// What the kernel said: `Os(EPERM)` in a sandbox, [`gdrcore_core::error::Error::NoMemory`] beyond its `optmem_max`.
    pub fn attach(&self, socket: RawFd) -> Result<()> {
        let program = libc::sock_fprog { len: self.len as u16, filter: self.code.as_ptr().cast_mut() };
        // The kernel copies the instructions during the call.
        set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, program)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel's machine does with it.
    fn run(p: &Program, dest_qpn: u32) -> u32 {
        let (mut pc, mut a) = (0usize, 0u32);
        loop {
            let i = p.code()[pc];
            pc += 1;
            match i.code {
                LOAD_WORD => a = 0xab00_0000 | dest_qpn,
                AND => a &= i.k,
                SHIFT_RIGHT => a >>= i.k,
                JUMP => pc += i.k as usize,
                JUMP_IF_NOT_LESS => pc += usize::from(if a >= i.k { i.jt } else { i.jf }),
                RETURN => return i.k,
                RETURN_A => return a,
                other => panic!("{other:#x}"),
            }
        }
    }

    #[test]
    fn every_block_finds_its_socket() {
        for n in [1usize, 2, 3, 7, 64, 300, 1015] {
            let owners: Vec<(u16, u16)> = (0..n).map(|i| (1 + i as u16, (i * 7919 % n) as u16)).collect();
            let p = Program::new(&owners);
            for &(block, index) in &owners {
                let qpn = u32::from(block) * QPN_UNIT;
                assert_eq!(run(&p, qpn), u32::from(index), "{n}");
                assert_eq!(run(&p, qpn + QPN_UNIT - 1), u32::from(index));
                assert_eq!(run(&p, CHECK | u32::from(block)), u32::from(index));
            }
            assert_eq!(run(&p, PROBE | 77), 77);
            // What nobody owns goes to somebody.
            assert!(run(&p, 1) < n as u32);
        }
        assert_eq!(run(&Program::new(&[]), 5), u32::MAX);
        assert_eq!(run(&Program::new(&[]), PROBE | 3), 3);
    }
}
