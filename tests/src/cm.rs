//! Connections made by the connection manager, for tests: waits for events of one or two devices.

use crate::ends::{succeed, End, Op, Shape};
use crate::patience;
use gdrcore_core::cm::types::{cm_event, port_space, CmEvent, ConnParam};
use gdrcore_core::device::{CmDevice, Device};
use gdrcore_core::verbs::types::{
    qp_type, send_flags, wr_opcode, AhAttr, Handle, SendWr, UdWr, WrOp,
};
use std::time::{Duration, Instant};

/// The connection manager of a device.
pub fn cm(dev: &dyn Device) -> &dyn CmDevice {
    dev.cm().expect("a connection manager")
}

/// The address of a device as its peers use it.
pub fn address(dev: &dyn Device) -> AhAttr {
    dev.query().expect("query").ah()
}

/// Parameters that most tests offer.
pub fn offer(data: &[u8]) -> ConnParam<'_> {
    ConnParam {
        responder_resources: u8::MAX,
        initiator_depth: u8::MAX,
        retry_count: 7,
        rnr_retry: 7,
        ack_timeout: patience::ack_timeout(14),
        // Requests are repeated after 67 ms on an idle machine.
        response_timeout: patience::ack_timeout(14),
        private_data: data,
        ..ConnParam::default()
    }
}

/// Listens at a port that the device chooses; returns the listener and the port.
pub fn listen(dev: &dyn Device, ps: u16, backlog: u32) -> (Handle, u16) {
    let id = cm(dev).create(ps, 0).expect("create");
    let port = cm(dev).bind(id, 0).expect("bind");
    cm(dev).listen(id, backlog).expect("listen");
    (id, port)
}

/// Requests a connection of `end` to the other device.
pub fn connect(end: &End, to: AhAttr, port: u16, param: &ConnParam<'_>) -> Handle {
    let ps = if end.shape.qp_type == qp_type::UD { port_space::UDP } else { port_space::TCP };
    let id = cm(end.dev).create(ps, 0).expect("create");
    cm(end.dev).connect(id, &to, port, end.qp, param).expect("connect");
    id
}

/// Sends a datagram to the service that the event of an established id names, and checks it there.
pub fn datagram(asker: &mut End, service: &mut End, e: &CmEvent) {
    service.post_recv(1, 0, 1000).expect("post_recv");
    asker.buffer.write(0, b"a datagram");
    let ah = asker.dev.ah_create(asker.pd, &e.peer).expect("ah_create");
    let piece = [asker.piece(0, 10)];
    let wr = SendWr {
        wr: WrOp { ud: UdWr { ah, remote_qpn: e.remote_qpn, remote_qkey: e.qkey } },
        opcode: wr_opcode::SEND,
        send_flags: send_flags::SIGNALED,
        ..asker.request(2, Op::Send(None), &piece)
    };
    asker.post_wr(&wr).expect("post_send");
    succeed(asker, service, 2);
    let wc = succeed(service, asker, 1);
    assert_eq!((wc.byte_len, service.buffer.read(40, 10)), (50, b"a datagram".to_vec()));
}

/// Events of the devices that a test drives, kept until they are expected.
#[derive(Default)]
pub struct Events(Vec<CmEvent>);

impl Events {
    /// Runs both devices until `wanted` accepts an event; keeps the others for later calls. `limit`
    /// is for an idle machine.
    pub fn find(
        &mut self,
        devices: [&dyn Device; 2],
        limit: Duration,
        mut wanted: impl FnMut(&CmEvent) -> bool,
    ) -> Option<CmEvent> {
        let end = Instant::now() + limit * patience::factor();
        loop {
            if let Some(k) = self.0.iter().position(&mut wanted) {
                return Some(self.0.remove(k));
            }
            for dev in devices {
                while let Some(e) = cm(dev).event().expect("event") {
                    self.0.push(e);
                }
            }
            if self.0.iter().any(&mut wanted) {
                continue;
            }
            if Instant::now() > end {
                return None;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// As [`Events::find`], for an event of the id (0: any id). Panics if it does not come.
    pub fn expect(&mut self, devices: [&dyn Device; 2], event: u32, id: Handle) -> CmEvent {
        let found = self.find(devices, Duration::from_secs(60), |e| {
            e.event == event && (id == 0 || e.id == id)
        });
        found.unwrap_or_else(|| panic!("event {event} did not come; events kept: {:?}", self.0))
    }
}

/// Two ends that are connected by their devices' connection managers, and their ids.
pub fn connected<'d>(
    a: &'d dyn Device,
    b: &'d dyn Device,
    shape: Shape,
) -> (End<'d>, End<'d>, [Handle; 2]) {
    let mut events = Events::default();
    let (listener, port) = listen(b, port_space::TCP, 0);
    let (mine, theirs) = (End::new(a, shape).expect("an end"), End::new(b, shape).expect("an end"));
    let (ids, _) = join(&mut events, &mine, &theirs, port);
    cm(b).destroy(listener).expect("destroy");
    (mine, theirs, ids)
}

/// Connects an end to another one by the port at which that one's device listens. Returns their
/// ids, and what the first one is told at last.
pub fn join(events: &mut Events, mine: &End, theirs: &End, port: u16) -> ([Handle; 2], CmEvent) {
    let both = [mine.dev, theirs.dev];
    let active = connect(mine, address(theirs.dev), port, &offer(b""));
    let passive = events.expect(both, cm_event::CONNECT_REQUEST, 0).id;
    cm(theirs.dev).accept(passive, theirs.qp, &offer(b"")).expect("accept");
    let reached = events.expect(both, cm_event::ESTABLISHED, active);
    if theirs.shape.qp_type != qp_type::UD {
        events.expect(both, cm_event::ESTABLISHED, passive);
    }
    ([active, passive], reached)
}
