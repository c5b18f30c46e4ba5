//! Queues of a session in memory that tenant and router share, and the page of its doorbells.
//!
//! The router makes each queue's memory, a sealed file of a fixed size, with the object that the
//! queue is of: a QP's has its send and its receive queue, a CQ's and an SRQ's have one.
//!
//! ```text
//! control page    for each queue, a line each: head (the consumer's), and the word in which the
//!                 consumer asks to be told of the next entry (armed)
//! queue 0         slots, as core's rings have them (`SendWqe`, `RecvWqe`, `Wc`), on lines of their
//!                 own; in the first line of each, its owner
//! queue 1         the same
//! ```
//!
//! An entry becomes the consumer's by the owner of its slot, which says in which lap it was filled,
//! as the owner bit of a NIC's CQE does. So an entry of one line is one line that travels. Cursors
//! run freely, and each end keeps its own in private. A producer reads the consumer's head only
//! when the queue seems full: its line would travel for each message. A head must lie within a lap;
//! any other is [`Broken`] and ends the session. So would the line of a bell travel: the router
//! looks at the next slots of busy queues, and arms a queue when it stops. It copies a slot before
//! it judges it, so what it has checked does not change.

use super::call::QueueShape;
use super::limits;
use crate::map::Map;
use crate::memfd::{sealed_len, FIXED_SIZE};
use core::mem::{offset_of, MaybeUninit};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicU8, Ordering};
use gdrcore_core::arena::RawBytes;
use gdrcore_core::error::{Error, Result};
use gdrcore_core::refuse;
use gdrcore_core::ring::{Consumer, SlotRing};
use gdrcore_core::sleep::{Asleep, ANY};
use gdrcore_core::verbs::types::{Sge, Wc};
use gdrcore_core::verbs::wqe::{RecvWqe, SendWqe};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// The other end wrote a value that is never valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// Bytes of the control page.
const CONTROL: usize = 4096;
/// Most slots of a queue, and most bytes of one slot.
pub const SLOTS_MAX: u32 = 1 << 20;
/// See [`SLOTS_MAX`].
pub const STRIDE_MAX: u32 = 4096;
/// Words of doorbells.
const BELLS: usize = Doorbell::COUNT.div_ceil(u64::BITS as usize);

/// Bytes of a cache line. Each slot begins one.
const LINE: u32 = 64;
/// Bytes of a word, in which entries are copied.
const WORD: usize = size_of::<u64>();

/// An entry of a queue, which begins its slot, and the place of the slot's owner, which is 0 while
/// the entry is written.
///
/// # Safety
/// Any bytes are valid for it.
pub unsafe trait Entry: Copy {
    /// Its byte in the slot.
    const OWNER: usize;
}

// SAFETY: integers.
unsafe impl Entry for SendWqe {
    const OWNER: usize = in_first_line::<SendWqe>(offset_of!(SendWqe, owner));
}

// SAFETY: integers.
unsafe impl Entry for RecvWqe {
    const OWNER: usize = in_first_line::<RecvWqe>(offset_of!(RecvWqe, owner));
}

// SAFETY: integers.
unsafe impl Entry for Wc {
    /// Behind it.
    const OWNER: usize = in_first_line::<Wc>(size_of::<Wc>());
}

/// A byte that travels with the entry.
const fn in_first_line<E>(at: usize) -> usize {
    assert!(at < LINE as usize && size_of::<E>() <= LINE as usize);
    at
}

#[repr(C, align(128))]
struct Line<T>(T);

#[repr(C)]
struct Cursors {
    head: Line<AtomicU32>,
    armed: Line<Asleep>,
}

#[repr(C)]
struct ControlPage {
    queues: [Cursors; 2],
}

#[repr(C)]
struct Bells {
    asleep: Line<Asleep>,
    /// A bit for each word of `bells` that has one set.
    rung: AtomicU64,
    bells: [AtomicU64; BELLS],
    cpu: Line<AtomicU32>,
}

