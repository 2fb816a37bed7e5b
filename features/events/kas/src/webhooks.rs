//! Posts events to receivers outside of kas.
//!
//! ```text
//!   log ─► cursor of the webhook (one replica at a time) ─► filter ─► POST, signed ─┬─ 2xx ─► next event
//!                          ▲                                       ▲                └─ else ─► wait longer and longer
//!                          └── moved after each delivery           └── until `retry_for` has passed ──┘
//! ```
//!
//! An event is delivered once in the normal case. If a replica dies after a delivery and before it has moved the cursor, another one
//! delivers the event again with the same id.

mod client;
mod delivery;
mod gitlab_alert;
mod metrics;
mod neutral;
mod payload;
mod target;

use std::{
    collections::HashSet,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use files::unreadable;
use proto::{
    ReplicaId,
    events::{Event, EventKind, Severity},
};
use serde_saphyr::Spanned;
use settings::ConfigError;
use tokio_util::sync::CancellationToken;

pub use self::metrics::WebhookMetrics;
use self::target::WebhookUrl;
use outbound::AddressPolicy;

use crate::{EventFilter, Events, EventsConfig, WebhookConfig, WebhookFormat, WebhookSeverity};

/// The key of the networks of a webhook, for errors.
const NETWORKS_KEY: &str = "events.webhooks[].allowed_networks";
/// The most webhooks.
const MAX_WEBHOOKS: usize = 20;
/// The longest name of a webhook, in bytes.
const MAX_NAME: usize = 63;

/// A receiver whose configuration is valid. Clones are cheap.
#[derive(Clone)]
pub struct Webhook(Arc<WebhookSettings>);

struct WebhookSettings {
    name: String,
    /// The URL, unless it is in a file.
    url: Option<WebhookUrl>,
    url_file: Option<PathBuf>,
    secret_file: Option<PathBuf>,
    token_file: Option<PathBuf>,
    ca_file: Option<PathBuf>,
    format: WebhookFormat,
    filter: EventFilter,
    /// Select the ends of alerts, if the receiver has alerts that begin and end.
    ends: Vec<EventFilter>,
    addresses: AddressPolicy,
    /// http is allowed, because the networks are named.
    allows_plain_text: bool,
    retry_for: Duration,
}

/// The parts of a replica that deliver events.
#[derive(Clone, Debug)]
pub struct WebhookContext {
    /// The events.
    pub events: Events,
    /// This replica.
    pub replica: ReplicaId,
    /// Counts deliveries.
    pub metrics: WebhookMetrics,
    /// Cancelled when the replica stops.
    pub stopping: CancellationToken,
}

impl Webhook {
    /// Reads the webhooks of a configuration, and checks the files that they name.
    ///
    /// # Errors
    ///
    /// An entry is invalid; the error names the file, the line and the key.
    pub fn read(file: &Path, config: &EventsConfig) -> Result<Vec<Self>, ConfigError> {
        let mut names = HashSet::new();
        let entries = config.webhooks.iter().enumerate();
        entries
            .map(|(index, entry)| {
                let at = Position { file, index };
                let name = &entry.name;
                if index >= MAX_WEBHOOKS {
                    return Err(at.error("name", name, format!("there are at most {MAX_WEBHOOKS} webhooks")));
                }
                if !is_name(&name.value) {
                    let what = "a name is 1 to 63 lower-case letters, digits and '-'";
                    return Err(at.error("name", name, what.to_owned()));
                }
                if !names.insert(&name.value) {
                    return Err(at.error("name", name, format!("there are two webhooks {:?}", name.value)));
                }
                Self::of_entry(entry, &at)
            })
            .collect()
    }

    fn of_entry(entry: &WebhookConfig, at: &Position<'_>) -> Result<Self, ConfigError> {
        let addresses = AddressPolicy::new(NETWORKS_KEY, &entry.allowed_networks).without_private();
        let allows_plain_text = !entry.allowed_networks.is_empty();
        let url = match (&entry.url, &entry.url_file) {
            (Some(url), None) => {
                let parsed = WebhookUrl::parse(&url.value, allows_plain_text);
                let parsed = parsed.map_err(|error| at.error("url", url, error.to_string()))?;
                if let Some(address) = parsed.address() {
                    addresses.check(address).map_err(|error| at.error("url", url, error.to_string()))?;
                }
                Some(parsed)
            }
            (None, Some(_)) => None,
            (None, None) => {
                let what = "a webhook needs url, or url_file with the URL in a file".to_owned();
                return Err(at.error("url", &entry.name, what));
            }
            (Some(_), Some(path)) => {
                return Err(at.error("url_file", path, "url is set, too: use one of them".to_owned()));
            }
        };
        if entry.format == WebhookFormat::Json && entry.secret_file.is_none() {
            let what = "a webhook with format json needs secret_file, so that its receiver knows who sends: `openssl rand -base64 32`";
            return Err(at.error("secret_file", &entry.name, what.to_owned()));
        }
        if entry.format == WebhookFormat::GitlabAlert && entry.token_file.is_none() {
            let what = "a webhook with format gitlab_alert needs token_file with the authorization key, which GitLab shows beside the URL";
            return Err(at.error("token_file", &entry.name, what.to_owned()));
        }
        let kinds = entry.kinds.iter().map(|kind| {
            kind.value.parse::<EventKind>().map_err(|error| at.error("kinds", kind, error.to_string()))
        });
        let filter = EventFilter {
            only: None,
            agents: entry.agents.clone(),
            kinds: kinds.collect::<Result<_, _>>()?,
            projects: entry.projects.clone(),
            severity: match entry.severity {
                WebhookSeverity::Info => Severity::Info,
                WebhookSeverity::Warning => Severity::Warning,
                WebhookSeverity::Error => Severity::Error,
            },
        };
        let ends = if entry.format == WebhookFormat::GitlabAlert {
            gitlab_alert::filters_of_ends(&filter)
        } else {
            Vec::new()
        };
        let path = |path: &Option<Spanned<PathBuf>>| path.as_ref().map(|path| path.value.clone());
        let webhook = Self(Arc::new(WebhookSettings {
            name: entry.name.value.clone(),
            url,
            url_file: path(&entry.url_file),
            secret_file: path(&entry.secret_file),
            token_file: path(&entry.token_file),
            ca_file: path(&entry.ca_certificate_file),
            format: entry.format,
            filter,
            ends,
            addresses,
            allows_plain_text,
            retry_for: entry.retry_for,
        }));
        let settings = &*webhook.0;
        if let Some(path) = &entry.url_file {
            settings.read_url().map_err(|what| at.error("url_file", path, what))?;
        }
        if let Some(path) = &entry.secret_file {
            settings.read_secret().map_err(|what| at.error("secret_file", path, what))?;
        }
        if let Some(path) = &entry.token_file {
            settings.read_token().map_err(|what| at.error("token_file", path, what))?;
        }
        if let Some(path) = &entry.ca_certificate_file {
            settings.read_roots().map_err(|what| at.error("ca_certificate_file", path, what))?;
        }
        Ok(webhook)
    }

    /// Delivers events while this replica has claimed the cursor of the webhook, until the replica stops.
    pub async fn run(self, context: WebhookContext) {
        delivery::run(&self.0, &context).await;
    }
}

impl WebhookSettings {
    /// Returns whether the receiver gets an event, with the identity file as it is now.
    fn selects(&self, events: &Events, event: &Event) -> bool {
        let is_end_of_alert =
            |ends: &EventFilter| gitlab_alert::is_end(&event.content) && events.selects(ends, event);
        events.selects(&self.filter, event) || self.ends.iter().any(is_end_of_alert)
    }
}

/// The position of an entry, for errors.
struct Position<'a> {
    file: &'a Path,
    index: usize,
}

