//! Why a stream, or the whole connection, ended before its end.

use std::{fmt, io, sync::Arc};

/// An error code of RFC 9113 section 7.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Reason(pub(super) u32);

impl Reason {
    /// Nothing went wrong.
    pub const NO_ERROR: Self = Self(0x0);
    /// The other end broke the protocol.
    pub const PROTOCOL_ERROR: Self = Self(0x1);
    /// Whatever produces the message failed.
    pub const INTERNAL_ERROR: Self = Self(0x2);
    /// More came than a window allows.
    pub const FLOW_CONTROL_ERROR: Self = Self(0x3);
    /// A frame for a stream that was over.
    pub const STREAM_CLOSED: Self = Self(0x5);
    /// A frame of a wrong length.
    pub const FRAME_SIZE_ERROR: Self = Self(0x6);
    /// The request was not looked at.
    pub const REFUSED_STREAM: Self = Self(0x7);
    /// Nobody wants the rest.
    pub const CANCEL: Self = Self(0x8);
    /// A head that cannot be unpacked: from here on no head can.
    pub const COMPRESSION_ERROR: Self = Self(0x9);
    /// The other end makes too much work.
    pub const ENHANCE_YOUR_CALM: Self = Self(0xb);

    fn name(self) -> Option<&'static str> {
        const NAMES: [&str; 14] = [
            "NO_ERROR",
            "PROTOCOL_ERROR",
            "INTERNAL_ERROR",
            "FLOW_CONTROL_ERROR",
            "SETTINGS_TIMEOUT",
            "STREAM_CLOSED",
            "FRAME_SIZE_ERROR",
            "REFUSED_STREAM",
            "CANCEL",
            "COMPRESSION_ERROR",
            "CONNECT_ERROR",
            "ENHANCE_YOUR_CALM",
            "INADEQUATE_SECURITY",
            "HTTP_1_1_REQUIRED",
        ];
        NAMES.get(self.0 as usize).copied()
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "HTTP/2 error {:#x}", self.0),
        }
    }
}

impl fmt::Debug for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a stream, or the whole connection, ended before its end. Cheap to clone: all streams of a connection get it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The other end gave the stream up.
    #[error("the other end reset the stream ({0})")]
    Reset(Reason),
    /// This end gave the stream up.
    #[error("the stream was given up here")]
    Given,
    /// The other end sent what is no message of HTTP.
    #[error("the other end sent no valid message: {0}")]
    Malformed(&'static str),
    /// The other end, leaving, did not look at the stream.
    #[error("the other end left before it looked at the request")]
    Unseen,
    /// The other end gave the connection up.
    #[error("the other end gave the connection up ({0})")]
    GoneAway(Reason),
    /// The other end broke HTTP/2, or asked for more than it may.
    #[error(transparent)]
    Broken(#[from] Fault),
    /// The bytes stopped.
    #[error("{0}")]
    Io(Arc<io::Error>),
    /// The connection has ended in good order.
    #[error("the connection has ended")]
    Ended,
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Io(Arc::new(error))
    }
}

/// What the other end did that the whole connection cannot go on after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} ({reason})")]
pub struct Fault {
    pub(super) reason: Reason,
    pub(super) what: &'static str,
}

impl Fault {
    pub(super) const fn new(reason: Reason, what: &'static str) -> Self {
        Self { reason, what }
    }

    pub(super) const fn protocol(what: &'static str) -> Self {
        Self::new(Reason::PROTOCOL_ERROR, what)
    }

    pub(super) const fn size(what: &'static str) -> Self {
        Self::new(Reason::FRAME_SIZE_ERROR, what)
    }

    pub(super) const fn compression(what: &'static str) -> Self {
        Self::new(Reason::COMPRESSION_ERROR, what)
    }

    pub(super) const fn flood(what: &'static str) -> Self {
        Self::new(Reason::ENHANCE_YOUR_CALM, what)
    }
}
