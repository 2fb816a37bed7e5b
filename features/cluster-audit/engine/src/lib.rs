//! The audit events of an API server: parsed without their bodies, and kept in a ring of files.
//!
//! ```text
//!   bytes of an EventList ──► EventScanner: one event at a time, without objects ──► parse: fields of the level Metadata ──► Ring
//!   Cursor: lines of the ring from a position ──► EventFilter ──► callers
//! ```
//!
//! The API server is not trusted: every text has a limit, and no buffer grows with what it sends. [`Ring`] and [`Cursor`] use files and
//! block; everything else is pure.
#![warn(missing_docs)]

mod cursor;
mod event;
mod filter;
mod ring;
mod scan;

pub use self::{
    cursor::{Cursor, Progress},
    event::{Skipped, append_line, parse},
    filter::{AuditResourceFilter, EventFilter, InvalidFilter},
    ring::{Appended, InvalidPosition, Position, Ring, RingView},
    scan::{EventScanner, ScanError, Scanned},
};
