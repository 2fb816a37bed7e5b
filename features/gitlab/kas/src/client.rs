//! Sends requests to GitLab.

use std::{
    fmt, io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode,
    header::{ACCEPT, CONTENT_TYPE, USER_AGENT},
};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioTimer},
};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use prometheus_client::registry::Registry;
use proto::ErrorChain;
use secrecy::SecretString;
use serde::{Serialize, de::DeserializeOwned};
use settings::Secret;
use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{Instant, sleep, timeout_at},
};

use super::{
    Credential, Endpoint, GitLabAddress, GitLabError, Transport,
    budget::{BudgetShare, RequestBudget},
    jwt,
    metrics::{self, AttemptResult, GitLabMetrics},
    response::{self, Failure},
    switch::Switch,
    transport::Connector,
};
use crate::{config::ApiRateLimit, gitaly::GitalyServers};

/// The time of one attempt, from the name lookup to the end of the response.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(20);
/// The time of a request with all waits and attempts.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(30);
/// The idle connections that are kept, and the time for which they are.
const MAX_IDLE: usize = 16;
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const FORM: HeaderValue = HeaderValue::from_static("application/x-www-form-urlencoded");
/// The form of GitLab's kas is `gitlab-kas/<version>/<commit>`.
const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("gitlab-kas/", env!("CARGO_PKG_VERSION"), "/unknown"));
const KAS_REQUEST: HeaderName = HeaderName::from_static("gitlab-kas-api-request");

/// Sends requests to GitLab. Clones are cheap, and share connections and limits.
#[derive(Clone)]
pub struct GitLabClient {
    inner: Arc<ClientState>,
    share: BudgetShare,
    status_token_file: Option<Arc<Path>>,
    comment_token_file: Option<Arc<Path>>,
    deployment_token_file: Option<Arc<Path>>,
}

struct ClientState {
    address: GitLabAddress,
    secret: Secret,
    http: Client<Connector, Full<Bytes>>,
    limit: ApiRateLimit,
    budget: RequestBudget,
    metrics: GitLabMetrics,
    switch: Switch,
    gitaly: GitalyServers,
    /// GitLab does not have the new path of `agent_info`.
    legacy_agent_info: AtomicBool,
}

/// A request that can be sent several times.
struct Prepared {
    method: Method,
    endpoint: Endpoint,
    url: http::Uri,
    headers: HeaderMap,
    body: Bytes,
}

impl GitLabClient {
    /// Creates a client that signs its requests with the secret.
    pub fn new(address: GitLabAddress, secret: Secret, transport: Transport, limit: &ApiRateLimit) -> Self {
        let http = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(MAX_IDLE)
            .build(transport.0);
        let inner = ClientState {
            address,
            secret,
            http,
            limit: limit.clone(),
            budget: RequestBudget::new(limit),
            metrics: GitLabMetrics::default(),
            switch: Switch::default(),
            gitaly: GitalyServers::default(),
            legacy_agent_info: AtomicBool::new(false),
        };
        Self {
            inner: Arc::new(inner),
            share: BudgetShare::Agents,
            status_token_file: None,
            comment_token_file: None,
            deployment_token_file: None,
        }
    }

    /// Returns a client whose requests have another share of the limits. Those of a new client are of agents.
    pub fn with_share(&self, share: BudgetShare) -> Self {
        Self { share, ..self.clone() }
    }

    /// Returns a client that may set the statuses of commits, with the token of this file.
    pub fn with_status_token_file(self, file: Option<&Path>) -> Self {
        Self { status_token_file: file.map(Arc::from), ..self }
    }

    /// Returns a client that may write notes in merge requests, with the token of this file.
    pub fn with_comment_token_file(self, file: Option<&Path>) -> Self {
        Self { comment_token_file: file.map(Arc::from), ..self }
    }

    /// Returns a client that may read the results of deployments, with the token of this file.
    pub fn with_deployment_token_file(self, file: Option<&Path>) -> Self {
        Self { deployment_token_file: file.map(Arc::from), ..self }
    }

