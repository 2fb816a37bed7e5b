//! The command `kas serve`.

use cli::{CliError, CommandResult};
use cores::Cores;
use process::{
    Notifier, descriptors,
    liveness::{self, LivenessThread},
    logs::{LogFormat, LogGuard},
    signals,
};
use tokio::{runtime::Builder, sync::watch};
use tracing::{field::display, level_filters::LevelFilter};
use tracing_subscriber::EnvFilter;

use super::ConfigFile;
use crate::{
    app::ValidatedConfig,
    config::{LogLevel, LoggingConfig, LoggingFormat},
};
use kas_listen::listener::Listener;

/// Run the server until SIGTERM or Ctrl-C
///
/// All files of the configuration are read before a listener is bound. On SIGTERM or Ctrl-C kas asks its agents to move to
/// another replica and finishes the requests in flight, within its grace periods and one second. A second signal stops it at
/// once. On SIGHUP it reads the identity file, the certificates and the secrets again.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Serve {
    #[command(flatten)]
    pub(super) config: ConfigFile,
}

const EXAMPLES: &str = "\
Examples:
  kas serve --config /etc/kas/kas.yaml
  KAS_CONFIG=/etc/kas/kas.yaml kas serve

Exit codes:
  0   stopped normally
  1   stopped by a second signal
  64  the configuration is invalid
  69  an address cannot be bound
  70  a defect of kas: a task panicked, or a thread was blocked for 45 s";

/// The crates of the workspace in kas, which log with the configured level.
const OURS: [&str; 40] = [
    "access",
    "backoff",
    "cli",
    "cores",
    "environment_templates",
    "environments_wire",
    "files",
    "gateway",
    "git",
    "gitlab_tunnel",
    "gitops_wire",
    "kas_cluster_audit",
    "kas_core",
    "kas_environments",
    "kas_events",
    "kas_fleet",
    "kas_gitlab",
    "kas_gitops",
    "kas_graph",
    "kas_listen",
    "kas_notify",
    "kas_oidc",
    "kas_promql",
    "kas_web",
    "manifest_diff",
    "oci",
    "oidc",
    "outbound",
    "process",
    "promql",
    "proto",
    "render",
    "request_info",
    "router",
    "settings",
    "store",
    "strangers",
    "telemetry",
    "tls",
    "tunnel",
];

impl Serve {
    /// Runs until a signal stops it.
    pub(super) fn run(self) -> CommandResult {
        let started = "the operating system lets a runtime start";
        let runtime = Builder::new_current_thread().enable_all().build().expect(started);
        let reload = watch::Sender::new(());
        // Before everything else: without the handler, SIGHUP ends the process.
        let sighup = {
            let _entered = runtime.enter();
            files::reload_on_sighup(reload.clone()).expect("signals can be handled")
        };
        let mut checked = ValidatedConfig::read(&self.config.path)?;
        checked.open_audit_log(&self.config.path)?;
        let log = start_logging(checked.logging());
        if let Some(keys) = checked.ignored_keys() {
            let file = display(self.config.path.display());
            tracing::warn!(
                file,
                keys,
                "keys of GitLab's kas without a meaning here are ignored, see docs/gitlab.md"
            );
        }
        let notifier = Notifier::from_env();
        let (cores, threads) = Cores::start(cores::count()).expect(started);
        let result = runtime.block_on(async {
            let stop = signals::stop_token(process::child::kill_all).expect("signals can be handled");
            let open_files = descriptors::raise_limit();
            let bound = checked.bind(open_files).await;
            let (mut app, listeners) = bound.map_err(|error| CliError::unavailable(error.to_string()))?;
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
                web = address(&listeners.web),
                "kas is listening"
            );
            app.reload = reload;
            app.notifier = notifier.clone();
            tokio::spawn(sighup);
            let (heartbeats, flusher) = (app.admin.liveness.clone(), log.flusher());
            let on_fatal = move || {
                flusher.flush();
                liveness::exit();
            };
            let probes = LivenessThread::start(heartbeats, notifier, on_fatal).expect(started);
            app.run(listeners, &cores, probes.runtime(), stop)
                .await
                .map_err(|panicked| CliError::defect(panicked.to_string()))
        });
        // The tasks that still run were cut. They must not delay the end, even if they block a thread.
        runtime.shutdown_background();
        threads.detach();
        result
    }
}

fn start_logging(logging: &LoggingConfig) -> LogGuard {
    let level = match logging.level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    let format = match logging.format {
        LoggingFormat::Json => LogFormat::Json,
        LoggingFormat::Text => LogFormat::Text,
    };
    process::logs::start(EnvFilter::new(log_filter(level)), format, false)
}

/// Returns the filter of the log. The crates of kas log with the configured level, and libraries only errors: h2 has a warning
/// for each PING that was acknowledged and never sent, which needs no credential, and a debug line for each frame.
pub fn log_filter(level: LevelFilter) -> String {
    let ours = OURS.map(|name| format!("{name}={level}")).join(",");
    format!("error,{ours}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_crate_of_the_workspace_has_the_configured_level() {
        assert_eq!(testing::crates::within(env!("CARGO_MANIFEST_DIR")), OURS);
    }
}
