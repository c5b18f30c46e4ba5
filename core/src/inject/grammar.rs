//! The language of the rules.
//!
//! ```text
//! rules     = [rule] { (";" | newline) [rule] }          "#" begins a comment, to the line's end
//! rule      = packet | call | limit | event
//! packet    = action { "in" | "out" | "peer" ADDRESS | "type" TYPE | "opcode" OPCODE | "qp" N
//!                      | "message" | which }
//! action    = "loss" | "duplicate" | "reorder" N | "delay" TIME | "corrupt" | "partition"
//!           | "ecn" | "slow" TIME | "rnr"
//! call      = "call" NAME { "errno" ERRNO | which }      one errno
//! limit     = "limit" NAME "=" N
//! event     = "event" NAME "after" N
//! which     = "nth" N | "every" N | "rate" PERCENT "%" | "from" N | "to" N
//! TYPE      = "RC" | "UC" | "UD" | "XRC" | "DC" | "GSI"
//! OPCODE    = the name of an opcode of RC without "RC_", or "CNP"
//! TIME      = a number and "ns", "us", "ms" or "s", at most 60 s
//! ```

use super::{Action, Calls, Direction, Filter, Name, Pick, Rule, Service, What, Window, RULES_MAX};
use crate::config::LoweredLimits;
use crate::wire::Opcode;
use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;

/// Longest delay.
const TIME_MAX: u64 = 60_000_000_000;
/// Largest number.
const NUMBER_MAX: u64 = 1_000_000_000_000;

/// Why a list of rules is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused<'a> {
    /// The line, from 1 on.
    pub line: u32,
    /// The character in it, from 1 on.
    pub column: u32,
    /// The word that is wrong; empty: one is missing there.
    pub word: &'a str,
    /// What it should be, or why it may not stand there.
    pub reason: &'static str,
}

impl fmt::Display for Refused<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: ", self.line, self.column)?;
        match self.word {
            "" => f.write_str("the rule ends too early: ")?,
            word => write!(f, "'{word}': ")?,
        }
        f.write_str(self.reason)
    }
}

type Read<'a, T> = Result<T, Refused<'a>>;

/// The words of a text, with their places.
struct Words<'a> {
    calls: Calls,
    rest: &'a str,
    line: u32,
    column: u32,
}

/// A word where it stands. The end of a rule is the word ";", the end of the text is "".
#[derive(Clone, Copy)]
struct Word<'a> {
    text: &'a str,
    at: (u32, u32),
}

impl<'a> Word<'a> {
    fn ends_rule(&self) -> bool {
        matches!(self.text, "" | ";")
    }

    fn refuse<T>(self, reason: &'static str) -> Read<'a, T> {
        let (line, column) = self.at;
        let word = if self.ends_rule() { "" } else { self.text };
        Err(Refused { line, column, word, reason })
    }

    /// A number, from `least` on.
    fn number(self, least: u64) -> Read<'a, u64> {
        let digits = !self.text.is_empty() && self.text.bytes().all(|b| b.is_ascii_digit());
        match self.text.parse::<u64>() {
            Ok(n) if digits && (least..=NUMBER_MAX).contains(&n) => Ok(n),
            _ if least == 0 => self.refuse("a number is to stand here"),
            _ => self.refuse("a number is to stand here, from 1 on"),
        }
    }

