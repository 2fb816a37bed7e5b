//! Requests of the command line to kas, as a caller.

use std::{net::SocketAddr, ops::ControlFlow, path::PathBuf, time::Duration};

use bytes::Bytes;
use clap::ValueHint;
use http::{
    HeaderMap, Method, Request, Response, StatusCode, Uri,
    header::{AUTHORIZATION, CONTENT_TYPE},
};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use proto::{Reason, header};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::time::timeout;

use crate::{
    CliError,
    http_client::{explain, http_client},
};

/// The time for one request.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The longest body of an error, in bytes.
const MAX_ERROR: usize = 64 << 10;
/// The longest response, in bytes.
const MAX_RESPONSE: usize = 64 << 20;
/// The longest line of a response, in bytes.
const MAX_LINE: usize = 1 << 20;

/// The address of kas, and the token of the caller.
#[derive(Debug, clap::Args)]
pub(crate) struct CallerOptions {
    /// The URL of the listener for callers, such as the server in a kubeconfig
    #[arg(long, env = "KAS_SERVER", value_name = "URL")]
    server: String,
    /// The file with the token of the caller
    #[arg(long, env = "KAS_TOKEN_FILE", value_name = "FILE", value_hint = ValueHint::FilePath)]
    token_file: PathBuf,
    /// Certificates (PEM) to trust for kas instead of the system's
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    cacert: Option<PathBuf>,
}

impl CallerOptions {
    /// Sends a request without a body, and returns the body of the response.
    pub(crate) async fn send(&self, method: Method, path: &str) -> Result<Bytes, CliError> {
        self.exchange(method, path, Bytes::new(), TIMEOUT).await
    }

    /// Posts a JSON document, and returns the body of the response, for which there is a time limit.
    pub(crate) async fn post(&self, path: &str, body: Bytes, limit: Duration) -> Result<Bytes, CliError> {
        self.exchange(Method::POST, path, body, limit).await
    }

    /// Sends a request, and returns the lines of the response. It has no time limit after its head.
    pub(crate) async fn lines(&self, path: &str) -> Result<ResponseLines<'_>, CliError> {
        let sending = timeout(TIMEOUT, self.request(Method::GET, path, Bytes::new())).await;
        let response = sending.unwrap_or_else(|_| Err(self.late(TIMEOUT)))?;
        let (head, body) = response.into_parts();
        if !head.status.is_success() {
            let body = timeout(TIMEOUT, Limited::new(body, MAX_RESPONSE).collect()).await;
            let body = body.ok().and_then(Result::ok).map(|body| body.to_bytes()).unwrap_or_default();
            return Err(refused(head.status, &head.headers, &body));
        }
        Ok(ResponseLines { caller: self, body })
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        limit: Duration,
    ) -> Result<Bytes, CliError> {
        let exchange = async {
            let (head, body) = self.request(method, path, body).await?.into_parts();
            let body = Limited::new(body, MAX_RESPONSE).collect().await;
            Ok((head, body.map_err(|error| self.unavailable(&error.to_string()))?.to_bytes()))
        };
        let exchanged = timeout(limit, exchange).await;
        let (head, body) = exchanged.unwrap_or_else(|_| Err(self.late(limit)))?;
        if head.status.is_success() { Ok(body) } else { Err(refused(head.status, &head.headers, &body)) }
    }

    fn unavailable(&self, error: &str) -> CliError {
        CliError::unavailable(format!("{}: {}", self.server, explain(error)))
    }

    fn late(&self, limit: Duration) -> CliError {
        self.unavailable(&format!("no response within {} s", limit.as_secs()))
    }

    /// Sends a request, and returns the response with its head.
    async fn request(&self, method: Method, path: &str, body: Bytes) -> Result<Response<Incoming>, CliError> {
        let url = format!("{}{path}", without_api(&self.server));
        let uri: Uri =
            url.parse().map_err(|_| CliError::usage(format!("--server: {} is not a URL", self.server)))?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err(CliError::usage(format!(
                "--server: {} must begin with https:// or http://",
                self.server
            )));
        }
        let token = std::fs::read_to_string(&self.token_file).map_err(|error| {
            CliError::usage(format!("--token-file {}: {error}", self.token_file.display()))
        })?;
        if token.trim().is_empty() {
            return Err(CliError::usage(format!("--token-file {} is empty", self.token_file.display())));
        }
        let token = SecretString::from(format!("Bearer {}", token.trim()));
        let request = Request::builder().method(method).uri(uri).header(AUTHORIZATION, token.expose_secret());
        let request =
            if body.is_empty() { request } else { request.header(CONTENT_TYPE, "application/json") };
        let request = request.body(Full::new(body));
        let request = request.map_err(|_| {
            CliError::usage(format!("--token-file {} does not contain a token", self.token_file.display()))
        })?;
        let client = http_client(self.cacert.as_deref())?;
        let response = client.request(request).await;
        response.map_err(|error| self.unavailable(&proto::ErrorChain(&error).to_string()))
    }
}

