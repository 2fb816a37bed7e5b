//! Makes the objects of an environment exist before the first request of a CI job.
//!
//! ```text
//!   request of a job ─► known? ── yes ──► on to the cluster
//!                         │ no                  ▲
//!                         └─► POST to agentk ───┤ repeated until it succeeds, is refused, or the time is over
//!                                               └─► 424 or 503: the job fails, and says why
//! ```
//!
//! The owner of the cluster decides whether environments are managed. If agentk says that they are not, or does not know them, the requests
//! of the job go on to the cluster as those of all others.
//!
//! All requests of a job to a replica share one attempt, and its result for a while. Attempts of several replicas and jobs may happen at
//! the same time: agentk applies objects on the server, so that each of them leads to the same end.

mod metrics;
mod rights;

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use access::{
    ManagedEnvironment, RequestError,
    kill_switch::{KillSwitch, RequestAttributes},
};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderValue, Method, Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use kas_core::{
    audit::{AuditLog, AuditRecord, AuditedAccess, NewRequest},
    destination::Destination,
    forward::{ForwardedResponse, Forwarder, agent_error},
    request_hooks::{AuthorizedRequest, RequestHooks},
    request_types::RequestOperation,
};
use moka::{future, sync};
use prometheus_client::registry::Registry;
use proto::{
    AgentId, Reason, ServiceName, header,
    provision::{EnvironmentKey, MAX_BODY, Provisioned},
};
use router::RequestClass;
use tokio::time::{Instant, sleep, timeout_at};
use tunnel::Body;

use self::metrics::ProvisionerMetrics;
use super::config::ManagedResourcesConfig;

/// The jobs whose results are kept.
const MAX_JOBS: u64 = 50_000;
/// The time for which the result of a failed attempt is kept, so that the further requests of the job do not repeat it at once.
const FAILED: Duration = Duration::from_secs(5);
/// The pause after the first attempt that may succeed later. It doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Makes the objects of environments exist before the first request of a job.
#[derive(Debug)]
pub(crate) struct Provisioner {
    config: ManagedResourcesConfig,
    outcomes: future::Cache<JobKey, Arc<Outcome>>,
    /// The environments that were deleted through this replica. Outcomes from before do not count.
    deletions: sync::Cache<(AgentId, EnvironmentKey), Arc<Deletion>>,
    metrics: ProvisionerMetrics,
    forwarder: Forwarder,
    kill_switch: Arc<KillSwitch>,
    audit: Arc<OnceLock<AuditLog>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct JobKey {
    agent: AgentId,
    environment: EnvironmentKey,
    job: u64,
}

#[derive(Debug)]
struct Outcome {
    result: Result<(), RequestError>,
    /// The start of the attempt.
    started: Instant,
    expires: Instant,
}

#[derive(Debug)]
struct Deletion {
    time: Instant,
    /// The caller, whose further requests do not make the objects again.
    caller: String,
}

impl RequestHooks for Provisioner {
    fn before<'a>(
        &'a self,
        request: AuthorizedRequest<'a>,
    ) -> Option<BoxFuture<'a, Result<(), RequestError>>> {
        let environment = request.environment.filter(|_| self.config.enabled)?;
        Some(Box::pin(self.ensure(request, environment)))
    }

    /// A caller that has deleted the objects of an environment lets the next request of each other job make them again.
    fn on_response(
        &self,
        request: AuthorizedRequest<'_>,
        response: Response<Body>,
    ) -> Result<Response<Body>, RequestError> {
        if let Some(environment) = deleted_environment(request).filter(|_| response.status().is_success()) {
            let deletion = Deletion { time: Instant::now(), caller: request.grant.caller.name().to_owned() };
            self.deletions.insert((request.destination.agent, environment), Arc::new(deletion));
        }
        Ok(response)
    }
}

impl Provisioner {
    /// Returns a provisioner with registered metrics.
    pub(crate) fn new(
        config: ManagedResourcesConfig,
        forwarder: Forwarder,
        kill_switch: Arc<KillSwitch>,
        audit: Arc<OnceLock<AuditLog>>,
        registry: &mut Registry,
    ) -> Self {
        let retention = config.check_period.max(FAILED);
        let outcomes = future::Cache::builder().max_capacity(MAX_JOBS).time_to_live(retention).build();
        // An attempt that has begun before may have ended after it.
        let deletions =
            sync::Cache::builder().max_capacity(MAX_JOBS).time_to_live(retention + config.timeout).build();
        let metrics = ProvisionerMetrics::register(registry);
        Self { config, outcomes, deletions, metrics, forwarder, kill_switch, audit }
    }

