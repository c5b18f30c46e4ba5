//! Connections at the admin socket and at the metrics socket, and the answers to them.

use super::admin::{self, Admin, Request};
use super::sessions::ACCEPTS;
use super::sys::Ready;
use super::{metrics, report, Daemon, ADMIN, ADMINS, ADMIN_LISTENER};
use super::{METRICS, METRICS_LISTENER};
use crate::broker::SessionId;
use gdrcore_net::clock::now_ns;

impl Daemon {
    pub(super) fn let_admins_in(&mut self) {
        while let Some(fd) = self.accept(ADMIN_LISTENER) {
            if self.admins.len() >= ADMINS {
                continue;
            }
            let token = self.next_token(ADMIN);
            if let Ok(Some(admin)) = Admin::new(fd, token, &self.epoll) {
                self.admins.insert(token, admin);
            }
        }
    }

    pub(super) fn serve_admin(&mut self, r: &Ready) {
        let Some(mut admin) = self.admins.remove(&r.token) else { return };
        let mut goes_on = true;
        if r.read {
            let (requests, more) = admin.take();
            goes_on = more;
            for request in requests {
                self.answer(request, admin.output());
            }
        }
        if goes_on && admin.flush(&self.epoll) {
            self.admins.insert(r.token, admin);
        }
    }

    fn answer(&mut self, request: Result<Request, String>, to: &mut Vec<u8>) {
        let mut line = |text: String| {
            to.extend_from_slice(text.as_bytes());
            to.push(b'\n');
        };
        let outcome = request.and_then(|request| {
            match request {
                Request::Status => line(report::status(self)),
                Request::Sessions => report::sessions(self).for_each(&mut line),
                Request::Tenants => report::tenants(self).for_each(&mut line),
                Request::Hosts => report::hosts(self).for_each(&mut line),
                Request::Reload => self.reload()?,
                Request::Set(tenant, changes) => self.set(&tenant, &changes)?,
                Request::Drop(session) => self.drop_session(session)?,
                Request::Drain(ms) => self.drain(u64::from(ms) * 1_000_000),
            }
            Ok(())
        });
        line(admin::last(outcome));
    }

    /// Changes the limits of a tenant, until the policy is read again.
    fn set(&mut self, tenant: &str, changes: &[(String, String)]) -> Result<(), String> {
        self.broker.set(tenant, changes)?;
        self.perform();
        self.review();
        self.say(format_args!("has changed the limits of {tenant}"));
        Ok(())
    }

    fn drop_session(&mut self, id: SessionId) -> Result<(), String> {
        if !self.broker.sessions().any(|(other, _)| other == id) {
            return Err(format!("session {id}: there is none"));
        }
        let why = "an administrator of the router has ended the session";
        self.expel(id, libc::ECONNRESET, why);
        Ok(())
    }

    pub(super) fn let_readers_in(&mut self) {
        for _ in 0..ACCEPTS {
            let Some(fd) = self.accept(METRICS_LISTENER) else { return };
            let token = self.next_token(METRICS);
            let from = &self.broker.policy().metrics_from;
            if let Some(metrics) = &mut self.metrics {
                metrics.let_in(fd.trusted(), from, now_ns(), token, &self.epoll);
            }
        }
    }

    pub(super) fn serve_reader(&mut self, r: &Ready) {
        let (broker, relaying) = (&self.broker, &self.relaying);
        let text = || {
            let all = report::tenants_and_sessions(broker).into_iter();
            let counted = all.map(|(t, n)| {
                let counters = relaying.tenant(&t.name);
                (t, n, counters)
            });
            metrics::text(&counted.collect::<Vec<_>>())
        };
        // A policy is in force as long as the router runs.
        let ready = match (self.is_draining(), self.relaying.is_alive()) {
            (true, _) => Err("drains"),
            (false, false) => Err("the relay's worker has failed"),
            (false, true) => Ok(()),
        };
        if let Some(metrics) = &mut self.metrics {
            metrics.serve(r, now_ns(), &self.epoll, text, ready);
        }
    }
}
