//! The connection manager: how two programs that know only an address and a port get their QPs
//! connected.
//!
//! Its messages (REQ, REP, RTU, REJ, DREQ, DREP, MRA; SIDR_REQ and SIDR_REP for UD) travel as MADs
//! from QP1 to QP1, and its service ids and private data are those of rdma_cm, so the other end may
//! be a Linux kernel (IBTA volume 1, chapter 12 and annex A11).
//!
//! Sans-IO and without QPs: it is told messages ([`Cm::handle_mad`]), asked for messages
//! ([`Cm::poll_transmit`]) and for its next deadline, and keeps a fixed table of ids. A program
//! drives it by [`Cm::listen`], [`Cm::connect`], [`Cm::accept`] and so on, and hears what happened
//! from [`Cm::take_event`]. Moving the QPs is the caller's: [`Cm::qp_attr`] says how.
//!
//! Files: `mad` is bytes, `types` what programs see, `conn` one id and its states, `program` what
//! programs ask, `input` messages in, `admit` what strangers may occupy, `early` requests that come
//! before their listener, `output` messages out and time.
//!
//! Hostile peers: every table is bounded and what finds no room is dropped and counted, or refused
//! with NO_RESOURCES; a message counts for a connection only if both communication ids and the
//! source address are right, and whoever does not see our messages must guess 22 bits of ours; each
//! message in causes at most one message out at once, and what has not shown that it receives is
//! sent at most [`REP_RETRIES`] copies more; timeouts that a peer dictates are bounded by
//! [`TIMEOUT_MAX`] and [`SERVICE_TIMEOUT`].

mod admit;
mod conn;
mod early;
mod input;
pub mod mad;
mod output;
mod program;
#[cfg(test)]
mod tests;
pub mod types;

pub use types::*;

pub use conn::State;

use crate::arena::{RawSlice, Walk};
use crate::bitmap::Bitmap;
use crate::config::Config;
use crate::error::Result;
use crate::pool::Pool;
use crate::random::{Random, Shuffle};
use crate::reason::refuse;
use crate::roce::peer::PeerAddr;
use crate::verbs::shared::tag;
use crate::verbs::types::Handle;
use crate::verbs::NONE;
use crate::wheel::Wheel;
use crate::wire::ack_timeout_ns;
use admit::{Bounds, Known, Load};
use conn::Id;
use early::{Early, EARLY};

const _: () = {
    use mad::{private_len, IP_HEADER_LEN};
    assert!(CONNECT_DATA_MAX == private_len::REQ - IP_HEADER_LEN);
    assert!(ACCEPT_DATA_MAX == private_len::REP);
    assert!(REJECT_DATA_MAX == private_len::REJ);
    assert!(UD_CONNECT_DATA_MAX == private_len::SIDR_REQ - IP_HEADER_LEN);
    assert!(UD_ACCEPT_DATA_MAX == private_len::SIDR_REP);
};

/// Timeout code within which a peer shall answer, where the program names none: 0.54 s.
pub const RESPONSE_TIMEOUT: u8 = 17;
/// Largest timeout code that a peer may dictate: 4.3 s.
pub const TIMEOUT_MAX: u8 = 20;
/// Timeout code of our MRAs, and the largest that a peer's MRA may ask for: 69 s.
pub const SERVICE_TIMEOUT: u8 = 24;
/// How often a message is sent again.
pub const MAX_RETRIES: u8 = 15;
/// How often a REP is sent again to a peer that has not shown that it receives.
pub const REP_RETRIES: u8 = 4;
/// A request for a port whose listener has gone, or is announced, is not refused for this long, but
/// kept: programs that end a listener to begin another (perftest does between two connections, a
/// second and more apart), or that tell their port before they listen (qperf), are not overtaken by
/// their peers.
pub const LISTENER_GRACE_NS: u64 = 4_000_000_000;
/// Listeners that are remembered so.
const FORMER: usize = 8;
/// Answers to nobody in particular that may wait to be sent.
const REPLIES: usize = 64;
/// Purpose of the manager's random numbers.
const PURPOSE: u64 = 0x636d_5f69_6473;

/// This device, as its peers know it.
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
    /// Whether a node GUID is that of a device of this kind at an address.
    pub is_kin: fn(u64, &PeerAddr) -> bool,
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
            is_kin: |_, _| false,
            block: 0,
        }
    }
}

/// Bits of a communication id, the upper ones, that name the block of whoever made it.
pub const BLOCK_BITS: u32 = (1u32 << 24).ilog2() - crate::config::QPN_UNIT.ilog2();
/// The bits below them.
const ID_MASK: u32 = u32::MAX >> BLOCK_BITS;

