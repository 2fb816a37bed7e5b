//! Webhooks in the cluster: an event as a signed POST, in the form of the Standard Webhooks specification.

use std::{
    net::IpAddr,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use agentk_core::upstream::{
    ClientTls, ServerUrl, TlsConfigSource, Upstream, UpstreamConfig, is_service_address,
};
use agentk_policy::AllowedWebhook;
use bytes::Bytes;
use files::unreadable;
use http::{HeaderName, HeaderValue, Request, StatusCode, Uri, header};
use proto::{
    notify::{ProjectEvent, ProjectEventFields},
    webhook_signature::sign,
};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Serialize;
use serde_json::json;
use settings::{Secret, rfc3339};
use tokio::{task::spawn_blocking, time::timeout};
use tunnel::Body;

use super::lane::EffectError;

/// The time for the head of the response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(15);
/// The largest file of keys, in bytes.
const MAX_SECRET_FILE: u64 = 64 << 10;
const ID: HeaderName = HeaderName::from_static("webhook-id");
const TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// Sends events to URLs in the cluster.
pub(super) struct WebhookClient {
    tls: Arc<dyn TlsConfigSource>,
}

/// The body of a request.
#[derive(Serialize)]
struct WebhookBody<'a> {
    id: &'a str,
    project: &'a str,
    #[serde(rename = "ref")]
    reference: Option<&'a str>,
    before: Option<&'a str>,
    after: Option<&'a str>,
    urls: &'a [String],
    #[serde(with = "rfc3339")]
    time: SystemTime,
}

impl Default for WebhookClient {
    fn default() -> Self {
        Self { tls: Arc::new(ClientTls::system()) }
    }
}

impl WebhookClient {
    /// Sends an event, signed with the keys of the policy.
    pub(super) async fn send(
        &self,
        url: &str,
        allowed: Option<&AllowedWebhook>,
        event: &ProjectEvent,
    ) -> Result<(), EffectError> {
        let refused = |what: &str| EffectError::Refused(what.to_owned());
        let allowed =
            allowed.ok_or_else(|| refused("the policy of the cluster's owner does not list this URL"))?;
        let file =
            allowed.secret_file().ok_or_else(|| refused("the policy has no secretFile for this URL"))?;
        let secret = read_secret(file).await?;
        let body = body(event);
        let timestamp = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let signature = sign(&secret.keys(), event.id(), timestamp, body.as_bytes());
        let id =
            HeaderValue::from_str(event.id()).map_err(|_| refused("the id of the event is no header"))?;
        let headers = [
            (ID, id),
            (TIMESTAMP, timestamp.into()),
            (SIGNATURE, HeaderValue::from_str(&signature).expect("base64")),
        ];
        self.post(url, headers, body.into()).await
    }

    /// Calls Flux' notification controller, which knows the caller by the path.
    pub(super) async fn call(&self, url: &str) -> Result<(), EffectError> {
        self.post(url, [], Bytes::from_static(b"{}")).await
    }

    async fn post(
        &self,
        url: &str,
        headers: impl IntoIterator<Item = (HeaderName, HeaderValue)>,
        body: Bytes,
    ) -> Result<(), EffectError> {
        let refused = |what: String| EffectError::Refused(what);
        let uri: Uri = url.parse().map_err(|_| refused("it is no URL".to_owned()))?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let server = url.strip_suffix(path).unwrap_or(url);
        let server: ServerUrl = server.parse().map_err(|error| refused(format!("{error}")))?;
        // The owner of the cluster has named the address of a container of the same pod.
        let is_local = server.host().parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        let address_filter =
            if is_local { |address: &IpAddr| address.is_loopback() } else { is_service_address };
        let tls = Arc::clone(&self.tls);
        let upstream =
            Upstream::new(server, UpstreamConfig { tls, address_filter, ..UpstreamConfig::default() });
        let mut request = Request::post(path)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::CONTENT_LENGTH, body.len())
            .header(header::USER_AGENT, concat!("agentk/", env!("CARGO_PKG_VERSION")));
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.body(Body::from(body)).map_err(|error| refused(error.to_string()))?;
        let response = timeout(RESPONSE_TIMEOUT, upstream.send(request)).await;
        let response =
            response.map_err(|_| EffectError::Failed("the receiver does not respond in time".to_owned()))?;
        // The body is not read: dropping it closes the connection.
        let status = response.map_err(|error| EffectError::Failed(error.to_string()))?.status();
        check(status)
    }
}

/// Decides by the status of a response whether the event is delivered.
fn check(status: StatusCode) -> Result<(), EffectError> {
    let retryable = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_EARLY, StatusCode::TOO_MANY_REQUESTS];
    match status {
        _ if status.is_success() => Ok(()),
        _ if status.is_redirection() => {
            Err(EffectError::Refused(format!("the receiver responds {status}; redirects are not followed")))
        }
        _ if status.is_server_error() || retryable.contains(&status) => {
            Err(EffectError::Failed(format!("the receiver responds {status}")))
        }
        _ => Err(EffectError::Refused(format!("the receiver responds {status}"))),
    }
}

fn body(event: &ProjectEvent) -> String {
    let ProjectEventFields { id, project, reference, before, after, urls, time, sequence: _ } =
        event.fields();
    let body = WebhookBody {
        id,
        project,
        reference: reference.as_deref(),
        before: before.as_deref(),
        after: after.as_deref(),
        urls,
        time: *time,
    };
    json!(body).to_string()
}

/// Reads the keys at each use, so that new ones need no restart.
async fn read_secret(file: &Path) -> Result<Secret, EffectError> {
    let path = file.to_owned();
    let read = spawn_blocking(move || {
        let text = files::read_text_at_most(&path, MAX_SECRET_FILE).map_err(|error| unreadable(&error))?;
        Secret::parse(SecretString::from(text).expose_secret()).map_err(|error| error.to_string())
    });
    let secret = read.await.unwrap_or_else(|error| Err(error.to_string()));
    secret.map_err(|what| EffectError::Failed(format!("the key file {}: {what}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn unusable_key_file_is_named_with_the_remedy() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("receiver");
        for (text, expected) in [
            (None, "the file does not exist"),
            (Some("the key of the receiver"), "is not base64: `openssl rand -base64 32` makes a key"),
            (
                Some("c2hvcnQ="),
                "has 5 bytes, and must have 32 or more: `openssl rand -base64 32` makes a key",
            ),
        ] {
            if let Some(text) = text {
                std::fs::write(&file, text).unwrap();
            }
            let error = read_secret(&file).await.unwrap_err().to_string();
            assert_eq!(error, format!("the key file {}: {expected}", file.display()));
        }
        // The second key replaces the first one without a pause: each event has a signature of both.
        let keys =
            "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=\nYWJjZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXphYmNkZWY=\n";
        std::fs::write(&file, keys).unwrap();
        assert_eq!(read_secret(&file).await.unwrap().keys().iter().count(), 2);
    }

    #[test]
    fn status_decides_about_another_attempt() {
        for (status, expected) in [
            (200, None),
            (204, None),
            (301, Some(false)),
            (308, Some(false)),
            (400, Some(false)),
            (404, Some(false)),
            (408, Some(true)),
            (410, Some(false)),
            (429, Some(true)),
            (500, Some(true)),
            (503, Some(true)),
        ] {
            let result = check(StatusCode::from_u16(status).unwrap());
            let retried = result.err().map(|error| matches!(error, EffectError::Failed(_)));
            assert_eq!(retried, expected, "{status}");
        }
    }
}
