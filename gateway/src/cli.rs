//! The command line of kas, as words. What a command does is in the file of its name.

mod agents;
mod check_config;
mod kubeconfig;
mod manual;
mod outcome;
mod serve;
mod table;

use std::{io::Write as _, path::PathBuf, process::ExitCode};

use clap::{CommandFactory as _, Parser, Subcommand, ValueHint};
use secrecy::ExposeSecret as _;

use self::outcome::{Outcome, Refusal, say};
use crate::token::{self, Holder, TokenHash};

/// The server of a reverse tunnel for Kubernetes: agents connect to it, callers reach their clusters through it
///
/// agentk dials out of a cluster to kas. kubectl, helm, CI jobs and Grafana talk to kas as if it were that cluster's
/// API server or its Prometheus.
#[derive(Debug, Parser)]
#[command(name = "kas", version, propagate_version = true, after_help = FIRST_STEPS)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Serve),
    CheckConfig(check_config::CheckConfig),
    Agents(agents::Agents),
    Kubeconfig(kubeconfig::Kubeconfig),
    Token(Token),
    /// Print what kas keeps in Redis: keys, types, lives and sizes
    #[command(after_help = "Example:\n  kas redis-schema")]
    RedisSchema,
    /// Print a completion script for a shell
    #[command(after_help = COMPLETION_EXAMPLES)]
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the manual: kas.1 to standard output, or a page for each command into a directory
    #[command(hide = true)]
    Man {
        /// The directory, made if it is missing
        #[arg(long, value_name = "DIRECTORY", value_hint = ValueHint::DirPath)]
        directory: Option<PathBuf>,
    },
}

/// Make tokens for agents and callers
///
/// kas stores hashes of tokens only: the token goes to its holder, the hash into the identity file. A running kas reads
/// that file again when it changes.
#[derive(Debug, clap::Args)]
#[command(after_help = TOKEN_EXAMPLES)]
struct Token {
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Print a new token, for its holder, and its hash, for the identity file
    #[command(after_help = "Example:\n  kas token new agent")]
    New {
        /// Who is to hold it
        #[arg(value_enum)]
        holder: Holder,
    },
    /// Read a token from standard input and print its hash
    #[command(after_help = "Example:\n  kas token hash < ./token")]
    Hash,
}

/// The configuration of the kas that a command is about.
#[derive(Debug, clap::Args)]
struct ConfigFile {
    /// The configuration file of kas
    #[arg(
        long = "config",
        visible_alias = "configuration-file",
        env = "KAS_CONFIG",
        value_name = "FILE",
        value_hint = ValueHint::FilePath
    )]
    path: PathBuf,
}

const FIRST_STEPS: &str = "\
First steps:
  kas token new agent                   a token for agentk, and its hash for the identity file
  kas check-config kas.yaml             whether a configuration is good
  kas serve --config kas.yaml           run
  kas agents --config kas.yaml          who is connected
  kas kubeconfig --config kas.yaml ...  a kubeconfig for a caller

See `kas <COMMAND> --help` for examples.";

const COMPLETION_EXAMPLES: &str = "\
Examples:
  source <(kas completion bash)
  kas completion fish > ~/.config/fish/completions/kas.fish";

const TOKEN_EXAMPLES: &str = "\
Examples:
  kas token new agent        for a cluster: the token goes to agentk
  kas token new caller       for a person, a job or Grafana
  kas token hash < ./token   the hash of a token that exists already";

impl Cli {
    /// Does what the command line asks for.
    pub fn run(self) -> ExitCode {
        let outcome = match self.command {
            Command::Serve(serve) => serve.run(),
            Command::CheckConfig(check) => check.run(),
            Command::Agents(agents) => agents.run(),
            Command::Kubeconfig(kubeconfig) => kubeconfig.run(),
            Command::Token(Token { command: TokenCommand::New { holder } }) => new_token(holder),
            Command::Token(Token { command: TokenCommand::Hash }) => hash(),
            Command::RedisSchema => say(router::redis::SCHEMA),
            Command::Completion { shell } => manual::completion(Self::command(), shell),
            Command::Man { directory: Some(directory) } => manual::pages(Self::command(), &directory),
            Command::Man { directory: None } => manual::page(Self::command()),
        };
        match outcome {
            Ok(()) => ExitCode::SUCCESS,
            Err(Refusal { code, what }) => {
                // If standard error is gone too, the exit code still tells.
                let _ = writeln!(std::io::stderr(), "kas: {what}");
                ExitCode::from(code)
            }
        }
    }
}

fn new_token(holder: Holder) -> Outcome {
    let token = token::new(holder);
    say(&format!("token: {}\nhash:  {}\n", token.expose_secret(), TokenHash::of(&token)))
}

fn hash() -> Outcome {
    let mut token = String::new();
    std::io::stdin()
        .read_line(&mut token)
        .map_err(|error| Refusal::usage(format!("standard input cannot be read: {error}")))?;
    match token.trim() {
        "" => Err(Refusal::usage("standard input holds no token")),
        token => say(&format!("{}\n", TokenHash::of(&token.into()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_says_what_it_does_and_gives_an_example() {
        let mut cli = Cli::command();
        cli.build();
        let shown = |command: &&mut clap::Command| !command.is_hide_set() && command.get_name() != "help";
        for command in cli.get_subcommands_mut().filter(shown) {
            let help = command.render_long_help().to_string();
            let about = command.get_about().expect("it has a description").to_string();
            assert!(help.starts_with(&about), "{help}");
            assert!(about.len() < 66, "it does not fit into a line of the summary: {about}");
            assert!(help.contains("\nExample"), "{help}");
            let after = command.get_after_help().expect("there are examples").to_string();
            assert!(after.lines().all(|line| line.len() < 80), "too long for a manual: {after}");
        }
    }

    /// Without a hint a shell completes nothing, or anything.
    #[test]
    fn every_option_that_names_a_file_is_completed_with_files() {
        for command in Cli::command().get_subcommands() {
            for argument in command.get_arguments() {
                let names_a_file = argument.get_value_names().is_some_and(|names| {
                    names.iter().any(|name| name.contains("FILE") || name.contains("DIR"))
                });
                let hinted = matches!(argument.get_value_hint(), ValueHint::FilePath | ValueHint::DirPath);
                assert_eq!(names_a_file, hinted, "{} {argument}", command.get_name());
            }
        }
    }
}
