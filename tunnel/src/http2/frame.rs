//! The forms of frames (RFC 9113 sections 4 and 6).

use bytes::{BufMut as _, BytesMut};

use super::error::{Fault, Reason};

/// What a client says first (RFC 9113 section 3.4).
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Length of a frame's head.
pub(super) const HEAD: usize = 9;

/// The largest payload that every end takes (RFC 9113 section 4.2).
pub(super) const LEAST_MAX_FRAME: usize = 1 << 14;

/// The window of a connection, and of its streams, until somebody says otherwise (RFC 9113 section 6.9.2).
pub(super) const FIRST_WINDOW: u32 = (1 << 16) - 1;

/// The largest window (RFC 9113 section 6.9.1).
pub(super) const MAX_WINDOW: i64 = (1 << 31) - 1;

/// Frame types.
pub(super) mod kind {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const PRIORITY: u8 = 2;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PUSH_PROMISE: u8 = 5;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
    pub(crate) const CONTINUATION: u8 = 9;
}

/// Flags. What a bit means depends on the type.
pub(super) mod flag {
    pub(crate) const ACK: u8 = 0x1;
    pub(crate) const END_STREAM: u8 = 0x1;
    pub(crate) const END_HEADERS: u8 = 0x4;
    pub(crate) const PADDED: u8 = 0x8;
    pub(crate) const PRIORITY: u8 = 0x20;
}

/// The first nine bytes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) length: usize,
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
}

impl Head {
    pub(super) fn parse(bytes: &[u8; HEAD]) -> Self {
        let [a, b, c, kind, flags, w, x, y, z] = *bytes;
        Self {
            length: u32::from_be_bytes([0, a, b, c]) as usize,
            kind,
            flags,
            // The first bit is reserved (RFC 9113 section 4.1).
            stream: u32::from_be_bytes([w, x, y, z]) & (u32::MAX >> 1),
        }
    }

    pub(super) fn encode(self) -> [u8; HEAD] {
        let [_, a, b, c] = (self.length as u32).to_be_bytes();
        let [w, x, y, z] = self.stream.to_be_bytes();
        [a, b, c, self.kind, self.flags, w, x, y, z]
    }

    pub(super) fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Appends a whole frame.
pub(super) fn put(out: &mut BytesMut, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    out.reserve(HEAD + payload.len());
    out.put_slice(&Head { length: payload.len(), kind, flags, stream }.encode());
    out.put_slice(payload);
}

/// Completes a head: at `start` is room for a frame's own head, and after it the block, which may need several frames.
pub(super) fn close_head(out: &mut BytesMut, start: usize, stream: u32, ended: bool, max_frame: usize) {
    let ended = if ended { flag::END_STREAM } else { 0 };
    let length = out.len() - start - HEAD;
    if length <= max_frame {
        let head = Head { length, kind: kind::HEADERS, flags: ended | flag::END_HEADERS, stream };
        return out[start..start + HEAD].copy_from_slice(&head.encode());
    }

    let block = out.split_off(start + HEAD);
    out.truncate(start);
    let parts = block.chunks(max_frame);
    let last = parts.len() - 1;
    for (number, part) in parts.enumerate() {
        let end_headers = if number == last { flag::END_HEADERS } else { 0 };
        match number {
            0 => put(out, kind::HEADERS, ended | end_headers, stream, part),
            _ => put(out, kind::CONTINUATION, end_headers, stream, part),
        }
    }
}

/// Appends RST_STREAM.
pub(super) fn put_reset(out: &mut BytesMut, stream: u32, reason: Reason) {
    put(out, kind::RST_STREAM, 0, stream, &reason.0.to_be_bytes());
}

/// Appends WINDOW_UPDATE; `stream` 0 is the connection.
pub(super) fn put_window(out: &mut BytesMut, stream: u32, increment: u32) {
    put(out, kind::WINDOW_UPDATE, 0, stream, &increment.to_be_bytes());
}

/// Appends GOAWAY.
pub(super) fn put_goaway(out: &mut BytesMut, last: u32, reason: Reason) {
    let mut payload = [0; 8];
    payload[..4].copy_from_slice(&last.to_be_bytes());
    payload[4..].copy_from_slice(&reason.0.to_be_bytes());
    put(out, kind::GOAWAY, 0, 0, &payload);
}

/// One parameter of RFC 9113 section 6.5.2 or RFC 8441 section 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Setting {
    HeaderTableSize(u32),
    EnablePush(bool),
    MaxConcurrentStreams(u32),
    InitialWindow(u32),
    MaxFrame(u32),
    MaxHeaderBytes(u32),
    ExtendedConnect(bool),
}

