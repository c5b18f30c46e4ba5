//! The burst being built: packets in the port's buffer, or whole runs for a path that carries them.

use crate::mem::Access;
use crate::roce::peer::Path;
use crate::roce::peer_memory::{PeerMemory, TURN};
use crate::roce::run::{Run, RECORD_ALIGN};
use crate::verbs::NONE;
use crate::wire::{packet_bytes, pad_len, Class, Flow, Kind, Psn};

/// Largest UDP payload of one send, all segments together (65,535 less the largest IP and UDP
/// headers).
pub const MAX_BURST: usize = 65_000;

/// Content of a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    /// RoCEv2 packets of one size, each with its ICRC; the last may be shorter.
    Packets,
    /// Records ([`crate::roce::run`]) and payload, without ICRC.
    Records,
    /// Runs as they are, beside a buffer with their payload: between queue pairs of one engine.
    Runs,
}

/// A run on its way between two queue pairs of one engine.
#[derive(Clone, Copy)]
pub struct Handed {
    /// Its headers.
    pub run: Run,
    at: u32,
    len: u32,
}

impl Handed {
    /// None.
    pub const EMPTY: Handed =
        Handed { run: Run::new(Class::Rc, Kind::Ack, 0, Psn::new(0)), at: 0, len: 0 };

    /// Its payload, in the buffer that the [`TxBuf`] was given.
    #[inline]
    pub fn payload<'b>(&self, buf: &'b [u8]) -> &'b [u8] {
        buf.get(self.at as usize..).and_then(|b| b.get(..self.len as usize)).unwrap_or_default()
    }
}

/// Result of an emission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Emitted {
    /// Packets that are in the buffer now.
    pub packets: u32,
    /// The access that stopped the emission; `Ready`: none did.
    pub memory: Access,
}

/// A buffer that takes packets for one destination.
pub struct TxBuf<'b> {
    buf: &'b mut [u8],
    /// [`Path::Loopback`]: where the runs go.
    runs: &'b mut [Handed],
    path: Path,
    /// [`Path::Link`]: the peer's memory that is mapped here.
    memory: Option<&'b mut dyn PeerMemory>,
    /// Bytes that may be placed there before others have their turn.
    turn: u64,
    framing: Framing,
    len: usize,
    seg: usize,
    nseg: u16,
    max_seg: u16,
    closed: bool,
    peer: u32,
    flow: Flow,
}

impl<'b> TxBuf<'b> {
    /// An empty burst in `buf` that will travel by `path`: as packets through the port, as records
    /// over a link.
    pub fn new(buf: &'b mut [u8], path: Path, flow: Flow) -> Self {
        let framing = match path {
            Path::Port => Framing::Packets,
            Path::Loopback => Framing::Runs,
            Path::Link(_) | Path::Lost => Framing::Records,
        };
        TxBuf {
            buf,
            runs: &mut [],
            path,
            memory: None,
            turn: TURN,
            framing,
            len: 0,
            seg: 0,
            nseg: 0,
            max_seg: u16::MAX,
            closed: false,
            peer: NONE,
            flow,
        }
    }

    /// An empty list of runs for other QPs of this engine, whose payload goes to `buf`.
    #[inline]
    pub fn of_runs(buf: &'b mut [u8], runs: &'b mut [Handed], flow: Flow) -> Self {
        TxBuf { runs, ..TxBuf::new(buf, Path::Loopback, flow) }
    }

    /// An empty burst over a link to a peer of which memory may be mapped.
    pub fn to_link(
        buf: &'b mut [u8],
        link: u16,
        flow: Flow,
        memory: &'b mut dyn PeerMemory,
    ) -> Self {
        TxBuf { memory: Some(memory), ..TxBuf::new(buf, Path::Link(link), flow) }
    }

    /// Memory of the peer that is mapped here, and how many bytes may be placed there now.
    #[inline]
    pub(crate) fn memory(&mut self) -> Option<(&mut dyn PeerMemory, &mut u64)> {
        match &mut self.memory {
            Some(memory) => Some((*memory, &mut self.turn)),
            None => None,
        }
    }

