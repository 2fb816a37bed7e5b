//! A job or a user with its rights for each agent.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use access::{AccessAs, Caller, CallerNames, Credential, Grant, ManagedEnvironment, RequestError};
use environments_wire::Deployment;
use parking_lot::Mutex;
use proto::{AgentId, Reason, ServiceName};
use tokio::time::Instant;

use super::{
    impersonation,
    job::{self, JobInfo},
    user::{AccessType, UserInfo},
};
use crate::{
    UsageKind, UsageSubject,
    in_flight::{InFlightCounters, Subject},
};

/// The answer of GitLab about a credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallerInfo {
    Job(JobInfo),
    User(UserInfo, AccessType),
}

/// A job or a user. Its grants are built when it first uses an agent.
#[derive(Debug)]
pub(super) struct GitLabCaller {
    /// The credential, with which GitLab is asked again while streams are open.
    pub(super) credential: Credential,
    info: CallerInfo,
    in_flight: Arc<AtomicU32>,
    grants: Mutex<HashMap<AgentId, Arc<Grant>>>,
    /// The agents whose deployment by this job is recorded.
    deployed_with: Mutex<HashSet<AgentId>>,
    /// The time of the last answer of GitLab that was the same.
    confirmed: Mutex<Instant>,
}

impl CallerInfo {
    fn subject(&self) -> Subject {
        match self {
            Self::Job(job) => Subject::Job(job.job.id),
            Self::User(user, _) => Subject::User(user.user.id),
        }
    }

    /// Returns the number of its elements, as a measure of its memory.
    fn weight(&self) -> usize {
        match self {
            Self::Job(job) => job.weight(),
            Self::User(user, _) => user.weight(),
        }
    }

    /// Returns the name of the caller.
    fn name(&self) -> String {
        match self {
            Self::Job(job) => format!("gitlab:ci_job:{}", job.job.id),
            Self::User(user, _) => {
                // The name is in messages and logs, and GitLab is not trusted to send a short one.
                let name = user.user.username.chars().filter(|c| !c.is_control()).take(255);
                format!("gitlab:user:{}", name.collect::<String>())
            }
        }
    }

    /// Returns the rights for an agent.
    fn caller(&self, agent: AgentId) -> Result<Caller, RequestError> {
        let access_as = match self {
            Self::Job(job) => {
                let allowed = job.agent(agent).ok_or_else(|| job::not_allowed(agent))?;
                impersonation::of_job(job, agent, allowed)?
            }
            Self::User(user, access_type) => impersonation::of_user(user, *access_type)?,
        };
        let services = services(&access_as).iter().map(|name| name.parse().expect("it is a service name"));
        let caller = Caller::of_agent(self.name(), agent, services.collect(), access_as);
        Ok(match self {
            Self::Job(job) => caller.with_job(job.ci_job()),
            Self::User(..) => caller,
        })
    }
}

/// Returns the services of a job or a user with this identity in the cluster.
///
/// RBAC limits an identity, and does not apply to PromQL: through agentk it would read the series of all namespaces.
fn services(access_as: &AccessAs) -> &'static [&'static str] {
    match access_as {
        AccessAs::Agent => &[ServiceName::KUBERNETES, ServiceName::PROMETHEUS],
        AccessAs::Impersonate { .. } => &[ServiceName::KUBERNETES],
    }
}

impl GitLabCaller {
    /// Creates a caller from a new answer of GitLab. Streams of the previous answer continue for agents for which the rights are
    /// the same, and end for others.
    pub(super) fn new(
        credential: &Credential,
        info: CallerInfo,
        counters: &InFlightCounters,
        previous: Option<Arc<Self>>,
    ) -> Arc<Self> {
        let Some(previous) = previous else {
            let in_flight = counters.of(info.subject());
            return Arc::new(Self {
                credential: credential.clone(),
                info,
                in_flight,
                grants: Mutex::default(),
                deployed_with: Mutex::default(),
                confirmed: Mutex::new(Instant::now()),
            });
        };
        if previous.info == info {
            *previous.confirmed.lock() = Instant::now();
            return previous;
        }
        let in_flight = counters.of(info.subject());
        let mut grants = previous.grants.lock().clone();
        grants.retain(|agent, grant| {
            let unchanged = info.caller(*agent).is_ok_and(|caller| caller == *grant.caller);
            if !unchanged {
                grant.revoked.cancel();
            }
            unchanged
        });
        Arc::new(Self {
            credential: credential.clone(),
            info,
            in_flight,
            grants: Mutex::new(grants),
            deployed_with: Mutex::new(previous.deployed_with.lock().clone()),
            confirmed: Mutex::new(Instant::now()),
        })
    }

