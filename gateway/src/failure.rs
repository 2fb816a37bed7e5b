//! Every failure of ours, as the answer that its caller understands.
//!
//! A Kubernetes client gets a `Status`, a Prometheus client the Prometheus error envelope, everybody else JSON. All of
//! them get the machine-readable reason in `Kas-Error`, which no answer of a cluster ever has, and the request's id.

mod agent;
mod marks;

use std::time::Duration;

use http::{
    HeaderMap, HeaderValue, Response,
    header::{ACCEPT, ALLOW, CONTENT_TYPE, RETRY_AFTER, USER_AGENT, WARNING, WWW_AUTHENTICATE},
};
use proto::{Reason, header};
use serde_json::json;
use telemetry::TraceId;
use tunnel::Body;

use self::marks::Marks;

/// Why a request was not, or not successfully, passed on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// For programs.
    pub reason: Reason,
    /// For people: what failed, and what to do.
    pub message: String,
    /// When trying again may help.
    pub retry_after: Option<Duration>,
    /// The methods that would do, of a 405 (RFC 9110 section 15.5.6).
    pub allow: Option<HeaderValue>,
}

/// Which language an answer is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `Status` objects (kubectl, helm, client-go).
    Kubernetes,
    /// The envelope of the Prometheus HTTP API (Grafana, promtool).
    Prometheus,
    /// A small JSON object.
    Plain,
}

/// Who will read an answer.
#[derive(Clone, Debug)]
pub struct Reader {
    dialect: Dialect,
    accept: Option<HeaderValue>,
    user_agent: Option<HeaderValue>,
    discovery: bool,
}

impl Reader {
    /// The sender of these headers. They are looked into only if there is an error to render.
    pub fn of(dialect: Dialect, headers: &HeaderMap) -> Self {
        let (accept, user_agent) = (headers.get(ACCEPT).cloned(), headers.get(USER_AGENT).cloned());
        Self { dialect, accept, user_agent, discovery: false }
    }

    /// For a request to a path of discovery. kubectl then shows nothing of a `Status` but its code ("the server is
    /// currently unable to handle the request"), and before 1.26 not even that of a 403 or 404; it shows warnings.
    pub fn with_discovery(self, discovery: bool) -> Self {
        Self { discovery, ..self }
    }

    /// Returns whether the caller is built on client-go: "kubectl/v1.32.4 (linux/amd64) kubernetes/59526cd".
    fn is_client_go(&self) -> bool {
        let agent = self.user_agent.as_ref().and_then(|agent| agent.to_str().ok());
        agent.is_some_and(|agent| agent.contains(" kubernetes/"))
    }
}

