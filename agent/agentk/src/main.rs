//! The binary `agentk`: parses the command line, starts the log and the runtime, and returns the exit code.

use std::{
    io::{Write as _, stderr, stdout},
    process::ExitCode,
};

use agent::{
    AdmissionApp, App, CheckCommand, TaskPanicError,
    cli::{AdmissionOptions, Cli, Command, RunOptions, TOKEN_VARIABLE, token_from_env},
    feature_writes, log_filter,
};
use agentk_core::cluster::kill_plugins;
use clap::error::ErrorKind;
use cores::Cores;
use process::{
    Notifier, descriptors,
    liveness::{self, LivenessThread},
    logs, signals,
};
use proto::ErrorChain;
use tokio::{
    runtime::{Builder, Runtime},
    sync::watch,
};
use tracing_subscriber::EnvFilter;

/// docs/performance.md compares it with the allocator of the system.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// `EX_USAGE` of sysexits.h: the configuration is invalid, so that a restart does not help.
const INVALID_CONFIGURATION: u8 = 64;
/// `EX_UNAVAILABLE`: the observability address cannot be bound.
const UNAVAILABLE: u8 = 69;
/// `EX_SOFTWARE`: a background task panicked.
const SOFTWARE_ERROR: u8 = 70;

fn main() -> ExitCode {
    let cli = match Cli::from_arguments(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => {
            // If the message cannot be printed, there is still the exit code.
            let _ = error.print();
            let is_help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            return if is_help { ExitCode::SUCCESS } else { INVALID_CONFIGURATION.into() };
        }
    };
    match (cli.command, cli.run) {
        (Some(Command::Check(options)), _) => check(*options),
        (Some(Command::Serve(options)), _) => run(*options),
        (Some(Command::Admission(options)), _) => admission(*options),
        (Some(Command::Policy(command)), _) => match command.run(feature_writes(), &mut stdout()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => refuse(&ErrorChain(&*error).to_string()),
        },
        (Some(Command::Print(print)), _) => match print.run(&mut stdout()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
        (None, Some(options)) => run(options),
        (None, None) => unreachable!("clap requires one of them"),
    }
}

fn check(options: RunOptions) -> ExitCode {
    let check = match CheckCommand::build(options, token_from_env(std::env::var_os(TOKEN_VARIABLE))) {
        Ok(check) => check,
        Err(error) => return refuse(&ErrorChain(&*error).to_string()),
    };
    let passed = Runtime::new().and_then(|runtime| {
        runtime.block_on(async {
            let shutdown = signals::stop_token(kill_plugins)?;
            shutdown.run_until_cancelled(check.run(&mut stdout())).await.unwrap_or(Ok(false))
        })
    });
    kill_plugins();
    match passed {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) | Err(_) => ExitCode::FAILURE,
    }
}

fn run(options: RunOptions) -> ExitCode {
    let filter = match EnvFilter::try_new(&options.log_level) {
        Ok(_) => EnvFilter::new(log_filter(&options.log_level)),
        Err(error) => return refuse(&format!("--log-level {:?} is invalid: {error}", options.log_level)),
    };
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime can be built");
    let reload = watch::Sender::new(());
    // Before anything that may take time: until then, SIGHUP ends the process.
    let sighup = {
        let _entered = runtime.enter();
        files::reload_on_sighup(reload.clone()).expect("signals can be handled")
    };
    let log = logs::start(filter, options.log_format, true);
    descriptors::raise_limit();
    // Further cores would have no tunnel.
    let count = match options.listen {
        Some(_) => cores::count(),
        None => cores::count().min(options.tunnels.into()),
    };
    let (cores, threads) = Cores::start(count).expect("threads can be started");
    let token = token_from_env(std::env::var_os(TOKEN_VARIABLE));
    let notifier = Notifier::from_env();
    let mut app = match App::build(options, token, cores, reload, Some(log.filter())) {
        Ok(app) => app,
        Err(error) => {
            // Flushes the log, so that its lines are before the reason.
            drop(log);
            return refuse(&ErrorChain(&*error).to_string());
        }
    };

    app.notifier = notifier.clone();
    let flusher = log.flusher();
    let outcome = runtime.block_on(async {
        let on_fatal = move || {
            kill_plugins();
            flusher.flush();
            liveness::exit();
        };
        let probes = LivenessThread::start(app.liveness.clone(), notifier, on_fatal)?;
        let shutdown = signals::stop_token(kill_plugins)?;
        tokio::spawn(sighup);
        app.run(probes.runtime(), shutdown).await
    });
    // The remaining tasks were cut, and must not delay the exit, also if they block a thread.
    runtime.shutdown_background();
    threads.detach();
    kill_plugins();
    exit_code(outcome)
}

/// Runs the admission webhook.
fn admission(options: AdmissionOptions) -> ExitCode {
    if let Err(error) = EnvFilter::try_new(&options.log_level) {
        return refuse(&format!("--log-level {:?} is invalid: {error}", options.log_level));
    }
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime can be built");
    let reload = watch::Sender::new(());
    let sighup = {
        let _entered = runtime.enter();
        files::reload_on_sighup(reload.clone()).expect("signals can be handled")
    };
    let log = logs::start(EnvFilter::new(log_filter(&options.log_level)), options.log_format, true);
    let app = match AdmissionApp::build(options, feature_writes(), reload) {
        Ok(app) => app,
        Err(error) => {
            drop(log);
            return refuse(&ErrorChain(&*error).to_string());
        }
    };
    let outcome = runtime.block_on(async {
        let shutdown = signals::stop_token(|| {})?;
        tokio::spawn(sighup);
        app.run(shutdown).await
    });
    exit_code(outcome)
}

/// Logs the error, if there is one.
fn exit_code(outcome: anyhow::Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{}", ErrorChain(&*error));
            if error.is::<TaskPanicError>() { SOFTWARE_ERROR } else { UNAVAILABLE }.into()
        }
    }
}

/// Prints the reason why the configuration is invalid.
fn refuse(reason: &str) -> ExitCode {
    // If it cannot be printed, there is still the exit code.
    let _ = writeln!(stderr(), "agentk: {reason}");
    INVALID_CONFIGURATION.into()
}
