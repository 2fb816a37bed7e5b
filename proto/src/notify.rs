//! Events of Git projects on the wire: what kas sends into the cluster, and what agentk wants to receive.
//!
//! ```text
//!   kas ── GET /v1/subscription ──► agentk    a stream: the projects whose events this pod of agentk wants
//!   kas ── POST /v1/events ───────► agentk    the latest event of a reference of one of them
//! ```
//!
//! These requests are of the internal service `notify`, which callers cannot reach.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};
use settings::rfc3339;

/// The path of the subscription. Its method is GET, and its query is `agent=<id>`.
pub const SUBSCRIPTION_PATH: &str = "/v1/subscription";
/// The path of an event. Its method is POST, and its body is a [`ProjectEvent`].
pub const EVENTS_PATH: &str = "/v1/events";

/// The time between two lines of a subscription.
pub const SUBSCRIPTION_PERIOD: Duration = Duration::from_secs(15);
/// The most projects of one subscription.
pub const MAX_PROJECTS: usize = 1000;
/// The largest event in JSON, in bytes.
pub const MAX_EVENT: usize = 24 << 10;
/// The longest path of a project in bytes.
pub const MAX_PROJECT_PATH: usize = 2048;

/// The longest id of an event, and the longest name of a reference, in bytes.
const MAX_NAME: usize = 255;
/// The most URLs of an event.
const MAX_URLS: usize = 8;
/// The longest URL in bytes.
const MAX_URL: usize = 2048;

/// A line of a subscription: the events that a pod of agentk wants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subscription {
    /// The paths of the projects. A pod that does not lead names none.
    pub projects: Vec<String>,
    /// A number that changes when the pod may have lost accepted events, or has other uses for them. kas sends the latest ones again.
    #[serde(default)]
    pub generation: u64,
}

/// A change of a Git project or of an artifact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "ProjectEventFields", into = "ProjectEventFields")]
pub struct ProjectEvent(Arc<ProjectEventFields>);

/// The fields of a [`ProjectEvent`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProjectEventFields {
    /// The id. An event that arrives twice with one id is one event.
    pub id: String,
    /// The order among the events of the project: a later event has a higher number.
    #[serde(default)]
    pub sequence: u64,
    /// The full path of the project, such as `group/project`.
    pub project: String,
    /// The branch or tag that changed, such as `refs/heads/main`, if it is known.
    #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// The commit before the change, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// The commit after the change, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// The URLs at which the repository can be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub urls: Vec<String>,
    /// The time of the change, or the time at which kas learned of it.
    #[serde(with = "rfc3339")]
    pub time: SystemTime,
}

/// The error of an event with an invalid field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is invalid: {problem}")]
pub struct InvalidProjectEvent {
    /// The name of the field.
    pub field: &'static str,
    /// The problem.
    pub problem: &'static str,
}

impl ProjectEvent {
    /// Returns the fields.
    pub fn fields(&self) -> &ProjectEventFields {
        &self.0
    }

    /// Returns the id.
    pub fn id(&self) -> &str {
        &self.0.id
    }

    /// Returns the full path of the project.
    pub fn project(&self) -> &str {
        &self.0.project
    }

    /// Returns the reference, which is empty if it is not known.
    pub fn reference(&self) -> &str {
        self.0.reference.as_deref().unwrap_or_default()
    }

    /// Returns the same event with another number.
    #[must_use]
    pub fn with_sequence(&self, sequence: u64) -> Self {
        Self(Arc::new(ProjectEventFields { sequence, ..(*self.0).clone() }))
    }
}

/// Returns whether a text can be the full path of a project of GitLab, or of a repository elsewhere.
pub fn is_project_path(path: &str) -> bool {
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-/".contains(&byte);
    !path.is_empty() && path.len() <= MAX_PROJECT_PATH && path.bytes().all(valid)
}

/// Returns whether the path of a project or a group is this one, or one below it. GitLab has no two paths that differ in case only.
pub fn is_at_or_below(path: &str, above: &str) -> bool {
    let (Some(start), Some(rest)) = (path.get(..above.len()), path.get(above.len()..)) else { return false };
    start.eq_ignore_ascii_case(above) && (rest.is_empty() || rest.starts_with('/'))
}

