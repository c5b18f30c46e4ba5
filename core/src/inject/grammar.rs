//! The language of the rules.
//!
//! ```text
//! rules     = [rule] { (";" | newline) [rule] }          "#" begins a comment, to the line's end
//! rule      = packet | call | limit | event | few | overrun | "keys" | "weak"
//! packet    = action { "in" | "out" | "peer" ADDRESS | "type" TYPE | "opcode" OPCODE | "qp" N
//!                      | "message" | "cm" MESSAGE | which }
//! action    = "loss" | "duplicate" | "reorder" N | "delay" TIME | "corrupt" | "partition"
//!           | "ecn" | "slow" TIME | "rnr" | "completion" STATUS | "reject" REASON
//!           | "unreachable" | "cut" N | "scatter" | "lag" | "swap"
//! call      = "call" NAME { "errno" ERRNO | which }      one errno
//! limit     = "limit" NAME "=" N
//! event     = "event" NAME { "in" | "out" | "qp" N | "after" N | "at" TIME }
//!                                                        one of the last two
//! few       = "few" { which }
//! overrun   = "cq" "overrun"
//! which     = "nth" N | "every" N | "rate" PERCENT "%" | "from" N | "to" N
//! TYPE      = "RC" | "UC" | "UD" | "XRC" | "DC" | "GSI"
//! OPCODE    = the name of an opcode of RC without "RC_", or "CNP"
//! MESSAGE   = "REQ" | "MRA" | "REJ" | "REP" | "RTU" | "DREQ" | "DREP" | "SIDR_REQ" | "SIDR_REP"
//! STATUS    = the name of a completion's status without "IBV_WC_"
//! REASON    = a number, or a name of gdrcore.h without "GDRC_REJ_"
//! TIME      = a number and "ns", "us", "ms" or "s", at most 60 s
//! ```

