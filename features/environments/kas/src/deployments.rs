//! Deployments: the jobs with an environment that were allowed to use an agent.

use std::{collections::VecDeque, sync::Arc};

use environments_wire::{Deployment, DeploymentRecorder};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use proto::AgentId;
use store::{
    StoreError,
    redis::{MAX_DEPLOYMENTS, RedisStore},
};

/// The longest record that is read from Redis, in bytes.
const MAX_RECORD: usize = 4096;

/// The most recent deployments: in Redis, or in memory without Redis. Clones are cheap, and share the deployments.
#[derive(Clone, Debug)]
pub struct Deployments(Store);

#[derive(Clone, Debug)]
enum Store {
    Memory(Arc<Mutex<VecDeque<Deployment>>>),
    Redis { store: RedisStore, last: Arc<Mutex<VecDeque<(u64, AgentId)>>> },
}

/// The jobs of which a replica remembers that they are recorded.
const REMEMBERED: usize = 1000;

/// Selects deployments. An empty field selects all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeploymentQuery {
    /// The id of the project.
    pub project_id: Option<u64>,
    /// The slug of the environment.
    pub environment: Option<String>,
    /// The agent.
    pub agent: Option<AgentId>,
}

impl Deployments {
    /// Keeps the deployments in Redis, or in memory without it.
    pub fn new(redis: Option<RedisStore>) -> Self {
        Self(match redis {
            Some(store) => Store::Redis { store, last: Arc::default() },
            None => Store::Memory(Arc::default()),
        })
    }

    /// Returns the deployments that the query selects, the newest first.
    ///
    /// # Errors
    ///
    /// Redis did not answer.
    pub async fn list(&self, query: &DeploymentQuery, limit: usize) -> Result<Vec<Deployment>, StoreError> {
        let all = match &self.0 {
            Store::Memory(deployments) => deployments.lock().iter().cloned().collect(),
            Store::Redis { store, .. } => parse(&store.deployments().await?),
        };
        Ok(all.into_iter().filter(|deployment| query.selects(deployment)).take(limit).collect())
    }
}

impl DeploymentRecorder for Deployments {
    fn record(&self, deployment: Deployment) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let id = (deployment.job, deployment.agent);
            match &self.0 {
                Store::Memory(deployments) => {
                    let mut deployments = deployments.lock();
                    if !deployments.iter().any(|known| (known.job, known.agent) == id) {
                        deployments.push_front(deployment);
                        deployments.truncate(MAX_DEPLOYMENTS);
                    }
                }
                Store::Redis { store, last } => {
                    if last.lock().contains(&id) {
                        return Ok(());
                    }
                    let record = serde_json::to_string(&deployment).expect("serializable");
                    store.push_deployment(&record).await?;
                    let mut last = last.lock();
                    last.push_front(id);
                    last.truncate(REMEMBERED);
                }
            }
            Ok(())
        })
    }
}

/// Parses the records of Redis, which are not trusted. Two replicas may have recorded the same job.
fn parse(records: &[Vec<u8>]) -> Vec<Deployment> {
    let mut deployments: Vec<Deployment> = Vec::new();
    for record in records.iter().filter(|record| record.len() <= MAX_RECORD) {
        if let Ok(deployment) = serde_json::from_slice::<Deployment>(record)
            && !deployments.iter().any(|known| (known.job, known.agent) == (deployment.job, deployment.agent))
        {
            deployments.push(deployment);
        }
    }
    deployments
}

impl DeploymentQuery {
    fn selects(&self, deployment: &Deployment) -> bool {
        self.project_id.is_none_or(|project| project == deployment.project_id)
            && self.environment.as_ref().is_none_or(|environment| *environment == deployment.environment)
            && self.agent.is_none_or(|agent| agent == deployment.agent)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use environments_wire::Tier;

    use super::*;

    fn deployment(job: u64) -> Deployment {
        Deployment {
            time: SystemTime::UNIX_EPOCH + Duration::from_secs(job),
            agent: AgentId(job % 2),
            namespace: None,
            project_id: 7,
            environment: "production".into(),
            tier: Tier::Production,
            job,
            commit: Some("0a1b2c".into()),
            username: Some("alice".into()),
        }
    }

    fn jobs(deployments: &[Deployment]) -> Vec<u64> {
        deployments.iter().map(|deployment| deployment.job).collect()
    }

    #[tokio::test]
    async fn newest_deployments_are_kept_once() {
        let deployments = Deployments::new(None);
        for job in [1, 2, 3, 3, 2] {
            deployments.record(deployment(job)).await.unwrap();
        }
        let list = async |query, limit| jobs(&deployments.list(&query, limit).await.unwrap());
        assert_eq!(list(DeploymentQuery::default(), 10).await, [3, 2, 1]);
        assert_eq!(list(DeploymentQuery::default(), 1).await, [3]);
        let agent = Some(AgentId(1));
        assert_eq!(list(DeploymentQuery { agent, ..DeploymentQuery::default() }, 10).await, [3, 1]);
        let environment = Some("staging".to_owned());
        assert!(list(DeploymentQuery { environment, ..DeploymentQuery::default() }, 10).await.is_empty());

        for job in 4..2000 {
            deployments.record(deployment(job)).await.unwrap();
        }
        assert_eq!(list(DeploymentQuery::default(), usize::MAX).await.len(), MAX_DEPLOYMENTS);
    }

    /// Two versions of kas share the records.
    #[test]
    fn recorded_deployment_is_read_and_written() {
        let recorded = include_bytes!("../../../../store/tests/recorded/0.1/deployment.json");
        let deployments = parse(&[recorded.to_vec()]);
        assert_eq!((jobs(&deployments), deployments[0].tier), (vec![4711], Tier::Development));
        let [mut then, now] =
            [serde_json::from_slice(recorded), serde_json::to_value(&deployments[0])].map(Result::unwrap);
        for (key, value) in then.as_object().unwrap() {
            assert_eq!(now.get(key), Some(value), "{key}");
        }
        then["later"] = 1.into();
        assert_eq!(parse(&[then.to_string().into_bytes()]), deployments);
    }

    #[test]
    fn unusable_records_are_ignored() {
        let good = serde_json::to_vec(&deployment(5)).unwrap();
        let long = [&b"{\"job\":"[..], &vec![b'1'; MAX_RECORD]].concat();
        let records = [b"garbage".to_vec(), good.clone(), b"{}".to_vec(), long, vec![0xff], good];
        assert_eq!(jobs(&parse(&records)), [5]);
    }
}
