//! MIDDLE packets of WRITEs and of READs' responses: what they write before their ICRC is known to
//! be right, and what no packet writes.

use gdrcore_core::verbs::types::*;
use gdrcore_core::wire::Opcode;

use crate::raw_packet::{overhear, Raw};
use crate::util::*;

/// Packets of a WRITE or READ.
const PACKETS: usize = 6;
/// What the memory holds before.
const BEFORE: u8 = 0xee;

/// What the packets are of.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Of {
    Write,
    Read,
}

const BOTH: [Of; 2] = [Of::Write, Of::Read];

/// A WRITE of [`PACKETS`] packets into the buffer of an end, from one packet behind its start on,
/// or a READ of that end into the same place, to which the test gives the response.
struct Bulk {
    net: Net,
    of: Of,
    b: End,
    mtu: usize,
    bytes: Vec<u8>,
    a: End,
}

impl Bulk {
    fn new(of: Of, o: Opts) -> Bulk {
        let mtu = 128usize << o.mtu;
        Bulk::into_pieces(of, o, &[(mtu, PACKETS * mtu)])
    }

    /// A READ may put its bytes into several pieces of the buffer; none: the test posts it.
    fn into_pieces(of: Of, o: Opts, pieces: &[(usize, usize)]) -> Bulk {
        let (net, a, b) = Net::pair(o);
        let mtu = 128usize << o.mtu;
        b.buf.write(0, &vec![BEFORE; (PACKETS + 4) * mtu]);
        let mut bulk = Bulk { net, of, b, mtu, bytes: pattern(5, PACKETS * mtu), a };
        if of == Of::Read && !pieces.is_empty() {
            let read = Wr::new(wr_opcode::RDMA_READ).remote(&bulk.a, 0);
            bulk.lost(pieces.iter().fold(read, |read, &(at, len)| read.local(&bulk.b, at, len)));
        }
        bulk
    }

    /// Posts a request, which nobody hears of.
    fn lost(&mut self, wr: Wr) {
        self.net.post(&self.b, wr);
        self.net.tap = Some(Box::new(|_, _| Fate::Drop));
        self.net.exchange();
        self.net.tap = None;
    }

