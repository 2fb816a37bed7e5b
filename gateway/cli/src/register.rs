//! The command `kas agents register`: an agent from nothing to its first connection.
#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "these comments are help texts, where brackets mean optional"
)]

mod agent;
mod agent_token;
mod cluster;
mod configuration;
mod gitlab;
mod program;
mod project;
mod refusal;
mod steps;
mod token_place;

use std::{
    env,
    io::Read as _,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{ValueHint, builder::NonEmptyStringValueParser};
use proto::AgentName;
use secrecy::SecretString;

use self::{
    cluster::ReleaseOptions,
    configuration::read_configuration,
    gitlab::{GitLab, GitLabUrl},
    project::parse_project,
    steps::Registration,
    token_place::TokenOutput,
};
use crate::{CliError, CommandResult, chart::kas_address, warn};

/// The variable of the environment with the token of the user, which glab has, too.
const TOKEN_VARIABLE: &str = "GITLAB_TOKEN";
/// The time for which `--install` waits by default.
const DEFAULT_WAIT: Duration = Duration::from_secs(300);
/// The longest token of a user, in bytes.
const MAX_TOKEN: u64 = 16 << 10;

/// Register an agent in GitLab, and install agentk for it
///
/// Registers the agent in GitLab, commits a first configuration, creates a token, installs agentk with helm or prints the commands that do
/// so, and waits until it is connected. Each step is left out if it is done already, so that the command can be run again. The token of the
/// user needs the scope api, and its holder the role Maintainer in the project.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct RegisterCommand {
    /// The name of the agent
    #[arg(value_name = "NAME")]
    agent: AgentName,
    #[command(flatten)]
    gitlab: GitLabOptions,
    #[command(flatten)]
    configuration: ConfigurationOptions,
    #[command(flatten)]
    token: TokenOptions,
    #[command(flatten)]
    mode: Mode,
    /// The address of kas for agents: ws(s)://host[:port][/prefix]; the default is the one that GitLab shows to its users
    #[arg(long, value_name = "URL", value_parser = kas_address)]
    kas: Option<String>,
    #[command(flatten)]
    release: ReleaseOptions,
    /// Wait until the agent is connected, at most this long; 0s does not wait
    ///
    /// The default is 5m with --install, and 0s without it.
    #[arg(long, value_name = "DURATION", value_parser = settings::duration::parse)]
    wait: Option<Duration>,
}

/// GitLab, and its user.
#[derive(Debug, clap::Args)]
struct GitLabOptions {
    /// The URL of GitLab
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url, value_parser = GitLabUrl::parse)]
    gitlab: GitLabUrl,
    /// The project of the agent, which has its configuration: the full path or the id
    #[arg(long, value_name = "PROJECT", value_parser = parse_project)]
    project: String,
    /// The file with the token of a user of GitLab, which needs the scope api; - is standard input
    ///
    /// The default is the variable GITLAB_TOKEN of the environment.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    token_file: Option<PathBuf>,
    /// Certificates (PEM) to trust for GitLab instead of the system's
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    cacert: Option<PathBuf>,
}

/// The first configuration.
#[derive(Debug, clap::Args)]
struct ConfigurationOptions {
    /// The first configuration of the agent
    ///
    /// The default lets the CI jobs and the developers of the project use the agent. A configuration that exists is not changed.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    configuration: Option<PathBuf>,
    /// The branch for the configuration, which is created if it does not exist
    ///
    /// kas reads the default branch, which is the default.
    #[arg(long, value_name = "BRANCH", value_parser = NonEmptyStringValueParser::new())]
    branch: Option<String>,
    /// Commit no configuration
    #[arg(long, conflicts_with_all = ["configuration", "branch"])]
    no_configuration: bool,
}

/// The token of the agent.
#[derive(Debug, clap::Args)]
struct TokenOptions {
    /// The file for the token of the agent, with mode 0600; - is standard output
    ///
    /// An existing file is not overwritten. With --install, the token goes into a Secret only.
    #[arg(
        long,
        value_name = "FILE",
        value_hint = ValueHint::FilePath,
        value_parser = TokenOutput::parse,
        required_unless_present = "install",
        conflicts_with = "install"
    )]
    token_output: Option<TokenOutput>,
    /// Create a token although the agent has one, and replace the one in the Secret
    #[arg(long)]
    new_token: bool,
}

