//! The progress bar of a run, on standard error if that is a terminal.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};
use tokio::{task::JoinHandle, time::interval};

/// The refresh interval of the bar.
const TICK: Duration = Duration::from_millis(200);

/// The counters of a run so far. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Counter(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    answers: AtomicU64,
    bytes: AtomicU64,
    failures: AtomicU64,
}

/// A progress bar that fills with time. Dropping it removes the bar.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
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

impl Progress {
    /// Shows a bar with the values of `counter` for `time`.
    pub fn show(what: &str, time: Duration, counter: Counter) -> Self {
        let style = ProgressStyle::with_template("{prefix} [{bar:30}] {elapsed}/{len}s  {msg}");
        let bar = ProgressBar::new(time.as_secs().max(1))
            .with_style(style.expect("a template that is a constant").progress_chars("=> "))
            .with_prefix(what.to_owned());
        let shown = bar.clone();
        let task = tokio::spawn(async move {
            let mut ticks = interval(TICK);
            loop {
                ticks.tick().await;
                shown.set_position(shown.elapsed().as_secs());
                shown.set_message(counter.text());
            }
        });
        Self { bar, task }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.task.abort();
        self.bar.finish_and_clear();
    }
}
