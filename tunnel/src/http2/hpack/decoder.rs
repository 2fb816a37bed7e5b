//! Takes blocks apart.

use std::collections::VecDeque;

use bytes::Bytes;
use http::{HeaderName, HeaderValue};

use super::{
    Malformed, OVERHEAD, TABLE,
    integer::{take, take_string},
    table,
};

/// One field of a head. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Header(HeaderName, HeaderValue),
    Pseudo(Pseudo, Bytes),
    /// Framed well, but no field of HTTP: its message is malformed, and the connection goes on (RFC 9113 section 8.1.1).
    Bad {
        name: usize,
        value: usize,
    },
}

/// A field of HTTP/2's own (RFC 9113 section 8.3, RFC 8441 section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pseudo {
    Method,
    Scheme,
    Authority,
    Path,
    Protocol,
    Status,
}

impl Pseudo {
    pub(super) fn named(name: &[u8]) -> Option<Self> {
        Some(match name {
            b":method" => Self::Method,
            b":scheme" => Self::Scheme,
            b":authority" => Self::Authority,
            b":path" => Self::Path,
            b":protocol" => Self::Protocol,
            b":status" => Self::Status,
            _ => return None,
        })
    }

    fn name(self) -> &'static str {
        match self {
            Self::Method => ":method",
            Self::Scheme => ":scheme",
            Self::Authority => ":authority",
            Self::Path => ":path",
            Self::Protocol => ":protocol",
            Self::Status => ":status",
        }
    }
}

impl Field {
    /// What it counts.
    pub(crate) fn size(&self) -> usize {
        let bytes = match self {
            Self::Header(name, value) => name.as_str().len() + value.len(),
            Self::Pseudo(pseudo, value) => pseudo.name().len() + value.len(),
            Self::Bad { name, value } => name + value,
        };
        bytes + OVERHEAD
    }

    fn new(name: &Name, value: Bytes) -> Self {
        let bad = Self::Bad { name: name.len(), value: value.len() };
        match name {
            Name::Header(name) => match HeaderValue::from_maybe_shared(value) {
                Ok(value) => Self::Header(name.clone(), value),
                Err(_) => bad,
            },
            Name::Pseudo(pseudo) => Self::Pseudo(*pseudo, value),
            Name::Bad { .. } => bad,
        }
    }

    fn name(&self) -> Name {
        match self {
            Self::Header(name, _) => Name::Header(name.clone()),
            Self::Pseudo(pseudo, _) => Name::Pseudo(*pseudo),
            Self::Bad { name, .. } => Name::Bad { bytes: *name },
        }
    }
}

enum Name {
    Header(HeaderName),
    Pseudo(Pseudo),
    Bad { bytes: usize },
}

impl Name {
    fn parse(name: &[u8]) -> Self {
        if let Some(pseudo) = Pseudo::named(name) {
            return Self::Pseudo(pseudo);
        }
        // Upper case is malformed (RFC 9113 section 8.2.1).
        match HeaderName::from_lowercase(name) {
            Ok(name) => Self::Header(name),
            Err(_) => Self::Bad { bytes: name.len() },
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Header(name) => name.as_str().len(),
            Self::Pseudo(pseudo) => pseudo.name().len(),
            Self::Bad { bytes } => *bytes,
        }
    }
}

/// Remembers what the other end's encoder remembers.
#[derive(Debug)]
pub(crate) struct Decoder {
    /// The newest first.
    fields: VecDeque<Field>,
    size: usize,
    limit: usize,
}

impl Decoder {
    pub(crate) fn new() -> Self {
        Self { fields: VecDeque::new(), size: 0, limit: TABLE }
    }

    /// Says the fields of one block, in their order.
    pub(crate) fn decode(&mut self, mut block: Bytes, mut say: impl FnMut(Field)) -> Result<(), Malformed> {
        let mut begun = false;
        while let Some(&first) = block.first() {
            let resize = first & 0xe0 == 0x20;
            if resize && begun {
                return Err(Malformed("the table's size changes in the middle of a head"));
            }
            match first.leading_zeros() {
                // RFC 7541 section 6.1.
                0 => {
                    let number = take(&mut block, 7)?;
                    say(self.field(number)?.clone());
                }
                // Section 6.2.1.
                1 => {
                    let name = self.name(&mut block, 6)?;
                    let value = take_string(&mut block)?;
                    // A copy: what is remembered should not keep the whole head.
                    let field = Field::new(&name, Bytes::copy_from_slice(&value));
                    self.remember(field.clone());
                    say(field);
                }
                // Section 6.3.
                2 => {
                    let limit = take(&mut block, 5)?;
                    if limit > TABLE {
                        return Err(Malformed("the table is to be larger than was agreed on"));
                    }
                    self.limit = limit;
                    self.evict(0);
                }
                // Sections 6.2.2 and 6.2.3: what is never to be remembered is not on the next connection either.
                _ => {
                    let name = self.name(&mut block, 4)?;
                    let mut field = Field::new(&name, take_string(&mut block)?);
                    if first & 0x10 != 0
                        && let Field::Header(_, value) = &mut field
                    {
                        value.set_sensitive(true);
                    }
                    say(field);
                }
            }
            begun |= !resize;
        }
        Ok(())
    }

    fn field(&self, number: usize) -> Result<&Field, Malformed> {
        table::field(number)
            .or_else(|| self.fields.get(number.checked_sub(table::STATIC + 1)?))
            .ok_or(Malformed("a field that was never said"))
    }

    fn name(&self, block: &mut Bytes, bits: u32) -> Result<Name, Malformed> {
        match take(block, bits)? {
            0 => Ok(Name::parse(&take_string(block)?)),
            number => Ok(self.field(number)?.name()),
        }
    }

    fn remember(&mut self, field: Field) {
        let size = field.size();
        self.evict(size);
        // One that does not fit empties the table, and is not in it (RFC 7541 section 4.4).
        if size <= self.limit {
            self.size += size;
            self.fields.push_front(field);
        }
    }

    /// Makes room.
    fn evict(&mut self, room: usize) {
        while self.size + room > self.limit
            && let Some(field) = self.fields.pop_back()
        {
            self.size -= field.size();
        }
    }
}