    /// Its packet `k`, as it should be.
    fn packet(&self, k: usize) -> Raw {
        let [first, middle, last] = match self.of {
            Of::Write => [Opcode::RC_WRITE_FIRST, Opcode::RC_WRITE_MIDDLE, Opcode::RC_WRITE_LAST],
            Of::Read => [
                Opcode::RC_READ_RESPONSE_FIRST,
                Opcode::RC_READ_RESPONSE_MIDDLE,
                Opcode::RC_READ_RESPONSE_LAST,
            ],
        };
        let op = match k {
            0 => first,
            k if k + 1 < PACKETS => middle,
            _ => last,
        };
        let mut raw = Raw::new(op, &self.b, k as u32);
        raw.bth.ack_req = self.of == Of::Write && k + 1 == PACKETS;
        if op.has_aeth() {
            raw = raw.aeth(0x1f);
        }
        if op.has_reth() {
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

    /// The whole memory, with a packet's bytes before the target and three behind it.
    fn memory(&self) -> Vec<u8> {
        self.b.buf.read(0, (PACKETS + 4) * self.mtu)
    }

    /// The memory once the first `n` packets are placed.
    fn after(&self, n: usize) -> Vec<u8> {
        let mut all = vec![BEFORE; (PACKETS + 4) * self.mtu];
        all[self.mtu..][..n * self.mtu].copy_from_slice(&self.bytes[..n * self.mtu]);
        all
    }

    /// How many packets were accepted.
    fn taken(&self) -> u32 {
        let g = self.net.lock(&self.b);
        let conn = &g.transport.qps[index(self.b.qp)].conn;
        let next = if self.of == Of::Write { conn.resp.epsn } else { conn.req.una_psn };
        next.get().wrapping_sub(PSN) & 0xff_ffff
    }

    fn counters(&self) -> gdrcore_core::counters::Counters {
        self.net.lock(&self.b).counters()
    }

    /// Sends bytes, and checks that they were dropped for their ICRC.
    fn expect_dropped(&mut self, packet: &[u8]) {
        let (taken, before) = (self.taken(), self.counters().rcvd_icrc_err);
        self.net.inject(0, 1, packet);
        assert_eq!((self.taken(), self.counters().rcvd_icrc_err), (taken, before + 1));
    }

    /// The same of a packet whose payload's last bytes are damaged.
    fn expect_dropped_damaged(&mut self, raw: &Raw) {
        let mut p = raw.signed(&self.net, 0, 1, 0);
        let at = p.len() - 6;
        p[at] ^= 1;
        self.expect_dropped(&p);
    }
}

/// WRITEs and READs, path MTUs and IP versions.
fn each() -> impl Iterator<Item = (Of, Opts)> {
    let mtus = [mtu::MTU_512, mtu::MTU_1024, mtu::MTU_2048, mtu::MTU_4096];
    let opts = [false, true]
        .into_iter()
        .flat_map(move |v6| mtus.into_iter().map(move |mtu| Opts { v6, mtu, ..Opts::default() }));
    opts.flat_map(|o| BOTH.map(|of| (of, o)))
}

/// Packets of a sender whose identifications nobody can foresee are checked first, and those of
/// ours are placed first: both leave the same behind.
#[test]
fn both_ways_leave_the_same_behind() {
    for (of, o) in each() {
        let ends = [0u16, 0x7301].map(|step| {
            let mut w = Bulk::new(of, o);
            let log = overhear(&mut w.net);
            for k in 0..PACKETS {
                let ident = step.wrapping_mul(3 * (k * k) as u16 + 1);
                let p = w.packet(k).signed(&w.net, 0, 1, ident);
                w.net.inject(0, 1, &p);
                assert_eq!(w.memory(), w.after(k + 1), "packet {k}");
                assert_eq!(w.taken(), k as u32 + 1);
            }
            w.net.settle();
            let said = log.take();
            match of {
                Of::Write => {
                    assert_eq!(said, [(Opcode::RC_ACK, PACKETS as u32 - 1, Some(0x1f))]);
                }
                Of::Read => assert_eq!(said, [], "nothing is asked for again"),
            }
            assert_eq!(w.counters().rcvd_icrc_err, 0);
            let state = end_state(&w.net, 1, &w.b, true);
            let done: Vec<_> = w.net.poll(1, w.b.scq).iter().map(|c| c.status).collect();
            assert_eq!(done, &[wc_status::SUCCESS][..usize::from(of == Of::Read)]);
            (state, w.counters())
        });
        assert_eq!(ends[0], ends[1]);
    }
}

#[test]
fn a_damaged_middle_packet_leaves_what_the_right_one_writes() {
    for (of, o) in each() {
        let mut w = Bulk::new(of, o);
        w.send(0..2);
        let (mtu, len) = (w.mtu, w.packet(2).signed(&w.net, 0, 1, 0).len());
        // In its payload, and in its ICRC.
        for at in [20, len / 2, len - 5, len - 1] {
            let mut p = w.packet(2).signed(&w.net, 0, 1, 0);
            p[at] ^= 0x10;
            w.expect_dropped(&p);
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
        w.expect_dropped(&p);
        w.send(2..PACKETS);
        assert_eq!(w.memory(), w.after(PACKETS));
        assert_eq!(w.taken(), PACKETS as u32);
        assert_eq!(w.net.state(&w.b), qp_state::RTS);
    }
}

/// What would be placed twice is checked first.
#[test]
fn packets_of_unforeseeable_identifications_are_checked_first() {
    for of in BOTH {
        let mut w = Bulk::new(of, Opts { mtu: mtu::MTU_4096, ..Opts::default() });
        for k in 0..3 {
            let p = w.packet(k).signed(&w.net, 0, 1, 0x1234 * (k * k + 1) as u16);
            w.net.inject(0, 1, &p);
        }
        let mut p = w.packet(3).signed(&w.net, 0, 1, 0x7777);
        p[100] ^= 1;
        w.expect_dropped(&p);
        assert_eq!(w.memory(), w.after(3));
    }
}

#[test]
fn nothing_else_is_written_before_it_is_checked() {
    for (of, o) in each() {
        let mut w = Bulk::new(of, o);
        let other = w.net.end(1, &o);
        w.send(0..3);
        // Of another packet: the first, one that came, one that is to come, the last.
        for k in [0, 1, 2, 4, PACKETS - 1] {
            w.expect_dropped_damaged(&w.packet(k));
            assert_eq!(w.memory(), w.after(3), "packet {k}");
        }
        // As the next one, but of another queue pair, opcode, P_Key or length, or padded.
        let foreign = match of {
            Of::Write => Opcode::RC_READ_RESPONSE_MIDDLE,
            Of::Read => Opcode::RC_WRITE_MIDDLE,
        };
        let wrong: [&dyn Fn(&mut Raw); 6] = [
            &|raw| raw.bth.dest_qp = gdrcore_core::wire::Qpn::new(other.qpn),
            &|raw| raw.bth.opcode = Opcode::RC_SEND_MIDDLE,
            &|raw| raw.bth.opcode = Opcode::UC_WRITE_MIDDLE,
            &|raw| raw.bth.opcode = foreign,
            &|raw| raw.bth.pkey = 0x1234,
            &|raw| raw.bth.pad = 3,
        ];
        for change in wrong {
            let mut raw = w.packet(3);
            change(&mut raw);
            w.expect_dropped_damaged(&raw);
            assert_eq!(w.memory(), w.after(3));
        }
        let mut p = w.packet(3).bytes(&[7; 1024]).signed(&w.net, 0, 1, 0);
        p[30] ^= 1;
        w.expect_dropped(&p);
        assert_eq!(w.memory(), w.after(3));
        w.send(3..PACKETS);
        assert_eq!(w.memory(), w.after(PACKETS));
        assert_eq!(w.net.state(&w.b), qp_state::RTS);
    }
}

/// The bytes of another sender, and those for a key that has ended on the way.
fn goes_nowhere(of: Of, o: Opts) {
    let mut w = Bulk::new(of, o);
    let third = Net::new(3, &o).hosts.pop().unwrap();
    w.net.add(third);
    w.send(0..2);
    let p = w.packet(2).signed(&w.net, 2, 1, 0);
    w.net.inject(2, 1, &p);
    w.net.inject(2, 1, &p);
    assert_eq!((w.memory(), w.taken()), (w.after(2), 2), "another sender");
    assert_eq!(w.net.lock(&w.b).qp_counters(w.b.qp).unwrap().rcvd_refused, 2);

    w.net.lock(&w.b).mr_dereg(w.b.mr_handle).unwrap();
    w.send(2..3);
    assert_eq!((w.memory(), w.taken()), (w.after(2), 2), "the region is gone");
    assert_eq!(w.net.state(&w.b), qp_state::ERR);
}

/// The bytes of another sender, for a READ whose key has ended, and for one that has.
#[test]
fn a_middle_packet_goes_nowhere_without_its_read() {
    let o = Opts { mtu: mtu::MTU_4096, ..Opts::default() };
    goes_nowhere(Of::Read, o);

    // Nothing is placed of a READ that has ended, nor before the first packet of the next one: its
    // PSN was asked for, but not with so many packets.
    let mut w = Bulk::new(Of::Read, o);
    w.send(0..PACKETS);
    let raw = Raw::new(Opcode::RC_READ_RESPONSE_MIDDLE, &w.b, PACKETS as u32).bytes(&[7; 4096]);
    raw.inject(&mut w.net, 0, 1);
    assert_eq!(w.memory(), w.after(PACKETS), "no READ is under way");
    w.lost(Wr::new(wr_opcode::RDMA_READ).local(&w.b, 0, 4096).remote(&w.a, 0));
    w.expect_dropped_damaged(&raw);
    assert_eq!(w.memory(), w.after(PACKETS), "a READ of one packet has no MIDDLE");

    // Nor as the last packet of a READ.
    let mut w = Bulk::new(Of::Read, o);
    w.send(0..PACKETS - 1);
    let raw = Raw::new(Opcode::RC_READ_RESPONSE_MIDDLE, &w.b, PACKETS as u32 - 1);
    w.expect_dropped_damaged(&raw.bytes(&[7; 4096]));
    assert_eq!(w.memory(), w.after(PACKETS - 1), "no MIDDLE is the last");
}

/// A packet whose bytes go into two pieces is checked first.
#[test]
fn a_packet_of_a_response_is_placed_first_where_it_goes_into_one_piece() {
    let o = Opts { mtu: mtu::MTU_4096, ..Opts::default() };
    let mtu = 4096;
    // The third packet's last 96 bytes are the second piece's first, which follow at once.
    let pieces = [(mtu, 3 * mtu - 96), (4 * mtu - 96, 3 * mtu + 96)];
    let mut w = Bulk::into_pieces(Of::Read, o, &pieces);
    w.send(0..1);
    for k in 1..PACKETS - 1 {
        w.expect_dropped_damaged(&w.packet(k));
        assert_eq!(w.memory() == w.after(k), k == 2, "packet {k}");
        w.send(k..k + 1);
        assert_eq!(w.memory(), w.after(k + 1), "packet {k}");
    }
    w.send(PACKETS - 1..PACKETS);
    assert_eq!(w.memory(), w.after(PACKETS));
    let done: Vec<_> = w.net.poll(1, w.b.scq).iter().map(|c| c.status).collect();
    assert_eq!(done, [wc_status::SUCCESS]);
}

/// A peer that answers beyond what was asked for.
#[test]
fn a_packet_of_a_response_that_was_not_asked_for_is_not_placed() {
    let (mtu, whole, asked) = (4096, 32, 16);
    let o = Opts { mtu: mtu::MTU_4096, rd_atomic: 1, ..Opts::default() };
    let mut w = Bulk::into_pieces(Of::Read, o, &[(0, whole * mtu)]);
    let raw = |w: &Bulk, op, k| Raw::new(op, &w.b, k as u32);
    let first = raw(&w, Opcode::RC_READ_RESPONSE_FIRST, 0).aeth(0x1f).bytes(&[1; 4096]);
    first.inject(&mut w.net, 0, 1);
    for k in 1..asked - 1 {
        let middle = raw(&w, Opcode::RC_READ_RESPONSE_MIDDLE, k).bytes(&[1; 4096]);
        middle.inject(&mut w.net, 0, 1);
    }
    let last = raw(&w, Opcode::RC_READ_RESPONSE_LAST, asked - 1).aeth(0x1f).bytes(&[1; 4096]);
    last.inject(&mut w.net, 0, 1);
    assert_eq!(w.taken(), asked as u32);
    let before = w.b.buf.read(0, whole * mtu);
    let raw = raw(&w, Opcode::RC_READ_RESPONSE_MIDDLE, asked).bytes(&[2; 4096]);
    w.expect_dropped_damaged(&raw);
    raw.inject(&mut w.net, 0, 1);
    assert_eq!(w.taken(), asked as u32);
    assert_eq!(w.b.buf.read(0, whole * mtu), before);
}

/// The second piece of a READ is of a region that may not be written.
#[test]
fn a_packet_of_a_response_is_not_placed_into_memory_that_may_not_be_written() {
    let (mtu, o) = (4096, Opts { mtu: mtu::MTU_4096, ..Opts::default() });
    let mut w = Bulk::into_pieces(Of::Read, o, &[]);
    let fixed = Buffer::new(4 * mtu);
    let (_, region) = w.net.reg(&w.b, &fixed, access::REMOTE_READ);
    let sge = Sge { addr: region.iova, length: 4 * mtu as u32, lkey: region.lkey };
    let read = Wr::new(wr_opcode::RDMA_READ).local(&w.b, mtu, 2 * mtu).sge(sge).remote(&w.a, 0);
    w.lost(read);
    w.send(0..2);
    w.expect_dropped_damaged(&w.packet(2));
    w.send(2..3);
    assert_eq!(fixed.read(0, 4 * mtu), vec![0; 4 * mtu]);
    assert_eq!((w.memory(), w.taken()), (w.after(2), 2));
    assert_eq!(w.net.state(&w.b), qp_state::ERR);
}

/// The bytes of another sender, of a WRITE that has ended, and of one whose key has.
#[test]
fn a_middle_packet_goes_nowhere_without_its_write() {
    let o = Opts { mtu: mtu::MTU_4096, ..Opts::default() };
    goes_nowhere(Of::Write, o);

    let mut w = Bulk::new(Of::Write, o);
    w.send(0..PACKETS);
    let raw = Raw::new(Opcode::RC_WRITE_MIDDLE, &w.b, PACKETS as u32).bytes(&[7; 4096]);
    raw.inject(&mut w.net, 0, 1);
    assert_eq!(w.memory(), w.after(PACKETS), "no WRITE is under way");
    assert_eq!(w.net.state(&w.b), qp_state::ERR);

    // Nor where a SEND is under way, behind a WRITE.
    let mut w = Bulk::new(Of::Write, o);
    w.send(0..PACKETS);
    w.net.recv(&w.b, 1, &[(32 * 4096, 3 * 4096)]);
    let first = Raw::new(Opcode::RC_SEND_FIRST, &w.b, PACKETS as u32).bytes(&[6; 4096]);
    first.inject(&mut w.net, 0, 1);
    let raw = Raw::new(Opcode::RC_WRITE_MIDDLE, &w.b, PACKETS as u32 + 1).bytes(&[7; 4096]);
    raw.inject(&mut w.net, 0, 1);
    assert_eq!(w.memory(), w.after(PACKETS), "a SEND is under way");
    assert_eq!(w.net.state(&w.b), qp_state::ERR);

    // One that would leave as much as the whole to the last packet.
    let mut w = Bulk::new(Of::Write, o);
    w.send(0..PACKETS - 1);
    let raw = Raw::new(Opcode::RC_WRITE_MIDDLE, &w.b, PACKETS as u32 - 1).bytes(&[7; 4096]);
    raw.inject(&mut w.net, 0, 1);
    assert_eq!(w.memory(), w.after(PACKETS - 1), "no MIDDLE is the last");
    assert_eq!(w.net.state(&w.b), qp_state::ERR);
}