const _: () = assert!(BELLS <= u64::BITS as usize);
const _: () = assert!(size_of::<ControlPage>() <= CONTROL && size_of::<Bells>() <= CONTROL);

/// The memory of one or two queues.
#[derive(Debug)]
pub struct QueueMap {
    map: Map,
    shapes: [QueueShape; 2],
    /// Of the first slot of each queue, its offset in the map.
    first: [usize; 2],
    /// This end's own cursors. The tenant's: of a queue that it posts to, before which its requests
    /// are the router's; of a CQ, the head. The router's: of a CQ, the head that it has read last.
    cursors: [AtomicU32; 2],
}

impl QueueShape {
    /// The shape of a queue whose slots have at least `stride` bytes.
    pub fn of_slots(capacity: u32, stride: u32) -> QueueShape {
        QueueShape { capacity, stride: stride.next_multiple_of(LINE) }
    }

    /// The shapes of an object that has this queue alone: a CQ, an SRQ.
    pub fn alone(self) -> [QueueShape; 2] {
        [self, QueueShape::default()]
    }

    /// Bytes of the queue.
    fn bytes(self) -> usize {
        self.capacity as usize * self.stride as usize
    }

    fn is_legal(self) -> bool {
        let empty = self.capacity == 0;
        empty
            || (self.capacity.is_power_of_two()
                && self.capacity <= SLOTS_MAX
                && self.stride <= STRIDE_MAX
                && self.stride.is_multiple_of(LINE)
                && self.stride > 0)
    }
}

impl QueueMap {
    /// Makes the memory, for the router; and its descriptor, for the tenant.
    ///
    /// # Errors
    /// [`Error::Invalid`]: more slots than [`SLOTS_MAX`], or longer ones than [`STRIDE_MAX`]. As
    /// [`Map::with_file`].
    pub fn create(shapes: [QueueShape; 2]) -> Result<(QueueMap, OwnedFd)> {
        let len = Self::bytes(shapes)?;
        let (map, fd) = Map::with_file(c"gdrcore-queue", len)?;
        Ok((QueueMap::over(map, shapes), fd))
    }

    /// Maps what the router has made.
    ///
    /// # Errors
    /// [`Error::Access`]: the descriptor is no sealed memory of this size. As [`QueueMap::create`].
    pub fn open(fd: BorrowedFd<'_>, shapes: [QueueShape; 2]) -> Result<QueueMap> {
        let len = Self::bytes(shapes)?;
        if sealed_len(fd.as_raw_fd(), FIXED_SIZE) != Some(len as u64) {
            return Err(Error::Access);
        }
        let map = Map::shared(fd.as_raw_fd(), 0, len, true)?;
        Ok(QueueMap::over(map, shapes))
    }

    fn over(map: Map, shapes: [QueueShape; 2]) -> QueueMap {
        let first = [CONTROL, CONTROL + shapes[0].bytes()];
        QueueMap { map, shapes, first, cursors: Default::default() }
    }