    /// Waits until the objects of the environment of a job exist.
    ///
    /// # Errors
    ///
    /// The reason is `environment-refused` if they cannot be made, `environment-not-ready` if they are not complete in time, and `disabled`
    /// if the operator has disabled the service `provision`.
    ///
    /// # Cancellation safety
    ///
    /// Dropping the future cancels the attempt. Another request of the job that waits for it makes the next one.
    async fn ensure(
        &self,
        request: AuthorizedRequest<'_>,
        environment: &ManagedEnvironment,
    ) -> Result<(), RequestError> {
        let key = JobKey {
            agent: request.destination.agent,
            environment: environment.key.clone(),
            job: environment.job.job,
        };
        let deletion = self.deletions.get(&(key.agent, key.environment.clone()));
        let deletion = deletion.filter(|deletion| deletion.caller != request.grant.caller.name());
        let deleted = deletion.map(|deletion| deletion.time);
        let known = self.outcomes.get(&key).await.filter(|outcome| !outcome.is_expired(deleted));
        if let Some(outcome) = known {
            return outcome.result.clone();
        }
        let attempt = async {
            let started = Instant::now();
            let result = self.attempt(request, environment).await;
            let kept = if result.is_ok() { self.config.check_period } else { FAILED };
            Arc::new(Outcome { result, started, expires: Instant::now() + kept })
        };
        let entry =
            self.outcomes.entry(key).or_insert_with_if(attempt, |outcome| outcome.is_expired(deleted)).await;
        entry.into_value().result.clone()
    }

    /// Makes an attempt, with its line in the audit log.
    async fn attempt(
        &self,
        request: AuthorizedRequest<'_>,
        environment: &ManagedEnvironment,
    ) -> Result<(), RequestError> {
        let ManagedEnvironment { key, job } = environment;
        let name = |text: &str| text.parse().expect("a constant that is a service name");
        let destination = Destination {
            service: name(ServiceName::ENVIRONMENTS),
            class: RequestClass::Short,
            ..request.destination.clone()
        };
        // For operators it is the service that callers use.
        let service: ServiceName = name(ServiceName::PROVISION);
        let mut record = self.record(
            request,
            environment,
            Destination { service: service.clone(), ..destination.clone() },
        );
        let started = Instant::now();
        let disabled = self.kill_switch.disabled(RequestAttributes {
            address: Some(request.client),
            service: &service,
            agent: Some(destination.attributes()),
            caller: Some(request.grant.caller.name()),
            user: request.grant.caller.user.as_deref(),
        });
        let result = tokio::select! {
            biased;
            error = disabled => Err(error),
            result = self.provision(request, environment, &destination) => result,
        };
        let agent = destination.label();
        let (result, counted) = match result {
            Ok(done) => {
                let (objects, template) = (done.objects.len(), &*done.template);
                tracing::info!(%agent, environment = %key, job = job.job, user = job.username, objects, template, "objects of an environment exist");
                if let Some(record) = &mut record {
                    record.set_response(StatusCode::OK);
                }
                (Ok(()), None)
            }
            Err(error) if matches!(error.reason, Reason::UnknownService | Reason::EnvironmentUnmanaged) => {
                tracing::info!(%agent, environment = %key, job = job.job, user = job.username, reason = %error, "environment not managed");
                if let Some(record) = &mut record {
                    record.refuse(&error, None);
                }
                (Ok(()), Some(Reason::EnvironmentUnmanaged))
            }
            Err(error) => {
                let error = describe(error, environment);
                tracing::warn!(%agent, environment = %key, job = job.job, user = job.username, %error, "objects of an environment missing");
                if let Some(record) = &mut record {
                    record.refuse(&error, None);
                }
                let reason = error.reason;
                (Err(error), Some(reason))
            }
        };
        self.metrics.record(counted, started.elapsed());
        result
    }

    /// Makes the objects exist, and waits for the rights of the job.
    async fn provision(
        &self,
        request: AuthorizedRequest<'_>,
        environment: &ManagedEnvironment,
        destination: &Destination,
    ) -> Result<Provisioned, RequestError> {
        let done = self.repeat(request.id, environment, destination).await?;
        rights::wait(request, &self.forwarder, &done).await;
        Ok(done)
    }

