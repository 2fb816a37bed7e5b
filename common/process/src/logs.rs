//! The log of a program: lines on standard error, which a thread writes.
//!
//! A program must serve its requests even if the reader of its log stops or a disk is full. So a [`LineWriter`] queues the
//! lines for the thread, and counts those that are lost.
//!
//! `tracing-appender` has such a queue, too. It ignores failed writes without a count, and prints with `println!`, which
//! panics when standard output is closed.

use std::{
    collections::HashMap,
    fmt::{self, Write as _},
    io::{self, IsTerminal as _, Write},
    panic::{self, PanicHookInfo},
    sync::{Arc, LazyLock},
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use prometheus_client::{metrics::counter::Counter, registry::Registry};
use tracing::{Level, Metadata, callsite::Identifier};
use tracing_subscriber::{
    EnvFilter,
    fmt::{MakeWriter, writer::OptionalWriter},
    reload,
};

use crate::LineWriter;

/// Most bytes of lines that wait for the thread, which are some ten thousand lines.
const MAX_QUEUED: usize = 4 << 20;

/// Time that the last lines have to be written when the program ends.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(100);

/// Most lines of one statement in each period, at the levels info and above. A remote host may cause more of them.
const MAX_LINES: u32 = 1000;

/// The period of [`MAX_LINES`].
const LINES_PERIOD: Duration = Duration::from_secs(10);

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
pub struct LogGuard {
    writer: LogWriter,
    filter: LogFilter,
}

/// Flushes the running log. Clones are cheap.
#[derive(Clone, Debug)]
pub struct LogFlusher(LogWriter);

/// Replaces the filter of the running log. Clones are cheap.
#[derive(Clone)]
pub struct LogFilter(Arc<dyn Fn(EnvFilter) + Send + Sync>);

/// Queues lines for the thread that writes them. Cheap to clone.
#[derive(Clone, Debug)]
struct LogWriter {
    lines: LineWriter,
    limiter: Arc<LineLimiter>,
}

/// Limits the lines of each statement of the program, that of a library too.
#[derive(Debug, Default)]
struct LineLimiter(Mutex<HashMap<Identifier, Period>>);

#[derive(Debug)]
struct Period {
    since: Instant,
    lines: u32,
}

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
    let filter = match format {
        LogFormat::Text => {
            let builder = builder.with_filter_reloading();
            let filter = LogFilter::new(builder.reload_handle());
            builder.init();
            filter
        }
        LogFormat::Json => {
            let builder = builder.json().flatten_event(true).with_filter_reloading();
            let filter = LogFilter::new(builder.reload_handle());
            builder.init();
            filter
        }
    };
    panic::set_hook(Box::new(on_panic));
    LogGuard { writer, filter }
}

impl LogGuard {
    /// Returns a handle that replaces the filter.
    pub fn filter(&self) -> LogFilter {
        self.filter.clone()
    }

    /// Returns a handle that flushes the log, for an end of the process that drops nothing.
    pub fn flusher(&self) -> LogFlusher {
        LogFlusher(self.writer.clone())
    }
}

impl LogFlusher {
    /// Waits until the lines that are queued now were written, for at most 100 ms.
    pub fn flush(&self) {
        self.0.lines.flush(FLUSH_TIMEOUT);
    }
}

impl LogFilter {
    fn new<S: 'static>(handle: reload::Handle<EnvFilter, S>) -> Self {
        Self(Arc::new(move |filter| {
            // It fails if the subscriber is gone, and with it the log.
            let _ = handle.reload(filter);
        }))
    }

    /// Replaces the filter.
    pub fn set(&self, filter: EnvFilter) {
        (self.0)(filter);
    }
}

impl fmt::Debug for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogFilter")
    }
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
        let report = |lines| {
            tracing::warn!(
                lines,
                "log lines were lost: one was repeated too often, or standard error was not writable"
            );
        };
        let lines = LineWriter::start("log", MAX_QUEUED, sink, LOST.clone(), report);
        Self { lines, limiter: Arc::default() }
    }
}

impl LineLimiter {
    /// Returns true if one more line of this statement may be written.
    fn admit(&self, statement: Identifier, now: Instant) -> bool {
        let mut periods = self.0.lock();
        let period = periods.entry(statement).or_insert(Period { since: now, lines: 0 });
        if now.saturating_duration_since(period.since) >= LINES_PERIOD {
            *period = Period { since: now, lines: 0 };
        }
        period.lines = period.lines.saturating_add(1);
        period.lines <= MAX_LINES
    }
}

impl Write for LogWriter {
    /// Queues a whole line, as the formatter passes it.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.lines.send(without_hidden(line));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for LogWriter {
    type Writer = OptionalWriter<Self>;

    fn make_writer(&self) -> Self::Writer {
        OptionalWriter::some(self.clone())
    }

