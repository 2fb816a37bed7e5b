//! Estimates the size of a compiled regular expression.

use std::{iter::Peekable, str::Chars};

/// The size of a class of Unicode characters, like `\w`, in single characters.
const CLASS: usize = 50;

/// The same in a case-insensitive expression: every character of the class is looked up, and there may be a million.
const FOLDED_CLASS: usize = 1000;

/// Returns the size in single characters, with repetitions expanded.
pub(super) fn work(regex: &str) -> usize {
    let class = if has_flag(regex, 'i') { FOLDED_CLASS } else { CLASS };
    let mut groups = Groups::default();
    let mut chars = regex.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('p' | 'P') => {
                    skip_name(&mut chars);
                    groups.atom(class);
                }
                Some('w' | 'W' | 'd' | 'D' | 's' | 'S') => groups.atom(class),
                // The end of a range may be anywhere in Unicode.
                Some('x' | 'u' | 'U') if groups.in_class() => groups.atom(class),
                _ => groups.atom(1),
            },
            '[' => {
                if groups.in_class() {
                    // `[^a]` or `[:^alpha:]` within another class: nearly all of Unicode.
                    groups.add(class);
                }
                groups.open(true);
                // At this position the bracket is a literal.
                chars.next_if_eq(&'^');
                chars.next_if_eq(&']');
            }
            ']' if groups.in_class() => groups.close(),
            _ if groups.in_class() => groups.atom(if c.is_ascii() { 1 } else { class }),
            // Comments could hide brackets. Prometheus does not support this flag.
            '(' if has_comments(&chars) => return usize::MAX,
            '(' => groups.open(false),
            ')' => groups.close(),
            '{' => match repetition(&mut chars) {
                Some(times) => groups.repeat(times),
                None => groups.atom(1),
            },
            _ => groups.atom(1),
        }
    }
    groups.total()
}

/// Skips the part after `\p`: one letter, or a name in braces.
fn skip_name(chars: &mut Peekable<Chars<'_>>) {
    if chars.next() == Some('{') {
        let _ = chars.find(|c| *c == '}');
    }
}

fn has_comments(chars: &Peekable<Chars<'_>>) -> bool {
    let mut flags = chars.clone();
    flags.next() == Some('?') && flags_of(flags).any(|flag| flag == 'x')
}

fn has_flag(regex: &str, flag: char) -> bool {
    regex.split("(?").skip(1).any(|group| flags_of(group.chars()).any(|c| c == flag))
}

/// Returns the flags at the beginning of a group.
fn flags_of(group: impl Iterator<Item = char>) -> impl Iterator<Item = char> {
    group.take_while(|c| c.is_ascii_alphabetic() || *c == '-')
}

/// Reads `n}`, `n,}` or `m,n}` and returns `n`. Other text after a brace is literal.
fn repetition(chars: &mut Peekable<Chars<'_>>) -> Option<usize> {
    let (mut ahead, mut text) = (chars.clone(), String::new());
    loop {
        match ahead.next()? {
            '}' => break,
            c if c.is_ascii_digit() || c == ',' || c.is_whitespace() => text.push(c),
            _ => return None,
        }
    }
    let counts = text.split(',').map(str::trim).filter(|count| !count.is_empty());
    let times = counts.map(|count| count.parse().unwrap_or(usize::MAX)).max()?;
    *chars = ahead;
    Some(times)
}

/// The open groups, innermost last: their size so far, and whether they are a class in square brackets.
#[derive(Default)]
struct Groups {
    open: Vec<(usize, bool)>,
    outside: usize,
    /// The size of the last element, which a repetition repeats.
    last: usize,
}

impl Groups {
    fn atom(&mut self, size: usize) {
        self.last = size;
        self.add(size);
    }

    fn add(&mut self, size: usize) {
        let sum = self.open.last_mut().map_or(&mut self.outside, |(sum, _)| sum);
        *sum = sum.saturating_add(size);
    }

    fn open(&mut self, class: bool) {
        self.open.push((1, class));
    }

    /// Closes a group. Without an opening bracket, everything so far counts as the group.
    fn close(&mut self) {
        match self.open.pop() {
            Some((sum, _)) => self.atom(sum),
            None => self.last = self.outside,
        }
    }

    fn repeat(&mut self, times: usize) {
        let more = self.last.saturating_mul(times.saturating_sub(1));
        self.last = self.last.saturating_add(more);
        self.add(more);
    }

    fn in_class(&self) -> bool {
        self.open.last().is_some_and(|(_, class)| *class)
    }

    fn total(&self) -> usize {
        self.open.iter().fold(self.outside, |total, (sum, _)| total.saturating_add(*sum))
    }
}

#[cfg(test)]
mod tests {
    use super::work;

    #[test]
    fn repetitions_are_expanded() {
        for (regex, size) in [
            ("", 0),
            ("abc", 3),
            ("a{5}", 5),
            ("ab{5}", 6),
            ("(ab){5}", 15),
            (r"\w", 50),
            (r"\.", 1),
            (r"\w{10}", 500),
            (r"(\w{10}){10}", 5010),
            (r"[\w-]{10}", 520),
            (r"[]\w]{10}", 510),
            (r"[^]\w]{10}", 510),
            (r"\w){10}", 500),
            ("a{2,30}", 30),
            ("a{30,}", 30),
            ("a{b}", 4),
            ("a{,}", 4),
            ("a{5", 3),
            ("a{10}{10}", 100),
            (r"(?i:\w){10}", 10_040),
            (r"\pL{10}", 500),
            (r"\p{L}{10}", 500),
            (r"\P{Greek}{2}", 100),
            ("[!-\u{10FFFF}]", 53),
            ("(?i)[!-\u{10FFFF}]", 3 + 1003),
            (r"(?i)[a-z]", 3 + 4),
            (r"(?i)[!-\x{10FFFF}]", 3 + 1003 + 8),
            (r"(?i)[a[^b]]", 3 + 1 + 1 + 1000 + 2),
            (r"(?s-i)\pL", 5 + 1000),
            (r"(?P<x>\w)", 50 + 6),
            (r"(?x)a", usize::MAX),
            (r"(?i-x:a)", usize::MAX),
            ("a{99999999999999999999}", usize::MAX),
            ("(a{9999999999}){9999999999}", usize::MAX),
        ] {
            assert_eq!(work(regex), size, "{regex}");
        }
    }
}
