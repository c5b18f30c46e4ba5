//! Reports: what stands in one, which are suppressed, and what follows from one.

use crate::json::quoted;
use crate::rules::{is_known, Rule};
use crate::sites::{Frame, Site, Sites};
use gdrcore_calls::options::{Mode, Setting, STRICT_JSON, STRICT_SUPPRESSIONS};
use gdrcore_net::error_stream::ErrorStream;
use gdrcore_net::inject::is_privileged;
use gdrcore_net::reason::say;
use gdrcore_net::signals::without_signals;
use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

/// Most reports of a process.
const REPORTS_MAX: usize = 1000;
/// Most suppressed places that are kept.
const HIDDEN_MAX: usize = 1 << 16;
/// Bytes for which a pipe that can be written has room.
const PIPE_BUF: usize = 4096;

/// A line of the file of suppressions: reports of a rule, or only those with a word in a function
/// or file of their stacks.
#[derive(Debug, PartialEq, Eq)]
struct Suppression {
    rule: String,
    word: String,
}

fn suppressions(text: &str) -> Result<Vec<Suppression>, String> {
    let mut all = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let (rule, word) = line.split_once(':').unwrap_or((line, ""));
        let (rule, word) = (rule.trim(), word.trim());
        match rule {
            "" if word.is_empty() => {}
            rule if is_known(rule) => {
                all.push(Suppression { rule: rule.into(), word: word.into() })
            }
            rule => return Err(format!("line {}: no rule '{rule}'", n + 1)),
        }
    }
    Ok(all)
}

/// A file that the environment names, unless the program has the rights of another user.
fn file(setting: &Setting) -> Option<PathBuf> {
    let named = setting.value(|words| say(format_args!("{words}")));
    named.filter(|_| !is_privileged()).map(PathBuf::from)
}

/// The calling thread's number, asked of the kernel itself: glibc has had a function for it only
/// since 2.30.
pub fn own_thread() -> u32 {
    // SAFETY: takes nothing, never fails.
    (unsafe { libc::syscall(libc::SYS_gettid) }) as u32
}

/// What is reported.
pub struct Report {
    pub rule: Rule,
    /// The object, such as `QP 0x11, wr_id 7`, and what is wrong with it.
    pub words: String,
    /// Where it was posted or made.
    pub site: Site,
    /// Where it was noticed, if that is another place.
    pub noticed: Option<Site>,
}

/// The reports of this process.
pub struct Reports {
    pub mode: Mode,
    json: Option<PathBuf>,
    suppressions: Vec<Suppression>,
    seen: HashSet<(Rule, Site)>,
    /// Places of reports that are suppressed, whose stacks are not looked up again.
    hidden: HashSet<(Rule, Site, Option<Site>)>,
    error: ErrorStream,
}

impl Reports {
    /// None yet. A file of suppressions that cannot be read, or is wrong, is said and not used.
    pub fn new(mode: Mode) -> Reports {
        let named = file(&STRICT_SUPPRESSIONS);
        let parsed = named.map(|path| {
            let text = std::fs::read_to_string(&path).map_err(|e| e.to_string());
            text.and_then(|t| suppressions(&t)).map_err(|why| format!("{}: {why}", path.display()))
        });
        let suppressions = parsed.transpose().unwrap_or_else(|why| {
            say(format_args!("GDRC_STRICT_SUPPRESSIONS: {why}; nothing is suppressed"));
            None
        });
        let suppressions = suppressions.unwrap_or_default();
        Reports::with_output(mode, file(&STRICT_JSON), suppressions)
    }

    fn with_output(mode: Mode, json: Option<PathBuf>, suppressions: Vec<Suppression>) -> Reports {
        let (seen, hidden) = (HashSet::new(), HashSet::new());
        Reports { mode, json, suppressions, seen, hidden, error: ErrorStream::new() }
    }

    /// How many there were.
    pub fn count(&self) -> usize {
        self.seen.len()
    }

    /// Forgets them: a child of fork begins anew.
    pub fn clear(&mut self) {
        self.seen.clear();
    }

    /// Prints a report, unless its place has had one by this rule.
    pub fn add(&mut self, sites: &Sites, report: &Report) {
        let key = (report.rule, report.site);
        let hidden = (report.rule, report.site, report.noticed);
        let is_known = self.seen.contains(&key) || self.hidden.contains(&hidden);
        if self.seen.len() == REPORTS_MAX || is_known {
            return;
        }
        let frames = sites.frames(report.site);
        let noticed = report.noticed.map(|site| sites.frames(site)).unwrap_or_default();
        if self.is_suppressed(report.rule, frames.iter().chain(&noticed)) {
            if self.hidden.len() < HIDDEN_MAX {
                self.hidden.insert(hidden);
            }
            return;
        }
        self.seen.insert(key);
        let text = in_words(report, &frames, &noticed);
        for part in parts(&text) {
            self.error.write(part);
        }
        if let Some(path) = &self.json {
            let line = in_json(report, &frames, &noticed);
            let open = OpenOptions::new()
                .append(true)
                .create(true)
                .mode(0o600)
                // It follows no link, and does not wait for a reader.
                .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK)
                .open(path);
            let written = open.and_then(|mut f| without_signals(|| f.write_all(line.as_bytes())));
            if let Err(e) = written {
                say(format_args!("GDRC_STRICT_JSON: {} ends here: {e}", path.display()));
                self.json = None;
            }
        }
        if self.mode == Mode::Abort {
            // SAFETY: ends the process.
            unsafe { libc::abort() };
        }
    }

    fn is_suppressed<'a>(&self, rule: Rule, mut frames: impl Iterator<Item = &'a Frame>) -> bool {
        let of_rule = self.suppressions.iter().filter(|s| s.rule == rule.name());
        let mut words = of_rule.map(|s| s.word.as_str()).peekable();
        if words.peek().is_none() {
            return false;
        }
        let words: Vec<&str> = words.collect();
        words.contains(&"")
            || frames.any(|f| {
                let file = f.line.as_ref().map_or("", |(file, _)| file.as_str());
                let has =
                    |w: &&str| [&*f.function, file, &*f.module.0].iter().any(|t| t.contains(*w));
                words.iter().any(has)
            })
    }
}

