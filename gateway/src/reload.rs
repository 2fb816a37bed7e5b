//! Files that are read again when they change: the identity file, certificates.

use std::{
    path::PathBuf,
    time::{Duration, SystemTime},
};

use tokio::time::interval;
use tokio_util::sync::CancellationToken;

use crate::config::ConfigError;

/// How often files are looked at. Asking for their times is cheap and, unlike inotify, sees through the symbolic links by
/// which Kubernetes replaces mounted files.
const LOOK: Duration = Duration::from_secs(2);

/// Calls `read` whenever one of the files has changed, until `stop`. What cannot be used is reported, and `read` must have
/// left the last good version in force. `what` names it in the log.
pub async fn on_change(
    what: &'static str,
    files: Vec<PathBuf>,
    stop: CancellationToken,
    read: impl Fn() -> Result<(), ConfigError> + Clone + Send + 'static,
) {
    let mut looks = interval(LOOK);
    let mut seen = stamps(&files).await;
    while stop.run_until_cancelled(looks.tick()).await.is_some() {
        let now = stamps(&files).await;
        if now == seen {
            continue;
        }
        seen = now;
        let read = read.clone();
        let reading = tokio::task::spawn_blocking(read);
        match reading.await.expect("reading a file does not panic") {
            Ok(()) => tracing::info!(what, "reloaded"),
            Err(error) => {
                tracing::error!(what, %error, "a new version was refused; the last good one stays in force");
            }
        }
    }
}

/// What changes when a file does: its time and its length. `None` while it is missing.
async fn stamps(files: &[PathBuf]) -> Vec<Option<(SystemTime, u64)>> {
    let files = files.to_vec();
    let stamp = |file: &PathBuf| {
        let metadata = std::fs::metadata(file).ok()?;
        Some((metadata.modified().ok()?, metadata.len()))
    };
    let looking = tokio::task::spawn_blocking(move || files.iter().map(stamp).collect());
    looking.await.expect("looking at files does not panic")
}
