//! The connection manager: connects the QPs of two programs that know only an address and a port.
//!
//! Its messages (REQ, REP, RTU, REJ, DREQ, DREP, MRA; SIDR_REQ and SIDR_REP for UD) travel as MADs
//! from QP1 to QP1, and its service ids and private data are those of rdma_cm, so the other end may
//! be a Linux kernel (IBTA volume 1, chapter 12 and annex A11).
//!
//! Sans-IO and without QPs: it takes messages ([`Cm::handle_mad`]), gives messages
//! ([`Cm::poll_transmit`]) and its next deadline, and keeps a fixed table of ids. A program drives
//! it by [`Cm::listen`], [`Cm::connect`], [`Cm::accept`] and so on, and takes events
//! ([`Cm::take_event`]). The caller moves the QPs, with the attributes of [`Cm::qp_attr`].
//!
//! Files: `mad` (bytes), `types` (arguments and events), `conn` (one id and its states), `program`
//! (calls of programs), `input` (messages in), `admit` (bounds on strangers), `early` (requests
//! that come before their listener), `ends` (peers whose process has ended), `events` (what the
//! program has yet to take), `output` (messages out and timers), `other_mads` (datagrams of other
//! classes).
//!
//! The ways in which an id ends, and whom each tells:
//!
//! | function | when | program | peer |
//! |---|---|---|---|
//! | `send_dreq` | it disconnects, and waits for the answer | later | DREQ |
//! | `enter_time_wait` | an answer or a DREQ has come | DISCONNECTED | DREP, if it asked |
//! | `end_lost_peer` | the peer is dead or silent | as the state says | nobody is there |
//! | `fail_exchange` | an exchange got no answer | UNREACHABLE | REJ |
//! | `reject_by_timeout` | the program has gone | nothing | REJ |
//! | `free` | nobody knows it | nothing | nothing |
//!
//! Hostile peers. Every table is bounded; what finds no room is dropped and counted, or refused
//! with NO_RESOURCES. A message counts for a connection only if both communication ids and the
//! source address are right; an attacker that sees none of our messages must guess 22 bits of ours.
//! Each message in causes at most one message out at once, and a peer that has not shown that it
//! receives is sent at most [`REP_RETRIES`] further copies. Timeouts that a peer dictates are
//! bounded by [`TIMEOUT_MAX`] (ACKs), [`RESPONSE_TIMEOUT`] + 1 (answers) and [`SERVICE_TIMEOUT`]
//! (MRA).

mod admit;
mod conn;
mod early;
mod ends;
mod events;
mod input;
pub mod mad;
pub mod other_mads;
mod output;
mod program;
#[cfg(test)]
mod tests;
pub mod types;

pub use types::*;

pub use conn::{init_attr, State, MIN_RNR_TIMER};
pub use events::arrival;
pub use program::{check_data, check_param};

use crate::arena::{RawSlice, Walk};
use crate::bitmap::Bitmap;
use crate::config::Config;
use crate::error::Result;
use crate::pool::{tag, Pool};
use crate::random::{Random, Shuffle};
use crate::reason::refuse;
use crate::roce::peer::PeerAddr;
use crate::verbs::types::Handle;
use crate::verbs::NONE;
use crate::wheel::Wheel;
use crate::wire::ack_timeout_ns;
use admit::{Bounds, Known, Load};
use conn::Id;
use early::{Early, EARLY};
use events::Events;
use heapless::{Deque, HistoryBuf};
use other_mads::OtherMads;

const _: () = {
    use mad::{private_len, IP_HEADER_LEN};
    assert!(CONNECT_DATA_MAX == private_len::REQ - IP_HEADER_LEN);
    assert!(ACCEPT_DATA_MAX == private_len::REP);
    assert!(REJECT_DATA_MAX == private_len::REJ);
    assert!(UD_CONNECT_DATA_MAX == private_len::SIDR_REQ - IP_HEADER_LEN);
    assert!(UD_ACCEPT_DATA_MAX == private_len::SIDR_REP);
};