impl Failure {
    /// A failure that trying again does not mend.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), retry_after: None, allow: None }
    }

    /// Trying again after this may help.
    pub fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// The answer. `id` names the request, `trace` its trace where one is recorded.
    pub fn render(&self, reader: &Reader, id: &HeaderValue, trace: Option<TraceId>) -> Response<Body> {
        let (dialect, accept) = (reader.dialect, reader.accept.as_ref());
        let marks = Marks::of(id, trace);
        let (content_type, body) = match dialect {
            Dialect::Kubernetes => self.status_object(accept, &marks),
            Dialect::Prometheus => ("application/json", self.prometheus_envelope(&marks)),
            Dialect::Plain => ("application/json", self.plain_object(&marks)),
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
        // client-go obeys it up to ten times without a word to its user, also where an agent is away for good. It still
        // finds the seconds in the Status.
        let in_silence = self.reason.status().is_server_error() && reader.is_client_go();
        if let Some(after) = self.retry_after.filter(|_| !in_silence) {
            headers.insert(RETRY_AFTER, HeaderValue::from(after.as_secs().max(1)));
        }
        if dialect == Dialect::Kubernetes && reader.discovery {
            headers.insert(WARNING, self.warning());
        }
        if self.reason == Reason::Unauthorized {
            // A browser at GitLab tells by this header whether kas or the cluster refused it.
            headers.insert("gitlab-unauthorized", HeaderValue::from_static("true"));
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"kas\""));
        }
        response
    }

    /// A `Status` (meta/v1), in the encoding that the caller can read.
    fn status_object(&self, accept: Option<&HeaderValue>, marks: &Marks) -> (&'static str, String) {
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
        let said = format!("kas: {}{}", self.message, marks.suffix());
        let causes: Vec<_> = [(self.reason.as_str(), &*self.message)]
            .into_iter()
            .chain(marks.named())
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
            "message": said,
            "reason": reason,
            "details": details,
            "code": code,
        });
        match Encoding::of(accept) {
            Encoding::Json => ("application/json", status.to_string()),
            Encoding::Yaml => {
                let yaml = serde_saphyr::to_string(&status).unwrap_or_else(|_| status.to_string());
                ("application/yaml", yaml)
            }
            Encoding::Text => {
                ("text/plain; charset=utf-8", format!("{said}\nrequest-id: {}\n", marks.request))
            }
        }
    }

    /// For people who use kubectl (RFC 7234 section 5.5).
    fn warning(&self) -> HeaderValue {
        let text: String = self.message.chars().filter(|c| !c.is_control()).collect();
        let text = text.replace('\\', "\\\\").replace('"', "\\\"");
        HeaderValue::from_bytes(format!("299 kas \"{text}\"").as_bytes()).expect("without control characters")
    }

    /// `infos` is where Prometheus itself says what is not part of an error.
    fn prometheus_envelope(&self, marks: &Marks) -> String {
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
        let infos: Vec<_> = marks.named().map(|(name, value)| format!("{name}: {value}")).collect();
        let error = format!("kas: {}{}", self.message, marks.suffix());
        json!({"status": "error", "errorType": error_type, "error": error, "infos": infos}).to_string()
    }

    fn plain_object(&self, marks: &Marks) -> String {
        let mut object = json!({"error": self.reason.as_str(), "message": self.message});
        for (name, value) in marks.named() {
            object[name] = value.into();
        }
        format!("{object}\n")
    }
}

/// The encodings of a `Status`.
enum Encoding {
    Json,
    Yaml,
    Text,
}

