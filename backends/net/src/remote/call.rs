//! Control calls of a remote device: each a request and an answer, as words of 64 bits.
//!
//! A datagram of a request: a word with the call's number (low half) and the request's (high half),
//! then the arguments. That of an answer: a word with the errno (low half) and the request's
//! number, a word with the number of words that follow, these words, and the reason of a refusal as
//! text. A field of any width is a word. A word that does not fit its field, too few words or too
//! many make no call: nothing here trusts its input.
//!
//! A request of the number [`BELL`] alone has no answer: it wakes the router.

use gdrcore_core::cm::types::{CmEvent, ConnParam};
use gdrcore_core::counters::Counters;
use gdrcore_core::device::{self, AsyncEvent, DeviceAttr, Leaks, MrAttr, SrqAttr};
use gdrcore_core::error::{Error, Result};
use gdrcore_core::verbs::cause::Cause;
use gdrcore_core::verbs::types::{AhAttr, Handle, QpAttr, QpCap, QpInit};

/// Most bytes of a message.
pub const MESSAGE_MAX: usize = 4096;
/// Most bytes of the reason in an answer.
const REASON_MAX: usize = 512;
/// The number of a request that only wakes.
pub const BELL: u32 = 0;

/// A value as words.
pub trait Words: Sized {
    /// Appends its words.
    fn put(&self, to: &mut Vec<u64>);
    /// Takes it from the front; `None`: the words are not of this type.
    fn take(from: &mut Unread<'_>) -> Option<Self>;
}

/// Words that were not read yet.
#[derive(Debug)]
pub struct Unread<'w>(&'w [u64]);

impl Unread<'_> {
    fn next(&mut self) -> Option<u64> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }
}

/// The value of exactly these words.
pub fn whole<T: Words>(words: &[u64]) -> Option<T> {
    let mut unread = Unread(words);
    T::take(&mut unread).filter(|_| unread.0.is_empty())
}

macro_rules! numbers {
    ($($type:ty),*) => {$(
        impl Words for $type {
            fn put(&self, to: &mut Vec<u64>) {
                to.push(u64::from(*self));
            }
            fn take(from: &mut Unread<'_>) -> Option<Self> {
                from.next()?.try_into().ok()
            }
        }
    )*};
}

numbers!(u8, u16, u32, u64);

impl Words for () {
    fn put(&self, _: &mut Vec<u64>) {}
    fn take(_: &mut Unread<'_>) -> Option<()> {
        Some(())
    }
}

impl<A: Words, B: Words> Words for (A, B) {
    fn put(&self, to: &mut Vec<u64>) {
        self.0.put(to);
        self.1.put(to);
    }
    fn take(from: &mut Unread<'_>) -> Option<Self> {
        Some((A::take(from)?, B::take(from)?))
    }
}

impl<A: Words, B: Words, C: Words> Words for (A, B, C) {
    fn put(&self, to: &mut Vec<u64>) {
        self.0.put(to);
        self.1.put(to);
        self.2.put(to);
    }
    fn take(from: &mut Unread<'_>) -> Option<Self> {
        Some((A::take(from)?, B::take(from)?, C::take(from)?))
    }
}

impl Words for i32 {
    fn put(&self, to: &mut Vec<u64>) {
        (*self as u32).put(to);
    }
    fn take(from: &mut Unread<'_>) -> Option<Self> {
        Some(u32::take(from)? as i32)
    }
}

