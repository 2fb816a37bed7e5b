//! Regular expressions of RE2 that the crate `regex` does not know, written in a way that both read alike.

use std::{fmt::Write as _, iter::Peekable, str::Chars};

/// The longest name of a class with its colons, such as `:^xdigit:]`, and some more.
const MAX_NAME: usize = 16;

/// Returns the same regular expression in the common spelling. What is invalid in RE2 may stay as it is: Prometheus refuses it.
pub(super) fn normalize(regex: &str) -> String {
    let mut normal = String::with_capacity(regex.len());
    let mut chars = regex.chars().peekable();
    let mut class = Class::Outside;
    while let Some(c) = chars.next() {
        class = match (class, c) {
            (_, '\\') => {
                escape(&mut normal, &mut chars, class);
                class.next()
            }
            (Class::Outside, '[') => {
                normal.push('[');
                if chars.next_if_eq(&'^').is_some() {
                    normal.push('^');
                }
                Class::Start
            }
            (Class::Start, ']') => {
                normal.push_str("\\]");
                Class::Inside
            }
            (Class::Inside, ']') => {
                normal.push(']');
                Class::Outside
            }
            (Class::Start | Class::Inside, '[') => {
                // A name such as `[:alpha:]`. Otherwise the bracket is a character, and not a class in a class.
                let rest: String = chars.clone().take(MAX_NAME).collect();
                let name =
                    rest.strip_prefix(':').and_then(|name| name.find(":]").map(|end| &rest[..end + 3]));
                match name.filter(|name| {
                    name[1..name.len() - 2].trim_start_matches('^').chars().all(char::is_alphanumeric)
                }) {
                    Some(name) => {
                        normal.push('[');
                        normal.push_str(name);
                        chars.nth(name.chars().count() - 1);
                    }
                    None => normal.push_str("\\["),
                }
                Class::Inside
            }
            // Operations between classes.
            (Class::Start | Class::Inside, '&' | '~') => {
                normal.push('\\');
                normal.push(c);
                Class::Inside
            }
            (_, c) => {
                normal.push(c);
                class.next()
            }
        };
    }
    normal
}

/// The place in a class of characters.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Outside,
    /// Before its first character, where `]` does not end it.
    Start,
    Inside,
}

impl Class {
    /// Returns the place after a character.
    fn next(self) -> Self {
        if self == Self::Outside { Self::Outside } else { Self::Inside }
    }
}

/// Appends what follows a backslash.
fn escape(normal: &mut String, chars: &mut Peekable<Chars<'_>>, class: Class) {
    match chars.next() {
        None => normal.push('\\'),
        // In a class, it is invalid.
        Some('Q') if class == Class::Outside => {
            while let Some(c) = chars.next() {
                if c == '\\' && chars.next_if_eq(&'E').is_some() {
                    return;
                }
                if c.is_ascii_punctuation() && !matches!(c, '<' | '>') {
                    normal.push('\\');
                }
                normal.push(c);
            }
        }
        Some(digit @ '0'..='7') if digit == '0' || chars.peek().is_some_and(|c| is_octal(*c)) => {
            let mut number = digit.to_digit(8).unwrap_or_default();
            for _ in 0..2 {
                let Some(digit) = chars.next_if(|c| is_octal(*c)).and_then(|c| c.to_digit(8)) else { break };
                number = number * 8 + digit;
            }
            match u8::try_from(number) {
                Ok(byte) => drop(write!(normal, "\\x{byte:02x}")),
                Err(_) => drop(write!(normal, "\\x{{{number:x}}}")),
            }
        }
        Some(kind @ ('p' | 'P')) if chars.clone().take(2).eq(['{', '^']) => {
            chars.nth(1);
            normal.push_str(if kind == 'p' { "\\P{" } else { "\\p{" });
        }
        // Ends of words in the crate `regex`, and characters in RE2.
        Some(c @ ('<' | '>')) => normal.push(c),
        Some(c) => normal.extend(['\\', c]),
    }
}

fn is_octal(c: char) -> bool {
    c.is_digit(8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_of_re2_get_another_spelling() {
        for (regex, expected) in [
            (r"\Qa.b\E.*", r"a\.b.*"),
            (r"\Qa.b", r"a\.b"),
            (r"\Q\E", ""),
            (r"\Qa\\E", r"a\\"),
            (r"\07\012\0\101\8", r"\x07\x0a\x00\x41\8"),
            (r"\777", r"\x{1ff}"),
            (r"\p{^Greek}\P{^Lu}\p{Lu}\pN", r"\P{Greek}\p{Lu}\p{Lu}\pN"),
            (r"\<a\>", "<a>"),
            ("[[]", r"[\[]"),
            ("[]a]", r"[\]a]"),
            ("[^]a]", r"[^\]a]"),
            ("[a[:alpha:]&&b~~]", r"[a[:alpha:]\&\&b\~\~]"),
            ("[[:^digit:]]", "[[:^digit:]]"),
            (r"[\]a]\Q]\E", r"[\]a]\]"),
            (r"[\Qa\E]", r"[\Qa\E]"),
            (r"a{2,3}(?i:b)|\d+$", r"a{2,3}(?i:b)|\d+$"),
        ] {
            assert_eq!(normalize(regex), expected, "{regex}");
            assert_eq!(normalize(expected), expected, "{regex} is stable");
        }
    }
}