    fn make_writer_for(&self, line: &Metadata<'_>) -> Self::Writer {
        // Lines of the levels debug and trace exist only on request of the operator.
        if *line.level() > Level::INFO || self.limiter.admit(line.callsite(), Instant::now()) {
            return self.make_writer();
        }
        LOST.inc();
        OptionalWriter::none()
    }
}

/// Returns a line whose invisible characters, and those that change the direction of the text, are escaped as in JSON: a text of a
/// stranger must not make a line look like another one. The formatter escapes control characters.
fn without_hidden(line: &[u8]) -> Vec<u8> {
    // All of them begin with these bytes, which few lines have.
    let is_suspicious = line.iter().any(|byte| matches!(byte, 0xc2 | 0xd8 | 0xe1 | 0xe2 | 0xef | 0xf3));
    let text = is_suspicious.then(|| str::from_utf8(line).ok()).flatten();
    let Some(text) = text.filter(|text| text.contains(is_hidden)) else { return line.to_vec() };
    let mut shown = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_hidden(character) {
            for unit in character.encode_utf16(&mut [0; 2]) {
                let _ = write!(shown, "\\u{unit:04x}");
            }
        } else {
            shown.push(character)
        }
    }
    shown.into_bytes()
}

/// Returns whether a character is invisible (the category Cf of Unicode) or separates lines.
fn is_hidden(c: char) -> bool {
    matches!(
        c,
        '\u{80}'..='\u{9f}'
            | '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{e0000}'..='\u{e007f}'
    )
}

impl Drop for LogGuard {
    fn drop(&mut self) {
        self.flusher().flush();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Sends each line to a test.
    struct Sink(mpsc::Sender<String>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.send(String::from_utf8_lossy(bytes).into_owned()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn repeated_line_of_any_target_is_limited_and_counted() {
        let (sender, lines) = mpsc::channel();
        let writer = LogWriter::start(Sink(sender));
        let builder = tracing_subscriber::fmt().with_max_level(Level::DEBUG).with_writer(writer.clone());
        let lost = LOST.get();
        tracing::subscriber::with_default(builder.finish(), || {
            for _ in 0..3 * MAX_LINES {
                tracing::warn!(target: "library", "repeated");
                tracing::debug!(target: "library", "details");
            }
            tracing::warn!(target: "library", "another");
        });
        writer.lines.flush(Duration::from_secs(30));
        let lines: Vec<String> = lines.try_iter().collect();
        let count = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
        assert_eq!((count("repeated"), count("another")), (MAX_LINES as usize, 1));
        assert_eq!(count("details"), 3 * MAX_LINES as usize, "on request of the operator");
        assert_eq!(LOST.get() - lost, u64::from(2 * MAX_LINES));
    }

    /// Names of branches, objects and callers reach the log.
    #[test]
    fn hidden_characters_are_escaped_in_both_formats() {
        for json in [false, true] {
            let (sender, lines) = mpsc::channel();
            let writer = LogWriter::start(Sink(sender));
            let builder = tracing_subscriber::fmt().with_ansi(false).with_writer(writer.clone());
            let text = "a\u{202e}b\u{200b}c\u{2028}d\u{feff}e\u{9b}31mf\u{e0041}g";
            let log = || tracing::warn!(branch = text, "ü “quoted” 名 {text}");
            if json {
                tracing::subscriber::with_default(builder.json().finish(), log)
            } else {
                tracing::subscriber::with_default(builder.finish(), log)
            }
            writer.lines.flush(Duration::from_secs(30));
            let line = lines.try_recv().unwrap();
            assert!(!line.contains(is_hidden), "{line}");
            assert!(line.contains("ü “quoted” 名 a\\u202eb"), "{line}");
            if json {
                let parsed: serde_json::Value = serde_json::from_str(&line).unwrap();
                assert_eq!(parsed["fields"]["branch"], text);
            }
        }
    }

    #[test]
    fn filter_is_replaced_while_the_log_runs() {
        let (sender, lines) = mpsc::channel();
        let writer = LogWriter::start(Sink(sender));
        let builder = tracing_subscriber::fmt().with_env_filter(EnvFilter::new("info"));
        let builder = builder.with_writer(writer.clone()).with_filter_reloading();
        let filter = LogFilter::new(builder.reload_handle());
        tracing::subscriber::with_default(builder.finish(), || {
            for level in ["info", "debug", "warn"] {
                filter.set(EnvFilter::new(level));
                tracing::debug!("details at {level}");
                tracing::info!("event at {level}");
            }
        });
        writer.lines.flush(Duration::from_secs(30));
        let text: String = lines.try_iter().collect();
        let shown = |line: &str| text.contains(line);
        assert!(shown("event at info") && shown("event at debug") && shown("details at debug"), "{text}");
        assert!(!shown("details at info") && !shown("at warn"), "{text}");
    }
}
