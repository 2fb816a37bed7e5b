//! The command line of kas.

use std::{
    io::{IsTerminal as _, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use clap::{CommandFactory as _, Parser, Subcommand};
use secrecy::ExposeSecret as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::level_filters::LevelFilter;

use crate::{
    app::Checked,
    config::{Format, Level, Logging},
    token::{self, Holder, TokenHash},
};

/// The configuration cannot be used (`EX_USAGE` of sysexits).
const EXIT_CONFIG: u8 = 64;
/// An address cannot be bound.
const EXIT_BIND: u8 = 69;

/// The server of a reverse tunnel for Kubernetes: agents connect to it, callers reach their clusters through it.
#[derive(Debug, Parser)]
#[command(name = "kas", version, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server until SIGTERM or Ctrl-C
    Serve {
        /// The configuration file
        #[arg(long, visible_alias = "configuration-file", env = "KAS_CONFIG", value_name = "FILE")]
        config: PathBuf,
    },
    /// Read a configuration and everything it names, say what is wrong with it, and bind nothing
    CheckConfig {
        /// The configuration file
        file: PathBuf,
    },
    /// Make tokens
    Token {
        #[command(subcommand)]
        command: TokenCommand,
    },
    /// Print a completion script: `source <(kas completion bash)`
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Print a new token, for its holder, and its hash, for the identity file
    New {
        /// Who is to hold it
        #[arg(value_enum)]
        holder: Holder,
    },
    /// Read a token from standard input and print its hash
    Hash,
}

impl Cli {
    /// Does what the command line asks for.
    pub fn run(self) -> ExitCode {
        match self.command {
            Command::Serve { config } => serve(&config),
            Command::CheckConfig { file } => check_config(&file),
            Command::Token { command: TokenCommand::New { holder } } => {
                let token = token::new(holder);
                say(&format!("token: {}\nhash:  {}", token.expose_secret(), TokenHash::of(&token)))
            }
            Command::Token { command: TokenCommand::Hash } => hash(),
            Command::Completion { shell } => {
                clap_complete::generate(shell, &mut Self::command(), "kas", &mut std::io::stdout());
                ExitCode::SUCCESS
            }
        }
    }
}

fn serve(config: &std::path::Path) -> ExitCode {
    let checked = match Checked::read(config) {
        Ok(checked) => checked,
        Err(error) => return complain(&error, EXIT_CONFIG),
    };
    start_logging(checked.logging());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("the operating system lets a runtime start");
    runtime.block_on(async {
        let (app, listeners) = match checked.bind().await {
            Ok(bound) => bound,
            Err(error) => return complain(&error, EXIT_BIND),
        };
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            replica = %app.agents.replica,
            agent = %listeners.agent.address(),
            public = %listeners.public.address(),
            observability = %listeners.observability.address(),
            "kas is listening"
        );
        app.run(listeners, stop_signal()).await;
        ExitCode::SUCCESS
    })
}

/// Cancelled by the first SIGTERM or Ctrl-C; the second ends the process at once.
fn stop_signal() -> CancellationToken {
    let stop = CancellationToken::new();
    let stopping = stop.clone();
    let mut terminate = signal(SignalKind::terminate()).expect("signals can be handled");
    let mut interrupt = signal(SignalKind::interrupt()).expect("signals can be handled");
    tokio::spawn(async move {
        for times in 0.. {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if times > 0 {
                tracing::warn!("asked to stop again: stopping at once");
                std::process::exit(1);
            }
            stopping.cancel();
        }
    });
    stop
}

fn check_config(file: &std::path::Path) -> ExitCode {
    match Checked::read(file) {
        Ok(checked) => {
            let (agents, tokens) = checked.counts();
            say(&format!("{}: good; {agents} agents, {tokens} tokens of callers", file.display()))
        }
        Err(error) => complain(&error, EXIT_CONFIG),
    }
}

fn hash() -> ExitCode {
    let mut token = String::new();
    match std::io::stdin().read_line(&mut token) {
        Ok(_) if !token.trim().is_empty() => say(&TokenHash::of(&token.trim().into()).to_string()),
        Ok(_) => complain(&"standard input holds no token", EXIT_CONFIG),
        Err(error) => complain(&error, EXIT_CONFIG),
    }
}

fn start_logging(logging: &Logging) {
    let level = match logging.level {
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
    };
    let builder = tracing_subscriber::fmt()
        .with_ansi(std::io::stderr().is_terminal())
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_target(false);
    match logging.format {
        Format::Json => builder.json().flatten_event(true).init(),
        Format::Text => builder.init(),
    }
}

fn say(line: &str) -> ExitCode {
    match writeln!(std::io::stdout(), "{line}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn complain(error: &dyn std::fmt::Display, code: u8) -> ExitCode {
    // If standard error is gone too, the exit code still tells.
    let _ = writeln!(std::io::stderr(), "kas: {error}");
    ExitCode::from(code)
}
