//! The log of a program: lines on standard error, which a thread writes.
//!
//! A program must serve its requests even if the reader of its log stops or a disk is full. So `LogWriter` never blocks and
//! never fails. It queues lines for the thread, and counts the lines that are lost because the queue is full or the write
//! fails.
//!
//! `tracing-appender` has such a queue, too. It ignores failed writes without a count, and prints with `println!`, which
//! panics when standard output is closed.

use std::{
    fmt,
    io::{self, IsTerminal as _, Write},
    panic::{self, PanicHookInfo},
    sync::{
        Arc, LazyLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc::{self, Receiver, Sender, SyncSender},
    },
    thread,
    time::Duration,
};

use prometheus_client::{metrics::counter::Counter, registry::Registry};
use tracing_subscriber::{EnvFilter, fmt::MakeWriter, reload};

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
pub struct LogGuard {
    writer: LogWriter,
    filter: LogFilter,
}

/// Replaces the filter of the running log. Clones are cheap.
#[derive(Clone)]
pub struct LogFilter(Arc<dyn Fn(EnvFilter) + Send + Sync>);

/// Queues lines for the thread that writes them. Cheap to clone.
#[derive(Clone, Debug)]
struct LogWriter {
    entries: Sender<LogEntry>,
    /// Bytes of lines in the queue.
    queued: Arc<AtomicUsize>,
    lost: Counter,
}

enum LogEntry {
    Line(Vec<u8>),
    /// Reports that every line before it was written.
    Flush(SyncSender<()>),
}

/// Logs events that pass the `filter`, and each panic, to standard error. With `targets`, each line has its module.
///
/// # Panics
///
/// If the process logs already, or cannot start a thread.
pub fn start(filter: EnvFilter, format: LogFormat, targets: bool) -> LogGuard {
    let writer = LogWriter::start(io::stderr(), LOST.clone());
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
    fn start(sink: impl Write + Send + 'static, lost: Counter) -> Self {
        let (entries, queue) = mpsc::channel();
        let writer = Self { entries, queued: Arc::default(), lost };
        let (queued, lost) = (Arc::clone(&writer.queued), writer.lost.clone());
        let writing = move || write_lines(sink, &queue, &queued, &lost);
        thread::Builder::new().name("log".to_owned()).spawn(writing).expect("the system can start a thread");
        writer
    }

    /// Waits until the lines that are queued now were written, or until the timeout.
    fn flush(&self, timeout: Duration) {
        let (written, flushed) = mpsc::sync_channel(1);
        if self.entries.send(LogEntry::Flush(written)).is_ok() {
            let _ = flushed.recv_timeout(timeout);
        }
    }
}

fn write_lines(mut sink: impl Write, queue: &Receiver<LogEntry>, queued: &AtomicUsize, lost: &Counter) {
    let mut reported = 0;
    for entry in queue {
        let line = match entry {
            LogEntry::Line(line) => line,
            LogEntry::Flush(written) => {
                let _ = written.try_send(());
                continue;
            }
        };
        let result = sink.write_all(&line).and_then(|()| sink.flush());
        queued.fetch_sub(line.len(), Relaxed);
        if result.is_err() {
            lost.inc();
            continue;
        }
        let total = lost.get();
        if total > reported {
            tracing::warn!(lines = total - reported, "log lines were lost: standard error was not writable");
            reported = total;
        }
    }
}

impl Write for LogWriter {
    /// Queues a whole line, as the formatter passes it.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let queued = self.queued.fetch_add(line.len(), Relaxed);
        if queued + line.len() > MAX_QUEUED || self.entries.send(LogEntry::Line(line.to_vec())).is_err() {
            self.queued.fetch_sub(line.len(), Relaxed);
            self.lost.inc();
        }
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
        self.writer.flush(FLUSH_TIMEOUT);
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::{Mutex, MutexGuard};

    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    /// A sink whose content tests can read. Its lock stops the thread.
    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<SinkState>>);

    #[derive(Default)]
    struct SinkState {
        written: Vec<u8>,
        fails: bool,
    }

    impl Sink {
        fn state(&self) -> MutexGuard<'_, SinkState> {
            self.0.lock()
        }
    }

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut state = self.state();
            if state.fails {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            state.written.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn writer() -> (LogWriter, Sink) {
        let sink = Sink::default();
        (LogWriter::start(sink.clone(), Counter::default()), sink)
    }

    #[test]
    fn lines_are_written_in_order() {
        let (mut writer, sink) = writer();
        writer.write_all(b"one\n").unwrap();
        writer.write_all(b"two\n").unwrap();
        writer.flush(LONG);
        assert_eq!((&*sink.state().written, writer.lost.get()), (&b"one\ntwo\n"[..], 0));
        assert_eq!(writer.queued.load(Relaxed), 0);
    }

    #[test]
    fn filter_is_replaced_while_the_log_runs() {
        let (writer, sink) = writer();
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
        writer.flush(LONG);
        let text = String::from_utf8(sink.state().written.clone()).unwrap();
        let shown = |line: &str| text.contains(line);
        assert!(shown("event at info") && shown("event at debug") && shown("details at debug"), "{text}");
        assert!(!shown("details at info") && !shown("at warn"), "{text}");
    }

    #[test]
    fn failed_lines_are_counted_and_later_ones_are_written() {
        let (mut writer, sink) = writer();
        sink.state().fails = true;
        for _ in 0..3 {
            writer.write_all(b"lost\n").unwrap();
        }
        writer.flush(LONG);
        sink.state().fails = false;
        writer.write_all(b"written\n").unwrap();
        writer.flush(LONG);
        assert_eq!((&*sink.state().written, writer.lost.get()), (&b"written\n"[..], 3));
    }

    #[test]
    fn blocked_sink_delays_no_line_and_bounds_the_queue() {
        let (mut writer, sink) = writer();
        let blocked = sink.state();
        let line = vec![b'x'; MAX_QUEUED / 16];
        for _ in 0..20 {
            writer.write_all(&line).unwrap();
        }
        // The timeout is zero, because the thread is blocked.
        writer.flush(Duration::ZERO);
        assert_eq!(writer.lost.get(), 4);
        drop(blocked);
        writer.flush(LONG);
        assert_eq!(sink.state().written.len(), MAX_QUEUED);
    }
}
