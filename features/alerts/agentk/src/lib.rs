//! Alerts: what network policies drop, and what policy engines report.
//!
//! ```text
//!   Hubble Relay: flows ────────────────┐
//!   API server: policies, Events ───────┴─► AlertTable ──┬─► EventLog, while this pod leads ─► kas
//!                                                        └─► service `alerts` ─► callers
//! ```
//!
//! Every pod follows, so that each one has the open alerts for callers, and the next leader knows what was reported. The requests to the
//! API of the cluster pass the scope and the policy of the cluster's owner, as the service `alerts`.
#![warn(missing_docs)]

mod check;
mod definition;
mod handler;
mod hubble;
mod metrics;
mod objects;
mod observation;
mod options;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use agentk_core::{
    EventLog,
    leader::{Candidacy, LeaseDefinition},
    services::{KubernetesService, kube_client::Restrictions},
};
use arc_swap::ArcSwap;
use cluster_alerts::{AlertKey, AlertTable, Observed, PolicySet};
use parking_lot::Mutex;
use proto::agent_configuration::alerts::AlertsSection;
use tokio::{
    sync::{Notify, watch},
    time::sleep,
};

pub use self::definition::DEFINITION;
use self::observation::Observation;
pub(crate) use self::{handler::AlertsHandler, hubble::HubbleRelay, metrics::AlertsMetrics};

/// The Lease of the pod that reports.
pub(crate) const LEASE: LeaseDefinition =
    LeaseDefinition { suffix: "-alerts", feature: "alerts", candidacy: Candidacy::WithAgent };

/// The time between two looks at what is due.
const LOOK: Duration = Duration::from_secs(1);

/// The sources of alerts, which flags name.
#[derive(Debug)]
pub(crate) struct AlertSources {
    /// The server of flows.
    pub(crate) hubble: Option<HubbleRelay>,
    /// Events of policy engines are alerts.
    pub(crate) policy_engines: bool,
}

/// The alerts of the cluster.
pub(crate) struct Alerts {
    sources: AlertSources,
    kubernetes: KubernetesService,
    restrictions: Restrictions,
    /// Returns whether this pod holds the Lease.
    leads: Box<dyn Fn() -> bool + Send + Sync>,
    events: EventLog,
    /// Section `alerts` of the agent's configuration.
    section: watch::Sender<Arc<AlertsSection>>,
    filter: watch::Sender<Arc<Filter>>,
    table: Mutex<AlertTable>,
    /// The policies of each watch.
    watched: Mutex<BTreeMap<String, PolicySet>>,
    /// All of them.
    policies: ArcSwap<PolicySet>,
    observation: Mutex<Observation>,
    /// Notifies that an alert was opened.
    opened: Notify,
    metrics: AlertsMetrics,
}

/// Decides which drops and violations are alerts: the section of the configuration, within the scope.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Filter {
    section: Arc<AlertsSection>,
    /// The namespaces; `None` for all of the cluster.
    namespaces: Option<BTreeSet<String>>,
    /// A scope is in force, so that nothing outside of namespaces may be read.
    scoped: bool,
}

impl Alerts {
    /// Returns the alerts, of which there are none yet. `leads` says whether this pod holds the Lease.
    pub(crate) fn new(
        sources: AlertSources,
        kubernetes: KubernetesService,
        restrictions: Restrictions,
        leads: impl Fn() -> bool + Send + Sync + 'static,
        events: EventLog,
        metrics: AlertsMetrics,
    ) -> Arc<Self> {
        let section = Arc::new(AlertsSection::default());
        let filter = Arc::new(Filter::new(Arc::clone(&section), &restrictions));
        let observation = Mutex::new(Observation::new(sources.hubble.is_some()));
        Arc::new(Self {
            sources,
            kubernetes,
            restrictions,
            leads: Box::new(leads),
            events,
            table: Mutex::new(AlertTable::new(section.quiet_period)),
            section: watch::Sender::new(section),
            filter: watch::Sender::new(filter),
            watched: Mutex::default(),
            policies: ArcSwap::default(),
            observation,
            opened: Notify::new(),
            metrics,
        })
    }

