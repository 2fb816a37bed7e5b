//! Managed resources: the service `environments` makes the objects of an environment before the first request of a job, and `provision` shows
//! them, and deletes them when the environment stops.
//!
//! The template comes with the configuration of the agent. What is sent to the cluster passes the scope and the policy of its owner,
//! which has to list the kinds: without a policy there are none.

mod metrics;
mod template;

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use environment_templates::{DeleteResources, Values, Variable};
use gitops_engine::{
    Kind, KubeCluster, Manifest, SourceLine,
    environment::{EnvironmentError, EnvironmentOwner, Environments},
};
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Limited};
use parking_lot::Mutex;
use proto::{
    Reason, ServiceName,
    agent_configuration::ProvisionSettings,
    gitops::ObjectId,
    impersonation,
    provision::{
        Deletion, EnvironmentJob, EnvironmentKey, EnvironmentObjects, MAX_BODY, ObjectChange, Provisioned,
    },
};
use serde_json::{Map, Value};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tunnel::Body;

pub(crate) use self::metrics::ProvisionMetrics;
use self::template::Template;
use super::{
    RequestHandler, ServiceError,
    response::{bad_request, json_response, wrong_method},
};
use crate::policy::PolicyEnforcer;

/// The requests that are handled at the same time. Further ones wait.
const MAX_REQUESTS: usize = 8;
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
    policy: Option<Arc<PolicyEnforcer>>,
    /// What the last configuration says. `None` before the first one.
    settings: Mutex<Option<Arc<Settings>>>,
    requests: Semaphore,
    /// One permit for each environment that is being changed.
    environments: Mutex<HashMap<EnvironmentKey, Weak<Semaphore>>>,
    metrics: ProvisionMetrics,
}

#[derive(Debug)]
struct Settings {
    received: ProvisionSettings,
    template: Template,
}

impl ProvisionService {
    /// Returns a service for a cluster, whose policy lists the kinds of objects. Requests of the cluster pass the policy by themselves.
    pub(crate) fn new(
        cluster: KubeCluster,
        policy: Option<Arc<PolicyEnforcer>>,
        metrics: ProvisionMetrics,
    ) -> Self {
        Self(Arc::new(Shared {
            cluster,
            policy,
            settings: Mutex::default(),
            requests: Semaphore::new(MAX_REQUESTS),
            environments: Mutex::default(),
            metrics,
        }))
    }

    /// Replaces what the configuration says.
    pub(crate) fn set(&self, received: ProvisionSettings) {
        let mut settings = self.0.settings.lock();
        if settings.as_ref().is_some_and(|settings| settings.received == received) {
            return;
        }
        let template = Template::new(received.template.as_ref());
        if let Err(error) = template.parsed() {
            tracing::warn!(error, "the template of environments cannot be used");
        }
        *settings = Some(Arc::new(Settings { received, template }));
    }

