//! Errors of kas, in the dialect of the caller.
//!
//! A Kubernetes client receives a `Status`, a Prometheus client the Prometheus error envelope, and any other client JSON. All
//! responses have the reason in `Kas-Error`, which no response of a cluster has, and the id of the request.

mod docs_url;
mod format;

use std::{fmt::Display, net::IpAddr, time::Duration};

use http::{
    HeaderValue, Response,
    header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WARNING, WWW_AUTHENTICATE},
};
use proto::{Reason, header};
use serde_json::json;
use telemetry::TraceId;
use tunnel::{Body, BodyError};

use self::format::{ErrorReferences, StatusEncoding};
pub use self::{
    docs_url::DocsUrl,
    format::{ErrorDialect, ErrorFormat},
};
use crate::identity::CallerNames;

/// The reason for which kas refuses or fails a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct RequestError {
    /// The reason for programs, which determines the status code.
    pub reason: Reason,
    /// The cause and the remedy, for people.
    pub message: String,
    /// The time after which the same request may succeed.
    pub retry_after: Option<Duration>,
    /// The allowed methods of a 405 (RFC 9110 section 15.5.6).
    pub allow: Option<HeaderValue>,
    /// The caller of a refused request, if its credential is valid.
    pub caller: Option<Box<CallerNames>>,
}

