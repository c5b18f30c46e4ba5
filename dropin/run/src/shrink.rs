//! Shrinks a set of faults with which a program fails to one of which each fault is needed.

use gdrcore_core::inject::WEAK;

/// Rules of one list, at most.
const RULES_MAX: usize = gdrcore_core::inject::RULES_MAX;
/// A number that no packet and no call has.
const NEVER: u64 = 1_000_000_000_000;

/// Whether a run with these rules fails as the first one did; then the lines of its log.
pub trait Try {
    /// Runs the program.
    ///
    /// # Errors
    /// It cannot be run, in words.
    fn fails(&mut self, rules: &[String]) -> Result<Option<Vec<String>>, String>;
}

/// The rules of a text, without comments, and with those for which `weak` stands.
pub fn rules_of(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    let rules = lines.flat_map(|line| line.split(';')).map(str::trim);
    let rules = rules.flat_map(|rule| if rule == "weak" { WEAK } else { rule }.split(';'));
    rules.map(str::trim).filter(|r| !r.is_empty()).map(str::to_string).collect()
}

/// Whether the word is a condition with a number behind it, by which a rule chooses.
fn chooses(word: &str) -> bool {
    matches!(word, "nth" | "every" | "rate" | "from" | "to")
}

/// A rule without some of its conditions that have a value.
fn without(rule: &str, is_out: impl Fn(&str) -> bool) -> String {
    let mut words = rule.split_whitespace();
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        match is_out(word) {
            true => _ = words.next(),
            false => kept.push(word),
        }
    }
    kept.join(" ")
}

/// The word behind another one.
fn word_behind<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    text.split_whitespace().skip_while(|w| *w != word).nth(1)
}

/// Whether a rule is about packets or calls, which it counts.
pub fn counts(rule: &str) -> bool {
    !matches!(rule.split_whitespace().next(), Some("limit" | "event" | "cq" | "keys"))
}

/// A rule for packets and calls of these numbers alone.
fn narrowed(rule: &str, (from, to): (u64, u64)) -> String {
    format!("{} from {from} to {to}", without(rule, |w| matches!(w, "from" | "to")))
}

/// The number of the packet or call that a line of the log names.
fn number(line: &str) -> Option<u64> {
    word_behind(line, "packet").or_else(|| word_behind(line, "nth"))?.parse().ok()
}

/// The rule that a line of the log is of; the first is 0.
fn rule_of(line: &str) -> Option<usize> {
    line.rsplit_once(" rule ")?.1.parse::<usize>().ok()?.checked_sub(1)
}

/// The rule for the fault of a line of the log alone.
fn alone(rules: &[String], line: &str) -> Option<String> {
    let rule = rules.get(rule_of(line)?)?;
    let number = number(line)?;
    if rule.starts_with("call ") {
        return Some(line.rsplit_once(" rule ")?.0.to_string());
    }
    let rest = without(rule, |w| chooses(w) || w == "qp");
    // QP1 has no number: such a rule names it by its type.
    let qp = match word_behind(line, "qp") {
        Some("0") | None => String::new(),
        Some(qp) => format!(" qp {qp}"),
    };
    let is_of_path = ["partition", "slow"].iter().any(|path| rule.starts_with(path));
    let which = if is_of_path { "from" } else { "nth" };
    Some(format!("{rest}{qp} {which} {number}"))
}

