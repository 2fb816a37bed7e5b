//! Managed resources: the service `environments` makes the objects of an environment before the first request of a job, and `provision` shows
//! them, and deletes them when the environment stops.
//!
//! The template comes with the configuration of the agent. What is sent to the cluster passes the scope and the policy of its owner,
//! which has to list the kinds: without a policy there are none, and kas leaves environments as they are.
#![warn(missing_docs)]

mod definition;
mod metrics;
mod template;

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use agentk_core::{
    policy::MissingScope,
    services::{
        RequestHandler, ServiceError,
        kube_client::Restrictions,
        response::{bad_request, json_response, wrong_method},
    },
};
use environment_objects::{EnvironmentError, EnvironmentManifest, EnvironmentOwner, Environments};
use environment_templates::{DeleteResources, Values, Variable};
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Limited};
use kube_cluster::{AllowedKinds, Kind, KubeCluster};
use parking_lot::Mutex;
use proto::{
    Reason, ServiceName,
    agent_configuration::{ProvisionSettings, TemplateFile},
    gitops::ObjectId,
    impersonation,
    provision::{
        Deletion, EnvironmentJob, EnvironmentKey, EnvironmentObjects, MAX_BODY, ObjectChange, Provisioned,
    },
};
use serde_json::{Map, Value};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit},
    time::timeout,
};
use tunnel::Body;

pub use self::definition::DEFINITION;
pub(crate) use self::metrics::ProvisionMetrics;
use self::template::Template;

/// The environments whose objects are made at the same time. Further requests wait.
const MAX_ENSURES: usize = 8;
/// The environments whose objects are shown or deleted at the same time: each needs a page of a list.
const MAX_LISTS: usize = 2;
/// The time for the body of a request.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest text of a job in an annotation, in bytes.
const MAX_FACT: usize = 255;

/// Makes, shows and deletes the objects of environments. As a handler, it serves callers. Clones share their state.
#[derive(Clone, Debug)]
pub(crate) struct ProvisionService(Arc<Shared>);

/// Serves kas itself.
#[derive(Clone, Debug)]
pub(crate) struct EnvironmentsHandler(pub(crate) ProvisionService);

#[derive(Debug)]
struct Shared {
    cluster: KubeCluster,
    /// Requests of the cluster pass them by themselves.
    restrictions: Restrictions,
    /// What the last configuration says. `None` before the first one.
    settings: Mutex<Option<Arc<Settings>>>,
    ensures: Semaphore,
    lists: Semaphore,
    /// One permit for each environment with a request.
    environments: Mutex<HashMap<EnvironmentKey, Weak<Semaphore>>>,
    metrics: ProvisionMetrics,
}

#[derive(Debug)]
struct Settings {
    received: ProvisionSettings,
    template: Template,
}

impl ProvisionService {
    /// Returns a service for a cluster, whose requests pass the restrictions. The policy lists the kinds of objects.
    pub(crate) fn new(cluster: KubeCluster, restrictions: Restrictions, metrics: ProvisionMetrics) -> Self {
        Self(Arc::new(Shared {
            cluster,
            restrictions,
            settings: Mutex::default(),
            ensures: Semaphore::new(MAX_ENSURES),
            lists: Semaphore::new(MAX_LISTS),
            environments: Mutex::default(),
            metrics,
        }))
    }

    /// Replaces what the configuration says. Returns a sentence if it is about managed resources, and has no effect.
    pub(crate) fn set(&self, received: ProvisionSettings) -> Option<String> {
        let what = self.kinds().err().filter(|_| received.managed);
        let without_effect = what.map(|what| format!("resource_management has no effect: {what}"));
        let mut settings = self.0.settings.lock();
        if settings.as_ref().is_some_and(|settings| settings.received == received) {
            return without_effect;
        }
        let template = Template::new(received.template.as_ref());
        if let Err(error) = template.parsed() {
            tracing::warn!(error, "the template of environments cannot be used");
        }
        *settings = Some(Arc::new(Settings { received, template }));
        without_effect
    }

    async fn ensure(&self, key: EnvironmentKey, job: EnvironmentJob) -> Result<Provisioned, ServiceError> {
        // The consent of the owner of the cluster comes before everything else.
        let environments = self.environments(Reason::EnvironmentUnmanaged)?;
        let settings = self.settings()?;
        if !settings.received.managed {
            let what = "the configuration of this agent has no resource_management";
            return Err(ServiceError::new(Reason::EnvironmentUnmanaged, what));
        }
        let _permits = self.acquire(&key, &self.0.ensures).await;
        let refused = |what: String| ServiceError::new(Reason::EnvironmentRefused, what);
        let template = settings.template.parsed().map_err(|error| refused(error.to_owned()))?;
        let values = values(&settings.received, &key, &job);
        let objects = template.render(&values).map_err(|error| refused(error.to_string()))?;
        let manifests = objects.into_iter().map(|object| EnvironmentManifest {
            source: format!("{}:{}", template.file(), object.line),
            id: ObjectId {
                group: object.group,
                kind: object.kind,
                namespace: object.namespace,
                name: object.name,
            },
            version: object.version,
            object: object.object,
        });
        let manifests: Vec<_> = manifests.collect();
        let never = template.delete_resources == DeleteResources::Never;
        let facts = facts(&settings.received, &key, &job);
        let owner = self.owner(&settings, key.clone())?.with_facts(facts, never);
        let objects = environments.ensure(&owner, manifests).await.map_err(error)?;
        self.0.metrics.count(&objects);
        let changed = objects.iter().filter(|object| object.change != ObjectChange::Unchanged);
        let (changed, job) = (changed.count(), job.job);
        tracing::info!(environment = %key, job, objects = objects.len(), changed, "objects of an environment exist");
        Ok(Provisioned { template: template.file().to_owned(), objects })
    }

