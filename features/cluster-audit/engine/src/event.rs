//! Reads one event, and keeps what is of the level Metadata and cannot be a secret.

use std::{borrow::Cow, net::IpAddr, time::SystemTime};

use proto::audit::{ClusterEvent, ClusterUser, EventObject, Stage};
use serde::Deserialize;

/// The longest name of a user or an object, in bytes. Names of objects have 253 at most.
const MAX_NAME: usize = 256;
/// The longest name of a group, in bytes.
const MAX_GROUP: usize = 128;
/// The longest other text, in bytes.
const MAX_TEXT: usize = 512;
/// The longest word, such as a verb or a reason, in bytes.
const MAX_WORD: usize = 64;
const MAX_GROUPS: usize = 16;
const MAX_ADDRESSES: usize = 4;
/// The longest line, in bytes. agentk and kas add their fields.
const MAX_LINE: usize = proto::audit::MAX_LINE - 1024;
/// The subresource whose paths continue with a path of an application, which may have a secret in it.
const PROXY: &str = "proxy";

/// The reason for which an event is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skipped {
    /// The request has not been answered yet. Another event follows.
    Received,
    /// It is no JSON, or no event.
    Malformed,
}

/// The fields of an event that are read (`audit.k8s.io/v1`). Others are skipped without being kept: `requestObject`, `responseObject`,
/// and the message of the status, which quotes values of objects.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ApiEvent<'a> {
    #[serde(borrow, rename = "auditID")]
    audit_id: Cow<'a, str>,
    #[serde(borrow)]
    stage: Cow<'a, str>,
    #[serde(borrow, default, rename = "requestURI")]
    request_uri: Cow<'a, str>,
    #[serde(borrow)]
    verb: Cow<'a, str>,
    #[serde(borrow, default)]
    user: Option<ApiUser<'a>>,
    #[serde(borrow, default)]
    impersonated_user: Option<ApiUser<'a>>,
    #[serde(default, rename = "sourceIPs")]
    source_addresses: Option<Vec<Cow<'a, str>>>,
    #[serde(borrow, default)]
    user_agent: Cow<'a, str>,
    #[serde(borrow, default)]
    object_ref: Option<ApiObject<'a>>,
    #[serde(borrow, default)]
    response_status: Option<ApiStatus<'a>>,
    #[serde(borrow, default)]
    request_received_timestamp: Cow<'a, str>,
    #[serde(borrow, default)]
    stage_timestamp: Cow<'a, str>,
    #[serde(borrow, default)]
    annotations: Option<Annotations<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ApiUser<'a> {
    #[serde(borrow)]
    username: Cow<'a, str>,
    #[serde(borrow)]
    uid: Cow<'a, str>,
    groups: Option<Vec<Cow<'a, str>>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ApiObject<'a> {
    #[serde(borrow)]
    api_group: Cow<'a, str>,
    #[serde(borrow)]
    resource: Cow<'a, str>,
    #[serde(borrow)]
    subresource: Cow<'a, str>,
    #[serde(borrow)]
    namespace: Cow<'a, str>,
    #[serde(borrow)]
    name: Cow<'a, str>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ApiStatus<'a> {
    code: Option<u16>,
    #[serde(borrow)]
    reason: Cow<'a, str>,
}

/// The annotations that are kept. Those of mutating webhooks have parts of objects.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Annotations<'a> {
    #[serde(borrow, rename = "authorization.k8s.io/decision")]
    decision: Cow<'a, str>,
    #[serde(borrow, rename = "authorization.k8s.io/reason")]
    reason: Cow<'a, str>,
}

/// Cuts texts, and notes whether one was too long.
#[derive(Default)]
struct Cutter {
    cut: bool,
}

