//! The BPF program by which the kernel picks one of the sockets that share an address for each
//! packet.
//!
//! Classic BPF, attached to the group of sockets (SO_ATTACH_REUSEPORT_CBPF), which needs no
//! privilege. It sees the UDP payload, so BTH's DestQP is the lower 24 bits of the word at 4. It
//! returns the index of a socket in the kernel's list of the group. For an index beyond the list
//! the kernel uses its hash of the addresses.
//!
//! QP1 belongs to all members. Its messages (MADs of communication management) name their receiver,
//! by the block in a communication id or by the service, at fixed places.
//!
//! Two ranges of QPNs are the group's own. QPNs from [`INDEX_QPN_BASE`] on stand for an index, so
//! that a member learns its own index from packets to itself. Those from [`BLOCK_QPN_BASE`] on
//! stand for a block, so that its owner can check that packets reach it.

use super::numbers::{BLOCK_QPN_BASE, INDEX_QPN_BASE};
use super::table::Table;
use crate::sys::set_filter;
use gdrcore_core::arena::{RawSlice, Walk};
use gdrcore_core::cm::mad::{
    attribute, REMOTE_ID_AT as REMOTE_ID, REQUEST_ID_AT as REQUEST_ID, SERVICE_AT as SERVICE,
};
use gdrcore_core::cm::BLOCK_BITS;
use gdrcore_core::config::QPN_UNIT;
use gdrcore_core::engine::cm::GSI_QPN;
use gdrcore_core::error::Result;
use std::os::fd::RawFd;

/// Where the MAD begins in a packet to QP1: behind BTH and DETH.
const MAD_AT: u32 = 12 + 8;
const ATTRIBUTE_AT: u32 = MAD_AT + 16;
const REMOTE_ID_AT: u32 = MAD_AT + REMOTE_ID;
const REQUEST_ID_AT: u32 = MAD_AT + REQUEST_ID;
/// The lower half of the service id: port space and port.
const SERVICE_AT: u32 = MAD_AT + SERVICE + 4;

/// Instructions that a program may have (BPF_MAXINSNS).
pub const INSTRUCTIONS: usize = 4096;

/// An instruction.
pub type Insn = libc::sock_filter;

const LOAD_HALF: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const SHIFT_RIGHT: u16 = (libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K) as u16;
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const JUMP_IF_NOT_LESS: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const RETURN_A: u16 = (libc::BPF_RET | 0x10) as u16;

const fn insn(code: u16, jt: u8, jf: u8, k: u32) -> Insn {
    Insn { code, jt, jf, k }
}

/// The kernel's hash decides, as if no program were attached.
pub const BY_HASH: Insn = insn(RETURN, 0, 0, u32::MAX);

/// Allocates room for the largest program: 32 KB, too much for a thread's stack.
///
/// # Errors
/// [`gdrcore_core::error::Error::NoMemory`].
pub fn room(w: &mut Walk) -> Result<RawSlice<Insn>> {
    w.slice(INSTRUCTIONS, BY_HASH)
}

/// A program that is being built.
pub struct Program<'a> {
    code: &'a mut [Insn],
    len: usize,
}