impl Setting {
    fn parse([a, b, w, x, y, z]: [u8; 6]) -> Result<Option<Self>, Fault> {
        let value = u32::from_be_bytes([w, x, y, z]);
        Ok(Some(match u16::from_be_bytes([a, b]) {
            1 => Self::HeaderTableSize(value),
            2 => Self::EnablePush(switch(value)?),
            3 => Self::MaxConcurrentStreams(value),
            4 if i64::from(value) > MAX_WINDOW => {
                return Err(Fault::new(
                    Reason::FLOW_CONTROL_ERROR,
                    "SETTINGS with a window beyond the largest",
                ));
            }
            4 => Self::InitialWindow(value),
            5 if !(LEAST_MAX_FRAME as u32..1 << 24).contains(&value) => {
                return Err(Fault::protocol("SETTINGS with a frame size out of bounds"));
            }
            5 => Self::MaxFrame(value),
            6 => Self::MaxHeaderBytes(value),
            8 => Self::ExtendedConnect(switch(value)?),
            _ => return Ok(None),
        }))
    }

    fn encode(self) -> [u8; 6] {
        let (id, value) = match self {
            Self::HeaderTableSize(value) => (1u16, value),
            Self::EnablePush(on) => (2, on.into()),
            Self::MaxConcurrentStreams(value) => (3, value),
            Self::InitialWindow(value) => (4, value),
            Self::MaxFrame(value) => (5, value),
            Self::MaxHeaderBytes(value) => (6, value),
            Self::ExtendedConnect(on) => (8, on.into()),
        };
        let ([a, b], [w, x, y, z]) = (id.to_be_bytes(), value.to_be_bytes());
        [a, b, w, x, y, z]
    }
}

fn switch(value: u32) -> Result<bool, Fault> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Fault::protocol("SETTINGS with a switch that is neither on nor off")),
    }
}

/// The settings in a payload; those that nobody knows are left out (RFC 9113 section 6.5.2).
pub(super) fn settings(payload: &[u8]) -> Result<Vec<Setting>, Fault> {
    let (settings, []) = payload.as_chunks::<6>() else {
        return Err(Fault::size("SETTINGS of a length that is no multiple of six"));
    };
    settings.iter().filter_map(|setting| Setting::parse(*setting).transpose()).collect()
}

/// Appends SETTINGS.
pub(super) fn put_settings(out: &mut BytesMut, settings: &[Setting]) {
    let payload: Vec<u8> = settings.iter().flat_map(|setting| setting.encode()).collect();
    put(out, kind::SETTINGS, 0, 0, &payload);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_reads_back() {
        for head in [
            Head { length: 0, kind: kind::SETTINGS, flags: flag::ACK, stream: 0 },
            Head { length: (1 << 24) - 1, kind: kind::DATA, flags: 0xff, stream: (1 << 31) - 1 },
        ] {
            assert_eq!(Head::parse(&head.encode()), head);
        }
        // The reserved bit is nobody's.
        assert_eq!(Head::parse(&[0, 0, 0, 0, 0, 0x80, 0, 0, 1]).stream, 1);
    }

    #[test]
    fn settings_read_back_and_strange_ones_are_left_out() {
        let ours = [
            Setting::HeaderTableSize(0),
            Setting::EnablePush(false),
            Setting::MaxConcurrentStreams(7),
            Setting::InitialWindow(1 << 20),
            Setting::MaxFrame(1 << 14),
            Setting::MaxHeaderBytes(1),
            Setting::ExtendedConnect(true),
        ];
        let mut out = BytesMut::new();
        put_settings(&mut out, &ours);
        assert_eq!(settings(&out[HEAD..]).unwrap(), ours);
        assert_eq!(settings(&[0x7f, 0, 0, 0, 0, 9]).unwrap(), []);
    }

    #[test]
    fn settings_that_the_rfc_forbids_are_faults() {
        for bad in [
            &[0, 4, 0, 0, 0][..],
            &[0, 2, 0, 0, 0, 2],
            &[0, 4, 0x80, 0, 0, 0],
            &[0, 5, 0, 0, 0x3f, 0xff],
            &[0, 5, 1, 0, 0, 0],
        ] {
            assert!(settings(bad).is_err(), "{bad:?}");
        }
    }
}