    /// Returns the file of the token that reads the results of deployments, and the environments of groups.
    pub(super) fn deployment_token_file(&self) -> Option<&Path> {
        self.deployment_token_file.as_deref()
    }

    /// Returns the token of that file, or `None` without such a file. The error names the file.
    pub(super) async fn deployment_token(&self) -> Option<Result<SecretString, String>> {
        Some(read_token(self.deployment_token_file()?, "gitlab.deployment_token_file").await)
    }

    /// Returns the path of this GitLab in its URLs, without a slash at the end.
    pub(super) fn base_path(&self) -> &str {
        self.inner.address.path()
    }

    /// Returns the file of the token that sets the statuses of commits.
    pub(super) fn status_token_file(&self) -> Option<&Path> {
        self.status_token_file.as_deref()
    }

    /// Returns the file of the token that writes notes in merge requests.
    pub(super) fn comment_token_file(&self) -> Option<&Path> {
        self.comment_token_file.as_deref()
    }

    /// Sends a GET request with these query parameters, and parses the JSON of a 2xx response. An empty body is `()`.
    ///
    /// The future completes within 30 s. It may be dropped at any time.
    ///
    /// # Errors
    ///
    /// GitLab refuses the request, or it gives no usable answer. For most endpoints, up to five attempts have failed then.
    pub async fn get<T: DeserializeOwned>(
        &self,
        endpoint: Endpoint,
        query: &[(&str, &str)],
        credential: Credential<'_>,
    ) -> Result<T, GitLabError> {
        let result = self.try_get(endpoint, query, credential).await;
        self.check_switch(endpoint, result)
    }

    /// Sends a GET request whose 404 does not mean that GitLab may have switched kas off.
    pub(super) async fn try_get<T: DeserializeOwned>(
        &self,
        endpoint: Endpoint,
        query: &[(&str, &str)],
        credential: Credential<'_>,
    ) -> Result<T, GitLabError> {
        self.send(&self.prepare(
            Method::GET,
            endpoint,
            ObjectIds::default(),
            query,
            Bytes::new(),
            credential,
        )?)
        .await
    }

    /// Sends a GET request to the public endpoint of an object.
    pub(super) async fn get_at<T: DeserializeOwned>(
        &self,
        endpoint: Endpoint,
        ids: ObjectIds<'_>,
        query: &[(&str, &str)],
        credential: Credential<'_>,
    ) -> Result<T, GitLabError> {
        self.send(&self.prepare(Method::GET, endpoint, ids, query, Bytes::new(), credential)?).await
    }

    /// Sends a GET request for a page to the public endpoint of an object. Returns the page, or `None` if it is too large, and the bytes that
    /// kas has read of it.
    pub(super) async fn get_page<T: DeserializeOwned>(
        &self,
        endpoint: Endpoint,
        ids: ObjectIds<'_>,
        query: &[(&str, &str)],
        credential: Credential<'_>,
    ) -> Result<(Option<T>, usize), GitLabError> {
        let prepared = self.prepare(Method::GET, endpoint, ids, query, Bytes::new(), credential)?;
        match self.exchange_with_retries(&prepared, Instant::now() + TOTAL_TIMEOUT, parse_page).await {
            Ok((page, bytes)) => Ok((Some(page), bytes)),
            Err(failure) if failure.is_too_large => Ok((None, endpoint.max_body())),
            Err(failure) => Err(failure.error),
        }
    }

    /// Sends a request with a body to the public endpoint of an object.
    pub(super) async fn write_at<B: Serialize, T: DeserializeOwned>(
        &self,
        (method, endpoint): (Method, Endpoint),
        ids: ObjectIds<'_>,
        body: &B,
        credential: Credential<'_>,
    ) -> Result<T, GitLabError> {
        let body = serde_json::to_vec(body).expect("the bodies are serializable");
        self.send(&self.prepare(method, endpoint, ids, &[], body.into(), credential)?).await
    }

