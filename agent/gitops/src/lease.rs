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

/// The time after which a Lease that did not change may be taken over.
const DURATION: Duration = Duration::from_secs(15);
/// The time after its last renewal for which the holder may write.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// The time between two attempts.
const PERIOD: Duration = Duration::from_secs(2);

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
pub struct Candidate {
    cluster: KubeCluster,
    /// The name of what the leader does, for logs.
    feature: &'static str,
    namespace: String,
    name: String,
    identity: String,
    observed: Option<Observed>,
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

impl Candidate {
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
        }
    }

    /// Holds the Lease whenever that is possible. The future never completes.
    pub async fn run(&mut self, leadership: &watch::Sender<Leadership>) {
        let mut failure = None;
        let mut last_known = Instant::now();
        loop {
            let began = Instant::now();
            let held = timeout(RENEW_DEADLINE, self.attempt()).await;
            let held = held.unwrap_or_else(|_| {
                Err(ApiError { message: "no response in time".to_owned(), ..ApiError::default() })
            });
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
    pub async fn release(&mut self) {
        if self.observed.as_ref().is_some_and(|observed| observed.holder == self.identity) {
            self.identity.clear();
            if let Ok(Err(error)) = timeout(PERIOD, self.write(Step::Renew)).await {
                tracing::debug!(lease = self.name, %error, "the Lease was not given back");
            }
        }
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
            Step::Create | Step::Renew | Step::TakeOver => self.write(step).await,
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

    async fn write(&self, step: Step) -> Result<Value, ApiError> {
        let now = humantime::format_rfc3339_micros(SystemTime::now()).to_string();
        let transitions = match (&self.observed, step) {
            (Some(observed), Step::TakeOver) => observed.transitions + 1,
            (Some(observed), _) => observed.transitions,
            (None, _) => 0,
        };
        let version = self.observed.as_ref().map(|observed| observed.resource_version.clone());
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self.name, "namespace": self.namespace, "resourceVersion": version},
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": DURATION.as_secs(),
                "leaseTransitions": transitions,
                "renewTime": now,
            },
        });
        self.cluster.write_lease(&self.namespace, &lease, step == Step::Create).await
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

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(holder: &str, since: Instant) -> Observed {
        Observed { resource_version: "1".to_owned(), holder: holder.to_owned(), transitions: 0, since }
    }

    #[test]
    fn lease_is_taken_over_once_its_holder_has_been_silent() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(step(None, "me", start), Step::Create);
        assert_eq!(step(Some(&observed("me", start)), "me", at(100)), Step::Renew);
        assert_eq!(step(Some(&observed("", start)), "me", start), Step::TakeOver, "it was released");
        assert_eq!(step(Some(&observed("other", start)), "me", at(14)), Step::Wait);
        assert_eq!(step(Some(&observed("other", start)), "me", at(15)), Step::TakeOver);
    }

    #[tokio::test(start_paused = true)]
    async fn leader_that_was_frozen_finds_its_time_over() {
        let leadership = Leadership::Own(Instant::now() + RENEW_DEADLINE);
        assert!(leadership.is_held());
        tokio::time::advance(RENEW_DEADLINE).await;
        assert!(!leadership.is_held(), "before another candidate may take over");
        assert!(RENEW_DEADLINE < DURATION);
    }
}
