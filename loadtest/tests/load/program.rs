//! Runs `loadtest`, and finds kas and agentk for it.

use std::{
    path::Path,
    process::{Output, Stdio},
    time::Duration,
};

use testing::skip::{installed, skipped};
use tokio::{process::Command, time::timeout};

/// The timeout of a run. A soak may wait 90 s until agentk has closed its idle connections.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(110);
const PROGRAM: &str = env!("CARGO_BIN_EXE_loadtest");

/// Returns the command `loadtest WHAT URL FLAGS`.
pub(crate) fn command(what: &str, url: &str, flags: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg(what).args(Some(url).filter(|url| !url.is_empty())).args(flags.split_whitespace());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// Runs `loadtest` to its end. Returns exit code, standard output and standard error.
pub(crate) async fn run(what: &str, url: &str, flags: &str) -> (Option<i32>, String, String) {
    let output = timeout(TIMEOUT, command(what, url, flags).output()).await.unwrap().unwrap();
    texts(&output)
}

pub(crate) fn texts(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Returns the directory of kas and agentk. Without them the running test is skipped.
pub(crate) fn programs() -> Option<&'static Path> {
    let directory = Path::new(PROGRAM).parent().unwrap();
    if ["kas", "agentk"].iter().all(|name| directory.join(name).exists()) {
        return Some(directory);
    }
    skipped("there is no kas and no agentk beside loadtest: cargo build --workspace --bins");
    None
}

/// Returns the directory of kas and agentk for tests that also need redis-server.
pub(crate) fn programs_and_redis() -> Option<&'static Path> {
    if !installed("redis-server") {
        skipped("there is no redis-server: .ci/install-tools installs it");
        return None;
    }
    programs()
}