    async fn delete(&self, key: EnvironmentKey) -> Result<Deletion, ServiceError> {
        let settings = self.settings()?;
        let owner = self.owner(&settings, key.clone())?;
        let environments = self.listed_environments()?;
        self.check_labels()?;
        let policy = self.0.restrictions.policy.clone();
        let may_sweep = move |kind: &Kind, namespace: &str| {
            let request = Request::delete(collection(kind, namespace)).body(());
            let granted = request.ok().zip(policy.as_ref());
            granted.is_some_and(|(request, policy)| policy.grants(ServiceName::PROVISION, &request))
        };
        let _permits = self.acquire(&key, &self.0.lists).await;
        let deletion = environments.delete(&owner, &may_sweep).await.map_err(error)?;
        self.0.metrics.count_deletion(&deletion);
        if !deletion.kept.is_empty() {
            self.check_labels()?;
        }
        for kept in &deletion.kept {
            tracing::info!(environment = %key, object = %kept.id, reason = kept.reason, "object of an environment not deleted");
        }
        let (deleted, kept) = (deletion.deleted.len(), deletion.kept.len());
        tracing::info!(environment = %key, deleted, kept, "objects of an environment deleted");
        Ok(deletion)
    }

    async fn list(&self, key: EnvironmentKey) -> Result<EnvironmentObjects, ServiceError> {
        let settings = self.settings()?;
        let owner = self.owner(&settings, key.clone())?;
        let environments = self.listed_environments()?;
        let _permits = self.acquire(&key, &self.0.lists).await;
        let objects = environments.list(&owner).await.map_err(error)?;
        Ok(EnvironmentObjects { objects })
    }

    fn settings(&self) -> Result<Arc<Settings>, ServiceError> {
        let what = "agentk has not received its configuration since it started, and with it the template of environments";
        self.0.settings.lock().clone().ok_or_else(|| ServiceError::new(Reason::EnvironmentNotReady, what))
    }

    /// Returns the kinds that the policy in force lists. The error is the reason why there are none.
    fn kinds(&self) -> Result<AllowedKinds, &'static str> {
        let Some(policy) = &self.0.restrictions.policy else {
            return Err(
                "the owner of this cluster has to list the kinds that environments may have, and agentk has no --policy-file",
            );
        };
        let kinds = policy.provisioned();
        if kinds.is_empty() {
            Err(
                "the policy of this cluster has no rule that allows the service provision: one with services [provision], verbs [patch] \
                 and the resources that environments may have (docs/managed-resources.md)",
            )
        } else {
            Ok(kinds)
        }
    }

    /// Returns the objects of environments. `without_kinds` is the reason if the policy lists no kinds.
    fn environments(&self, without_kinds: Reason) -> Result<Environments<KubeCluster>, ServiceError> {
        let kinds = self.kinds().map_err(|what| ServiceError::new(without_kinds, what))?;
        Ok(Environments::new(self.0.cluster.clone(), kinds))
    }

    /// Returns the objects of environments in the scope in force.
    fn listed_environments(&self) -> Result<Environments<KubeCluster>, ServiceError> {
        let environments = self.environments(Reason::EnvironmentRefused)?;
        let Some(scope) = &self.0.restrictions.scope else { return Ok(environments) };
        match scope.missing() {
            None => Ok(environments.within(scope.in_force().map(|scope| scope.namespaces))),
            Some(missing) => {
                let reason = match missing {
                    MissingScope::Awaited => Reason::EnvironmentNotReady,
                    MissingScope::NotConfigured => Reason::EnvironmentRefused,
                };
                Err(ServiceError::new(reason, missing.to_string()))
            }
        }
    }

    /// Returns an error while the policy needs labels that are not known: then it allows less, and objects would be kept for ever.
    fn check_labels(&self) -> Result<(), ServiceError> {
        let problem = self.0.restrictions.policy.as_ref().and_then(|policy| policy.label_problem());
        problem.map_or(Ok(()), |problem| Err(ServiceError::new(Reason::EnvironmentNotReady, problem)))
    }

    fn owner(&self, settings: &Settings, key: EnvironmentKey) -> Result<EnvironmentOwner, ServiceError> {
        EnvironmentOwner::new(settings.received.agent, key)
            .map_err(|error| ServiceError::new(Reason::EnvironmentRefused, error.to_string()))
    }

    /// Waits until no other request of this process is about an environment, and then for one of the permits. In this order, the requests
    /// of many jobs of one environment leave permits to others.
    async fn acquire<'a>(
        &self,
        key: &EnvironmentKey,
        permits: &'a Semaphore,
    ) -> (OwnedSemaphorePermit, SemaphorePermit<'a>) {
        let lock = {
            let mut all = self.0.environments.lock();
            all.retain(|_, lock| lock.strong_count() > 0);
            let lock = all.get(key).and_then(Weak::upgrade).unwrap_or_else(|| Arc::new(Semaphore::new(1)));
            all.insert(key.clone(), Arc::downgrade(&lock));
            lock
        };
        let lock = lock.acquire_owned().await.expect("the semaphore is never closed");
        (lock, permits.acquire().await.expect("the semaphore is never closed"))
    }
}

