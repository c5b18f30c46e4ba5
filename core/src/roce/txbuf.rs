//! The burst being built: packets in the port's buffer, or whole runs for a path that carries them.

use core::convert::Infallible;

use crate::roce::peer::{ConnectedFlow, Path, Peer};
use crate::roce::peer_memory::{PeerMemory, COPY_BUDGET};
use crate::roce::run::{Run, RECORD_ALIGN};
use crate::verbs::NONE;
use crate::wire::icrc::crc32;
use crate::wire::{packet_bytes, pad_len, Class, IcrcFlow, PacketKind, Psn, ICRC_LEN};

/// Largest UDP payload of one send, all segments together (65,535 less the largest IP and UDP
/// headers).
pub const MAX_BURST: usize = 65_000;

/// Shortest payload that is copied and summed in one pass.
const BULK: usize = 512;

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
        Handed { run: Run::new(Class::Rc, PacketKind::Ack, 0, Psn::new(0)), at: 0, len: 0 };

    /// Its payload, in the buffer that the [`TxBuf`] was given.
    pub fn payload<'b>(&self, buf: &'b [u8]) -> &'b [u8] {
        buf.get(self.at as usize..).and_then(|b| b.get(..self.len as usize)).unwrap_or_default()
    }
}

/// A run that is to be emitted.
pub struct Emission<'r> {
    /// Its headers.
    pub run: &'r Run,
    /// Bytes of every packet but the last.
    pub mtu: u32,
    /// Bytes that all its packets carry together.
    pub payload: u32,
    /// If the buffer ends before the run, the last packet in it asks for an ACK, so that a window
    /// can open again.
    pub ack_each_burst: bool,
}

/// Result of an emission.
pub struct Emitted<E> {
    /// Packets that are in the buffer now.
    pub packets: u32,
    /// Why the emission stopped, if not because the buffer is full.
    pub stop: Option<E>,
}

/// A buffer that takes packets for one destination.
pub struct TxBuf<'b> {
    buf: &'b mut [u8],
    /// [`Path::Loopback`]: where the runs go.
    runs: &'b mut [Handed],
    path: Path,
    /// [`Path::Link`]: the peer's memory that is mapped here.
    memory: Option<&'b mut dyn PeerMemory>,
    /// Bytes that may be placed there before other queue pairs send.
    budget: u64,
    len: usize,
    seg: usize,
    nseg: u16,
    max_seg: u16,
    /// IPv4 identification of the first packet.
    ident: u16,
    /// Difference between the IPv4 identifications of two successive packets.
    ident_step: u16,
    closed: bool,
    peer: u32,
    flow: IcrcFlow,
    /// The flow of the port's connected socket, if it has one.
    connected: Option<&'b ConnectedFlow>,
    /// The burst's ICRCs are those of that flow.
    for_connected: bool,
}

impl<'b> TxBuf<'b> {
    /// An empty burst in `buf` that will travel by `path`: through the port as RoCEv2 packets of
    /// one size (the last may be shorter), each with its ICRC; over a link as records
    /// ([`crate::roce::run`]); within the engine as runs beside a buffer with their payload.
    pub fn new(buf: &'b mut [u8], path: Path, flow: IcrcFlow) -> Self {
        TxBuf {
            buf,
            runs: &mut [],
            path,
            memory: None,
            budget: COPY_BUDGET,
            len: 0,
            seg: 0,
            nseg: 0,
            max_seg: u16::MAX,
            ident: 0,
            ident_step: 1,
            closed: false,
            peer: NONE,
            flow,
            connected: None,
            for_connected: false,
        }
    }

    /// The same burst, with the ICRCs of the flow `connected` if that leads to the peer of the
    /// connected QP that the burst is for.
    pub fn with_connected(self, connected: Option<&'b ConnectedFlow>) -> Self {
        TxBuf { connected, ..self }
    }

    /// The same burst for a port whose packets travel one by one: each has the identification 0.
    pub fn with_zero_idents(self, zero: bool) -> Self {
        TxBuf { ident_step: u16::from(!zero), ..self }
    }

    /// An empty list of runs for other QPs of this engine, whose payload goes to `buf`.
    pub fn new_runs(buf: &'b mut [u8], runs: &'b mut [Handed], flow: IcrcFlow) -> Self {
        TxBuf { runs, ..TxBuf::new(buf, Path::Loopback, flow) }
    }