    /// Bytes of the memory of these queues.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub fn bytes(shapes: [QueueShape; 2]) -> Result<usize> {
        if !shapes.iter().all(|s| s.is_legal()) {
            let [a, b] = shapes.map(|s| (s.capacity, s.stride));
            return Err(refuse!(Invalid, "queues of {a:?} and {b:?} slots and bytes: too large"));
        }
        Ok(CONTROL + shapes.iter().map(|s| s.bytes()).sum::<usize>())
    }

    fn control(&self) -> &ControlPage {
        // SAFETY: the map has the control page, is aligned to a page and lives as long as `self`;
        // there are atomics only, for which any bits are valid.
        unsafe { &*self.map.as_ptr().cast::<ControlPage>() }
    }

    fn head(&self, k: usize) -> &AtomicU32 {
        &self.control().queues[k].head.0
    }

    /// The queues.
    pub fn shapes(&self) -> [QueueShape; 2] {
        self.shapes
    }

    /// Slots of the first queue.
    pub fn capacity(&self) -> u32 {
        self.shapes[0].capacity
    }

    /// The word in which the consumer of a queue asks to be told of the next entry: the tenant, of
    /// a CQ, for an event; the router, of any other, for its bell.
    pub fn armed(&self, k: usize) -> &Asleep {
        &self.control().queues[k].armed.0
    }

    /// Offset of a slot in the map. The queue has slots.
    #[inline]
    fn slot(&self, k: usize, index: u32) -> usize {
        let QueueShape { capacity, stride } = self.shapes[k];
        self.first[k] + (index & (capacity - 1)) as usize * stride as usize
    }

    /// Whose a slot is.
    #[inline]
    fn owner<E: Entry>(&self, k: usize, index: u32) -> &AtomicU8 {
        let at = self.slot(k, index) + E::OWNER;
        // SAFETY: the slot lies in the map, which lives as long as `self`, and has a line at least,
        // in which its owner is. Any bits are valid.
        unsafe { &*self.map.as_ptr().add(at).cast::<AtomicU8>() }
    }

    /// The owner of a slot that is filled: another one in each lap, and never 0.
    #[inline]
    fn filled(&self, k: usize, index: u32) -> u8 {
        1 + u8::from(index & self.shapes[k].capacity != 0)
    }

    /// Whether a slot has been given to the consumer in this lap.
    #[inline]
    fn is_given<E: Entry>(&self, k: usize, index: u32) -> bool {
        self.owner::<E>(k, index).load(Ordering::Acquire) == self.filled(k, index)
    }

    /// Gives a slot that was written to the consumer.
    #[inline]
    fn give<E: Entry>(&self, k: usize, index: u32) {
        self.owner::<E>(k, index).store(self.filled(k, index), Ordering::Release);
    }

    /// The consumer's end of a queue: how many entries wait behind its own head, `most` at most.
    #[inline]
    pub fn waiting<E: Entry>(&self, k: usize, head: u32, most: u32) -> u32 {
        let most = most.min(self.shapes[k].capacity);
        let mut n = 0;
        while n < most && self.is_given::<E>(k, head.wrapping_add(n)) {
            n += 1;
        }
        n
    }

    /// The router's end of a send or receive queue: a copy of the entry of a slot. The tenant may
    /// write it meanwhile: then the copy has words of both, and each was read once.
    #[inline]
    pub fn entry<E: Entry>(&self, k: usize, index: u32) -> E {
        // SAFETY: the slot lies in the map, which lives as long as `self`, begins a line and has at
        // least one, which is enough for an entry. The file's size is fixed, and a page of it that
        // is gone comes anew.
        unsafe { copy_of_shared(self.map.as_ptr().add(self.slot(k, index))) }
    }

    /// Copies the pieces that follow the entry of a slot, all of `to`. False: the slot has fewer.
    /// As [`QueueMap::entry`].
    #[inline]
    pub fn pieces<E: Entry>(&self, k: usize, index: u32, to: &mut [Sge]) -> bool {
        let most = (self.shapes[k].stride as usize - size_of::<E>()) / size_of::<Sge>();
        let first = self.slot(k, index) + size_of::<E>();
        for (n, to) in to.iter_mut().take(most).enumerate() {
            let at = first + n * size_of::<Sge>();
            // SAFETY: as in `entry`: the slot has `most` pieces behind the entry, of integers that
            // are aligned as it is.
            *to = unsafe { copy_of_shared(self.map.as_ptr().add(at)) };
        }
        to.len() <= most
    }

    /// Where the inline bytes are that follow the entry of a slot. `None`: the slot has fewer. The
    /// other end may write them meanwhile.
    #[inline]
    pub fn inline<E: Entry>(&self, k: usize, index: u32, bytes: u64) -> Option<u64> {
        let most = self.shapes[k].stride as usize - size_of::<E>();
        let first = self.slot(k, index) + size_of::<E>();
        (bytes <= most as u64).then(|| (self.map.as_ptr().addr() + first) as u64)
    }

    /// Gives the slots before `head` back to the tenant.
    #[inline]
    pub fn release(&self, k: usize, head: u32) {
        self.head(k).store(head, Ordering::Release);
    }

    /// The router's end of a CQ: slots behind its own tail that are known to be free; 0: there is
    /// none.
    ///
    /// # Errors
    /// [`Broken`]: of the head, which is read where no free slot is known.
    #[inline]
    pub fn room(&self, tail: u32) -> Result<u32, Broken> {
        let [seen, _] = &self.cursors;
        let free = |head| self.capacity().checked_sub(tail.wrapping_sub(head)).ok_or(Broken);
        match free(seen.load(Ordering::Relaxed))? {
            0 => {
                let head = self.head(0).load(Ordering::Acquire);
                let room = free(head)?;
                seen.store(head, Ordering::Relaxed);
                Ok(room)
            }
            known => Ok(known),
        }
    }

    /// Writes a completion into the slot at the tail, which [`QueueMap::room`] found free, and
    /// gives it to the tenant.
    #[inline]
    pub fn put(&self, tail: u32, wc: &Wc) {
        // SAFETY: as in `completion`; the slot is the router's until it is given.
        unsafe { self.map.as_ptr().add(self.slot(0, tail)).cast::<Wc>().write(*wc) };
        self.give::<Wc>(0, tail);
    }

    /// Whether the tenant has armed the CQ before it could see what was put: it must get an event.
    /// Its word is cleared.
    #[inline]
    pub fn must_tell(&self) -> bool {
        self.armed(0).must_wake(ANY)
    }

    /// Gives the slots of a send or receive queue to the tenant's ring.
    pub fn install<H: Copy>(&self, k: usize, ring: &SlotRing<H>) {
        let QueueShape { capacity, stride } = self.shapes[k];
        // SAFETY: the slots of queue `k` lie in the map; the result of `add` is inside of it.
        let at = unsafe { self.map.as_ptr().add(self.first[k]) };
        let region = RawBytes::from_raw(at, self.shapes[k].bytes());
        // SAFETY: the slots are this ring's alone in this process. The router reads those that are
        // given to it, by copies. They are aligned to a cache line. Zeroes, as any bits, are valid
        // for the headers, which are integers. The ring is not in use yet, as its object has just
        // been made.
        unsafe { ring.install(region, capacity, stride) };
    }

    /// The tenant's end of a send or receive queue: takes back the slots that the router has
    /// released, unless `one` request is to be posted and there is room.
    ///
    /// # Errors
    /// [`Broken`].
    #[inline]
    pub fn reclaim<H: Copy>(
        &self,
        k: usize,
        taken: &mut Consumer<'_, H>,
        one: bool,
    ) -> Result<(), Broken> {
        if one && taken.ready() < self.shapes[k].capacity {
            return Ok(());
        }
        let released = self.head(k).load(Ordering::Acquire).wrapping_sub(taken.head());
        if released > taken.len() {
            return Err(Broken);
        }
        taken.release(released);
        Ok(())
    }

    /// Gives the router what was posted to a ring. True: the router has armed the queue, and its
    /// bell must ring; its word is cleared. One thread at a time.
    #[inline]
    pub fn submit<E: Entry + Copy>(&self, k: usize, ring: &SlotRing<E>) -> bool {
        let posted = ring.tail();
        let mut next = self.cursors[k].load(Ordering::Relaxed);
        while next != posted {
            self.give::<E>(k, next);
            next = next.wrapping_add(1);
        }
        self.cursors[k].store(next, Ordering::Relaxed);
        self.armed(k).must_wake(ANY)
    }

    /// The tenant's end of a CQ: takes completions. Returns how many. One thread at a time.
    #[inline]
    pub fn poll(&self, wc: &mut [Wc]) -> usize {
        let [cursor, _] = &self.cursors;
        let first = cursor.load(Ordering::Relaxed);
        let mut head = first;
        for to in wc {
            if !self.is_given::<Wc>(0, head) {
                break;
            }
            *to = self.completion(head);
            head = head.wrapping_add(1);
        }
        if head != first {
            cursor.store(head, Ordering::Relaxed);
            self.release(0, head);
        }
        head.wrapping_sub(first) as usize
    }

    /// A completion that is the tenant's.
    #[inline]
    fn completion(&self, at: u32) -> Wc {
        // SAFETY: the slot lies in the map, and begins a line. Any bits are valid for a completion,
        // which is integers. The router writes the slot after its release alone.
        unsafe { self.map.as_ptr().add(self.slot(0, at)).cast::<Wc>().read() }
    }

    /// The tenant's end of a CQ: takes out the completions of a queue pair; the others stay in
    /// their order. One thread at a time, which does not poll meanwhile. May allocate.
    pub fn purge(&self, qpn: u32) {
        let [cursor, _] = &self.cursors;
        let head = cursor.load(Ordering::Relaxed);
        let all = self.waiting::<Wc>(0, head, u32::MAX);
        let mut kept: Vec<Wc> = (0..all).map(|k| self.completion(head.wrapping_add(k))).collect();
        kept.retain(|wc| wc.qp_num != qpn);
        let first = head.wrapping_add(all - kept.len() as u32);
        for (k, wc) in (0..).zip(&kept) {
            self.put(first.wrapping_add(k), wc);
        }
        cursor.store(first, Ordering::Relaxed);
        self.release(0, first);
    }
}