impl Words for bool {
    fn put(&self, to: &mut Vec<u64>) {
        to.push(u64::from(*self));
    }
    fn take(from: &mut Unread<'_>) -> Option<Self> {
        match from.next()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl<T: Words> Words for Option<T> {
    fn put(&self, to: &mut Vec<u64>) {
        self.is_some().put(to);
        self.iter().for_each(|value| value.put(to));
    }
    fn take(from: &mut Unread<'_>) -> Option<Self> {
        let is_some = bool::take(from)?;
        Some(if is_some { Some(T::take(from)?) } else { None })
    }
}

/// Nothing: what a struct refers to travels beside it.
impl Words for &'static [u8] {
    fn put(&self, _: &mut Vec<u64>) {}
    fn take(_: &mut Unread<'_>) -> Option<Self> {
        Some(&[])
    }
}

/// Eight to a word; the bytes behind the last are zero.
impl<const N: usize> Words for [u8; N] {
    fn put(&self, to: &mut Vec<u64>) {
        to.extend(self.chunks(8).map(|part| {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            u64::from_le_bytes(word)
        }));
    }
    fn take(from: &mut Unread<'_>) -> Option<Self> {
        let mut all = [0; N];
        for part in all.chunks_mut(8) {
            let word = from.next()?.to_le_bytes();
            let (bytes, behind) = word.split_at(part.len());
            part.copy_from_slice(bytes);
            behind.iter().all(|b| *b == 0).then_some(())?;
        }
        Some(all)
    }
}

impl<T: Words> Words for Vec<T> {
    fn put(&self, to: &mut Vec<u64>) {
        to.push(self.len() as u64);
        self.iter().for_each(|item| item.put(to));
    }
    fn take(from: &mut Unread<'_>) -> Option<Self> {
        // An item has a word at least, so the end of the message ends a list that says more.
        (0..from.next()?).map(|_| T::take(from)).collect()
    }
}

impl Words for Counters {
    fn put(&self, to: &mut Vec<u64>) {
        self.values().to_vec().put(to);
    }
    /// New counters are at the end: an end that is older has fewer, and a newer one more.
    fn take(from: &mut Unread<'_>) -> Option<Self> {
        let mut values = Vec::<u64>::take(from)?;
        values.resize(Counters::NAMES.len(), 0);
        Some(Counters::of_values(*values.first_chunk()?))
    }
}

macro_rules! fields {
    ($($type:ident$(<$life:lifetime>)?: $($field:ident)+;)+) => {$(
        impl Words for $type$(<$life>)? {
            fn put(&self, to: &mut Vec<u64>) {
                $(self.$field.put(to);)+
            }
            fn take(from: &mut Unread<'_>) -> Option<Self> {
                $(let $field = Words::take(from)?;)+
                Some($type { $($field),+ })
            }
        }
    )+};
}

/// A queue in the memory that an answer brings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueShape {
    /// Slots, a power of two; 0: there is no such queue.
    pub capacity: u32,
    /// Bytes of a slot.
    pub stride: u32,
}

/// The request of a region: [`gdrcore_core::device::MrReg`] with the places of its pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewRegion {
    /// Protection domain.
    pub pd: Handle,
    /// The program's address of its first byte.
    pub addr: u64,
    /// Length in bytes.
    pub length: u64,
    /// The address that work requests use for it.
    pub iova: u64,
    /// Access flags.
    pub access: u32,
    /// Its pages in the session's file, or in that of a descriptor beside the call, in their order:
    /// offset and bytes.
    pub pieces: Vec<(u64, u64)>,
}

impl NewRegion {
    /// That of a registration, whose pages lie there.
    pub fn of(reg: &device::MrReg, pieces: Vec<(u64, u64)>) -> NewRegion {
        let device::MrReg { pd, addr, length, iova, access, .. } = *reg;
        NewRegion { pd, addr, length, iova, access, pieces }
    }
}

/// Memory of a GPU, whose allocation a descriptor beside the call names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuMemory {
    /// The GPU's PCI address, as text that ends with a zero.
    pub bdf: [u8; 16],
    /// Offset of the region's first byte in the allocation.
    pub offset: u64,
    /// Bytes of the allocation.
    pub size: u64,
}

/// The route by which the router's device reaches memory of a GPU, and why it is no other one:
/// numbers of `gdrcore_cuda::route::RouteChoice`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuRoute {
    /// The route.
    pub route: u32,
    /// Why not a dma-buf.
    pub no_dma_buf: u32,
    /// Why not nvidia-peermem.
    pub no_peermem: u32,
    /// The last refusal.
    pub code: i32,
}

/// A new queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MadeQp {
    /// Its handle.
    pub handle: Handle,
    /// Its number.
    pub qpn: u32,
    /// The sizes given.
    pub cap: QpCap,
    /// Its send queue.
    pub sq: QueueShape,
    /// Its receive queue.
    pub rq: QueueShape,
}

/// A new SRQ: `xrcd` and `cq` are 0 unless it is of an XRC domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewSrq {
    /// Protection domain.
    pub pd: Handle,
    /// XRC domain.
    pub xrcd: Handle,
    /// Its CQ.
    pub cq: Handle,
    /// Its sizes.
    pub attr: SrqAttr,
}

