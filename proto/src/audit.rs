//! The audit log of a cluster (service `audit`): the lines that agentk sends to kas, and kas to its callers.
//!
//! A line is one JSON value. agentk sends [`ClusterEvent`]s. kas adds the caller of each request that came through kas, which makes
//! them [`JoinedEvent`]s.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// The path of the events.
pub const EVENTS_PATH: &str = "/v1/events";
/// The longest line, in bytes.
pub const MAX_LINE: usize = 16 << 10;
/// The beginning of the audit ids that kas gives to requests. 32 hexadecimal digits follow.
pub const ID_PREFIX: &str = "kas-";
/// The longest project and commit in a `User-Agent`, in characters.
const MAX_ORIGIN: usize = 100;
/// The most events of one response that ends.
pub const MAX_EVENTS: usize = 10_000;

/// A line of a response, with events of the type `E`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum AuditLine<E> {
    /// An event.
    Event(Box<E>),
    /// Events before the next line left the ring of agentk before they were read.
    Gap {
        /// The position after the gap.
        position: String,
        /// The bytes of these events, if they are known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lost_bytes: Option<u64>,
    },
    /// The last line of a response that ends.
    End {
        /// The position from which the next request continues.
        position: String,
        /// There may be further events after this position.
        has_more: bool,
    },
}

/// An event of the cluster's audit log, with the fields of the level Metadata that agentk keeps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterEvent {
    /// The position after this event in the ring of agentk.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub position: String,
    /// True if the request has the credential of agentk. `None` if agentk does not know its own user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_agentk: Option<bool>,
    /// The time at which the API server received the request, in UTC with microseconds (RFC 3339).
    pub time: String,
    /// The stage of the request.
    pub stage: Stage,
    /// The time from `time` to this stage, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<f64>,
    /// The id of the request in the audit log of the cluster.
    pub audit_id: String,
    /// The verb as in RBAC.
    pub verb: String,
    /// The user whose credential the request has.
    pub cluster_user: ClusterUser,
    /// The user as whom the request was executed, if it is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub impersonated_user: Option<ClusterUser>,
    /// The object, unless the request is for another path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<EventObject>,
    /// The path of a request that is for no object, without its query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The request changes nothing (`dryRun`). A deletion may have this in its body, which agentk does not see.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dry_run: bool,
    /// The status of the response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The reason of a failure, such as `NotFound`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The decision of the authorization: `allow` or `forbid`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<String>,
    /// The reason for the decision, such as the names of the binding and of the role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision_reason: Option<String>,
    /// The addresses from which the API server received the request, the first one as its sender reports it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub source_addresses: Vec<IpAddr>,
    /// The program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_agent: Option<String>,
    /// Parts of the event were too long, and are missing.
    #[serde(default, skip_serializing_if = "is_false")]
    pub cut: bool,
}

/// The progress of a request when the API server wrote the event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// The response has begun: only requests that take long, such as watches and shells, have this stage.
    Started,
    /// The response is complete.
    #[default]
    Complete,
    /// The API server has failed.
    Panic,
}

/// A user of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterUser {
    /// The name.
    pub name: String,
    /// The unique id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// The groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
}

/// The object of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventObject {
    /// The API group; absent for the core group.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// The name of the resource in the plural.
    pub resource: String,
    /// The subresource.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub subresource: String,
    /// The namespace; absent for objects in none, and for requests for all namespaces.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The name; absent for collections.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
}

/// The way of a request to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Through {
    /// A caller has sent it through kas.
    Kas,
    /// agentk has sent it by itself.
    Agentk,
    /// It did not pass kas.
    Direct,
    /// It has an id of kas, as the requests of callers have, but no replica remembers it, or its sender is not certain.
    Unknown,
}

/// An event with the request of kas that has caused it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JoinedEvent {
    /// The name or the id of the agent.
    pub agent: String,
    /// The way of the request.
    pub through: Through,
    /// The request, if it came through kas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<KasRequest>,
    /// The deployment whose job has sent the request, if kas has recorded it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment: Option<AuditDeployment>,
    /// The manifests that agentk has applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync: Option<SyncOrigin>,
    /// The event.
    #[serde(flatten)]
    pub event: ClusterEvent,
}

/// A request of a caller of kas, as kas itself knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KasRequest {
    /// The name of the caller.
    pub caller: String,
    /// The user of its OIDC token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The CI job whose credential it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<CiJob>,
    /// The address of the caller.
    pub client: Option<IpAddr>,
    /// The id of the request in all logs of kas and agentk.
    pub id: String,
    /// The replica that has received it.
    pub replica: String,
}

/// A deployment, as kas has recorded it for a job. A text that is unknown is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AuditDeployment {
    /// The full path of the project.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// The slug of the environment.
    pub environment: String,
    /// The status, such as `running` or `success`.
    pub status: String,
    /// The commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The author of the commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// The branch or tag.
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// The number of the merge request in its project.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merge_request: Option<u64>,
    /// The page of the merge request in GitLab.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merge_request_url: Option<String>,
    /// The page of the commit in GitLab.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit_url: Option<String>,
    /// The page of the job in GitLab.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_url: Option<String>,
}