use super::events::EVENTS;
use super::{
    Action, Calls, Direction, Event, Filter, Pick, Rule, RuleName, Service, What, When, Window,
    RULES_MAX,
};
use crate::cm::types::{mad_attribute, reject};
use crate::config::LoweredLimits;
use crate::verbs::types::wc_status;
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
type Rules = heapless::Vec<Rule, RULES_MAX>;

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

    /// The number of a queue pair. Larger ones than any are all the same.
    fn qp_number(self) -> Read<'a, u32> {
        self.number(1).map(|n| u32::try_from(n).unwrap_or(u32::MAX))
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
    fn name(self, reason: &'static str) -> Read<'a, RuleName> {
        let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
        match RuleName::from_str(self.text) {
            Ok(name) if !name.is_empty() && self.text.bytes().all(fits) => Ok(name),
            _ => self.refuse(reason),
        }
    }

    /// The value of a name in a table.
    fn look_up<T: Copy>(self, table: &[(&str, T)], reason: &'static str) -> Read<'a, T> {
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

    /// The rule that begins with `begin`, under these conditions.
    fn rule(self, what: What, begin: Word<'_>) -> Rule {
        let Window { from, to } = Window::ALL;
        let window = Window { from: self.from.unwrap_or(from), to: self.to.unwrap_or(to) };
        Rule { what, pick: self.pick.unwrap_or(Pick::All), window, at: begin.at }
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

/// Messages of connection managers.
const MESSAGES: &[(&str, u16)] = &[
    ("REQ", mad_attribute::REQ),
    ("MRA", mad_attribute::MRA),
    ("REJ", mad_attribute::REJ),
    ("REP", mad_attribute::REP),
    ("RTU", mad_attribute::RTU),
    ("DREQ", mad_attribute::DREQ),
    ("DREP", mad_attribute::DREP),
    ("SIDR_REQ", mad_attribute::SIDR_REQ),
    ("SIDR_REP", mad_attribute::SIDR_REP),
];

/// Reasons of a rejection.
const REASONS: &[(&str, u16)] = &[
    ("NO_QP", reject::NO_QP),
    ("NO_RESOURCES", reject::NO_RESOURCES),
    ("TIMEOUT", reject::TIMEOUT),
    ("UNSUPPORTED", reject::UNSUPPORTED),
    ("INVALID_COMM_ID", reject::INVALID_COMM_ID),
    ("INVALID_SERVICE_ID", reject::INVALID_SERVICE_ID),
    ("INVALID_TRANSPORT", reject::INVALID_TRANSPORT),
    ("STALE_CONNECTION", reject::STALE_CONNECTION),
    ("INVALID_GID", reject::INVALID_GID),
    ("INVALID_MTU", reject::INVALID_MTU),
    ("CONSUMER", reject::CONSUMER),
];

/// Statuses of completions that tell of an error.
const STATUSES: &[(&str, u32)] = &[
    ("LOC_LEN_ERR", wc_status::LOC_LEN_ERR),
    ("LOC_QP_OP_ERR", wc_status::LOC_QP_OP_ERR),
    ("LOC_PROT_ERR", wc_status::LOC_PROT_ERR),
    ("WR_FLUSH_ERR", wc_status::WR_FLUSH_ERR),
    ("MW_BIND_ERR", wc_status::MW_BIND_ERR),
    ("BAD_RESP_ERR", wc_status::BAD_RESP_ERR),
    ("LOC_ACCESS_ERR", wc_status::LOC_ACCESS_ERR),
    ("REM_INV_REQ_ERR", wc_status::REM_INV_REQ_ERR),
    ("REM_ACCESS_ERR", wc_status::REM_ACCESS_ERR),
    ("REM_OP_ERR", wc_status::REM_OP_ERR),
    ("RETRY_EXC_ERR", wc_status::RETRY_EXC_ERR),
    ("RNR_RETRY_EXC_ERR", wc_status::RNR_RETRY_EXC_ERR),
    ("REM_ABORT_ERR", wc_status::REM_ABORT_ERR),
    ("FATAL_ERR", wc_status::FATAL_ERR),
    ("RESP_TIMEOUT_ERR", wc_status::RESP_TIMEOUT_ERR),
    ("GENERAL_ERR", wc_status::GENERAL_ERR),
];

/// A reason: its name, or its number.
fn reason(word: Word<'_>) -> Read<'_, u16> {
    const WANTED: &str = "no reason, such as CONSUMER, INVALID_SERVICE_ID or a number from 1 on";
    match word.number(1).ok().and_then(|n| u16::try_from(n).ok()) {
        Some(number) => Ok(number),
        None => word.look_up(REASONS, WANTED),
    }
}

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
        "scatter" => Action::Scatter,
        "lag" => Action::Lag,
        "swap" => Action::Swap,
        "unreachable" => Action::Unreachable,
        "completion" => {
            let named =
                words.next().look_up(STATUSES, "no status of an error, such as RETRY_EXC_ERR");
            return Some(named.map(Action::Completion));
        }
        "reject" => return Some(reason(words.next()).map(Action::Reject)),
        "cut" => {
            let len = words.next();
            return Some(match len.number(0) {
                Ok(n @ 0..=255) => Ok(Action::Cut(n as u32)),
                Ok(_) => len.refuse("no message has so many bytes of private data"),
                Err(refused) => Err(refused),
            });
        }
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

/// What an action forbids, and what it means without being told.
fn check<'a>(action: Action, word: Word<'a>, filter: &mut Filter, given: &Given) -> Read<'a, ()> {
    match action {
        Action::Ecn | Action::Rnr | Action::Scatter | Action::Lag | Action::Swap => {
            if given.direction == Some(Direction::Out) {
                return word
                    .refuse("it is about packets that arrive: 'out' may not stand behind it");
            }
            filter.direction = Direction::In;
        }
        Action::Completion(_) => {
            // What arrives is counted where it takes its receive request.
            filter.message = filter.direction == Direction::Out;
        }
        Action::Reject(_) | Action::Unreachable | Action::Cut(_) => {
            if given.direction == Some(Direction::In) {
                return word
                    .refuse("it is about messages that leave: 'in' may not stand behind it");
            }
            let asks = filter.cm.is_none_or(|cm| cm == mad_attribute::REQ);
            if !matches!(action, Action::Cut(_)) {
                if !asks {
                    return word.refuse("it is about REQ alone");
                }
                filter.cm = Some(mad_attribute::REQ);
            }
            filter.service = filter.service.or(Some(Service::Gsi));
        }
        _ => {}
    }
    if action.is_of_path() && given.picks {
        return word.refuse("it is about all packets: only 'from' and 'to' choose among them");
    }
    Ok(())
}

/// What a rule about packets names.
struct Given {
    direction: Option<Direction>,
    picks: bool,
}

/// Reads the conditions of a rule about packets, which begins with `begin`.
fn packet<'a>(action: Action, begin: Word<'a>, words: &mut Words<'a>) -> Read<'a, Rule> {
    let (mut which, mut message) = (Which::default(), None);
    let (mut direction, mut of_peer, mut service) = (None, None, None);
    let (mut of_opcode, mut qp, mut cm) = (None, None, None);
    loop {
        let word = words.next();
        match word.text {
            _ if word.ends_rule() => break,
            "in" => once(&mut direction, word, Ok(Direction::In))?,
            "out" => once(&mut direction, word, Ok(Direction::Out))?,
            "message" => once(&mut message, word, Ok(true))?,
            "peer" => once(&mut of_peer, word, peer(words.next()))?,
            "type" => {
                let named =
                    words.next().look_up(SERVICES, "the types are RC, UC, UD, XRC, DC and GSI");
                once(&mut service, word, named)?;
            }
            "opcode" => once(&mut of_opcode, word, opcode(words.next()))?,
            "qp" => once(&mut qp, word, words.next().qp_number())?,
            "cm" => {
                let named =
                    words.next().look_up(MESSAGES, "no message, such as REQ, REP, REJ or DREQ");
                once(&mut cm, word, named)?;
            }
            _ => {
                match which.read(word, words) {
                    Some(read) => read?,
                    None => return word.refuse(
                        "no condition: in, out, peer, type, opcode, qp, message, cm, nth, every, \
                     rate, from or to",
                    ),
                }
            }
        }
    }
    let given = Given { direction, picks: which.pick.is_some() };
    let (direction, message) = (direction.unwrap_or(Direction::Out), message.unwrap_or(false));
    let mut filter =
        Filter { direction, peer: of_peer, service, opcode: of_opcode, qp, message, cm };
    check(action, begin, &mut filter, &given)?;
    Ok(which.rule(What::Packet(action, filter), begin))
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
                let named = words.next().look_up(ERRNOS, "no errno, such as ENOMEM");
                once(&mut errno, word, named)?;
            }
            _ => match which.read(word, words) {
                Some(read) => read?,
                None => return word.refuse("no condition: errno, nth, every, rate, from or to"),
            },
        }
    };
    let Some(errno) = errno else { return end.refuse("'errno' and its name are missing") };
    Ok(which.rule(What::Call(name, errno), begin))
}

