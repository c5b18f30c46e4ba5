//! MIDDLE packets of WRITEs: what they write before their ICRC is known to be right, and what no
//! packet writes.

use gdrcore_core::verbs::types::*;
use gdrcore_core::wire::Opcode;

use crate::raw_packet::{overhear, Raw};
use crate::util::*;

/// Packets of the WRITE.
const PACKETS: usize = 6;
/// What the memory holds before.
const BEFORE: u8 = 0xee;

/// A WRITE of [`PACKETS`] packets into the buffer of an end, from one packet behind its start on.
struct Bulk {
    net: Net,
    b: End,
    mtu: usize,
    bytes: Vec<u8>,
}

impl Bulk {
    fn new(o: Opts) -> Bulk {
        let (net, _, b) = Net::pair(o);
        let mtu = 128usize << o.mtu;
        b.buf.put(0, &vec![BEFORE; (PACKETS + 4) * mtu]);
        Bulk { net, b, mtu, bytes: pattern(5, PACKETS * mtu) }
    }

    /// Its packet `k`, as it should be.
    fn packet(&self, k: usize) -> Raw {
        let op = match k {
            0 => Opcode::RC_WRITE_FIRST,
            k if k + 1 < PACKETS => Opcode::RC_WRITE_MIDDLE,
            _ => Opcode::RC_WRITE_LAST,
        };
        let mut raw = Raw::new(op, &self.b, k as u32);
        raw.bth.ack_req = k + 1 == PACKETS;
        if k == 0 {
            let at = self.b.mr.iova + self.mtu as u64;
            raw = raw.reth(at, self.b.mr.rkey, self.bytes.len() as u32);
        }
        raw.bytes(&self.bytes[k * self.mtu..][..self.mtu])
    }

    /// Sends packets of a range as they should be.
    fn send(&mut self, packets: core::ops::Range<usize>) {
        for k in packets {
            self.packet(k).inject(&mut self.net, 0, 1);
        }
    }

    /// The whole memory, with a packet's bytes before the WRITE and three behind it.
    fn memory(&self) -> Vec<u8> {
        self.b.buf.get(0, (PACKETS + 4) * self.mtu)
    }

    /// The memory once the first `n` packets are placed.
    fn after(&self, n: usize) -> Vec<u8> {
        let mut all = vec![BEFORE; (PACKETS + 4) * self.mtu];
        all[self.mtu..][..n * self.mtu].copy_from_slice(&self.bytes[..n * self.mtu]);
        all
    }

    fn epsn(&self) -> u32 {
        let g = self.net.lock(&self.b);
        let epsn = g.transport.qps[index(self.b.qp)].conn.resp.epsn.get();
        epsn.wrapping_sub(PSN) & 0xff_ffff
    }

    fn counters(&self) -> gdrcore_core::counters::Counters {
        self.net.lock(&self.b).counters()
    }

    /// Sends bytes, and checks that they were dropped for their ICRC.
    fn is_dropped(&mut self, packet: &[u8]) {
        let (epsn, before) = (self.epsn(), self.counters().rcvd_icrc_err);
        self.net.inject(0, 1, packet);
        assert_eq!((self.epsn(), self.counters().rcvd_icrc_err), (epsn, before + 1));
    }
}

/// Path MTUs and IP versions.
fn each() -> impl Iterator<Item = Opts> {
    let mtus = [mtu::MTU_512, mtu::MTU_1024, mtu::MTU_2048, mtu::MTU_4096];
    let v6 = [false, true].into_iter();
    v6.flat_map(move |v6| mtus.into_iter().map(move |mtu| Opts { v6, mtu, ..Opts::default() }))
}

/// Packets of a sender whose identifications nobody can foresee are checked first, and those of
/// ours are placed first: both leave the same behind.
#[test]
fn both_ways_leave_the_same_behind() {
    for o in each() {
        let ends = [0u16, 0x7301].map(|step| {
            let mut w = Bulk::new(o);
            let log = overhear(&mut w.net);
            for k in 0..PACKETS {
                let ident = step.wrapping_mul(3 * (k * k) as u16 + 1);
                let p = w.packet(k).signed(&w.net, 0, 1, ident);
                w.net.inject(0, 1, &p);
                assert_eq!(w.memory(), w.after(k + 1), "packet {k}");
            }
            w.net.settle();
            let said = log.take();
            assert_eq!(said, [(Opcode::RC_ACK, PACKETS as u32 - 1, Some(0x1f))]);
            assert_eq!(w.counters().rcvd_icrc_err, 0);
            (end_state(&w.net, 1, &w.b, true), w.counters())
        });
        assert_eq!(ends[0], ends[1]);
    }
}

#[test]
fn a_damaged_middle_packet_leaves_what_the_right_one_writes() {
    for o in each() {
        let mut w = Bulk::new(o);
        w.send(0..2);
        let (mtu, len) = (w.mtu, w.packet(2).signed(&w.net, 0, 1, 0).len());
        // In its payload, and in its ICRC.
        for at in [20, len / 2, len - 5, len - 1] {
            let mut p = w.packet(2).signed(&w.net, 0, 1, 0);
            p[at] ^= 0x10;
            w.is_dropped(&p);
            let mut seen = w.memory();
            if mtu >= 1024 && at != len - 1 {
                assert_ne!(seen, w.after(2), "it was placed before its ICRC was known");
            }
            seen[3 * mtu..4 * mtu].fill(BEFORE);
            assert_eq!(seen, w.after(2), "only bytes of its own packet may differ");
        }
        // Shorter by four bytes.
        let mut p = w.packet(2).signed(&w.net, 0, 1, 0);
        p.truncate(len - 4);
        w.is_dropped(&p);
        w.send(2..PACKETS);
        assert_eq!(w.memory(), w.after(PACKETS));
        assert_eq!(w.epsn(), PACKETS as u32);
        assert_eq!(w.net.state(&w.b), qp_state::RTS);
    }
}

