//! The program under test, and kas and agentk for it.

use std::{
    io::Write as _,
    path::Path,
    process::{Output, Stdio},
    time::Duration,
};

use tokio::{process::Command, time::timeout};

/// Whatever hangs is a failure, and not a test that never ends.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
const PROGRAM: &str = env!("CARGO_BIN_EXE_loadtest");

/// `loadtest WHAT URL FLAGS`.
pub(crate) fn command(what: &str, url: &str, flags: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg(what).args(Some(url).filter(|url| !url.is_empty())).args(flags.split_whitespace());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// To its end: exit code, standard output and standard error.
pub(crate) async fn run(what: &str, url: &str, flags: &str) -> (Option<i32>, String, String) {
    let output = timeout(PATIENCE, command(what, url, flags).output()).await.unwrap().unwrap();
    texts(&output)
}

pub(crate) fn texts(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Where kas and agentk are. Without them the running test is left out.
pub(crate) fn programs() -> Option<&'static Path> {
    let directory = Path::new(PROGRAM).parent().unwrap();
    let there = ["kas", "agentk"].iter().all(|name| directory.join(name).exists());
    let why = "there is no kas and no agentk beside loadtest: cargo build --workspace --bins";
    required(there, why).then_some(directory)
}

/// The same, for a test of several replicas.
pub(crate) fn programs_and_redis() -> Option<&'static Path> {
    let found = std::process::Command::new("redis-server").arg("--version").stdout(Stdio::null()).status();
    let there = required(found.is_ok(), "redis-server is missing: .ci/install-tools installs it");
    programs().filter(|_| there)
}

fn required(there: bool, why: &str) -> bool {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("a test");
    let must = std::env::var("E2E_REQUIRE").is_ok_and(|required| required == "1");
    assert!(there || !must, "{name} is required: {why}");
    if !there {
        // Where the harness does not capture it.
        let _ = writeln!(std::io::stderr(), "SKIPPED {name}: {why}");
    }
    there
}
