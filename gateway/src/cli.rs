//! The command line of kas. Each command is in the file of its name.

mod agents;
mod check_config;
mod disable;
mod environment;
mod events;
mod health;
mod kubeconfig;
mod private_file;
mod quickstart;
pub(crate) mod serve;
mod upgrade_check;

use std::{ffi::OsString, io::Write as _, path::PathBuf, process::ExitCode};

use access::token::{self, Holder, TokenHash};
use clap::{CommandFactory as _, Parser, Subcommand, ValueHint};
use render::limits::{LimitError, Limits, NETWORK_STAYS};
use secrecy::ExposeSecret as _;

use crate::config;
use cli::{
    ApplicationsCommand, AuditCommand, CliError, CommandResult, ComponentsCommand, EnvironmentsCommand,
    FleetCommand, GitopsCommand, GroupsCommand, Login, Logout, TreeCommand, manual, print,
};

/// The server of a reverse tunnel for Kubernetes: agents connect to it, callers reach their clusters through it
///
/// agentk connects from a cluster to kas. kubectl, helm, CI jobs and Grafana use kas in place of the API server or the
/// Prometheus of that cluster.
#[derive(Debug, Parser)]
#[command(name = "kas", version, propagate_version = true, after_help = FIRST_STEPS)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Quickstart(quickstart::Quickstart),
    Serve(serve::Serve),
    CheckConfig(check_config::CheckConfig),
    UpgradeCheck(upgrade_check::UpgradeCheck),
    Agents(agents::Agents),
    Fleet(FleetCommand),
    Applications(ApplicationsCommand),
    Components(ComponentsCommand),
    Kubeconfig(kubeconfig::Kubeconfig),
    Disable(disable::Disable),
    Enable(disable::Enable),
    Audit(AuditCommand),
    Events(events::Events),
    Gitops(GitopsCommand),
    Environments(EnvironmentsCommand),
    Tree(TreeCommand),
    Groups(GroupsCommand),
    Health(health::Health),
    Login(Login),
    Logout(Logout),
    Token(Token),
    /// Print the JSON Schema of the configuration file
    ///
    /// Editors complete and check kas.yaml with it. `kas check-config` checks more: files, addresses and combinations of keys.
    #[command(after_help = CONFIG_SCHEMA_EXAMPLES)]
    ConfigSchema,
    /// Print the Redis schema of kas: keys, types, lifetimes and sizes
    #[command(after_help = "Example:\n  kas redis-schema")]
    RedisSchema,
    /// Print a completion script for a shell
    #[command(after_help = COMPLETION_EXAMPLES)]
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Set limits and become a program that renders manifests
    #[command(hide = true, name = render::limits::SUBCOMMAND)]
    RunLimited(RunLimited),
    /// Write the manual: kas.1 to standard output, or a page for each command into a directory
    #[command(hide = true)]
    Man {
        /// The directory, which is created if it is missing
        #[arg(long, value_name = "DIRECTORY", value_hint = ValueHint::DirPath)]
        directory: Option<PathBuf>,
    },
}

/// Create tokens for agents and callers
///
/// kas stores only hashes of tokens: give the token to its holder, and put the hash into the identity file. A running kas
/// reads that file again when it changes.
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
        /// The holder of the token
        #[arg(value_enum)]
        holder: Holder,
    },
    /// Read a token from standard input and print its hash
    #[command(after_help = "Example:\n  kas token hash < ./token")]
    Hash,
}

#[derive(Debug, clap::Args)]
struct RunLimited {
    /// The seconds of the CPU
    #[arg(long)]
    cpu: u64,
    /// The bytes of memory
    #[arg(long)]
    memory: u64,
    /// Run the program also if its network cannot be taken away
    #[arg(long)]
    allow_network: bool,
    /// The program
    program: PathBuf,
    /// The arguments of the program
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// The option for the configuration file of kas.
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
  kas quickstart                        write the files of a first kas
  kas token new agent                   a token for agentk, and its hash for the identity file
  kas check-config --config kas.yaml    check a configuration
  kas serve --config kas.yaml           run
  kas agents --config kas.yaml          list the connected agents
  kas kubeconfig --config kas.yaml ...  a kubeconfig for a caller

See `kas <COMMAND> --help` for examples.";

const COMPLETION_EXAMPLES: &str = "\
Examples:
  source <(kas completion bash)
  kas completion fish > ~/.config/fish/completions/kas.fish";

const CONFIG_SCHEMA_EXAMPLES: &str = "\
Examples:
  kas config-schema > kas.schema.json
  # yaml-language-server: $schema=kas.schema.json   (first line of kas.yaml)";

const TOKEN_EXAMPLES: &str = "\
Examples:
  kas token new agent        for agentk in a cluster
  kas token new caller       for a person, a job or Grafana
  kas token hash < ./token   the hash of an existing token";

impl Cli {
    /// Runs the command line of this process.
    pub fn main() -> ExitCode {
        match Self::try_parse() {
            Ok(cli) => cli.run(),
            Err(error) => {
                // If printing fails, the exit code is the only result.
                let _ = error.print();
                // Help and the version go to standard output, and are not errors.
                if error.use_stderr() { CliError::USAGE.into() } else { ExitCode::SUCCESS }
            }
        }
    }