impl Position<'_> {
    fn error<T>(&self, key: &str, at: &Spanned<T>, what: String) -> ConfigError {
        let key = format!("events.webhooks[{}].{key}", self.index);
        ConfigError::new(self.file, at.referenced, key, what)
    }
}

fn is_name(text: &str) -> bool {
    let valid = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(valid)
}

/// Reads a file of a webhook. Errors do not have its content.
fn read_file(path: &Path) -> Result<String, String> {
    const MAX_BYTES: u64 = 64 << 10;
    files::read_text_at_most(path, MAX_BYTES)
        .map_err(|error| format!("{}: {}", path.display(), unreadable(&error)))
}

/// Without the URL, which may be a secret.
impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhook").field("name", &self.0.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";

    fn read(text: &str) -> Result<Vec<Webhook>, String> {
        let directory = tempfile::tempdir().unwrap();
        let put = |name: &str, content: &str| std::fs::write(directory.path().join(name), content).unwrap();
        put("secret", SECRET);
        put("short", "c2hvcnQ=");
        put("lines", "a\nb");
        put("url", "https://hooks.example.com/services/T0/B0/xxxx\n");
        put("metadata", "http://169.254.169.254/latest");
        let text = text.replace("$DIR", &directory.path().display().to_string());
        let file = Path::new("kas.yaml");
        let config: EventsConfig = settings::parse(file, &text).map_err(|error| error.to_string())?;
        Webhook::read(file, &config).map_err(|error| error.to_string())
    }

    #[test]
    fn valid_webhooks_are_read() {
        let webhooks = read(
            "webhooks:\n\
             - {name: ops, url: 'https://ops.example.com/kas?x=1', secret_file: $DIR/secret, kinds: [sync, drift], agents: [prod], severity: warning}\n\
             - {name: gitlab, url: 'https://gitlab.example.com/a/b/alerts/notify/kas/0.json', token_file: $DIR/url, format: gitlab_alert}\n\
             - {name: chat, url_file: $DIR/url, format: slack, retry_for: 1h}\n\
             - {name: internal, url: 'http://10.0.0.7:8080/', secret_file: $DIR/secret, allowed_networks: [10.0.0.0/24]}\n",
        );
        let webhooks = webhooks.unwrap();
        let names: Vec<&str> = webhooks.iter().map(|webhook| &*webhook.0.name).collect();
        assert_eq!(names, ["ops", "gitlab", "chat", "internal"]);
        assert_eq!(webhooks[0].0.filter.kinds, [EventKind::Sync, EventKind::Drift]);
        assert_eq!(webhooks[2].0.retry_for, Duration::from_secs(3600));
        assert!(!format!("{webhooks:?}").contains("example.com"), "the URL may be a secret");
    }

    #[test]
    fn invalid_webhook_is_refused_with_line_and_key() {
        for (entry, expected) in [
            (
                "{name: a b, url: 'https://a.example.com', format: slack}",
                "kas.yaml:2:10: events.webhooks[0].name: a name is",
            ),
            ("{name: a, format: slack}", "events.webhooks[0].url: a webhook needs url"),
            (
                "{name: a, url: 'https://a.example.com'}",
                "secret_file: a webhook with format json needs secret_file",
            ),
            (
                "{name: a, url: 'https://a.example.com', url_file: $DIR/url, format: slack}",
                "url_file: url is set, too",
            ),
            ("{name: a, url: 'http://a.example.com', format: slack}", "url: http needs allowed_networks"),
            ("{name: a, url: 'ftp://a.example.com', format: slack}", "url: it is not a URL of https"),
            (
                "{name: a, url: 'https://u:p@a.example.com', format: slack}",
                "url: it has a user or a fragment",
            ),
            (
                "{name: a, url: 'https://169.254.169.254/', format: slack}",
                "kas.yaml:2:18: events.webhooks[0].url: 169.254.169.254 is a link-local address",
            ),
            ("{name: a, url: 'https://[::1]/', format: slack}", "url: ::1 is a loopback address"),
            ("{name: a, url: 'https://10.1.2.3/', format: slack}", "url: 10.1.2.3 is a private address"),
            (
                "{name: a, url: 'http://10.1.2.3/', format: slack, allowed_networks: [10.2.0.0/16]}",
                "10.1.2.3 is in none of the networks",
            ),
            (
                "{name: a, url_file: $DIR/metadata, format: slack, allowed_networks: [10.0.0.0/8]}",
                "url_file: 169.254.169.254 is in none",
            ),
            ("{name: a, url: 'https://a.example.com', secret_file: $DIR/short}", "secret_file: "),
            ("{name: a, url: 'https://a.example.com', secret_file: $DIR/none}", "the file does not exist"),
            (
                "{name: a, url: 'https://a.example.com', format: gitlab_alert}",
                "events.webhooks[0].token_file: a webhook with format gitlab_alert needs token_file",
            ),
            (
                "{name: a, url: 'https://a.example.com', format: gitlab_alert, token_file: $DIR/lines}",
                "events.webhooks[0].token_file: ",
            ),
            (
                "{name: a, url: 'https://a.example.com', format: slack, token_file: $DIR/none}",
                "the file does not exist",
            ),
            (
                "{name: a, url: 'https://a.example.com', format: slack, kinds: [syncs]}",
                "kinds: \"syncs\" is not a kind of event: the kinds are",
            ),
            ("{name: a, url: 'https://a.example.com', format: teams}", "unknown variant `teams`"),
            (
                "{name: a, url: 'https://a.example.com', format: slack, ca_certificate_file: $DIR/secret}",
                "ca_certificate_file: ",
            ),
            ("{name: a, url: 'https://a.example.com', format: slack, retry_for: 0s}", "retry_for"),
        ] {
            let error = read(&format!("webhooks:\n- {entry}\n")).unwrap_err();
            assert!(error.contains(expected), "{entry}\n gave {error}");
            assert!(!error.contains("u:p@"), "{error}");
        }
        let two = "{name: a, url: 'https://a.example.com', format: slack}";
        let error = read(&format!("webhooks:\n- {two}\n- {two}\n")).unwrap_err();
        assert!(
            error.starts_with("kas.yaml:3:10: events.webhooks[1].name: there are two webhooks"),
            "{error}"
        );
    }
}