impl<'a> Program<'a> {
    /// Builds the program of a table. A packet for a block without an entry goes to the socket of
    /// the next lower block; the kernel's hash decides for a request for an unknown service. The
    /// receiver forwards or drops such packets.
    ///
    /// `code`: [`room`] for the program.
    pub fn new(code: &'a mut [Insn], table: &Table) -> Program<'a> {
        let mut p = Program { code, len: 0 };
        p.push(insn(LOAD_WORD, 0, 0, 4));
        p.push(insn(AND, 0, 0, 0xff_ffff));
        p.push(insn(JUMP_IF_NOT_LESS, 0, 2, INDEX_QPN_BASE));
        p.push(insn(AND, 0, 0, 0xffff));
        p.push(insn(RETURN_A, 0, 0, 0));
        p.push(insn(JUMP_IF_NOT_LESS, 0, 2, BLOCK_QPN_BASE));
        p.push(insn(AND, 0, 0, 0xffff));
        let checks = p.push_jump();
        p.push(insn(JUMP_IF_EQUAL, 2, 0, GSI_QPN));
        p.push(insn(SHIFT_RIGHT, 0, 0, QPN_UNIT.ilog2()));
        let data = p.push_jump();
        // A message to QP1: a request is steered by its service, an answer by the request's id, any
        // other message by the receiver's id.
        p.push(insn(LOAD_HALF, 0, 0, ATTRIBUTE_AT));
        p.push(insn(JUMP_IF_EQUAL, 6, 0, u32::from(attribute::REQ)));
        p.push(insn(JUMP_IF_EQUAL, 5, 0, u32::from(attribute::SIDR_REQ)));
        p.push(insn(JUMP_IF_EQUAL, 2, 0, u32::from(attribute::SIDR_REP)));
        p.push(insn(LOAD_WORD, 0, 0, REMOTE_ID_AT));
        p.push(insn(JUMP, 0, 0, 1));
        p.push(insn(LOAD_WORD, 0, 0, REQUEST_ID_AT));
        let by_id = p.push_jump();
        p.push(insn(LOAD_WORD, 0, 0, SERVICE_AT));
        for &(service, block) in table.services() {
            if let Some(index) = table.index_of(block) {
                p.push(insn(JUMP_IF_EQUAL, 0, 1, service));
                p.push(insn(RETURN, 0, 0, index.into()));
            }
        }
        p.push(BY_HASH);
        p.set_target(by_id);
        p.push(insn(SHIFT_RIGHT, 0, 0, u32::BITS - BLOCK_BITS));
        p.set_target(checks);
        p.set_target(data);
        // A leaf takes one instruction, an inner node two.
        let room = (p.code.len() - p.len) / 3;
        let owners = table.entries();
        p.push_tree(&owners[..owners.len().min(room)]);
        p
    }

    /// Builds the program of a group in which one process has all sockets. It returns the index in
    /// the entry of the packet's block, or of the next lower one. `entries`: (block, index), in
    /// ascending order of blocks; the first is block 0, whose QP1 all processes share.
    ///
    /// `code`: [`room`] for the program.
    pub fn by_block(code: &'a mut [Insn], entries: &[(u16, u16)]) -> Program<'a> {
        let mut p = Program { code, len: 0 };
        p.push(insn(LOAD_WORD, 0, 0, 4));
        p.push(insn(AND, 0, 0, 0xff_ffff));
        p.push(insn(SHIFT_RIGHT, 0, 0, QPN_UNIT.ilog2()));
        let room = (p.code.len() - p.len) / 3;
        p.push_tree(&entries[..entries.len().min(room)]);
        p
    }

    /// Emits a jump whose target [`Program::set_target`] sets later.
    fn push_jump(&mut self) -> usize {
        self.push(insn(JUMP, 0, 0, 0));
        self.len - 1
    }

    fn set_target(&mut self, jump: usize) {
        self.code[jump].k = (self.len - jump - 1) as u32;
    }

    fn push(&mut self, i: Insn) {
        self.code[self.len] = i;
        self.len += 1;
    }

    /// Emits a binary search, each half of which ends with a return.
    fn push_tree(&mut self, owners: &[(u16, u16)]) {
        match owners {
            [] => self.push(BY_HASH),
            [(_, index)] => self.push(insn(RETURN, 0, 0, u32::from(*index))),
            _ => {
                let (low, high) = owners.split_at(owners.len() / 2);
                self.push(insn(JUMP_IF_NOT_LESS, 0, 1, high[0].0.into()));
                let to_high = self.push_jump();
                self.push_tree(low);
                self.set_target(to_high);
                self.push_tree(high);
            }
        }
    }

    /// The instructions.
    pub fn code(&self) -> &[Insn] {
        &self.code[..self.len]
    }

    /// Attaches the program to the group of a bound socket.
    ///
    /// # Errors
    /// The errno of setsockopt(2): `Os(EPERM)` in a sandbox,
    /// [`gdrcore_core::error::Error::NoMemory`] beyond the kernel's `optmem_max`.
    pub fn attach(&self, socket: RawFd) -> Result<()> {
        set_filter(socket, libc::SO_ATTACH_REUSEPORT_CBPF, self.code())
    }
}

#[cfg(test)]
mod tests {
    use super::super::numbers::BLOCK_MAX;
    use super::*;
    use gdrcore_core::cm::mad::{Ids, Mad, Message, Rej, Rep, Req, SidrRep, SidrReq, MAD_LEN};
    use gdrcore_core::cm::Addressee;

    fn room() -> Vec<Insn> {
        vec![BY_HASH; INSTRUCTIONS]
    }

    /// Interprets the program as the kernel's machine does.
    fn run(p: &Program<'_>, packet: &[u8]) -> u32 {
        let (mut pc, mut a) = (0usize, 0u32);
        loop {
            let i = p.code()[pc];
            pc += 1;
            let load = |n: usize| {
                packet
                    .get(i.k as usize..)
                    .and_then(|b| b.get(..n))
                    .map(|b| b.iter().fold(0, |a, &x| a << 8 | u32::from(x)))
            };
            match i.code {
                LOAD_WORD | LOAD_HALF => match load(if i.code == LOAD_WORD { 4 } else { 2 }) {
                    Some(x) => a = x,
                    None => return 0,
                },
                AND => a &= i.k,
                SHIFT_RIGHT => a >>= i.k,
                JUMP => pc += i.k as usize,
                JUMP_IF_NOT_LESS => pc += usize::from(if a >= i.k { i.jt } else { i.jf }),
                JUMP_IF_EQUAL => pc += usize::from(if a == i.k { i.jt } else { i.jf }),
                RETURN => return i.k,
                RETURN_A => return a,
                other => panic!("{other:#x}"),
            }
        }
    }

    fn to(dest_qpn: u32) -> Vec<u8> {
        let mut packet = vec![0x64, 0, 0xff, 0xff];
        packet.extend_from_slice(&(0xab00_0000 | dest_qpn).to_be_bytes());
        packet.resize(20 + MAD_LEN + 4, 0);
        packet
    }

    fn table(owners: &[(u16, u16)]) -> Table {
        let mut t = Table::EMPTY;
        owners.iter().for_each(|&(b, i)| t.set(b, i, b..b + 1));
        t
    }

    #[test]
    fn every_block_finds_its_socket() {
        for n in [1usize, 2, 3, 7, 64, 300, 1015] {
            let owners: Vec<(u16, u16)> =
                (0..n).map(|i| (1 + i as u16, ((i * 7919 + 1) % n) as u16)).collect();
            let mut code = room();
            let p = Program::new(&mut code, &table(&owners));
            for &(block, index) in &owners {
                let qpn = u32::from(block) * QPN_UNIT;
                assert_eq!(run(&p, &to(qpn)), u32::from(index), "{n}");
                assert_eq!(run(&p, &to(qpn + QPN_UNIT - 1)), u32::from(index));
                assert_eq!(run(&p, &to(BLOCK_QPN_BASE | u32::from(block))), u32::from(index));
            }
            assert_eq!(run(&p, &to(INDEX_QPN_BASE | 77)), 77);
        }
        let mut code = room();
        let p = Program::new(&mut code, &Table::EMPTY);
        assert_eq!((run(&p, &to(5)), run(&p, &to(INDEX_QPN_BASE | 3))), (u32::MAX, 3));
    }

    #[test]
    fn a_message_to_qp1_goes_to_the_block_it_names() {
        let mut t = table(&[(7, 3), (300, 1), (1000, 2)]);
        let service = |ps: u32, port: u32| u64::from(ps << 16 | port);
        t.set_services(300, [0x0106_1234].into_iter());
        t.set_services(1000, [0x0106_1235, 0x0111_1234].into_iter());
        let mut code = room();
        let p = Program::new(&mut code, &t);
        let id = |block: u32| block << 22 | 0x12345;
        let ids = |block| Ids { local_comm_id: id(7), remote_comm_id: id(block) };
        let cases = [
            (
                Message::Req(Req {
                    local_comm_id: id(9),
                    service_id: service(0x106, 0x1234),
                    ..Req::default()
                }),
                1,
            ),
            (
                Message::Req(Req {
                    local_comm_id: id(9),
                    service_id: service(0x106, 0x1235),
                    ..Req::default()
                }),
                2,
            ),
            (Message::Req(Req { service_id: service(0x106, 0x9999), ..Req::default() }), u32::MAX),
            (
                Message::SidrReq(SidrReq {
                    request_id: id(9),
                    service_id: service(0x111, 0x1234),
                    ..SidrReq::default()
                }),
                2,
            ),
            (Message::SidrRep(SidrRep { request_id: id(300), ..SidrRep::default() }), 1),
            (
                Message::Rep(Rep {
                    local_comm_id: id(7),
                    remote_comm_id: id(1000),
                    ..Rep::default()
                }),
                2,
            ),
            (Message::Rej(Rej { remote_comm_id: id(7), ..Rej::default() }), 3),
            (Message::Rtu(ids(300)), 1),
            (Message::Drep(ids(1000)), 2),
        ];
        for (message, index) in cases {
            let mut packet = to(GSI_QPN);
            let mad: &mut [u8; MAD_LEN] = packet[20..].first_chunk_mut().unwrap();
            Mad { tid: 1, message }.emit(mad);
            assert_eq!(run(&p, &packet), index, "{message:?}");
            // The reader that forwards misdirected messages agrees.
            let block = match Addressee::from_mad(&packet[20..20 + MAD_LEN]) {
                Addressee::Block(b) => Some(b),
                Addressee::Service { port_space, port } => {
                    let wanted = u32::from(port_space) << 16 | u32::from(port);
                    t.services().iter().find(|s| s.0 == wanted).map(|s| s.1)
                }
                Addressee::Anyone => None,
            };
            assert_eq!(
                block.and_then(|b| t.index_of(b)).map_or(u32::MAX, u32::from),
                index,
                "{message:?}"
            );
        }
        // A packet too short for the program's loads: the kernel's machine returns 0, and the first
        // socket receives it.
        assert_eq!(run(&p, &to(GSI_QPN)[..24]), 0);
    }

    #[test]
    fn a_program_of_one_process_steers_each_block_by_its_entry() {
        let entries = [(0, 0), (3, 2), (5, 0), (9, 1), (10, 3), (12, 0)];
        let mut code = room();
        let p = Program::by_block(&mut code, &entries);
        let index = |block: u32| run(&p, &to(block * QPN_UNIT + 77));
        let of = [0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 1023].map(index);
        assert_eq!(of, [0, 0, 0, 2, 2, 0, 0, 1, 3, 3, 0, 0]);
        assert_eq!(run(&p, &to(GSI_QPN)), 0);
        assert_eq!(run(&p, &[0; 7]), 0, "too short: the first socket looks");
        let mut code = room();
        let all: Vec<(u16, u16)> = (0..1018).map(|b| (b, b)).collect();
        let p = Program::by_block(&mut code, &all);
        assert!(p.code().len() < INSTRUCTIONS);
        assert_eq!(run(&p, &to(1017 * QPN_UNIT)), 1017);
    }

    #[test]
    fn the_largest_program_is_one_the_kernel_can_take() {
        let mut t = Table::EMPTY;
        (1..=BLOCK_MAX).for_each(|b| t.set(b, b, b..b + 1));
        t.set_services(1, 0..1000);
        let mut code = room();
        let p = Program::new(&mut code, &t);
        assert!(p.code().len() < INSTRUCTIONS);
        assert_eq!(run(&p, &to(u32::from(BLOCK_MAX) * QPN_UNIT)), u32::from(BLOCK_MAX));
    }
}
