//! What is received on one stream, for others than its reader.

use std::fmt;

use crate::http2::View;

/// Looks at a stream from beside its reader, and ends it. Cheap to clone; does not keep the stream alive.
#[derive(Clone)]
pub struct Grip(pub(crate) View);

/// What is known of a stream at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Bytes that have arrived and wait for their reader, or are with a reader who is not done with them.
    pub unread: usize,
    /// How often the reader has taken something.
    pub taken: u64,
    /// The reader has taken everything and waits for more, or is done: it is not the one who is slow.
    pub awaited: bool,
}

impl Grip {
    /// How it stands.
    pub fn look(&self) -> Look {
        self.0.look()
    }

    /// Gives up what waits and what is still to come. The reader gets an error, the sender a reset. It works where the
    /// reader has stopped reading.
    pub fn cut(&self) {
        self.0.cut();
    }
}

impl fmt::Debug for Grip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Grip")
    }
}
