//! The leadership among the pods of agentk: the holder of a `Lease` writes to the cluster, as in Kubernetes' own controllers.
//!
//! A candidate compares no clocks. It notes when *it* saw the Lease change last, and takes the Lease over once that was 15 s ago. The
//! holder stops writing 10 s after it began its last renewal that succeeded, so that it has stopped before another one begins.

use std::time::{Duration, SystemTime};

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use crate::{ApiError, KubeCluster};

/// The beginning of the names of agentk's Leases.
pub const LEASE_PREFIX: &str = "agentk-";

/// The time after which a Lease that did not change may be taken over.
const DURATION: Duration = Duration::from_secs(15);
/// The time after its last renewal for which the holder may write.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// The time between two attempts.
const PERIOD: Duration = Duration::from_secs(2);
/// The time within which the Lease is given back, or expires by itself.
const RELEASE_DEADLINE: Duration = Duration::from_secs(2);
/// The time between two attempts to give the Lease back, after an error that may pass.
const RELEASE_PERIOD: Duration = Duration::from_millis(200);

/// The leader, as this process knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Leadership {
    /// Another process leads, or nothing is known yet.
    #[default]
    Other,
    /// This process leads, and may write to the cluster until this time.
    Own(Instant),
    /// No process is known to lead, since the Lease could not be read or written for longer than it lasts. This is the last error.
    Unattended(String),
}

/// The candidacy of this process.
#[derive(Debug)]
pub struct LeaderElector {
    cluster: KubeCluster,
    /// The name of what the leader does, for logs.
    feature: &'static str,
    namespace: String,
    name: String,
    identity: String,
    observed: Option<Observed>,
    /// The version that a write without a response replaces. The API server may still execute it.
    unanswered: Option<Option<String>>,
}

/// The Lease as it was seen last.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Observed {
    resource_version: String,
    holder: String,
    transitions: u64,
    /// The time at which this version was seen first.
    since: Instant,
}

/// The next step of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Create,
    Renew,
    TakeOver,
    Release,
    Wait,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LeaseSpec {
    holder_identity: Option<String>,
    lease_transitions: Option<u64>,
}

impl Leadership {
    /// Returns whether this process may write now.
    pub fn is_held(&self) -> bool {
        self.until().is_some()
    }

    /// Returns the time until which this process may write, if it may now.
    pub fn until(&self) -> Option<Instant> {
        self.term().filter(|until| Instant::now() < *until)
    }

    /// Returns why no process is known to lead, if that is so.
    pub fn unattended(&self) -> Option<&str> {
        match self {
            Self::Unattended(error) => Some(error),
            Self::Other | Self::Own(_) => None,
        }
    }

    /// Returns the end of the time of this process, which may have passed.
    fn term(&self) -> Option<Instant> {
        match self {
            Self::Own(until) => Some(*until),
            Self::Other | Self::Unattended(_) => None,
        }
    }
}

impl LeaderElector {
    /// Returns a candidate for the Lease of a feature. `identity` differs for each process.
    pub fn new(
        cluster: KubeCluster,
        feature: &'static str,
        namespace: &str,
        name: &str,
        identity: &str,
    ) -> Self {
        let text = str::to_owned;
        Self {
            cluster,
            feature,
            namespace: text(namespace),
            name: text(name),
            identity: text(identity),
            observed: None,
            unanswered: None,
        }
    }

    /// Holds the Lease whenever that is possible. The future never completes.
    pub async fn run(&mut self, leadership: &watch::Sender<Leadership>) {
        let mut failure = None;
        let mut last_known = Instant::now();
        loop {
            let began = Instant::now();
            let held = timeout(RENEW_DEADLINE, self.attempt()).await;
            let held = held.unwrap_or_else(|_| Err(no_response()));
            let term = leadership.borrow().term();
            match held {
                Ok(true) => {
                    if term.is_none() {
                        tracing::info!(lease = self.name, "this pod leads {}", self.feature);
                    }
                    (failure, last_known) = (None, began);
                    leadership.send_if_modified(|leadership| {
                        *leadership = Leadership::Own(began + RENEW_DEADLINE);
                        // Workers that have seen the end of the last term wait for this.
                        term.is_none_or(|until| Instant::now() >= until)
                    });
                }
                Ok(false) => {
                    (failure, last_known) = (None, began);
                    self.follow(leadership, Leadership::Other);
                }
                Err(error) => {
                    let text = error.to_string();
                    if failure.as_ref() != Some(&error) {
                        let feature = self.feature;
                        tracing::warn!(lease = self.name, %error, "the Lease of {feature} cannot be read or written");
                        failure = Some(error);
                    }
                    if began >= last_known + DURATION {
                        self.follow(leadership, Leadership::Unattended(text));
                    } else if term.is_some_and(|until| Instant::now() >= until) {
                        self.follow(leadership, Leadership::Other);
                    }
                }
            }
            sleep(PERIOD).await;
        }
    }