    /// An empty burst over a link to a peer of which memory may be mapped.
    pub fn new_link(
        buf: &'b mut [u8],
        link: u16,
        flow: IcrcFlow,
        memory: &'b mut dyn PeerMemory,
    ) -> Self {
        TxBuf { memory: Some(memory), ..TxBuf::new(buf, Path::Link(link), flow) }
    }

    /// Memory of the peer that is mapped here, and how many bytes may be placed there now.
    pub(crate) fn memory(&mut self) -> Option<(&mut dyn PeerMemory, &mut u64)> {
        let memory = self.memory.as_mut()?;
        Some((*memory, &mut self.budget))
    }

    /// Runs in the list.
    pub fn run_count(&self) -> usize {
        self.nseg.into()
    }

    /// How this burst travels.
    pub fn path(&self) -> Path {
        self.path
    }

    /// Bytes in the buffer.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was put in.
    pub fn is_empty(&self) -> bool {
        self.nseg == 0
    }

    /// Bytes of every packet but the last.
    pub fn seg(&self) -> usize {
        self.seg
    }

    /// The peer that the burst goes to, or `NONE` while it is empty.
    pub fn peer(&self) -> u32 {
        self.peer
    }

    /// Aims an empty burst at a peer; false if it already goes elsewhere.
    pub fn aim(&mut self, peer: u32, flow: &IcrcFlow, max_seg: u16) -> bool {
        if self.peer == NONE {
            self.set_aim(peer, flow, max_seg);
        }
        self.peer == peer && !self.for_connected
    }

    #[inline]
    fn set_aim(&mut self, peer: u32, flow: &IcrcFlow, max_seg: u16) {
        self.peer = peer;
        self.flow = *flow;
        self.max_seg = max_seg.max(1);
    }

    /// As [`TxBuf::aim`], for a connected QP. Its peer also takes packets from the port's connected
    /// socket; receivers of datagrams may not.
    #[inline]
    pub fn aim_connected(&mut self, index: u32, peer: &Peer) -> bool {
        if self.peer == NONE {
            let connected = self.connected.filter(|c| c.leads_to(&peer.addr));
            if let Some(connected) = connected {
                (self.ident, self.for_connected) = (connected.ident, true);
            }
            self.set_aim(index, connected.map_or(&peer.flow, |c| &c.flow), peer.max_seg);
        }
        self.peer == index
    }

    /// Whether the burst's ICRCs are those of the flow of [`TxBuf::with_connected`].
    pub fn is_for_connected(&self) -> bool {
        self.for_connected
    }

    /// IPv4 identification of the packet at an index.
    #[inline]
    fn ident_of(&self, k: u16) -> u16 {
        self.ident.wrapping_add(k * self.ident_step)
    }

    fn fits(&self, size: usize) -> bool {
        if self.nseg == 0 {
            return size <= self.buf.len();
        }
        !self.closed
            && self.nseg < self.max_seg
            && size <= self.seg
            && self.len + size <= self.buf.len().min(MAX_BURST)
    }

    /// The most packets of the largest size for which the burst has room.
    #[inline]
    pub fn packets_of(&self, mtu: u32) -> u32 {
        let room = |most: usize| (self.buf.len().min(most).saturating_sub(self.len)) as u32 / mtu;
        match self.path {
            Path::Port => room(MAX_BURST).min(u32::from(self.max_seg.saturating_sub(self.nseg))),
            _ => room(usize::MAX),
        }
    }

    /// Emits as many packets of a run as fit; `fill` copies a piece of their payload. If it gets a
    /// CRC state, it continues the CRC over the piece and returns the new state.
    #[inline(always)]
    pub fn emit<E>(
        &mut self,
        what: Emission<'_>,
        fill: impl FnMut(u32, &mut [u8], Option<u32>) -> Result<u32, E>,
    ) -> Emitted<E> {
        match self.path {
            Path::Port => self.emit_packets(what, fill),
            Path::Loopback => self.emit_whole::<E, false>(what, fill),
            _ => self.emit_record(what, fill),
        }
    }

