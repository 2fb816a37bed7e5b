//! `kas serve`.

use std::io::IsTerminal as _;

use cores::Cores;
use tokio::{
    runtime::Builder,
    signal::unix::{SignalKind, signal},
};
use tokio_util::sync::CancellationToken;
use tracing::{field::display, level_filters::LevelFilter};
use tracing_subscriber::EnvFilter;

use super::{ConfigFile, outcome::Outcome};
use crate::{
    app::Checked,
    config::{Format, Level, Logging},
    listen::Listener,
};

/// Run the server until SIGTERM or Ctrl-C
///
/// Everything that the configuration names is read before anything is bound. On SIGTERM or Ctrl-C kas asks its agents to
/// go to another replica and finishes the requests in flight, within its grace periods and a second; asked a second time, it
/// stops at once.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Serve {
    #[command(flatten)]
    config: ConfigFile,
}

const EXAMPLES: &str = "\
Examples:
  kas serve --config /etc/kas/kas.yaml
  KAS_CONFIG=/etc/kas/kas.yaml kas serve

Exit codes:
  0   stopped in good order
  1   asked to stop a second time
  64  the configuration cannot be used
  69  an address cannot be bound";

impl Serve {
    /// Runs until it is asked to stop.
    pub(super) fn run(self) -> Outcome {
        let checked = Checked::read(&self.config.path)?;
        start_logging(checked.logging());
        let started = "the operating system lets a runtime start";
        let (cores, threads) = Cores::start(cores::count()).expect(started);
        let runtime = Builder::new_current_thread().enable_all().build().expect(started);
        let outcome = runtime.block_on(async {
            let (app, listeners) = checked.bind().await?;
            let address =
                |listener: &Option<Listener>| listener.as_ref().map(|listener| display(listener.address()));
            tracing::info!(
                version = env!("CARGO_PKG_VERSION"),
                replica = %app.agents.replica,
                agent = %listeners.agent.address(),
                public = %listeners.public.address(),
                observability = %listeners.observability.address(),
                private = address(&listeners.private),
                api = address(&listeners.api),
                "kas is listening"
            );
            app.run(listeners, &cores, stop_signal()).await;
            Ok(())
        });
        // Whatever still runs was cut: it must not delay the end, not even by blocking a thread.
        runtime.shutdown_background();
        threads.detach();
        outcome
    }
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

fn start_logging(logging: &Logging) {
    let level = match logging.level {
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
    };
    // Ours at the level asked for; of the libraries, whose debug level is a line for each HTTP/2 frame, the warnings.
    let ours = ["gateway", "router", "telemetry", "tunnel"].map(|name| format!("{name}={level}")).join(",");
    let filter = EnvFilter::new(format!("warn,{ours}"));
    let builder = tracing_subscriber::fmt()
        .with_ansi(std::io::stderr().is_terminal())
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false);
    match logging.format {
        Format::Json => builder.json().flatten_event(true).init(),
        Format::Text => builder.init(),
    }
}
