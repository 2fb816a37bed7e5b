//! The deployments whose jobs have sent the requests of events.

use std::collections::HashMap;

use environments_wire::{Deployment, DeploymentRecords};
use proto::{
    AgentId,
    audit::{AuditDeployment, JoinedEvent},
};

/// The beginning of the names of callers that are jobs with a token of GitLab.
const JOB_CALLER: &str = "gitlab:ci_job:";

/// Adds the deployments of jobs to their events of an agent, as kas knows them. Without the records, events have none.
pub(super) async fn add_deployments(
    records: &dyn DeploymentRecords,
    agent: AgentId,
    events: &mut [JoinedEvent],
) {
    if !events.iter().any(|event| job(event).is_some()) {
        return;
    }
    // The result of a job is no question for readers of what it did, and GitLab may take seconds to answer it.
    match records.known().await {
        Ok(records) => join_deployments(&records, agent, events),
        Err(error) => tracing::debug!(%error, "the audit log has no deployments of jobs"),
    }
}

fn join_deployments(records: &[Deployment], agent: AgentId, events: &mut [JoinedEvent]) {
    let of_agent = records.iter().filter(|record| record.agent == agent);
    let by_job: HashMap<u64, &Deployment> = of_agent.map(|record| (record.job, record)).collect();
    for event in events {
        let found = job(event).and_then(|job| by_job.get(&job));
        event.deployment = found.map(|record| describe(record));
    }
}

/// Returns the id of the job whose token of GitLab a request has. A job that logs in with OIDC has an id of its issuer, and no record.
fn job(event: &JoinedEvent) -> Option<u64> {
    event.request.as_ref()?.caller.strip_prefix(JOB_CALLER)?.parse().ok()
}

fn describe(record: &Deployment) -> AuditDeployment {
    let facts = &record.facts;
    AuditDeployment {
        project: record.project.clone(),
        environment: record.environment.clone(),
        status: facts.status.as_str().to_owned(),
        commit: record.commit.clone(),
        author: facts.author.clone(),
        reference: facts.reference.clone(),
        merge_request: facts.merge_request,
        merge_request_url: facts.merge_request_url.clone(),
        commit_url: facts.commit_url.clone(),
        job_url: facts.job_url.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use environments_wire::{DeploymentFacts, DeploymentStatus, Tier};
    use proto::audit::{ClusterEvent, KasRequest, Through};

    use super::*;

    fn record(agent: u64, job: u64) -> Deployment {
        Deployment {
            time: SystemTime::UNIX_EPOCH,
            agent: AgentId(agent),
            namespace: None,
            project_id: 7,
            project: Some("shop/web".to_owned()),
            environment: format!("live-{job}"),
            tier: Tier::Production,
            job,
            commit: None,
            username: None,
            facts: DeploymentFacts { status: DeploymentStatus::Success, ..DeploymentFacts::default() },
        }
    }

    #[test]
    fn deployment_is_that_of_the_job_with_the_same_agent() {
        let event = |caller: Option<&str>| JoinedEvent {
            agent: "prod".to_owned(),
            through: Through::Kas,
            request: caller.map(|caller| KasRequest { caller: caller.to_owned(), ..KasRequest::default() }),
            deployment: None,
            sync: None,
            event: ClusterEvent::default(),
        };
        let callers = [
            (Some("gitlab:ci_job:3"), Some("live-3")),
            (Some("gitlab:ci_job:4"), None),
            (Some("gitlab:ci_job:5"), None),
            (Some("gitlab:user:3"), None),
            (Some("3"), None),
            (None, None),
        ];
        let mut events = callers.map(|(caller, _)| event(caller));
        join_deployments(&[record(1, 3), record(2, 4)], AgentId(1), &mut events);
        for ((caller, expected), event) in callers.into_iter().zip(&events) {
            let found = event.deployment.as_ref().map(|found| (&*found.environment, &*found.status));
            assert_eq!(found, expected.map(|environment| (environment, "success")), "{caller:?}");
        }
    }
}
