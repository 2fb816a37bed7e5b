//! The use of clusters, which is posted to GitLab from time to time for its statistics.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use proto::{AgentId, Hello, InstanceId};
use serde::Serialize;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::{Credential, Endpoint, GitLabClient, GitLabError};

/// The most distinct users, agents, projects and events that wait for a post. Further ones are not counted.
const MAX_UNIQUE: usize = 10_000;

/// Counts the use of clusters. Clones are cheap, and share the counts.
#[derive(Clone, Debug, Default)]
pub struct Usage(Arc<Mutex<Pending>>);

/// The credential of a request, as GitLab counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageKind {
    /// The token of a CI job.
    Ci,
    /// A browser session.
    User,
    /// A personal access token.
    Pat,
}

/// The user and the agent of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsageSubject {
    /// The id of the user in GitLab.
    pub user: u64,
    /// The agent.
    pub agent: AgentId,
    /// The id of the project: of the job, or the configuration project of the agent.
    pub project: u64,
}

/// Posts the counts to GitLab. Counts that could not be posted are posted the next time.
#[derive(Debug)]
pub struct UsageReporter {
    /// Sends the requests.
    pub client: GitLabClient,
    /// The counts.
    pub usage: Usage,
    /// The time between two posts.
    pub period: Duration,
}

/// The counts that are not posted yet.
#[derive(Debug, Default)]
struct Pending {
    metrics: UsageMetrics,
    events: Events,
}

/// The body of `usage_metrics`.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct UsageMetrics {
    counters: BTreeMap<&'static str, u64>,
    unique_counters: BTreeMap<&'static str, BTreeSet<u64>>,
}

/// The content of `agent_events`.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Events {
    #[serde(flatten)]
    users: BTreeMap<&'static str, BTreeSet<UserEvent>>,
    #[serde(serialize_with = "values", skip_serializing_if = "BTreeMap::is_empty")]
    register_agent_at_kas: BTreeMap<(AgentId, InstanceId), RegisterEvent>,
}

/// A user who used a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct UserEvent {
    user_id: u64,
    project_id: u64,
}

/// An agentk process that opened a tunnel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct RegisterEvent {
    project_id: u64,
    agent_id: AgentId,
    agent_version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    kubernetes_version: Option<String>,
}

/// The names of the metrics of a kind.
struct UsageNames {
    /// The counter of requests.
    requests: &'static str,
    /// The unique users, which are also the event.
    users: &'static str,
    /// The unique agents.
    agents: &'static str,
}

impl UsageKind {
    fn names(self) -> UsageNames {
        match self {
            Self::Ci => UsageNames {
                requests: "k8s_api_proxy_requests_via_ci_access",
                users: "k8s_api_proxy_requests_unique_users_via_ci_access",
                agents: "k8s_api_proxy_requests_unique_agents_via_ci_access",
            },
            Self::User => UsageNames {
                requests: "k8s_api_proxy_requests_via_user_access",
                users: "k8s_api_proxy_requests_unique_users_via_user_access",
                agents: "k8s_api_proxy_requests_unique_agents_via_user_access",
            },
            Self::Pat => UsageNames {
                requests: "k8s_api_proxy_requests_via_pat_access",
                users: "k8s_api_proxy_requests_unique_users_via_pat_access",
                agents: "k8s_api_proxy_requests_unique_agents_via_pat_access",
            },
        }
    }
}

impl Usage {
    /// Counts a request to the Kubernetes API of an agent.
    pub fn count_request(&self, kind: UsageKind, subject: UsageSubject) {
        let UsageNames { requests, users, agents } = kind.names();
        let Pending { metrics, events } = &mut *self.0.lock();
        metrics.count("k8s_api_proxy_request", 1);
        metrics.count(requests, 1);
        metrics.count_unique(users, subject.user);
        metrics.count_unique(agents, subject.agent.0);
        let event = UserEvent { user_id: subject.user, project_id: subject.project };
        insert(events.users.entry(users).or_default(), event);
    }

    /// Records that an agentk process of an agent of GitLab has opened a tunnel.
    pub fn register_agent(&self, agent: AgentId, project: u64, hello: &Hello) {
        let agents = &mut self.0.lock().events.register_agent_at_kas;
        if agents.len() < MAX_UNIQUE {
            let event = RegisterEvent {
                project_id: project,
                agent_id: agent,
                agent_version: Hello::own_version(&hello.version),
                kubernetes_version: hello.kubernetes_version.clone(),
            };
            agents.insert((agent, hello.instance), event);
        }
    }

    fn take(&self) -> Pending {
        mem::take(&mut *self.0.lock())
    }
}

impl UsageMetrics {
    fn count(&mut self, counter: &'static str, by: u64) {
        let count = self.counters.entry(counter).or_default();
        *count = count.saturating_add(by);
    }

    fn count_unique(&mut self, counter: &'static str, id: u64) {
        insert(self.unique_counters.entry(counter).or_default(), id);
    }

    fn add(&mut self, other: Self) {
        other.counters.into_iter().for_each(|(counter, by)| self.count(counter, by));
        for (counter, ids) in other.unique_counters {
            ids.into_iter().for_each(|id| self.count_unique(counter, id));
        }
    }
}

impl Events {
    fn add(&mut self, other: Self) {
        for (name, events) in other.users {
            let known = self.users.entry(name).or_default();
            events.into_iter().for_each(|event| insert(known, event));
        }
        let free = MAX_UNIQUE.saturating_sub(self.register_agent_at_kas.len());
        self.register_agent_at_kas.extend(other.register_agent_at_kas.into_iter().take(free));
    }
}

fn insert<T: Ord>(set: &mut BTreeSet<T>, value: T) {
    if set.len() < MAX_UNIQUE {
        set.insert(value);
    }
}

fn values<S: serde::Serializer, K, V: Serialize>(
    map: &BTreeMap<K, V>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(map.values())
}

impl UsageReporter {
    /// Posts the counts once in each period. The future never completes.
    pub async fn run(self) {
        let mut ticks = interval_at(Instant::now() + self.period, self.period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.report().await;
        }
    }

    async fn report(&self) {
        let Pending { metrics, events } = self.usage.take();
        if metrics != UsageMetrics::default()
            && let Err(error) = self.post(Endpoint::UsageMetrics, &metrics).await
            && is_temporary(&error)
        {
            self.usage.0.lock().metrics.add(metrics);
        }
        if events != Events::default()
            && let Err(error) = self.post(Endpoint::AgentEvents, &BTreeMap::from([("events", &events)])).await
            && is_temporary(&error)
        {
            self.usage.0.lock().events.add(events);
        }
    }

    async fn post(&self, endpoint: Endpoint, body: &impl Serialize) -> Result<(), GitLabError> {
        let result = self.client.post(endpoint, body, Credential::None).await;
        result.inspect_err(|error| tracing::info!(?endpoint, %error, "usage not posted to GitLab"))
    }
}

/// Returns whether the same counts can be accepted later.
fn is_temporary(error: &GitLabError) -> bool {
    matches!(error, GitLabError::Unavailable { .. })
}