    /// Nanoseconds.
    fn time(self) -> Read<'a, u64> {
        const WANTED: &str = "a time is to stand here, such as 50us or 2ms, at most 60s";
        let end = self.text.find(|c: char| !c.is_ascii_digit()).unwrap_or(0);
        let (number, unit) = self.text.split_at(end);
        let scale = match unit {
            "ns" => 1,
            "us" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            _ => return self.refuse(WANTED),
        };
        let ns = number.parse::<u64>().ok().and_then(|n| n.checked_mul(scale));
        match ns {
            Some(ns @ 1..=TIME_MAX) => Ok(ns),
            _ => self.refuse(WANTED),
        }
    }

    /// Parts of 10^8, from percent.
    fn rate(self) -> Read<'a, u64> {
        const WANTED: &str = "a rate is to stand here, such as 1% or 0.05%, at most 100%";
        const DECIMALS: usize = 6;
        let Some(number) = self.text.strip_suffix('%') else { return self.refuse(WANTED) };
        let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
        let is_number = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        if !is_number(whole) || !is_number(part) || whole.len() > 3 || part.len() > DECIMALS {
            return self.refuse(WANTED);
        }
        let digits = part.bytes().chain(core::iter::repeat(b'0')).take(DECIMALS);
        let part = digits.fold(0, |sum, b| 10 * sum + u64::from(b - b'0'));
        match whole.parse::<u64>().unwrap_or(u64::MAX).saturating_mul(1_000_000) + part {
            parts @ 1..=100_000_000 => Ok(parts),
            _ => self.refuse(WANTED),
        }
    }

    /// A name of small letters, digits and underscores.
    fn name(self, reason: &'static str) -> Read<'a, Name> {
        let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
        match Name::from_str(self.text) {
            Ok(name) if !name.is_empty() && self.text.bytes().all(fits) => Ok(name),
            _ => self.refuse(reason),
        }
    }

    /// The value of a name in a table.
    fn of<T: Copy>(self, table: &[(&str, T)], reason: &'static str) -> Read<'a, T> {
        match table.iter().find(|(name, _)| *name == self.text) {
            Some((_, value)) => Ok(*value),
            None => self.refuse(reason),
        }
    }
}

impl<'a> Words<'a> {
    fn skip(&mut self, bytes: usize) -> &'a str {
        let (gone, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        self.column += gone.chars().count() as u32;
        gone
    }

    /// The next word.
    fn next(&mut self) -> Word<'a> {
        let blank = |c: char| c.is_whitespace() && c != '\n';
        let blanks = self.rest.find(|c| !blank(c)).unwrap_or(self.rest.len());
        self.skip(blanks);
        if self.rest.starts_with('#') {
            let comment = self.rest.find('\n').unwrap_or(self.rest.len());
            self.skip(comment);
        }
        let at = (self.line, self.column);
        if self.rest.starts_with('\n') {
            self.skip(1);
            (self.line, self.column) = (self.line + 1, 1);
            return Word { text: ";", at };
        }
        let ends = |c: char| c.is_whitespace() || matches!(c, ';' | '#' | '=');
        let end = match self.rest.find(ends) {
            // ";" and "=" are words.
            Some(0) => 1,
            Some(end) => end,
            None => self.rest.len(),
        };
        Word { text: self.skip(end), at }
    }
}

/// A condition that may be given once.
fn once<'a, T>(slot: &mut Option<T>, word: Word<'a>, value: Read<'a, T>) -> Read<'a, ()> {
    if slot.is_some() {
        return word.refuse("it stands twice in this rule");
    }
    *slot = Some(value?);
    Ok(())
}

/// Which of the counted ones, as far as it was read.
#[derive(Default)]
struct Which {
    pick: Option<Pick>,
    from: Option<u64>,
    to: Option<u64>,
}

impl Which {
    /// Reads a condition that begins with `word`; `None`: it is none of these.
    fn read<'a>(&mut self, word: Word<'a>, words: &mut Words<'a>) -> Option<Read<'a, ()>> {
        Some(match word.text {
            "nth" => once(&mut self.pick, word, words.next().number(1).map(Pick::Nth)),
            "every" => once(&mut self.pick, word, words.next().number(1).map(Pick::Every)),
            "rate" => once(&mut self.pick, word, words.next().rate().map(Pick::Rate)),
            "from" => {
                let first = words.next();
                let number = first.number(1).and_then(|from| match self.to {
                    Some(to) if from > to => first.refuse("it is behind the number behind 'to'"),
                    _ => Ok(from),
                });
                once(&mut self.from, word, number)
            }
            "to" => {
                let last = words.next();
                let number = last.number(1).and_then(|to| match self.from {
                    Some(from) if from > to => last.refuse("it is before the number behind 'from'"),
                    _ => Ok(to),
                });
                once(&mut self.to, word, number)
            }
            _ => return None,
        })
    }

    fn window(&self) -> Window {
        let Window { from, to } = Window::ALL;
        Window { from: self.from.unwrap_or(from), to: self.to.unwrap_or(to) }
    }
}

const SERVICES: &[(&str, Service)] = &[
    ("RC", Service::Rc),
    ("UC", Service::Uc),
    ("UD", Service::Ud),
    ("XRC", Service::Xrc),
    ("DC", Service::Dc),
    ("GSI", Service::Gsi),
];

