//! Puts blocks together.

use std::collections::VecDeque;

use bytes::{BufMut as _, BytesMut};
use http::{HeaderName, HeaderValue};

use super::{
    OVERHEAD, TABLE,
    integer::{put, put_string},
    table::{self, index},
};

/// Of hashes: a power of two, and a few times as many as fields fit into the table.
const SLOTS: usize = 128;

/// Remembers what was said, so that it can be said in one byte.
///
/// What it remembers is what comes again: a field goes into the table when its name is new, or when it was seen twice.
/// What is another in each message (ids, dates, lengths) stays out by itself, and pushes nothing out.
#[derive(Debug, Default)]
pub(crate) struct Encoder {
    /// The newest first.
    fields: VecDeque<(HeaderName, HeaderValue)>,
    size: usize,
    /// Changed by the other end; `None` until then.
    limit: Option<Limit>,
    /// How many were ever remembered: the number of the newest.
    remembered: u32,
    /// Nothing before the first head.
    hints: Option<Box<Hints>>,
}

#[derive(Clone, Copy, Debug)]
struct Limit {
    size: usize,
    /// The smallest since the last head, if the other end does not know yet (RFC 7541 section 4.2).
    unsaid: Option<usize>,
}

/// Where a field may be, by hash. The last one with a hash wins; the others are merely not found.
#[derive(Debug)]
struct Hints {
    /// Numbers of fields.
    fields: [u32; SLOTS],
    /// Numbers of fields with a name.
    names: [u32; SLOTS],
    /// Hashes of what was seen last.
    seen: [u32; SLOTS],
}

impl Encoder {
    /// The other end's decoder holds so much.
    pub(crate) fn limit(&mut self, size: usize) {
        let size = size.min(TABLE);
        let unsaid = self.limit.and_then(|limit| limit.unsaid).map_or(size, |least| least.min(size));
        self.limit = Some(Limit { size, unsaid: Some(unsaid) });
        self.evict(0);
    }

    /// Must come first in a block.
    pub(crate) fn begin(&mut self, out: &mut BytesMut) {
        if let Some(limit) = &mut self.limit
            && let Some(least) = limit.unsaid.take()
        {
            if least < limit.size {
                put(out, 0x20, 5, least);
            }
            put(out, 0x20, 5, limit.size);
        }
    }

    /// The beginning of a request that goes to its service, whose handler knows the real scheme and authority.
    pub(crate) fn request(&mut self, out: &mut BytesMut, method: &str, path: &str, protocol: Option<&str>) {
        match method {
            "GET" => put(out, 0x80, 7, index::METHOD_GET),
            "POST" => put(out, 0x80, 7, index::METHOD_POST),
            other => literal(out, index::METHOD_GET, other),
        }
        put(out, 0x80, 7, index::SCHEME_HTTP);
        literal(out, index::AUTHORITY, "agent");
        literal(out, index::PATH, path);
        if let Some(protocol) = protocol {
            out.put_u8(0);
            put_string(out, b":protocol");
            put_string(out, protocol.as_bytes());
        }
    }

    /// The beginning of a response.
    pub(crate) fn status(&mut self, out: &mut BytesMut, status: http::StatusCode) {
        match table::status(status.as_u16()) {
            Some(number) => put(out, 0x80, 7, number),
            None => literal(out, index::STATUS, status.as_str()),
        }
    }

    /// One field.
    pub(crate) fn header(&mut self, out: &mut BytesMut, name: &HeaderName, value: &HeaderValue) {
        let (name_bytes, value_bytes) = (name.as_str().as_bytes(), value.as_bytes());
        let name_hash = hash(0, name_bytes);
        let hash = hash(name_hash, value_bytes);
        let hints = self.hints.get_or_insert_with(|| {
            Box::new(Hints { fields: [0; SLOTS], names: [0; SLOTS], seen: [0; SLOTS] })
        });
        let slot = hash as usize % SLOTS;
        let (field, named) = (hints.fields[slot], hints.names[name_hash as usize % SLOTS]);
        if let Some(place) = self.place(field)
            && let (known, same) = &self.fields[place]
            && known == name
            && same == value
        {
            return put(out, 0x80, 7, table::STATIC + 1 + place);
        }

        let named = self.place(named).filter(|place| self.fields[*place].0 == *name);
        let again = std::mem::replace(&mut self.hints.as_mut().expect("just made").seen[slot], hash) == hash;
        let size = name_bytes.len() + value_bytes.len() + OVERHEAD;
        // What takes a large part of the table is not worth what it pushes out, and a secret is not compared with what
        // others say (RFC 7541 section 7.1).
        let remember = (named.is_none() || again) && size <= self.size_limit() / 4 && !value.is_sensitive();
        let (flags, bits) = match remember {
            true => (0x40, 6),
            false if value.is_sensitive() => (0x10, 4),
            false => (0, 4),
        };
        match named {
            Some(place) => put(out, flags, bits, table::STATIC + 1 + place),
            None => {
                out.put_u8(flags);
                put_string(out, name_bytes);
            }
        }
        put_string(out, value_bytes);
        if remember {
            self.remember(name, value, size, (name_hash, hash));
        }
    }

    fn size_limit(&self) -> usize {
        self.limit.map_or(TABLE, |limit| limit.size)
    }

    /// Where the field with this number is, if it still is.
    fn place(&self, number: u32) -> Option<usize> {
        let place = self.remembered.wrapping_sub(number) as usize;
        (number != 0 && place < self.fields.len()).then_some(place)
    }

    fn remember(
        &mut self,
        name: &HeaderName,
        value: &HeaderValue,
        size: usize,
        (name_hash, hash): (u32, u32),
    ) {
        self.evict(size);
        self.size += size;
        // A copy: what is remembered should not keep the whole head.
        let value = HeaderValue::from_bytes(value.as_bytes()).expect("it was one");
        self.fields.push_front((name.clone(), value));
        self.remembered = self.remembered.wrapping_add(1);
        if let Some(hints) = &mut self.hints {
            hints.fields[hash as usize % SLOTS] = self.remembered;
            hints.names[name_hash as usize % SLOTS] = self.remembered;
        }
    }

    /// Makes room.
    fn evict(&mut self, room: usize) {
        while self.size + room > self.size_limit()
            && let Some((name, value)) = self.fields.pop_back()
        {
            self.size -= name.as_str().len() + value.len() + OVERHEAD;
        }
    }
}

/// A field whose name has a number, and whose value is not remembered.
fn literal(out: &mut BytesMut, name: usize, value: &str) {
    put(out, 0, 4, name);
    put_string(out, value.as_bytes());
}

/// Quick, and no more than a hint: whoever makes collisions makes his own heads longer.
fn hash(seed: u32, bytes: &[u8]) -> u32 {
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |hash: u64, word: u64| (hash.rotate_left(5) ^ word).wrapping_mul(MULTIPLIER);
    let (words, rest) = bytes.as_chunks::<8>();
    let mut hash = u64::from(seed) ^ (bytes.len() as u64) << 32;
    for word in words {
        hash = mix(hash, u64::from_le_bytes(*word));
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    (mix(hash, u64::from_le_bytes(last)) >> 32) as u32
}
