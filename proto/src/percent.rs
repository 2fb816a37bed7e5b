//! Percent-encoding of the names and values in URLs (RFC 3986 section 2).

use std::{borrow::Cow, str::Utf8Error};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// All characters but the unreserved ones (RFC 3986 section 2.3).
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The characters that a part of a path must not have as they are, and `%` (RFC 3986 section 3.3).
const OUTSIDE_PATHS: &AsciiSet = &RESERVED
    .remove(b'!')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'+')
    .remove(b',')
    .remove(b'=')
    .remove(b':')
    .remove(b'@');

/// Encodes a part of a path as `kubectl` does: `system:reader` stays as it is.
pub fn encode_segment(text: &str) -> Cow<'_, str> {
    utf8_percent_encode(text, OUTSIDE_PATHS).into()
}

/// Encodes a part of a path, or a value of a query: all characters but the unreserved ones.
pub fn encode(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// Decodes a value of a query, in which `+` is a space, as forms and most libraries encode it.
///
/// # Errors
///
/// The value is no UTF-8.
pub fn decode_value(value: &str) -> Result<String, Utf8Error> {
    let value = value.replace('+', " ");
    percent_decode_str(&value).decode_utf8().map(Cow::into_owned)
}

/// Decodes a part of a path that consists of unreserved characters, and returns any other part as it is.
///
/// Paths that differ only in the encoding of unreserved characters are equivalent (RFC 3986 section 6.2.2.2). A character that divides
/// a path, such as `%2F`, never appears in the result.
pub fn decode_unreserved(part: &str) -> Cow<'_, str> {
    let is_unreserved = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    match percent_decode_str(part).decode_utf8() {
        Ok(text) if text.bytes().all(is_unreserved) => text,
        _ => part.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreserved_characters_are_not_encoded() {
        assert_eq!(encode("edge-berlin.a_b~1"), "edge-berlin.a_b~1");
        assert_eq!(encode("../a b%/ü"), "..%2Fa%20b%25%2F%C3%BC");
    }

    #[test]
    fn part_of_a_path_keeps_what_a_path_may_have() {
        assert_eq!(encode_segment("system:a_b@c+(d)"), "system:a_b@c+(d)");
        assert_eq!(encode_segment("a|b #c?d;ü/%"), "a%7Cb%20%23c%3Fd%3B%C3%BC%2F%25");
    }

    #[test]
    fn value_of_a_query_is_decoded_as_that_of_a_form() {
        assert_eq!(decode_value("app+in%20(a,b)").unwrap(), "app in (a,b)");
        assert_eq!(decode_value("a%2Bb%3D%C3%BC").unwrap(), "a+b=ü");
        assert!(decode_value("%ff").is_err());
    }

    #[test]
    fn only_unreserved_characters_are_decoded() {
        for (part, expected) in [
            ("edge-berlin", "edge-berlin"),
            ("edge%2Dberlin", "edge-berlin"),
            ("%65dge%2db%7e", "edge-b~"),
            ("a%2Fb%2Dc", "a%2Fb%2Dc"),
            ("a%3Fb", "a%3Fb"),
            ("a%252Db", "a%252Db"),
            ("a%00", "a%00"),
            ("a%ff", "a%ff"),
            ("a%2", "a%2"),
            ("%C3%BC", "%C3%BC"),
            ("", ""),
        ] {
            assert_eq!(decode_unreserved(part), expected);
        }
    }
}
