//! `kas check-config`.

use std::path::PathBuf;

use clap::ValueHint;

use super::outcome::{Outcome, Refusal, say};
use crate::app::{Checked, Tried};

/// Check a configuration and everything that it names
///
/// Binds nothing. A mistake is one line with file, line, column, key and reason, and exit code 64.
///
/// With --live, on the machine or in the pod where kas is to run, also tries out Redis, this replica's own address and
/// every replica that lives: a line for each, and exit code 69 if one of them fails. For that, the private listener is
/// bound for a moment, unless a kas runs there. No replica is disturbed.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct CheckConfig {
    /// The configuration file
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// Try out Redis and the way to other replicas
    #[arg(long)]
    live: bool,
}

const EXAMPLES: &str = "\
Examples:
  kas check-config /etc/kas/kas.yaml
  kubectl exec kas-0 -- kas check-config --live /etc/kas/kas.yaml";

impl CheckConfig {
    /// Checks, and says what was found.
    pub(super) fn run(self) -> Outcome {
        let checked = Checked::read(&self.file)?;
        let (agents, tokens) = checked.counts();
        say(&format!("{}: good; {agents} agents, {tokens} tokens of callers\n", self.file.display()))?;
        if !self.live {
            return Ok(());
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("the operating system lets a runtime start");
        let tried = runtime.block_on(checked.try_out());
        tried.iter().try_for_each(|one| say(&line(one)))?;
        match tried.iter().filter(|one| one.result.is_err()).count() {
            0 => Ok(()),
            failed => Err(Refusal::unavailable(format!("{failed} of {} checks failed", tried.len()))),
        }
    }
}

fn line(Tried { what, result }: &Tried) -> String {
    match result {
        Ok(how) => format!("{what}: good; {how}\n"),
        Err(why) => format!("{what}: FAILED: {why}\n"),
    }
}
