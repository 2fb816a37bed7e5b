//! Integers and strings of HPACK (RFC 7541 section 5).

use bytes::{BufMut as _, Bytes, BytesMut};

use super::{Malformed, huffman};

/// The largest number that is read: nothing in a head is larger.
const MAX: usize = 1 << 24;

/// Appends a number; its first byte has `flags` above a prefix of `bits`.
pub(super) fn put(out: &mut BytesMut, flags: u8, bits: u32, value: usize) {
    let limit = (1 << bits) - 1;
    if value < limit {
        return out.put_u8(flags | value as u8);
    }

    out.put_u8(flags | limit as u8);
    let mut rest = value - limit;
    while rest >= 128 {
        out.put_u8(128 | (rest % 128) as u8);
        rest /= 128;
    }
    out.put_u8(rest as u8);
}

/// Takes a number from the front.
pub(super) fn take(bytes: &mut Bytes, bits: u32) -> Result<usize, Malformed> {
    let limit = (1 << bits) - 1;
    let mut read = 1;
    let mut value = usize::from(*bytes.first().ok_or(Malformed("a number is cut off"))?) & limit;
    if value == limit {
        let mut shift = 0;
        loop {
            let byte = *bytes.get(read).ok_or(Malformed("a number is cut off"))?;
            read += 1;
            value += usize::from(byte & 127) << shift;
            shift += 7;
            // Also ends a number whose further bytes add nothing.
            if value > MAX || shift > 28 {
                return Err(Malformed("a number is too large"));
            }
            if byte & 128 == 0 {
                break;
            }
        }
    }
    let _ = bytes.split_to(read);
    Ok(value)
}

/// Appends a string as it is: both ends are ours, and Huffman's code costs each more than the bytes that it saves.
pub(super) fn put_string(out: &mut BytesMut, string: &[u8]) {
    put(out, 0, 7, string.len());
    out.put_slice(string);
}

/// Takes a string from the front: a slice of the block, unless it had to be unpacked.
pub(super) fn take_string(bytes: &mut Bytes) -> Result<Bytes, Malformed> {
    let packed = bytes.first().is_some_and(|first| first & 0x80 != 0);
    let length = take(bytes, 7)?;
    if length > bytes.len() {
        return Err(Malformed("a string is cut off"));
    }
    let string = bytes.split_to(length);
    if packed { huffman::unpack(&string) } else { Ok(string) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_back() {
        for bits in 4..=7 {
            for value in [0, 1, 9, 14, 15, 16, 30, 31, 126, 127, 128, 1337, 65_535, MAX] {
                let mut out = BytesMut::new();
                put(&mut out, 0x80, bits, value);
                let mut bytes = out.freeze();
                for cut in 0..bytes.len() {
                    assert!(take(&mut bytes.slice(..cut), bits).is_err());
                }
                assert_eq!(take(&mut bytes, bits).unwrap(), value);
                assert!(bytes.is_empty());
            }
        }
        // RFC 7541 appendix C.1.2.
        assert_eq!(take(&mut Bytes::from_static(&[0x1f, 0x9a, 0x0a]), 5).unwrap(), 1337);
    }

    #[test]
    fn numbers_beyond_reason_are_refused() {
        for bad in [&[0x7f, 0xff, 0xff, 0xff, 0xff, 0x0f][..], &[0x7f, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00]] {
            assert!(take(&mut Bytes::from_static(bad), 7).is_err());
        }
    }
}