/// [`ConnParam`] without its private data, and that.
pub type CmParam = (ConnParam<'static>, Vec<u8>);

fields! {
    ConnParam<'static>: qpn qp_type psn responder_resources initiator_depth retry_count rnr_retry
        ack_timeout response_timeout path_mtu srq qkey private_data;
    CmEvent: event arrival status local id listener qp context peer remote_qpn qkey local_port
        remote_port qp_type path_mtu responder_resources initiator_depth retry_count rnr_retry srq
        data_len data;
    DeviceAttr: max_msg_size node_guid max_pd max_mr max_mr_size max_cq max_qp max_srq max_ah
        max_qp_wr max_cqe max_sge max_inline max_rd_atomic active_mtu udp_port qpn_base gid scope_id
        own_port port_state has_gid;
    MrAttr: addr length iova lkey rkey access provider;
    SrqAttr: max_wr max_sge srq_limit;
    Leaks: pd mr mw cq qp srq ah;
    AsyncEvent: event reserved handle;
    Cause: code wc_status peer qpn remote_qpn psn counter arg0 arg1 time_ns;
    AhAttr: dgid scope_id udp_port hop_limit traffic_class flow_label;
    QpCap: max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data;
    QpInit: pd send_cq recv_cq srq xrcd dc_key qp_type sq_sig_all cap;
    QpAttr: qp_state cur_qp_state path_mtu qkey rq_psn sq_psn dest_qp_num qp_access_flags ah cap
        pkey_index port_num en_sqd_async_notify sq_draining max_rd_atomic max_dest_rd_atomic
        min_rnr_timer timeout retry_cnt rnr_retry peer_is_soft rate_limit_bytes_per_s;
    QueueShape: capacity stride;
    NewRegion: pd addr length iova access pieces;
    GpuMemory: bdf offset size;
    GpuRoute: route no_dma_buf no_peermem code;
    MadeQp: handle qpn cap sq rq;
    NewSrq: pd xrcd cq attr;
}

/// A control call.
pub trait Call {
    /// Its number.
    const NUMBER: u32;
    /// Its arguments.
    type In: Words;
    /// Its result.
    type Out: Words;
}

macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident = $number:literal: $in:ty => $out:ty;)+) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug)]
            pub struct $name;
            impl Call for $name {
                const NUMBER: u32 = $number;
                type In = $in;
                type Out = $out;
            }
        )+
        /// The numbers of all calls.
        pub const NUMBERS: &[u32] = &[$($number),+];
    };
}

