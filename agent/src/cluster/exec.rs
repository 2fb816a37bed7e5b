//! Credential plugins: a command that prints a credential.
//!
//! <https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins>

mod answer;
mod rfc3339;

#[cfg(test)]
mod tests;

use std::{
    ffi::OsString,
    io,
    process::{Output, Stdio},
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::HeaderValue;
use parking_lot::Mutex;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::time::{Instant, timeout};

use super::ClusterError;
use crate::upstream::Identity;

pub(super) const API_VERSIONS: [&str; 2] =
    ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];

/// A plugin may have to ask a cloud for a token; kubectl would wait for ever, with a user in front of it.
const TIMEOUT: Duration = Duration::from_secs(60);

/// How long before it expires a credential is renewed: the clocks of this machine and of the server differ, and a
/// request is on its way for a while.
const RENEW_BEFORE: Duration = Duration::from_secs(60);

/// The shortest time between two runs, however short-lived or rejected the credentials are, or however often the
/// plugin fails: a process per request would only make it worse.
const RUN_EVERY: Duration = Duration::from_secs(5);

/// What to run.
pub(super) struct Command {
    pub(super) api_version: &'static str,
    pub(super) program: OsString,
    pub(super) arguments: Vec<String>,
    pub(super) environment: Vec<(String, SecretString)>,
    /// `KUBERNETES_EXEC_INFO`.
    pub(super) info: String,
    pub(super) install_hint: String,
}

pub(super) struct Plugin {
    command: Command,
    state: Mutex<State>,
    #[expect(
        clippy::disallowed_types,
        reason = "held while the plugin runs, so that it runs once for all who wait; nothing else is awaited under it"
    )]
    running: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    credential: Option<Arc<Credential>>,
    failed: Option<(Instant, String)>,
}

pub(super) struct Credential {
    pub(super) authorization: Option<HeaderValue>,
    pub(super) identity: Option<Arc<Identity>>,
    expires: Option<SystemTime>,
    obtained: Instant,
}

impl Plugin {
    pub(super) fn new(command: Command) -> Arc<Self> {
        Arc::new(Self { command, state: Mutex::default(), running: Default::default() })
    }

    pub(super) fn command(&self) -> std::path::Display<'_> {
        std::path::Path::new(&self.command.program).display()
    }

    pub(super) async fn credential(self: &Arc<Self>) -> Result<Arc<Credential>, ClusterError> {
        if let Some(known) = self.known() {
            return known;
        }

        // A task of its own: a caller that gives up does not throw away what the others wait for.
        let plugin = Arc::clone(self);
        let renewed = tokio::spawn(async move {
            let _running = plugin.running.lock().await;
            match plugin.known() {
                Some(known) => known,
                None => plugin.renew().await,
            }
        });
        renewed.await.unwrap_or_else(|error| Err(self.failed(error.to_string())))
    }

    pub(super) fn rejected(&self) {
        let mut state = self.state.lock();
        state.credential.take_if(|credential| credential.obtained.elapsed() >= RUN_EVERY);
    }

    /// What needs no run: a credential that is good, or a failure that is recent.
    fn known(&self) -> Option<Result<Arc<Credential>, ClusterError>> {
        let (wall, now) = (SystemTime::now(), Instant::now());
        let state = self.state.lock();
        if let Some(credential) = state.credential.as_ref().filter(|known| known.is_good(wall, now)) {
            return Some(Ok(Arc::clone(credential)));
        }
        let (at, problem) = state.failed.as_ref()?;
        if now.duration_since(*at) >= RUN_EVERY {
            return None;
        }

        Some(state.usable(wall).ok_or_else(|| self.failed(problem.clone())))
    }

    async fn renew(&self) -> Result<Arc<Credential>, ClusterError> {
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
                let Some(usable) = state.usable(SystemTime::now()) else { return Err(error) };
                tracing::warn!(%error, "the last credential stays in use until it expires");
                Ok(usable)
            }
        }
    }

    async fn run(&self) -> Result<Credential, String> {
        let Command { program, arguments, environment, info, .. } = &self.command;
        let variables = environment.iter().map(|(name, value)| (name, value.expose_secret()));
        let child = tokio::process::Command::new(program)
            .args(arguments)
            .envs(variables)
            .env("KUBERNETES_EXEC_INFO", info)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| self.cannot_start(&error))?;
        let output = match timeout(TIMEOUT, child.wait_with_output()).await {
            Ok(Ok(output)) => output,
            Ok(Err(error)) => return Err(format!("lost: {error}")),
            Err(_) => return Err(format!("did not finish within {TIMEOUT:?}")),
        };
        if !output.status.success() {
            return Err(format!("failed ({}){}", output.status, last_words(&output)));
        }

        let answer = answer::parse(&output.stdout, self.command.api_version)?;
        let (authorization, identity) = (answer.authorization, answer.identity);
        Ok(Credential { authorization, identity, expires: answer.expires, obtained: Instant::now() })
    }

    fn cannot_start(&self, error: &io::Error) -> String {
        let hint = match (error.kind(), self.command.install_hint.trim()) {
            (io::ErrorKind::NotFound, "") => "; install it where the agent runs, and in its PATH",
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
    /// Still valid, if only for a short time.
    fn usable(&self, wall: SystemTime) -> Option<Arc<Credential>> {
        self.credential.clone().filter(|known| known.expires.is_none_or(|expires| wall < expires))
    }
}

impl Credential {
    fn is_good(&self, wall: SystemTime, now: Instant) -> bool {
        let Some(expires) = self.expires else { return true };

        wall + RENEW_BEFORE < expires || now.duration_since(self.obtained) < RUN_EVERY
    }
}

/// Plugins tell on stderr why they failed, in their last line.
fn last_words(output: &Output) -> String {
    const AT_MOST: usize = 300; // characters: one line of a log

    let text = String::from_utf8_lossy(&output.stderr);
    match text.trim().lines().last() {
        Some(line) => format!(": {}", line.trim().chars().take(AT_MOST).collect::<String>()),
        None => String::new(),
    }
}