/// Names and numbers of Linux (asm-generic/errno.h) that verbs and librdmacm return.
const ERRNOS: &[(&str, i32)] = &[
    ("EPERM", 1),
    ("ENOENT", 2),
    ("EINTR", 4),
    ("EIO", 5),
    ("ENXIO", 6),
    ("E2BIG", 7),
    ("EBADF", 9),
    ("EAGAIN", 11),
    ("ENOMEM", 12),
    ("EACCES", 13),
    ("EFAULT", 14),
    ("EBUSY", 16),
    ("EEXIST", 17),
    ("ENODEV", 19),
    ("EINVAL", 22),
    ("ENFILE", 23),
    ("EMFILE", 24),
    ("ENOSPC", 28),
    ("ENOSYS", 38),
    ("ENODATA", 61),
    ("EOVERFLOW", 75),
    ("EMSGSIZE", 90),
    ("EOPNOTSUPP", 95),
    ("EADDRINUSE", 98),
    ("EADDRNOTAVAIL", 99),
    ("ENETUNREACH", 101),
    ("ECONNRESET", 104),
    ("ETIMEDOUT", 110),
    ("ECONNREFUSED", 111),
    ("EHOSTUNREACH", 113),
    ("EOWNERDEAD", 130),
];

/// The name of an errno, as in `<errno.h>`. `None`: verbs do not return it.
pub fn errno_name(errno: i32) -> Option<&'static str> {
    ERRNOS.iter().find(|(_, number)| *number == errno).map(|(name, _)| *name)
}

/// Asynchronous events, by the ends of their names in libibverbs.
const EVENTS: &[&str] = &[
    "cq_err",
    "device_fatal",
    "gid_change",
    "lid_change",
    "pkey_change",
    "port_active",
    "port_down",
    "qp_fatal",
    "srq_err",
    "srq_limit_reached",
];

/// The opcode of a name: that of RC without the service, or CNP.
fn opcode(word: Word<'_>) -> Read<'_, Opcode> {
    let is = |o: &&Opcode| match o.name().strip_prefix("RC_") {
        Some(name) => name == word.text,
        None => **o == Opcode::CNP && o.name() == word.text,
    };
    match Opcode::ALL.iter().find(is) {
        Some(o) => Ok(*o),
        None => word.refuse("no opcode, such as SEND_ONLY, WRITE_MIDDLE, READ_REQUEST, ACK or CNP"),
    }
}

fn peer(word: Word<'_>) -> Read<'_, [u8; 16]> {
    match word.text.parse::<IpAddr>() {
        Ok(IpAddr::V4(v4)) => Ok(v4.to_ipv6_mapped().octets()),
        Ok(IpAddr::V6(v6)) => Ok(v6.octets()),
        Err(_) => word.refuse("an IPv4 or IPv6 address is to stand here, without a port"),
    }
}

/// The action of a word; `None`: it is none.
fn action<'a>(word: Word<'a>, words: &mut Words<'a>) -> Option<Read<'a, Action>> {
    Some(Ok(match word.text {
        "loss" => Action::Loss,
        "duplicate" => Action::Duplicate,
        "corrupt" => Action::Corrupt,
        "partition" => Action::Partition,
        "ecn" => Action::Ecn,
        "rnr" => Action::Rnr,
        "delay" => return Some(words.next().time().map(Action::Delay)),
        "slow" => return Some(words.next().time().map(Action::Slow)),
        "reorder" => {
            let by = words.next();
            return Some(match by.number(1) {
                Ok(n @ 1..=64) => Ok(Action::Reorder(n as u32)),
                Ok(_) => by.refuse("at most 64 packets overtake one"),
                Err(refused) => Err(refused),
            });
        }
        _ => return None,
    }))
}

/// What an action forbids: the conditions of other actions.
fn check<'a>(
    action: Action,
    word: Word<'a>,
    direction: Option<Direction>,
    which: &Which,
) -> Read<'a, Direction> {
    let own = match action {
        Action::Ecn | Action::Rnr => Direction::In,
        _ => Direction::Out,
    };
    if own == Direction::In && direction == Some(Direction::Out) {
        return word.refuse("it is about packets that arrive: 'out' may not stand behind it");
    }
    if action.is_of_path() && which.pick.is_some() {
        return word.refuse("it is about all packets: only 'from' and 'to' choose among them");
    }
    Ok(direction.unwrap_or(own))
}

