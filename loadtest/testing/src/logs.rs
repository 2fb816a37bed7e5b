//! Capture of log lines.

use std::{
    io::{self, Write},
    sync::Arc,
};

use parking_lot::Mutex;
use tracing_subscriber::fmt::MakeWriter;

/// The captured log lines of this thread. Dropping it ends the capture.
pub struct Logs {
    written: Written,
    _guard: tracing::subscriber::DefaultGuard,
}

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Logs {
    /// Starts to capture the log lines of this thread, at all levels.
    pub fn capture() -> Self {
        let written = Written::default();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .with_writer(written.clone())
            .finish();
        Self { written, _guard: tracing::subscriber::set_default(subscriber) }
    }

    /// Returns the log lines so far.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.written.0.lock()).into_owned()
    }
}

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Written {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}
