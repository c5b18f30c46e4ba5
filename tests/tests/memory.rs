//! Program memory that is gone before an operation uses it. Memory that vanishes or changes under
//! traffic: `hostile_memory.rs`.

use gdrcore_core::device::async_event;
use gdrcore_core::verbs::types::{wc_status, Sge};
use gdrcore_tests::ends::{complete, connected_pair, succeed, End, Op};
use gdrcore_tests::map::{register, Map};
use gdrcore_tests::soft::over_each;
use std::time::Duration;

const LEN: usize = 1 << 20;
/// The statuses with which the requester's access to vanished memory may end.
const REMOTE: [u32; 2] = [wc_status::REM_OP_ERR, wc_status::REM_ACCESS_ERR];
const LOCAL: [u32; 2] = [wc_status::LOC_PROT_ERR, wc_status::LOC_ACCESS_ERR];

/// Makes `end` use a mapping of `peer` in place of the peer's buffer.
fn aim(end: &mut End, map: &Map, key: u32) {
    end.peer.addr = map.addr();
    end.peer.rkey = key;
}

#[test]
fn an_unmapped_target_is_an_access_error_of_that_qp_only() {
    for (op, len) in
        [(Op::Write(0, None), 100_000), (Op::Read(0), 100_000), (Op::FetchAdd(0, 1), 8)]
    {
        over_each(|x, y| {
            let (mut a, mut b) = connected_pair(x, y);
            let (mut c, mut d) = connected_pair(x, y);
            let map = Map::new(LEN);
            let (mr, key) = register(&b, &map);
            aim(&mut a, &map, key);
            a.post(1, op, 0, len).expect("post_send");
            succeed(&mut a, &mut b, 1);
            map.vanish();
            a.post(2, op, 0, len).expect("post_send");
            let status = complete(&mut a, &mut b, 2, Duration::from_secs(10)).status;
            assert!(REMOTE.contains(&status), "{op:?}: {status}");
            // The target has no completion that reports the failure of its queue pair, so it gets
            // an event. The initiator has its completion.
            let told = y.async_event().expect("async_event").expect("an event");
            assert_eq!((told.event, told.handle), (async_event::QP_FATAL, b.qp), "{op:?}");
            assert_eq!(x.async_event(), Ok(None), "{op:?}");
            assert_eq!(y.async_event(), Ok(None), "{op:?}");
            c.post(3, Op::Write(0, None), 0, 5000).expect("post_send");
            succeed(&mut c, &mut d, 3);
            y.mr_dereg(mr).expect("a region without memory can be deregistered");
        });
    }
}

#[test]
fn unmapped_local_memory_is_an_error_of_that_request() {
    for op in [Op::Send(None), Op::Write(0, None), Op::Read(0)] {
        over_each(|x, y| {
            let (mut a, mut b) = connected_pair(x, y);
            let map = Map::new(LEN);
            let (_, key) = register(&a, &map);
            map.vanish();
            b.post_recv(9, 0, 100_000).expect("post_recv");
            let piece = [Sge { addr: map.addr(), length: 50_000, lkey: key }];
            a.post_wr(&a.request(1, op, &piece)).expect("post_send");
            let status = complete(&mut a, &mut b, 1, Duration::from_secs(10)).status;
            assert!(LOCAL.contains(&status), "{op:?}: {status}");
        });
    }
}

#[test]
fn a_truncated_file_under_a_region_is_an_error_not_sigbus() {
    over_each(|x, y| {
        let (mut a, mut b) = connected_pair(x, y);
        let map = Map::new(LEN);
        let (_, key) = register(&b, &map);
        aim(&mut a, &map, key);
        map.truncate(64 << 10);
        a.post(1, Op::Write(0, None), 0, 32 << 10).expect("post_send");
        succeed(&mut a, &mut b, 1);
        a.post(2, Op::Write(0, None), 0, 128 << 10).expect("post_send");
        let status = complete(&mut a, &mut b, 2, Duration::from_secs(10)).status;
        assert!(REMOTE.contains(&status), "{status}");
    });
}
