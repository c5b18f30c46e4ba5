//! Implements [`Port`] for [`UdpPort`]: each call is the inherent one.

use super::UdpPort;
use crate::addr::Endpoint;
use crate::port::{Burst, Port, PortCounters, PortError, RxPacket, TxOutcome};
use gdrcore_core::error::Result;
use gdrcore_core::roce::peer::ConnectedFlow;
use std::os::fd::RawFd;

impl Port for UdpPort {
    #[inline]
    fn fd(&self) -> RawFd {
        self.fd()
    }

    #[inline]
    fn local(&self) -> &Endpoint {
        self.local()
    }

    fn link_mtu(&self) -> u32 {
        self.link_mtu()
    }

    fn route_mtu(&self, to: &Endpoint) -> Option<u32> {
        self.route_mtu(to)
    }

    #[inline]
    fn counters(&self) -> PortCounters {
        self.counters()
    }

    #[inline]
    fn tx_space(&mut self) -> Option<(&mut [u8], Option<&ConnectedFlow>)> {
        self.space_and_flow()
    }

    #[inline]
    fn tx_commit(&mut self, b: Burst) {
        self.tx_commit(b);
    }

    #[inline]
    fn tx_flush(&mut self) -> TxOutcome {
        self.tx_flush()
    }

    #[inline]
    fn max_segments(&self, dst: &Endpoint) -> u16 {
        self.max_segments(dst)
    }

    #[inline(always)]
    fn tx_single(&mut self, b: &Burst, for_connected: bool) -> bool {
        if for_connected {
            self.tx_connected(b)
        } else {
            self.tx_now(b)
        }
    }

    fn doubt_connected(&mut self) {
        self.doubt_connected();
    }

    #[inline]
    fn rx_poll(&mut self) -> usize {
        self.rx_poll()
    }

    #[inline]
    fn rx_get(&self, i: usize) -> RxPacket<'_> {
        self.rx_get(i)
    }

    fn show_headers(&mut self) {
        self.show_headers();
    }

    #[inline]
    fn has_error(&self) -> bool {
        self.has_error()
    }

    #[inline]
    fn take_error(&mut self) -> Option<PortError> {
        self.take_error()
    }

    fn drain_errors(&mut self) -> usize {
        self.drain_errors()
    }

    fn group_join(&mut self, gid: &[u8; 16]) -> Result<Option<RawFd>> {
        self.group_join(gid)
    }

    fn groups_retain(&mut self, keep: impl Fn(&[u8; 16]) -> bool) {
        self.groups_retain(keep);
    }

    #[inline]
    fn has_groups(&self) -> bool {
        self.has_groups()
    }

    fn group_poll(&mut self, k: usize) -> Option<[u8; 16]> {
        self.group_poll(k)
    }
}
