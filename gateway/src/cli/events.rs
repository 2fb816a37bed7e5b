//! The command `kas events`, with the flag `--config`.

use std::{path::PathBuf, process::ExitCode};

use clap::ValueHint;
use cli::{CliError, EventsCommand};

use super::agents::reachable;
use crate::config::Config;

/// Show what has happened to agents and in their clusters
///
/// Agents that come and go, errors of configurations, syncs, drift, health, alerts, and the kill switch; kas keeps them for a week. With
/// --config, the events come from the kas that runs with this configuration, at its observability.listen.address, and are those of all
/// agents. Otherwise they are those of one agent, for which the caller needs the service events.
#[derive(Debug, clap::Args)]
#[command(
    mut_arg("server", |server| server.required(false)),
    mut_arg("token_file", |file| file.required(false))
)]
#[command(after_help = "\
Examples:
  kas events --config kas.yaml --since 2h
  kas events --config kas.yaml --severity warning --follow
  kas events --agent production --kind sync --kind drift
  kas events --agent production --follow --output json | jq .message

Exit codes:
  0   listed
  64  the command line is invalid, or kas refuses the request
  69  kas does not answer")]
pub(super) struct Events {
    #[command(flatten)]
    command: EventsCommand,
    /// The configuration file of kas, for the events of all agents
    #[arg(long, visible_alias = "configuration-file", env = "KAS_CONFIG", value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
}

impl Events {
    pub(super) fn run(self) -> Result<ExitCode, CliError> {
        let listen = match &self.config {
            Some(file) => Some(reachable(Config::read(file)?.observability.listen.address)),
            None => None,
        };
        self.command.run(listen)
    }
}

#[cfg(test)]
mod tests {
    use clap::{Parser as _, error::ErrorKind::MissingRequiredArgument};

    use crate::cli::Cli;

    #[test]
    fn operator_needs_no_credential_of_a_caller() {
        let parse = |line: &str| Cli::try_parse_from(line.split(' ')).map(drop).map_err(|error| error.kind());
        assert_eq!(parse("kas events --config kas.yaml --since 2h"), Ok(()));
        assert_eq!(parse("kas events --agent a --server https://kas --token-file token"), Ok(()));
        assert_eq!(
            parse("kas events --agent a --server https://kas"),
            Err(MissingRequiredArgument),
            "no token"
        );
    }
}