impl RequestError {
    /// Returns an error without `Retry-After`.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), retry_after: None, allow: None, caller: None }
    }

    /// Returns a `bad-request` error.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(Reason::BadRequest, message)
    }

    /// Returns an `address-not-allowed` error: the address is in none of the networks that `key` lists.
    pub fn address_not_allowed(client: IpAddr, key: impl Display) -> Self {
        let what = format!("requests from {client} are not allowed: it is in none of the networks of {key}");
        Self::new(Reason::AddressNotAllowed, what)
    }

    /// Returns the error with which kas has failed the body of a request, or `None` if it failed for another reason.
    pub fn of_body(error: &BodyError) -> Option<Self> {
        match error {
            BodyError::Other(inner) => inner.downcast_ref().cloned(),
            BodyError::Tunnel(_) | BodyError::Reset => None,
        }
    }

    /// Adds to the message that the request was cut, although the cluster may have executed it already.
    pub fn in_flight(mut self) -> Self {
        self.message += "; the request was cut before its response, and the cluster may have executed it";
        self
    }

    /// Adds the caller, whose credential is valid, for the audit log.
    pub fn with_caller(mut self, names: CallerNames) -> Self {
        self.caller = Some(Box::new(names));
        self
    }

    /// Adds a `Retry-After`: the same request may succeed after this time.
    pub fn with_retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// Builds the response to the caller. `id` is the id of the request, and `trace` that of its trace, if it is traced. With `docs`, the
    /// body has a link to the section about the reason.
    pub fn render(
        &self,
        format: &ErrorFormat,
        id: &HeaderValue,
        trace: Option<TraceId>,
        docs: Option<&DocsUrl>,
    ) -> Response<Body> {
        let dialect = format.dialect;
        let references = ErrorReferences::new(id, trace, docs.map(|docs| docs.of_reason(self.reason)));
        let (content_type, body) = match dialect {
            ErrorDialect::Kubernetes => self.status_object(format.encoding(), &references),
            ErrorDialect::Prometheus => ("application/json", self.prometheus_envelope(&references)),
            ErrorDialect::Plain => ("application/json", self.plain_object(&references)),
        };
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = self.reason.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(header::ERROR, HeaderValue::from_static(self.reason.as_str()));
        headers.insert(header::REQUEST_ID, id.clone());
        if let Some(methods) = &self.allow {
            headers.insert(ALLOW, methods.clone());
        }
        // client-go retries up to ten times without any output, even if the agent is gone for good. The seconds are still
        // in the Status.
        let silent = self.reason.status().is_server_error() && format.is_client_go();
        if let Some(after) = self.retry_after.filter(|_| !silent) {
            headers.insert(RETRY_AFTER, HeaderValue::from(after.as_secs().max(1)));
        }
        if dialect == ErrorDialect::Kubernetes && format.discovery {
            headers.insert(WARNING, self.warning());
        }
        if self.reason == Reason::Unauthorized {
            // GitLab's web page distinguishes by this header whether kas or the cluster refused the credential.
            headers.insert("gitlab-unauthorized", HeaderValue::from_static("true"));
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"kas\""));
        }
        response
    }

    /// Returns the content type and the text of a `Status` (meta/v1), in the encoding that the caller accepts.
    fn status_object(
        &self,
        encoding: StatusEncoding,
        references: &ErrorReferences,
    ) -> (&'static str, String) {
        let code = self.reason.status().as_u16();
        let reason = match code {
            400 => "BadRequest",
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "NotFound",
            405 => "MethodNotAllowed",
            429 => "TooManyRequests",
            500 => "InternalError",
            503 => "ServiceUnavailable",
            504 => "Timeout",
            _ => "",
        };
        let message = format!("kas: {}{}", self.message, references.suffix());
        let causes: Vec<_> = [(self.reason.as_str(), &*self.message)]
            .into_iter()
            .chain(references.iter())
            .map(|(reason, message)| json!({"reason": reason, "message": message}))
            .collect();
        let mut details = json!({"causes": causes});
        if let Some(after) = self.retry_after {
            details["retryAfterSeconds"] = after.as_secs().max(1).into();
        }
        let status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "details": details,
            "code": code,
        });
        match encoding {
            StatusEncoding::Json => ("application/json", status.to_string()),
            StatusEncoding::Yaml => {
                let yaml = serde_saphyr::to_string(&status).unwrap_or_else(|_| status.to_string());
                ("application/yaml", yaml)
            }
            StatusEncoding::Text => {
                ("text/plain; charset=utf-8", format!("{message}\nrequest-id: {}\n", references.request))
            }
        }
    }

    /// Returns the value of `Warning`, which kubectl prints (RFC 7234 section 5.5).
    fn warning(&self) -> HeaderValue {
        let text: String = self.message.chars().filter(|c| !c.is_control()).collect();
        let text = text.replace('\\', "\\\\").replace('"', "\\\"");
        HeaderValue::from_bytes(format!("299 kas \"{text}\"").as_bytes()).expect("without control characters")
    }

    /// Returns the Prometheus error envelope. `infos` is the place of Prometheus for annotations.
    fn prometheus_envelope(&self, references: &ErrorReferences) -> String {
        let error_type = match self.reason.status().as_u16() {
            400 | 413 => "bad_data",
            401 | 403 => "forbidden",
            404 => "not_found",
            405 => "bad_data",
            502 | 503 => "unavailable",
            504 => "timeout",
            429 => "too_many_requests",
            _ => "internal",
        };
        let infos: Vec<_> = references.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        let error = format!("kas: {}{}", self.message, references.suffix());
        json!({"status": "error", "errorType": error_type, "error": error, "infos": infos}).to_string()
    }

    fn plain_object(&self, references: &ErrorReferences) -> String {
        let mut object = json!({"error": self.reason.as_str(), "message": self.message});
        for (name, value) in references.iter() {
            object[name] = value.into();
        }
        format!("{object}\n")
    }
}

#[cfg(test)]
mod tests {
    use http::{
        HeaderMap,
        header::{ACCEPT, USER_AGENT},
    };
    use http_body_util::BodyExt as _;
    use serde_json::Value;

    use super::*;

    async fn render(
        failure: &RequestError,
        dialect: ErrorDialect,
        accept: &'static str,
    ) -> (Response<()>, String) {
        render_for(failure, dialect, accept, "curl/8").await
    }

