//! Counters of a QP and of a device, named like rxe's `hw_counters` where they mean the same.

use core::ffi::CStr;

macro_rules! counters {
    ($($(#[$m:meta])* $name:ident,)*) => {
        /// Monotonic event counts; wrap at 2^64. Layout: one `u64` each, in this order,
        /// append-only.
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters { $($(#[$m])* pub $name: u64,)* }
        impl Counters {
            /// The names, in the order of the fields.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),*];
            /// Nothing counted.
            pub const ZERO: Counters = Counters { $($name: 0),* };
            /// The same for C.
            pub const C_NAMES: &'static [&'static CStr] = &[$(
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                }
            ),*];
            /// The values, in the order of [`Counters::NAMES`].
            pub fn values(&self) -> [u64; Self::NAMES.len()] { [$(self.$name),*] }
            /// The counters that have these values, in the same order.
            pub fn of_values(values: [u64; Self::NAMES.len()]) -> Counters {
                let [$($name),*] = values;
                Counters { $($name),* }
            }
            /// The field of a name.
            pub fn field(&mut self, name: &str) -> Option<&mut u64> {
                match name {
                    $(stringify!($name) => Some(&mut self.$name),)*
                    _ => None,
                }
            }
            /// Adds the counts of `other`.
            pub fn add(&mut self, other: &Counters) {
                $(self.$name = self.$name.wrapping_add(other.$name);)*
            }
        }
    };
}

counters! {
    /// Packets sent.
    sent_pkts,
    /// Packets received and accepted for a QP.
    rcvd_pkts,
    /// Bytes sent, from BTH to ICRC.
    sent_bytes,
    /// Bytes received, from BTH to ICRC.
    rcvd_bytes,
    /// Requests that were received again (as responder).
    duplicate_request,
    /// Requests ahead of the expected PSN (as responder).
    out_of_seq_request,
    /// RNR NAKs received.
    rcvd_rnr_err,
    /// RNR NAKs sent.
    send_rnr_err,
    /// NAK sequence errors received.
    rcvd_seq_err,
    /// ACK timeouts.
    retry_timeouts,
    /// Packets sent again.
    retransmitted_pkts,
    /// Operations that ended with RETRY_EXC_ERR.
    retry_exceeded_err,
    /// Operations that ended with RNR_RETRY_EXC_ERR.
    retry_rnr_exceeded_err,
    /// Bursts that the port could not send (socket errors).
    send_err,
    /// SEND messages completed as requester.
    rdma_sends,
    /// SEND messages, and WRITEs with immediate data, completed as responder.
    rdma_recvs,
    /// WRITE messages completed as requester.
    rdma_writes,
    /// READ messages completed as requester.
    rdma_reads,
    /// Atomics and ATOMIC WRITEs completed as requester.
    rdma_atomics,
    /// Payload bytes of completed requests.
    request_bytes,
    /// NAKs with code 0x61 to 0x63 received.
    rcvd_nak_err,
    /// NAKs with code 0x60 to 0x63 sent.
    send_nak_err,
    /// Packets for no QP of this device, or for one that is not ready to receive.
    rcvd_no_qp,
    /// Packets whose ICRC is wrong.
    rcvd_icrc_err,
    /// Packets too short or with headers that do not parse.
    rcvd_malformed,
    /// Packets with another P_Key, Q_Key or source address than the QP's.
    rcvd_refused,
    /// UC and UD messages dropped because no receive request or no room in the CQ was left.
    rcvd_dropped,
    /// Times a QP waited because the window to its peer was closed.
    window_closed,
    /// Times a completion waited for room in its CQ.
    cq_full,
    /// Congestion notifications (CNP) received that changed a rate.
    rp_cnp_handled,
    /// Congestion notifications sent.
    np_cnp_sent,
    /// Packets that arrived with an ECN congestion mark.
    np_ecn_marked,
    /// System calls that sent.
    port_tx_calls,
    /// System calls that received.
    port_rx_calls,
    /// Times the send buffer of the socket was full.
    port_tx_full,
    /// Network refusals (ICMP) that the socket reported.
    port_icmp_err,
    /// Links that refused segmentation offload.
    port_gso_refused,
    /// Connection manager: messages received.
    cm_rcvd,
    /// Connection manager: messages sent.
    cm_sent,
    /// Connection manager: messages sent again because no answer came.
    cm_retries,
    /// Connection manager: requests refused.
    cm_rejected,
    /// Connection manager: messages that could not be read, belonged to no id, or found no room.
    cm_dropped,
    /// Congestion notifications received without effect: not of the peer, too soon, more than
    /// packets were sent, or DCQCN is off.
    rp_cnp_ignored,
    /// Packets for other devices of the same address that came here and were passed on.
    share_passed,
    /// Packets for other devices of the same address that came here and were dropped: their QPN has
    /// no owner, or there was no room.
    share_dropped,
    /// Packets of this device that came to another device of the address, which passed them on.
    share_by_detour,
    /// Times the kernel refused to steer packets to the devices of the address, which then forward
    /// them.
    share_refused,
    /// WRITE messages that were placed into memory of the peer that this process has mapped,
    /// without a packet.
    mapped_writes,
    /// WRITE messages that the kernel copied into memory of the peer by its address, without a
    /// packet.
    carried_writes,
    /// Packets in the capture file.
    capture_frames,
    /// Packets that are not in it: its disk was full or failed, which ends a capture.
    capture_lost,
    /// Keepalives sent.
    keepalives,
    /// QPNs that were used again before their rest was over, because no other was left.
    qpn_reused_early,
    /// Connection manager: requests and unconfirmed connections that were given up for others.
    cm_evicted,
    /// Answers for a PSN that is not outstanding.
    rcvd_stray,
    /// Packets for a besieged queue pair that were dropped after a check of their headers alone.
    rcvd_throttled,
    /// Connection manager: refusals received.
    cm_rejects_rcvd,
    /// DC: associations that an initiator has made.
    dc_opened,
    /// DC: associations that an initiator has ended, because another target was next or the target
    /// asked for it.
    dc_closed,
    /// DC: associations that a target has taken.
    dc_accepted,
    /// DC: associations that a target has refused for a wrong access key.
    dc_refused_key,
    /// DC: associations that a target has put off, because no responder context was free.
    dc_busy,
    /// DC: idle initiators that a target has asked to end their association.
    dc_reclaimed,
    /// DC: initiators that asked a target about an association which it no longer has.
    dc_gone,
    /// Queue pairs that were made with a CQ of another engine of their device.
    qps_of_two_engines,
}
impl Counters {
    /// Counts packets that have left, of `bytes` from BTH to ICRC together.
    #[inline(always)]
    pub fn count_sent(&mut self, packets: u32, bytes: u64) {
        self.sent_pkts += u64::from(packets);
        self.sent_bytes += bytes;
    }

    /// Counts packets that were accepted. `bytes`: as in [`Counters::count_sent`].
    #[inline(always)]
    pub fn count_received(&mut self, packets: u32, bytes: u64) {
        self.rcvd_pkts += u64::from(packets);
        self.rcvd_bytes += bytes;
    }
}
