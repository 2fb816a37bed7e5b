//! The command `kas check-config`.

use std::path::{Path, PathBuf};

use clap::ValueHint;
use proto::agent_configuration::{AgentConfiguration, DEFAULT_MAX_BYTES};

use crate::app::{CheckResult, ValidatedConfig};
use cli::{CliError, CommandResult, print, warn};

/// Check a configuration and all files that it names
///
/// These are also the configurations of agents that the identity file names as files. No listener is bound. An error is one line
/// with file, line, column, key and reason, and exit code 64. A certificate that is expired or not yet valid is a warning, and so are
/// keys of GitLab's kas that have no meaning here, and a kernel that lets kas not take the network away from kustomize and helm.
///
/// With --live, which is for the machine or the pod where kas will run, Redis, the address of this replica and every live
/// replica are checked as well: one line each, and exit code 69 if a check fails. These checks bind the private listener
/// briefly, unless a kas runs there, and do not disturb other replicas.
///
/// With --agent-configuration, the configuration of an agent is checked, and nothing else: for the CI jobs of its repository.
/// agentk may refuse more of it, by the policy of the cluster's owner.
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
        required_unless_present_any = ["file", "agent_configuration"]
    )]
    config: Option<PathBuf>,
    /// The configuration file, in place of --config
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: Option<PathBuf>,
    /// Check Redis and the connections to other replicas too
    #[arg(long)]
    live: bool,
    /// Check the configuration of an agent instead of that of kas
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with_all = ["file", "live"])]
    agent_configuration: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  kas check-config --config /etc/kas/kas.yaml
  kas check-config /etc/kas/kas.yaml
  kas check-config --agent-configuration .gitlab/agents/prod/config.yaml
  kubectl exec kas-0 -- kas check-config --live --config /etc/kas/kas.yaml";

impl CheckConfig {
    /// Runs the checks and prints the results.
    pub(super) fn run(self) -> CommandResult {
        if let Some(file) = self.agent_configuration {
            check_agent_configuration(&file, DEFAULT_MAX_BYTES)?;
            return print(&format!("{}: good\n", file.display()));
        }
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
        for (path, max_bytes) in checked.agent_configurations() {
            check_agent_configuration(path, max_bytes)?;
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

/// Checks the configuration of an agent, and warns about keys without an effect.
fn check_agent_configuration(file: &Path, max_bytes: usize) -> CommandResult {
    let max = u64::try_from(max_bytes).unwrap_or(u64::MAX);
    let text = files::read_text_at_most(file, max)
        .map_err(|error| CliError::usage(format!("{}: {}", file.display(), files::unreadable(&error))))?;
    let configuration = AgentConfiguration::parse(file, &text)?;
    for warning in configuration.warnings() {
        warn(&format!("{}: {warning}", file.display()));
    }
    Ok(())
}

fn line(CheckResult { subject, result }: &CheckResult) -> String {
    match result {
        Ok(how) => format!("{subject}: good; {how}\n"),
        Err(why) => format!("{subject}: FAILED: {why}\n"),
    }
}