    async fn render_for(
        failure: &RequestError,
        dialect: ErrorDialect,
        accept: &'static str,
        agent: &'static str,
    ) -> (Response<()>, String) {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        headers.insert(USER_AGENT, HeaderValue::from_static(agent));
        let response = failure.render(
            &ErrorFormat::new(dialect, &headers),
            &HeaderValue::from_static("id-1"),
            None,
            None,
        );
        let (head, body) = response.into_parts();
        let text = body.collect().await.unwrap().to_bytes();
        (Response::from_parts(head, ()), String::from_utf8(text.to_vec()).unwrap())
    }

    fn away() -> RequestError {
        RequestError::new(Reason::AgentNotConnected, "agent prod has no tunnel")
            .with_retry_after(Duration::from_secs(10))
    }

    #[tokio::test]
    async fn kubernetes_dialect_is_a_status() {
        let (head, text) =
            render(&away(), ErrorDialect::Kubernetes, "application/json;as=Table;v=v1, application/json")
                .await;
        assert_eq!(head.status(), 503);
        assert_eq!(head.headers()["kas-error"], "agent-not-connected");
        assert_eq!(head.headers()["x-request-id"], "id-1");
        assert_eq!(head.headers()["retry-after"], "10");
        let status: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(status["kind"], "Status");
        assert_eq!(status["reason"], "ServiceUnavailable");
        assert_eq!(status["details"]["retryAfterSeconds"], 10);
        assert_eq!(status["details"]["causes"][0]["reason"], "agent-not-connected");
    }

    #[tokio::test]
    async fn client_go_gets_no_retry_after_with_a_server_error() {
        let kubectl = "kubectl/v1.32.4 (linux/amd64) kubernetes/59526cd";
        let (head, text) = render_for(&away(), ErrorDialect::Kubernetes, "*/*", kubectl).await;
        assert!(!head.headers().contains_key("retry-after"));
        assert!(text.contains("\"retryAfterSeconds\":10"), "{text}");
        let busy =
            RequestError::new(Reason::TooManyRequests, "busy").with_retry_after(Duration::from_secs(1));
        let (head, _) = render_for(&busy, ErrorDialect::Kubernetes, "*/*", kubectl).await;
        assert_eq!(head.headers()["retry-after"], "1", "429 keeps it");
    }

    #[test]
    fn discovery_error_has_a_warning() {
        let headers = |failure: &RequestError, discovery| {
            let reader =
                ErrorFormat::new(ErrorDialect::Kubernetes, &HeaderMap::new()).with_discovery(discovery);
            failure.render(&reader, &HeaderValue::from_static("id-1"), None, None).into_parts().0.headers
        };
        assert_eq!(headers(&away(), true)["warning"], "299 kas \"agent prod has no tunnel\"");
        let odd = RequestError::new(Reason::UnknownPath, "a \"quoted\" \\ …\r\n");
        let warning = "299 kas \"a \\\"quoted\\\" \\\\ …\"";
        assert_eq!(headers(&odd, true)["warning"].as_bytes(), warning.as_bytes());
        assert!(!headers(&away(), false).contains_key("warning"));
    }

    #[tokio::test]
    async fn status_has_the_accepted_encoding() {
        let (head, text) = render(&away(), ErrorDialect::Kubernetes, "application/yaml").await;
        assert_eq!(head.headers()["content-type"], "application/yaml");
        assert!(text.contains("kind: Status"), "{text}");
        let (head, text) = render(&away(), ErrorDialect::Kubernetes, "text/plain").await;
        assert_eq!(head.headers()["content-type"], "text/plain; charset=utf-8");
        assert_eq!(text, "kas: agent prod has no tunnel\nrequest-id: id-1\n");
        for (accept, expected) in [
            ("application/vnd.kubernetes.protobuf", "application/json"),
            ("application/json;q=0.5, application/yaml", "application/yaml"),
            ("application/yaml;q=0, application/json;q=0.1", "application/json"),
            ("text/html,application/xml;q=0.9,*/*;q=0.8", "text/plain; charset=utf-8"),
        ] {
            let (head, _) = render(&away(), ErrorDialect::Kubernetes, accept).await;
            assert_eq!(head.headers()["content-type"], expected, "{accept}");
        }
    }

