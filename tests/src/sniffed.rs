//! What `bin/sniffer` captures in the network namespace of a host of a [`Lab`].

use crate::lab::Lab;
use crate::tools::Running;
use gdrcore_core::wire::grh::Fields;
use gdrcore_core::wire::ip::{V4, V6};
use std::path::Path;

/// Starts the program there, and waits until it captures into the file.
pub fn sniff(lab: &Lab, host: usize, sniffer: &Path, file: &Path) -> Running {
    let mut dump = Running::start(lab.privileged(host, sniffer).arg(file));
    dump.wait_for_output("listening");
    dump
}

/// The IP packets of a capture of Ethernet, as far as it goes.
pub fn packets(capture: &[u8]) -> Vec<&[u8]> {
    let mut rest = capture.get(24..).unwrap_or(&[]);
    let mut all = Vec::new();
    while let Some((head, more)) = rest.split_first_chunk::<16>() {
        let len = u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize;
        let Some((frame, more)) = more.split_at_checked(len) else { break };
        all.extend(frame.get(14..));
        rest = more;
    }
    all
}

/// A RoCEv2 packet.
pub struct Roce<'p> {
    /// The GID of its sender.
    pub from: [u8; 16],
    /// What its IP header has.
    pub header: Fields,
    /// Its bytes from the BTH on.
    pub bytes: &'p [u8],
}

/// Reads an IP packet; `None`: it is none of RoCEv2.
pub fn roce(ip: &[u8]) -> Option<Roce<'_>> {
    let (from, header, udp) = if let Some(h) = ip.first_chunk().and_then(V4::parse) {
        let header = Fields { flow_label: 0, traffic_class: h.tos, hop_limit: h.ttl };
        (gdrcore_core::wire::ip::gid_of_v4(h.src), header, ip.get(20..)?)
    } else {
        let h = ip.first_chunk().and_then(V6::parse)?;
        let V6 { flow_label, traffic_class, hop_limit, src, .. } = h;
        (src, Fields { flow_label, traffic_class, hop_limit }, ip.get(40..)?)
    };
    let is_roce = udp.len() >= 8 + 16 && udp[2..4] == gdrcore_net::addr::ROCE_PORT.to_be_bytes();
    is_roce.then(|| Roce { from, header, bytes: &udp[8..] })
}