    /// Gives the Lease back, so that another pod need not wait until it has expired. Nothing may be written any more.
    ///
    /// [`Self::run`] may have been dropped during a write, which the API server executes before this one, after it or not at all.
    pub async fn release(&mut self) {
        let released = timeout(RELEASE_DEADLINE, self.try_release()).await;
        if let Err(error) = released.unwrap_or_else(|_| Err(no_response())) {
            tracing::info!(lease = self.name, %error, "the Lease was not given back: other pods wait until it has expired");
        }
    }

    async fn try_release(&mut self) -> Result<(), ApiError> {
        if !self.holds() && self.unanswered.is_none() {
            return Ok(());
        }
        loop {
            match self.release_once().await {
                // The Lease has changed since it was read, by an earlier write of this process for example.
                Err(error) if error.status == 409 => {}
                Err(error) if error.is_transient() => sleep(RELEASE_PERIOD).await,
                released => return released,
            }
        }
    }

    async fn release_once(&mut self) -> Result<(), ApiError> {
        let found = self.cluster.lease(&self.namespace, &self.name).await?;
        self.observe(found.as_ref(), Instant::now());
        // The API server refuses a write of a version that was replaced.
        let may_follow = self.unanswered.as_ref().is_some_and(|replaced| *replaced == self.version());
        if self.holds() || may_follow { self.write(Step::Release).await.map(drop) } else { Ok(()) }
    }

    /// Notes that this process does not lead.
    fn follow(&self, leadership: &watch::Sender<Leadership>, now: Leadership) {
        leadership.send_if_modified(|leadership| {
            if leadership.term().is_some() {
                tracing::info!(lease = self.name, "this pod does not lead {} any more", self.feature);
            }
            let differs = *leadership != now;
            *leadership = now;
            differs
        });
    }

    /// Tries to get or to renew the Lease. Returns whether this process holds it.
    async fn attempt(&mut self) -> Result<bool, ApiError> {
        let found = self.cluster.lease(&self.namespace, &self.name).await?;
        self.observe(found.as_ref(), Instant::now());
        let step = step(self.observed.as_ref(), &self.identity, Instant::now());
        let written = match step {
            Step::Wait => return Ok(false),
            step => self.write(step).await,
        };
        match written {
            Ok(lease) => {
                self.observe(Some(&lease), Instant::now());
                Ok(true)
            }
            // Another pod was faster.
            Err(error) if error.status == 409 => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn write(&mut self, step: Step) -> Result<Value, ApiError> {
        let (lease, replaced) = (self.lease(step), self.version());
        let create = replaced.is_none();
        self.unanswered = Some(replaced);
        let written = self.cluster.write_lease(&self.namespace, &lease, create).await;
        if !written.as_ref().is_err_and(ApiError::is_transient) {
            self.unanswered = None;
        }
        written
    }

    /// Returns the Lease after a step.
    fn lease(&self, step: Step) -> Value {
        let now = humantime::format_rfc3339_micros(SystemTime::now()).to_string();
        let transitions = match (&self.observed, step) {
            (Some(observed), Step::TakeOver) => observed.transitions + 1,
            (Some(observed), _) => observed.transitions,
            (None, _) => 0,
        };
        let holder = if step == Step::Release { "" } else { &self.identity };
        json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self.name, "namespace": self.namespace, "resourceVersion": self.version()},
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": DURATION.as_secs(),
                "leaseTransitions": transitions,
                "renewTime": now,
            },
        })
    }

    /// Returns the version of the Lease that was seen last; `None` if there was no Lease.
    fn version(&self) -> Option<String> {
        self.observed.as_ref().map(|observed| observed.resource_version.clone())
    }

    /// Returns whether this process holds the Lease that was seen last.
    fn holds(&self) -> bool {
        self.observed.as_ref().is_some_and(|observed| observed.holder == self.identity)
    }

    fn observe(&mut self, lease: Option<&Value>, now: Instant) {
        let Some(lease) = lease else {
            self.observed = None;
            return;
        };
        let resource_version = lease["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
        if self.observed.as_ref().is_some_and(|observed| observed.resource_version == resource_version) {
            return;
        }
        let spec = LeaseSpec::deserialize(&lease["spec"]).unwrap_or_default();
        self.observed = Some(Observed {
            resource_version,
            holder: spec.holder_identity.unwrap_or_default(),
            transitions: spec.lease_transitions.unwrap_or_default(),
            since: now,
        });
    }
}

fn step(observed: Option<&Observed>, identity: &str, now: Instant) -> Step {
    match observed {
        None => Step::Create,
        Some(observed) if observed.holder == identity => Step::Renew,
        Some(observed) if observed.holder.is_empty() || now >= observed.since + DURATION => Step::TakeOver,
        Some(_) => Step::Wait,
    }
}

/// Returns the error of a request that got no response in time.
fn no_response() -> ApiError {
    ApiError { message: "no response in time".to_owned(), ..ApiError::default() }
}

#[cfg(test)]
mod tests;
