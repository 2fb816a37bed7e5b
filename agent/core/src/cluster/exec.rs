//! Credential plugins: commands that print a credential.
//!
//! <https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins>

mod exec_credential;

#[cfg(test)]
mod tests;

use std::{
    ffi::OsString,
    io,
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::HeaderValue;
use parking_lot::Mutex;
use process::child::{self, ChildOutput, RunError};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::time::Instant;

use super::ClusterError;
use crate::upstream::ClientIdentity;

/// The supported API versions of ExecCredential.
pub(super) const API_VERSIONS: [&str; 2] =
    ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];

/// The time limit of a run. kubectl has none, since its user can cancel; here callers wait.
///
/// 10 s: a plugin that requests a token of a cloud needs one or two round trips.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The most bytes that a plugin may write to each of its outputs. A credential has some kilobytes.
const MAX_OUTPUT: u64 = 1 << 20;

/// The time before its expiration at which a credential is renewed: the clocks of this machine and of the server may differ,
/// and requests take time to arrive.
const RENEW_BEFORE: Duration = Duration::from_secs(60);

/// The shortest time between two runs, also if credentials expire soon or are rejected, or if the plugin fails: a process for
/// each request would overload the machine.
const MIN_RUN_PERIOD: Duration = Duration::from_secs(5);

/// The command of a plugin.
pub(super) struct PluginCommand {
    pub(super) api_version: &'static str,
    pub(super) program: OsString,
    pub(super) arguments: Vec<String>,
    pub(super) environment: Vec<(String, SecretString)>,
    /// The value of `KUBERNETES_EXEC_INFO`.
    pub(super) info: String,
    pub(super) install_hint: String,
}

pub(super) struct ExecPlugin {
    command: PluginCommand,
    state: Mutex<State>,
    #[expect(
        clippy::disallowed_types,
        reason = "held while the plugin runs, so that it runs once for all waiting requests; nothing else is awaited under it"
    )]
    running: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    credential: Option<Arc<PluginCredential>>,
    failed: Option<(Instant, String)>,
}

pub(super) struct PluginCredential {
    pub(super) authorization: Option<HeaderValue>,
    pub(super) identity: Option<Arc<ClientIdentity>>,
    expires: Option<SystemTime>,
    obtained: Instant,
}

impl ExecPlugin {
    pub(super) fn new(command: PluginCommand) -> Arc<Self> {
        Arc::new(Self { command, state: Mutex::default(), running: Default::default() })
    }

    pub(super) fn command(&self) -> std::path::Display<'_> {
        std::path::Path::new(&self.command.program).display()
    }

    /// Returns a valid credential, for which it may run the plugin. Cancel-safe.
    pub(super) async fn credential(self: &Arc<Self>) -> Result<Arc<PluginCredential>, ClusterError> {
        if let Some(cached) = self.cached() {
            return cached;
        }

        // A task of its own: a request that is cancelled does not stop the run for which others wait.
        let plugin = Arc::clone(self);
        let renewed = tokio::spawn(async move {
            let _running = plugin.running.lock().await;
            match plugin.cached() {
                Some(cached) => cached,
                None => plugin.renew().await,
            }
        });
        renewed.await.unwrap_or_else(|error| Err(self.failed(error.to_string())))
    }

    /// Discards the credential, after the server answered 401 to it.
    pub(super) fn invalidate(&self) {
        let mut state = self.state.lock();
        state.credential.take_if(|credential| credential.obtained.elapsed() >= MIN_RUN_PERIOD);
    }

    /// Returns the result that needs no run: a valid credential, or a recent failure.
    fn cached(&self) -> Option<Result<Arc<PluginCredential>, ClusterError>> {
        let (wall, now) = (SystemTime::now(), Instant::now());
        let state = self.state.lock();
        if let Some(credential) = state.credential.as_ref().filter(|known| known.is_fresh(wall, now)) {
            return Some(Ok(Arc::clone(credential)));
        }
        let (at, problem) = state.failed.as_ref()?;
        if now.duration_since(*at) >= MIN_RUN_PERIOD {
            return None;
        }

        Some(state.unexpired(wall).ok_or_else(|| self.failed(problem.clone())))
    }

    async fn renew(&self) -> Result<Arc<PluginCredential>, ClusterError> {
        let result = self.run().await;
        let mut state = self.state.lock();
        match result {
            Ok(credential) => {
                state.failed = None;
                Ok(Arc::clone(state.credential.insert(Arc::new(credential))))
            }
            Err(problem) => {
                state.failed = Some((Instant::now(), problem.clone()));
                let error = self.failed(problem);
                let Some(credential) = state.unexpired(SystemTime::now()) else { return Err(error) };
                tracing::warn!(%error, "a credential plugin failed; its last credential is used until it expires");
                Ok(credential)
            }
        }
    }

    async fn run(&self) -> Result<PluginCredential, String> {
        let PluginCommand { program, arguments, environment, info, .. } = &self.command;
        let variables = environment.iter().map(|(name, value)| (name, value.expose_secret()));
        let mut command = tokio::process::Command::new(program);
        command.args(arguments).envs(variables).env("KUBERNETES_EXEC_INFO", info);
        let output = child::run(&mut command, TIMEOUT, MAX_OUTPUT).await.map_err(|error| match error {
            RunError::Start(error) => self.cannot_start(&error),
            error => error.to_string(),
        })?;
        if !output.status.success() {
            return Err(format!("failed ({}){}", output.status, last_stderr_line(&output)));
        }

        let printed = exec_credential::parse(&output.stdout, self.command.api_version)?;
        let (authorization, identity) = (printed.authorization, printed.identity);
        Ok(PluginCredential { authorization, identity, expires: printed.expires, obtained: Instant::now() })
    }

    fn cannot_start(&self, error: &io::Error) -> String {
        let hint = match (error.kind(), self.command.install_hint.trim()) {
            (io::ErrorKind::NotFound, "") => "; install it where agentk runs, in its PATH",
            (io::ErrorKind::NotFound, hint) => return format!("cannot be started: {error}; {hint}"),
            _ => "",
        };

        format!("cannot be started: {error}{hint}")
    }

    fn failed(&self, problem: String) -> ClusterError {
        ClusterError::Plugin { command: self.command().to_string(), problem }
    }
}

impl State {
    /// Returns the credential if it has not expired.
    fn unexpired(&self, wall: SystemTime) -> Option<Arc<PluginCredential>> {
        self.credential.clone().filter(|known| known.expires.is_none_or(|expires| wall < expires))
    }
}

impl PluginCredential {
    /// Returns true if the credential need not be renewed.
    fn is_fresh(&self, wall: SystemTime, now: Instant) -> bool {
        let Some(expires) = self.expires else { return true };

        wall + RENEW_BEFORE < expires || now.duration_since(self.obtained) < MIN_RUN_PERIOD
    }
}

/// Kills all running plugins with their children, and every plugin that is started later. It is called before the process
/// exits.
pub fn kill_plugins() {
    child::kill_all();
}

/// Returns the last line on stderr, in which plugins usually print their error.
fn last_stderr_line(output: &ChildOutput) -> String {
    const MAX_CHARS: usize = 300;

    let text = String::from_utf8_lossy(&output.stderr);
    match text.trim().lines().last() {
        Some(line) => format!(": {}", line.trim().chars().take(MAX_CHARS).collect::<String>()),
        None => String::new(),
    }
}
