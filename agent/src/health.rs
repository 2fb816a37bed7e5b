//! What this process knows about its own state: shared by those who change it and those who are asked.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use tokio::sync::watch;

use crate::metrics::Metrics;

/// What an agent reports to: its health, and its counts. Cheap to clone; several agents may share one.
#[derive(Clone, Debug, Default)]
pub struct Telemetry {
    /// What is counted.
    pub metrics: Metrics,
    /// Whether it works.
    pub health: Arc<Health>,
}

/// Whether tunnels are up and the cluster answers.
#[derive(Debug, Default)]
pub struct Health {
    tunnels: watch::Sender<usize>,
    /// Why there is no tunnel, as the last attempt saw it.
    dial: watch::Sender<Option<String>>,
    cluster: watch::Sender<Check>,
    stopping: AtomicBool,
}

/// What the last check of the cluster came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Check {
    /// Nobody has checked yet, or nobody does.
    #[default]
    Unknown,
    /// The Kubernetes API answers.
    Up {
        /// Its version, if it told.
        version: Option<String>,
    },
    /// It does not, and why.
    Down(String),
}

/// Counts a tunnel for as long as it is kept.
#[derive(Debug)]
pub(crate) struct TunnelUp(Telemetry);

impl Telemetry {
    pub(crate) fn tunnel_up(&self) -> TunnelUp {
        self.metrics.tunnels.inc();
        self.health.tunnels.send_modify(|tunnels| *tunnels += 1);
        self.health.dial.send_replace(None);
        TunnelUp(self.clone())
    }

    /// The cluster was checked. True if that is news.
    pub fn cluster_checked(&self, check: Check) -> bool {
        self.metrics.cluster_check(matches!(check, Check::Up { .. }));
        self.health.cluster.send_if_modified(|last| {
            let news = std::mem::discriminant(last) != std::mem::discriminant(&check);
            *last = check;
            news
        })
    }
}

impl Health {
    /// The number of tunnels that are up, and its changes.
    pub fn tunnels(&self) -> watch::Receiver<usize> {
        self.tunnels.subscribe()
    }

    /// Why the last attempt to open a tunnel failed; none once one succeeded.
    pub fn dial_failure(&self) -> watch::Receiver<Option<String>> {
        self.dial.subscribe()
    }

    /// The last check of the cluster.
    pub fn cluster(&self) -> Check {
        self.cluster.borrow().clone()
    }

    /// Waits for the first check of the cluster.
    pub async fn cluster_known(&self) {
        let mut cluster = self.cluster.subscribe();
        // The sender lives in self.
        let _ = cluster.wait_for(|check| *check != Check::Unknown).await;
    }

    /// From now on there will be no more tunnels.
    pub fn stop(&self) {
        self.stopping.store(true, Relaxed);
    }

    pub(crate) fn dial_failed(&self, why: String) {
        self.dial.send_replace(Some(why));
    }

    /// What keeps this agent from doing its work, one line each. None means ready.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.stopping.load(Relaxed) {
            problems.push("agentk is stopping".to_owned());
        }
        if *self.tunnels.borrow() == 0 {
            let why = self.dial.borrow().clone();
            let why = why.unwrap_or_else(|| "still connecting".to_owned());
            problems.push(format!("no tunnel to kas: {why}"));
        }
        match &*self.cluster.borrow() {
            Check::Unknown => problems.push("the Kubernetes API was not checked yet".to_owned()),
            Check::Up { .. } => {}
            Check::Down(why) => problems.push(format!("the Kubernetes API does not answer: {why}")),
        }
        problems
    }
}

impl Drop for TunnelUp {
    fn drop(&mut self) {
        self.0.metrics.tunnels.dec();
        self.0.health.tunnels.send_modify(|tunnels| *tunnels -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_with_a_tunnel_and_a_cluster() {
        let telemetry = Telemetry::default();
        assert_eq!(telemetry.health.problems().len(), 2);
        telemetry.health.dial_failed("no route to host".into());
        assert_eq!(telemetry.health.problems()[0], "no tunnel to kas: no route to host");

        let up = telemetry.tunnel_up();
        assert!(telemetry.cluster_checked(Check::Up { version: None }));
        assert!(telemetry.health.problems().is_empty());
        assert!(!telemetry.cluster_checked(Check::Up { version: Some("v1.33.1".into()) }));
        assert!(telemetry.cluster_checked(Check::Down("connection refused".into())));
        assert!(!telemetry.cluster_checked(Check::Down("another reason".into())));
        assert_eq!(telemetry.health.problems(), ["the Kubernetes API does not answer: another reason"]);
        drop(up);
        assert_eq!(telemetry.health.problems()[0], "no tunnel to kas: still connecting");
    }
}