/// A copy of a value in memory that another process may write: each word is read once.
///
/// # Safety
/// `at` is aligned to a word and readable for a `T`, for which any bytes are valid.
#[inline]
unsafe fn copy_of_shared<T: Copy>(at: *const u8) -> T {
    const {
        assert!(size_of::<T>().is_multiple_of(WORD) && align_of::<T>() == WORD);
    }
    let mut copy = MaybeUninit::<T>::uninit();
    for n in 0..size_of::<T>() / WORD {
        // SAFETY: a word of the value, and of its copy.
        unsafe {
            let word = (*at.cast::<AtomicU64>().add(n)).load(Ordering::Relaxed);
            copy.as_mut_ptr().cast::<u64>().add(n).write(word);
        }
    }
    // SAFETY: all of it is written, and any bytes are valid.
    unsafe { copy.assume_init() }
}

/// The doorbell of a queue, by the index of its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbell {
    /// Of the sends of a queue pair.
    Send(u32),
    /// Of its receives.
    Receive(u32),
    /// Of an SRQ.
    Srq(u32),
}

impl Doorbell {
    /// Doorbells of a session.
    pub const COUNT: usize = (2 * limits::QP + limits::SRQ) as usize;

    /// Its number, below [`Doorbell::COUNT`].
    #[inline]
    pub fn number(self) -> u32 {
        match self {
            Doorbell::Send(qp) => 2 * qp,
            Doorbell::Receive(qp) => 2 * qp + 1,
            Doorbell::Srq(srq) => 2 * limits::QP + srq,
        }
    }