calls! {
    /// `Device::query`.
    Query = 1: () => DeviceAttr;
    /// `Device::path_mtu`.
    PathMtu = 2: AhAttr => u32;
    /// `Device::counters`.
    ReadCounters = 3: () => Counters;
    /// `Device::qp_counters`.
    QpCounters = 4: Handle => Counters;
    /// `Device::last_cause`.
    LastCause = 5: () => Cause;
    /// `Device::qp_cause`.
    QpCause = 6: Handle => Cause;
    /// `Device::pd_alloc`.
    PdAlloc = 7: () => Handle;
    /// `Device::pd_dealloc`.
    PdDealloc = 8: Handle => ();
    /// `Device::xrcd_alloc`.
    XrcdAlloc = 9: () => Handle;
    /// `Device::xrcd_dealloc`.
    XrcdDealloc = 10: Handle => ();
    /// The file of the session's memory, whose descriptor comes with it.
    File = 11: () => ();
    /// `Device::mr_reg`.
    MrReg = 12: NewRegion => (Handle, MrAttr);
    /// Registers memory of a GPU: a region without pieces, and the descriptor of the allocation.
    GpuMrReg = 61: (NewRegion, GpuMemory) => ((Handle, MrAttr), GpuRoute);
    /// Registers a dma-buf: a region of one piece of it, whose address is its offset there, and the
    /// descriptor.
    DmaBufMrReg = 64: NewRegion => (Handle, MrAttr);
    /// `Device::mr_dereg`.
    MrDereg = 13: Handle => ();
    /// `Device::mw_alloc`.
    MwAlloc = 14: (Handle, u32) => (Handle, u32);
    /// `Device::mw_dealloc`.
    MwDealloc = 15: Handle => ();
    /// `Device::ah_create`.
    AhCreate = 16: (Handle, AhAttr) => Handle;
    /// `Device::ah_destroy`.
    AhDestroy = 17: Handle => ();
    /// `Device::mcast_attach`.
    McastAttach = 18: (Handle, [u8; 16]) => ();
    /// `Device::mcast_detach`.
    McastDetach = 19: (Handle, [u8; 16]) => ();
    /// `Device::cq_create`: entries, and a completion channel or 0. The answer has the entries
    /// given, and a descriptor of the queue's memory.
    CqCreate = 20: (u32, Handle) => (Handle, u32, QueueShape);
    /// `Device::cq_resize`. The answer has new memory, in which the queue goes on after
    /// [`CqSwitch`].
    CqResize = 21: (Handle, u32) => (u32, QueueShape);
    /// The memory of the latest [`CqResize`] of a CQ is mapped: the queue goes on there.
    CqSwitch = 60: Handle => ();
    /// `Device::cq_destroy`.
    CqDestroy = 22: Handle => ();
    /// Arms a CQ for its next solicited completion alone; for any, its memory has a word.
    CqArmSolicited = 23: Handle => ();
    /// `Device::srq_create`; the answer has a descriptor.
    SrqCreate = 24: NewSrq => (Handle, SrqAttr, QueueShape);
    /// `Device::srq_modify`.
    SrqModify = 25: (Handle, u32) => ();
    /// `Device::srq_query`.
    SrqQuery = 26: Handle => SrqAttr;
    /// `Device::srq_number`.
    SrqNumber = 27: Handle => u32;
    /// `Device::srq_resize`: entries, and a limit. The answer has new memory, in which the queue
    /// goes on after [`SrqSwitch`].
    SrqResize = 62: (Handle, u32, Option<u32>) => (u32, QueueShape);
    /// The memory of the latest [`SrqResize`] of an SRQ is mapped, and nobody posts to it: the
    /// queue goes on there.
    SrqSwitch = 63: Handle => ();
    /// `Device::srq_destroy`.
    SrqDestroy = 28: Handle => ();
    /// `Device::qp_create`; the answer has a descriptor of both queues' memory.
    QpCreate = 29: QpInit => MadeQp;
    /// `Device::qp_modify`.
    QpModify = 30: (Handle, QpAttr, u32) => ();
    /// `Device::qp_query`.
    QpQuery = 31: Handle => (QpAttr, QpInit);
    /// `Device::qp_reset`.
    QpReset = 32: Handle => ();
    /// `Device::qp_destroy`.
    QpDestroy = 33: Handle => ();
    /// `Device::channel_create`; the answer has the socket of its events.
    ChannelCreate = 34: () => Handle;
    /// `Device::channel_destroy`.
    ChannelDestroy = 35: Handle => ();
    /// `Device::leaks`.
    CountLeaks = 36: () => Leaks;
    /// `Device::cq_purge`, of what the queue's memory has not yet.
    CqPurge = 37: (Handle, u32) => ();
    /// `Device::mr_rereg`.
    MrRereg = 38: (Handle, NewRegion) => MrAttr;
    /// Opens the session's connection manager; the answer has a socket that tells of events.
    CmOpen = 39: () => ();
    /// `CmDevice::create`: port space and context.
    CmCreate = 40: (u16, u64) => Handle;
    /// `CmDevice::set_context`.
    CmSetContext = 41: (Handle, u64) => ();
    /// `CmDevice::bind`.
    CmBind = 42: (Handle, u16) => u16;
    /// `CmDevice::announce`.
    CmAnnounce = 43: (Handle, bool) => ();
    /// `CmDevice::listen`.
    CmListen = 44: (Handle, u32) => ();
    /// `CmDevice::connect`: the id, the peer and its port; a queue pair or 0.
    CmConnect = 45: ((Handle, AhAttr, u16), Handle, CmParam) => ();
    /// `CmDevice::accept`.
    CmAccept = 46: (Handle, Handle, CmParam) => ();
    /// `CmDevice::establish`.
    CmEstablish = 47: Handle => ();
    /// `CmDevice::reject`.
    CmReject = 48: (Handle, Vec<u8>) => ();
    /// `CmDevice::disconnect`.
    CmDisconnect = 49: Handle => ();
    /// `CmDevice::destroy`.
    CmDestroy = 50: Handle => ();
    /// `CmDevice::qp_attr`.
    CmQpAttr = 51: (Handle, u32) => (QpAttr, u32);
    /// `CmDevice::event`.
    CmTakeEvent = 52: () => Option<CmEvent>;
}