    /// Sends a POST request with this body as JSON, and parses the JSON of a 2xx response. An empty body is `()`.
    ///
    /// The future completes within 30 s. If it is dropped, GitLab may have processed the request.
    ///
    /// # Errors
    ///
    /// As [`Self::get`].
    pub async fn post<B: Serialize, T: DeserializeOwned>(
        &self,
        endpoint: Endpoint,
        body: &B,
        credential: Credential<'_>,
    ) -> Result<T, GitLabError> {
        let body = serde_json::to_vec(body).expect("the bodies are serializable");
        let prepared =
            self.prepare(Method::POST, endpoint, ObjectIds::default(), &[], body.into(), credential)?;
        self.check_switch(endpoint, self.send(&prepared).await)
    }

    fn check_switch<T>(&self, endpoint: Endpoint, result: Result<T, GitLabError>) -> Result<T, GitLabError> {
        match &result {
            Err(error) if endpoint.is_internal() && error.is_status(StatusCode::NOT_FOUND) => {
                self.inner.switch.suspect();
            }
            _ => {}
        }
        result
    }

    /// Returns a receiver whose value is true while GitLab has switched kas off.
    pub fn switched_off(&self) -> watch::Receiver<bool> {
        self.inner.switch.off()
    }

    /// Returns the limit of requests.
    pub fn rate_limit(&self) -> &ApiRateLimit {
        &self.inner.limit
    }

    pub(super) fn switch(&self) -> &Switch {
        &self.inner.switch
    }

    pub(super) fn gitaly_servers(&self) -> &GitalyServers {
        &self.inner.gitaly
    }

    /// Returns the endpoint of `agent_info` that this GitLab has, as far as known.
    pub(super) fn agent_info_endpoint(&self) -> Endpoint {
        if self.inner.legacy_agent_info.load(Relaxed) {
            Endpoint::LegacyAgentInfo
        } else {
            Endpoint::AgentInfo
        }
    }

    pub(super) fn set_agent_info_endpoint(&self, endpoint: Endpoint) {
        self.inner.legacy_agent_info.store(endpoint == Endpoint::LegacyAgentInfo, Relaxed);
    }

    /// Registers the metrics of this client.
    pub fn register(&self, registry: &mut Registry) {
        metrics::register(registry, self.switched_off(), &self.inner.metrics);
    }

    async fn send<T: DeserializeOwned>(&self, prepared: &Prepared) -> Result<T, GitLabError> {
        let deadline = Instant::now() + TOTAL_TIMEOUT;
        let sent = self.exchange_with_retries(prepared, deadline, response::parse).await;
        sent.map_err(|failure| failure.error)
    }