/// Narrows each rule that counts to the numbers that are needed, or to none. The places of the
/// rules stay, from which their decisions follow. `log`: that of the failure.
fn narrow(
    rules: &[String],
    mut log: Vec<String>,
    run: &mut impl Try,
) -> Result<(Vec<String>, Vec<String>), String> {
    let mut now = rules.to_vec();
    for i in (0..rules.len()).filter(|i| counts(&rules[*i])) {
        let mut attempt = |now: &mut Vec<String>, window, log: &mut Vec<String>| {
            let mut tried = now.clone();
            tried[i] = narrowed(&rules[i], window);
            let failed = run.fails(&tried)?;
            let fails = failed.is_some();
            if let Some(lines) = failed {
                (*now, *log) = (tried, lines);
            }
            Ok::<bool, String>(fails)
        };
        if attempt(&mut now, (NEVER, NEVER), &mut log)? {
            continue;
        }
        let of_it = |line: &&String| rule_of(line) == Some(i);
        let mut all: Vec<u64> = log.iter().filter(of_it).filter_map(|line| number(line)).collect();
        all.sort_unstable();
        all.dedup();
        let Some((&first, &last)) = all.first().zip(all.last()) else { continue };
        // The smallest end, then the largest begin, among the numbers that were hit.
        let (mut low, mut high) = (0, all.len() - 1);
        while low < high {
            let middle = (low + high) / 2;
            match attempt(&mut now, (first, all[middle]), &mut log)? {
                true => high = middle,
                false => low = middle + 1,
            }
        }
        let end = if low == all.len() - 1 { last } else { all[low] };
        let (mut low, mut high) = (0, low);
        while low < high {
            let middle = (low + high).div_ceil(2);
            match attempt(&mut now, (all[middle], end), &mut log)? {
                true => low = middle,
                false => high = middle - 1,
            }
        }
    }
    now.retain(|rule| word_behind(rule, "from") != Some(NEVER.to_string().as_str()));
    Ok((now, log))
}

