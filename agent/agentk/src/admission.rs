//! `agentk admission`: a validating admission webhook. The API server asks it about writes of agentk's service account, and of the users
//! that agentk impersonates, and it answers by the policy file of agentk.
//!
//! ```text
//!   API server ── POST /validate, an AdmissionReview ──► policy::review ──► allowed, or 403 with the rule
//! ```
//!
//! A thief of the credential of agentk can thus do no more than agentk. The webhook is a process of its own, without a tunnel. It needs no right
//! in the cluster, or that to list namespaces if the policy selects them by labels.

mod answer;
mod labels;
mod probes;

use std::{
    convert::Infallible,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use agentk_core::{
    AgentMetrics, FileFollowers, ListenTls, TaskPanicError,
    listen::LimitedListener,
    metrics,
    namespace_labels::LabelFollower,
    policy::{PolicyEnforcer, Verdict},
};
use agentk_policy::{FeatureWrites, JudgedUsers, admission_review::AdmissionReview};
use anyhow::Context as _;
use axum::{
    Extension, Router,
    extract::{Request, State},
    response::{IntoResponse, Response},
    routing::post,
};
use bytes::{Bytes, BytesMut};
use files::ReloadHealth;
use http::{StatusCode, header::CONTENT_TYPE};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use proto::ServiceName;
use strangers::{ByteLimit, BytesGuard, OverLimit, Stranger};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use self::{answer::AdmissionAnswer, probes::WebhookHealth};
use crate::cli::AdmissionOptions;

/// The longest question in bytes: an object has at most 1.5 MiB in etcd, and a question has two, as JSON.
const MAX_REVIEW: usize = 8 << 20;
/// The most connections. The API server keeps few of them. A new one replaces that of a client without a certificate which is unused for
/// the longest time, of the address that has the most.
const MAX_CONNECTIONS: usize = 256;
/// The time for a TLS handshake, and for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// The time for a question, which is the longest that the API server waits for its answer.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(30);
/// The bytes of all questions that have arrived and have no answer yet. Everybody who reaches the address may send them: a question beyond
/// the limit replaces the oldest one of the address that holds the most.
const MAX_IN_FLIGHT: usize = 64 << 20;
/// The bytes that a connection may have sent before they are read, so that they hardly count.
const MAX_READ_AHEAD: usize = 32 << 10;
/// The time for which questions are still accepted after the signal to stop: the API server learns a moment later that the pod is not
/// ready, and does not repeat a question whose connection was refused.
const ACCEPT_PERIOD: Duration = Duration::from_secs(5);
/// The time for questions in flight after that.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// A webhook that is ready to run.
pub struct AdmissionApp {
    webhook: Arc<Webhook>,
    tls: ListenTls,
    followers: FileFollowers,
    health: WebhookHealth,
    labels: Option<LabelFollower>,
    registry: Registry,
    listen: SocketAddr,
    observability: SocketAddr,
}

/// Answers questions.
#[derive(Debug)]
struct Webhook {
    policy: Arc<PolicyEnforcer>,
    users: JudgedUsers,
    reviews: Family<ReviewLabels, Counter>,
    /// The bytes of the questions in flight.
    bytes: ByteLimit,
}

/// The client of a connection.
#[derive(Clone, Debug)]
struct Client {
    address: IpAddr,
    /// Admitted if the client has a certificate of `--client-ca-file`.
    stranger: Arc<Stranger>,
}

/// The reason for which a question was not read.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error("a question has at most 8 MiB")]
    TooLong,
    #[error("{0}: clients with a certificate of --client-ca-file go first")]
    OverLimit(#[from] OverLimit),
    #[error("this is no admission review: {0}")]
    Broken(axum::BoxError),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReviewLabels {
    result: &'static str,
}

impl AdmissionApp {
    /// Builds a webhook, which reads its files again at each new value of `reload`. `features` are the writes of the features of agentk. This
    /// reads every file, which blocks.
    ///
    /// # Errors
    ///
    /// A file is invalid; the error is one line that names it.
    pub fn build(
        options: AdmissionOptions,
        features: FeatureWrites,
        reload: watch::Sender<()>,
    ) -> anyhow::Result<Self> {
        let mut registry = Registry::default();
        metrics::register_version(&mut registry);
        let agent_metrics = AgentMetrics::register_policy(&mut registry);
        let reviews = Family::default();
        let help = "Questions of the API server, by result";
        registry.register("agentk_admission_reviews", help, Family::clone(&reviews));
        let files = ReloadHealth::default();
        files.register(&mut registry, "agentk");
        let served = judged_services(&features);
        let policy = PolicyEnforcer::load(options.judge.policy_file.clone(), served, agent_metrics)?;
        let policy = Arc::new(policy);
        let tls = ListenTls::with_optional_clients(
            options.certificate_file,
            options.certificate_key_file,
            options.client_ca_file,
        )?;
        let mut followers = FileFollowers::new(files.clone(), reload);
        followers.add("--policy-file", |file, requests| Arc::clone(&policy).follow(file, requests));
        let check = tls.clone();
        followers.check("--certificate-file", tls.files(), move || check.reload());
        let labels = labels::follower(&policy, &mut followers)?;
        Ok(Self {
            health: WebhookHealth::new(files, Arc::clone(&policy)),
            webhook: Arc::new(Webhook {
                policy,
                users: options.judge.users(features),
                reviews,
                bytes: ByteLimit::new(MAX_IN_FLIGHT),
            }),
            tls,
            followers,
            labels,
            registry,
            listen: options.listen_address,
            observability: options.observability_listen_address,
        })
    }

    /// Answers until 5 s after `shutdown`, and then finishes the questions in flight within 5 s.
    ///
    /// # Errors
    ///
    /// An address cannot be bound, or a background task panicked ([`TaskPanicError`]).
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let bind = |address: SocketAddr, flag: &str| {
            process::listen(address).with_context(|| format!("cannot listen on {address} ({flag})"))
        };
        let listener = bind(self.listen, "--listen-address")?;
        let observability = bind(self.observability, "--observability-listen-address")?;
        let (address, probes) = (listener.local_addr()?, observability.local_addr()?);
        let user = self.webhook.users.username();
        tracing::info!(%address, user, "answering admission reviews");
        tracing::info!(address = %probes, "serving /liveness, /readiness and /metrics");
        let mut background = JoinSet::new();
        background.spawn(probes::serve(observability, self.registry, self.health, shutdown.clone()));
        if let Some(labels) = self.labels {
            background.spawn(async move { match labels.run().await {} });
        }
        for task in self.followers.into_tasks() {
            background.spawn(task);
        }
        let closing = CancellationToken::new();
        let close = async {
            let stopped = until_stopped(&mut background, &shutdown).await;
            tracing::info!("stopping: not ready, but still accepting questions");
            shutdown.cancel();
            sleep(ACCEPT_PERIOD).await;
            closing.cancel();
            stopped
        };
        let accepting = accept(listener, self.tls, self.webhook, closing.clone());
        let (connections, stopped) = tokio::join!(accepting, close);
        let _ = timeout(STOP_TIMEOUT, connections.join_all()).await;
        stopped?;
        Ok(())
    }
}

/// Waits for `shutdown`. None of the tasks ends before it unless it panics: the webhook would then decide by an old policy or by old labels.
async fn until_stopped(
    background: &mut JoinSet<()>,
    shutdown: &CancellationToken,
) -> Result<(), TaskPanicError> {
    tokio::select! {
        biased;
        () = shutdown.cancelled() => Ok(()),
        Some(_) = background.join_next() => Err(TaskPanicError),
    }
}

/// Returns the services whose writes the webhook judges: a rule may name them without a warning.
fn judged_services(features: &FeatureWrites) -> Vec<ServiceName> {
    let names = [ServiceName::KUBERNETES].into_iter().chain(features.services.iter().copied());
    names.map(|name| name.parse().expect("a name")).collect()
}

/// Accepts connections until `shutdown`. Returns those that are open then, which end after the question in flight.
async fn accept(
    listener: TcpListener,
    tls: ListenTls,
    webhook: Arc<Webhook>,
    shutdown: CancellationToken,
) -> JoinSet<()> {
    let full = webhook.counter("limit");
    let listener = LimitedListener::new("admission", listener, MAX_CONNECTIONS, full);
    let stopping = shutdown.clone();
    let serve_connection = move |tcp, peer: SocketAddr, stranger| {
        let client = Client { address: peer.ip(), stranger };
        serve(tcp, client, tls.clone(), Arc::clone(&webhook), stopping.clone())
    };
    listener.serve(&shutdown, serve_connection).await
}

async fn serve(
    tcp: TcpStream,
    client: Client,
    tls: ListenTls,
    webhook: Arc<Webhook>,
    shutdown: CancellationToken,
) {
    let peer = client.address;
    let io = match timeout(HEAD_TIMEOUT, tls.accept(tcp)).await {
        Ok(Ok(io)) => io,
        Ok(Err(error)) => return report(peer, &error),
        Err(_) => return report(peer, &io::Error::from(io::ErrorKind::TimedOut)),
    };
    if io.get_ref().1.peer_certificates().is_some() {
        client.stranger.admit();
    }
    let service = TowerToHyperService::new(routes(webhook).layer(Extension(client)));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_READ_AHEAD)
        .serve_connection(TokioIo::new(io), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "a connection failed");
    }
}

