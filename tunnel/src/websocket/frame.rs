//! The header of a WebSocket frame and the mask (RFC 6455 section 5.2).

use std::{io, ops::Range};

/// Longest frame header: two bytes, eight of length, four of mask.
pub(super) const MAX_HEADER: usize = 14;
/// Longest payload of a control frame (RFC 6455 section 5.5).
pub(super) const MAX_CONTROL: usize = 125;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opcode {
    /// Binary, or the continuation of one: message boundaries mean nothing to us.
    Data,
    Close,
    Ping,
    Pong,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) opcode: Opcode,
    pub(super) length: u64,
    pub(super) mask: Option<[u8; 4]>,
}

impl Header {
    /// Reads a header from the front of `bytes`: the header and how many bytes it took, or `None` if some are missing.
    pub(super) fn parse(bytes: &[u8]) -> io::Result<Option<(Self, usize)>> {
        let [first, second, ..] = *bytes else {
            return Ok(None);
        };
        if first & 0x70 != 0 {
            return Err(violation("a frame uses an extension that was not agreed on"));
        }

        let opcode = match first & 0x0f {
            0x0 | 0x2 => Opcode::Data,
            0x1 => return Err(violation("text messages are not part of the tunnel protocol")),
            0x8 => Opcode::Close,
            0x9 => Opcode::Ping,
            0xa => Opcode::Pong,
            _ => return Err(violation("a frame has a reserved opcode")),
        };
        let masked = second & 0x80 != 0;
        let (length, mut position) = match second & 0x7f {
            126 => match bytes.get(2..4) {
                Some(&[a, b]) => (u64::from(u16::from_be_bytes([a, b])), 4),
                _ => return Ok(None),
            },
            127 => match bytes.get(2..10).and_then(|b| <[u8; 8]>::try_from(b).ok()) {
                Some(length) => (u64::from_be_bytes(length), 10),
                None => return Ok(None),
            },
            short => (u64::from(short), 2),
        };
        if length >> 63 != 0 {
            return Err(violation("a frame's length has its highest bit set"));
        }
        if opcode != Opcode::Data && (length > MAX_CONTROL as u64 || first & 0x80 == 0) {
            return Err(violation("a control frame is fragmented or too long"));
        }

        let mask = if masked {
            let Some(mask) = bytes.get(position..position + 4).and_then(|b| <[u8; 4]>::try_from(b).ok())
            else {
                return Ok(None);
            };
            position += 4;
            Some(mask)
        } else {
            None
        };

        Ok(Some((Self { opcode, length, mask }, position)))
    }

    /// The header's bytes and how many of them count.
    pub(super) fn encode(&self) -> ([u8; MAX_HEADER], usize) {
        let mut bytes = [0; MAX_HEADER];
        bytes[0] = 0x80
            | match self.opcode {
                Opcode::Data => 0x2,
                Opcode::Close => 0x8,
                Opcode::Ping => 0x9,
                Opcode::Pong => 0xa,
            };
        let mut end = match self.length {
            0..=125 => {
                bytes[1] = self.length as u8;
                2
            }
            126..=0xffff => {
                bytes[1] = 126;
                bytes[2..4].copy_from_slice(&(self.length as u16).to_be_bytes());
                4
            }
            _ => {
                bytes[1] = 127;
                bytes[2..10].copy_from_slice(&self.length.to_be_bytes());
                10
            }
        };
        if let Some(mask) = self.mask {
            bytes[1] |= 0x80;
            bytes[end..end + 4].copy_from_slice(&mask);
            end += 4;
        }

        (bytes, end)
    }
}

/// Applies the mask to bytes that begin `offset` bytes into the payload; applied twice it is gone.
pub(super) fn mask(bytes: &mut [u8], mask: [u8; 4], offset: usize) {
    let mut key = mask;
    key.rotate_left(offset % 4);
    let wide = u64::from_ne_bytes([key[0], key[1], key[2], key[3], key[0], key[1], key[2], key[3]]);
    let (words, rest) = bytes.as_chunks_mut::<8>();
    for word in words {
        *word = (u64::from_ne_bytes(*word) ^ wide).to_ne_bytes();
    }
    for (byte, key) in rest.iter_mut().zip(key.into_iter().cycle()) {
        *byte ^= key;
    }
}