/// The manifests from Git because of which agentk has sent a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncOrigin {
    /// The project in the configuration of the agent.
    pub project: String,
    /// The commit.
    pub commit: String,
}

/// A CI job, as GitLab or the issuer of its OIDC token describes it. A text that is unknown is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CiJob {
    /// The id of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The id of the pipeline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pipeline: Option<String>,
    /// The id of the project.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    /// The path of the project.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// The person or program that has started the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The environment to which the job deploys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment: Option<String>,
    /// The tier of this environment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment_tier: Option<String>,
    /// The commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
}

impl CiJob {
    /// Returns whether nothing is known.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl SyncOrigin {
    /// Returns the `User-Agent` of the requests, which is in the audit log of the cluster.
    pub fn user_agent(&self, version: &str) -> String {
        let plain = |text: &str, others: &str| -> String {
            let kept = |c: char| c.is_ascii_alphanumeric() || others.contains(c);
            text.chars().map(|c| if kept(c) { c } else { '_' }).take(MAX_ORIGIN).collect()
        };
        let (commit, project) = (plain(&self.commit, ""), plain(&self.project, "-_.:/"));
        format!("agentk/{version} gitops/{commit} ({project})")
    }

    /// Reads a [`Self::user_agent`].
    pub fn parse(user_agent: &str) -> Option<Self> {
        let (_, rest) = user_agent.strip_prefix("agentk/")?.split_once(" gitops/")?;
        let (commit, project) = rest.strip_suffix(')')?.split_once(" (")?;
        Some(Self { project: project.to_owned(), commit: commit.to_owned() })
    }
}

/// Returns the number in an audit id that has the form of those of kas.
pub fn parse_id(text: &str) -> Option<u128> {
    let digits = text.strip_prefix(ID_PREFIX).filter(|digits| digits.len() == 32)?;
    let plain = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f');
    digits.bytes().all(plain).then(|| u128::from_str_radix(digits, 16).ok())?
}

fn is_false(value: &bool) -> bool {
    !value
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn id_of_kas_has_one_spelling() {
        assert_eq!(parse_id("kas-000000000000000000000000000000ff"), Some(255));
        for other in [
            "",
            "kas-",
            "kas-ff",
            "kas-000000000000000000000000000000FF",
            "kas-+00000000000000000000000000000ff",
            "kas-000000000000000000000000000000ff0",
            "000000000000000000000000000000ff",
            "4c5a4b4d-6f6e-4b6b-8d8d-4b4b4b4b4b4b",
        ] {
            assert_eq!(parse_id(other), None, "{other:?}");
        }
    }

    #[test]
    fn user_agent_names_the_manifests() {
        let origin = |project: &str, commit: &str| SyncOrigin {
            project: project.to_owned(),
            commit: commit.to_owned(),
        };
        for (written, read) in [
            (origin("shop/web", "714a629c"), origin("shop/web", "714a629c")),
            (origin("a) (b\r\nx: ü", "1 2"), origin("a___b__x:__", "1_2")),
        ] {
            let text = written.user_agent("0.1.0");
            assert_eq!(SyncOrigin::parse(&text), Some(read), "{text}");
        }
        let long = origin(&"x".repeat(1000), &"1".repeat(1000)).user_agent("0.1.0");
        assert!(long.len() < 256, "agentk keeps 256 bytes of it");
        for other in ["", "agentk/0.1.0", "kubectl/v1 gitops/1 (a)", "agentk/0.1.0 gitops/1"] {
            assert_eq!(SyncOrigin::parse(other), None, "{other}");
        }
    }

    #[test]
    fn line_has_its_type_and_only_what_is_known() {
        let event = ClusterEvent {
            time: "2026-01-31T12:00:00.000000Z".to_owned(),
            audit_id: "a".to_owned(),
            verb: "list".to_owned(),
            cluster_user: ClusterUser { name: "jane".to_owned(), ..ClusterUser::default() },
            ..ClusterEvent::default()
        };
        let joined = JoinedEvent {
            agent: "prod".to_owned(),
            through: Through::Direct,
            request: None,
            deployment: None,
            sync: None,
            event,
        };
        let line = AuditLine::Event(Box::new(joined));
        let expected = json!({
            "type": "event", "agent": "prod", "through": "direct", "time": "2026-01-31T12:00:00.000000Z", "stage": "complete",
            "audit_id": "a", "verb": "list", "cluster_user": {"name": "jane"},
        });
        assert_eq!(serde_json::to_value(&line).unwrap(), expected);
        assert_eq!(serde_json::from_value::<AuditLine<JoinedEvent>>(expected).unwrap(), line);
        let end: AuditLine<ClusterEvent> = AuditLine::End { position: "1.2".to_owned(), has_more: false };
        assert_eq!(
            serde_json::to_value(&end).unwrap(),
            json!({"type": "end", "position": "1.2", "has_more": false})
        );
    }
}
