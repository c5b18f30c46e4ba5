//! The feed. An adapter is a process that reads the map of hosts from a store, and publishes there
//! this host's tenants ([`gdrcore_router_feed`]). One adapter at a time, of root or the router's
//! own user. The router never waits for it.

mod lines;

use super::listener::Listener;
use super::sys::{self, Epoll, Ready, SocketKind};
use super::{mention, Daemon, FEED, FEED_LISTENER};
use crate::broker::MapEvent;
use crate::policy::{show, Host, Policy};
use gdrcore_net::clock::now_ns;
use gdrcore_net::rights::Foreign;
use gdrcore_router_feed::{write, Entry, Key, Wish, LINE_MAX, VERSION};
use lines::{entry, event, Fault};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// Bytes that one round takes.
const ROUND: usize = 1 << 16;
/// Unread bytes from which on refused lines get no answer.
const REFUSALS_MAX: usize = 1 << 16;

/// The event of a line, and the address that it is for.
type Line = Result<(Key, MapEvent), Fault>;

/// Counters of the feed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    /// Adapters that connected, and those that were disconnected for their lines.
    pub(super) adapters: u64,
    pub(super) faults: u64,
    /// Lines, and those of them that were refused.
    pub(super) lines: u64,
    pub(super) refused: u64,
}

/// The socket, and the connected adapter.
pub(super) struct Feed {
    listener: Listener,
    adapter: Option<Adapter>,
    counted: Counted,
}

struct Adapter {
    fd: Foreign,
    token: u64,
    /// The received part of an incomplete line.
    input: Vec<u8>,
    output: Vec<u8>,
    /// The tenants that the adapter has to publish, by network and address.
    published: BTreeMap<(String, [u8; 16]), Entry>,
}

impl Feed {
    /// Listens, where the policy's map comes from an adapter.
    ///
    /// # Errors
    /// In words.
    pub(super) fn open(policy: &Policy, epoll: &Epoll) -> Result<Option<Feed>, String> {
        let Some(path) = policy.host.as_ref().and_then(Host::feed) else { return Ok(None) };
        let listener = Listener::open(path, SocketKind::Stream, 0o600, false)?;
        epoll.add(listener.fd(), FEED_LISTENER).map_err(|e| format!("epoll: {e}"))?;
        Ok(Some(Feed { listener, adapter: None, counted: Counted::default() }))
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.listener.fd()
    }

    /// Whether an adapter is connected.
    pub(super) fn is_fed(&self) -> bool {
        self.adapter.is_some()
    }

    pub(super) fn counted(&self) -> &Counted {
        &self.counted
    }
}

impl Adapter {
    fn new(fd: Foreign, token: u64) -> Adapter {
        let (input, output) = (Vec::new(), Vec::new());
        Adapter { fd, token, input, output, published: BTreeMap::new() }
    }

    /// Reads once. Returns the events of the complete lines.
    ///
    /// # Errors
    /// The connection is over. The text is the adapter's fault, if it has one.
    fn take(&mut self) -> Result<Vec<Line>, Option<String>> {
        let have = self.input.len();
        self.input.resize(have + ROUND, 0);
        let read = sys::read(&self.fd, &mut self.input[have..]);
        self.input.truncate(have + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(1..) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            _ => return Err(None),
        }
        let mut events = Vec::new();
        let mut from = 0;
        while let Some(len) = self.input[from..].iter().position(|&b| b == b'\n') {
            if len >= LINE_MAX {
                return Err(Some(format!("a line of more than {LINE_MAX} bytes")));
            }
            let line = event(&self.input[from..from + len]);
            from += len + 1;
            let is_last = matches!(line, Err(Fault::Nonsense(_)));
            events.push(line);
            if is_last {
                break;
            }
        }
        self.input.drain(..from);
        let is_too_long = self.input.len() >= LINE_MAX && !self.input.contains(&b'\n');
        if is_too_long {
            return Err(Some(format!("a line of more than {LINE_MAX} bytes")));
        }
        Ok(events)
    }

    /// Sends the changes of the policy's tenants since the last call.
    fn publish(&mut self, policy: &Policy) {
        let Some(host) = &policy.host else { return };
        let own = policy.map.tenants.iter().filter(|p| *p.host == *host.id);
        let own: BTreeMap<_, _> = own.map(|p| ((p.network.to_string(), p.gid), entry(p))).collect();
        for (key, gone) in &self.published {
            if !own.contains_key(key) {
                write(&Wish::Withdraw(gone.key()), &mut self.output);
            }
        }
        for (key, entry) in &own {
            if self.published.get(key) != Some(entry) {
                write(&Wish::Publish(entry.clone()), &mut self.output);
            }
        }
        self.published = own;
    }

    /// See [`sys::flush`].
    fn flush(&mut self, epoll: &Epoll) -> bool {
        sys::flush(&self.fd, self.token, &mut self.output, epoll)
    }
}

