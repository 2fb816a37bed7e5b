//! Sections of fields: heads without their first line, and trailers. Pure.

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{CONTENT_LENGTH, TRAILER},
};
use memchr::{memchr, memchr_iter};

use crate::Error;

/// Where a head, or the section of trailers, ends. `seen` bytes were looked at in vain.
pub fn end(bytes: &[u8], seen: usize) -> Option<usize> {
    // An end may have been half there.
    let mut from = seen.saturating_sub(2);
    while let Some(found) = memchr(b'\n', &bytes[from..]) {
        from += found + 1;
        match bytes[from..] {
            [b'\n', ..] => return Some(from + 1),
            [b'\r', b'\n', ..] => return Some(from + 2),
            _ => {}
        }
    }
    None
}

/// A line that ends with a line feed alone. Some take it for the end of a line, and some do not (RFC 9112 section 2.2): nobody
/// sends one to a server without a reason.
#[derive(Debug)]
pub(crate) struct BareLineFeed;

/// The same, of lines that end as they should.
pub(crate) fn strict_end(bytes: &[u8], seen: usize) -> Result<Option<usize>, BareLineFeed> {
    for found in memchr_iter(b'\n', &bytes[seen..]) {
        let line = bytes[..seen + found].strip_suffix(b"\r").ok_or(BareLineFeed)?;
        if line.ends_with(b"\r\n") {
            return Ok(Some(seen + found + 1));
        }
    }
    Ok(None)
}

/// The fields of a section as a map; their values share the section's bytes.
///
/// # Errors
///
/// Names and values with forbidden bytes.
pub fn map(section: &Bytes, parsed: &[httparse::Header<'_>]) -> Result<HeaderMap, Error> {
    let mut headers = HeaderMap::with_capacity(parsed.len());
    for field in parsed {
        let (name, value) = field_of(section, field).ok_or(FORBIDDEN)?;
        headers.append(name, value);
    }
    Ok(headers)
}

const FORBIDDEN: Error = Error::Malformed("one of its header fields has forbidden bytes");

pub(crate) fn field_of(section: &Bytes, field: &httparse::Header<'_>) -> Option<(HeaderName, HeaderValue)> {
    let name = HeaderName::from_bytes(field.name.as_bytes()).ok()?;
    let value = HeaderValue::from_maybe_shared(section.slice_ref(field.value)).ok()?;
    Some((name, value))
}

/// What all `Content-Length` agree on.
///
/// # Errors
///
/// They are no numbers, or several.
pub fn content_length(headers: &HeaderMap) -> Result<Option<u64>, Error> {
    let mut agreed = None;
    for value in headers.get_all(CONTENT_LENGTH) {
        let length = length(value);
        if length.is_none() || agreed.is_some_and(|agreed| Some(agreed) != length) {
            return Err(Error::Malformed("its Content-Length is no number, or several"));
        }
        agreed = length;
    }
    Ok(agreed)
}

/// One `Content-Length`: digits, and nothing else.
pub(crate) fn length(value: &HeaderValue) -> Option<u64> {
    let value = value.as_bytes();
    let digits = (1..=19).contains(&value.len()) && value.iter().all(u8::is_ascii_digit);
    digits.then(|| value.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit & 0xf)))
}

/// The members of one line of a list.
pub fn tokens(value: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

/// The trailers that a head names. Others are not sent (RFC 9110 section 6.5.1: a receiver may not expect them).
pub fn announced(headers: &HeaderMap) -> Vec<HeaderName> {
    let names = headers.get_all(TRAILER).iter().flat_map(tokens);
    names.filter_map(|name| HeaderName::from_bytes(name).ok()).collect()
}

/// Writes one line.
pub fn write(name: &HeaderName, value: &HeaderValue, out: &mut BytesMut) {
    out.put_slice(name.as_str().as_bytes());
    out.put_slice(b": ");
    out.put_slice(value.as_bytes());
    out.put_slice(b"\r\n");
}

/// How many bytes these lines take.
pub fn size(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum()
}