impl Encoding {
    /// The first that `Accept` names; JSON if it accepts anything. Quality values are not weighed: Kubernetes clients
    /// list what they prefer first.
    fn of(accept: Option<&HeaderValue>) -> Self {
        let Some(accept) = accept.and_then(|accept| accept.to_str().ok()) else {
            return Self::Json;
        };
        let known = accept.split(',').find_map(|range| match range.split(';').next()?.trim() {
            "application/json" | "application/*" | "*/*" => Some(Self::Json),
            "application/yaml" => Some(Self::Yaml),
            "text/plain" | "text/*" | "text/html" => Some(Self::Text),
            _ => None,
        });
        // A client that wants only protobuf still reads the status code, and a log shows the text.
        known.unwrap_or(Self::Json)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use serde_json::Value;

    use super::*;

    async fn render(failure: &Failure, dialect: Dialect, accept: &'static str) -> (Response<()>, String) {
        render_for(failure, dialect, accept, "curl/8").await
    }

    async fn render_for(
        failure: &Failure,
        dialect: Dialect,
        accept: &'static str,
        agent: &'static str,
    ) -> (Response<()>, String) {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        headers.insert(USER_AGENT, HeaderValue::from_static(agent));
        let response =
            failure.render(&Reader::of(dialect, &headers), &HeaderValue::from_static("id-1"), None);
        let (head, body) = response.into_parts();
        let text = body.collect().await.unwrap().to_bytes();
        (Response::from_parts(head, ()), String::from_utf8(text.to_vec()).unwrap())
    }

    fn away() -> Failure {
        Failure::new(Reason::AgentNotConnected, "agent prod has no tunnel")
            .retry_after(Duration::from_secs(10))
    }

    #[tokio::test]
    async fn kubectl_reads_a_status() {
        let (head, text) =
            render(&away(), Dialect::Kubernetes, "application/json;as=Table;v=v1, application/json").await;
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
    async fn client_go_is_not_made_to_wait_in_silence() {
        let kubectl = "kubectl/v1.32.4 (linux/amd64) kubernetes/59526cd";
        let (head, text) = render_for(&away(), Dialect::Kubernetes, "*/*", kubectl).await;
        assert!(!head.headers().contains_key("retry-after"));
        assert!(text.contains("\"retryAfterSeconds\":10"), "{text}");
        let busy = Failure::new(Reason::TooManyRequests, "busy").retry_after(Duration::from_secs(1));
        let (head, _) = render_for(&busy, Dialect::Kubernetes, "*/*", kubectl).await;
        assert_eq!(head.headers()["retry-after"], "1", "a moment's patience mends it");
    }

    #[test]
    fn kubectl_shows_a_warning_where_it_shows_no_status() {
        let headers = |failure: &Failure, discovery| {
            let reader = Reader::of(Dialect::Kubernetes, &HeaderMap::new()).with_discovery(discovery);
            failure.render(&reader, &HeaderValue::from_static("id-1"), None).into_parts().0.headers
        };
        assert_eq!(headers(&away(), true)["warning"], "299 kas \"agent prod has no tunnel\"");
        let odd = Failure::new(Reason::UnknownPath, "a \"quoted\" \\ …\r\n");
        let warning = "299 kas \"a \\\"quoted\\\" \\\\ …\"";
        assert_eq!(headers(&odd, true)["warning"].as_bytes(), warning.as_bytes());
        assert!(!headers(&away(), false).contains_key("warning"));
    }

    #[tokio::test]
    async fn a_status_comes_in_the_encoding_that_is_accepted() {
        let (head, text) = render(&away(), Dialect::Kubernetes, "application/yaml").await;
        assert_eq!(head.headers()["content-type"], "application/yaml");
        assert!(text.contains("kind: Status"), "{text}");
        let (head, text) = render(&away(), Dialect::Kubernetes, "text/plain").await;
        assert_eq!(head.headers()["content-type"], "text/plain; charset=utf-8");
        assert_eq!(text, "kas: agent prod has no tunnel\nrequest-id: id-1\n");
        let (head, _) = render(&away(), Dialect::Kubernetes, "application/vnd.kubernetes.protobuf").await;
        assert_eq!(head.headers()["content-type"], "application/json");
    }

    #[tokio::test]
    async fn grafana_reads_an_envelope() {
        let (_, text) = render(&away(), Dialect::Prometheus, "*/*").await;
        let envelope: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(envelope["status"], "error");
        assert_eq!(envelope["errorType"], "unavailable");
        assert_eq!(envelope["error"], "kas: agent prod has no tunnel");
    }

    #[tokio::test]
    async fn every_dialect_says_how_to_find_the_request() {
        let trace = TraceId::from_hex("4bf92f3577b34da6a3ce929d0e0e4736").unwrap();
        let body = async |dialect| {
            let reader = Reader::of(dialect, &HeaderMap::new());
            let response = away().render(&reader, &HeaderValue::from_static("id-1"), Some(trace));
            let text = response.into_body().collect().await.unwrap().to_bytes();
            serde_json::from_slice::<Value>(&text).unwrap()
        };
        let message = format!("kas: agent prod has no tunnel. Trace ID: {trace}");
        let status = body(Dialect::Kubernetes).await;
        assert_eq!(status["message"], message);
        assert_eq!(status["details"]["causes"][1], json!({"reason": "request-id", "message": "id-1"}));
        assert_eq!(status["details"]["causes"][2]["message"], trace.to_string());
        let envelope = body(Dialect::Prometheus).await;
        assert_eq!(envelope["error"], message);
        assert_eq!(envelope["infos"], json!(["request-id: id-1", format!("trace-id: {trace}")]));
        let object = body(Dialect::Plain).await;
        assert_eq!(object["request-id"], "id-1");
        assert_eq!(object["trace-id"], trace.to_string());
    }

    #[tokio::test]
    async fn a_refused_credential_is_told_apart_from_the_clusters() {
        let failure = Failure::new(Reason::Unauthorized, "unknown token");
        let (head, _) = render(&failure, Dialect::Kubernetes, "*/*").await;
        assert_eq!(head.headers()["gitlab-unauthorized"], "true");
    }
}