/// Reads the conditions of a rule about packets, which begins with `begin`.
fn packet<'a>(action: Action, begin: Word<'a>, words: &mut Words<'a>) -> Read<'a, Rule> {
    let (mut which, mut message) = (Which::default(), None);
    let (mut direction, mut of_peer, mut service) = (None, None, None);
    let (mut of_opcode, mut qp) = (None, None);
    loop {
        let word = words.next();
        match word.text {
            _ if word.ends_rule() => break,
            "in" => once(&mut direction, word, Ok(Direction::In))?,
            "out" => once(&mut direction, word, Ok(Direction::Out))?,
            "message" => once(&mut message, word, Ok(true))?,
            "peer" => once(&mut of_peer, word, peer(words.next()))?,
            "type" => {
                let named = words.next().of(SERVICES, "the types are RC, UC, UD, XRC, DC and GSI");
                once(&mut service, word, named)?;
            }
            "opcode" => once(&mut of_opcode, word, opcode(words.next()))?,
            "qp" => {
                let number = words.next().number(1).map(|n| u32::try_from(n).unwrap_or(u32::MAX));
                once(&mut qp, word, number)?;
            }
            _ => match which.read(word, words) {
                Some(read) => read?,
                None => return word.refuse(
                    "no condition: in, out, peer, type, opcode, qp, message, nth, every, rate, \
                     from or to",
                ),
            },
        }
    }
    let direction = check(action, begin, direction, &which)?;
    let message = message.unwrap_or(false);
    let filter = Filter { direction, peer: of_peer, service, opcode: of_opcode, qp, message };
    let (pick, window) = (which.pick.unwrap_or(Pick::All), which.window());
    Ok(Rule { what: What::Packet(action, filter), pick, window, at: begin.at })
}

fn call<'a>(begin: Word<'a>, words: &mut Words<'a>) -> Read<'a, Rule> {
    let named = words.next();
    let name = named.name("the name of a call is to stand here, such as ibv_reg_mr")?;
    if let Err(reason) = (words.calls)(&name) {
        return named.refuse(reason);
    }
    let (mut errno, mut which) = (None, Which::default());
    let end = loop {
        let word = words.next();
        match word.text {
            _ if word.ends_rule() => break word,
            "errno" => {
                let named = words.next().of(ERRNOS, "no errno, such as ENOMEM");
                once(&mut errno, word, named)?;
            }
            _ => match which.read(word, words) {
                Some(read) => read?,
                None => return word.refuse("no condition: errno, nth, every, rate, from or to"),
            },
        }
    };
    let Some(errno) = errno else { return end.refuse("'errno' and its name are missing") };
    let (pick, window) = (which.pick.unwrap_or(Pick::All), which.window());
    Ok(Rule { what: What::Call(name, errno), pick, window, at: begin.at })
}

/// A name of a list, a word behind it, and a number: the rest of `limit` and `event`.
fn named_number<'a>(
    words: &mut Words<'a>,
    list: &[&str],
    reason: &'static str,
    (between, missing): (&str, &'static str),
) -> Read<'a, (Name, u64)> {
    let named = words.next();
    let name = named.name(reason)?;
    if !list.contains(&name.as_str()) {
        return named.refuse(reason);
    }
    let word = words.next();
    if word.text != between {
        return word.refuse(missing);
    }
    let number = words.next().number(0)?;
    let end = words.next();
    if !end.ends_rule() {
        return end.refuse("nothing may follow here");
    }
    Ok((name, number))
}

fn rule<'a>(begin: Word<'a>, words: &mut Words<'a>) -> Read<'a, Rule> {
    let plain = |what| Rule { what, pick: Pick::All, window: Window::ALL, at: begin.at };
    if let Some(action) = action(begin, words) {
        return packet(action?, begin, words);
    }
    match begin.text {
        "call" => call(begin, words),
        "limit" => {
            let reason = "no limit, such as max_qp, max_sge or memlock";
            let between = ("=", "'=' is to stand here");
            named_number(words, LoweredLimits::NAMES, reason, between)
                .map(|(n, v)| plain(What::Limit(n, v)))
        }
        "event" => {
            let reason = "no event, such as port_down";
            let between = ("after", "'after' is to stand here");
            named_number(words, EVENTS, reason, between).map(|(n, v)| plain(What::Event(n, v)))
        }
        _ => begin.refuse(
            "no rule: they begin with loss, duplicate, reorder, delay, corrupt, partition, ecn, \
             slow, rnr, call, limit or event",
        ),
    }
}

/// Reads a list of rules.
pub(super) fn parse(text: &str, calls: Calls) -> Read<'_, heapless::Vec<Rule, RULES_MAX>> {
    let mut words = Words { calls, rest: text, line: 1, column: 1 };
    let mut rules = heapless::Vec::new();
    loop {
        let begin = words.next();
        match begin.text {
            "" => break,
            ";" => continue,
            _ => {}
        }
        let read = rule(begin, &mut words)?;
        if rules.push(read).is_err() {
            return begin.refuse("there are 32 rules before this one, and no more may be");
        }
    }
    match rules.is_empty() {
        true => Word { text: "", at: (words.line, words.column) }.refuse("there is no rule"),
        false => Ok(rules),
    }
}
