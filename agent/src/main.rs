//! agentk: parse, log, build, run, exit code.

use std::{
    io::{IsTerminal as _, stderr, stdout},
    process::ExitCode,
};

use agent::{
    app::App,
    check::Check,
    cli::{Cli, Command, LogFormat, Run, TOKEN_VARIABLE, token_of},
};
use clap::{Parser as _, error::ErrorKind};
use cores::Cores;
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{SignalKind, signal},
};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// Measured against the system's: see docs/performance.md.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// `EX_USAGE` of sysexits.h: a bad configuration, which trying again does not mend.
const BAD_CONFIGURATION: u8 = 64;
/// `EX_UNAVAILABLE`: the observability address cannot be bound.
const CANNOT_START: u8 = 69;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Where it cannot be printed, the exit code still tells.
            let _ = error.print();
            let asked = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            return if asked { ExitCode::SUCCESS } else { BAD_CONFIGURATION.into() };
        }
    };
    match (cli.command, cli.run) {
        (Some(Command::Check(options)), _) => check(*options),
        (Some(Command::Print(print)), _) => match print.run(&mut stdout()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
        (None, Some(options)) => run(options),
        (None, None) => unreachable!("clap asks for one of them"),
    }
}

fn check(options: Run) -> ExitCode {
    let check = match Check::build(options, token_of(std::env::var_os(TOKEN_VARIABLE))) {
        Ok(check) => check,
        Err(error) => return refuse(&format!("{error:#}")),
    };
    let checked = Runtime::new().and_then(|runtime| runtime.block_on(check.run(&mut stdout())));
    match checked {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) | Err(_) => ExitCode::FAILURE,
    }
}

fn run(options: Run) -> ExitCode {
    let filter = match EnvFilter::try_new(&options.log_level) {
        // At trace, tungstenite logs the payload of frames: secrets of the cluster.
        Ok(filter) => filter.add_directive("tungstenite=info".parse().expect("a constant")),
        Err(error) => return refuse(&format!("--log-level {:?} is no level: {error}", options.log_level)),
    };
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(stderr().is_terminal())
        .with_writer(stderr);
    match options.log_format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    // A core without a tunnel has nothing to do.
    let count = cores::count().min(options.tunnels.into());
    let (cores, threads) = Cores::start(count).expect("the operating system lets a thread start");
    let app = match App::build(options, token_of(std::env::var_os(TOKEN_VARIABLE)), cores) {
        Ok(app) => app,
        Err(error) => return refuse(&format!("{error:#}")),
    };

    let runtime = Builder::new_current_thread().enable_all().build();
    let outcome = runtime.map_err(Into::into).and_then(|runtime| {
        let outcome = runtime.block_on(async {
            let shutdown = CancellationToken::new();
            watch_signals(shutdown.clone())?;
            app.run(shutdown).await
        });
        // Whatever still runs was cut: it must not delay the end, not even by blocking a thread.
        runtime.shutdown_background();
        outcome
    });
    threads.detach();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            CANNOT_START.into()
        }
    }
}

/// The first signal asks for a shutdown, the second ends the process at once.
fn watch_signals(shutdown: CancellationToken) -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        for first in [true, false] {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if first {
                tracing::info!("stopping; a second signal ends agentk at once");
                shutdown.cancel();
            }
        }
        std::process::exit(1);
    });

    Ok(())
}

#[expect(clippy::print_stderr, reason = "logging may not be set up yet, and a person has to read it")]
fn refuse(what: &str) -> ExitCode {
    eprintln!("agentk: {what}");
    BAD_CONFIGURATION.into()
}