/// Reads an event. `now` is its time if it has none.
///
/// # Errors
///
/// The event is not kept.
pub fn parse(json: &[u8], now: SystemTime) -> Result<ClusterEvent, Skipped> {
    let event: ApiEvent<'_> = serde_json::from_slice(json).map_err(|_| Skipped::Malformed)?;
    let stage = match &*event.stage {
        "RequestReceived" => return Err(Skipped::Received),
        "ResponseStarted" => Stage::Started,
        "ResponseComplete" => Stage::Complete,
        "Panic" => Stage::Panic,
        _ => return Err(Skipped::Malformed),
    };
    let time = humantime::parse_rfc3339(&event.request_received_timestamp).ok();
    let end = humantime::parse_rfc3339(&event.stage_timestamp).ok();
    let duration = time.zip(end).and_then(|(time, end)| end.duration_since(time).ok());
    let mut cutter = Cutter::default();
    let cutter = &mut cutter;
    let (path, query) = event.request_uri.split_once('?').unwrap_or((&event.request_uri, ""));
    let object = event.object_ref.filter(|object| !object.resource.is_empty());
    let status = event.response_status.unwrap_or_default();
    let annotations = event.annotations.unwrap_or_default();
    let addresses = event.source_addresses.unwrap_or_default();
    let addresses = addresses.iter().filter_map(|text| text.parse::<IpAddr>().ok());
    Ok(ClusterEvent {
        position: String::new(),
        of_agentk: None,
        time: format_time(time.unwrap_or(now)),
        stage,
        duration_ms: duration.map(|duration| duration.as_micros() as f64 / 1000.0),
        audit_id: cutter.text(&event.audit_id, MAX_NAME),
        verb: cutter.text(&event.verb, MAX_WORD),
        cluster_user: cutter.user(&event.user.unwrap_or_default()),
        impersonated_user: event.impersonated_user.as_ref().map(|user| cutter.user(user)),
        path: object.is_none().then(|| cutter.text(path, MAX_TEXT)),
        object: object.map(|object| cutter.object(&object)),
        dry_run: is_dry_run(&event.verb, query),
        status: status.code,
        reason: cutter.optional(&status.reason, MAX_WORD),
        decision: cutter.optional(&annotations.decision, MAX_WORD),
        decision_reason: cutter.optional(&annotations.reason, MAX_TEXT),
        source_addresses: addresses.take(MAX_ADDRESSES).collect(),
        user_agent: cutter.optional(&event.user_agent, MAX_NAME),
        cut: cutter.cut,
    })
}

/// Appends the line of an event. If the line is too long, it has neither groups nor the reason of the decision: texts of quotation marks
/// are twice as long in JSON. Returns false if it is too long even so.
pub fn append_line(event: &ClusterEvent, lines: &mut Vec<u8>) -> bool {
    append(event, lines) || append(&without_long_fields(event.clone()), lines)
}

fn append(event: &ClusterEvent, lines: &mut Vec<u8>) -> bool {
    let start = lines.len();
    serde_json::to_writer(&mut *lines, event).expect("it has keys that are text");
    let fits = lines.len() - start <= MAX_LINE;
    if fits {
        lines.push(b'\n')
    } else {
        lines.truncate(start)
    }
    fits
}

fn without_long_fields(mut event: ClusterEvent) -> ClusterEvent {
    event.cluster_user.groups.clear();
    if let Some(user) = &mut event.impersonated_user {
        user.groups.clear();
    }
    (event.decision_reason, event.cut) = (None, true);
    event
}

/// Returns a time in the form that all events have, so that texts are in the order of times.
fn format_time(time: SystemTime) -> String {
    humantime::format_rfc3339_micros(time).to_string()
}

/// Returns whether the query asks for a request that changes nothing. Values of other parameters, such as the command of an exec, are
/// not looked at. The API server ignores the query of a deletion that has a body, and agentk does not see bodies.
fn is_dry_run(verb: &str, query: &str) -> bool {
    !verb.starts_with("delete")
        && query.split('&').any(|pair| pair.strip_prefix("dryRun=").is_some_and(|value| !value.is_empty()))
}

impl Cutter {
    fn user(&mut self, user: &ApiUser<'_>) -> ClusterUser {
        let groups = user.groups.as_deref().unwrap_or_default();
        self.cut |= groups.len() > MAX_GROUPS;
        ClusterUser {
            name: self.text(&user.username, MAX_NAME),
            uid: self.optional(&user.uid, MAX_NAME),
            groups: groups.iter().take(MAX_GROUPS).map(|group| self.text(group, MAX_GROUP)).collect(),
        }
    }