/// Reads the conditions of a rule about completions, which begins with `begin`.
fn few<'a>(begin: Word<'a>, words: &mut Words<'a>) -> Read<'a, Rule> {
    let mut which = Which::default();
    loop {
        let word = words.next();
        if word.ends_rule() {
            return Ok(which.rule(What::Few, begin));
        }
        match which.read(word, words) {
            Some(read) => read?,
            None => return word.refuse("no condition: nth, every, rate, from or to"),
        }
    }
}

/// The rules for which `weak` stands.
fn weak<'a>(begin: Word<'a>, words: &mut Words<'a>, rules: &mut Rules) -> Read<'a, ()> {
    let end = words.next();
    if !end.ends_rule() {
        return end.refuse("nothing may follow here");
    }
    let mut own = Words { calls: words.calls, rest: super::WEAK, line: 1, column: 1 };
    loop {
        let word = own.next();
        match word.text {
            "" => return Ok(()),
            ";" => continue,
            _ => {}
        }
        let Ok(read) = rule(word, &mut own) else { return Ok(()) };
        push(Rule { at: begin.at, ..read }, begin, rules)?;
    }
}

fn push<'a>(rule: Rule, begin: Word<'a>, rules: &mut Rules) -> Read<'a, ()> {
    match rules.push(rule) {
        Ok(()) => Ok(()),
        Err(_) => begin.refuse("there are 32 rules before this one, and no more may be"),
    }
}