    async fn ensure(&self, key: EnvironmentKey, job: EnvironmentJob) -> Result<Provisioned, ServiceError> {
        let settings = self.settings()?;
        let refused = |what: String| ServiceError::new(Reason::EnvironmentRefused, what);
        let template = settings.template.parsed().map_err(|error| refused(error.to_owned()))?;
        let values = values(&settings.received, &key, &job);
        let objects = template.render(&values).map_err(|error| refused(error.to_string()))?;
        let manifests = objects.into_iter().map(|object| Manifest {
            source: SourceLine { file: template.file().into(), line: object.line },
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
        let environments = self.environments()?;
        let _one_at_a_time = self.lock(&key).await;
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
        let (environments, policy) = (self.environments()?, self.policy()?);
        let may_sweep = move |kind: &Kind, namespace: &str| {
            let request = Request::delete(collection(kind, namespace)).body(());
            request.is_ok_and(|request| policy.permits(ServiceName::PROVISION, &request))
        };
        let _one_at_a_time = self.lock(&key).await;
        let deletion = environments.delete(&owner, &may_sweep).await.map_err(error)?;
        self.0.metrics.count_deletion(&deletion);
        for kept in &deletion.kept {
            tracing::info!(environment = %key, object = %kept.id, reason = kept.reason, "object of an environment not deleted");
        }
        let (deleted, kept) = (deletion.deleted.len(), deletion.kept.len());
        tracing::info!(environment = %key, deleted, kept, "objects of an environment deleted");
        Ok(deletion)
    }

    async fn list(&self, key: EnvironmentKey) -> Result<EnvironmentObjects, ServiceError> {
        let settings = self.settings()?;
        let owner = self.owner(&settings, key)?;
        let objects = self.environments()?.list(&owner).await.map_err(error)?;
        Ok(EnvironmentObjects { objects })
    }

    fn settings(&self) -> Result<Arc<Settings>, ServiceError> {
        let what = "agentk has not received its configuration since it started, and with it the template of environments";
        self.0.settings.lock().clone().ok_or_else(|| ServiceError::new(Reason::EnvironmentNotReady, what))
    }

    fn policy(&self) -> Result<Arc<PolicyEnforcer>, ServiceError> {
        let what = "the owner of this cluster has to list the kinds that environments may have, and agentk has no --policy-file";
        self.0.policy.clone().ok_or_else(|| ServiceError::new(Reason::EnvironmentRefused, what))
    }

    /// Returns the objects of environments, of the kinds that the policy in force lists.
    fn environments(&self) -> Result<Environments<KubeCluster>, ServiceError> {
        let kinds = self.policy()?.provisioned();
        if kinds.is_empty() {
            let what = "the policy of this cluster has no rule that allows the service provision to patch resources that it names";
            return Err(ServiceError::new(Reason::EnvironmentRefused, what));
        }
        Ok(Environments::new(self.0.cluster.clone(), kinds))
    }

    fn owner(&self, settings: &Settings, key: EnvironmentKey) -> Result<EnvironmentOwner, ServiceError> {
        EnvironmentOwner::new(settings.received.agent, key)
            .map_err(|what| ServiceError::new(Reason::EnvironmentRefused, what))
    }

    /// Waits until no other request of this process changes an environment.
    async fn lock(&self, key: &EnvironmentKey) -> OwnedSemaphorePermit {
        let lock = {
            let mut all = self.0.environments.lock();
            all.retain(|_, lock| lock.strong_count() > 0);
            let lock = all.get(key).and_then(Weak::upgrade).unwrap_or_else(|| Arc::new(Semaphore::new(1)));
            all.insert(key.clone(), Arc::downgrade(&lock));
            lock
        };
        lock.acquire_owned().await.expect("the semaphore is never closed")
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
        // Never closed.
        let _permit = service.0.requests.acquire().await;
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
        let _permit = self.0.requests.acquire().await;
        match *request.method() {
            Method::GET => self.list(key).await.map(|listed| json_response(&listed)),
            Method::DELETE => {
                let done = self.delete(key).await;
                self.0.metrics.count_request("delete", done.as_ref().err().map(|error| error.reason));
                done.map(|done| json_response(&done))
            }
            _ => Err(wrong_method(request.uri().path(), "GET, DELETE")),
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
    let template = settings.template.as_ref().map_or("built-in", |_| environment_templates::DEFAULT_NAME);
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
mod tests {
    use std::fs;

    use proto::{AgentId, agent_configuration::TemplateFile};
    use serde_json::json;

    use super::*;
    use crate::metrics::AgentMetrics;

    const PATH: &str = "/v1/projects/30/environments/live";
    const POLICY: &str = "rules: [{name: a, action: allow, services: [provision], resources: [namespaces]}]";

    /// Returns a service whose cluster must not be reached.
    fn service(policy: Option<&str>) -> ProvisionService {
        let policy = policy.map(|text| {
            let directory = tempfile::tempdir().unwrap();
            let file = directory.path().join("policy.yaml");
            fs::write(&file, text).unwrap();
            Arc::new(PolicyEnforcer::load(file, Vec::new(), AgentMetrics::default()).unwrap())
        });
        let cluster = KubeCluster::new(|| panic!("the cluster is not reached"));
        ProvisionService::new(cluster, policy, ProvisionMetrics::default())
    }

    fn settings(template: Option<Result<&str, &str>>) -> ProvisionSettings {
        let text = |text: Result<&str, &str>| text.map(str::to_owned).map_err(str::to_owned);
        let template = template.map(|it| TemplateFile { path: "t/default.yaml".to_owned(), text: text(it) });
        ProvisionSettings { agent: AgentId(7), name: "prod".parse().unwrap(), template }
    }

    async fn send(service: &ProvisionService, method: Method, path: &str) -> ServiceError {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        service.handle(request).await.unwrap_err()
    }

    async fn post_body(service: &ProvisionService, path: &str, body: String) -> ServiceError {
        let request = Request::post(path).body(Body::from(body)).unwrap();
        EnvironmentsHandler(service.clone()).handle(request).await.unwrap_err()
    }

    async fn post(service: &ProvisionService) -> ServiceError {
        let job = json!({"tier": "production", "pipeline": 6, "job": 3, "user": 5, "username": "alice"});
        post_body(service, PATH, job.to_string()).await
    }

    #[tokio::test]
    async fn nothing_is_made_before_the_configuration_is_known() {
        let service = service(Some(POLICY));
        assert_eq!(post(&service).await.reason, Reason::EnvironmentNotReady);
        assert_eq!(send(&service, Method::DELETE, PATH).await.reason, Reason::EnvironmentNotReady);
    }

    #[tokio::test]
    async fn nothing_is_made_without_a_policy_that_lists_kinds() {
        for (policy, expected) in [
            (None, "agentk has no --policy-file"),
            (
                Some("rules: [{name: a, action: allow, services: ['*']}]"),
                "has no rule that allows the service provision",
            ),
        ] {
            let service = service(policy);
            service.set(settings(None));
            let (delete, get) = (send(&service, Method::DELETE, PATH), send(&service, Method::GET, PATH));
            for error in [post(&service).await, delete.await, get.await] {
                assert_eq!(error.reason, Reason::EnvironmentRefused);
                assert!(error.message.contains(expected), "{}", error.message);
            }
        }
    }

    #[tokio::test]
    async fn template_that_cannot_be_used_fails_jobs_and_says_where() {
        let service = service(Some(POLICY));
        for (template, expected) in [
            (Ok("objects: []"), "t/default.yaml:1:10: objects: "),
            (Err("t/default.yaml is a directory"), "t/default.yaml is a directory"),
            (
                Ok("objects: [{apiVersion: v1, kind: Namespace, metadata: {name: '{{ .project.path }}'}}]"),
                "t/default.yaml:1: Namespace {{ .project.path }}: .project.path is not known here",
            ),
        ] {
            service.set(settings(Some(template)));
            let error = post(&service).await;
            assert_eq!(error.reason, Reason::EnvironmentRefused);
            assert!(error.message.starts_with(expected), "{}", error.message);
        }
    }

    /// agentk writes with its own rights. A caller that kas limits to an identity must not use them.
    #[tokio::test]
    async fn caller_with_an_identity_is_refused() {
        let service = service(Some(POLICY));
        service.set(settings(None));
        for header in ["impersonate-user", "impersonate-group", "impersonate-extra-a"] {
            let request = Request::delete(PATH).header(header, "x").body(Body::empty()).unwrap();
            assert_eq!(service.handle(request).await.unwrap_err().reason, Reason::Forbidden, "{header}");
        }
    }

    #[tokio::test]
    async fn other_requests_are_refused() {
        let service = service(Some(POLICY));
        service.set(settings(None));
        for path in ["/v1/projects/30", "/v1/projects/30/environments/../x"] {
            assert_eq!(send(&service, Method::GET, path).await.reason, Reason::UnknownPath, "{path}");
            assert_eq!(
                post_body(&service, path, "{}".to_owned()).await.reason,
                Reason::UnknownPath,
                "{path}"
            );
        }
        // A caller could invent the facts about a job.
        for method in [Method::POST, Method::PUT, Method::PATCH] {
            assert_eq!(send(&service, method, PATH).await.reason, Reason::MethodNotAllowed);
        }
        let large = format!("{{\"tier\": \"{}\"}}", "x".repeat(MAX_BODY));
        for body in ["1".to_owned(), large] {
            assert_eq!(post_body(&service, PATH, body).await.reason, Reason::BadRequest);
        }
    }
}