impl Daemon {
    /// Accepts the next adapter. A second one, and one of another user, is sent away.
    pub(super) fn let_adapter_in(&mut self) {
        let Some(fd) = self.accept(FEED_LISTENER) else { return };
        let Some(is_fed) = self.feed.as_ref().map(Feed::is_fed) else { return };
        let may = sys::credentials(fd.as_fd())
            .is_ok_and(|cred| cred.uid == 0 || cred.uid == sys::own_uid());
        let why = match (may, is_fed) {
            (true, false) => None,
            (true, true) => Some("there is an adapter already"),
            (false, _) => Some("only root and the router's own user may be the adapter"),
        };
        if let Some(why) = why {
            let mut line = Vec::new();
            write(&Wish::Error { why: why.into() }, &mut line);
            let _ = sys::write(&fd, &line);
            return;
        }
        let token = self.next_token(FEED);
        let policy = self.broker.policy();
        let Some(host) = &policy.host else { return };
        if self.epoll.add(fd.as_fd(), token).is_err() {
            return;
        }
        let mut adapter = Adapter::new(fd, token);
        let hello = Wish::Hello {
            version: VERSION,
            host: host.id.clone(),
            address: show(&host.at.ip),
            port: host.at.port,
            epoch: self.broker.epoch(),
        };
        write(&hello, &mut adapter.output);
        adapter.publish(policy);
        write(&Wish::Ready {}, &mut adapter.output);
        let lives = adapter.flush(&self.epoll);
        if let Some(feed) = &mut self.feed {
            feed.counted.adapters += 1;
            feed.adapter = Some(adapter);
        }
        self.say(format_args!("an adapter brings the map"));
        if !lives {
            self.lose_adapter(None);
        }
    }

    /// Applies the adapter's lines.
    pub(super) fn serve_adapter(&mut self, r: &Ready) {
        let Some(feed) = &mut self.feed else { return };
        let Some(adapter) = feed.adapter.as_mut().filter(|a| a.token == r.token) else { return };
        let events = match if r.read { adapter.take() } else { Ok(Vec::new()) } {
            Ok(events) => events,
            Err(why) => return self.lose_adapter(why),
        };
        let (now, mut fault) = (now_ns(), None);
        for event in events {
            feed.counted.lines += 1;
            let (network, vip, why) = match event {
                Ok((key, event)) => match self.broker.map(now, event) {
                    Ok(()) => continue,
                    Err(why) => (key.network, key.vip, why),
                },
                Err(Fault::Refused(key, why)) => (key.network, key.vip, why),
                Err(Fault::Nonsense(why)) => {
                    fault = Some(why);
                    break;
                }
            };
            feed.counted.refused += 1;
            if adapter.output.len() < REFUSALS_MAX {
                write(&Wish::Refused { network, vip, why }, &mut adapter.output);
            }
        }
        let lives = adapter.flush(&self.epoll);
        // Before the answers leave, so that the worker knows the tenant when its first packet
        // comes.
        self.relaying.catch_up(&self.broker, now);
        self.perform();
        if fault.is_some() || !lives {
            self.lose_adapter(fault);
        }
    }

    /// Ends the adapter's connection. The tenants that it brought stay known.
    fn lose_adapter(&mut self, fault: Option<String>) {
        let Some(feed) = &mut self.feed else { return };
        let Some(mut adapter) = feed.adapter.take() else { return };
        if let Some(why) = fault {
            feed.counted.faults += 1;
            mention(format_args!("the adapter is sent away: {why}"));
            write(&Wish::Error { why }, &mut adapter.output);
            adapter.flush(&self.epoll);
        }
        // `Lost` cannot be refused.
        let _ = self.broker.map(now_ns(), MapEvent::Lost);
        self.perform();
        self.say(format_args!("no adapter brings the map any more"));
    }

    /// Takes over a new policy.
    pub(super) fn publish(&mut self) {
        let Some(adapter) = self.feed.as_mut().and_then(|feed| feed.adapter.as_mut()) else {
            return;
        };
        adapter.publish(self.broker.policy());
        if !adapter.flush(&self.epoll) {
            self.lose_adapter(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(blocks: &str) -> Policy {
        Policy::parse(&format!(
            "[router]\nlisten = \"/s\"\n[tenant.blue]\nmatch = {{ uid = 1 }}\n[host]\nid = \"a\"\n\
             address = \"192.0.2.1\"\nmap = \"feed\"\nfeed = \"/f\"\n\
             [host.tenant.blue]\nvip = \"10.0.0.1\"\nblocks = {blocks}\n"
        ))
        .unwrap()
    }

    #[test]
    fn each_change_of_a_tenant_is_published_once() {
        let [ours, _theirs] = sys::pair().unwrap();
        let mut adapter = Adapter::new(Foreign::from(ours), 0);
        let mut wishes = |policy: &Policy| {
            adapter.publish(policy);
            let said = String::from_utf8(std::mem::take(&mut adapter.output)).unwrap();
            said.lines().map(str::to_string).collect::<Vec<_>>()
        };
        let [first] = &wishes(&policy("[5, 8]"))[..] else { panic!("one tenant") };
        assert!(first.contains("publish") && first.contains("[5,8]"), "{first}");
        assert_eq!(wishes(&policy("[5, 8]")), [""; 0], "nothing new");
        let [other] = &wishes(&policy("[15, 8]"))[..] else { panic!("other blocks are news") };
        assert!(other.contains("publish") && other.contains("[15,8]"), "{other}");
        let moved = "[host.tenant.blue]\nvip = \"10.0.0.1\"\nblocks = [15, 8]\n";
        let gone = Policy::parse(&format!(
            "[router]\nlisten = \"/s\"\n[host]\nid = \"a\"\naddress = \"192.0.2.1\"\n\
             map = \"feed\"\nfeed = \"/f\"\n[tenant.blue]\nmatch = {{ uid = 1 }}\n{}",
            moved.replace("10.0.0.1", "10.0.0.2")
        ));
        let both = wishes(&gone.unwrap());
        assert!(both[0].contains("withdraw") && both[1].contains("publish"), "{both:?}");
    }
}