    /// The doorbell of a number.
    #[inline]
    pub fn of(number: u32) -> Doorbell {
        match number.checked_sub(2 * limits::QP) {
            Some(srq) => Doorbell::Srq(srq),
            None if number.is_multiple_of(2) => Doorbell::Send(number / 2),
            None => Doorbell::Receive(number / 2),
        }
    }
}

/// The page of a session's doorbells: a bit for each queue that has rung, the word in which the
/// router says that it sleeps, and the CPU on which it runs.
#[derive(Debug)]
pub struct DoorbellPage(Map);

impl DoorbellPage {
    /// Makes the page, for the router; and its descriptor, for the tenant.
    ///
    /// # Errors
    /// As [`Map::with_file`].
    pub fn create() -> Result<(DoorbellPage, OwnedFd)> {
        let (map, fd) = Map::with_file(c"gdrcore-door", CONTROL)?;
        Ok((DoorbellPage(map), fd))
    }

    /// Maps what the router has made.
    ///
    /// # Errors
    /// [`Error::Access`]: the descriptor is no sealed memory of this size. As [`Map::shared`].
    pub fn open(fd: BorrowedFd<'_>) -> Result<DoorbellPage> {
        if sealed_len(fd.as_raw_fd(), FIXED_SIZE) != Some(CONTROL as u64) {
            return Err(Error::Access);
        }
        Map::shared(fd.as_raw_fd(), 0, CONTROL, true).map(DoorbellPage)
    }

