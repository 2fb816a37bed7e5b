//! The log of a program: lines on standard error, which a thread writes.
//!
//! A program must serve its requests even if the reader of its log stops or a disk is full. So a [`LineWriter`] queues the
//! lines for the thread, and counts those that are lost.
//!
//! `tracing-appender` has such a queue, too. It ignores failed writes without a count, and prints with `println!`, which
//! panics when standard output is closed.

use std::{
    io::{self, IsTerminal as _, Write},
    panic::{self, PanicHookInfo},
    sync::LazyLock,
    thread,
    time::Duration,
};

use prometheus_client::{metrics::counter::Counter, registry::Registry};
use tracing_subscriber::{EnvFilter, fmt::MakeWriter};

use crate::LineWriter;

/// Most bytes of lines that wait for the thread, which are some ten thousand lines.
const MAX_QUEUED: usize = 4 << 20;

/// Time that the last lines have to be written when the program ends.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(100);

/// Lines that were lost in this process.
static LOST: LazyLock<Counter> = LazyLock::new(Counter::default);
/// Panics in this process.
static PANICS: LazyLock<Counter> = LazyLock::new(Counter::default);

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Text for people.
    Text,
    /// A JSON object on each line.
    Json,
}

/// Flushes the log when it is dropped, for at most 100 ms.
#[derive(Debug)]
#[must_use = "dropping it flushes the log"]
pub struct LogGuard(LogWriter);

/// Queues lines for the thread that writes them. Cheap to clone.
#[derive(Clone, Debug)]
struct LogWriter(LineWriter);

/// Logs events that pass the `filter`, and each panic, to standard error. With `targets`, each line has its module.
///
/// # Panics
///
/// If the process logs already, or cannot start a thread.
pub fn start(filter: EnvFilter, format: LogFormat, targets: bool) -> LogGuard {
    let writer = LogWriter::start(io::stderr());
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(targets)
        .with_ansi(format == LogFormat::Text && io::stderr().is_terminal())
        // Internal errors are printed with `eprintln!`, which panics when standard error is closed.
        .log_internal_errors(false)
        .with_writer(writer.clone());
    match format {
        LogFormat::Text => builder.init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
    panic::set_hook(Box::new(on_panic));
    LogGuard(writer)
}

/// Registers `<prefix>_log_lines_lost_total` and `<prefix>_panics_total`.
pub fn register(registry: &mut Registry, prefix: &str) {
    let registry = registry.sub_registry_with_prefix(prefix);
    let lost = "Log lines that were lost: standard error could not be written, or was not read";
    registry.register("log_lines_lost", lost, LOST.clone());
    let panics = "Panics, each of which is a defect of this program";
    registry.register("panics", panics, PANICS.clone());
}

/// Counts and logs a panic. The hook of the standard library writes to standard error itself.
fn on_panic(panic: &PanicHookInfo<'_>) {
    PANICS.inc();
    let message = panic.payload_as_str().unwrap_or("no message");
    let location = panic.location().map(tracing::field::display);
    tracing::error!(location, message, thread = thread::current().name(), "panic: a defect of this program");
}

impl LogWriter {
    fn start(sink: impl Write + Send + 'static) -> Self {
        let report = |lines| tracing::warn!(lines, "log lines were lost: standard error was not writable");
        Self(LineWriter::start("log", MAX_QUEUED, sink, LOST.clone(), report))
    }
}

impl Write for LogWriter {
    /// Queues a whole line, as the formatter passes it.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.send(line.to_vec());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for LogWriter {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

impl Drop for LogGuard {
    fn drop(&mut self) {
        self.0.0.flush(FLUSH_TIMEOUT);
    }
}