/// Reports a failed handshake at the level debug: strangers may cause any number of them, and the API server reports its own.
fn report(peer: IpAddr, error: &io::Error) {
    tracing::debug!(%peer, %error, "a TLS handshake failed");
}

fn routes(webhook: Arc<Webhook>) -> Router {
    Router::new()
        .route("/validate", post(validate))
        .layer(tower::util::MapFutureLayer::new(in_time))
        .fallback(async || (StatusCode::NOT_FOUND, "the API server sends admission reviews to /validate\n"))
        .with_state(webhook)
}

/// Limits the time of a question, whose body may arrive slowly.
async fn in_time(
    answering: impl Future<Output = Result<Response, Infallible>>,
) -> Result<Response, Infallible> {
    match timeout(REVIEW_TIMEOUT, answering).await {
        Ok(answer) => answer,
        Err(_) => Ok((StatusCode::REQUEST_TIMEOUT, "the question did not arrive in time\n").into_response()),
    }
}

async fn validate(
    State(webhook): State<Arc<Webhook>>,
    Extension(client): Extension<Client>,
    request: Request,
) -> Response {
    client.stranger.renew();
    let mut bytes = webhook.bytes.begin(client.address, client.stranger.is_admitted());
    let question = match read(request, &mut bytes).await {
        Ok(question) => question,
        Err(error) => return webhook.refuse(&error),
    };
    let review = match AdmissionReview::parse(&question) {
        Ok(review) => review,
        Err(error) => return webhook.refuse(&ReadError::Broken(error.into())),
    };
    let request = &review.request;
    let verdict = webhook.policy.review(&webhook.users, request);
    let (result, answer) = match &verdict {
        Verdict::NotJudged => ("not-judged", json(&AdmissionAnswer::allowed(&request.uid, &[]))),
        Verdict::Allowed => ("allowed", json(&AdmissionAnswer::allowed(&request.uid, &[]))),
        Verdict::WouldRefuse(message) => {
            let warning = format!("agentk, dry-run: {message}");
            ("would-refuse", json(&AdmissionAnswer::allowed(&request.uid, &[warning])))
        }
        Verdict::Refused(message) => ("refused", json(&AdmissionAnswer::refused(&request.uid, message))),
    };
    webhook.count(result);
    answer
}

