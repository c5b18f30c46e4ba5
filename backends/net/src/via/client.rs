//! The tenant's half of the protocol: interprets the router's messages. No system call.

use super::proto::{feature, link_flag, Envelope, Fault, Link, Message, RouteEvent};

const RINGS: usize = 3;
/// Descriptors of a remote session.
pub(super) const REMOTE: usize = 4;

/// The action that a message requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// Not boxed: nothing may be allocated here.
#[allow(clippy::large_enum_variant)]
pub enum Step {
    /// The answer to the last request.
    Answer(Envelope),
    /// Another session's link, whose socket came with the message. It must be answered.
    Link(u32, Link),
    /// News of a route.
    Event(RouteEvent),
    /// A PING, which must be answered.
    Ping(u32),
    /// Nothing.
    Nothing,
    /// The router has ended the session: its BYE's errno.
    End(i32),
}

/// A message that no router sends, so that the session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The bytes are no message.
    Fault(Fault),
    /// A type that a router does not send, or does not send now.
    Unexpected(u16),
    /// A message with descriptors that its type does not have, or without those that it has.
    Descriptors(u16),
}

/// The numbers of a session's requests.
#[derive(Debug, Default)]
pub struct Client {
    last: u32,
    /// The awaited answer: number and type.
    waits: Option<(u32, u16)>,
}

impl Client {
    /// A client that has made no request.
    pub const fn new() -> Client {
        Client { last: 0, waits: None }
    }

    /// Makes a request. An answer to an earlier one no longer counts.
    pub fn ask(&mut self, message: Message) -> Envelope {
        self.last = self.last.wrapping_add(1);
        self.waits = Some((self.last, answer_to(message.kind())));
        Envelope::new(self.last, message)
    }

    /// Makes a request whose answer does not count.
    pub fn tell(&mut self, message: Message) -> Envelope {
        self.last = self.last.wrapping_add(1);
        Envelope::new(self.last, message)
    }

    /// Interprets a datagram that had `fds` descriptors.
    ///
    /// # Errors
    /// [`Broken`]: the connection must be closed.
    pub fn take(&mut self, bytes: &[u8], fds: usize) -> Result<Step, Broken> {
        let e = Envelope::parse(bytes).map_err(Broken::Fault)?;
        let kind = e.message.kind();
        let may_have = match e.message {
            Message::Link(_) if !e.answer => 1..=1,
            Message::Routed(_) => 0..=1,
            Message::Welcome(w) if w.features & feature::RELAY != 0 => RINGS..=RINGS,
            Message::Welcome(w) if w.features & feature::REMOTE != 0 => REMOTE..=REMOTE,
            _ => 0..=0,
        };
        if !may_have.contains(&fds) {
            return Err(Broken::Descriptors(kind));
        }
        if e.answer {
            // An answer to an earlier request came too late.
            let awaited = self.waits == Some((e.seq, kind));
            if awaited {
                self.waits = None;
            }
            return Ok(if awaited { Step::Answer(e) } else { Step::Nothing });
        }
        match e.message {
            Message::Link(link) if link.flags & !link_flag::NO_GRANTS == 0 => {
                Ok(Step::Link(e.seq, link))
            }
            Message::RouteEvent(event) => Ok(Step::Event(event)),
            Message::Ping(()) => Ok(Step::Ping(e.seq)),
            Message::Drain(_) => Ok(Step::Nothing),
            Message::Bye(bye) => Ok(Step::End(bye.errno)),
            _ => Err(Broken::Unexpected(kind)),
        }
    }
}

const fn answer_to(kind: u16) -> u16 {
    match kind {
        1 => 2, // HELLO, WELCOME
        3 => 4, // ROUTE, ROUTED
        same => same,
    }
}

#[cfg(test)]
mod tests {
    use super::super::proto::{Bye, Route, Routed, Text, Welcome, MESSAGE_MAX};
    use super::*;

    fn bytes(e: &Envelope) -> Vec<u8> {
        let mut buffer = [0; MESSAGE_MAX];
        let n = e.emit(&mut buffer);
        buffer[..n].to_vec()
    }

    fn routed() -> Message {
        Message::Routed(Routed::refused(Text::EMPTY))
    }

    #[test]
    fn an_answer_counts_once_and_only_for_the_last_request() {
        let mut c = Client::new();
        let route = Message::Route(Route { gid: [1; 16], sgid_index: 0, qpn: 5, traffic_class: 0 });
        let (first, second) = (c.ask(route), c.ask(route));
        let late = bytes(&Envelope::answer(first.seq, 0, routed()));
        assert_eq!(c.take(&late, 0), Ok(Step::Nothing));
        let other = bytes(&Envelope::answer(second.seq, 0, Message::Ping(())));
        assert_eq!(c.take(&other, 0), Ok(Step::Nothing));
        let right = Envelope::answer(second.seq, 0, routed());
        assert_eq!(c.take(&bytes(&right), 1), Ok(Step::Answer(right)));
        assert_eq!(c.take(&bytes(&right), 1), Ok(Step::Nothing), "it was answered");
    }

    #[test]
    fn a_welcome_has_the_descriptors_of_its_rings_and_no_others() {
        for (features, rings) in [(0, 0), (feature::RELAY, RINGS), (feature::REMOTE, REMOTE)] {
            let welcome = Welcome { features, ..Welcome::refused(Text::EMPTY) };
            let answer = bytes(&Envelope::answer(1, 0, Message::Welcome(welcome)));
            for fds in 0..=REMOTE + 1 {
                let taken = Client::new().take(&answer, fds);
                assert_eq!(taken.is_ok(), fds == rings, "{fds} of {rings}: {taken:?}");
            }
        }
    }

    #[test]
    fn messages_that_no_router_sends_end_the_session() {
        let mut c = Client::new();
        let link = |flags| Message::Link(Link { gid: [1; 16], peer: 3, flags });
        let take = |c: &mut Client, m, fds| c.take(&bytes(&Envelope::new(9, m)), fds);
        assert!(matches!(take(&mut c, link(1), 1), Ok(Step::Link(9, Link { peer: 3, .. }))));
        assert_eq!(take(&mut c, link(0), 0), Err(Broken::Descriptors(6)));
        assert_eq!(take(&mut c, link(0), 2), Err(Broken::Descriptors(6)));
        assert_eq!(
            take(&mut c, link(2), 1),
            Err(Broken::Unexpected(6)),
            "a flag that is not known"
        );
        assert_eq!(take(&mut c, Message::Ping(()), 1), Err(Broken::Descriptors(12)));
        assert_eq!(take(&mut c, Message::Ping(()), 0), Ok(Step::Ping(9)));
        assert_eq!(take(&mut c, routed(), 0), Err(Broken::Unexpected(4)), "no answer");
        assert_eq!(c.take(b"x", 0), Err(Broken::Fault(Fault::Length)));
        let bye = Message::Bye(Bye { errno: 22, text: Text::new("x") });
        assert_eq!(take(&mut c, bye, 0), Ok(Step::End(22)));
    }
}
