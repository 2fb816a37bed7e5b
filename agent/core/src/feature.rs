//! A feature of agentk: its flags, its request types, its part of the agent's configuration, and its work in the background.
//!
//! The program has the list of features. Nothing here knows which ones there are.

use std::{pin::Pin, sync::Arc};

use clap::{ArgMatches, FromArgMatches};
use futures_util::future::LocalBoxFuture;
use kube_cluster::KubeCluster;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use proto::{AgentId, InstanceId};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    check_report::CheckReport,
    events::EventLog,
    file_followers::FileFollowers,
    health::AgentHealth,
    leader::{CandidateProcess, Leader, LeaderTask, LeaseDefinition},
    services::{
        BoxService, KubernetesService, RequestHandler, Services, box_handler,
        configuration::{Section, SectionUpdate},
        kube_client::{Restrictions, kube_service},
    },
};

/// The work of a feature in the background. It ends some time after [`FeatureContext::stopping`] is cancelled, and not before.
pub type Work = Pin<Box<dyn Future<Output = ()> + Send>>;
/// Binds what a feature listens on, and returns its work. The error names the flag.
pub type Start = Box<dyn FnOnce() -> anyhow::Result<Work> + Send>;

/// How agentk makes a feature.
pub struct FeatureDefinition {
    /// The services that the policy of the cluster's owner may name.
    pub services: &'static [&'static str],
    /// True if requests of these services may be writes to the cluster.
    pub writes: bool,
    /// The Lease of the pod that does its work; `None` if each pod does it.
    pub lease: Option<LeaseDefinition>,
    /// Adds the flags of the feature to a command.
    pub flags: fn(clap::Command) -> clap::Command,
    /// Returns whether the flags turn the feature on.
    pub is_enabled: fn(&FeatureOptions<'_>) -> bool,
    /// Builds the feature. It reads the files that flags name, which blocks. The error names the flag.
    pub build: fn(&FeatureOptions<'_>, &mut FeatureContext<'_>) -> anyhow::Result<Feature>,
    /// Builds the steps of `agentk check`, or `None` if there is nothing to check. It reads the files that flags name, which blocks. The error
    /// names the flag.
    pub check: Option<BuildCheck>,
}

/// Builds the steps of `agentk check` for a feature.
pub(crate) type BuildCheck =
    fn(&FeatureOptions<'_>, &CheckContext) -> anyhow::Result<Option<Box<dyn FeatureCheck>>>;

/// The parts of agentk with which features check themselves.
pub struct CheckContext {
    /// The connection to the cluster.
    pub kubernetes: KubernetesService,
    /// The namespace of agentk.
    pub namespace: String,
    /// The namespaces to which flags restrict agentk.
    pub scope: Option<Vec<String>>,
}

/// The steps of `agentk check` for a feature that is turned on.
pub trait FeatureCheck {
    /// Writes the steps. Steps that need the cluster are left out unless it answers.
    fn run<'a>(&'a self, cluster_answers: bool, report: &'a mut CheckReport<'_>) -> LocalBoxFuture<'a, ()>;
}

/// The options from which features are built. Each reads its own flags.
#[derive(Clone, Copy)]
pub struct FeatureOptions<'a> {
    /// The flags of all features.
    pub flags: &'a ArgMatches,
    /// True if kas may configure this agent.
    pub is_configurable: bool,
}

/// A feature that is turned on.
#[derive(Default)]
pub struct Feature {
    pub(crate) handlers: Vec<FeatureHandler>,
    /// Applies the section of the feature in the configuration of the agent.
    pub section: Option<Section>,
    /// Its work in the background.
    pub start: Option<Start>,
}

/// A request type of a feature.
pub(crate) struct FeatureHandler {
    pub(crate) name: &'static str,
    pub(crate) guard: Guard,
    pub(crate) service: BoxService,
}

/// Where the policy of the cluster's owner is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// Before the handler: the policy lists the service, and the method and the path of its requests.
    Policy,
    /// In the handler, about each request that it sends to the cluster, or not at all, because only kas sends such requests.
    Handler,
}

