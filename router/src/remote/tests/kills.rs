//! Tenants that are killed between any two messages of their sessions.

use super::*;
use gdrcore_net::map::Map;
use std::os::fd::AsRawFd;

const TIMES: usize = 1000;

/// What a tenant does; an error when it is killed. Requests are under way at each call behind them.
fn live(device: &RemoteDevice) -> Result<()> {
    let shape = Shape { buffer: 1 << 14, depth: 16, ..Shape::default() };
    let (a, b) = connected(device, device, shape)?;
    let attr = SrqAttr { max_wr: 4, max_sge: 1, ..SrqAttr::default() };
    b.post_recv(1, 0, 64)?;
    for wr_id in 0..8 {
        a.post(wr_id, Op::Write(0, None), 0, 1 << 14)?;
    }
    let (srq, _) = device.srq_create(a.pd, &attr)?;
    let channel = device.channel_create()?;
    let (cq, _) = device.cq_create_on(16, channel)?;
    device.cq_resize(a.cq, 256)?;
    device.srq_resize(srq, 64, None)?;
    let (_map, fd) = Map::with_file(c"buffer", 4096)?;
    let access = access::LOCAL_WRITE;
    let reg = MrReg { pd: a.pd, addr: 0, length: 4096, iova: 0, access, provider: 0, cookie: 0 };
    device.mr_dereg(device.mr_reg_dmabuf(&reg, fd.as_raw_fd())?.0)?;
    let mw = device.mw_alloc(a.pd, 1)?.0;
    device.mw_dealloc(mw)?;
    device.cq_destroy(cq)?;
    device.srq_destroy(srq)?;
    device.channel_destroy(channel)?;
    a.destroy()?;
    b.destroy()
}

#[test]
fn a_tenant_that_is_killed_at_any_step_leaves_nothing_and_harms_nobody() {
    let running = Running::start();
    let neighbour = running.tenant(1);
    let (mut a, mut b) = connected(&neighbour, &neighbour, Shape::default()).unwrap();
    let before = running.server().leaks();
    // Messages from its start until it is killed; it has lived to its end.
    let (mut messages, mut lived) = (0, 0);
    for kill in 0..TIMES {
        let mut left = messages;
        let is_alive = move |from_tenant: bool, _: &mut _| {
            left -= usize::from(from_tenant && left > 0);
            !from_tenant || left > 0
        };
        let tenant = running.tenant_through(2, is_alive);
        let ended = tenant.and_then(|device| live(&device));
        messages = if ended.is_ok() { 0 } else { messages + 1 };
        lived += usize::from(ended.is_ok());
        wait_for(60, "objects of a killed tenant stay", || running.server().leaks() == before);
        if kill % 50 == 0 {
            a.post(1, Op::Write(0, None), 0, 4096).unwrap();
            succeed(&mut a, &mut b, 1);
        }
    }
    assert!(lived > 3, "{lived}: each step comes several times");
}