    /// Runs in the list.
    #[inline]
    pub fn run_count(&self) -> usize {
        self.nseg.into()
    }

    /// How this burst travels.
    #[inline]
    pub fn path(&self) -> Path {
        self.path
    }

    /// Bytes in the buffer.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was put in.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.nseg == 0
    }

    /// Bytes of every packet but the last.
    #[inline]
    pub fn seg(&self) -> usize {
        self.seg
    }

    /// The peer that the burst goes to, or `NONE` while it is empty.
    #[inline]
    pub fn peer(&self) -> u32 {
        self.peer
    }

    /// The bytes so far.
    pub fn bytes(&self) -> &[u8] {
        &self.buf[..self.len]
    }

    /// Aims an empty burst at a peer; false if it already goes elsewhere.
    #[inline]
    pub fn aim(&mut self, peer: u32, flow: &Flow, max_seg: u16) -> bool {
        if self.peer == NONE {
            self.peer = peer;
            self.flow = *flow;
            self.max_seg = max_seg.max(1);
        }
        self.peer == peer
    }

    #[inline]
    fn fits(&self, size: usize) -> bool {
        if self.nseg == 0 {
            return size <= self.buf.len();
        }
        !self.closed
            && self.nseg < self.max_seg
            && size <= self.seg
            && self.len + size <= self.buf.len().min(MAX_BURST)
    }

    /// Emits as many packets of `run` as fit. `payload` is what all its packets carry together;
    /// `fill` copies a piece of it. Where the buffer ends before the run, the last packet asks for
    /// an ACK if `ack_each_burst`, so that a window can open again.
    #[inline(always)]
    pub fn emit<F>(
        &mut self,
        run: &Run,
        mtu: u32,
        payload: u32,
        ack_each_burst: bool,
        fill: F,
    ) -> Emitted
    where
        F: FnMut(u32, &mut [u8]) -> Access,
    {
        match self.framing {
            Framing::Packets => self.emit_packets(run, mtu, payload, ack_each_burst, fill),
            Framing::Runs => self.emit_run(run, mtu, payload, ack_each_burst, fill),
            Framing::Records => self.emit_record(run, mtu, payload, ack_each_burst, fill),
        }
    }

    /// Each framing by itself, so that the short one does not pay for what the long ones keep in
    /// registers.
    #[inline(never)]
    fn emit_packets<F>(
        &mut self,
        run: &Run,
        mtu: u32,
        payload: u32,
        ack_each_burst: bool,
        mut fill: F,
    ) -> Emitted
    where
        F: FnMut(u32, &mut [u8]) -> Access,
    {
        let mut k = 0;
        let mut last_size = 0;
        while k < run.n {
            let off = k * mtu;
            let len = (payload - off.min(payload)).min(mtu) as usize;
            let opcode = run.opcode(run.first && k == 0, run.last && k + 1 == run.n);
            let headers = opcode.header_len();
            let size = packet_bytes(opcode, len);
            if !self.fits(size) {
                break;
            }
            let at = self.len;
            let ends_burst = k + 1 == run.n
                || (self.nseg + 1 >= self.max_seg)
                || at + 2 * size > self.buf.len().min(MAX_BURST)
                || (self.nseg > 0 && size < self.seg)
                || run.first && k == 0 && headers > crate::wire::Bth::LEN;
            let ack = run.ack_req && k + 1 == run.n || ack_each_burst && ends_burst;
            let Some(packet) = self.buf.get_mut(at..at + size) else { break };
            let (head, body) = packet.split_at_mut(headers);
            let (data, tail) = body.split_at_mut(len);
            let memory = if len > 0 { fill(off, data) } else { Access::Ready };
            if memory != Access::Ready {
                if k > 0 && ack_each_burst {
                    self.ask_for_ack(at, last_size);
                }
                return Emitted { packets: k, memory };
            }
            last_size = size;
            let pad = pad_len(len);
            tail[..pad].fill(0);
            run.emit_headers(opcode, run.psn.add(k), ack, pad as u8, head);
            self.flow.append_icrc(self.nseg, packet);
            if self.nseg == 0 {
                self.seg = size;
            } else if size < self.seg {
                self.closed = true;
            }
            self.nseg += 1;
            self.len += size;
            k += 1;
        }
        Emitted { packets: k, memory: Access::Ready }
    }

    #[inline(always)]
    fn emit_run<F>(
        &mut self,
        run: &Run,
        mtu: u32,
        payload: u32,
        ack_each_burst: bool,
        mut fill: F,
    ) -> Emitted
    where
        F: FnMut(u32, &mut [u8]) -> Access,
    {
        let Some(handed) = self.runs.get_mut(usize::from(self.nseg)) else {
            return Emitted { packets: 0, memory: Access::Ready };
        };
        let room = self.buf.len() - self.len;
        let (n, bytes) = if payload as usize <= room {
            (run.n, payload)
        } else {
            let n = room as u32 / mtu;
            (n, n * mtu)
        };
        if n == 0 {
            return Emitted { packets: 0, memory: Access::Ready };
        }
        if bytes > 0 {
            let Some(body) = self.buf.get_mut(self.len..self.len + bytes as usize) else {
                return Emitted { packets: 0, memory: Access::Ready };
            };
            let memory = fill(0, body);
            if memory != Access::Ready {
                return Emitted { packets: 0, memory };
            }
        }
        handed.run = *run;
        handed.run.ack_req |= ack_each_burst;
        if n < run.n {
            handed.run.end_before(n);
        }
        (handed.at, handed.len) = (self.len as u32, bytes);
        // The next payload begins aligned, for the copies' sake.
        self.len = (self.len + bytes as usize).next_multiple_of(16).min(self.buf.len());
        self.nseg += 1;
        Emitted { packets: n, memory: Access::Ready }
    }

    #[inline(never)]
    fn emit_record<F>(
        &mut self,
        run: &Run,
        mtu: u32,
        payload: u32,
        ack_each_burst: bool,
        mut fill: F,
    ) -> Emitted
    where
        F: FnMut(u32, &mut [u8]) -> Access,
    {
        let head = run.head_len();
        let full = Emitted { packets: 0, memory: Access::Ready };
        let Some(room) = self.buf.len().checked_sub(self.len + head) else { return full };
        let room = room & !(RECORD_ALIGN - 1);
        let mut part = *run;
        let mut bytes = payload;
        if bytes as usize > room {
            let n = room as u32 / mtu;
            if n == 0 {
                return full;
            }
            part.end_before(n);
            bytes = n * mtu;
        }
        // A record is a burst of its own, whether the buffer or the window ended it.
        part.ack_req |= ack_each_burst;
        let record = &mut self.buf[self.len..];
        let memory = match record.get_mut(head..head + bytes as usize) {
            Some(body) if bytes > 0 => fill(0, body),
            _ => Access::Ready,
        };
        if memory != Access::Ready {
            return Emitted { packets: 0, memory };
        }
        // What follows the message's own head (immediate data, a key) makes the opcode of a shorter
        // part another one, but no head shorter or longer: none of it is in the optional parts.
        if !part.emit_head(record, bytes) {
            return full;
        }
        self.len += head + (bytes as usize).next_multiple_of(RECORD_ALIGN);
        self.nseg = self.nseg.saturating_add(1);
        Emitted { packets: part.n, memory: Access::Ready }
    }

    /// Memory ended the burst where nothing foretold it: its last packet, of `size` bytes, asks for
    /// an ACK after all. Otherwise a peer of slow memory would hear of no progress for as long as
    /// one message takes.
    #[cold]
    fn ask_for_ack(&mut self, end: usize, size: usize) {
        let Some(packet) = self.buf.get_mut(end - size..end) else { return };
        // The ACK request is the top bit above the PSN.
        packet[8] |= 0x80;
        self.flow.append_icrc(self.nseg - 1, packet);
    }

    /// Emits a single packet without payload.
    #[inline]
    pub fn emit_bare(&mut self, run: &Run) -> bool {
        self.emit(run, 256, 0, false, |_, _| Access::Ready).packets == 1
    }
}