/// The end of the registration: agentk is installed, or the commands are printed.
#[derive(Debug, clap::Args)]
struct Mode {
    /// Install agentk with kubectl and helm
    #[arg(long)]
    install: bool,
    /// Print the commands that install agentk, which is the default
    #[arg(long, conflicts_with = "install")]
    print: bool,
    /// Read what there is in GitLab and in the cluster, and show each step without doing it
    #[arg(long)]
    dry_run: bool,
}

const EXAMPLES: &str = "\
Examples:
  kas agents register production --project group/shop \\
    --gitlab https://gitlab.example.com --token-file ./pat --install \\
    --image registry.example.com/agentk:0.2.0
  GITLAB_TOKEN=$(pass gitlab) kas agents register production \\
    --project group/shop --gitlab https://gitlab.example.com \\
    --token-output ./agent-token --wait 15m > install.sh

The steps are on standard error, and the commands on standard output.

Exit codes:
  0   registered, and connected if it was waited for
  64  an option is invalid, or GitLab refuses a step
  69  GitLab, kubectl or helm fails, or the agent does not connect
  73  the file for the token cannot be written
  77  the token of the user lacks a right";

impl RegisterCommand {
    /// Runs the command.
    ///
    /// # Errors
    ///
    /// A step has failed. The error names it.
    pub fn run(self) -> CommandResult {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| CliError::unavailable(format!("no runtime: {error}")))?;
        let file = self.configuration.configuration.as_deref();
        let configuration = file.map(read_configuration).transpose()?;
        let GitLabOptions { gitlab: url, token_file, cacert, .. } = &self.gitlab;
        let token = user_token(token_file.as_deref())?;
        if url.is_plain() {
            warn(&format!("{} is not encrypted: others on the network can read the token", url.as_str()));
        }
        let gitlab = GitLab::new(url.clone(), &token, cacert.as_deref())?;
        runtime.block_on(Registration { command: &self, gitlab, configuration }.run())
    }

    /// Returns the time to wait for the connection.
    fn wait(&self) -> Duration {
        self.wait.unwrap_or(if self.mode.install { DEFAULT_WAIT } else { Duration::ZERO })
    }
}

/// Returns the token of the user from a file or from the environment. It is never an argument, which other processes could read.
fn user_token(file: Option<&Path>) -> Result<SecretString, CliError> {
    let (name, text) = match file {
        Some(file) if file == Path::new("-") => {
            let text = std::io::read_to_string(std::io::stdin().take(MAX_TOKEN));
            ("--token-file -".to_owned(), text.map_err(|error| error.to_string()))
        }
        Some(file) => {
            let text = files::read_text_at_most(file, MAX_TOKEN);
            (format!("--token-file {}", file.display()), text.map_err(|error| files::unreadable(&error)))
        }
        None => match env::var(TOKEN_VARIABLE) {
            Ok(text) => (format!("the variable {TOKEN_VARIABLE}"), Ok(text)),
            Err(_) => {
                return Err(CliError::usage(format!(
                    "the token of a user of GitLab is needed: --token-file FILE, or the variable {TOKEN_VARIABLE}"
                )));
            }
        },
    };
    let text = text.map_err(|error| CliError::usage(format!("{name}: {error}")))?;
    match text.trim() {
        token if !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(token.into()),
        _ => Err(CliError::usage(format!("{name} has no token, which is one line of visible ASCII"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_of_the_user_is_one_line_of_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pat");
        for (text, expected) in [("glpat-1\n", true), ("", false), ("two words\n", false), ("a\nb\n", false)]
        {
            std::fs::write(&file, text).unwrap();
            assert_eq!(user_token(Some(&file)).is_ok(), expected, "{text:?}");
        }
        let error = user_token(Some(Path::new("absent"))).unwrap_err();
        assert!(error.message.starts_with("--token-file absent: "), "{}", error.message);
    }
}
