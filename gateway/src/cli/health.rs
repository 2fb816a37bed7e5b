//! The command `kas health`, with the flag `--environment`.

use std::{path::PathBuf, process::ExitCode};

use clap::ValueHint;
use cli::{CliError, HealthCommand, HealthPlace};
use environments_wire::{EnvironmentAgent, GitLabToken};

use super::{environment::EnvironmentName, kubeconfig::read_token};
use crate::config::Config;

/// Check the health of objects, also in CI jobs after a deployment
///
/// The health is that of the worst object that no other one of them owns.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  kas health production --namespace shop
  kas health production --namespace shop --label app=web --wait 5m
  kas health production --group helm:shop/web
  kas health --environment shop/web:production --config kas.yaml --wait 5m

Exit codes:
  0   healthy, or suspended on purpose
  1   not healthy, or nothing was found
  64  the command line is invalid, or kas refuses the request
  69  kas or the agent does not answer; with --wait, until its time is over")]
pub(super) struct Health {
    #[command(flatten)]
    command: HealthCommand,
    /// All places of this environment, in place of an agent: of the file `environments.file` or, with --gitlab-token-file, of
    /// GitLab. AGENT selects the places of one agent
    #[arg(long, value_name = "PROJECT:SLUG", requires = "config")]
    environment: Option<EnvironmentName>,
    /// The configuration file of kas, for --environment
    #[arg(long, visible_alias = "configuration-file", env = "KAS_CONFIG", value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
    /// The file with a personal access token of GitLab, for --environment; - is standard input
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "environment")]
    gitlab_token_file: Option<PathBuf>,
}

impl Health {
    pub(super) fn run(self) -> Result<ExitCode, CliError> {
        let places = match (&self.environment, &self.config) {
            (Some(name), Some(file)) => self.places(name, file)?,
            _ => Vec::new(),
        };
        self.command.run(&places)
    }

    /// Returns the places of the environment, at least one.
    fn places(&self, name: &EnvironmentName, file: &std::path::Path) -> Result<Vec<HealthPlace>, CliError> {
        let config = Config::read(file)?;
        let token = self.gitlab_token_file.as_deref().map(read_token).transpose()?;
        let token = token.map(GitLabToken::Personal);
        let mut places = name.find((file, &config), token.as_ref())?.agents;
        if let Some(agent) = self.command.agent() {
            places.retain(|place| place.agent == agent);
        }
        if places.is_empty() {
            return Err(CliError::usage(format!("the environment {name} has no place of this agent")));
        }
        let place = |EnvironmentAgent { agent, namespace, labels }| HealthPlace { agent, namespace, labels };
        Ok(places.into_iter().map(place).collect())
    }
}