/// Reads a question, whose bytes count as they arrive. It ends when another question needs the room.
async fn read(request: Request, bytes: &mut BytesGuard) -> Result<Bytes, ReadError> {
    let mut body = Limited::new(request.into_body(), MAX_REVIEW);
    let mut question = BytesMut::new();
    let replaced = bytes.replaced();
    loop {
        let frame = replaced.run_until_cancelled(body.frame()).await.ok_or(OverLimit)?;
        let Some(frame) = frame else { return Ok(question.freeze()) };
        let frame = frame.map_err(|error| {
            if error.is::<LengthLimitError>() { ReadError::TooLong } else { ReadError::Broken(error) }
        })?;
        if let Ok(data) = frame.into_data() {
            bytes.grow(data.len())?;
            question.extend_from_slice(&data);
        }
    }
}

fn json(answer: &AdmissionAnswer<'_>) -> Response {
    let text = serde_json::to_vec(answer).expect("it has keys that are text");
    ([(CONTENT_TYPE, "application/json")], text).into_response()
}

impl Webhook {
    fn count(&self, result: &'static str) {
        self.counter(result).inc();
    }

    fn counter(&self, result: &'static str) -> Counter {
        self.reviews.get_or_create_owned(&ReviewLabels { result })
    }

    fn refuse(&self, error: &ReadError) -> Response {
        let (result, status) = match error {
            ReadError::TooLong => ("invalid", StatusCode::PAYLOAD_TOO_LARGE),
            ReadError::Broken(_) => ("invalid", StatusCode::BAD_REQUEST),
            ReadError::OverLimit(_) => ("limit", StatusCode::SERVICE_UNAVAILABLE),
        };
        self.count(result);
        (status, format!("{error}\n")).into_response()
    }
}

#[cfg(test)]
mod tests;
