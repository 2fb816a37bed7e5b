//! The health of environments, for which kas asks the agents of their places.

use std::{collections::HashMap, time::Duration};

use access::SourceUnavailable;
use environments_wire::{Environment, EnvironmentAgent, EnvironmentSelection, LastDeployments};
use kas_core::{
    agent_answers::AnswerDeadline,
    agent_inquiry::AgentInquiry,
    agent_locations::{AgentLookup, KnownAgent},
    api::InternalApiError,
    proxy::ProxyServer,
};
use proto::{
    ServiceName,
    graph::{Attention, GroupHealth, HEALTH_PATH, HealthReport, HealthState, Warning},
    percent,
};
use serde::{Deserialize, Serialize};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::timeout_at,
};

use crate::discovery::{KnownProjects, discover};

/// The most places of one request.
const MAX_PLACES: usize = 500;
/// The places that are asked at the same time.
const AT_ONCE: usize = 64;
/// The requests that are answered at the same time.
const MAX_REQUESTS: usize = 2;
/// The largest report of an agent, in bytes: that of an honest one has ten objects and ten events of 512 bytes each.
const MAX_REPORT: usize = 64 << 10;
/// The most objects, events and sentences of a report, and the longest text in bytes.
const MAX_ENTRIES: usize = 32;
const MAX_TEXT: usize = 1024;

/// An environment with its health and its last deployments.
#[derive(Debug, Serialize, Deserialize)]
pub struct EnvironmentStatus {
    #[serde(flatten)]
    environment: Environment,
    /// Present if the query asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    health: Option<EnvironmentHealth>,
    /// Present if the query asks for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    deployments: Option<LastDeployments>,
}

/// The health of an environment.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct EnvironmentHealth {
    /// The health of its worst place; unknown without a place.
    health: HealthState,
    /// The places, in the order of the environment.
    places: Vec<PlaceHealth>,
}

/// The health of a namespace of an agent.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct PlaceHealth {
    agent: String,
    namespace: String,
    /// The reason why the agent has no report. Then the health is unknown.
    missing: Option<String>,
    #[serde(flatten)]
    report: HealthReport,
}

/// Asks agents for the health of places.
#[derive(Debug)]
pub(crate) struct HealthInquiry {
    agents: AgentInquiry,
    requests: Semaphore,
}

impl HealthInquiry {
    /// Returns an inquiry that sends requests as the server of callers does.
    pub(crate) fn new(callers: &ProxyServer) -> Self {
        Self { agents: AgentInquiry::new(callers), requests: Semaphore::new(MAX_REQUESTS) }
    }

    /// Returns the environments in the clusters of all connected agents.
    pub(super) async fn discover(
        &self,
        lookup: &AgentLookup,
        projects: KnownProjects,
    ) -> Result<EnvironmentSelection, InternalApiError> {
        let _permit = self.permit()?;
        Ok(discover(&self.agents, lookup, projects).await)
    }

    fn permit(&self) -> Result<SemaphorePermit<'_>, SourceUnavailable> {
        self.requests.try_acquire().map_err(|_| SourceUnavailable {
            message: format!("{MAX_REQUESTS} requests for environments in clusters, or for their health, are being answered"),
            retry_after: Duration::from_secs(1),
        })
    }

    /// Adds the health to environments. A place that has not answered at the deadline has none.
    pub(super) async fn complete(
        &self,
        environments: Vec<Environment>,
        agents: &AgentLookup,
    ) -> Result<Vec<EnvironmentStatus>, InternalApiError> {
        let places: Vec<EnvironmentAgent> =
            environments.iter().flat_map(|environment| environment.agents.clone()).collect();
        if places.len() > MAX_PLACES {
            return Err(InternalApiError::BadRequest(format!(
                "these environments have {} places, and the health of at most {MAX_PLACES} is asked for at once: select with \
                 project, slug, tier, group or agent",
                places.len()
            )));
        }
        let _permit = self.permit()?;
        let deadline = AnswerDeadline::start();
        let names = places.iter().map(|place| &*place.agent);
        let known = timeout_at(deadline.instant(), agents.find_all(names)).await;
        let (known, missing) =
            known.unwrap_or_else(|_| (HashMap::new(), Some("Redis does not respond".to_owned())));
        let unknown = match missing {
            Some(error) => format!("the agents of other replicas are not known: {error}"),
            None => "kas knows no such agent, or it is not connected".to_owned(),
        };
        let questions = places.iter().map(|place| {
            let (agent, unknown) = (known.get(&place.agent), &unknown);
            async move {
                match agent {
                    Some(agent) => self.ask(place, agent).await,
                    None => Err(unknown.clone()),
                }
            }
        });
        let answers = deadline.answers(questions.collect(), AT_ONCE).await;
        let mut reports =
            places.into_iter().zip(answers).map(|(place, asked)| PlaceHealth::new(place, asked));
        let statuses = environments.into_iter().map(|environment| {
            let places: Vec<_> = reports.by_ref().take(environment.agents.len()).collect();
            let worst = places.iter().map(|place| place.report.health.health).max();
            let health = EnvironmentHealth { health: worst.unwrap_or(HealthState::Unknown), places };
            EnvironmentStatus { health: Some(health), ..EnvironmentStatus::from(environment) }
        });
        Ok(statuses.collect())
    }

    async fn ask(&self, place: &EnvironmentAgent, agent: &KnownAgent) -> Result<HealthReport, String> {
        let asked = self.agents.get(agent, ServiceName::GRAPH, &path(place), MAX_REPORT).await?;
        let report: HealthReport = serde_json::from_slice(&asked)
            .map_err(|error| format!("the response of the agent is not a report: {error}"))?;
        Ok(bounded(report))
    }
}