/// For whom a message is, of several devices with one address.
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
    /// It does not say.
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

    /// Reads it from a message as it travels. Anything is legal input.
    pub fn of(mad: &[u8]) -> Addressee {
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

/// The address that a request is made to, where it says one: by its path, or by rdma_cm's header in
/// its private data. Other messages name a connection. Anything is legal input.
pub fn asked_address(mad: &[u8]) -> Option<[u8; 16]> {
    use mad::{IpHeader, Mad, Message};
    match Mad::parse(mad).ok()?.message {
        Message::Req(m) => Some(m.remote_gid),
        Message::SidrReq(m) => IpHeader::parse(m.private_data).map(|header| header.dst),
        _ => None,
    }
}

/// Replaces an address in a request as it travels, in its paths and in rdma_cm's header: for a
/// device that peers know by another address. Other messages name none. Anything is legal input.
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
    /// Messages sent again for want of an answer.
    pub retries: u64,
    /// REJs, and SIDR_REPs that refuse, sent.
    pub rejected: u64,
    /// REJs, and SIDR_REPs that refuse, received by who had asked or accepted.
    pub rejects_rcvd: u64,
    /// Messages that could not be read, belonged to nobody, or found no room.
    pub dropped: u64,
    /// Requests and unconfirmed connections that were given up so that others find room.
    pub evicted: u64,
}

/// A request that this side has refused, for the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// Address of the peer whose request it was.
    pub peer: [u8; 16],
    /// The port that was asked for; 0: not one of rdma_cm's, or it was an answer that was refused.
    pub port: u16,
    /// Why: `reject`, for a datagram service `sidr_status`.
    pub reason: u16,
    /// It was a request for a datagram service.
    pub datagram: bool,
}

/// Refusals that are kept until they are taken; further ones are only counted.
pub const REFUSALS: usize = 8;

/// An answer that no id stands behind.
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
    /// DREP to a DREQ that belongs to no connection (any more).
    Drep { local_id: u32, remote_id: u32 },
    /// SIDR_REP that refuses.
    Sidr { request_id: u32, status: u8, service_id: u64 },
}

/// A connection manager.
pub struct Cm {
    ids: RawSlice<Id>,
    pool: Pool,
    /// By id: keyed hashes of what a peer's message would find it by ([`Cm::find`]).
    finds: RawSlice<[u32; 2]>,
    /// Ids that listen.
    listening: Bitmap,
    /// Requests, and connections whose peer has not shown that it receives.
    half_open: Bitmap,
    bounds: Bounds,
    /// Half-open ids by source.
    load: RawSlice<Load>,
    /// Addresses that have shown that they receive.
    known: RawSlice<Known>,
    /// Ids that count against the strangers' share of the table.
    guests: u32,
    /// When unconfirmed connections are looked through again.
    confirm_at: u64,
    /// Ids with messages to send.
    tx: Bitmap,
    /// Ids with events.
    events: Bitmap,
    /// One timer per id.
    wheel: Wheel,
    replies: RawSlice<Reply>,
    reply_head: usize,
    reply_len: usize,
    /// Where the search for the next event begins, so that no id starves another.
    event_cursor: usize,
    tx_cursor: usize,
    random: Random,
    /// Which communication id an index has.
    order: Shuffle,
    local: Local,
    /// Ports whose listeners have gone, and until when that counts.
    former: [(u16, u64); FORMER],
    former_next: usize,
    /// Requests that came before their listeners.
    early: RawSlice<Early>,
    refusals: heapless::Vec<Refusal, REFUSALS>,
    /// An event was raised since somebody looked.
    raised: bool,
    counters: CmCounters,
}

fn timeout_ns(code: u8) -> u64 {
    ack_timeout_ns(code.max(1)).unwrap_or(u64::MAX)
}

impl Cm {
    /// Lays out a connection manager of `config.max_cm_ids` ids, rounded up to a multiple of 64,
    /// and of more for strangers.
    ///
    /// # Errors
    /// [`crate::Error::NoMemory`] where it does not fit.
    pub fn carve(w: &mut Walk, config: &Config) -> Result<Cm> {
        let bounds = Bounds::of(config);
        let n = bounds.slots();
        Ok(Cm {
            ids: w.slice(n, Id::new(0, 0))?,
            pool: Pool::carve(w, tag::CM_ID, n, n)?,
            finds: w.slice(n, [0; 2])?,
            listening: Bitmap::carve(w, n)?,
            half_open: Bitmap::carve(w, n)?,
            bounds,
            load: w.slice(admit::LOADS, 0)?,
            known: w.slice(admit::KNOWN, Known::default())?,
            guests: 0,
            confirm_at: 0,
            tx: Bitmap::carve(w, n)?,
            events: Bitmap::carve(w, n)?,
            wheel: Wheel::carve(w, n, n)?,
            replies: w.slice(
                REPLIES,
                Reply {
                    to: PeerAddr::default(),
                    tid: 0,
                    what: ReplyKind::Sidr { request_id: 0, status: 0, service_id: 0 },
                },
            )?,
            reply_head: 0,
            reply_len: 0,
            event_cursor: 0,
            tx_cursor: 0,
            random: Random::new(config.seed, PURPOSE),
            order: Shuffle::new(Random::new(config.seed, !PURPOSE), 32 - BLOCK_BITS),
            local: Local::default(),
            former: [(0, 0); FORMER],
            former_next: 0,
            early: w.slice(EARLY, Early::none())?,
            refusals: heapless::Vec::new(),
            raised: false,
            counters: CmCounters::default(),
        })
    }