    fn run(self) -> ExitCode {
        let result = match self.command {
            Command::Quickstart(quickstart) => quickstart.run(),
            Command::Serve(serve) => serve.run(),
            Command::CheckConfig(check) => check.run(),
            Command::UpgradeCheck(check) => check.run(),
            Command::Agents(agents) => return finish(agents.run()),
            Command::Fleet(fleet) => return finish(fleet.run()),
            Command::Applications(applications) => return finish(applications.run()),
            Command::Components(components) => return finish(components.run()),
            Command::Kubeconfig(kubeconfig) => kubeconfig.run(),
            Command::Disable(disable) => disable.run(),
            Command::Enable(enable) => enable.run(),
            Command::Audit(audit) => return finish(audit.run()),
            Command::Events(events) => return finish(events.run()),
            Command::Gitops(gitops) => return finish(gitops.run()),
            Command::Environments(environments) => {
                return finish(environments.run(|file| {
                    Ok(agents::reachable(config::Config::read(file)?.observability.listen.address))
                }));
            }
            Command::Tree(tree) => return finish(tree.run()),
            Command::Groups(groups) => return finish(groups.run()),
            Command::Health(health) => return finish(health.run()),
            Command::Login(login) => login.run(),
            Command::Logout(logout) => logout.run(),
            Command::Token(Token { command: TokenCommand::New { holder } }) => new_token(holder),
            Command::Token(Token { command: TokenCommand::Hash }) => hash(),
            Command::ConfigSchema => print(&config::json_schema()),
            Command::RedisSchema => print(store::redis::SCHEMA),
            Command::RunLimited(limited) => limited.run(),
            Command::Completion { shell } => manual::completion(Self::command(), shell),
            Command::Man { directory: Some(directory) } => manual::pages(Self::command(), &directory),
            Command::Man { directory: None } => manual::page(Self::command()),
        };
        finish(result.map(|()| ExitCode::SUCCESS))
    }
}

impl RunLimited {
    fn run(self) -> CommandResult {
        let Self { cpu, memory, allow_network, program, arguments } = self;
        let name = program.display().to_string();
        let Err(error) = Limits::of_arguments(cpu, memory, allow_network).exec(program, arguments);
        let message = format!("{name} cannot be started: {error}");
        Err(match error {
            LimitError::Failed(_) => CliError::unavailable(message),
            LimitError::NetworkStays => CliError { code: NETWORK_STAYS, message },
        })
    }
}

fn finish(result: Result<ExitCode, CliError>) -> ExitCode {
    result.unwrap_or_else(|CliError { code, message }| {
        // If printing fails, the exit code is the only result.
        let _ = writeln!(std::io::stderr(), "kas: {message}");
        ExitCode::from(code)
    })
}

fn new_token(holder: Holder) -> CommandResult {
    let token = token::new(holder);
    print(&format!("token: {}\nhash:  {}\n", token.expose_secret(), TokenHash::of(&token)))
}

fn hash() -> CommandResult {
    let mut token = String::new();
    std::io::stdin()
        .read_line(&mut token)
        .map_err(|error| CliError::usage(format!("standard input cannot be read: {error}")))?;
    match token.trim() {
        "" => Err(CliError::usage("standard input holds no token")),
        token => print(&format!("{}\n", TokenHash::of(&token.into()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_a_summary_and_an_example() {
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

    /// Without a hint, a shell completes nothing or arbitrary words.
    #[test]
    fn options_for_files_are_completed_with_files() {
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