impl PlaceHealth {
    fn new(place: EnvironmentAgent, asked: Result<HealthReport, String>) -> Self {
        let EnvironmentAgent { agent, namespace, .. } = place;
        let (report, missing) = match asked {
            Ok(report) => (report, None),
            Err(error) => {
                let health = GroupHealth { health: HealthState::Unknown, ..GroupHealth::default() };
                (HealthReport { health, ..HealthReport::default() }, Some(error))
            }
        };
        Self { agent, namespace, missing, report }
    }
}

impl EnvironmentStatus {
    /// Adds the last deployments.
    pub(super) fn with_deployments(self, deployments: LastDeployments) -> Self {
        Self { deployments: Some(deployments), ..self }
    }
}

impl From<Environment> for EnvironmentStatus {
    fn from(environment: Environment) -> Self {
        Self { environment, health: None, deployments: None }
    }
}

/// Returns the path with which agentk is asked for a place.
fn path(place: &EnvironmentAgent) -> String {
    let mut path = format!("{HEALTH_PATH}?namespace={}", percent::encode(&place.namespace));
    if !place.labels.is_empty() {
        let labels = place.labels.iter().map(|(key, value)| format!("{key}={value}"));
        path += &format!("&label={}", percent::encode(&labels.collect::<Vec<_>>().join(",")));
    }
    path
}

/// Cuts what is longer than in any report of agentk: the reports of all places are kept until the last one is there.
fn bounded(mut report: HealthReport) -> HealthReport {
    let cut = |text: &mut String| {
        text.truncate(text.floor_char_boundary(MAX_TEXT));
        text.shrink_to_fit();
    };
    let HealthReport { health: GroupHealth { health: _, counts: _, attention }, warnings, partial } =
        &mut report;
    attention.truncate(MAX_ENTRIES);
    attention.shrink_to_fit();
    for Attention { uid, kind, namespace, name, health: _, message, since } in attention {
        [uid, kind, namespace, name, message, since].into_iter().for_each(cut);
    }
    warnings.truncate(MAX_ENTRIES);
    warnings.shrink_to_fit();
    for Warning { kind, namespace, name, reason, message, count: _, time } in warnings {
        [kind, namespace, name, reason, message, time].into_iter().for_each(cut);
    }
    partial.truncate(MAX_ENTRIES);
    partial.shrink_to_fit();
    partial.iter_mut().for_each(cut);
    report
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn long_report_is_cut() {
        let attention = vec![Attention { message: "é".repeat(MAX_TEXT), ..Attention::default() }; 100];
        let health = GroupHealth { attention, ..GroupHealth::default() };
        let report = HealthReport { health, warnings: Vec::new(), partial: vec![String::new(); 20_000] };
        let report = bounded(report);
        assert_eq!((report.health.attention.len(), report.partial.capacity()), (MAX_ENTRIES, MAX_ENTRIES));
        assert!(report.health.attention.iter().all(|object| object.message.len() <= MAX_TEXT));
    }

    #[test]
    fn path_of_a_place_is_encoded() {
        let place = |labels: &[(&str, &str)]| EnvironmentAgent {
            agent: "prod".to_owned(),
            namespace: "a&b".to_owned(),
            labels: labels
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect::<BTreeMap<_, _>>(),
        };
        assert_eq!(path(&place(&[])), "/v1/health?namespace=a%26b");
        let labels = [("app", "web"), ("example.com/tier", "x")];
        let encoded = "/v1/health?namespace=a%26b&label=app%3Dweb%2Cexample.com%2Ftier%3Dx";
        assert_eq!(path(&place(&labels)), encoded);
    }
}