    /// Says what this device is. Before the first message.
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

    /// Whether an event was raised since the last call: a sleeper is to be woken.
    pub fn take_raised(&mut self) -> bool {
        core::mem::take(&mut self.raised)
    }

    /// Where an id stands.
    ///
    /// # Errors
    /// [`crate::Error::StaleHandle`].
    pub fn state(&self, id: Handle) -> Result<State> {
        Ok(self.ids[self.check(id)?].state)
    }

    /// Whether these QPNs, of this device and of a peer, are those of a conversation with a device
    /// of this kind.
    pub fn is_kin(&self, qpn: u32, remote_qpn: u32) -> bool {
        let is = |i: usize| {
            let id = &self.ids[i];
            id.is_conversation()
                && id.local_qpn == qpn
                && id.remote_qpn == remote_qpn
                && (self.local.is_kin)(id.remote_guid, &id.peer)
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

    /// Takes an event. Events of one id come in their order; ids take turns.
    pub fn take_event(&mut self) -> Option<CmEvent> {
        let i = self.events.next_from(self.event_cursor).or_else(|| self.events.next_from(0))?;
        self.event_cursor = i + 1;
        let id = &mut self.ids[i];
        let number = id.events.trailing_zeros();
        id.events &= id.events.wrapping_sub(1);
        if id.events == 0 {
            self.events.clear(i);
        }
        let id = &self.ids[i];
        let listener = match id.listener {
            NONE => 0,
            l => self.pool.handle(l as usize),
        };
        Some(id.event(number, self.pool.handle(i), listener))
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

    /// The conversation that a communication id of ours names.
    fn by_local_id(&self, local_id: u32) -> Option<usize> {
        let i = (self.order.place_of(local_id & ID_MASK) & self.index_mask()) as usize;
        let id = self.ids.get(i)?;
        (self.pool.is_live(i) && id.is_conversation() && id.local_id == local_id).then_some(i)
    }

    /// A new id of the program's; where `max_cm_ids` are in use, one whose exchange could be
    /// finished without is taken.
    fn alloc(&mut self, fresh: Id) -> Result<usize> {
        if !self.has_room() {
            let n = self.bounds.own;
            return Err(refuse!(NoMemory, "max_cm_ids: {n} are in use; destroy some, or raise it"));
        }
        let (_, i) = self.pool.alloc()?;
        self.ids[i] = fresh;
        Ok(i)
    }

    /// Gives an id back.
    fn free(&mut self, i: usize) {
        self.move_to(i, State::Dead);
        self.release_guest(i);
        self.wheel.cancel(i);
        self.tx.clear(i);
        self.events.clear(i);
        self.listening.clear(i);
        self.finds[i] = [0; 2];
        self.ids[i] = Id { former_id: self.ids[i].former_id, ..Id::new(0, 0) };
        self.pool.free(i);
    }

    /// The bits of a communication id's place in the order that are its index: as many as the table
    /// needs, at most 17.
    fn index_mask(&self) -> u32 {
        (self.ids.len().next_power_of_two() - 1) as u32
    }

    /// A communication id, never 0: the device's block (10 bits), then the number (22 bits) that a
    /// secret order has at the place whose low bits are the index and whose upper bits are drawn.
    /// So an index is found without a search, and neither it nor the ids before tell anybody the
    /// next one.
    fn fresh_comm_id(&mut self, i: usize) -> u32 {
        let mask = self.index_mask();
        loop {
            let place = self.random() as u32 & ID_MASK & !mask | i as u32;
            let id = u32::from(self.local.block) << (32 - BLOCK_BITS) | self.order.at(place);
            // Not the one that the index has had last: late messages name it.
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

    /// Owes a message of an id.
    fn owe(&mut self, i: usize, what: u16) {
        self.ids[i].owes |= what;
        self.tx.set(i);
    }

    /// What an id still owed is overtaken by events.
    fn cancel(&mut self, i: usize) {
        self.ids[i].owes = 0;
        self.tx.clear(i);
    }

    /// Raises an event, unless nobody is there to take it.
    fn raise(&mut self, i: usize, event: u32) {
        let id = &mut self.ids[i];
        if id.orphan {
            return;
        }
        id.events |= 1 << event;
        self.events.set(i);
        self.raised = true;
    }

    /// Moves an id on. What waited for an answer waits no more.
    fn enter(&mut self, i: usize, state: State) {
        self.move_to(i, state);
        self.wheel.cancel(i);
        if state == State::Dead && self.ids[i].orphan && self.ids[i].owes == 0 {
            self.free(i);
        }
    }

    /// Queues an answer that no id stands behind.
    fn reply(&mut self, to: &PeerAddr, tid: u64, what: ReplyKind) {
        let n = self.replies.len();
        if self.reply_len >= n {
            self.counters.dropped += 1;
            return;
        }
        let at = (self.reply_head + self.reply_len) % n;
        self.replies[at] = Reply { to: *to, tid, what };
        self.reply_len += 1;
    }
}