    fn prepare(
        &self,
        method: Method,
        endpoint: Endpoint,
        ids: ObjectIds<'_>,
        query: &[(&str, &str)],
        body: Bytes,
        credential: Credential<'_>,
    ) -> Result<Prepared, GitLabError> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, JSON);
        headers.insert(USER_AGENT, AGENT);
        if method != Method::GET {
            headers.insert(CONTENT_TYPE, JSON);
        }
        let credential = credential.header(endpoint).map_err(|_| GitLabError::Status {
            status: StatusCode::UNAUTHORIZED,
            message: "not sent: the token has characters that no header may have".to_owned(),
        })?;
        headers.extend(credential);
        let path = endpoint.path().replace(":id", ids.project).replace(":object", ids.object);
        let path = path.replace(":part", ids.part);
        let url = self.inner.address.url(&path, &encode(query));
        Ok(Prepared { method, endpoint, url, headers, body })
    }

    async fn exchange_with_retries<T>(
        &self,
        prepared: &Prepared,
        deadline: Instant,
        parse: fn(&Response<Bytes>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut attempt = 0;
        loop {
            let failure =
                match self.exchange_in_time(prepared, deadline).await.and_then(|response| parse(&response)) {
                    Ok(value) => return Ok(value),
                    Err(failure) => failure,
                };
            if !failure.retryable || !prepared.endpoint.is_retried() {
                return Err(failure);
            }
            let delay = retry_delay(attempt, failure.requested, rand::random());
            match delay.filter(|delay| Instant::now() + *delay < deadline) {
                Some(delay) => sleep(delay).await,
                None => return Err(failure),
            }
            attempt += 1;
        }
    }

    /// Sends the request of a module of GitLab's agentk, and returns the response as it is. `target` is the path below those of all
    /// modules, with its query.
    ///
    /// # Errors
    ///
    /// GitLab gives no response within 30 s.
    pub async fn send_of_module(
        &self,
        request: Request<Bytes>,
        token: &SecretString,
    ) -> Result<Response<Bytes>, GitLabError> {
        let (head, body) = request.into_parts();
        let endpoint = Endpoint::Module;
        let mut headers = head.headers;
        headers.insert(USER_AGENT, AGENT);
        let invalid = "not sent: the token has characters that no header may have";
        let credential = Credential::Agent(token).header(endpoint);
        headers.extend(credential.map_err(|_| GitLabError::unavailable(invalid))?);
        let path = format!("{}{}", endpoint.path(), head.uri.path());
        let url = self.inner.address.url(&path, head.uri.query().unwrap_or_default());
        let prepared = Prepared { method: head.method, endpoint, url, headers, body };
        let client = self.with_share(BudgetShare::Modules);
        let exchanged = client.exchange_in_time(&prepared, Instant::now() + TOTAL_TIMEOUT).await;
        let (head, body) = exchanged.map_err(|failure| failure.error)?.into_parts();
        let mut response = Response::new(body);
        (*response.status_mut(), *response.headers_mut()) = (head.status, head.headers);
        Ok(response)
    }

    /// Sends a form to the OAuth server of GitLab, once, and returns the response as it is.
    pub(super) async fn post_form(
        &self,
        endpoint: Endpoint,
        form: String,
    ) -> Result<Response<Bytes>, GitLabError> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, JSON);
        headers.insert(USER_AGENT, AGENT);
        headers.insert(CONTENT_TYPE, FORM);
        let url = self.inner.address.url(endpoint.path(), "");
        let prepared = Prepared { method: Method::POST, endpoint, url, headers, body: form.into() };
        let exchanged = self.exchange_in_time(&prepared, Instant::now() + TOTAL_TIMEOUT).await;
        exchanged.map_err(|failure| failure.error)
    }

    /// Waits until the request may be sent, sends it and reads the response.
    async fn exchange_in_time(
        &self,
        prepared: &Prepared,
        deadline: Instant,
    ) -> Result<Response<Bytes>, Failure> {
        let limited = || {
            self.inner.metrics.count_limited(self.share);
            Failure::unavailable("kas sends as many requests as it may (gitlab.api_rate_limit)", false)
        };
        let latest = deadline.min(Instant::now() + self.share.longest_wait());
        let _permit =
            timeout_at(latest, self.inner.budget.acquire(self.share)).await.map_err(|_| limited())?;

        let started = Instant::now();
        let exchange = timeout_at(deadline.min(started + ATTEMPT_TIMEOUT), self.exchange(prepared)).await;
        let (result, response) = match exchange {
            Ok(Ok(response)) => (AttemptResult::Status(response.status()), Ok(response)),
            Ok(Err((result, failure))) => (result, Err(failure)),
            Err(_) => (AttemptResult::Timeout, Err(Failure::unavailable("it did not respond in time", true))),
        };
        self.inner.metrics.observe(prepared.endpoint, result, started.elapsed());
        response
    }

    async fn exchange(&self, prepared: &Prepared) -> Result<Response<Bytes>, (AttemptResult, Failure)> {
        let mut request = Request::new(Full::new(prepared.body.clone()));
        *request.method_mut() = prepared.method.clone();
        *request.uri_mut() = prepared.url.clone();
        *request.headers_mut() = prepared.headers.clone();
        if !prepared.endpoint.is_public() {
            // An attempt may start long after the one before it, so that each needs its own token.
            let token = jwt::header(self.inner.secret.keys().signing(), SystemTime::now());
            request.headers_mut().insert(KAS_REQUEST, token);
        }

        let response = self.inner.http.request(request).await.map_err(|error| {
            (AttemptResult::Failed, Failure::unavailable(ErrorChain(&error).to_string(), true))
        })?;
        let (head, body) = response.into_parts();
        let most = prepared.endpoint.max_body();
        let body = Limited::new(body, most).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                let what = format!("its response is larger than {most} bytes");
                let failure = Failure { is_too_large: true, ..Failure::unavailable(what, false) };
                return (AttemptResult::TooLarge, failure);
            }
            (AttemptResult::Failed, Failure::unavailable(ErrorChain(&*error).to_string(), true))
        })?;
        Ok(Response::from_parts(head, body.to_bytes()))
    }
}

