//! The environments that agents name in their configurations (section `environments`), as a source of environments at all replicas.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, SystemTime},
};

use access::{AgentIdentity, SourceUnavailable};
use environments_wire::{
    Environment, EnvironmentAgent, EnvironmentError, EnvironmentQuery, EnvironmentReader,
    EnvironmentSelection, EnvironmentSource, Tier,
};
use futures_util::future::BoxFuture;
use kas_core::{
    attachments::{Attachment, OpeningTunnel, TunnelFeature},
    configuration::{ConfigurationState, wait_for_configuration},
};
use parking_lot::Mutex;
use proto::{AgentId, agent_configuration::environments::NamedEnvironment};
use serde::{Deserialize, Serialize};
use settings::rfc3339;
use sha2::{Digest as _, Sha256};
use store::{StoreError, redis::RedisStore};
use tokio::{sync::watch, time::sleep};
use tunnel::Tunnel;

/// The age at which a record is forgotten: its agent has been away for so long.
const MAX_AGE: Duration = Duration::from_secs(7 * 86_400);
/// The time after which a record is written again, so that it stays young.
const REFRESH: Duration = Duration::from_secs(86_400);
/// The pause after a write that failed.
const PAUSE: Duration = Duration::from_secs(30);
/// The longest record, in bytes.
const MAX_RECORD: usize = 16 << 10;

/// The environments of all agents. Clones are cheap, and share their state.
#[derive(Clone, Debug)]
pub struct AgentEnvironments(Arc<Store>);

#[derive(Debug)]
enum Store {
    Memory(Mutex<HashMap<AgentId, Record>>),
    Redis(RedisStore),
}

/// The environments of one agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    /// The time at which the configuration named them.
    #[serde(with = "rfc3339")]
    time: SystemTime,
    /// The name of the agent, or its id if its name is not unique.
    agent: String,
    environments: Vec<NamedEnvironment>,
}

/// Writes the environments of an agent while it has a tunnel.
#[derive(Debug)]
struct EnvironmentsFeed {
    all: AgentEnvironments,
    agent: AgentIdentity,
    configuration: watch::Receiver<ConfigurationState>,
}

impl AgentEnvironments {
    /// Keeps the environments in Redis, or in memory without it.
    pub fn new(redis: Option<RedisStore>) -> Self {
        Self(Arc::new(redis.map_or_else(|| Store::Memory(Mutex::default()), Store::Redis)))
    }

    async fn write(&self, agent: AgentId, record: Option<Record>) -> Result<(), StoreError> {
        match &*self.0 {
            Store::Memory(known) => {
                let mut known = known.lock();
                match record {
                    Some(record) => drop(known.insert(agent, record)),
                    None => drop(known.remove(&agent)),
                }
                Ok(())
            }
            Store::Redis(redis) => {
                let text = record.map(|record| serde_json::to_string(&record).expect("serializable"));
                let text = text.filter(|text| text.len() <= MAX_RECORD);
                redis.write_environments(agent, text.as_deref()).await
            }
        }
    }

    async fn records(&self) -> Result<Vec<Record>, StoreError> {
        Ok(match &*self.0 {
            Store::Memory(known) => known.lock().values().cloned().collect(),
            Store::Redis(redis) => {
                let records = redis.environments().await?;
                records.iter().filter_map(|record| serde_json::from_slice(record).ok()).collect()
            }
        })
    }
}

impl TunnelFeature for AgentEnvironments {
    fn is_needed(&self, configuration: &ConfigurationState) -> bool {
        !named(configuration).is_empty()
    }

    fn attach(&self, opening: &OpeningTunnel<'_>) -> Option<Box<dyn Attachment>> {
        Some(Box::new(EnvironmentsFeed {
            all: self.clone(),
            agent: opening.agent.clone(),
            configuration: opening.configuration.clone(),
        }))
    }
}

impl Attachment for EnvironmentsFeed {
    fn run<'a>(&'a mut self, _: &'a Tunnel) -> BoxFuture<'a, ()> {
        Box::pin(self.keep())
    }
}

impl EnvironmentSource for AgentEnvironments {
    fn list<'a>(
        &'a self,
        query: &'a EnvironmentQuery,
        _: EnvironmentReader<'a>,
    ) -> BoxFuture<'a, Result<EnvironmentSelection, EnvironmentError>> {
        Box::pin(async move {
            let records = self.records().await.map_err(|error| SourceUnavailable {
                message: format!("the environments that agents name are not known: {error}"),
                retry_after: Duration::from_secs(1),
            })?;
            let mut environments = merge(records, SystemTime::now());
            environments.retain(|environment| query.selects(environment));
            Ok(environments.into())
        })
    }
}