/// What would be placed twice is checked first.
#[test]
fn packets_of_unforeseeable_identifications_are_checked_first() {
    let mut w = Bulk::new(Opts { mtu: mtu::MTU_4096, ..Opts::default() });
    for k in 0..3 {
        let p = w.packet(k).signed(&w.net, 0, 1, 0x1234 * (k * k + 1) as u16);
        w.net.inject(0, 1, &p);
    }
    let mut p = w.packet(3).signed(&w.net, 0, 1, 0x7777);
    p[100] ^= 1;
    w.is_dropped(&p);
    assert_eq!(w.memory(), w.after(3));
}

#[test]
fn nothing_else_is_written_before_it_is_checked() {
    for o in each() {
        let mut w = Bulk::new(o);
        let other = w.net.end(1, &o);
        w.send(0..3);
        // Of another packet of the WRITE: the first, one that came, one that is to come, the last.
        for k in [0, 1, 2, 4, PACKETS - 1] {
            let mut p = w.packet(k).signed(&w.net, 0, 1, 0);
            let at = p.len() - 6;
            p[at] ^= 1;
            w.is_dropped(&p);
            assert_eq!(w.memory(), w.after(3), "packet {k}");
        }
        // As the next one, but of another queue pair, opcode, P_Key or length, or padded.
        let wrong: [&dyn Fn(&mut Raw); 5] = [
            &|raw| raw.bth.dest_qp = gdrcore_core::wire::Qpn::new(other.qpn),
            &|raw| raw.bth.opcode = Opcode::RC_SEND_MIDDLE,
            &|raw| raw.bth.opcode = Opcode::UC_WRITE_MIDDLE,
            &|raw| raw.bth.pkey = 0x1234,
            &|raw| raw.bth.pad = 3,
        ];
        for change in wrong {
            let mut raw = w.packet(3);
            change(&mut raw);
            let mut p = raw.signed(&w.net, 0, 1, 0);
            let at = p.len() - 6;
            p[at] ^= 1;
            w.is_dropped(&p);
            assert_eq!(w.memory(), w.after(3));
        }
        let mut p = w.packet(3).bytes(&[7; 1024]).signed(&w.net, 0, 1, 0);
        p[30] ^= 1;
        w.is_dropped(&p);
        assert_eq!(w.memory(), w.after(3));
        w.send(3..PACKETS);
        assert_eq!(w.memory(), w.after(PACKETS));
        assert_eq!(w.net.state(&w.b), qp_state::RTS);
    }
}

/// The bytes of another sender, of a WRITE that has ended, and of one whose key has.
#[test]
fn a_middle_packet_goes_nowhere_without_its_write() {
    let o = Opts { mtu: mtu::MTU_4096, ..Opts::default() };
    let mut w = Bulk::new(o);
    let third = Net::new(3, &o).hosts.pop().unwrap();
    w.net.add(third);
    w.send(0..2);
    let p = w.packet(2).signed(&w.net, 2, 1, 0);
    w.net.inject(2, 1, &p);
    w.net.inject(2, 1, &p);
    assert_eq!((w.memory(), w.epsn()), (w.after(2), 2), "another sender");
    assert_eq!(w.net.lock(&w.b).qp_counters(w.b.qp).unwrap().rcvd_refused, 2);

    w.net.lock(&w.b).mr_dereg(w.b.mr_handle).unwrap();
    w.send(2..3);
    assert_eq!((w.memory(), w.epsn()), (w.after(2), 2), "the region is gone");
    assert_eq!(w.net.state(&w.b), qp_state::ERR);

    let mut w = Bulk::new(o);
    w.send(0..PACKETS);
    let raw = Raw::new(Opcode::RC_WRITE_MIDDLE, &w.b, PACKETS as u32).bytes(&[7; 4096]);
    raw.inject(&mut w.net, 0, 1);
    assert_eq!(w.memory(), w.after(PACKETS), "no WRITE is under way");
    assert_eq!(w.net.state(&w.b), qp_state::ERR);

    // Nor where a SEND is under way, behind a WRITE.
    let mut w = Bulk::new(o);
    w.send(0..PACKETS);
    w.net.recv(&w.b, 1, &[(32 * 4096, 3 * 4096)]);
    let first = Raw::new(Opcode::RC_SEND_FIRST, &w.b, PACKETS as u32).bytes(&[6; 4096]);
    first.inject(&mut w.net, 0, 1);
    let raw = Raw::new(Opcode::RC_WRITE_MIDDLE, &w.b, PACKETS as u32 + 1).bytes(&[7; 4096]);
    raw.inject(&mut w.net, 0, 1);
    assert_eq!(w.memory(), w.after(PACKETS), "a SEND is under way");
    assert_eq!(w.net.state(&w.b), qp_state::ERR);

    // One that would leave as much as the whole to the last packet.
    let mut w = Bulk::new(o);
    w.send(0..PACKETS - 1);
    let raw = Raw::new(Opcode::RC_WRITE_MIDDLE, &w.b, PACKETS as u32 - 1).bytes(&[7; 4096]);
    raw.inject(&mut w.net, 0, 1);
    assert_eq!(w.memory(), w.after(PACKETS - 1), "no MIDDLE is the last");
    assert_eq!(w.net.state(&w.b), qp_state::ERR);
}
