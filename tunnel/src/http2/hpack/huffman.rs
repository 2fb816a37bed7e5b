//! Huffman's code of HPACK (RFC 7541 section 5.2). Only unpacked: our own ends never pack.

use bytes::{BufMut as _, Bytes, BytesMut};

use super::Malformed;

/// How many bits each byte takes (RFC 7541 appendix B); the last one is the end of the string. The code is canonical, so
/// that this is all there is to know: codes of one length follow one another in the order of their bytes, and shorter
/// ones come first.
#[rustfmt::skip]
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];

const SHORTEST: usize = 5;
const LONGEST: usize = 30;
const END: u16 = 256;

/// The codes of one length.
#[derive(Clone, Copy)]
struct Class {
    first: u32,
    count: u32,
    /// Where its bytes begin in [`SYMBOLS`].
    symbols: usize,
}

static CLASSES: [Class; LONGEST + 1] = classes();
static SYMBOLS: [u16; LENGTHS.len()] = symbols();

const fn classes() -> [Class; LONGEST + 1] {
    let mut classes = [Class { first: 0, count: 0, symbols: 0 }; LONGEST + 1];
    let (mut code, mut symbols, mut length) = (0, 0, 0);
    while length <= LONGEST {
        let (mut count, mut symbol) = (0, 0);
        while symbol < LENGTHS.len() {
            if LENGTHS[symbol] as usize == length {
                count += 1;
            }
            symbol += 1;
        }
        code <<= 1;
        classes[length] = Class { first: code, count, symbols };
        code += count;
        symbols += count as usize;
        length += 1;
    }
    classes
}

const fn symbols() -> [u16; LENGTHS.len()] {
    let mut symbols = [0; LENGTHS.len()];
    let (mut next, mut length) = (0, 0);
    while length <= LONGEST {
        let mut symbol = 0;
        while symbol < LENGTHS.len() {
            if LENGTHS[symbol] as usize == length {
                symbols[next] = symbol as u16;
                next += 1;
            }
            symbol += 1;
        }
        length += 1;
    }
    symbols
}

/// The string that was packed into these bytes.
pub(super) fn unpack(packed: &[u8]) -> Result<Bytes, Malformed> {
    let mut string = BytesMut::with_capacity(packed.len() * 8 / SHORTEST);
    let (mut bits, mut have) = (0u64, 0);
    for byte in packed {
        bits = bits << 8 | u64::from(*byte);
        have += 8;
        while let Some((symbol, length)) = first(bits, have) {
            if symbol == END {
                return Err(Malformed("the end of a packed string is in its middle"));
            }
            string.put_u8(symbol as u8);
            have -= length;
            bits &= (1 << have) - 1;
        }
    }
    // What is left is the beginning of the end, and no whole byte of it.
    if have > 7 || bits != (1 << have) - 1 {
        return Err(Malformed("a packed string ends in the middle of a byte"));
    }
    Ok(string.freeze())
}

/// The first code in the lowest `have` bits, and its length.
fn first(bits: u64, have: usize) -> Option<(u16, usize)> {
    for (length, class) in CLASSES.iter().enumerate().take(have + 1).skip(SHORTEST) {
        let code = (bits >> (have - length)) as u32;
        if code < class.first + class.count {
            return Some((SYMBOLS[class.symbols + (code - class.first) as usize], length));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pack(string: &[u8]) -> Vec<u8> {
        let mut bits = String::new();
        for byte in string {
            let length = usize::from(LENGTHS[usize::from(*byte)]);
            let class = &CLASSES[length];
            let place =
                SYMBOLS[class.symbols..].iter().position(|symbol| *symbol == u16::from(*byte)).unwrap();
            let code = class.first + place as u32;
            bits.push_str(&format!("{code:0length$b}"));
        }
        while !bits.len().is_multiple_of(8) {
            bits.push('1');
        }
        bits.as_bytes()
            .chunks(8)
            .map(|byte| u8::from_str_radix(std::str::from_utf8(byte).unwrap(), 2).unwrap())
            .collect()
    }

    /// RFC 7541 appendix C.4 and C.6.
    #[test]
    fn the_examples_of_the_rfc_are_unpacked() {
        for (packed, string) in [
            (
                &[0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff][..],
                "www.example.com",
            ),
            (&[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf], "no-cache"),
            (&[0x64, 0x02], "302"),
            (
                &[
                    0x9d, 0x29, 0xad, 0x17, 0x18, 0x63, 0xc7, 0x8f, 0x0b, 0x97, 0xc8, 0xe9, 0xae, 0x82, 0xae,
                    0x43, 0xd3,
                ],
                "https://www.example.com",
            ),
        ] {
            assert_eq!(unpack(packed).unwrap(), string.as_bytes());
            assert_eq!(pack(string.as_bytes()), packed);
        }
    }

    #[test]
    fn every_byte_is_unpacked() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(unpack(&pack(&all)).unwrap(), all);
        assert_eq!(unpack(&[]).unwrap(), "");
    }

    #[test]
    fn what_the_rfc_forbids_is_refused() {
        // The end of the string, a whole byte of padding, and padding that is not the end's beginning.
        for bad in [&[0xff, 0xff, 0xff, 0xff][..], &[0x64, 0x02, 0xff], &[0x60]] {
            assert!(unpack(bad).is_err(), "{bad:x?}");
        }
    }
}