impl EnvironmentsFeed {
    /// Writes each version of the environments. The future never completes.
    async fn keep(&mut self) {
        loop {
            let named = named(&self.configuration.borrow_and_update());
            self.write(&named).await;
            tokio::select! {
                () = wait_for_configuration(&mut self.configuration, |state| self::named(state) != named) => {}
                () = sleep(REFRESH) => {}
            }
        }
    }

    /// Writes the environments, as often as necessary.
    async fn write(&self, named: &[NamedEnvironment]) {
        let AgentIdentity { id, name, project, .. } = &self.agent;
        // Names are unique in the identity file, and only within a project of GitLab.
        let agent = if project.is_some() { id.to_string() } else { name.to_string() };
        let record = Record { time: SystemTime::now(), agent, environments: named.to_vec() };
        let record = (!named.is_empty()).then_some(record);
        while let Err(error) = self.all.write(*id, record.clone()).await {
            tracing::debug!(agent.name = %name, %error, "the environments of an agent are not kept");
            sleep(PAUSE).await;
        }
    }
}

/// Returns the environments that a configuration names, each with its project. Those of other groups are left out.
fn named(state: &ConfigurationState) -> Vec<NamedEnvironment> {
    let section = state.configuration().and_then(|configuration| configuration.get("environments"));
    let named: Vec<NamedEnvironment> =
        section.and_then(|section| serde_json::from_value(section.clone()).ok()).unwrap_or_default();
    let with_project = |mut environment: NamedEnvironment| {
        environment.project = Some(environment.project_for(state.project())?);
        Some(environment)
    };
    named.into_iter().filter_map(with_project).collect()
}

/// Returns the environments of all agents, in order of project and slug. Agents that name the same one are its places.
fn merge(mut records: Vec<Record>, now: SystemTime) -> Vec<Environment> {
    // The clock of another replica may be ahead.
    let distance = |time| now.duration_since(time).unwrap_or_else(|error| error.duration());
    records.retain(|record| distance(record.time) < MAX_AGE);
    records.sort_by(|one, other| one.agent.cmp(&other.agent));
    let mut all = BTreeMap::<(String, String), Environment>::new();
    for Record { agent, environments, .. } in records {
        for NamedEnvironment { slug, project, tier, group, namespace, labels } in environments {
            let Some(project) = project else { continue };
            let tier = tier.as_deref().map(Tier::of).unwrap_or_default();
            let key = (project.clone(), slug.clone());
            let id = id(&project, &slug);
            let environment = all.entry(key).or_insert_with(|| Environment {
                id,
                project,
                name: slug.clone(),
                slug,
                tier,
                group,
                agents: Vec::new(),
            });
            environment.agents.push(EnvironmentAgent { agent: agent.clone(), namespace, labels });
        }
    }
    all.into_values().collect()
}

/// Returns the number of an environment, which is the same at all replicas and times. JavaScript reads it exactly.
pub(crate) fn id(project: &str, slug: &str) -> u64 {
    let digest = Sha256::new().chain_update(project).chain_update([0]).chain_update(slug).finalize();
    let bytes = digest.first_chunk().copied().unwrap_or_default();
    u64::from_be_bytes(bytes) >> 12
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(project: &str, slug: &str, namespace: &str) -> NamedEnvironment {
        NamedEnvironment {
            project: Some(project.to_owned()),
            slug: slug.to_owned(),
            namespace: namespace.to_owned(),
            ..NamedEnvironment::default()
        }
    }

    #[test]
    fn agents_that_name_the_same_environment_are_its_places() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(100 * 86_400);
        let record = |agent: &str, days: u64, environments: &[NamedEnvironment]| Record {
            time: now - Duration::from_secs(days * 86_400),
            agent: agent.to_owned(),
            environments: environments.to_vec(),
        };
        let records = vec![
            record("us", 6, &[environment("shop/web", "live", "web")]),
            record(
                "eu",
                0,
                &[environment("shop/web", "live", "web-eu"), environment("shop/web", "dev", "d")],
            ),
            record("gone", 8, &[environment("shop/web", "old", "x")]),
            Record {
                time: now + Duration::from_secs(3600),
                ..record("ahead", 0, &[environment("shop/web", "live", "web-ahead")])
            },
            Record {
                time: now + Duration::from_secs(8 * 86_400),
                ..record("forged", 0, &[environment("shop/web", "live", "web-forged")])
            },
        ];
        let found = merge(records, now);
        let text: Vec<String> = found
            .iter()
            .map(|environment| {
                let places = environment.agents.iter().map(|it| format!("{}/{}", it.agent, it.namespace));
                format!("{} {}", environment.slug, places.collect::<Vec<_>>().join(" "))
            })
            .collect();
        assert_eq!(text, ["dev eu/d", "live ahead/web-ahead eu/web-eu us/web"]);
        assert!(found.iter().all(|environment| environment.id < 1 << 53));
        assert_ne!(found[0].id, found[1].id);
    }
}