/// Moves `payload` down to `to` and applies the mask on the way, as [`mask`] does: one pass instead of two.
pub(super) fn mask_down(bytes: &mut [u8], payload: Range<usize>, to: usize, key: [u8; 4], offset: usize) {
    /// A multiple of the mask's length: each block begins where the first did.
    const BLOCK: usize = 64;
    debug_assert!(to <= payload.start, "upwards it would overwrite itself");
    let (mut read, mut write) = (payload.start, to);
    while let Some(block) = bytes[read..payload.end].first_chunk::<BLOCK>() {
        let mut block = *block;
        mask(&mut block, key, offset);
        bytes[write..][..BLOCK].copy_from_slice(&block);
        (read, write) = (read + BLOCK, write + BLOCK);
    }
    bytes.copy_within(read..payload.end, write);
    mask(&mut bytes[write..][..payload.end - read], key, offset);
}

pub(super) fn violation(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_reads_back_whatever_its_length() {
        for length in [0, 1, 125, 126, 127, 0xffff, 0x1_0000, u64::MAX >> 1] {
            for mask in [None, Some([1, 2, 3, 4])] {
                let header = Header { opcode: Opcode::Data, length, mask };
                let (bytes, end) = header.encode();
                assert_eq!(Header::parse(&bytes[..end]).unwrap(), Some((header, end)));
                for cut in 0..end {
                    assert_eq!(Header::parse(&bytes[..cut]).unwrap(), None, "cut at {cut} of {end}");
                }
            }
        }
    }

    #[test]
    fn what_the_rfc_forbids_is_refused() {
        for bad in [
            &[0xc2, 0x00][..],                        // RSV1 without permessage-deflate
            &[0x81, 0x00],                            // text
            &[0x83, 0x00],                            // reserved opcode
            &[0x09, 0x00],                            // fragmented ping
            &[0x89, 0x7e, 0x00, 0x80],                // ping of 128 bytes
            &[0x82, 0x7f, 0x80, 0, 0, 0, 0, 0, 0, 0], // length of 2^63
        ] {
            assert!(Header::parse(bad).is_err(), "{bad:x?}");
        }
    }

    #[test]
    fn the_mask_follows_its_offset() {
        let plain: Vec<u8> = (0..100).collect();
        let mut whole = plain.clone();
        mask(&mut whole, [7, 11, 13, 17], 0);
        let mut parts = plain.clone();
        let (left, right) = parts.split_at_mut(33);
        mask(left, [7, 11, 13, 17], 0);
        mask(right, [7, 11, 13, 17], 33);
        assert_eq!(whole, parts);
        mask(&mut whole, [7, 11, 13, 17], 0);
        assert_eq!(whole, plain);
    }
    #[test]
    fn what_moves_down_is_masked_as_if_it_stayed() {
        let key = [7, 11, 13, 17];
        for (length, gap, offset) in
            [(0, 3, 0), (5, 1, 2), (63, 14, 3), (64, 14, 1), (1000, 14, 2), (130, 0, 1)]
        {
            let plain: Vec<u8> = (0..=255).cycle().take(length).collect();
            let mut expected = plain.clone();
            mask(&mut expected, key, offset);
            let mut bytes = [&[1; 9][..], &vec![2; gap], &plain, &[3; 70]].concat();
            mask_down(&mut bytes, 9 + gap..9 + gap + length, 9, key, offset);
            assert_eq!(bytes[9..][..length], expected);
            assert!(bytes[..9].iter().all(|&byte| byte == 1), "what is before");
            assert!(bytes[9 + gap + length..].iter().all(|&byte| byte == 3), "what is behind");
        }
    }
}