/// The objects in the path of a public endpoint, percent-encoded.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ObjectIds<'a> {
    /// The id or the path of the project.
    pub(super) project: &'a str,
    /// The id of the commit, the environment or the job, or the number of the merge request.
    pub(super) object: &'a str,
    /// The id of the note.
    pub(super) part: &'a str,
}

/// Reads the token in a file. The error names the key of the file.
pub(super) async fn read_token(file: &Path, key: &str) -> Result<SecretString, String> {
    let file = file.to_owned();
    let read = spawn_blocking(move || files::read_text(&file)).await;
    let text = read.unwrap_or_else(|error| Err(io::Error::other(error)));
    text.map(|text| SecretString::from(text.trim())).map_err(|error| format!("{key} cannot be read: {error}"))
}

/// Returns the value of a page, and the bytes of its body.
fn parse_page<T: DeserializeOwned>(response: &Response<Bytes>) -> Result<(T, usize), Failure> {
    Ok((response::parse(response)?, response.body().len()))
}

/// Encodes the parameters of a query.
fn encode(query: &[(&str, &str)]) -> String {
    let pair =
        |(key, value): &(&str, &str)| format!("{key}={}", utf8_percent_encode(value, NON_ALPHANUMERIC));
    query.iter().map(pair).collect::<Vec<_>>().join("&")
}

impl fmt::Debug for GitLabClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GitLabClient({})", self.inner.address)
    }
}

/// The attempts after the first one.
const MAX_RETRIES: u32 = 4;
const FIRST_DELAY: Duration = Duration::from_millis(100);
const MAX_DELAY: Duration = Duration::from_secs(30);

/// Returns how long to wait after the attempt `attempt`, from 0, or `None` if there is no other attempt.
///
/// `requested` is the `Retry-After` of GitLab, and `jitter` a number between 0 and 1.
fn retry_delay(attempt: u32, requested: Option<Duration>, jitter: f64) -> Option<Duration> {
    if attempt >= MAX_RETRIES {
        return None;
    }
    let longest = (FIRST_DELAY * 2_u32.pow(attempt)).min(MAX_DELAY);
    let delay = longest.mul_f64(0.5 + jitter.clamp(0.0, 1.0) / 2.0);
    Some(delay.max(requested.unwrap_or(Duration::ZERO)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_doubles_and_ends() {
        let delays: Vec<_> = (0..6).map(|attempt| retry_delay(attempt, None, 1.0)).collect();
        let millis = |millis| Some(Duration::from_millis(millis));
        assert_eq!(delays, [millis(100), millis(200), millis(400), millis(800), None, None]);
        assert_eq!(retry_delay(0, None, 0.0), millis(50));
    }

    #[test]
    fn delay_is_at_least_the_requested_one() {
        assert_eq!(retry_delay(0, Some(Duration::from_secs(7)), 0.5), Some(Duration::from_secs(7)));
    }
}