    /// Applies the section of the agent's configuration.
    pub(crate) fn set_section(&self, section: AlertsSection) {
        self.section.send_if_modified(|known| {
            let is_new = **known != section;
            if is_new {
                *known = Arc::new(section);
            }
            is_new
        });
    }

    /// Follows the sources and reports. The future never completes.
    pub(crate) async fn run(&self) {
        tokio::join!(self.keep_filter(), hubble::follow(self), objects::follow(self), self.report());
    }

    /// Returns the number of open alerts.
    fn open(&self) -> usize {
        self.table.lock().len()
    }

    /// Counts an occurrence.
    fn observe(&self, key: AlertKey, sample: String, time: Option<SystemTime>) {
        let observed = self.table.lock().observe(key, sample, time, SystemTime::now());
        match observed {
            Observed::Opened => self.opened.notify_one(),
            Observed::Counted => {}
            Observed::Folded => self.metrics.drop_one("many-destinations"),
            Observed::Overflow => self.metrics.drop_one("too-many-alerts"),
        }
    }

    /// Sets the policies that a watch has found.
    fn set_policies(&self, watch: &str, policies: PolicySet) {
        let mut watched = self.watched.lock();
        watched.insert(watch.to_owned(), policies);
        self.merge(&watched);
    }

    /// Forgets the policies of all watches.
    fn forget_policies(&self) {
        let mut watched = self.watched.lock();
        watched.clear();
        self.merge(&watched);
    }

    fn merge(&self, watched: &BTreeMap<String, PolicySet>) {
        let mut all = PolicySet::default();
        watched.values().for_each(|set| all.extend(set));
        self.metrics.set_policies(all.len());
        self.policies.store(Arc::new(all));
    }

    /// Returns what is an alert now.
    fn current_filter(&self) -> Filter {
        Filter::new(Arc::clone(&self.section.borrow()), &self.restrictions)
    }

    async fn keep_filter(&self) {
        let mut section = self.section.subscribe();
        let mut scope = self.restrictions.scope.as_ref().map(|scope| scope.changes());
        loop {
            let filter = self.current_filter();
            self.table.lock().set_quiet_period(filter.section.quiet_period);
            self.filter.send_if_modified(|known| {
                let is_new = **known != filter;
                if is_new {
                    *known = Arc::new(filter);
                }
                is_new
            });
            let scope_changed = async {
                let closed = match &mut scope {
                    Some(changes) => changes.changed().await.is_err(),
                    None => true,
                };
                if closed {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                _ = section.changed() => {}
                () = scope_changed => {}
            }
        }
    }

    /// Reports what is new at once, and looks each second at what has gone on or is over. Lists all open alerts after the reports, so that
    /// kas ends the others.
    async fn report(&self) {
        loop {
            tokio::select! {
                () = sleep(LOOK) => {}
                () = self.opened.notified() => {}
            }
            let (now, leading, observed) =
                (SystemTime::now(), (self.leads)(), self.observation.lock().duration());
            let (reports, open) = {
                let mut table = self.table.lock();
                (table.reports(now, leading), table.all_open(now, leading, observed))
            };
            for report in reports {
                self.events.emit(report);
            }
            if let Some(open) = open {
                self.events.set_open_alerts(open);
            }
        }
    }
}

impl Filter {
    fn new(section: Arc<AlertsSection>, restrictions: &Restrictions) -> Self {
        let scope = restrictions.scope.as_ref().and_then(|scope| scope.in_force());
        let scoped = scope.is_some();
        let of_section =
            (!section.namespaces.is_empty()).then(|| section.namespaces.iter().cloned().collect());
        let of_scope = scope.map(|scope| scope.namespaces.into_iter().collect::<BTreeSet<_>>());
        let namespaces = match (of_section, of_scope) {
            (Some(one), Some(other)) => Some(&one & &other),
            (one, other) => one.or(other),
        };
        Self { section, namespaces, scoped }
    }

    /// Returns whether a namespace may have alerts. The empty one is that of hosts and of objects of the cluster.
    fn contains(&self, namespace: &str) -> bool {
        self.namespaces.as_ref().is_none_or(|namespaces| namespaces.contains(namespace))
    }
}

impl fmt::Debug for Alerts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Alerts").field("sources", &self.sources).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