    fn object(&mut self, object: &ApiObject<'_>) -> EventObject {
        // What follows `proxy` is the path of an application.
        let subresource = match object.subresource.split_once('/') {
            Some((PROXY, _)) => PROXY,
            _ => &object.subresource,
        };
        EventObject {
            group: self.text(&object.api_group, MAX_NAME),
            resource: self.text(&object.resource, MAX_NAME),
            subresource: self.text(subresource, MAX_NAME),
            namespace: self.text(&object.namespace, MAX_NAME),
            name: self.text(&object.name, MAX_NAME),
        }
    }

    fn optional(&mut self, text: &str, most: usize) -> Option<String> {
        (!text.is_empty()).then(|| self.text(text, most))
    }

    /// Returns the beginning of a text. Control characters are replaced: they could move the cursor of a terminal.
    fn text(&mut self, text: &str, most: usize) -> String {
        let kept = &text[..text.floor_char_boundary(most)];
        self.cut |= kept.len() < text.len();
        if kept.contains(char::is_control) {
            kept.replace(char::is_control, "\u{fffd}")
        } else {
            kept.to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use serde_json::{Value, json};

    use super::*;

    /// An event as Kubernetes 1.37 sends it for `kubectl delete`, with what a policy of the level RequestResponse adds.
    fn delete() -> Value {
        json!({
            "level": "RequestResponse",
            "auditID": "kas-000102030405060708090a0b0c0d0e0f",
            "stage": "ResponseComplete",
            "requestURI": "/api/v1/namespaces/shop/configmaps/settings?dryRun=All&token=of-the-query",
            "verb": "delete",
            "user": {"username": "system:serviceaccount:agentk:agentk", "uid": "u-1", "groups": ["system:serviceaccounts"],
                "extra": {"authentication.kubernetes.io/pod-name": ["agentk-1"], "token": ["of-the-extra"]}},
            "impersonatedUser": {"username": "gitlab:ci_job:3", "groups": ["gitlab:ci_job"]},
            "sourceIPs": ["192.0.2.7", "10.0.0.1"],
            "userAgent": "kubectl/v1.37",
            "objectRef": {"resource": "configmaps", "namespace": "shop", "name": "settings", "apiVersion": "v1"},
            "responseStatus": {"metadata": {}, "status": "Failure", "code": 422, "reason": "Invalid", "message": "of-the-message"},
            "requestObject": {"data": {"password": "of-the-request"}},
            "responseObject": {"data": {"password": "of-the-response"}},
            "requestReceivedTimestamp": "2026-01-31T12:00:00.123456Z",
            "stageTimestamp": "2026-01-31T12:00:00.223456Z",
            "annotations": {"authorization.k8s.io/decision": "allow", "authorization.k8s.io/reason": "RBAC: allowed",
                "patch.webhook.admission.k8s.io/round_0_index_0": "of-the-patch"},
        })
    }

    fn parsed(event: &Value) -> Result<ClusterEvent, Skipped> {
        parse(event.to_string().as_bytes(), UNIX_EPOCH)
    }

    #[test]
    fn event_keeps_the_fields_of_the_level_metadata_and_no_secret() {
        let event = parsed(&delete()).unwrap();
        let expected = json!({
            "time": "2026-01-31T12:00:00.123456Z", "stage": "complete", "duration_ms": 100.0,
            "audit_id": "kas-000102030405060708090a0b0c0d0e0f", "verb": "delete",
            "cluster_user": {"name": "system:serviceaccount:agentk:agentk", "uid": "u-1", "groups": ["system:serviceaccounts"]},
            "impersonated_user": {"name": "gitlab:ci_job:3", "groups": ["gitlab:ci_job"]},
            "object": {"resource": "configmaps", "namespace": "shop", "name": "settings"},
            "status": 422, "reason": "Invalid", "decision": "allow", "decision_reason": "RBAC: allowed",
            "source_addresses": ["192.0.2.7", "10.0.0.1"], "user_agent": "kubectl/v1.37",
        });
        let text = serde_json::to_string(&event).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
        assert!(!text.contains("of-the-"), "{text}");
    }

    #[test]
    fn deletion_is_never_a_dry_run() {
        let mut event = delete();
        for (verb, expected) in
            [("delete", false), ("deletecollection", false), ("patch", true), ("create", true)]
        {
            event["verb"] = json!(verb);
            assert_eq!(parsed(&event).unwrap().dry_run, expected, "{verb}");
        }
    }

    #[test]
    fn path_has_neither_the_query_nor_the_path_of_an_application() {
        let mut event = delete();
        event["objectRef"] = Value::Null;
        event["requestURI"] = json!("/logs/a?token=of-the-query");
        assert_eq!(parsed(&event).unwrap().path.unwrap(), "/logs/a");
        event["requestURI"] = json!("/api/v1/namespaces/a/services/b/proxy/reset/of-the-path");
        event["objectRef"] =
            json!({"resource": "services", "name": "b", "subresource": "proxy/reset/of-the-path"});
        let text = serde_json::to_string(&parsed(&event).unwrap()).unwrap();
        assert!(text.contains(r#""subresource":"proxy""#) && !text.contains("of-the-"), "{text}");
    }

    #[test]
    fn only_answered_requests_are_kept() {
        let mut event = delete();
        for (stage, expected) in [
            ("RequestReceived", Err(Skipped::Received)),
            ("ResponseStarted", Ok(Stage::Started)),
            ("ResponseComplete", Ok(Stage::Complete)),
            ("Panic", Ok(Stage::Panic)),
            ("Other", Err(Skipped::Malformed)),
        ] {
            event["stage"] = json!(stage);
            assert_eq!(parsed(&event).map(|event| event.stage), expected, "{stage}");
        }
        for text in
            ["", "{}", "[]", "{\"stage\":", r#"{"stage":"Panic","auditID":"a","verb":"get","user":"root"}"#]
        {
            assert_eq!(parse(text.as_bytes(), UNIX_EPOCH), Err(Skipped::Malformed), "{text}");
        }
    }

    #[test]
    fn hostile_event_is_cut_and_has_no_control_characters() {
        let long = "ü\u{1b}[2J".repeat(1000);
        let mut event = delete();
        for field in ["auditID", "verb", "userAgent"] {
            event[field] = json!(long);
        }
        event["user"] = json!({"username": long, "uid": long, "groups": vec![&long; 100]});
        event["impersonatedUser"] = event["user"].clone();
        event["objectRef"] =
            json!({"apiGroup": long, "resource": long, "subresource": long, "namespace": long, "name": long});
        event["sourceIPs"] = json!(vec!["not an address"; 1000]);
        event["annotations"]["authorization.k8s.io/reason"] = json!(long);
        event["responseStatus"]["reason"] = json!(long);
        event["requestReceivedTimestamp"] = json!("yesterday");
        let event = parsed(&event).unwrap();
        assert!(event.cut);
        assert_eq!((event.time.as_str(), event.source_addresses.len()), ("1970-01-01T00:00:00.000000Z", 0));
        let mut lines = Vec::new();
        assert!(append_line(&event, &mut lines));
        let text = String::from_utf8(lines).unwrap();
        assert!(!text.trim_end().contains(char::is_control) && !text.contains("\\u00"), "{text}");
    }

    #[test]
    fn line_that_is_too_long_has_no_groups() {
        let groups = vec!["\u{7}".repeat(1000); 100];
        let mut event = delete();
        for user in ["user", "impersonatedUser"] {
            event[user] = json!({"username": groups[0], "uid": groups[0], "groups": groups});
        }
        event["objectRef"] =
            json!({"apiGroup": groups[0], "resource": groups[0], "name": groups[0], "namespace": groups[0]});
        event["userAgent"] = json!(groups[0]);
        event["annotations"]["authorization.k8s.io/reason"] = json!(groups[0]);
        let mut lines = b"before\n".to_vec();
        let mut event = parsed(&event).unwrap();
        assert!(append_line(&event, &mut lines));
        let line: Value = serde_json::from_slice(&lines[7..]).unwrap();
        assert_eq!((&line["cut"], &line["cluster_user"]["groups"]), (&json!(true), &Value::Null));
        assert_eq!(
            (&line["decision_reason"], &line["object"]["resource"]),
            (&Value::Null, &json!(event.object.as_ref().unwrap().resource))
        );
        lines.truncate(7);
        event.verb = "x".repeat(MAX_LINE);
        assert!(!append_line(&event, &mut lines));
        assert_eq!(lines, b"before\n");
    }
}
