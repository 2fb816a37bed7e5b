//! The audit log: one line of JSON for each request that changes, reads a secret, upgrades, logs in or is refused.
//!
//! ```text
//!   proxy: AuditRecord ── facts as they become known ──► dropped when the response has ended ──► AuditLog ──► thread ──► sink
//! ```
//!
//! A line has no body, no query and no credential. `docs/audit.md` describes the fields. A slow or failing sink delays no request:
//! lines that do not fit into the queue are dropped and counted. Refusals of strangers, without a valid credential, have some lines for
//! each address and period, and are then only counted (`strangers`).

mod event;
mod file;
mod record;
mod strangers;

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use process::{LineWriter, LogLimiter};
use prometheus_client::metrics::counter::Counter;
use proto::ReplicaId;
use serde_saphyr::Spanned;
use tokio::time::sleep;

pub use self::event::AuditedAccess;
pub use self::record::{AuditRecord, ByteCounts, NewRequest};
use self::{file::RotatingFile, strangers::StrangerLimit};
use crate::{
    config::{AuditConfig, AuditSink},
    request_hooks::RequestObserver,
};
use files::unreadable;
use settings::ConfigError;

/// Most bytes of lines that wait for the sink, which are some ten thousand lines.
const MAX_QUEUED: usize = 8 << 20;
/// The period after which refusals of strangers that have no line are counted in one.
const STRANGER_PERIOD: Duration = Duration::from_secs(60);
/// The period in which the loss of lines is logged once.
const LOG_PERIOD: Duration = Duration::from_secs(10);
/// The section of the configuration, for errors.
const SECTION: &str = "observability.audit";

/// Writes lines to the sink. Cheap to clone.
#[derive(Clone, Debug)]
pub struct AuditLog {
    lines: LineWriter,
    losses: Arc<LogLimiter<()>>,
    replica: Arc<str>,
    strangers: Arc<StrangerLimit>,
    metrics: AuditMetrics,
    observers: Arc<[Arc<dyn RequestObserver>]>,
}

telemetry::metrics! {
    /// The metrics of the audit log.
    #[derive(Default)]
    pub struct AuditMetrics {
        pub dropped: Counter = create(
            "kas_audit_dropped",
            "Lines of the audit log that were dropped, because the sink was too slow or failed",
        ),
        pub left_out: Counter = create(
            "kas_audit_left_out",
            "Refusals of strangers without a line in the audit log, which counts them",
        ),
    }
}

/// A sink that reports its errors.
struct ReportingSink<S> {
    sink: S,
    losses: Arc<LogLimiter<()>>,
}

impl AuditLog {
    /// Starts the thread that writes lines to `sink`. The observers see each line.
    pub fn start(
        sink: impl Write + Send + 'static,
        metrics: AuditMetrics,
        replica: ReplicaId,
        observers: &[Arc<dyn RequestObserver>],
    ) -> Self {
        let losses = Arc::new(LogLimiter::new(LOG_PERIOD));
        let sink = ReportingSink { sink, losses: Arc::clone(&losses) };
        let lines = LineWriter::start("audit", MAX_QUEUED, sink, metrics.dropped.clone(), |_| {});
        let (replica, strangers) = (replica.to_string().into(), Arc::default());
        Self { lines, losses, replica, strangers, metrics, observers: observers.into() }
    }

    /// Returns the sink of the configuration, or `None` if there is none. Creates the file if it does not exist.
    ///
    /// # Errors
    ///
    /// The file cannot be opened.
    pub fn open(file: &Path, config: &AuditConfig) -> Result<Option<Box<dyn Write + Send>>, ConfigError> {
        match (config.sink, &config.file) {
            (AuditSink::Stdout, _) => Ok(Some(Box::new(io::stdout()))),
            (AuditSink::File, Some(path)) => {
                let opened = RotatingFile::open(&path.value, config.max_file_size, config.max_files);
                let opened = opened.map_err(|error| about_file(file, path, &unreadable(&error)))?;
                Ok(Some(Box::new(opened)))
            }
            (AuditSink::None, _) | (AuditSink::File, None) => Ok(None),
        }
    }

    /// Counts the refusals of strangers that have no line, from time to time. The future never completes.
    pub async fn run(&self) {
        loop {
            sleep(STRANGER_PERIOD).await;
            self.report_left_out();
        }
    }

    /// Writes lines with the numbers of refusals of strangers that have no line.
    fn report_left_out(&self) {
        for left_out in self.strangers.take() {
            self.send(record::left_out_line(&self.replica, left_out));
        }
    }

    /// Writes the last lines when kas stops. They take at most the timeout.
    pub fn finish(&self, timeout: Duration) {
        self.report_left_out();
        self.flush(timeout);
    }

    /// Waits until the lines that are queued now were written, or until the timeout.
    pub fn flush(&self, timeout: Duration) {
        self.lines.flush(timeout);
    }

    fn send(&self, line: Vec<u8>) {
        for observer in &*self.observers {
            observer.on_audit_line(&line);
        }
        if !self.lines.send(line) {
            report(&self.losses, "the sink is too slow, and the queue is full");
        }
    }
}

/// Checks the section without creating a file.
///
/// # Errors
///
/// The file is missing, has no effect, or cannot be in its place.
pub fn check(file: &Path, config: &AuditConfig) -> Result<(), ConfigError> {
    match (config.sink, &config.file) {
        (AuditSink::File, None) => {
            let what = "sink: file needs observability.audit.file";
            Err(ConfigError::whole(file, format!("{SECTION}.file: {what}")))
        }
        (AuditSink::File, Some(path)) => {
            // The parent of a name without a directory is empty.
            let directory = path.value.parent().filter(|parent| !parent.as_os_str().is_empty());
            if directory.is_some_and(|directory| !directory.is_dir()) {
                return Err(about_file(file, path, "the directory of the file does not exist"));
            }
            match std::fs::metadata(&path.value) {
                Ok(found) if !found.is_file() => Err(about_file(file, path, "it is not a regular file")),
                Ok(_) | Err(_) => Ok(()),
            }
        }
        (AuditSink::None | AuditSink::Stdout, Some(path)) => {
            let what = "has no effect without sink: file";
            Err(ConfigError::new(file, path.referenced, format!("{SECTION}.file"), what))
        }
        (AuditSink::None | AuditSink::Stdout, None) => Ok(()),
    }
}

fn about_file(file: &Path, path: &Spanned<PathBuf>, what: &str) -> ConfigError {
    let what = format!("{}: {what}", path.value.display());
    ConfigError::new(file, path.referenced, format!("{SECTION}.file"), what)
}

fn report(losses: &LogLimiter<()>, cause: &str) {
    if let Some(suppressed) = losses.admit((), Instant::now()) {
        tracing::error!(
            cause,
            suppressed,
            "lines of the audit log were dropped; kas_audit_dropped_total counts them"
        );
    }
}

impl<S: Write> Write for ReportingSink<S> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.sink.write(line).inspect_err(|error| report(&self.losses, &error.to_string()))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush().inspect_err(|error| report(&self.losses, &error.to_string()))
    }
}