    /// Sends the request until it succeeds, is refused, or the time is over.
    async fn repeat(
        &self,
        id: &HeaderValue,
        environment: &ManagedEnvironment,
        destination: &Destination,
    ) -> Result<Provisioned, RequestError> {
        let deadline = Instant::now() + self.config.timeout;
        let mut pause = FIRST_PAUSE;
        let mut last = None;
        loop {
            let error = match timeout_at(deadline, self.send(id, environment, destination)).await {
                Ok(Ok(done)) => return Ok(done),
                Ok(Err(error)) => error,
                Err(_) => return Err(last.unwrap_or_else(|| late(self.config.timeout))),
            };
            if !may_succeed_later(error.reason) || Instant::now() + pause >= deadline {
                return Err(error);
            }
            last = Some(error);
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Sends the request once, and reads its response. The agent is not trusted.
    async fn send(
        &self,
        id: &HeaderValue,
        environment: &ManagedEnvironment,
        destination: &Destination,
    ) -> Result<Provisioned, RequestError> {
        let ManagedEnvironment { key, job } = environment;
        let body = serde_json::to_vec(job).expect("texts and numbers are serializable");
        let post = Request::post(key.path())
            .header(header::SERVICE, ServiceName::ENVIRONMENTS)
            .header(header::REQUEST_ID, id)
            .header(CONTENT_TYPE, "application/json")
            .body(Body::from(Bytes::from(body)))
            .expect("a valid request");
        // The permit counts the request in its tunnel until the body has ended.
        let ForwardedResponse { response, request_permit: _permit, .. } =
            self.forwarder.forward(destination, post).await?;
        if let Some(error) = agent_error(&response, destination.label()) {
            return Err(error);
        }
        let misbehaved = |what: String| {
            let what = format!("agent {}: {what}", destination.label());
            RequestError::new(Reason::AgentMisbehaved, what)
        };
        let (head, body) = response.into_parts();
        if head.status != StatusCode::OK {
            return Err(misbehaved(format!("it responded with {}", head.status)));
        }
        let body = Limited::new(body, MAX_BODY).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                misbehaved(error.to_string())
            } else {
                let what = format!("agent {}: its response was cut: {error}", destination.label());
                RequestError::new(Reason::TunnelLost, what)
            }
        })?;
        serde_json::from_slice(&body.to_bytes())
            .map_err(|_| misbehaved("its response is not the expected JSON".to_owned()))
    }

    /// Begins the record of an attempt, in which the caller is the job, and the user is that of GitLab.
    fn record(
        &self,
        request: AuthorizedRequest<'_>,
        environment: &ManagedEnvironment,
        destination: Destination,
    ) -> Option<AuditRecord> {
        let uri = environment.key.path().parse().expect("numbers and a slug are a path");
        let new = NewRequest {
            id: request.id,
            client: request.client,
            method: &Method::POST,
            host: None,
            uri: &uri,
        };
        let mut record = AuditRecord::new(self.audit.get()?, new);
        let grant = Arc::clone(request.grant);
        let operation = RequestOperation::of_method(&Method::POST);
        record
            .set_access(AuditedAccess { grant, destination, operation, upgrade: false, login: false }, None);
        record.set_user(&environment.job.username);
        Some(record)
    }
}

impl Outcome {
    /// Returns whether another attempt is necessary. `deleted` is the time at which the objects were deleted.
    fn is_expired(&self, deleted: Option<Instant>) -> bool {
        Instant::now() >= self.expires || deleted.is_some_and(|deleted| self.started <= deleted)
    }
}

/// Returns the environment that a request deletes, if it does that.
fn deleted_environment(request: AuthorizedRequest<'_>) -> Option<EnvironmentKey> {
    let is_deletion =
        request.method == Method::DELETE && request.destination.service.as_str() == ServiceName::PROVISION;
    is_deletion.then(|| EnvironmentKey::of_path(request.uri.path()).ok()).flatten()
}

/// Returns whether the same request may succeed later.
fn may_succeed_later(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::AgentNotConnected
            | Reason::TunnelLost
            | Reason::EnvironmentNotReady
            | Reason::ScopeAwaited
            | Reason::ClusterUnreachable
            | Reason::ClusterTimeout
            | Reason::ClusterMisbehaved
            | Reason::TooManyRequests
    )
}

fn late(limit: Duration) -> RequestError {
    let what =
        format!("they were not complete within {} s (agent.managed_resources.timeout)", limit.as_secs());
    RequestError::new(Reason::EnvironmentNotReady, what)
}

/// Returns the error of the job. The reason says whether another attempt may succeed.
fn describe(error: RequestError, environment: &ManagedEnvironment) -> RequestError {
    if error.reason == Reason::Disabled {
        return error;
    }
    let ManagedEnvironment { key, job } = environment;
    let what = format!(
        "the objects of the environment {key} do not exist, so that job {} cannot begin: {}",
        job.job, error.message
    );
    if may_succeed_later(error.reason) {
        RequestError::new(Reason::EnvironmentNotReady, what).with_retry_after(FAILED)
    } else {
        RequestError::new(Reason::EnvironmentRefused, what)
    }
}
