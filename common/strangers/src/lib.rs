//! Strangers: the clients of a listener that have not shown a valid credential.
//!
//! Silent connections and slow bodies cost a stranger nothing, and could fill a listener. While it is full, something new of a stranger
//! or of another client replaces what a stranger holds: the oldest of the address that holds the most. So a stranger at one address
//! replaces its own connections only, and strangers at many addresses have to fill the whole listener in the time between the handshake
//! of a client and its credential.
//!
//! [`ConnectionLimit`] counts the connections of a listener, and [`ByteLimit`] the bytes of their requests.
#![warn(missing_docs)]

mod bytes;
mod connections;
mod site;
mod table;

pub use self::{
    bytes::{ByteLimit, BytesGuard, OverLimit},
    connections::{ConnectionLimit, ConnectionPermit},
    site::site,
    table::{Stranger, Strangers},
};
