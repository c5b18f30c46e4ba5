//! Texts with `*` and `?`.

use std::fmt;

/// A text in which `*` stands for any characters, `/` among them, and `?` for any one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// Parses a pattern; every text is one.
    pub fn new(text: &str) -> Pattern {
        Pattern(text.into())
    }

    /// Whether the pattern matches the whole text. Cost: at most the product of the lengths.
    pub fn matches(&self, text: &str) -> bool {
        let (pattern, text): (Vec<char>, Vec<char>) =
            (self.0.chars().collect(), text.chars().collect());
        let (mut p, mut t) = (0, 0);
        // The last star, and the place in the text at which its match ends for now.
        let mut star = None;
        while t < text.len() {
            match pattern.get(p) {
                Some('*') => {
                    star = Some((p, t));
                    p += 1;
                }
                Some(&c) if c == '?' || c == text[t] => {
                    p += 1;
                    t += 1;
                }
                _ => {
                    let Some((at, from)) = star else { return false };
                    star = Some((at, from + 1));
                    (p, t) = (at + 1, from + 1);
                }
            }
        }
        pattern[p..].iter().all(|&c| c == '*')
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::Pattern;

    #[test]
    fn stars_stand_for_anything_and_question_marks_for_one() {
        for (pattern, text, whether) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("*", "/a/b", true),
            ("/docker/*", "/docker/123", true),
            ("/docker/*", "/dockers", false),
            ("*/blue-?.scope", "/m.slice/blue-1.scope", true),
            ("*/blue-?.scope", "/m.slice/blue-.scope", false),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("ä?", "äö", true),
            ("**a", "bba", true),
        ] {
            assert_eq!(Pattern::new(pattern).matches(text), whether, "{pattern} {text}");
        }
        let hard = "a*".repeat(100) + "b";
        assert!(!Pattern::new(&hard).matches(&"a".repeat(5000)));
    }
}