/// The lines of a response, which may be a stream.
pub(crate) struct ResponseLines<'a> {
    caller: &'a CallerOptions,
    body: Incoming,
}

impl ResponseLines<'_> {
    /// Passes each line on as it arrives, until the end of the response, or until `on_line` breaks.
    pub(crate) async fn for_each(
        mut self,
        mut on_line: impl FnMut(&[u8]) -> Result<ControlFlow<()>, CliError>,
    ) -> Result<(), CliError> {
        let caller = self.caller;
        let mut buffer = Vec::new();
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|error| caller.unavailable(&proto::ErrorChain(&error).to_string()))?;
            buffer.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
            let Some(end) = buffer.iter().rposition(|byte| *byte == b'\n') else {
                if buffer.len() > MAX_LINE {
                    return Err(caller.unavailable("a line of the response is too long"));
                }
                continue;
            };
            for line in buffer[..end].split(|byte| *byte == b'\n') {
                if on_line(line)?.is_break() {
                    return Ok(());
                }
            }
            buffer.drain(..=end);
        }
        Ok(())
    }
}

/// Returns the URL of kas: the server of a kubeconfig has the path of the Kubernetes API of an agent, too.
fn without_api(server: &str) -> &str {
    let server = server.trim_end_matches('/');
    let of_agent = server.strip_suffix("/kubernetes").and_then(|rest| rest.rsplit_once("/agents/"));
    match of_agent {
        Some((server, agent)) if !agent.contains('/') => server,
        _ => server.strip_suffix("/k8s-proxy").unwrap_or(server),
    }
}

/// A server from which a command reads.
pub(crate) enum Server<'a> {
    /// The listener for callers.
    Caller(&'a CallerOptions),
    /// The observability listener of a kas of this operator.
    Plain(SocketAddr),
}

