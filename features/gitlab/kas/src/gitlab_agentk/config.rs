//! Section `agent.gitlab_agentk`.

use schemars::JsonSchema;
use serde::Deserialize;

/// Section `agent.gitlab_agentk`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GitlabAgentkConfig {
    /// The Service of Prometheus in the clusters of GitLab's agentk, as `<namespace>/<service>:<port>`, or
    /// `<namespace>/https:<service>:<port>`. Requests for `prometheus` go through the API server to it.
    #[schemars(with = "Option<String>")]
    pub prometheus_service: Option<ServicePath>,
}

/// The path of a Service behind the API server.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct ServicePath(String);

impl ServicePath {
    /// Returns the path of the API server that forwards to the Service, without a slash at its end.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for ServicePath {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        const FORM: &str =
            "a Service has the form <namespace>/<name>:<port>, such as monitoring/prometheus:9090";
        let is_name = |text: &str| {
            let valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            !text.is_empty() && text.len() <= 63 && text.bytes().all(valid)
        };
        let (namespace, service) = text.split_once('/').ok_or(FORM)?;
        let (name, port) = service.strip_prefix("https:").unwrap_or(service).split_once(':').ok_or(FORM)?;
        if [namespace, name, port].into_iter().all(is_name) {
            Ok(Self(format!("/api/v1/namespaces/{namespace}/services/{service}/proxy")))
        } else {
            Err(FORM)
        }
    }
}