/// Largest ACK timeout code that a peer may dictate: 4.3 s.
pub const TIMEOUT_MAX: u8 = 20;
/// Timeout code of our MRAs, and the largest that a peer's MRA may ask for: 69 s.
pub const SERVICE_TIMEOUT: u8 = 24;
/// How often a REP is sent again to a peer that has not shown that it receives.
pub const REP_RETRIES: u8 = 4;
/// How long requests for a port that is announced, or whose listener has gone, are kept rather than
/// refused. Some programs end a listener and begin another a second later (perftest), or tell a
/// peer their port before they listen (qperf).
pub const LISTENER_GRACE_NS: u64 = 4_000_000_000;
/// Ports of former listeners that are remembered.
const FORMER: usize = 8;
/// Answers without an id that may wait to be sent.
const REPLIES: usize = 64;
/// Separates the manager's random numbers from those of other parts with the same seed.
const PURPOSE: u64 = 0x636d_5f69_6473;

/// Properties of this device that its messages carry.
#[derive(Clone, Copy, Debug)]
pub struct Local {
    /// GID.
    pub gid: [u8; 16],
    /// Node GUID.
    pub guid: u64,
    /// Largest path MTU code.
    pub path_mtu: u32,
    /// READs and atomics that a QP can have in either direction.
    pub max_rd_atomic: u8,
    /// Whether a node GUID is that of a soft device at an address.
    pub is_soft_peer: fn(u64, &PeerAddr) -> bool,
    /// Number of the device's QPN block, [`crate::config::QPN_UNIT`] QPNs each: the upper bits of
    /// its communication ids.
    pub block: u16,
}

impl Default for Local {
    fn default() -> Self {
        Local {
            gid: [0; 16],
            guid: 0,
            path_mtu: 0,
            max_rd_atomic: 0,
            is_soft_peer: |_, _| false,
            block: 0,
        }
    }
}

/// The upper bits of a communication id, which name the block of the device that made it.
pub const BLOCK_BITS: u32 = (1u32 << 24).ilog2() - crate::config::QPN_UNIT.ilog2();
/// The bits below them.
const ID_MASK: u32 = u32::MAX >> BLOCK_BITS;

/// Receiver of a message, of several devices with one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressee {
    /// The device whose block has this number: the message names an id of its.
    Block(u16),
    /// The listener at this port.
    Service {
        /// Port space.
        port_space: u16,
        /// Port.
        port: u16,
    },
    /// The message does not say.
    Anyone,
}

impl Addressee {
    /// The device that owns a communication id.
    fn of_id(id: u32) -> Addressee {
        match id {
            0 => Addressee::Anyone,
            _ => Addressee::Block((id >> (32 - BLOCK_BITS)) as u16),
        }
    }

    /// Reads it from the bytes of a message. Anything is legal input.
    pub fn from_mad(mad: &[u8]) -> Addressee {
        use mad::{Mad, Message};
        let Ok(mad) = Mad::parse(mad) else { return Addressee::Anyone };
        let of_id = Addressee::of_id;
        let of_service = |id: u64| match input::service(id) {
            Some((port_space, port)) => Addressee::Service { port_space, port },
            None => Addressee::Anyone,
        };
        match mad.message {
            Message::Req(m) => of_service(m.service_id),
            Message::SidrReq(m) => of_service(m.service_id),
            Message::SidrRep(m) => of_id(m.request_id),
            Message::Mra(m) => of_id(m.remote_comm_id),
            Message::Rej(m) => of_id(m.remote_comm_id),
            Message::Rep(m) => of_id(m.remote_comm_id),
            Message::Rtu(m) | Message::Drep(m) => of_id(m.remote_comm_id),
            Message::Dreq(m) => of_id(m.remote_comm_id),
        }
    }
}

/// The address to which a request is made, if it has one: in its path, or in rdma_cm's header in
/// its private data. Other messages have none. Anything is legal input.
pub fn asked_address(mad: &[u8]) -> Option<[u8; 16]> {
    use mad::{IpHeader, Mad, Message};
    match Mad::parse(mad).ok()?.message {
        Message::Req(m) => Some(m.remote_gid),
        Message::SidrReq(m) => IpHeader::parse(m.private_data).map(|header| header.dst),
        _ => None,
    }
}

/// Replaces an address in the bytes of a request, in its paths and in rdma_cm's header, for a
/// device that peers know by another address. Other messages have none. Anything is legal input.
pub fn readdress(mad: &mut [u8], from: &[u8; 16], to: &[u8; 16]) {
    use mad::{Mad, Message, GIDS_OF_REQ, HEADER_OF_REQ, HEADER_OF_SIDR_REQ};
    let header = match Mad::parse(mad).map(|mad| mad.message) {
        Ok(Message::Req(_)) => {
            for at in GIDS_OF_REQ {
                if let Some(gid) = mad.get_mut(at..at + 16).filter(|gid| *gid == from) {
                    gid.copy_from_slice(to);
                }
            }
            HEADER_OF_REQ
        }
        Ok(Message::SidrReq(_)) => HEADER_OF_SIDR_REQ,
        _ => return,
    };
    let place = mad.get_mut(header..).and_then(|rest| rest.first_chunk_mut());
    if let Some(place) = place {
        mad::IpHeader::replace(place, from, to);
    }
}

