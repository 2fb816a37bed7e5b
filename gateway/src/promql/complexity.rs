//! How much work it is to parse PromQL, told before it is parsed.
//!
//! The parser's tree is walked by recursion, and its regular expressions are compiled: a short text can exhaust a stack
//! or a processor. Strings and comments are told apart from the rest as the parser does it.

mod regex;

use promql_parser::util::unquote_string;

use super::bad_request;
use crate::failure::Failure;

/// Bytes of PromQL in one request.
pub(super) const MAX_BYTES: usize = 64 << 10;
/// Operators and opening brackets in one request, each of which may make the tree one level deeper. Dashboards have
/// dozens; a stack of 2 MiB holds some thousand levels.
pub(super) const MAX_OPERATIONS: usize = 500;
/// Units of work for regular expressions, in one request: at most 20 µs each, and twice that for both parses.
const MAX_REGEX_WORK: usize = 4_000;
/// Digits of a number in a duration that the parser takes without rounding or overflow.
const MAX_DURATION_DIGITS: usize = 9;

/// What one request may still take.
#[derive(Debug)]
pub(super) struct Budget {
    bytes: usize,
    operations: usize,
    regex_work: usize,
}

impl Budget {
    pub(super) const fn new() -> Self {
        Self { bytes: MAX_BYTES, operations: MAX_OPERATIONS, regex_work: MAX_REGEX_WORK }
    }

    /// Takes what this text costs.
    pub(super) fn spend(&mut self, text: &str) -> Result<(), Failure> {
        let left = self.bytes.checked_sub(text.len());
        self.bytes = left.ok_or_else(|| {
            bad_request(format!(
                "the request has more than {MAX_BYTES} bytes of PromQL, which is not parsed for this caller"
            ))
        })?;
        let mut rest = text;
        let mut before = Before::Other;
        while let Some(first) = rest.chars().next() {
            let length = token(rest);
            let (token, after) = rest.split_at(length);
            rest = after;
            before = match first {
                '#' => before,
                c if c.is_ascii_whitespace() => before,
                '"' | '\'' | '`' => {
                    if before == Before::Tilde {
                        self.spend_regex(token)?;
                    }
                    Before::Other
                }
                c if is_word(c) => self.spend_word(token, before)?,
                c => self.spend_sign(c, before)?,
            };
        }
        Ok(())
    }

    fn spend_word(&mut self, word: &str, before: Before) -> Result<Before, Failure> {
        if before == Before::Duration && !is_duration(word) {
            return Err(bad_request(format!("{word:?} is no duration: write it like 1h30m")));
        }
        let is = |operator: &&str| word.eq_ignore_ascii_case(operator);
        if ["and", "or", "unless", "atan2"].iter().any(is) {
            self.spend_operation()?;
        }
        // Also of a subquery's second duration, `[1h: 5m]`.
        Ok(if is(&"offset") || word.ends_with(':') { Before::Duration } else { Before::Other })
    }

    fn spend_sign(&mut self, sign: char, before: Before) -> Result<Before, Failure> {
        if "([+-*/%^=!<>".contains(sign) {
            self.spend_operation()?;
        }
        Ok(match sign {
            '~' => Before::Tilde,
            '[' => Before::Duration,
            '+' | '-' => before,
            _ => Before::Other,
        })
    }

    fn spend_operation(&mut self) -> Result<(), Failure> {
        let left = self.operations.checked_sub(1);
        self.operations = left.ok_or_else(|| {
            let what = format!("the request has more than {MAX_OPERATIONS} operators and brackets");
            bad_request(format!("{what}, which are not parsed for this caller"))
        })?;
        Ok(())
    }

    fn spend_regex(&mut self, string: &str) -> Result<(), Failure> {
        // What is no string is refused by the parser, before it compiles anything.
        let unquoted = if has_odd_escape(string) { None } else { unquote_string(string).ok() };
        let work = unquoted.map_or(0, |regex| regex::work(&regex));
        let left = self.regex_work.checked_sub(work);
        self.regex_work = left.ok_or_else(|| {
            bad_request("the regular expressions of this request are too costly: use smaller repetitions {n,m} and fewer classes like \\w")
        })?;
        Ok(())
    }
}

/// What the next token follows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    /// A regular expression follows.
    Tilde,
    /// A duration follows.
    Duration,
    Other,
}

/// The length of the first token.
fn token(text: &str) -> usize {
    let mut chars = text.char_indices();
    let Some((_, first)) = chars.next() else { return 0 };
    let end = match first {
        '#' => text.find(['\n', '\r']),
        '"' | '\'' | '`' => {
            let mut escaped = false;
            let closing = chars.find(|(_, c)| {
                let closes = *c == first && !escaped;
                escaped = *c == '\\' && !escaped;
                closes
            });
            closing.map(|(at, _)| at + 1)
        }
        c if is_word(c) => text.find(|c| !is_word(c)),
        c => Some(c.len_utf8()),
    };
    end.unwrap_or(text.len())
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | ':')
}

/// What the parser reads as it was meant: `1e300` makes it panic, and of `99999999999s` it makes nothing.
fn is_duration(word: &str) -> bool {
    let digits = word.split(|c: char| !c.is_ascii_digit());
    word.chars().all(|c| c.is_ascii_digit() || ".:smhdwy".contains(c))
        && digits.map(str::len).all(|digits| digits <= MAX_DURATION_DIGITS)
}

/// Whether a backslash stands before what is not ASCII, at which unquoting panics.
fn has_odd_escape(string: &str) -> bool {
    let mut escaped = false;
    string.chars().any(|c| {
        let odd = escaped && !c.is_ascii();
        escaped = c == '\\' && !escaped;
        odd
    })
}
