//! The kernel's counters of a port, under the names of the soft device's counters.

use core::ffi::{c_char, CStr};
use core::fmt::Write;

use crate::abi::NAME_MAX;
use crate::sys::Fd;
use gdrcore_core::counters::Counters;

/// A field, and the files below a port's folder that count it, one for each driver. The first
/// existing file counts.
struct Line {
    field: fn(&mut Counters) -> &mut u64,
    files: &'static [&'static str],
}

/// rxe's names first, then mlx5's, then those that every driver has.
const LINES: &[Line] = &[
    Line {
        field: |c| &mut c.sent_pkts,
        files: &["hw_counters/sent_pkts", "counters/port_xmit_packets"],
    },
    Line {
        field: |c| &mut c.rcvd_pkts,
        files: &["hw_counters/rcvd_pkts", "counters/port_rcv_packets"],
    },
    Line { field: |c| &mut c.duplicate_request, files: &["hw_counters/duplicate_request"] },
    Line {
        field: |c| &mut c.out_of_seq_request,
        files: &["hw_counters/out_of_seq_request", "hw_counters/out_of_sequence"],
    },
    Line { field: |c| &mut c.rcvd_rnr_err, files: &["hw_counters/rcvd_rnr_err"] },
    Line { field: |c| &mut c.send_rnr_err, files: &["hw_counters/send_rnr_err"] },
    Line {
        field: |c| &mut c.rcvd_seq_err,
        files: &["hw_counters/rcvd_seq_err", "hw_counters/packet_seq_err"],
    },
    Line {
        field: |c| &mut c.retry_timeouts,
        files: &["hw_counters/ack_deffered", "hw_counters/local_ack_timeout_err"],
    },
    Line {
        field: |c| &mut c.retry_exceeded_err,
        files: &["hw_counters/retry_exceeded_err", "hw_counters/req_transport_retries_exceeded"],
    },
    Line {
        field: |c| &mut c.retry_rnr_exceeded_err,
        files: &["hw_counters/retry_rnr_exceeded_err", "hw_counters/rnr_nak_retry_err"],
    },
    Line {
        field: |c| &mut c.send_err,
        files: &["hw_counters/send_err", "counters/port_xmit_discards"],
    },
    Line { field: |c| &mut c.rdma_sends, files: &["hw_counters/rdma_sends"] },
    Line { field: |c| &mut c.rdma_recvs, files: &["hw_counters/rdma_recvs"] },
    Line { field: |c| &mut c.rcvd_icrc_err, files: &["hw_counters/rx_icrc_encapsulated"] },
    Line { field: |c| &mut c.rp_cnp_handled, files: &["hw_counters/rp_cnp_handled"] },
    Line { field: |c| &mut c.np_cnp_sent, files: &["hw_counters/np_cnp_sent"] },
    Line { field: |c| &mut c.np_ecn_marked, files: &["hw_counters/np_ecn_marked_roce_packets"] },
];

/// The counters of a port; those that the driver does not have are 0.
pub fn counters(name: &[c_char; NAME_MAX], port: u32) -> Counters {
    let mut c = Counters::default();
    let bytes = name.map(|b| b as u8);
    let Some(name) = CStr::from_bytes_until_nul(&bytes).ok().and_then(|n| n.to_str().ok()) else {
        return c;
    };
    for line in LINES {
        if let Some(n) = line.files.iter().find_map(|file| number(name, port, file)) {
            *(line.field)(&mut c) = n;
        }
    }
    c
}

/// The number in one file.
fn number(name: &str, port: u32, file: &str) -> Option<u64> {
    let mut path = heapless::String::<256>::new();
    write!(path, "/sys/class/infiniband/{name}/ports/{port}/{file}\0").ok()?;
    let path = CStr::from_bytes_with_nul(path.as_bytes()).ok()?;
    let mut text = [0; 32];
    let n = Fd::file(path).ok()?.read(&mut text).ok()?;
    core::str::from_utf8(text.get(..n)?).ok()?.trim().parse().ok()
}