fn limit<'a>(begin: Word<'a>, words: &mut Words<'a>) -> Read<'a, Rule> {
    const WANTED: &str = "no limit, such as max_qp, max_sge or memlock";
    let named = words.next();
    let name = named.name(WANTED)?;
    if !LoweredLimits::NAMES.contains(&name.as_str()) {
        return named.refuse(WANTED);
    }
    let word = words.next();
    if word.text != "=" {
        return word.refuse("'=' is to stand here");
    }
    let most = words.next().number(0)?;
    plain_rule(What::Limit(name, most), begin, words)
}

fn event<'a>(begin: Word<'a>, words: &mut Words<'a>) -> Read<'a, Rule> {
    let named = words.next();
    let found = EVENTS.iter().find(|(name, _)| *name == named.text);
    let Some((name, what)) = found else {
        return named.refuse("no event, such as PORT_ERR, QP_FATAL or DISCONNECTED");
    };
    let (mut direction, mut qp, mut when) = (None, None, None);
    let end = loop {
        let word = words.next();
        match word.text {
            _ if word.ends_rule() => break word,
            "in" => once(&mut direction, word, Ok(Direction::In))?,
            "out" => once(&mut direction, word, Ok(Direction::Out))?,
            "qp" => once(&mut qp, word, words.next().qp_number())?,
            "after" => once(&mut when, word, words.next().number(1).map(When::After))?,
            "at" => once(&mut when, word, words.next().time().map(When::At))?,
            _ => return word.refuse("no condition: in, out, qp, after or at"),
        }
    };
    let Some(when) = when else { return end.refuse("'after' or 'at' is missing") };
    let (qp, direction) = (qp.unwrap_or(1), direction.unwrap_or(Direction::Out));
    let what = What::Event(Event { name, what: *what, qp, direction, when });
    Ok(Rule { what, pick: Pick::All, window: Window::ALL, at: begin.at })
}

/// A rule that has nothing behind it.
fn plain_rule<'a>(what: What, begin: Word<'a>, words: &mut Words<'a>) -> Read<'a, Rule> {
    let end = words.next();
    match end.ends_rule() {
        true => Ok(Rule { what, pick: Pick::All, window: Window::ALL, at: begin.at }),
        false => end.refuse("nothing may follow here"),
    }
}

fn rule<'a>(begin: Word<'a>, words: &mut Words<'a>) -> Read<'a, Rule> {
    if let Some(action) = action(begin, words) {
        return packet(action?, begin, words);
    }
    match begin.text {
        "call" => call(begin, words),
        "few" => few(begin, words),
        "limit" => limit(begin, words),
        "event" => event(begin, words),
        "keys" => plain_rule(What::Keys, begin, words),
        "cq" => {
            let word = words.next();
            match word.text {
                "overrun" => plain_rule(What::CqOverrun, begin, words),
                _ => word.refuse("'overrun' is to stand here"),
            }
        }
        _ => begin.refuse(
            "no rule: they begin with loss, duplicate, reorder, delay, corrupt, partition, ecn, \
             slow, rnr, scatter, lag, swap, completion, reject, unreachable, cut, few, \
             call, limit, event, cq, keys or weak",
        ),
    }
}

/// Reads a list of rules.
pub(super) fn parse(text: &str, calls: Calls) -> Read<'_, Rules> {
    let mut words = Words { calls, rest: text, line: 1, column: 1 };
    let mut rules = Rules::new();
    loop {
        let begin = words.next();
        match begin.text {
            "" => break,
            ";" => continue,
            _ => {}
        }
        if begin.text == "weak" {
            weak(begin, &mut words, &mut rules)?;
        } else {
            push(rule(begin, &mut words)?, begin, &mut rules)?;
        }
    }
    match rules.is_empty() {
        true => Word { text: "", at: (words.line, words.column) }.refuse("there is no rule"),
        false => Ok(rules),
    }
}
