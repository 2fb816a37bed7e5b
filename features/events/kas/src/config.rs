//! Section `events`: the receivers to which kas posts events.

use std::{path::PathBuf, time::Duration};

use access::AgentSelector;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_saphyr::Spanned;
use settings::{
    Network, Timeout,
    patterns::{HTTP_URL, NETWORK},
};

/// Section `events`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EventsConfig {
    /// The receivers to which kas posts events.
    pub webhooks: Vec<WebhookConfig>,
}

/// One entry of `events.webhooks`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WebhookConfig {
    /// The name, in logs, in metrics and for the position up to which events were delivered. With another name, delivery begins anew.
    #[schemars(with = "String")]
    pub name: Spanned<String>,
    /// The URL of the receiver: https, or http with `allowed_networks`.
    #[serde(default)]
    #[schemars(with = "Option<String>", regex(pattern = HTTP_URL))]
    pub url: Option<Spanned<String>>,
    /// The file with the URL, if the URL is a secret. It is read for each delivery.
    #[serde(default)]
    #[schemars(with = "Option<PathBuf>")]
    pub url_file: Option<Spanned<PathBuf>>,
    /// The keys with which deliveries are signed: base64 of 32 bytes or more, one in each line. It is read for each delivery.
    #[serde(default)]
    #[schemars(with = "Option<PathBuf>")]
    pub secret_file: Option<Spanned<PathBuf>>,
    /// The file with a token that is sent as `Authorization: Bearer`: the authorization key of GitLab. It is read for each delivery.
    #[serde(default)]
    #[schemars(with = "Option<PathBuf>")]
    pub token_file: Option<Spanned<PathBuf>>,
    /// The form of the body.
    #[serde(default)]
    pub format: WebhookFormat,
    /// The kinds of events. An empty list selects all.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub kinds: Vec<Spanned<String>>,
    /// The agents: ids, names of agents of the identity file, or project/path:name of agents of GitLab. An empty list selects all events,
    /// also those without an agent.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub agents: Vec<AgentSelector>,
    /// The paths of Git projects, or the ids of the projects of agents. An empty list selects all.
    #[serde(default)]
    pub projects: Vec<String>,
    /// The least severity.
    #[serde(default)]
    pub severity: WebhookSeverity,
    /// The networks to which kas may connect. An empty list allows public addresses only.
    #[serde(default)]
    #[schemars(with = "Vec<String>", inner(regex(pattern = NETWORK)))]
    pub allowed_networks: Vec<Network>,
    /// Certificates (PEM) to trust for the receiver instead of the system's. It is read for each delivery.
    #[serde(default)]
    #[schemars(with = "Option<PathBuf>")]
    pub ca_certificate_file: Option<Spanned<PathBuf>>,
    /// The time for which the delivery of an event is tried again.
    #[serde(default = "default_retry", with = "Timeout")]
    pub retry_for: Duration,
}

/// The form of the body of a delivery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WebhookFormat {
    /// The event as JSON.
    #[default]
    Json,
    /// A message that Slack and servers like it accept.
    Slack,
    /// An alert of a project of GitLab.
    #[serde(rename = "gitlab_alert")]
    GitlabAlert,
}

/// The least severity of the events of a webhook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WebhookSeverity {
    /// All events.
    #[default]
    Info,
    /// Events at which somebody should look.
    Warning,
    /// Events about something that does not work.
    Error,
}

impl EventsConfig {
    /// Iterates over the paths of the section.
    pub fn paths(&mut self) -> impl Iterator<Item = &mut Spanned<PathBuf>> {
        self.webhooks.iter_mut().flat_map(|webhook| {
            let WebhookConfig { url_file, secret_file, token_file, ca_certificate_file, .. } = webhook;
            [url_file, secret_file, token_file, ca_certificate_file].into_iter().flatten()
        })
    }
}

fn default_retry() -> Duration {
    Duration::from_secs(86_400)
}