    fn bells(&self) -> &Bells {
        // SAFETY: as in `QueueMap::control`.
        unsafe { &*self.0.as_ptr().cast::<Bells>() }
    }

    /// The router's word.
    pub fn asleep(&self) -> &Asleep {
        &self.bells().asleep.0
    }

    /// The router has begun to run on another CPU.
    pub fn set_cpu(&self, cpu: u32) {
        self.bells().cpu.0.store(cpu, Ordering::Relaxed);
    }

    /// The CPU on which the router ran last.
    #[inline]
    pub fn cpu(&self) -> u32 {
        self.bells().cpu.0.load(Ordering::Relaxed)
    }

    /// Rings the bell of a queue. True: the router sleeps, and the caller must wake it.
    #[inline]
    pub fn ring(&self, bell: u32) -> bool {
        let Bells { bells, rung, .. } = self.bells();
        let word = bell as usize / 64 % BELLS;
        bells[word].fetch_or(1 << (bell % 64), Ordering::SeqCst);
        // If the bit is set, the router has yet to read this word and will see the bell.
        if rung.load(Ordering::SeqCst) >> word & 1 == 0 {
            rung.fetch_or(1 << word, Ordering::SeqCst);
        }
        self.asleep().must_wake(ANY)
    }

    /// Whether a bell has rung.
    pub fn has_rung(&self) -> bool {
        self.bells().rung.load(Ordering::Acquire) != 0
    }