/// Counters of a connection manager.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CmCounters {
    /// Messages received.
    pub rcvd: u64,
    /// Messages sent.
    pub sent: u64,
    /// Messages sent again because no answer came.
    pub retries: u64,
    /// REJs, and SIDR_REPs that refuse, sent.
    pub rejected: u64,
    /// REJs, and SIDR_REPs that refuse, received for a request or an acceptance.
    pub rejects_rcvd: u64,
    /// Messages that could not be read, belonged to no id, or found no room.
    pub dropped: u64,
    /// Requests and unconfirmed connections that were given up so that others find room.
    pub evicted: u64,
}

/// A request that this side has refused, for the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// Address of the peer whose request it was.
    pub peer: [u8; 16],
    /// The port that was asked for; 0: not one of rdma_cm's, or an answer was refused.
    pub port: u16,
    /// Why: `reject`, for a datagram service `sidr_status`.
    pub reason: u16,
    /// It was a request for a datagram service.
    pub datagram: bool,
}

/// Refusals that are kept until they are taken; further ones are only counted.
pub const REFUSALS: usize = 8;

/// An answer without an id.
#[derive(Clone, Copy)]
struct Reply {
    to: PeerAddr,
    tid: u64,
    what: ReplyKind,
}

#[derive(Clone, Copy)]
enum ReplyKind {
    /// REJ of message `about` from the comm id given; one byte of information for INVALID_MTU.
    Rej { local_id: u32, remote_id: u32, about: u8, reason: u16, info: Option<u8> },
    /// DREP to a DREQ for a connection that is over or unknown.
    Drep { local_id: u32, remote_id: u32 },
    /// SIDR_REP that refuses.
    Sidr { request_id: u32, status: u8, service_id: u64 },
}

/// A connection manager.
pub struct Cm {
    ids: RawSlice<Id>,
    pool: Pool,
    /// By id: keyed hashes of the peer's communication id and QPN ([`Cm::find`]).
    peer_hashes: RawSlice<[u32; 2]>,
    /// Ids that listen.
    listening: Bitmap,
    /// Ids that are half-open (`admit`).
    half_open: Bitmap,
    bounds: Bounds,
    /// Numbers of half-open ids, by the hash of their source.
    load: RawSlice<Load>,
    /// Addresses that have shown that they receive.
    known: RawSlice<Known>,
    /// Guests (`admit`).
    guests: u32,
    /// Before this time [`Cm::confirm`] is not due again.
    confirm_at: u64,
    /// Ids with messages to send; then a bit for `other_mads`, and one for `replies`.
    tx: Bitmap,
    other_mads: OtherMads,
    events: Events,
    /// Connections whose peer's process is to be watched.
    unwatched: Bitmap,
    /// A connection has ended since [`Cm::take_ended`].
    has_ended: bool,
    /// One timer per id.
    wheel: Wheel,
    /// One queue, in the arena: a connection manager is moved before it has its place.
    replies: RawSlice<Deque<Reply, REPLIES>>,
    tx_cursor: usize,
    random: Random,
    /// The secret order of communication ids ([`Cm::fresh_comm_id`]).
    id_order: Shuffle,
    local: Local,
    /// Ports whose listeners have gone, and until when requests for them are kept.
    former_ports: HistoryBuf<(u16, u64), FORMER>,
    /// Requests that came before their listeners.
    early: RawSlice<Early>,
    refusals: heapless::Vec<Refusal, REFUSALS>,
    /// An event was raised since [`Cm::take_raised`].
    raised: bool,
    counters: CmCounters,
}

fn timeout_ns(code: u8) -> u64 {
    ack_timeout_ns(code.max(1)).unwrap_or(u64::MAX)
}