impl Server<'_> {
    /// Sends a request without a body, and returns the body of the response.
    pub(crate) async fn send(&self, method: Method, path: &str) -> Result<Bytes, CliError> {
        match self {
            Self::Caller(caller) => caller.send(method, path).await,
            Self::Plain(_) => {
                let body = self.open(path).await?;
                let body = timeout(TIMEOUT, Limited::new(body, MAX_RESPONSE).collect()).await;
                let body = body.map_err(|_| CliError::unavailable("the response does not end"))?;
                Ok(body.map_err(|error| CliError::unavailable(error.to_string()))?.to_bytes())
            }
        }
    }

    /// Requests a path, and returns the body of the response, which may be a stream.
    pub(crate) async fn open(&self, path: &str) -> Result<Incoming, CliError> {
        let unavailable = |error: String| CliError::unavailable(format!("{}: {error}", self.name()));
        let response = async {
            match self {
                Self::Caller(caller) => caller.request(Method::GET, path, Bytes::new()).await,
                Self::Plain(address) => {
                    let client: Client<_, Full<Bytes>> =
                        Client::builder(TokioExecutor::new()).build(HttpConnector::new());
                    let request = Request::get(format!("http://{address}{path}")).body(Full::default());
                    let request = request.map_err(|error| CliError::usage(error.to_string()))?;
                    let response = client.request(request).await;
                    response.map_err(|error| unavailable(proto::ErrorChain(&error).to_string()))
                }
            }
        };
        let late = |_| unavailable(format!("no response within {} s", TIMEOUT.as_secs()));
        let (head, body) = timeout(TIMEOUT, response).await.map_err(late)??.into_parts();
        if head.status.is_success() {
            return Ok(body);
        }
        let body = timeout(TIMEOUT, Limited::new(body, MAX_ERROR).collect()).await;
        let body = body.ok().and_then(Result::ok).map(|body| body.to_bytes()).unwrap_or_default();
        Err(refused(head.status, &head.headers, &body))
    }

    fn name(&self) -> String {
        match self {
            Self::Caller(caller) => caller.server.clone(),
            Self::Plain(address) => format!("no kas responds at {address} (observability.listen.address)"),
        }
    }
}

/// Returns the error of a response. kas has written it for people.
fn refused(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> CliError {
    let parsed: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let text = String::from_utf8_lossy(&body[..body.len().min(1000)]);
    let text = if text.trim().is_empty() { "without a message" } else { text.trim() };
    let message = parsed.as_ref().and_then(|body| body["message"].as_str()).unwrap_or(text);
    let docs = parsed.as_ref().and_then(|body| body["docs"].as_str());
    let link = docs.map_or_else(String::new, |docs| format!("; see {docs}"));
    let message = format!("{message} ({status}){link}");
    let message: String = message.chars().filter(|c| !c.is_control()).collect();
    // The pod that serves it may be replaced now.
    let is_not_served =
        headers.get(header::ERROR).is_some_and(|reason| reason == Reason::UnknownService.as_str());
    if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS || is_not_served {
        CliError::unavailable(message)
    } else {
        CliError::usage(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_may_be_that_of_a_kubeconfig() {
        for (server, expected) in [
            ("https://kas:8154", "https://kas:8154"),
            ("https://kas:8154/", "https://kas:8154"),
            ("https://kas:8154/agents/production/kubernetes", "https://kas:8154"),
            ("https://kas/prefix/agents/7/kubernetes/", "https://kas/prefix"),
            ("https://kas/k8s-proxy/", "https://kas"),
            ("https://kas/agents/a/b/kubernetes", "https://kas/agents/a/b/kubernetes"),
        ] {
            assert_eq!(without_api(server), expected);
        }
    }

    #[test]
    fn refusal_has_the_link_to_the_documents_if_kas_sent_it() {
        let message = |body: &str| refused(StatusCode::FORBIDDEN, &HeaderMap::new(), body.as_bytes()).message;
        assert_eq!(message(r#"{"message": "not allowed"}"#), "not allowed (403 Forbidden)");
        let linked =
            message(r#"{"message": "not allowed", "docs": "https://kas/docs/errors.html#forbidden"}"#);
        assert_eq!(linked, "not allowed (403 Forbidden); see https://kas/docs/errors.html#forbidden");
    }

    #[test]
    fn refusal_that_may_end_is_unavailable() {
        let code = |status: u16, reason: &'static str| {
            let headers = HeaderMap::from_iter([(header::ERROR, http::HeaderValue::from_static(reason))]);
            refused(status.try_into().unwrap(), &headers, b"").code
        };
        assert_eq!(code(404, "unknown-service"), CliError::UNAVAILABLE, "the pod that serves it is replaced");
        assert_eq!(
            (code(429, "too-many-requests"), code(503, "agent-away")),
            (CliError::UNAVAILABLE, CliError::UNAVAILABLE)
        );
        assert_eq!((code(404, "unknown-agent"), code(403, "forbidden")), (CliError::USAGE, CliError::USAGE));
    }
}