    /// Returns the deployment with an agent, if this is a job with an environment. Each deployment is returned once.
    pub(super) fn take_deployment(&self, agent: AgentId) -> Option<Deployment> {
        let CallerInfo::Job(job) = &self.info else { return None };
        if self.deployed_with.lock().contains(&agent) {
            return None;
        }
        let deployment = job.deployment(agent)?;
        self.deployed_with.lock().insert(agent).then_some(deployment)
    }

    /// Makes [`Self::take_deployment`] return the deployment again, because it could not be recorded.
    pub(super) fn put_back_deployment(&self, agent: AgentId) {
        self.deployed_with.lock().remove(&agent);
    }

    /// Returns the environment whose objects have to exist before the first request of the job to the cluster of an agent.
    ///
    /// # Errors
    ///
    /// The reason is `environment-refused` if the slug of the environment is invalid.
    pub(super) fn managed_environment(
        &self,
        agent: AgentId,
        service: &ServiceName,
    ) -> Result<Option<Arc<ManagedEnvironment>>, RequestError> {
        let CallerInfo::Job(job) = &self.info else { return Ok(None) };
        match service.as_str() {
            ServiceName::KUBERNETES => Ok(job.managed_environment(agent)?.map(Arc::new)),
            _ => Ok(None),
        }
    }

    /// Returns the rights of a job for the objects of its own environment, which `path` has to name. agentk works with its own rights then.
    /// They end with those for the cluster.
    ///
    /// # Errors
    ///
    /// The reason is `forbidden` if the path names another environment, or the caller is a user.
    pub(super) fn environment_grant(
        &self,
        agent: AgentId,
        path: &str,
        grant: &Grant,
    ) -> Result<Arc<Grant>, RequestError> {
        let own = match &self.info {
            CallerInfo::Job(job) => job.managed_environment(agent)?,
            CallerInfo::User(..) => None,
        };
        if own.is_none_or(|own| own.key.path() != path) {
            let what = "the service provision is for the environment of the job alone, if the configuration of the agent has \
                        resource_management for its project";
            return Err(RequestError::new(Reason::Forbidden, what));
        }
        let service = ServiceName::PROVISION.parse().expect("it is a service name");
        let caller = Caller::of_agent(self.info.name(), agent, vec![service], AccessAs::Agent);
        Ok(Arc::new(Grant { caller: Arc::new(caller), ..grant.clone() }))
    }

    /// Returns the rights for an agent.
    ///
    /// # Errors
    ///
    /// The reason is `forbidden` if the caller may not use the agent, or `internal` if its configuration is invalid.
    pub(super) fn grant(&self, agent: AgentId) -> Result<Arc<Grant>, RequestError> {
        let mut grants = self.grants.lock();
        if let Some(grant) = grants.get(&agent) {
            return Ok(Arc::clone(grant));
        }
        let grant = Arc::new(Grant::new(self.info.caller(agent)?, Arc::clone(&self.in_flight)));
        grants.insert(agent, Arc::clone(&grant));
        Ok(grant)
    }

    /// Returns the names of the caller.
    pub(super) fn names(&self) -> CallerNames {
        CallerNames { name: self.info.name(), user: None }
    }

    /// Returns how GitLab counts a request of the caller.
    pub(super) fn usage(&self, agent: AgentId) -> (UsageKind, UsageSubject) {
        match &self.info {
            CallerInfo::Job(job) => {
                (UsageKind::Ci, UsageSubject { user: job.user.id, agent, project: job.project.id })
            }
            CallerInfo::User(user, access_type) => {
                let kind = match access_type {
                    AccessType::SessionCookie => UsageKind::User,
                    AccessType::PersonalAccessToken => UsageKind::Pat,
                };
                let project = user.agent.config_project.id;
                (kind, UsageSubject { user: user.user.id, agent, project })
            }
        }
    }