/// Parts of whole lines for which a pipe that can be written has room: all of it if that is so.
fn parts(text: &str) -> Vec<&str> {
    match text.len() <= PIPE_BUF {
        true => vec![text],
        false => text.split_inclusive('\n').collect(),
    }
}

fn in_words(report: &Report, frames: &[Frame], noticed: &[Frame]) -> String {
    let rule = report.rule;
    let mut text = format!("gdrcore strict: {}: {}\n", rule.name(), report.words);
    let mut stack = |head: &str, frames: &[Frame]| {
        let _ = writeln!(text, "  {head}");
        for (n, f) in frames.iter().enumerate() {
            let name = if f.function.is_empty() { "?" } else { &f.function };
            let _ = match &f.line {
                Some((file, line)) => writeln!(text, "    #{n} {name} {file}:{line}"),
                None => writeln!(text, "    #{n} {name} {}+{:#x}", f.module.0, f.module.1),
            };
        }
    };
    stack("at", frames);
    if !noticed.is_empty() {
        stack("noticed at", noticed);
    }
    let _ = writeln!(text, "  rule: {} ({})", rule.words(), rule.source());
    text
}

fn in_json(report: &Report, frames: &[Frame], noticed: &[Frame]) -> String {
    let mut text = String::from("{\"rule\":");
    quoted(&mut text, report.rule.name());
    let (pid, thread) = (std::process::id(), own_thread());
    let _ = write!(text, ",\"pid\":{pid},\"thread\":{thread}");
    for (name, value) in [
        ("what", report.words.as_str()),
        ("words", report.rule.words()),
        ("source", report.rule.source()),
    ] {
        let _ = write!(text, ",\"{name}\":");
        quoted(&mut text, value);
    }
    for (name, frames) in [("at", frames), ("noticed", noticed)] {
        let _ = write!(text, ",\"{name}\":[");
        for (n, f) in frames.iter().enumerate() {
            text.push_str(if n > 0 { ",{\"function\":" } else { "{\"function\":" });
            quoted(&mut text, &f.function);
            if let Some((file, line)) = &f.line {
                text.push_str(",\"file\":");
                quoted(&mut text, file);
                let _ = write!(text, ",\"line\":{line}");
            }
            text.push_str(",\"module\":");
            quoted(&mut text, &f.module.0);
            let _ = write!(text, ",\"offset\":{}}}", f.module.1);
        }
        text.push(']');
    }
    text.push_str("}\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suppression_names_a_rule_and_perhaps_a_word() {
        let all =
            suppressions("# none\n\nobject-left\n missing-fence : copy_ring # ours\n").unwrap();
        let of = |rule: &str, word: &str| Suppression { rule: rule.into(), word: word.into() };
        assert_eq!(all, [of("object-left", ""), of("missing-fence", "copy_ring")]);
        let why = suppressions("object-left\nobject-lost:x\n").unwrap_err();
        assert_eq!(why, "line 2: no rule 'object-lost'");
        let reports = Reports::with_output(Mode::Report, None, all);
        let frame = |f: &str| [Frame { function: f.into(), ..Frame::default() }];
        assert!(reports.is_suppressed(Rule::ObjectLeft, frame("main").iter()));
        assert!(reports.is_suppressed(Rule::MissingFence, frame("my_copy_ring").iter()));
        assert!(!reports.is_suppressed(Rule::MissingFence, frame("main").iter()));
        assert!(!reports.is_suppressed(Rule::CqOverrun, frame("copy_ring").iter()));
    }

    #[test]
    fn a_report_is_a_line_of_json() {
        let report =
            Report { rule: Rule::SendChanged, words: "a \"b\"".into(), site: 0, noticed: None };
        let frame = Frame {
            function: "main".into(),
            line: Some(("x.c".into(), 7)),
            module: ("/bin/x".into(), 16),
            ..Frame::default()
        };
        let line = in_json(&report, &[frame], &[]);
        assert!(line.starts_with("{\"rule\":\"send-buffer-changed\",\"pid\":"), "{line}");
        assert!(line.contains("\"what\":\"a \\\"b\\\"\""), "{line}");
        let at = "\"at\":[{\"function\":\"main\",\"file\":\"x.c\",\"line\":7,\
                  \"module\":\"/bin/x\",\"offset\":16}],\"noticed\":[]}\n";
        assert!(line.ends_with(at), "{line}");
    }
}
