//! Spellings of Go and Prometheus that the parser does not know, written in a way that both read alike.
//!
//! * Strings: raw ones in backticks, in which a backslash is a character, and escapes.
//! * Numbers with `_` between their digits.
//! * Regular expressions of RE2.
//!
//! Only the spelling changes. The text is parsed and printed afterwards, so that the labels are enforced in what is sent.

mod regex;

use promql_parser::util::escape_string;

/// The characters that Prometheus takes for spaces.
const SPACES: [char; 4] = [' ', '\t', '\n', '\r'];

/// Returns the same query in the spelling that the parser knows. What is no string and no number stays as it is, and so does what
/// is invalid.
pub(super) fn normalize(text: &str) -> String {
    let mut normal = String::with_capacity(text.len());
    let mut rest = text;
    // The character before the token: a regular expression follows `=~` and `!~`.
    let mut before = ' ';
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '"' | '\'' | '`' => string_length(rest, first),
            '#' => rest.find(['\n', '\r']).unwrap_or(rest.len()),
            c if is_word(c) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            c => c.len_utf8(),
        };
        let (token, after) = rest.split_at(length);
        rest = after;
        match first {
            '"' | '\'' | '`' => match unquote(token) {
                Some(value) if before == '~' => push_string(&mut normal, &regex::normalize(&value)),
                Some(value) => push_string(&mut normal, &value),
                None => normal.push_str(token),
            },
            '0'..='9' if is_number(token) => normal.extend(token.chars().filter(|c| *c != '_')),
            _ => normal.push_str(token),
        }
        if first != '#' && !SPACES.contains(&first) {
            before = first;
        }
    }
    normal
}

fn push_string(text: &mut String, value: &str) {
    text.push('"');
    text.push_str(&escape_string(value));
    text.push('"');
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '.')
}

/// Returns whether a word is a number with `_` between digits.
fn is_number(word: &str) -> bool {
    let (digits, is_digit): (&str, fn(char) -> bool) =
        match word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
            Some(digits) => (digits.strip_prefix('_').unwrap_or(digits), |c| c.is_ascii_hexdigit()),
            None => (word, |c| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E')),
        };
    let groups =
        |digits: &str| digits.split('_').all(|group| !group.is_empty() && group.chars().all(is_digit));
    word.contains('_') && groups(digits)
}

/// Returns the length of a string with its quotes. One that does not end has the rest of the text.
fn string_length(text: &str, quote: char) -> usize {
    let mut escaped = false;
    let end = text.char_indices().skip(1).find(|(_, c)| {
        let ends = *c == quote && !escaped;
        escaped = quote != '`' && *c == '\\' && !escaped;
        ends
    });
    end.map_or(text.len(), |(at, quote)| at + quote.len_utf8())
}

/// Returns the value of a string, or `None` if Prometheus refuses it, or it is not UTF-8.
fn unquote(token: &str) -> Option<String> {
    let quote = token.chars().next()?;
    let inner = token[1..].strip_suffix(quote)?;
    if quote == '`' {
        return Some(inner.to_owned());
    }
    let mut value = Vec::with_capacity(inner.len());
    let mut rest = inner;
    while let Some(first) = rest.chars().next() {
        rest = &rest[first.len_utf8()..];
        match first {
            '\n' => return None,
            '\\' => rest = unescape(rest, quote, &mut value)?,
            c => value.extend(c.encode_utf8(&mut [0; 4]).bytes()),
        }
    }
    String::from_utf8(value).ok()
}

/// Appends the value of an escape, and returns the text after it.
fn unescape<'a>(text: &'a str, quote: char, value: &mut Vec<u8>) -> Option<&'a str> {
    let first = text.chars().next()?;
    let rest = &text[first.len_utf8()..];
    let digits = |digits: &'a str, count: usize, radix: u32| {
        let (digits, rest) = (digits.get(..count)?, digits.get(count..)?);
        let are_digits = digits.chars().all(|c| c.is_digit(radix));
        Some((are_digits.then(|| u32::from_str_radix(digits, radix).ok())??, rest))
    };
    // A byte in hexadecimal or octal digits is no character.
    let byte = |(number, rest): (u32, &'a str), value: &mut Vec<u8>| {
        value.push(u8::try_from(number).ok()?);
        Some(rest)
    };
    match first {
        'x' => return byte(digits(rest, 2, 16)?, value),
        '0'..='7' => return byte(digits(text, 3, 8)?, value),
        'u' | 'U' => {
            let (number, rest) = digits(rest, if first == 'u' { 4 } else { 8 }, 16)?;
            value.extend(char::from_u32(number)?.encode_utf8(&mut [0; 4]).bytes());
            return Some(rest);
        }
        _ => {}
    }
    value.push(match first {
        'a' => 0x07,
        'b' => 0x08,
        'f' => 0x0c,
        'n' => b'\n',
        'r' => b'\r',
        't' => b'\t',
        'v' => 0x0b,
        '\\' => b'\\',
        c if c == quote => u8::try_from(quote).ok()?,
        _ => return None,
    });
    Some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_and_numbers_of_go_get_another_spelling() {
        for (text, expected) in [
            ("foo{path=~`/api/v\\d+`}", r#"foo{path=~"/api/v\\d+"}"#),
            (r"foo{a=`x\y`}", r#"foo{a="x\\y"}"#),
            (r#"foo{a=`x"y`}"#, r#"foo{a="x\"y"}"#),
            ("foo{a='it''s'}", "foo{a=\"it\"\"s\"}"),
            (r"foo{a='it\'s'}", r#"foo{a="it's"}"#),
            (r#"foo{a="\x41\101\u00e9\U0001F600\a"}"#, "foo{a=\"AAé😀\u{7}\"}"),
            (r#"foo{a="\xc3\xa9"}"#, "foo{a=\"é\"}"),
            ("foo{a=`b\nc`} # `d", r#"foo{a="b\nc"} # `d"#),
            ("1_000 + foo_1_0", "1000 + foo_1_0"),
            ("0x_1F_F + 1_0.5_0e1_0", "0x1FF + 10.50e10"),
        ] {
            assert_eq!(normalize(text), expected, "{text}");
        }
    }

    #[test]
    fn invalid_spelling_stays_as_it_is() {
        for text in [
            "",
            "foo{a=\"b",
            "foo{a=`b",
            "foo{a=\"b\\",
            r#"foo{a="\d"}"#,
            r#"foo{a="\'"}"#,
            r#"foo{a="\xff"}"#,
            r#"foo{a="\08"}"#,
            r#"foo{a="\x+1"}"#,
            "foo{a=\"b\nc\"}",
            "1__0 + 1_ + 1_s + _1 + a:1_0",
            "é{}",
        ] {
            assert_eq!(normalize(text), text, "{text}");
        }
    }
}