/// Returns whether a text is the id of a commit: a SHA-1 or a SHA-256 in lower case.
fn is_commit(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns whether a text can be the full name of a branch or tag (`git check-ref-format`, without non-ASCII characters).
fn is_reference(name: &str) -> bool {
    let forbidden = |byte: u8| !byte.is_ascii_graphic() || b"~^:?*[\\\"'`<>".contains(&byte);
    name.starts_with("refs/")
        && name.len() <= MAX_NAME
        && !name.bytes().any(forbidden)
        && !["..", "//", "@{"].iter().any(|sequence| name.contains(sequence))
        && !name.ends_with(['/', '.'])
}

/// Returns whether a text can be the URL of a repository. One with a password is no such URL: events are shown to others.
fn is_repository_url(url: &str) -> bool {
    let Some((scheme, rest)) = url.split_once("://") else { return false };
    let authority = rest.split('/').next().unwrap_or_default();
    let user = authority.rsplit_once('@').map(|(user, _)| user);
    ["https", "http", "ssh", "git", "oci"].contains(&scheme)
        && url.len() <= MAX_URL
        && url.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"\\".contains(&byte))
        && user.is_none_or(|user| scheme == "ssh" && !user.contains(':'))
}

impl TryFrom<ProjectEventFields> for ProjectEvent {
    type Error = InvalidProjectEvent;

    fn try_from(fields: ProjectEventFields) -> Result<Self, InvalidProjectEvent> {
        let valid_id = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
        let id = &fields.id;
        let commits = || fields.before.iter().chain(&fields.after);
        let problem = if id.is_empty() || id.len() > MAX_NAME || !id.bytes().all(valid_id) {
            ("id", "use 1 to 255 letters, digits and any of ._:-")
        } else if !is_project_path(&fields.project) {
            ("project", "use the full path, such as group/project, of letters, digits and any of _.-/")
        } else if fields.reference.as_deref().is_some_and(|name| !is_reference(name)) {
            ("ref", "use the full name, such as refs/heads/main, of at most 255 ASCII characters")
        } else if commits().any(|commit| !is_commit(commit)) {
            ("before or after", "use all 40 or 64 hexadecimal digits of a commit, in lower case")
        } else if fields.urls.len() > MAX_URLS {
            ("urls", "an event has at most 8 URLs")
        } else if fields.urls.iter().any(|url| !is_repository_url(url)) {
            ("urls", "use https, http, ssh, git or oci, without a password")
        } else {
            return Ok(Self(Arc::new(fields)));
        };
        Err(InvalidProjectEvent { field: problem.0, problem: problem.1 })
    }
}

impl From<ProjectEvent> for ProjectEventFields {
    fn from(event: ProjectEvent) -> Self {
        Arc::unwrap_or_clone(event.0)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parse(changes: Value) -> Result<ProjectEvent, String> {
        let mut event = json!({"id": "e-1", "project": "group/shop", "time": "2026-11-24T10:00:00Z"});
        event.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        serde_json::from_value(event).map_err(|error| error.to_string())
    }

    #[test]
    fn event_is_what_was_sent() {
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let urls = json!([
            "https://gitlab.example.com/group/shop.git",
            "ssh://git@gitlab.example.com/group/shop.git"
        ]);
        let event =
            parse(json!({"ref": "refs/heads/main", "after": commit, "urls": urls, "sequence": 7})).unwrap();
        assert_eq!(
            (event.project(), event.reference(), event.fields().sequence),
            ("group/shop", "refs/heads/main", 7)
        );
        let text = serde_json::to_string(&event).unwrap();
        assert_eq!(serde_json::from_str::<ProjectEvent>(&text).unwrap(), event);
        assert_eq!(parse(json!({})).unwrap().reference(), "");
    }

    #[test]
    fn invalid_field_is_named() {
        for (changes, field) in [
            (json!({"id": ""}), "id is"),
            (json!({"id": "a b"}), "id is"),
            (json!({"id": "a".repeat(256)}), "id is"),
            (json!({"project": "a b"}), "project is"),
            (json!({"project": "a\n"}), "project is"),
            (json!({"ref": "main"}), "ref is"),
            (json!({"ref": "refs/heads/a..b"}), "ref is"),
            (json!({"ref": "refs/heads/a\u{7}"}), "ref is"),
            (json!({"after": "0123"}), "before or after is"),
            (json!({"before": "A".repeat(40)}), "before or after is"),
            (json!({"urls": vec!["https://a/b"; 9]}), "urls is"),
            (json!({"urls": ["https://user:hunter2@a/b"]}), "urls is"),
            (json!({"urls": ["https://token@a/b"]}), "urls is"),
            (json!({"urls": ["file:///etc/passwd"]}), "urls is"),
            (json!({"urls": ["https://a/b\\c"]}), "urls is"),
        ] {
            let error = parse(changes.clone()).unwrap_err();
            assert!(error.contains(field) && !error.contains("hunter2"), "{changes}: {error}");
        }
    }
}
