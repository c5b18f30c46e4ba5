//! Requests as HERD makes them (A. Kalia, M. Kaminsky, D. G. Andersen 2014): a client writes its
//! request into the server's memory, the server looks there, and answers by SEND. Each tenant is
//! the client of the next one and the server of the one before.

use super::pairs::{device, shape};
use super::{Given, Worker};
use gdrcore_core::verbs::types::{wc_opcode, wc_status};
use gdrcore_testkit::ends::{connected, End, Op};
use std::time::{Duration, Instant};

/// Bytes of a request and of an answer.
const MESSAGE: u32 = 64;
/// Requests of a client under way.
const WINDOW: u64 = 8;
/// Where requests are written from; requests and answers arrive before.
const OUT: u64 = 8192;

/// A client and its server.
struct Pair<'d> {
    client: End<'d>,
    server: End<'d>,
    asked: u64,
    served: u64,
    answered: u64,
}

impl Pair<'_> {
    /// Asks, serves and takes answers, as far as that goes.
    fn step(&mut self) {
        while self.asked < self.answered + WINDOW {
            let at = self.asked % WINDOW * u64::from(MESSAGE);
            // The last bytes of a message arrive last.
            let number = (self.asked + 1).to_le_bytes();
            self.client.buffer.write((OUT + at) as usize + 56, &number);
            let request = Op::Write(at, None);
            self.client.post(self.asked, request, OUT + at, MESSAGE).expect("post_send");
            self.asked += 1;
        }
        self.server.poll();
        self.server.done.drain(..).for_each(|wc| assert_eq!(wc.status, wc_status::SUCCESS));
        while self.has_request() {
            let answer = Op::Send(None);
            self.server.post(self.served, answer, OUT, MESSAGE).expect("post_send");
            self.served += 1;
        }
        self.client.poll();
        for wc in std::mem::take(&mut self.client.done) {
            assert_eq!(wc.status, wc_status::SUCCESS);
            if wc.opcode & wc_opcode::RECV != 0 {
                self.client.post_recv(wc.wr_id, 0, MESSAGE).expect("post_recv");
                self.answered += 1;
            }
        }
    }

    fn has_request(&self) -> bool {
        let at = (self.served % WINDOW) as usize * MESSAGE as usize + 56;
        self.server.buffer.read(at, 8) == (self.served + 1).to_le_bytes()
    }
}

pub(super) fn requests(given: &Given) -> String {
    let tenants = given.number("tenants") as usize;
    let devices: Vec<_> = (0..tenants).map(|n| device(given, &format!("t{n}"))).collect();
    let pair = |n: usize| {
        let (client, server) =
            connected(devices[n].dev(), devices[(n + 1) % tenants].dev(), shape()).expect("a pair");
        for k in 0..2 * WINDOW {
            client.post_recv(k, 0, MESSAGE).expect("post_recv");
        }
        Pair { client, server, asked: 0, served: 0, answered: 0 }
    };
    let mut pairs: Vec<_> = (0..tenants).map(pair).collect();
    let mut go_for = |time: Duration| {
        let answered = |pairs: &[Pair]| pairs.iter().map(|p| p.answered).sum::<u64>();
        let (began, before) = (Instant::now(), answered(&pairs));
        while began.elapsed() < time {
            pairs.iter_mut().for_each(Pair::step);
        }
        (answered(&pairs) - before, began.elapsed().as_secs_f64())
    };
    go_for(Duration::from_millis(200));
    let worker = Worker::of(given.number("pid"));
    let before = worker.ran();
    let (answers, seconds) = go_for(Duration::from_secs(given.number("seconds")));
    let ran = worker.ran() - before;
    // A request and its answer.
    let messages = 2 * answers;
    format!(
        "{{\"messages_per_s\":{:.0},\"worker_ns\":{:.1},\"worker_share\":{:.3}}}",
        messages as f64 / seconds,
        ran as f64 / messages as f64,
        ran as f64 / 1e9 / seconds,
    )
}
