//! A job or a user with its rights for each agent.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use access::{
    AccessAs, Caller, CallerNames, Credential, Grant, ManagedEnvironment, RequestError, ServiceRights,
    Target, missing_right,
};
use environments_wire::Deployment;
use parking_lot::Mutex;
use proto::{AgentId, Reason, ServiceName, ServiceRight, Verb};
use tokio::time::Instant;

use super::{
    credential_kind::CredentialKind,
    impersonation,
    job::{self, JobInfo},
    rights,
    user::{AccessType, UserInfo},
};
use crate::{
    UsageKind, UsageSubject,
    agent_facts::UserServices,
    in_flight::{InFlightCounters, Subject},
    login,
};

/// `Retry-After` while the configuration of an agent is unknown.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// The answer of GitLab about a credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallerInfo {
    Job(JobInfo),
    User {
        user: UserInfo,
        access_type: AccessType,
        /// The list of the configuration of the agent.
        services: UserServices,
    },
}

/// A job or a user. Its grants are built when it first uses an agent.
#[derive(Debug)]
pub(super) struct GitLabCaller {
    /// The credential, with which GitLab is asked again while streams are open.
    pub(super) credential: Credential,
    /// The kind of the credential, and the agent for which GitLab was asked.
    pub(super) asked_as: (CredentialKind, AgentId),
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
            Self::User { user, .. } => Subject::User(user.user.id),
        }
    }

    /// Returns the number of its elements, as a measure of its memory.
    fn weight(&self) -> usize {
        match self {
            Self::Job(job) => job.weight(),
            Self::User { user, services, .. } => {
                let services = match services {
                    UserServices::Known(services) => services.iter(),
                    UserServices::Unreadable | UserServices::Unknown => [].iter(),
                };
                user.weight() + rights::weight(services.map(|entry| &entry.right))
            }
        }
    }

    /// Returns the name of the caller.
    fn name(&self) -> String {
        match self {
            Self::Job(job) => format!("gitlab:ci_job:{}", job.job.id),
            Self::User { user, .. } => login::caller_name(&user.user.username),
        }
    }

    /// Returns the rights for an agent.
    pub(super) fn caller(&self, agent: AgentId) -> Result<Caller, RequestError> {
        match self {
            Self::Job(job) => {
                let allowed = job.agent(agent).ok_or_else(|| job::not_allowed(agent))?;
                let access_as = impersonation::of_job(job, agent, allowed)?;
                let services = rights::of_job(&access_as, allowed.services()?);
                Ok(Caller::of_agent(self.name(), agent, services, access_as).with_job(job.ci_job()))
            }
            Self::User { user, access_type, services } => {
                let access_as = impersonation::of_user(user, *access_type)?;
                let services = rights::of_user(&access_as, user.role(), services);
                Ok(Caller::of_agent(self.name(), agent, services, access_as))
            }
        }
    }

    /// Returns the same answer with the list of a previous one, if the list is not known now.
    fn with_known_services(self, previous: &Self) -> Self {
        match (self, previous) {
            (
                Self::User { user, access_type, services: UserServices::Unreadable | UserServices::Unknown },
                Self::User { services: known, .. },
            ) => Self::User { user, access_type, services: known.clone() },
            (info, _) => info,
        }
    }

    /// Returns whether the configuration of the agent, which may change the rights, is not known.
    fn is_provisional(&self) -> bool {
        matches!(self, Self::User { services: UserServices::Unreadable | UserServices::Unknown, .. })
    }

    /// Returns the setting that has the rights of the caller.
    fn list(&self) -> &'static str {
        match self {
            Self::Job(_) => "services of its entry of ci_access in the configuration of the agent",
            Self::User { .. } => "services of user_access in the configuration of the agent",
        }
    }
}