/// Rules with which the program still fails: those of single faults, each of which it needs, or
/// else of windows. `log`: that of the failure with `rules`.
///
/// # Errors
/// As [`Try::fails`].
pub fn smallest(
    rules: &[String],
    log: Vec<String>,
    run: &mut impl Try,
) -> Result<Vec<String>, String> {
    let explicit = |log: &[String]| {
        let kept = rules.iter().filter(|rule| !counts(rule)).cloned();
        let faults = log.iter().filter_map(|line| alone(rules, line));
        let mut all: Vec<String> = kept.chain(faults).collect();
        let mut seen = std::collections::BTreeSet::new();
        all.retain(|rule| seen.insert(rule.clone()));
        (all.len() <= RULES_MAX).then_some(all)
    };
    let mut fallback = rules.to_vec();
    let mut all = explicit(&log);
    if all.is_none() {
        let (narrowed, log) = narrow(rules, log, run)?;
        (fallback, all) = (narrowed, explicit(&log));
    }
    let Some(mut all) = all else { return Ok(fallback) };
    if run.fails(&all)?.is_none() {
        // What does not repeat fault by fault: it depends on time.
        return Ok(fallback);
    }
    // Halves first, single ones at the end until none can be left out.
    let mut step = all.len().div_ceil(2);
    while all.len() > 1 {
        let (mut at, before) = (0, all.len());
        while at < all.len() && all.len() > 1 {
            let end = (at + step).min(all.len());
            let rest: Vec<String> = all[..at].iter().chain(&all[end..]).cloned().collect();
            match !rest.is_empty() && run.fails(&rest)?.is_some() {
                true => all = rest,
                false => at = end,
            }
        }
        if step == 1 && all.len() == before {
            break;
        }
        step = step.div_ceil(2);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that has a fault for each multiple of 7, and fails with these numbers.
    struct Model {
        needs: Vec<u64>,
        /// It does not fail with the second without the first.
        bound: Option<(u64, u64)>,
        runs: usize,
    }

    impl Try for Model {
        fn fails(&mut self, rules: &[String]) -> Result<Option<Vec<String>>, String> {
            self.runs += 1;
            assert!(rules.len() <= RULES_MAX, "{rules:?}");
            let mut log = Vec::new();
            for n in 1..=1000u64 {
                for (i, rule) in rules.iter().enumerate().filter(|(_, rule)| counts(rule)) {
                    let word = |w| word_behind(rule, w).and_then(|v| v.parse::<u64>().ok());
                    let hit = match word("nth") {
                        Some(nth) => n == nth,
                        None => n % 7 == 0,
                    };
                    let from = word("from").unwrap_or(1);
                    if hit && from <= n && n <= word("to").unwrap_or(u64::MAX) {
                        log.push(format!(
                            "loss out qp 2 packet {n} RC_ACK peer 1.2.3.4 rule {}",
                            i + 1
                        ));
                    }
                }
            }
            let has = |n: &u64| log.iter().any(|line| number(line) == Some(*n));
            let is_bound = self.bound.is_some_and(|(a, b)| has(&b) && !has(&a));
            Ok((self.needs.iter().all(has) && !is_bound).then_some(log))
        }
    }

    fn shrunk(rules: &[&str], needs: &[u64]) -> (Vec<String>, usize) {
        shrunk_of(rules, Model { needs: needs.to_vec(), bound: None, runs: 0 })
    }

    fn shrunk_of(rules: &[&str], mut model: Model) -> (Vec<String>, usize) {
        let rules: Vec<String> = rules.iter().map(|r| r.to_string()).collect();
        let log = model.fails(&rules).unwrap().expect("it fails");
        (smallest(&rules, log, &mut model).unwrap(), model.runs)
    }

    #[test]
    fn the_needed_faults_are_found_among_many() {
        let rules = ["duplicate rate 1% from 2000", "loss message rate 14%"];
        let (one, runs) = shrunk(&rules, &[700]);
        assert_eq!(one, ["loss message qp 2 nth 700"]);
        assert!(runs < 40, "{runs}");
        let (two, _) = shrunk(&["loss rate 14%"], &[350, 371]);
        assert_eq!(two, ["loss qp 2 nth 350", "loss qp 2 nth 371"]);
    }

    #[test]
    fn one_that_can_be_left_out_only_without_another_is_left_out() {
        let model = Model { needs: vec![14, 21], bound: Some((7, 28)), runs: 0 };
        let (two, _) = shrunk_of(&["loss rate 14% to 28"], model);
        assert_eq!(two, ["loss qp 2 nth 14", "loss qp 2 nth 21"]);
    }

    #[test]
    fn faults_that_are_too_many_stay_a_window() {
        let (far, _) = shrunk(&["limit max_qp = 4", "loss rate 14% to 990"], &[70, 980]);
        assert_eq!(far, ["limit max_qp = 4", "loss rate 14% from 70 to 980"]);
    }

    #[test]
    fn weak_is_searched_rule_by_rule() {
        let rules = rules_of("ecn; weak # all");
        assert_eq!(rules[..2], ["ecn", "scatter rate 50%"]);
        assert_eq!(rules.len(), 1 + WEAK.split(';').count());
        assert_eq!(rules.iter().filter(|rule| !counts(rule)).count(), 1, "keys");
    }

    #[test]
    fn a_line_of_the_log_becomes_a_rule() {
        let rules = rules_of("loss rate 1%; call ibv_reg_mr rate 2% errno EIO # x\npartition in");
        let of = |line| alone(&rules, line).expect("a rule");
        let line = "loss out qp 3 packet 9 RC_SEND_ONLY peer 10.0.0.1 rule 1";
        assert_eq!(of(line), "loss qp 3 nth 9");
        let line = "call ibv_reg_mr nth 5 errno EIO rule 2";
        assert_eq!(of(line), "call ibv_reg_mr nth 5 errno EIO");
        let line = "partition in qp 1 packet 4 RC_ACK peer 10.0.0.1 rule 3";
        assert_eq!(of(line), "partition in qp 1 from 4");
        assert_eq!(alone(&rules, "overflow in qp 1"), None);
        assert_eq!(alone(&rules, "loss out qp 3 packet 9 RC_ACK peer 10.0.0.1 rule 9"), None);
    }
}
