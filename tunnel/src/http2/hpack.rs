//! Heads on the wire: HPACK (RFC 7541).

mod decoder;
mod encoder;
mod huffman;
mod integer;
mod table;

pub(super) use self::{
    decoder::{Decoder, Field, Pseudo},
    encoder::Encoder,
};

/// How much a table may hold, at both ends, until the other end wants less (RFC 7541 section 4.2). A field counts as its
/// bytes and [`OVERHEAD`].
pub(super) const TABLE: usize = 4096;

/// What a field counts beyond its bytes (RFC 7541 section 4.1, RFC 9113 section 6.5.2).
pub(super) const OVERHEAD: usize = 32;

/// A block that nothing can be made of, and nothing that follows it either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) &'static str);

#[cfg(test)]
mod tests;
