//! Estimates the work of the PromQL parser before it runs.
//!
//! The syntax tree is visited by recursion, and regular expressions are compiled, so that a short text can exhaust the stack or
//! the CPU. Strings and comments are recognized as in the parser.

mod regex;

use promql_parser::util::unquote_string;

use crate::QueryError;

/// The bytes of PromQL in one request.
pub(super) const MAX_BYTES: usize = 64 << 10;
/// The operators and opening brackets in one request. Each may make the tree one level deeper. Dashboards have dozens; a stack
/// of 2 MiB is enough for some thousand levels.
pub(super) const MAX_OPERATIONS: usize = 500;
/// The units of work for regular expressions in one request: at most 20 µs each, and twice that for both parses.
const MAX_REGEX_WORK: usize = 4_000;
/// The digits of a number in a duration that the parser accepts without rounding or overflow.
const MAX_DURATION_DIGITS: usize = 9;

/// The work that one request may still cause.
#[derive(Debug)]
pub(super) struct ParserBudget {
    bytes: usize,
    operations: usize,
    regex_work: usize,
}

impl ParserBudget {
    pub(super) const fn new() -> Self {
        Self { bytes: MAX_BYTES, operations: MAX_OPERATIONS, regex_work: MAX_REGEX_WORK }
    }

    /// Subtracts the work of a text.
    pub(super) fn spend(&mut self, text: &str) -> Result<(), QueryError> {
        let left = self.bytes.checked_sub(text.len());
        self.bytes = left.ok_or_else(too_long)?;
        let mut rest = text;
        let mut before = PrecedingToken::Other;
        while let Some(first) = rest.chars().next() {
            let length = token(rest);
            let (token, after) = rest.split_at(length);
            rest = after;
            before = match first {
                '#' => before,
                c if c.is_ascii_whitespace() => before,
                '"' | '\'' | '`' => {
                    if before == PrecedingToken::Tilde {
                        self.spend_regex(token)?;
                    }
                    PrecedingToken::Other
                }
                c if is_word(c) => self.spend_word(token, before)?,
                c => self.spend_sign(c, before)?,
            };
        }
        Ok(())
    }

    fn spend_word(&mut self, word: &str, before: PrecedingToken) -> Result<PrecedingToken, QueryError> {
        if before == PrecedingToken::Duration && !is_duration(word) {
            return Err(QueryError::bad_request(format!("{word:?} is not a duration: write it like 1h30m")));
        }
        let is = |operator: &&str| word.eq_ignore_ascii_case(operator);
        if ["and", "or", "unless", "atan2"].iter().any(is) {
            self.spend_operation()?;
        }
        // The second duration of a subquery, `[1h: 5m]`, follows a colon.
        Ok(if is(&"offset") || word.ends_with(':') {
            PrecedingToken::Duration
        } else {
            PrecedingToken::Other
        })
    }

    fn spend_sign(&mut self, sign: char, before: PrecedingToken) -> Result<PrecedingToken, QueryError> {
        if "([+-*/%^=!<>".contains(sign) {
            self.spend_operation()?;
        }
        Ok(match sign {
            '~' => PrecedingToken::Tilde,
            '[' => PrecedingToken::Duration,
            '+' | '-' => before,
            _ => PrecedingToken::Other,
        })
    }

    fn spend_operation(&mut self) -> Result<(), QueryError> {
        let left = self.operations.checked_sub(1);
        self.operations = left.ok_or_else(|| {
            let what = format!("the request has more than {MAX_OPERATIONS} operators and brackets");
            QueryError::bad_request(format!("{what}, which is the limit for callers with labels"))
        })?;
        Ok(())
    }

    fn spend_regex(&mut self, string: &str) -> Result<(), QueryError> {
        // The parser refuses an invalid string before it compiles a regular expression.
        let unquoted = if has_odd_escape(string) { None } else { unquote_string(string).ok() };
        let work = unquoted.map_or(0, |regex| regex::work(&regex));
        let left = self.regex_work.checked_sub(work);
        self.regex_work = left.ok_or_else(|| {
            QueryError::bad_request("the regular expressions of this request are too costly: use smaller repetitions {n,m} and fewer classes like \\w")
        })?;
        Ok(())
    }
}

/// Returns the error of a request with too much PromQL.
pub(super) fn too_long() -> QueryError {
    QueryError::bad_request(format!(
        "the request has more than {MAX_BYTES} bytes of PromQL, which is the limit for callers with labels"
    ))
}

/// The kind of the token before the next one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PrecedingToken {
    /// A regular expression follows.
    Tilde,
    /// A duration follows.
    Duration,
    Other,
}

/// Returns the length of the first token.
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

/// Returns whether the parser reads a duration correctly: `1e300` makes it panic, and `99999999999s` becomes zero.
fn is_duration(word: &str) -> bool {
    let digits = word.split(|c: char| !c.is_ascii_digit());
    word.chars().all(|c| c.is_ascii_digit() || ".:smhdwy".contains(c))
        && digits.map(str::len).all(|digits| digits <= MAX_DURATION_DIGITS)
}

/// Returns whether a backslash precedes a character outside of ASCII, at which unquoting panics.
fn has_odd_escape(string: &str) -> bool {
    let mut escaped = false;
    string.chars().any(|c| {
        let odd = escaped && !c.is_ascii();
        escaped = c == '\\' && !escaped;
        odd
    })
}