/// Bits that tell apart errors of one errno, above it.
const STALE: u32 = 1 << 16;
const LIMIT: u32 = 1 << 17;

fn code_of(e: Error) -> u32 {
    let errno = e.errno() as u32 & 0xffff;
    match e {
        Error::StaleHandle => errno | STALE,
        Error::Limit => errno | LIMIT,
        _ => errno,
    }
}

fn error_of(code: u32) -> Error {
    match code {
        // No words: the answer has them.
        c if c & STALE != 0 => Error::StaleHandle,
        c if c & LIMIT != 0 => Error::Limit,
        c => Error::from_errno((c & 0xffff) as i32),
    }
}

fn word(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// The datagram of a request.
pub fn request<C: Call>(number: u32, arguments: &C::In) -> Vec<u8> {
    let mut words = vec![word(C::NUMBER, number)];
    arguments.put(&mut words);
    bytes(&words)
}

/// The datagram that only wakes.
pub fn bell() -> [u8; 8] {
    word(BELL, 0).to_le_bytes()
}

/// A datagram's words; `None`: it is no message.
fn words(bytes: &[u8]) -> Option<Vec<u64>> {
    let (chunks, rest) = bytes.as_chunks();
    let is_message = rest.is_empty() && !chunks.is_empty() && bytes.len() <= MESSAGE_MAX;
    is_message.then(|| chunks.iter().map(|c| u64::from_le_bytes(*c)).collect())
}

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// A request as it came: its call's number, its own, and its arguments. `None`: it is no request.
pub fn parse_request(bytes: &[u8]) -> Option<(u32, u32, Vec<u64>)> {
    let mut all = words(bytes)?;
    let head = all.remove(0);
    Some((head as u32, (head >> 32) as u32, all))
}

/// The datagram of an answer: the result's words, or the error and its reason.
pub fn answer(number: u32, result: Result<Vec<u64>>, reason: &str) -> Vec<u8> {
    let (code, words) = match result {
        Ok(words) => (0, words),
        Err(e) => (code_of(e), Vec::new()),
    };
    let mut all = vec![word(code, number), words.len() as u64];
    all.extend(words);
    let mut end = reason.len().min(REASON_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    let mut bytes = bytes(&all);
    if code != 0 {
        bytes.extend(&reason.as_bytes()[..end]);
    }
    bytes
}

/// The number of a request, and its result, or the error with its reason.
pub type Answer<T> = (u32, Result<T, (Error, String)>);

/// An answer as it came: the request's number, and its result or the error with its reason. `None`:
/// it is no answer.
pub fn parse_answer<T: Words>(bytes: &[u8]) -> Option<Answer<T>> {
    let (head, rest) = bytes.split_at_checked(16)?;
    let [head, len]: [u64; 2] = words(head)?.try_into().ok()?;
    let (code, number) = (head as u32, (head >> 32) as u32);
    if code != 0 {
        let reason = String::from_utf8_lossy(&rest[..rest.len().min(REASON_MAX)]).into_owned();
        return Some((number, Err((error_of(code), reason))));
    }
    let all = if rest.is_empty() { Vec::new() } else { words(rest)? };
    let result = (all.len() as u64 == len).then(|| whole(&all)).flatten()?;
    Some((number, Ok(result)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdrcore_core::cm::types::DATA_MAX;
    use gdrcore_core::refuse;
    use gdrcore_testkit::rng::Rng;

    fn round_trip<T: Words + PartialEq + core::fmt::Debug>(value: &T) {
        let mut all = Vec::new();
        value.put(&mut all);
        assert_eq!(whole::<T>(&all).as_ref(), Some(value));
        assert!(all.is_empty() || whole::<T>(&all[1..]).is_none(), "a word less of {value:?}");
        all.push(0);
        assert!(whole::<T>(&all).is_none(), "a word more of {value:?}");
    }

    #[test]
    fn values_are_the_same_behind_the_socket() {
        let ah = AhAttr { dgid: [7; 16], scope_id: 3, udp_port: 4791, ..AhAttr::default() };
        round_trip(&ah);
        round_trip(&QpAttr {
            ah,
            qp_state: 3,
            rate_limit_bytes_per_s: u64::MAX,
            ..Default::default()
        });
        round_trip(&MadeQp { handle: 5, qpn: 6, ..Default::default() });
        round_trip(&GpuRoute { route: 1, no_dma_buf: 2, no_peermem: 3, code: -4 });
        round_trip(&GpuMemory { bdf: *b"0000:b7:00.0\0\0\0\0", offset: 1, size: u64::MAX });
        round_trip(&NewRegion { pd: 9, pieces: vec![(0, 4096), (8192, 1)], ..Default::default() });
        round_trip(&Counters { sent_pkts: 5, ..Counters::ZERO });
        round_trip(&(true, -5i32, [3u8; 13]));
        let data = [7; 9];
        let param = ConnParam { psn: Some(9), qpn: 5, private_data: &data, ..Default::default() };
        round_trip(&Some(CmEvent { data: [3; DATA_MAX], srq: true, ..CmEvent::default() }));
        let (plain, beside) = (param.with_data(&[]), data.to_vec());
        round_trip(&(plain, beside.clone()));
        assert_eq!(plain.with_data(&beside), param);
        round_trip(&(1u64, SrqAttr::default(), QueueShape { capacity: 8, stride: 64 }));
    }

    #[test]
    fn an_answer_is_a_result_or_an_error_with_its_reason() {
        let mut words = Vec::new();
        (5u64, 6u32).put(&mut words);
        let ok = answer(7, Ok(words), "not said");
        assert_eq!(parse_answer::<(u64, u32)>(&ok), Some((7, Ok((5, 6)))));
        assert_eq!(parse_answer::<u64>(&ok), None, "a result of another call");
        for e in [Error::StaleHandle, Error::Invalid, Error::Limit, Error::NoMemory, Error::Os(71)]
        {
            let refused = refuse!(Invalid, "words");
            assert_eq!(refused, Error::Invalid);
            let bytes = answer(9, Err(e), "the reason");
            let expected = Some((9, Err((e, "the reason".to_string()))));
            assert_eq!(parse_answer::<u64>(&bytes), expected);
        }
        let long = answer(9, Err(Error::Invalid), &"ä".repeat(600));
        assert!(long.len() <= 16 + REASON_MAX);
    }

    #[test]
    fn counters_of_another_version_are_those_that_both_ends_have() {
        let mut values = [0; Counters::NAMES.len()];
        (values[0], values[1]) = (3, 5);
        let all = Counters::of_values(values);
        let mut words = Vec::new();
        all.put(&mut words);
        let newer: Vec<u64> = words.iter().copied().chain([7]).collect();
        let words_of = |len: usize| [&[len as u64], &newer[1..=len]].concat();
        let n = Counters::NAMES.len();
        for (len, what) in [(2, "older"), (n, "the same"), (n + 1, "newer")] {
            let counters = whole::<Counters>(&words_of(len)).map(|c| c.values());
            assert_eq!(counters, Some(all.values()), "{what}");
        }
    }

    #[test]
    fn numbers_of_calls_are_told_apart_and_none_is_the_bell() {
        let mut numbers = NUMBERS.to_vec();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!((numbers.len(), numbers.contains(&BELL)), (NUMBERS.len(), false));
        assert_eq!(parse_request(&bell()), Some((BELL, 0, Vec::new())));
    }

    #[test]
    fn a_list_longer_than_its_message_is_refused() {
        assert_eq!(whole::<Vec<u64>>(&[u64::MAX]), None);
        assert_eq!(whole::<Vec<(u64, u64)>>(&[2, 1, 1, 1]), None);
        assert_eq!(whole::<u32>(&[1 << 32]), None, "a word that does not fit its field");
    }

    #[test]
    fn no_bytes_panic() {
        let mut rng = Rng::new(48);
        for _ in 0..20_000 {
            let len = rng.below(300) as usize;
            let bytes = rng.bytes(len);
            if let Some((_, _, words)) = parse_request(&bytes) {
                let _ = whole::<NewRegion>(&words);
                let _ = whole::<(u64, QpAttr, u32)>(&words);
                let _ = whole::<QpInit>(&words);
            }
            let _ = parse_answer::<MadeQp>(&bytes);
            let _ = parse_answer::<Counters>(&bytes);
        }
    }
}