    #[tokio::test]
    async fn prometheus_dialect_is_an_envelope() {
        let (_, text) = render(&away(), ErrorDialect::Prometheus, "*/*").await;
        let envelope: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(envelope["status"], "error");
        assert_eq!(envelope["errorType"], "unavailable");
        assert_eq!(envelope["error"], "kas: agent prod has no tunnel");
    }

    #[tokio::test]
    async fn every_dialect_has_the_ids() {
        let trace = TraceId::from_hex("4bf92f3577b34da6a3ce929d0e0e4736").unwrap();
        let body = async |dialect| {
            let reader = ErrorFormat::new(dialect, &HeaderMap::new());
            let response = away().render(&reader, &HeaderValue::from_static("id-1"), Some(trace), None);
            let text = response.into_body().collect().await.unwrap().to_bytes();
            serde_json::from_slice::<Value>(&text).unwrap()
        };
        let message = format!("kas: agent prod has no tunnel. Trace ID: {trace}");
        let status = body(ErrorDialect::Kubernetes).await;
        assert_eq!(status["message"], message);
        assert_eq!(status["details"]["causes"][1], json!({"reason": "request-id", "message": "id-1"}));
        assert_eq!(status["details"]["causes"][2]["message"], trace.to_string());
        let envelope = body(ErrorDialect::Prometheus).await;
        assert_eq!(envelope["error"], message);
        assert_eq!(envelope["infos"], json!(["request-id: id-1", format!("trace-id: {trace}")]));
        let object = body(ErrorDialect::Plain).await;
        assert_eq!(object["request-id"], "id-1");
        assert_eq!(object["trace-id"], trace.to_string());
    }

    #[tokio::test]
    async fn every_dialect_links_to_the_documents_of_the_reason() {
        let docs: DocsUrl = "https://kas.example.com/docs".parse().unwrap();
        let link = "https://kas.example.com/docs/errors.html#agent-not-connected";
        let body = async |dialect, accept| {
            let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]);
            let format = ErrorFormat::new(dialect, &headers);
            let response = away().render(&format, &HeaderValue::from_static("id-1"), None, Some(&docs));
            let text = response.into_body().collect().await.unwrap().to_bytes();
            String::from_utf8(text.to_vec()).unwrap()
        };
        let parsed = |text: String| serde_json::from_str::<Value>(&text).unwrap();
        let message = format!("kas: agent prod has no tunnel. See {link}");
        let status = parsed(body(ErrorDialect::Kubernetes, "*/*").await);
        assert_eq!(status["message"], message);
        assert_eq!(status["details"]["causes"][2], json!({"reason": "docs", "message": link}));
        let text = body(ErrorDialect::Kubernetes, "text/plain").await;
        assert_eq!(text, format!("{message}\nrequest-id: id-1\n"));
        let envelope = parsed(body(ErrorDialect::Prometheus, "*/*").await);
        assert_eq!(envelope["error"], message);
        assert_eq!(envelope["infos"][1], format!("docs: {link}"));
        let object = parsed(body(ErrorDialect::Plain, "*/*").await);
        assert_eq!((&object["message"], &object["docs"]), (&json!("agent prod has no tunnel"), &json!(link)));
    }

    #[tokio::test]
    async fn unauthorized_has_the_header_of_gitlab() {
        let failure = RequestError::new(Reason::Unauthorized, "unknown token");
        let (head, _) = render(&failure, ErrorDialect::Kubernetes, "*/*").await;
        assert_eq!(head.headers()["gitlab-unauthorized"], "true");
    }
}