impl Cm {
    /// Lays out a connection manager of `config.max_cm_ids` ids, rounded up to whole chunks,
    /// and of further ones for guests.
    ///
    /// # Errors
    /// [`crate::Error::NoMemory`] where it does not fit.
    pub fn carve(w: &mut Walk, config: &Config) -> Result<Cm> {
        let bounds = Bounds::from_config(config);
        let n = bounds.slots();
        Ok(Cm {
            ids: w.slice(n, Id::new(0, 0))?,
            pool: Pool::carve(w, (tag::CM_ID, config.context), n, n, None)?,
            peer_hashes: w.slice(n, [0; 2])?,
            listening: Bitmap::carve(w, n)?,
            half_open: Bitmap::carve(w, n)?,
            bounds,
            load: w.slice(admit::LOADS, 0)?,
            known: w.slice(admit::KNOWN, Known::default())?,
            guests: 0,
            confirm_at: 0,
            tx: Bitmap::carve(w, n + 2)?,
            other_mads: OtherMads::carve(w)?,
            events: Events::carve(w, n)?,
            unwatched: Bitmap::carve(w, n)?,
            has_ended: false,
            wheel: Wheel::carve(w, n, n)?,
            replies: w.slice_with(1, |_| Deque::new())?,
            tx_cursor: 0,
            random: Random::new(config.seed, PURPOSE),
            id_order: Shuffle::new(Random::new(config.seed, !PURPOSE), 32 - BLOCK_BITS),
            local: Local::default(),
            former_ports: HistoryBuf::new(),
            early: w.slice(EARLY, Early::none())?,
            refusals: heapless::Vec::new(),
            raised: false,
            counters: CmCounters::default(),
        })
    }

    /// Sets the properties of this device, before the first message.
    pub fn set_local(&mut self, local: Local) {
        self.local = local;
    }

    /// Counters.
    pub fn counters(&self) -> CmCounters {
        self.counters
    }

    /// Ids that the program has not destroyed.
    pub fn live(&self) -> u32 {
        self.pool.iter_live().filter(|&i| !self.ids[i].orphan).count() as u32
    }

    /// Whether `take_event` has something.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Whether an event was raised since the last call, so that a sleeper must be woken.
    pub fn take_raised(&mut self) -> bool {
        core::mem::take(&mut self.raised)
    }

    /// The state of an id.
    ///
    /// # Errors
    /// [`crate::Error::StaleHandle`].
    pub fn state(&self, id: Handle) -> Result<State> {
        Ok(self.ids[self.check(id)?].state)
    }

    /// Whether the conversation that connects these QPNs, of this device and of a peer, is with a
    /// soft device.
    pub fn peer_is_soft(&self, qpn: u32, remote_qpn: u32) -> bool {
        let is = |i: usize| {
            let id = &self.ids[i];
            id.is_conversation()
                && id.local_qpn == qpn
                && id.remote_qpn == remote_qpn
                && (self.local.is_soft_peer)(id.remote_guid, &id.peer)
        };
        self.pool.iter_live().any(is)
    }

    /// The QP of an id, or 0.
    ///
    /// # Errors
    /// [`crate::Error::StaleHandle`].
    pub fn qp(&self, id: Handle) -> Result<Handle> {
        Ok(self.ids[self.check(id)?].qp)
    }

    /// Takes the oldest event.
    pub fn take_event(&mut self) -> Option<CmEvent> {
        let (i, event, arrival) = self.events.pop()?;
        let id = &self.ids[i];
        let listener = match id.listener {
            NONE => 0,
            l => self.pool.handle(l as usize),
        };
        let e = id.event(event, self.pool.handle(i), listener);
        Some(CmEvent { arrival, ..e })
    }

    /// Whether a request waits whose event the program has not taken.
    fn is_unheard(&self, i: usize) -> bool {
        self.ids[i].is_waiting() && self.events.has(i, cm_event::CONNECT_REQUEST)
    }

    /// Whether [`Cm::take_refusal`] has something.
    pub fn has_refusals(&self) -> bool {
        !self.refusals.is_empty()
    }

    /// Takes one of this side's refusals, the newest first.
    pub fn take_refusal(&mut self) -> Option<Refusal> {
        self.refusals.pop()
    }

    /// Counts a refusal, and keeps it if there is room.
    fn note_refusal(&mut self, refusal: Refusal) {
        self.counters.rejected += 1;
        self.raised |= self.refusals.push(refusal).is_ok();
    }

    fn random(&mut self) -> u64 {
        self.random.draw()
    }

    /// The index of an id that the program holds.
    fn check(&self, id: Handle) -> Result<usize> {
        let i = self.pool.check(id)?;
        if self.ids[i].orphan {
            return Err(crate::pool::stale(tag::CM_ID, id));
        }
        Ok(i)
    }

