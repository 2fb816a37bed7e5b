//! The progress of a run, on standard error if that is a terminal.

use std::{
    io::{self, IsTerminal as _, Write as _},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::{task::JoinHandle, time::interval};

/// The refresh interval of the bar.
const TICK: Duration = Duration::from_millis(200);
/// The characters of a full bar.
const WIDTH: u64 = 30;
/// Moves the cursor to the start of the line.
const START: &str = "\r";
/// Removes the rest of the line.
const ERASE: &str = "\x1b[K";

/// The counters of a run so far. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Counter(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    answers: AtomicU64,
    bytes: AtomicU64,
    failures: AtomicU64,
}

/// A line of standard error that is shown again and again, if that is a terminal.
#[derive(Debug)]
pub struct StatusLine {
    is_shown: Mutex<bool>,
}

/// A progress bar that fills with time. Dropping it removes the bar.
#[derive(Debug)]
pub struct Progress {
    line: Arc<StatusLine>,
    task: JoinHandle<()>,
}

impl Counter {
    /// Counts a response.
    pub fn answered(&self) {
        self.0.answers.fetch_add(1, Relaxed);
    }

    /// Returns the number of responses so far.
    pub fn answers(&self) -> u64 {
        self.0.answers.load(Relaxed)
    }

    /// Counts bytes of a body.
    pub fn received(&self, bytes: u64) {
        self.0.bytes.fetch_add(bytes, Relaxed);
    }

    /// Returns the number of bytes of bodies so far.
    pub fn bytes(&self) -> u64 {
        self.0.bytes.load(Relaxed)
    }

    /// Counts a failed request.
    pub fn failed(&self) {
        self.0.failures.fetch_add(1, Relaxed);
    }

    fn text(&self) -> String {
        let [answers, bytes, failures] =
            [&self.0.answers, &self.0.bytes, &self.0.failures].map(|count| count.load(Relaxed));
        format!("{answers} answers, {} MB, {failures} failures", bytes / 1_000_000)
    }
}

impl Default for StatusLine {
    fn default() -> Self {
        Self { is_shown: Mutex::new(io::stderr().is_terminal()) }
    }
}

impl StatusLine {
    /// Shows a text in place of the one before.
    pub fn show(&self, text: &str) {
        if *self.is_shown.lock() {
            let _ = write!(io::stderr(), "{START}{text}{ERASE}");
        }
    }

    /// Removes the text. Later ones are not shown.
    pub fn clear(&self) {
        let mut is_shown = self.is_shown.lock();
        if std::mem::take(&mut *is_shown) {
            let _ = write!(io::stderr(), "{START}{ERASE}");
        }
    }
}

/// Returns a bar of `part` of `all`.
pub fn bar(part: u64, all: u64) -> String {
    let filled = (part * WIDTH / all.max(1)).min(WIDTH) as usize;
    let head = if filled < WIDTH as usize { ">" } else { "" };
    format!("[{:<width$}]", format!("{}{head}", "=".repeat(filled)), width = WIDTH as usize)
}

impl Progress {
    /// Shows a bar with the values of `counter` for `time`.
    pub fn show(what: &str, time: Duration, counter: Counter) -> Self {
        let (what, seconds, started) = (what.to_owned(), time.as_secs().max(1), Instant::now());
        let line = Arc::new(StatusLine::default());
        let shown = Arc::clone(&line);
        let task = tokio::spawn(async move {
            let mut ticks = interval(TICK);
            loop {
                ticks.tick().await;
                let elapsed = started.elapsed().as_secs();
                let (bar, text) = (bar(elapsed, seconds), counter.text());
                shown.show(&format!("{what} {bar} {elapsed}/{seconds}s  {text}"));
            }
        });
        Self { line, task }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.task.abort();
        self.line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_fills_and_does_not_grow_longer() {
        assert_eq!(bar(0, 10), format!("[>{}]", " ".repeat(29)));
        assert_eq!(bar(5, 10), format!("[{}>{}]", "=".repeat(15), " ".repeat(14)));
        assert_eq!([10, 12].map(|part| bar(part, 10)), [1, 2].map(|_| format!("[{}]", "=".repeat(30))));
        assert_eq!(bar(0, 0), bar(0, 1));
    }
}
