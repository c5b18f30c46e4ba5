//! Which calls are wanted: `call=ibv_post_*,ibv_poll_cq;qp=0x11`.

use crate::table::CALLS;

/// A kind of object that a filter may name, with its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the objects of verbs
pub enum Object {
    Qp,
    Cq,
    Mr,
    Pd,
    Srq,
    Mw,
    Ah,
    Dm,
    /// A cm_id, by the kernel's number.
    Id,
}

const OBJECTS: [(&str, Object); 9] = [
    ("qp", Object::Qp),
    ("cq", Object::Cq),
    ("mr", Object::Mr),
    ("pd", Object::Pd),
    ("srq", Object::Srq),
    ("mw", Object::Mw),
    ("ah", Object::Ah),
    ("dm", Object::Dm),
    ("id", Object::Id),
];

/// Most clauses, so that a set of them fits into a word.
const CLAUSES_MAX: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Clause {
    /// One bit for each row of [`CALLS`].
    Calls(Vec<bool>),
    Threads(Vec<u32>),
    Objects(Object, Vec<u32>),
}

/// Clauses that must all hold. Each lists what it accepts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter(Vec<Clause>);

impl Filter {
    /// Parses clauses `KEY=VALUE,…`, separated by `;`. Keys: `call`, with names of calls, of which
    /// the last character may be `*`; `thread`, with numbers of threads; `qp` (the number of a
    /// queue pair), `cq`, `mr`, `pd`, `srq`, `mw`, `ah`, `dm` (handles) and `id` (a cm_id), with
    /// numbers as the trace prints them.
    ///
    /// # Errors
    /// In words: the part that is wrong, and what would be right.
    pub fn parse(text: &str) -> Result<Filter, String> {
        let clauses: Result<Vec<_>, _> = text.split(';').map(clause).collect();
        let clauses = clauses?;
        match clauses.len() {
            0..=CLAUSES_MAX => Ok(Filter(clauses)),
            n => Err(format!("{n} conditions; there may be {CLAUSES_MAX}")),
        }
    }

    /// The clauses that a call of this row by this thread leaves open, one bit for each; `None`: it
    /// is not wanted, whatever its objects.
    pub fn open(&self, row: usize, thread: u32) -> Option<u32> {
        let mut open = 0;
        for (i, clause) in self.0.iter().enumerate() {
            let holds = match clause {
                Clause::Calls(rows) => rows[row],
                Clause::Threads(all) => all.contains(&thread),
                Clause::Objects(..) => {
                    open |= 1 << i;
                    true
                }
            };
            if !holds {
                return None;
            }
        }
        Some(open)
    }

    /// Of the clauses `open`, those that an object of the call leaves open. 0: the call is wanted.
    pub fn close(&self, open: u32, object: Object, number: u32) -> u32 {
        let closes = |(i, clause): (usize, &Clause)| match clause {
            Clause::Objects(kind, all) if *kind == object && all.contains(&number) => 1 << i,
            _ => 0,
        };
        open & !self.0.iter().enumerate().map(closes).fold(0, |a, b| a | b)
    }
}

fn clause(text: &str) -> Result<Clause, String> {
    let Some((key, values)) = text.split_once('=') else {
        return Err(format!("'{text}': a condition is KEY=VALUE, such as qp=0x11"));
    };
    let values = values.split(',');
    match (key, OBJECTS.iter().find(|(k, _)| *k == key)) {
        ("call", _) => calls(values).map(Clause::Calls),
        ("thread", _) => values.map(number).collect::<Result<_, _>>().map(Clause::Threads),
        (_, Some((_, object))) => {
            values.map(number).collect::<Result<_, _>>().map(|all| Clause::Objects(*object, all))
        }
        _ => {
            let keys: Vec<&str> = OBJECTS.iter().map(|(k, _)| *k).collect();
            Err(format!("'{key}': the keys are call, thread, {}", keys.join(", ")))
        }
    }
}

fn calls<'a>(names: impl Iterator<Item = &'a str>) -> Result<Vec<bool>, String> {
    let mut rows = vec![false; CALLS.len()];
    for name in names {
        let mut known = false;
        for (row, call) in rows.iter_mut().zip(CALLS) {
            let is = match name.strip_suffix('*') {
                Some(beginning) => call.name.starts_with(beginning),
                None => call.name == name,
            };
            *row |= is;
            known |= is;
        }
        if !known {
            return Err(format!("'{name}': no call of libibverbs or librdmacm has that name"));
        }
    }
    Ok(rows)
}

fn number(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("'{text}': not a number, such as 17 or 0x11"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Row;

    fn open(filter: &str, row: Row) -> Option<u32> {
        Filter::parse(filter).unwrap().open(row as usize, 7)
    }

    #[test]
    fn all_clauses_must_hold_and_one_value_of_each() {
        assert_eq!(Filter::default().open(0, 1), Some(0), "no filter");
        assert_eq!(open("call=ibv_post_send,ibv_poll_cq", Row::ibv_poll_cq), Some(0));
        assert_eq!(open("call=ibv_post_send,ibv_poll_cq", Row::ibv_post_recv), None);
        assert_eq!(open("call=ibv_post_*", Row::ibv_post_srq_recv), Some(0));
        assert_eq!(open("thread=6,7", Row::ibv_fork_init), Some(0));
        assert_eq!(open("thread=8", Row::ibv_fork_init), None);
        let f = Filter::parse("qp=0x11,18;call=*;cq=2").unwrap();
        let all = f.open(Row::ibv_poll_cq as usize, 1).unwrap();
        assert_eq!(all, 0b101);
        assert_eq!(f.close(all, Object::Cq, 17), all, "another kind with this number");
        assert_eq!(f.close(all, Object::Qp, 17), 0b100);
        assert_eq!(f.close(f.close(all, Object::Qp, 18), Object::Cq, 2), 0);
    }

    #[test]
    fn wrong_words_are_named() {
        for (text, part) in [
            ("", "KEY=VALUE"),
            ("qp", "'qp': a condition"),
            ("call=ibv_post_sent", "'ibv_post_sent': no call"),
            ("call=", "'': no call"),
            ("call=x*", "'x*': no call"),
            ("qp=eleven", "'eleven': not a number"),
            ("qp=-1", "'-1': not a number"),
            ("qp=0x1ffffffff", "not a number"),
            ("tid=1", "'tid': the keys are call, thread, qp"),
            ("qp=1;", "'': a condition"),
            (&["qp=1"; 33].join(";"), "33 conditions"),
        ] {
            let why = Filter::parse(text).unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