    /// Takes the bells that have rung, and calls `each` with their numbers.
    #[inline]
    pub fn answer(&self, mut each: impl FnMut(u32)) {
        let Bells { bells, rung, .. } = self.bells();
        if rung.load(Ordering::Relaxed) == 0 {
            return;
        }
        // The tenant may have set bits that mean no word.
        let mut words = rung.swap(0, Ordering::SeqCst);
        while let Some(word) = bells.get(words.trailing_zeros() as usize) {
            let first = words.trailing_zeros() * 64;
            words &= words - 1;
            let mut bits = word.swap(0, Ordering::SeqCst);
            while bits != 0 {
                each(first + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    const SHAPES: [QueueShape; 2] =
        [QueueShape { capacity: 4, stride: 128 }, QueueShape { capacity: 8, stride: 64 }];

    fn pair(shapes: [QueueShape; 2]) -> (QueueMap, QueueMap) {
        let (router, fd) = QueueMap::create(shapes).unwrap();
        let tenant = QueueMap::open(fd.as_fd(), shapes).unwrap();
        (router, tenant)
    }

    fn post(ring: &SlotRing<SendWqe>, wr_id: u64) -> bool {
        let mut end = ring.producer().unwrap();
        end.push(SendWqe { wr_id, ..SendWqe::default() }).is_ok()
    }

    #[test]
    fn what_is_posted_is_taken_once_in_its_order() {
        let (router, tenant) = pair(SHAPES);
        let ring = SlotRing::<SendWqe>::new();
        tenant.install(0, &ring);
        let mut head = 0u32;
        for lap in 0..3u64 {
            for i in 0..4 {
                assert!(post(&ring, lap * 4 + i));
            }
            assert_eq!(router.waiting::<SendWqe>(0, head, 8), 0, "not submitted");
            tenant.submit(0, &ring);
            assert!(!post(&ring, 99), "full");
            for i in 0..4 {
                assert_eq!(router.waiting::<SendWqe>(0, head, 8), 4 - i);
                assert_eq!(router.waiting::<SendWqe>(0, head, 1), 1, "at most");
                assert_eq!(router.entry::<SendWqe>(0, head).wr_id, lap * 4 + u64::from(i));
                head += 1;
            }
            router.release(0, head);
            tenant.reclaim(0, &mut ring.consumer().unwrap(), true).unwrap();
        }
    }

    #[test]
    fn a_slot_has_no_more_pieces_and_inline_bytes_than_it_is_long() {
        let (router, tenant) = pair(SHAPES);
        let ring = SlotRing::<SendWqe>::new();
        tenant.install(0, &ring);
        let sge = Sge { addr: 1 << 40, length: 2, lkey: 3 };
        let mut end = ring.producer().unwrap();
        end.slot(1).sges_mut(4).fill(sge);
        let mut pieces = [Sge::default(); 5];
        assert!(router.pieces::<SendWqe>(0, 1, &mut pieces[..4]) && pieces[..4] == [sge; 4]);
        assert!(!router.pieces::<SendWqe>(0, 1, &mut pieces), "a fifth");
        assert_eq!(pieces[4], Sge::default(), "of the next slot");
        let inline = |slot, bytes| router.inline::<SendWqe>(0, slot, bytes);
        assert!(inline(1, 64).is_some() && inline(1, 65).is_none());
        assert_eq!(inline(1, u64::MAX), None);
        assert_eq!(inline(1, 0).zip(inline(0, 0)).map(|(b, a)| b - a), Some(128));
    }

    #[test]
    fn a_bell_rings_for_the_first_request_after_the_router_has_armed_its_queue() {
        let (router, tenant) = pair(SHAPES);
        let ring = SlotRing::<SendWqe>::new();
        tenant.install(0, &ring);
        for armed in [false, true, false] {
            if armed {
                router.armed(0).announce(ANY);
            }
            assert!(post(&ring, 1));
            assert_eq!(tenant.submit(0, &ring), armed);
        }
    }

    fn cq_of(capacity: u32) -> (QueueMap, QueueMap) {
        pair(QueueShape::of_slots(capacity, size_of::<Wc>() as u32).alone())
    }

    #[test]
    fn completions_arrive_whole_and_arm_once() {
        let (router, tenant) = cq_of(2);
        let wc = Wc {
            wr_id: u64::MAX - 1,
            status: 1,
            opcode: 2,
            vendor_err: 3,
            byte_len: 4,
            imm_data: 5,
            qp_num: 6,
            src_qp: 7,
            wc_flags: 8,
            pkey_index: 9,
            slid: 10,
            sl: 11,
            dlid_path_bits: 12,
        };
        tenant.armed(0).announce(ANY);
        for tail in 0..5u32 {
            // It reads the head when no free slot is known.
            assert_eq!(router.room(tail), Ok(2 - tail % 2));
            router.put(tail, &wc);
            assert_eq!(router.must_tell(), tail == 0, "armed for one event");
            let mut got = [Wc::default(); 4];
            assert_eq!((tenant.poll(&mut got), got[0]), (1, wc));
            assert_eq!(tenant.poll(&mut got), 0);
        }
        for (tail, room) in [(5, 1), (6, 1), (7, 0)] {
            assert_eq!(router.room(tail), Ok(room));
            if room > 0 {
                router.put(tail, &wc);
            }
        }
        let mut got = [Wc::default(); 4];
        assert_eq!((tenant.poll(&mut got[..1]), tenant.poll(&mut got)), (1, 1), "as asked for");
    }

    #[test]
    fn completions_of_one_queue_pair_are_taken_out() {
        let (router, tenant) = cq_of(4);
        let (mut tail, mut got) = (0u32, [Wc::default(); 4]);
        // Each lap begins at another slot.
        for lap in 0..5u64 {
            for (i, qp_num) in [7, 8, 7, 9].into_iter().enumerate() {
                let wc = Wc { wr_id: lap * 4 + i as u64, qp_num, ..Wc::default() };
                assert_ne!(router.room(tail), Ok(0));
                router.put(tail, &wc);
                tail += 1;
            }
            tenant.purge(7);
            assert_eq!((router.room(tail), tenant.poll(&mut got)), (Ok(2), 2));
            assert_eq!(got[..2].iter().map(|wc| wc.wr_id % 4).collect::<Vec<_>>(), [1, 3]);
            router.put(tail, &Wc { qp_num: 7, ..Wc::default() });
            tail += 1;
            tenant.purge(7);
            // What was known to be free is: all but those of before.
            assert_eq!((router.room(tail), tenant.poll(&mut got)), (Ok(1), 0));
        }
    }

    #[test]
    fn a_head_that_leaves_its_lap_is_broken() {
        let (router, tenant) = pair(SHAPES);
        let ring = SlotRing::<SendWqe>::new();
        tenant.install(0, &ring);
        for lie in [5, 1 << 31] {
            tenant.head(0).store(lie, Ordering::Relaxed);
            assert_eq!((router.room(3), router.room(4)), (Ok(1), Err(Broken)), "head {lie}");
            assert_eq!(
                tenant.reclaim(0, &mut ring.consumer().unwrap(), true),
                Ok(()),
                "there is room"
            );
            assert_eq!(
                tenant.reclaim(0, &mut ring.consumer().unwrap(), false),
                Err(Broken),
                "head {lie}"
            );
        }
    }

    #[test]
    fn a_slot_is_the_consumer_s_in_its_lap_alone_whatever_its_owner_says() {
        let (router, tenant) = pair(SHAPES);
        let laps = [(0, 1), (4, 2), (8, 1), (u32::MAX - 3, 2)];
        for owner in 0..=u8::MAX {
            for slot in 0..4 {
                tenant.owner::<SendWqe>(0, slot).store(owner, Ordering::Relaxed);
            }
            for (head, filled) in laps {
                // All slots of this lap, and none of the next one.
                let n = if owner == filled { 4 } else { 0 };
                assert_eq!(router.waiting::<SendWqe>(0, head, u32::MAX), n, "{owner} at {head}");
            }
        }
        assert_eq!(
            QueueMap::create([QueueShape::default(); 2]).unwrap().0.waiting::<Wc>(0, 0, 9),
            0
        );
    }

    #[test]
    fn memory_of_another_size_and_impossible_shapes_are_refused() {
        let (_, fd) = QueueMap::create(SHAPES).unwrap();
        let larger = [SHAPES[0], QueueShape { capacity: 16, stride: 64 }];
        assert_eq!(QueueMap::open(fd.as_fd(), larger).err(), Some(Error::Access));
        assert_eq!(DoorbellPage::open(fd.as_fd()).err(), Some(Error::Access));
        for (capacity, stride) in [(3, 64), (2 << 20, 64), (4, 0), (4, 48), (4, 8192)] {
            let shapes = QueueShape { capacity, stride }.alone();
            assert_eq!(QueueMap::bytes(shapes), Err(Error::Invalid), "{capacity} {stride}");
        }
    }

    #[test]
    fn each_queue_has_a_bell_of_its_own() {
        let queue_pairs = (0..limits::QP).flat_map(|n| [Doorbell::Send(n), Doorbell::Receive(n)]);
        let all = queue_pairs.chain((0..limits::SRQ).map(Doorbell::Srq));
        assert_eq!(all.clone().count(), Doorbell::COUNT);
        for (number, bell) in (0..).zip(all) {
            assert_eq!((bell.number(), Doorbell::of(number)), (number, bell));
        }
    }

    #[test]
    fn each_bell_is_heard_once_and_wakes_a_sleeper() {
        let (router, fd) = DoorbellPage::create().unwrap();
        let tenant = DoorbellPage::open(fd.as_fd()).unwrap();
        let last = Doorbell::Srq(limits::SRQ - 1).number();
        assert!(!tenant.ring(3) && !tenant.ring(last) && router.has_rung());
        let mut heard = Vec::new();
        router.answer(|bell| heard.push(bell));
        router.answer(|bell| heard.push(bell));
        assert_eq!((heard, router.has_rung()), (vec![3, last], false));
        router.asleep().announce(ANY);
        assert!(tenant.ring(5) && !tenant.ring(6));
        router.set_cpu(7);
        assert_eq!(tenant.cpu(), 7);
    }
}