    /// Each framing has a function of its own, so that the short one does not pay for the registers
    /// of the long ones.
    #[inline(never)]
    fn emit_packets<E>(
        &mut self,
        what: Emission<'_>,
        mut fill: impl FnMut(u32, &mut [u8], Option<u32>) -> Result<u32, E>,
    ) -> Emitted<E> {
        let Emission { run, mtu, payload, ack_each_burst } = what;
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
            let ident = self.ident_of(self.nseg);
            let Some(packet) = self.buf.get_mut(at..at + size) else { break };
            let (head, body) = packet.split_at_mut(headers);
            let (data, tail) = body.split_at_mut(len);
            let pad = pad_len(len);
            let psn = run.psn.add(k);
            // Bulk is summed in the pass that copies it.
            let begun = if len >= BULK {
                run.emit_headers(opcode, psn, ack, pad as u8, head);
                Some(self.flow.icrc_of_headers(ident, head, size - ICRC_LEN))
            } else {
                None
            };
            let filled = if len > 0 { fill(off, data, begun) } else { Ok(0) };
            let state = match filled {
                Ok(state) => state,
                Err(stop) => {
                    if k > 0 && ack_each_burst {
                        self.ask_for_ack(at, last_size);
                    }
                    return Emitted { packets: k, stop: Some(stop) };
                }
            };
            last_size = size;
            let (padding, icrc) = tail.split_at_mut(pad);
            padding.fill(0);
            if begun.is_some() {
                let state = if pad > 0 { crc32(state, padding) } else { state };
                icrc.copy_from_slice(&(!state).to_le_bytes());
            } else {
                run.emit_headers(opcode, psn, ack, pad as u8, head);
                self.flow.append_icrc(ident, packet);
            }
            if self.nseg == 0 {
                self.seg = size;
            } else if size < self.seg {
                self.closed = true;
            }
            self.nseg += 1;
            self.len += size;
            k += 1;
        }
        Emitted { packets: k, stop: None }
    }

    #[inline(never)]
    fn emit_record<E>(
        &mut self,
        what: Emission<'_>,
        fill: impl FnMut(u32, &mut [u8], Option<u32>) -> Result<u32, E>,
    ) -> Emitted<E> {
        self.emit_whole::<E, true>(what, fill)
    }

    /// Emits as much of a run as fits, as one record, or as one run.
    #[inline(always)]
    fn emit_whole<E, const RECORD: bool>(
        &mut self,
        what: Emission<'_>,
        mut fill: impl FnMut(u32, &mut [u8], Option<u32>) -> Result<u32, E>,
    ) -> Emitted<E> {
        let Emission { run, mtu, payload, ack_each_burst } = what;
        let full = Emitted { packets: 0, stop: None };
        let handed = self.runs.get_mut(usize::from(self.nseg));
        if !RECORD && handed.is_none() {
            return full;
        }
        let head = if RECORD { run.head_len() } else { 0 };
        let Some(mut room) = self.buf.len().checked_sub(self.len + head) else { return full };
        if RECORD {
            room &= !(RECORD_ALIGN - 1);
        }
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
        // It is a burst of its own, whether the buffer or the window has cut it.
        part.ack_req |= ack_each_burst;
        let to = &mut self.buf[self.len..];
        if let Some(body) = to.get_mut(head..head + bytes as usize).filter(|_| bytes > 0) {
            if let Err(stop) = fill(0, body, None) {
                return Emitted { packets: 0, stop: Some(stop) };
            }
        }
        // A shorter part has another opcode (no immediate data, no key), but a head of the same
        // length: both are in the base of a head.
        if RECORD && !part.emit_head(to, bytes) {
            return full;
        }
        let packets = part.n;
        if let Some(handed) = handed {
            *handed = Handed { run: part, at: self.len as u32, len: bytes };
        }
        // The next payload begins aligned, for the copies' sake.
        let align = if RECORD { RECORD_ALIGN } else { 16 };
        let end = self.len + head + bytes as usize;
        self.len = end.next_multiple_of(align).min(self.buf.len());
        self.nseg = self.nseg.saturating_add(1);
        Emitted { packets, stop: None }
    }

    /// Memory ended the burst unexpectedly: its last packet, of `size` bytes, asks for an ACK after
    /// all. Otherwise none would come before the end of the message.
    #[cold]
    fn ask_for_ack(&mut self, end: usize, size: usize) {
        let ident = self.ident_of(self.nseg - 1);
        let Some(packet) = self.buf.get_mut(end - size..end) else { return };
        // The ACK request is the top bit above the PSN.
        packet[8] |= 0x80;
        self.flow.append_icrc(ident, packet);
    }

    /// Emits a single packet without payload.
    pub fn emit_bare(&mut self, run: &Run) -> bool {
        let what = Emission { run, mtu: 256, payload: 0, ack_each_burst: false };
        self.emit(what, |_, _, _| Ok::<u32, Infallible>(0)).packets == 1
    }
}
