//! The policy in force: checks, counts and logs requests, and follows its file.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use http::Request;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use proto::{Reason, header, yaml::Error};
use tokio::{
    sync::watch,
    time::{Instant, interval},
};

use super::{Action, By, DEFAULT, Mode, Policy, UNCLEAR, describe};
use crate::{Failure, metrics::Metrics, repeats::Repeats};

/// How often the file is looked at. Reading a small file is cheap and, unlike inotify, sees through the symbolic links
/// by which Kubernetes replaces mounted files; comparing its text sees what its time and length would not tell.
const LOOK: Duration = Duration::from_secs(2);
/// Largest file, in bytes.
const MAX_FILE: u64 = 1 << 20;
/// Longest description of a request in the log, in characters.
const LONGEST: usize = 300;

/// Lets pass what the policy in force allows.
#[derive(Debug)]
pub struct Guard {
    file: PathBuf,
    current: ArcSwap<InForce>,
    changes: watch::Sender<()>,
    metrics: Metrics,
}

#[derive(Debug)]
struct InForce {
    /// Counts versions.
    version: u64,
    text: String,
    policy: Policy,
    /// One for each rule, then the default, then what is unclear.
    seen: Vec<Seen>,
}

#[derive(Debug)]
struct Seen {
    name: String,
    decision: &'static str,
    counter: Counter,
    repeats: Mutex<Repeats>,
}

impl Guard {
    /// Reads the file; it blocks.
    pub fn read(file: PathBuf, metrics: Metrics) -> Result<Self, Error> {
        let text = read(&file)?;
        let policy = Policy::parse(&file, &text)?;
        let current = ArcSwap::from_pointee(InForce::new(0, text, policy, &metrics));
        let guard = Self { file, current, changes: watch::Sender::new(()), metrics };
        guard.announce("a policy is in force");

        Ok(guard)
    }

    /// The mode and the number of rules in force.
    pub fn summary(&self) -> (Mode, usize) {
        let current = self.current.load();
        (current.policy.mode(), current.policy.rules().len())
    }

    /// Whether a request may pass, and by which version of the policy. Counted, and logged if not.
    pub fn check<B>(&self, service: &str, request: &Request<B>) -> Result<u64, Failure> {
        let current = self.current.load();
        let verdict = current.policy.judge(service, request);
        let seen = &current.seen[current.number(verdict.by)];
        seen.counter.inc();
        if verdict.allowed {
            return Ok(current.version);
        }

        let (enforced, what) = (current.policy.mode() == Mode::Enforce, describe(service, request));
        seen.log(service, request, &what, enforced);
        if enforced { Err(refusal(&seen.name, verdict.by, &what)) } else { Ok(current.version) }
    }

    /// Whether what passed an earlier version may go on. Counted and logged only if not.
    pub(super) fn still_allows<B>(&self, service: &str, request: &Request<B>) -> bool {
        let current = self.current.load();
        let verdict = current.policy.judge(service, request);
        if verdict.allowed || current.policy.mode() == Mode::DryRun {
            return true;
        }

        let seen = &current.seen[current.number(verdict.by)];
        seen.counter.inc();
        seen.log(service, request, &describe(service, request), true);
        false
    }

    /// The version in force.
    pub(super) fn version(&self) -> u64 {
        self.current.load().version
    }

    /// Sees every version that comes into force after this call.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Reads the file again whenever it changes, for ever. A version that cannot be used leaves the last good one in
    /// force.
    pub async fn follow(self: Arc<Self>) {
        let mut looks = interval(LOOK);
        let mut seen = Ok(self.current.load().text.clone());
        loop {
            looks.tick().await;
            let file = self.file.clone();
            let reading = tokio::task::spawn_blocking(move || read(&file));
            let now =
                reading.await.expect("reading a file does not panic").map_err(|error| error.to_string());
            if now == seen {
                continue;
            }
            seen = now;
            let parsed = seen.as_ref().map_err(String::clone).and_then(|text| {
                let policy = Policy::parse(&self.file, text).map_err(|error| error.to_string())?;
                Ok((text.clone(), policy))
            });
            self.metrics.policy_reload(parsed.is_ok());
            match parsed {
                Ok((text, policy)) => self.replace(text, policy),
                Err(error) => {
                    tracing::error!(
                        error,
                        "a new version of the policy was refused; the last good one stays in force"
                    );
                }
            }
        }
    }

    fn replace(&self, text: String, policy: Policy) {
        let next = Arc::new(InForce::new(self.version() + 1, text, policy, &self.metrics));
        let last = self.current.swap(Arc::clone(&next));
        let stays = |seen: &Seen| {
            next.seen.iter().any(|each| (&each.name, each.decision) == (&seen.name, seen.decision))
        };
        for gone in last.seen.iter().filter(|seen| !stays(seen)) {
            self.metrics.forget_policy_decisions(&gone.name, gone.decision);
        }
        self.changes.send_replace(());
        self.announce("a new version of the policy is in force");
    }

