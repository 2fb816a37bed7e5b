//! The command `kas check-config`.

use std::path::PathBuf;

use clap::ValueHint;

use crate::app::{CheckResult, ValidatedConfig};
use cli::{CliError, CommandResult, print, warn};

/// Check a configuration and all files that it names
///
/// No listener is bound. An error is one line with file, line, column, key and reason, and exit code 64. A certificate that
/// is expired or not yet valid is a warning, and so are keys of GitLab's kas that have no meaning here, and a kernel that lets
/// kas not take the network away from kustomize and helm.
///
/// With --live, which is for the machine or the pod where kas will run, Redis, the address of this replica and every live
/// replica are checked as well: one line each, and exit code 69 if a check fails. These checks bind the private listener
/// briefly, unless a kas runs there, and do not disturb other replicas.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct CheckConfig {
    /// The configuration file of kas
    #[arg(
        long,
        visible_alias = "configuration-file",
        env = "KAS_CONFIG",
        value_name = "FILE",
        value_hint = ValueHint::FilePath,
        required_unless_present = "file"
    )]
    config: Option<PathBuf>,
    /// The configuration file, in place of --config
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: Option<PathBuf>,
    /// Check Redis and the connections to other replicas too
    #[arg(long)]
    live: bool,
}

const EXAMPLES: &str = "\
Examples:
  kas check-config --config /etc/kas/kas.yaml
  kas check-config /etc/kas/kas.yaml
  kubectl exec kas-0 -- kas check-config --live --config /etc/kas/kas.yaml";

impl CheckConfig {
    /// Runs the checks and prints the results.
    pub(super) fn run(self) -> CommandResult {
        let file = self.file.or(self.config).expect("clap requires one of them");
        let checked = ValidatedConfig::read(&file)?;
        for error in checked.invalid_certificates() {
            warn(&error.to_string());
        }
        if let Some(keys) = checked.ignored_keys() {
            warn(&format!(
                "{}: keys of GitLab's kas without a meaning here are ignored, see docs/gitlab.md: {keys}",
                file.display()
            ));
        }
        if let Some(problem) = checked.rendering_problem() {
            warn(&format!("{}: {problem}", file.display()));
        }
        let (agents, tokens) = checked.counts();
        print(&format!("{}: good; {agents} agents, {tokens} tokens of callers\n", file.display()))?;
        if !self.live {
            return Ok(());
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("the operating system lets a runtime start");
        let results = runtime.block_on(checked.run_live_checks());
        results.iter().try_for_each(|one| print(&line(one)))?;
        match results.iter().filter(|one| one.result.is_err()).count() {
            0 => Ok(()),
            failed => Err(CliError::unavailable(format!("{failed} of {} checks failed", results.len()))),
        }
    }
}

fn line(CheckResult { subject, result }: &CheckResult) -> String {
    match result {
        Ok(how) => format!("{subject}: good; {how}\n"),
        Err(why) => format!("{subject}: FAILED: {why}\n"),
    }
}