    /// Ends the streams of the caller. Requests after a later answer of GitLab have new grants.
    ///
    /// Returns whether it had grants.
    pub(super) fn revoke(&self) -> bool {
        let grants = std::mem::take(&mut *self.grants.lock());
        grants.values().for_each(|grant| grant.revoked.cancel());
        !grants.is_empty()
    }

    /// Returns the time since GitLab has confirmed the caller.
    pub(super) fn unconfirmed_for(&self) -> Duration {
        self.confirmed.lock().elapsed()
    }

    /// Returns whether the caller has requests in flight.
    pub(super) fn is_in_use(&self) -> bool {
        self.in_flight.load(Relaxed) > 0
    }

    /// Returns the number of its elements, as a measure of its memory.
    pub(super) fn weight(&self) -> usize {
        self.info.weight()
    }
}

#[cfg(test)]
mod tests {
    use access::{TokenKind, token::TokenHash};
    use serde_json::json;

    use super::*;

    fn credential() -> Credential {
        let token = "token".to_owned().into();
        Credential {
            hash: TokenHash::of(&token),
            token,
            csrf_token: None,
            kind: TokenKind::CiJob(AgentId(7)),
            name: None,
            address: [192, 0, 2, 1].into(),
        }
    }

    fn job(id: u64, agents: &[u64], access_as: &str) -> CallerInfo {
        let agents: Vec<_> = agents
            .iter()
            .map(|id| json!({"id": id, "config_project": {"id": 1}, "configuration": {"access_as": {access_as: {}}}}))
            .collect();
        let info = json!({"allowed_agents": agents, "job": {"id": id}, "pipeline": {"id": 6},
            "project": {"id": 30, "groups": []}, "user": {"id": 1, "username": "root"}});
        CallerInfo::Job(serde_json::from_value(info).unwrap())
    }

    #[test]
    fn job_may_use_kubernetes_and_as_agentk_prometheus() {
        let counters = InFlightCounters::default();
        let caller = GitLabCaller::new(&credential(), job(3, &[7, 8], "agent"), &counters, None);
        let grant = caller.grant(AgentId(7)).unwrap();
        assert_eq!(grant.caller.name(), "gitlab:ci_job:3");
        let services = |name: &str| grant.caller.may_use_service(&name.parse().unwrap());
        assert_eq!(["kubernetes", "prometheus", "gitops", "audit"].map(services), [true, true, false, false]);
        assert_eq!(grant.caller.job.as_ref().unwrap().id.as_deref(), Some("3"));
        let as_itself = GitLabCaller::new(&credential(), job(4, &[7], "ci_job"), &counters, None);
        let as_itself = as_itself.grant(AgentId(7)).unwrap();
        let services = |name: &str| as_itself.caller.may_use_service(&name.parse().unwrap());
        assert_eq!(["kubernetes", "prometheus", "prometheus.a"].map(services), [true, false, false]);
        assert!(!grant.caller.may_use(AgentId(8)));
        assert_eq!(caller.grant(AgentId(9)).unwrap_err().reason.as_str(), "forbidden");
        assert!(Arc::ptr_eq(&grant, &caller.grant(AgentId(7)).unwrap()));
    }

    #[test]
    fn streams_continue_with_unchanged_rights() {
        let counters = InFlightCounters::default();
        let first = GitLabCaller::new(&credential(), job(3, &[7, 8], "ci_job"), &counters, None);
        let grants = [7, 8].map(|agent| first.grant(AgentId(agent)).unwrap());
        let same =
            GitLabCaller::new(&credential(), job(3, &[7, 8], "ci_job"), &counters, Some(Arc::clone(&first)));
        assert!(Arc::ptr_eq(&same, &first));

        let fewer = GitLabCaller::new(&credential(), job(3, &[7], "ci_job"), &counters, Some(first));
        assert_eq!(grants.each_ref().map(|grant| grant.revoked.is_cancelled()), [false, true]);
        assert!(Arc::ptr_eq(&fewer.grant(AgentId(7)).unwrap(), &grants[0]));
        let other = GitLabCaller::new(&credential(), job(3, &[7], "agent"), &counters, Some(fewer));
        assert!(grants[0].revoked.is_cancelled(), "another identity is other rights");
        let last = other.grant(AgentId(7)).unwrap();
        other.revoke();
        assert!(last.revoked.is_cancelled());
    }
}