impl RequestHandler for EnvironmentsHandler {
    async fn handle(&self, request: Request<Body>) -> Result<Response<Body>, ServiceError> {
        let Self(service) = self;
        let key = environment(&request)?;
        if request.method() != Method::POST {
            return Err(wrong_method(request.uri().path(), "POST"));
        }
        let job = read_job(request.into_body()).await?;
        let done = service.ensure(key, job).await;
        service.0.metrics.count_request("ensure", done.as_ref().err().map(|error| error.reason));
        done.map(|done| json_response(&done))
    }
}

impl RequestHandler for ProvisionService {
    async fn handle(&self, request: Request<Body>) -> Result<Response<Body>, ServiceError> {
        let key = environment(&request)?;
        if request.headers().keys().any(|name| name.as_str().starts_with(impersonation::PREFIX)) {
            // agentk works with its own rights, which the caller may not have.
            let what =
                "a caller with an identity of its own in the cluster may not use the service provision";
            return Err(ServiceError::new(Reason::Forbidden, what));
        }
        match *request.method() {
            Method::GET => self.list(key).await.map(|listed| json_response(&listed)),
            Method::DELETE => {
                let done = self.delete(key).await;
                self.0.metrics.count_request("delete", done.as_ref().err().map(|error| error.reason));
                done.map(|done| json_response(&done))
            }
            _ => Err(wrong_method(request.uri().path(), "GET, HEAD, DELETE")),
        }
    }
}

/// Returns the environment that the path of a request names.
fn environment(request: &Request<Body>) -> Result<EnvironmentKey, ServiceError> {
    EnvironmentKey::of_path(request.uri().path())
        .map_err(|error| ServiceError::new(Reason::UnknownPath, error.to_string()))
}

async fn read_job(body: Body) -> Result<EnvironmentJob, ServiceError> {
    let body = timeout(BODY_TIMEOUT, Limited::new(body, MAX_BODY).collect()).await;
    let body = body.map_err(|_| bad_request("the body did not arrive in time"))?;
    let body = body.map_err(|error| bad_request(&error.to_string()))?.to_bytes();
    serde_json::from_slice(&body)
        .map_err(|error| bad_request(&format!("the body is not that of a job: {error}")))
}

fn error(error: EnvironmentError) -> ServiceError {
    let reason = match &error {
        EnvironmentError::Refused(_) => Reason::EnvironmentRefused,
        EnvironmentError::Unavailable(_) => Reason::EnvironmentNotReady,
    };
    ServiceError::new(reason, error)
}

/// Returns the values of the variables of templates that are known.
fn values(settings: &ProvisionSettings, key: &EnvironmentKey, job: &EnvironmentJob) -> Values {
    Values::default()
        .with(Variable::AgentId, settings.agent)
        .with(Variable::AgentName, &settings.name)
        .with(Variable::EnvironmentSlug, key.slug())
        .with(Variable::EnvironmentTier, &job.tier)
        .with(Variable::ProjectId, key.project())
        .with(Variable::PipelineId, job.pipeline)
        .with(Variable::JobId, job.job)
        .with(Variable::UserId, job.user)
        .with(Variable::Username, &job.username)
}

/// Returns what the annotation of the objects says. It is the same for all jobs of an environment, so that they do not change it.
fn facts(settings: &ProvisionSettings, key: &EnvironmentKey, job: &EnvironmentJob) -> Map<String, Value> {
    let tier: String = job.tier.chars().filter(|c| !c.is_control()).take(MAX_FACT).collect();
    let template = settings.template.as_ref().map_or("built-in", |_| TemplateFile::DEFAULT_NAME);
    let facts: [(&str, Value); 6] = [
        ("environment_slug", key.slug().into()),
        ("environment_tier", tier.into()),
        ("agent_id", settings.agent.0.into()),
        ("agent_name", settings.name.as_str().into()),
        ("project_id", key.project().into()),
        ("template_name", template.into()),
    ];
    facts.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Returns the path of the objects of a kind in a namespace.
fn collection(kind: &Kind, namespace: &str) -> String {
    let Kind { kind: group_kind, version, plural, .. } = kind;
    match &*group_kind.group {
        "" => format!("/api/{version}/namespaces/{namespace}/{plural}"),
        group => format!("/apis/{group}/{version}/namespaces/{namespace}/{plural}"),
    }
}

#[cfg(test)]
mod tests;