/// The parts of agentk from which features are built.
pub struct FeatureContext<'a> {
    /// The connection to the cluster.
    pub kubernetes: KubernetesService,
    /// The restrictions of what a feature sends to the cluster.
    pub restrictions: Restrictions,
    /// The id of this process.
    pub instance: InstanceId,
    /// The events that kas follows.
    pub events: EventLog,
    /// The state that `/readiness` shows.
    pub health: &'a AgentHealth,
    /// The metrics of agentk.
    pub registry: &'a mut Registry,
    /// The files that are read again.
    pub followers: &'a mut FileFollowers,
    /// Cancelled when agentk stops.
    pub stopping: CancellationToken,
    /// The namespace of agentk.
    pub namespace: String,
    /// The name of this process in Leases.
    pub identity: String,
    /// The agent, once a kas has said which one this is.
    pub agent: watch::Sender<Option<AgentId>>,
    /// The Lease in the definition of the feature that is built now.
    pub lease: Option<LeaseDefinition>,
    /// The candidacies of this pod.
    pub leaders: Vec<LeaderTask>,
}

/// The reason why a section has no effect, which is logged once.
#[derive(Debug, Default)]
pub struct SectionError(Mutex<Option<String>>);

/// Adds the request types of features that have this guard.
pub fn add_handlers(services: Services, features: &[Feature], guard: Guard) -> Services {
    let handlers = features.iter().flat_map(|feature| &feature.handlers);
    let handlers = handlers.filter(|handler| handler.guard == guard);
    handlers.fold(services, |services, FeatureHandler { name, service, .. }| {
        services.with_boxed(name, service.clone())
    })
}

impl FeatureOptions<'_> {
    /// Returns the flags of a feature.
    pub fn flags<T: FromArgMatches>(&self) -> T {
        T::from_arg_matches(self.flags).expect("clap has parsed the flags of all features")
    }
}

impl Feature {
    /// Adds a request type.
    #[must_use]
    pub fn with_handler(mut self, name: &'static str, guard: Guard, handler: impl RequestHandler) -> Self {
        self.handlers.push(FeatureHandler { name, guard, service: box_handler(handler) });
        self
    }

    /// Adds what the configuration of the agent sets.
    #[must_use]
    pub fn with_section(
        mut self,
        section: impl Fn(&SectionUpdate<'_>) -> Vec<String> + Send + Sync + 'static,
    ) -> Self {
        self.section = Some(Box::new(section));
        self
    }

    /// Adds the work of a feature that listens nowhere.
    #[must_use]
    pub fn with_work(self, work: impl Future<Output = ()> + Send + 'static) -> Self {
        self.with_start(|| Ok(Box::pin(work)))
    }

    /// Adds the work of a feature that listens.
    #[must_use]
    pub fn with_start(mut self, start: impl FnOnce() -> anyhow::Result<Work> + Send + 'static) -> Self {
        self.start = Some(Box::new(start));
        self
    }
}

impl FeatureContext<'_> {
    /// Returns the cluster as the scope and the policy allow it to a service.
    pub fn restricted_cluster(&self, service: &'static str) -> KubeCluster {
        self.cluster(service, &self.restrictions)
    }

    /// Makes this pod a candidate for the Lease of the feature. `own` is the cluster as agentk uses it itself.
    ///
    /// # Panics
    ///
    /// The definition of the feature has no Lease, so that the policy would refuse it.
    pub fn lead(&mut self, own: KubeCluster) -> Arc<Leader> {
        let lease = self.lease.expect("a feature that leads defines its Lease");
        let process = CandidateProcess {
            own,
            namespace: self.namespace.clone(),
            identity: self.identity.clone(),
            agent: self.agent.clone(),
        };
        let (leader, task) = Leader::new(lease, process);
        self.leaders.push(task);
        leader
    }

    /// Returns the cluster as agentk uses it itself, for Leases and records.
    pub fn own_cluster(&self, service: &'static str) -> KubeCluster {
        self.cluster(service, &Restrictions::default())
    }

    fn cluster(&self, service: &'static str, restrictions: &Restrictions) -> KubeCluster {
        let service = kube_service(service, self.kubernetes.clone(), restrictions);
        KubeCluster::new(move || kube::Client::new(service, "default"))
    }
}

impl SectionError {
    /// Logs a new reason with its consequence.
    pub fn set(&self, error: Option<&String>, consequence: &str) {
        let mut known = self.0.lock();
        if known.as_ref() == error {
            return;
        }
        if let Some(error) = error {
            tracing::warn!(error, "{consequence}");
        }
        *known = error.cloned();
    }
}