    fn announce(&self, what: &str) {
        let ((mode, rules), file) = (self.summary(), self.file.display());
        match mode {
            Mode::Enforce => tracing::info!(rules, %file, "{what}"),
            Mode::DryRun => tracing::warn!(rules, %file, "{what}; dry-run: nothing is refused"),
        }
    }
}

impl InForce {
    fn new(version: u64, text: String, policy: Policy, metrics: &Metrics) -> Self {
        let refused = match policy.mode() {
            Mode::Enforce => "refused",
            Mode::DryRun => "would-refuse",
        };
        let rules = policy.rules().iter().map(|rule| match rule.action() {
            Action::Allow => (rule.name(), "allowed"),
            Action::Deny => (rule.name(), refused),
        });
        let seen = rules.chain([(DEFAULT, refused), (UNCLEAR, refused)]).map(|(name, decision)| Seen {
            name: name.to_owned(),
            decision,
            counter: metrics.policy_decisions(name, decision),
            repeats: Mutex::default(),
        });

        Self { version, text, seen: seen.collect(), policy }
    }

    /// The index of what is counted.
    fn number(&self, by: By) -> usize {
        match by {
            By::Rule(number) => number,
            By::Default => self.policy.rules().len(),
            By::Unclear(_) => self.policy.rules().len() + 1,
        }
    }
}

impl Seen {
    fn log<B>(&self, service: &str, request: &Request<B>, what: &str, enforced: bool) {
        let Some(unlogged) = self.repeats.lock().happened(&self.name, Instant::now()) else { return };
        let (rule, id) = (&self.name, request.headers().get(header::REQUEST_ID));
        let request: String = what.chars().take(LONGEST).collect();
        let what = if enforced { "refused by the policy" } else { "the policy would refuse this; dry-run" };
        tracing::warn!(service, rule, request, request.id = ?id, unlogged, "{what}");
    }
}

fn refusal(rule: &str, by: By, what: &str) -> Failure {
    let message = match by {
        By::Rule(_) => {
            format!("the policy of this cluster does not allow this: rule {rule:?} refuses {what}")
        }
        By::Default => format!("the policy of this cluster does not allow this: no rule allows {what}"),
        By::Unclear(why) => {
            format!("the policy of this cluster cannot judge {what}, and so refuses it: {why}")
        }
    };
    Failure::new(Reason::RefusedByPolicy, message)
}

fn read(file: &Path) -> Result<String, Error> {
    let read = || {
        if fs::metadata(file)?.len() > MAX_FILE {
            return Err(io::Error::other(format!("it has more than {MAX_FILE} bytes")));
        }
        fs::read_to_string(file)
    };
    read().map_err(|error| {
        let what = match error.kind() {
            io::ErrorKind::NotFound => "the file does not exist".to_owned(),
            io::ErrorKind::PermissionDenied => {
                "permission denied: agentk's user may not read the file".to_owned()
            }
            _ => format!("cannot be read: {error}"),
        };
        Error::whole(file, what)
    })
}

#[cfg(test)]
mod tests {
    use proto::ServiceName;

    use super::*;
    use crate::policy::Permit;

    const ALLOW: &str = "rules: [{name: all, action: allow, services: ['*']}]";

    fn guard(directory: &Path) -> Arc<Guard> {
        let file = directory.join("policy.yaml");
        fs::write(&file, ALLOW).unwrap();
        Arc::new(Guard::read(file, Metrics::default()).unwrap())
    }

    fn replace(guard: &Guard, text: &str) {
        guard.replace(text.to_owned(), Policy::parse(&guard.file, text).unwrap());
    }

    /// Most answers are complete before anybody waits for their permit to be withdrawn.
    #[tokio::test]
    async fn a_version_that_came_before_anybody_waited_is_not_missed() {
        let directory = tempfile::tempdir().unwrap();
        let guard = guard(directory.path());
        let service = ServiceName::KUBERNETES.parse().unwrap();
        let request = Request::get("/api/v1/pods?watch=1").body(()).unwrap();
        let version = guard.check("kubernetes", &request).unwrap();
        let permit = Permit::new(&guard, version, &service, &request);
        replace(&guard, "rules: []");
        permit.withdrawn().await;
        assert!(guard.check("kubernetes", &request).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_version_that_still_allows_withdraws_nothing_and_the_next_may() {
        let directory = tempfile::tempdir().unwrap();
        let guard = guard(directory.path());
        let service = ServiceName::KUBERNETES.parse().unwrap();
        let request = Request::get("/api/v1/pods?watch=1").body(()).unwrap();
        let version = guard.check("kubernetes", &request).unwrap();
        replace(&guard, ALLOW);
        let mut withdrawn = std::pin::pin!(Permit::new(&guard, version, &service, &request).withdrawn());
        assert!(tokio::time::timeout(Duration::from_secs(60), &mut withdrawn).await.is_err());
        replace(&guard, ALLOW);
        assert!(tokio::time::timeout(Duration::from_secs(60), &mut withdrawn).await.is_err());
        replace(&guard, "rules: []");
        withdrawn.await;
    }
}