    /// The conversation with a communication id of ours.
    fn by_local_id(&self, local_id: u32) -> Option<usize> {
        let i = (self.id_order.place_of(local_id & ID_MASK) & self.index_mask()) as usize;
        let id = self.ids.get(i)?;
        (self.pool.is_live(i) && id.is_conversation() && id.local_id == local_id).then_some(i)
    }

    /// Makes an id for the program ([`Cm::make_room`]).
    fn alloc(&mut self, fresh: Id) -> Result<usize> {
        if !self.make_room() {
            let n = self.bounds.own;
            return Err(refuse!(NoMemory, "max_cm_ids: {n} are in use; destroy some, or raise it"));
        }
        let (_, i) = self.pool.alloc()?;
        self.ids[i] = Id { rq_psn: self.first_psn(), ..fresh };
        Ok(i)
    }

    /// The first PSN that a new id expects. Drawn with the id, as in the kernel, so that
    /// [`Cm::qp_attr`] has it before the program has said what its QP is.
    fn first_psn(&mut self) -> u32 {
        self.random() as u32 & program::BITS_24
    }

    /// Frees an id.
    fn free(&mut self, i: usize) {
        self.move_to(i, State::Dead);
        self.release_guest(i);
        self.wheel.cancel(i);
        self.tx.clear(i);
        self.events.clear(i);
        self.listening.clear(i);
        self.peer_hashes[i] = [0; 2];
        self.ids[i] = Id { former_id: self.ids[i].former_id, ..Id::new(0, 0) };
        self.pool.free(i);
    }

    /// The bits of a place in the secret order that are an index: as many as the table needs, at
    /// most 17.
    fn index_mask(&self) -> u32 {
        (self.ids.len().next_power_of_two() - 1) as u32
    }

    /// Makes a communication id, never 0: the device's block (10 bits), then a number of 22 bits.
    /// The number stands at a place of a secret order of all numbers; the low bits of that place
    /// are the id's index, the upper ones are random. So the index is found without a search, and
    /// no communication id reveals the next one.
    fn fresh_comm_id(&mut self, i: usize) -> u32 {
        let mask = self.index_mask();
        loop {
            let place = self.random() as u32 & ID_MASK & !mask | i as u32;
            let id =
                u32::from(self.local.block) << (32 - BLOCK_BITS) | self.id_order.number_at(place);
            // Late messages name the last communication id of this index.
            if id != 0 && id != self.ids[i].former_id {
                self.ids[i].former_id = id;
                return id;
            }
        }
    }

    /// Whether a message for that addressee is for this connection manager.
    pub fn is_mine(&self, to: Addressee) -> bool {
        match to {
            Addressee::Block(block) => block == self.local.block,
            Addressee::Service { port_space, port } => self.serves(port_space, port),
            Addressee::Anyone => true,
        }
    }

    /// Marks a message of an id to be sent.
    fn owe(&mut self, i: usize, what: u16) {
        self.ids[i].owes |= what;
        self.tx.set(i);
    }

    /// Drops the messages that an id has yet to send.
    fn drop_owed(&mut self, i: usize) {
        self.ids[i].owes = 0;
        self.tx.clear(i);
    }

    /// Raises an event, unless the program has destroyed the id.
    fn raise(&mut self, i: usize, event: u32) {
        if self.ids[i].orphan {
            return;
        }
        self.events.push(i, event);
        self.raised = true;
    }

    /// The interface of the device has changed: raises this event for each id that the program
    /// knows.
    pub fn interface_changed(&mut self, event: u32) {
        for i in 0..self.ids.len() {
            if self.pool.is_live(i) && !self.is_unheard(i) {
                self.raise(i, event);
            }
        }
    }

    /// Moves an id to a state, and ends its timer.
    fn enter(&mut self, i: usize, state: State) {
        self.move_to(i, state);
        self.wheel.cancel(i);
        if state == State::Dead && self.ids[i].orphan && self.ids[i].owes == 0 {
            self.free(i);
        }
    }

    /// Raises the last event of an id, and drops what it has yet to send.
    fn end_with_event(&mut self, i: usize, event: u32) {
        self.raise(i, event);
        self.drop_owed(i);
        self.enter(i, State::Dead);
    }

    /// Queues an answer without an id.
    fn reply(&mut self, to: &PeerAddr, tid: u64, what: ReplyKind) {
        if self.replies[0].push_back(Reply { to: *to, tid, what }).is_err() {
            self.counters.dropped += 1;
        }
        self.tx.set(self.replies_bit());
    }
}