impl GitLabCaller {
    /// Creates a caller from a new answer of GitLab. Streams of the previous answer continue for agents for which the rights are
    /// the same, and end for others.
    pub(super) fn new(
        credential: &Credential,
        asked_as: (CredentialKind, AgentId),
        info: CallerInfo,
        counters: &InFlightCounters,
        previous: Option<Arc<Self>>,
    ) -> Arc<Self> {
        let Some(previous) = previous else {
            let in_flight = counters.of(info.subject());
            return Arc::new(Self {
                credential: credential.clone(),
                asked_as,
                info,
                in_flight,
                grants: Mutex::default(),
                deployed_with: Mutex::default(),
                confirmed: Mutex::new(Instant::now()),
            });
        };
        // An agent that has just lost its tunnels has no other configuration.
        let info = info.with_known_services(&previous.info);
        if previous.info == info {
            *previous.confirmed.lock() = Instant::now();
            return previous;
        }
        let in_flight = counters.of(info.subject());
        let mut grants = previous.grants.lock().clone();
        grants.retain(|agent, grant| match info.caller(*agent) {
            Ok(caller) if caller == *grant.caller => true,
            // The rights have only grown.
            Ok(caller) if previous.is_provisional() && caller.access_as == grant.caller.access_as => {
                *grant = Arc::new(Grant { caller: Arc::new(caller), ..(**grant).clone() });
                true
            }
            Ok(_) | Err(_) => {
                grant.revoked.cancel();
                false
            }
        });
        Arc::new(Self {
            credential: credential.clone(),
            asked_as,
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
            CallerInfo::User { .. } => None,
        };
        if own.is_none_or(|own| own.key.path() != path) {
            let what = "the service provision is for the environment of the job alone, if the configuration of the agent has \
                        resource_management for its project";
            return Err(RequestError::new(Reason::Forbidden, what));
        }
        let service = ServiceName::PROVISION.parse().expect("it is a service name");
        let services = ServiceRights::Only(vec![ServiceRight::all(service)]);
        let caller = Caller::of_agent(self.info.name(), agent, services, AccessAs::Agent);
        Ok(Arc::new(Grant { caller: Arc::new(caller), ..grant.clone() }))
    }

    /// Returns the agents of a job. GitLab's answer about a user is about one agent.
    pub(super) fn agents(&self) -> Option<Vec<AgentId>> {
        match &self.info {
            CallerInfo::Job(job) => Some(job.agents()),
            CallerInfo::User { .. } => None,
        }
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

    /// Returns the id of the project of a job, if its entry leaves to the defaults what the job may do with `gitops`.
    pub(super) fn project_with_default_sync(&self, agent: AgentId) -> Option<u64> {
        let CallerInfo::Job(job) = &self.info else { return None };
        let configured = job.agent(agent)?.services().ok()?;
        rights::syncs_own_project(configured).then_some(job.project.id)
    }

    /// Returns the error of a request that the rights do not allow.
    pub(super) fn may_not(&self, rights: &Caller, target: &Target<'_>) -> RequestError {
        if self.is_provisional() {
            let what = format!(
                "kas does not know what user_access.services of the agent says of the service {}: the agent is not connected, or \
                 its configuration cannot be read (kas agents shows the reason)",
                target.service
            );
            return RequestError::new(Reason::IdentityUnavailable, what).with_retry_after(RETRY_AFTER);
        }
        let mut remedy = format!("{} can allow it", self.info.list());
        if target.service.is_prometheus() && matches!(rights.access_as, AccessAs::Impersonate { .. }) {
            remedy += ". RBAC does not limit PromQL, so that by default only jobs and users with access_as agent may use it; others need \
                       an element with the labels of their series, or use the Service of Prometheus through the Kubernetes API, or an OIDC \
                       token whose entry in the identity file has the service";
        }
        if target.verb() == Verb::Sync && matches!(self.info, CallerInfo::Job(_)) {
            remedy += ". By default, a job may sync what the agent applies from the job's own project, and nothing else";
        }
        missing_right(rights, target, &remedy)
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
            CallerInfo::User { user, access_type, .. } => {
                let kind = match access_type {
                    AccessType::SessionCookie | AccessType::OauthLogin => UsageKind::User,
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

    /// Returns whether the answer is to be completed soon: the configuration of the agent, which may change the rights, is unknown.
    pub(super) fn is_provisional(&self) -> bool {
        self.info.is_provisional()
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

    const JOB: (CredentialKind, AgentId) = (CredentialKind::Job, AgentId(7));

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
        let caller = GitLabCaller::new(&credential(), JOB, job(3, &[7, 8], "agent"), &counters, None);
        let grant = caller.grant(AgentId(7)).unwrap();
        assert_eq!(grant.caller.name(), "gitlab:ci_job:3");
        let services = |name: &str| grant.caller.may_use_service(&name.parse().unwrap());
        assert_eq!(["kubernetes", "prometheus", "events", "audit"].map(services), [true, true, false, false]);
        assert_eq!(grant.caller.job.as_ref().unwrap().id.as_deref(), Some("3"));
        let as_itself = GitLabCaller::new(&credential(), JOB, job(4, &[7], "ci_job"), &counters, None);
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
        let first = GitLabCaller::new(&credential(), JOB, job(3, &[7, 8], "ci_job"), &counters, None);
        let grants = [7, 8].map(|agent| first.grant(AgentId(agent)).unwrap());
        let same = GitLabCaller::new(
            &credential(),
            JOB,
            job(3, &[7, 8], "ci_job"),
            &counters,
            Some(Arc::clone(&first)),
        );
        assert!(Arc::ptr_eq(&same, &first));

        let fewer = GitLabCaller::new(&credential(), JOB, job(3, &[7], "ci_job"), &counters, Some(first));
        assert_eq!(grants.each_ref().map(|grant| grant.revoked.is_cancelled()), [false, true]);
        assert!(Arc::ptr_eq(&fewer.grant(AgentId(7)).unwrap(), &grants[0]));
        let other = GitLabCaller::new(&credential(), JOB, job(3, &[7], "agent"), &counters, Some(fewer));
        assert!(grants[0].revoked.is_cancelled(), "another identity is other rights");
        let last = other.grant(AgentId(7)).unwrap();
        other.revoke();
        assert!(last.revoked.is_cancelled());
    }
}
