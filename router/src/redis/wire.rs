//! The wire format: heartbeats, route records and events as text. It does no I/O. Decoding checks all limits.
//!
//! The format is JSON, so that `redis-cli` shows it, with arrays in route records, of which there are thousands. Each
//! text begins with the version of its format. A reader ignores other versions, so that replicas of two versions can
//! share a Redis.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::Uri;
use proto::{AgentId, AgentName, Epoch, InstanceId, ReplicaId};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, DeserializeOwned},
};
use serde_json::{Value, json};

use crate::{pushes::GitPush, store::Instance};

/// The version of all three formats.
const VERSION: u16 = 1;
/// The greatest length of a heartbeat or route record in bytes. Longer values are not read from Redis.
pub(super) const MAX_RECORD: usize = 2048;
/// The greatest length of the list of a project's agents in bytes: some 180 agents or more.
pub(super) const MAX_PROJECT: usize = 16_384;
/// The greatest length of the record of the kill switch in bytes.
pub(super) const MAX_DISABLED: usize = 65_536;
/// The greatest length of an event in bytes.
pub(super) const MAX_EVENT: usize = 65_536;
/// The highest number of agents in one event. An agent id has at most 20 digits.
pub(super) const MAX_AGENTS: usize = 2000;
/// The highest number of pushes in one event. A path has at most 2048 bytes.
pub(super) const MAX_PUSHES: usize = 30;
/// The greatest length of a text in a heartbeat or route record in bytes.
const MAX_TEXT: usize = 253;

/// The heartbeat of a live replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The URL of its private listener: scheme, host and port.
    pub url: String,
    /// The name of the fleet that the replica belongs to.
    pub fleet: String,
    /// The version of kas.
    pub kas: String,
    /// The time when it started, in seconds since 1970.
    pub started: u64,
    /// The number of its tunnels, or `None` if it takes no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tunnels: Option<u32>,
}

/// The record of one agent at one replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteRecord {
    /// The order of the replica's announcements for the agent.
    pub epoch: Epoch,
    /// The agent's instances with tunnels to the replica.
    pub instances: Vec<Instance>,
}

/// An event that a replica publishes to the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The replica that sent it.
    pub replica: ReplicaId,
    /// The number of its connections to Redis. It writes all records anew after each.
    pub generation: u64,
    /// The number of the event in its generation, from 1. A gap is a missed event.
    pub sequence: u64,
    /// The kind of the event.
    pub kind: EventKind,
}

/// The kind of an [`Event`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// The replica is alive.
    #[serde(rename = "beat")]
    Heartbeat(Heartbeat),
    /// The replica's records of these agents have changed.
    Changed(Vec<AgentId>),
    /// Git projects were pushed to.
    Pushed(Vec<GitPush>),
    /// The record of the kill switch has changed.
    Disabled,
    /// The replica stopped and removed its records.
    Left,
}

/// The error of a text that cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The text is longer than its limit in bytes.
    #[error("it is longer than {0} bytes")]
    TooLong(usize),
    /// The text has another version of the format.
    #[error("it has version {0} of the format, and this kas reads {VERSION}")]
    UnsupportedVersion(u16),
    /// The text does not begin with a version.
    #[error("it does not begin with the version of its format")]
    MissingVersion,
    /// The text is not JSON, or has another shape.
    #[error("it is malformed: {0}")]
    Malformed(#[from] serde_json::Error),
    /// The URL of the heartbeat cannot be that of a private listener.
    #[error("its address is not an http or https URL of scheme, host and port")]
    InvalidUrl,
    /// A text is too long or has control characters.
    #[error("one of its texts is longer than {MAX_TEXT} bytes or has control characters")]
    InvalidText,
    /// The list of agents is too long.
    #[error("it names more than {MAX_AGENTS} agents")]
    TooManyAgents,
    /// The list of pushes is too long.
    #[error("it names more than {MAX_PUSHES} pushes")]
    TooManyPushes,
}

/// The elements of an instance that each version writes: id, version, namespace, pod, Kubernetes version, since in seconds,
/// tunnels.
type RowStart = (ShortId, String, Option<String>, Option<String>, Option<String>, u64, u16);

/// The elements that may follow: cluster, scope. A reader ignores those after them, so that later versions may add some.
type RowEnd = (Option<String>, Option<String>);

/// The number of elements of a [`RowStart`].
const ROW_START: usize = 7;
/// The number of elements of a [`RowEnd`].
const ROW_END: usize = 2;

/// The id of an instance in base64url: 22 characters instead of 32. Redis rounds the memory of a record up to the next of
/// its size classes, and these characters are a class of most records.
#[derive(Debug)]
struct ShortId(InstanceId);

impl Serialize for ShortId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&URL_SAFE_NO_PAD.encode(self.0.to_bytes()))
    }
}

impl<'de> Deserialize<'de> for ShortId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        // 0.1 before its release wrote all 32 digits.
        if let Ok(id) = text.parse() {
            return Ok(Self(id));
        }
        let bytes = URL_SAFE_NO_PAD.decode(text.as_bytes()).ok().and_then(|bytes| bytes.try_into().ok());
        let bytes = bytes.ok_or_else(|| de::Error::custom("an instance is not an id in base64url"))?;
        Ok(Self(InstanceId::from_bytes(bytes)))
    }
}

impl Heartbeat {
    /// Encodes the heartbeat.
    pub fn encode(&self) -> String {
        to_json(&(VERSION, self))
    }

    /// Decodes a heartbeat.
    pub fn decode(text: &[u8]) -> Result<Self, WireError> {
        let (_, heartbeat): (u16, Self) = decode(text, MAX_RECORD)?;
        heartbeat.check()?;
        Ok(heartbeat)
    }

    fn check(&self) -> Result<(), WireError> {
        if ![&self.url, &self.fleet, &self.kas].into_iter().all(|text| is_text(text)) {
            return Err(WireError::InvalidText);
        }
        let url: Uri = self.url.parse().map_err(|_| WireError::InvalidUrl)?;
        let http = matches!(url.scheme_str(), Some("http" | "https"));
        let bare = url.path() == "/" && url.query().is_none() && !self.url.contains(['@', '#']);
        if !http || !bare || url.host().is_none_or(str::is_empty) {
            return Err(WireError::InvalidUrl);
        }
        Ok(())
    }
}

impl RouteRecord {
    /// Encodes the record, with as many instances as fit into its greatest length.
    pub fn encode(&self) -> String {
        let mut rows: Vec<Value> = self.instances.iter().map(to_row).collect();
        loop {
            let text = to_json(&(VERSION, self.epoch, &rows));
            if text.len() <= MAX_RECORD {
                return text;
            }
            rows.pop();
        }
    }

    /// Decodes a record.
    pub fn decode(text: &[u8]) -> Result<Self, WireError> {
        let (_, epoch, rows): (u16, Epoch, Vec<Vec<Value>>) = decode(text, MAX_RECORD)?;
        let instances = rows.into_iter().map(from_row).collect::<Result<_, _>>()?;
        Ok(Self { epoch, instances })
    }
}

impl Event {
    /// Encodes the event.
    pub fn encode(&self) -> String {
        to_json(&(VERSION, self.replica, self.generation, self.sequence, &self.kind))
    }

    /// Decodes an event.
    pub fn decode(text: &[u8]) -> Result<Self, WireError> {
        let (_, replica, generation, sequence, kind): (u16, _, _, _, EventKind) = decode(text, MAX_EVENT)?;
        match &kind {
            EventKind::Heartbeat(heartbeat) => heartbeat.check()?,
            EventKind::Changed(agents) if agents.len() > MAX_AGENTS => return Err(WireError::TooManyAgents),
            EventKind::Pushed(pushes) if pushes.len() > MAX_PUSHES => return Err(WireError::TooManyPushes),
            EventKind::Changed(_) | EventKind::Pushed(_) | EventKind::Disabled | EventKind::Left => {}
        }
        Ok(Self { replica, generation, sequence, kind })
    }
}

/// Encodes the agents of a project, as many as fit into the greatest length.
pub(super) fn encode_project(agents: &BTreeMap<AgentId, AgentName>) -> String {
    let mut rows: Vec<(&AgentId, &AgentName)> = agents.iter().collect();
    loop {
        let text = to_json(&(VERSION, &rows));
        if text.len() <= MAX_PROJECT {
            return text;
        }
        rows.truncate(rows.len() / 2);
    }
}

/// Decodes the agents of a project.
pub(super) fn decode_project(text: &[u8]) -> Result<Vec<(AgentId, AgentName)>, WireError> {
    let (_, rows): (u16, Vec<(AgentId, AgentName)>) = decode(text, MAX_PROJECT)?;
    Ok(rows)
}

fn to_row(instance: &Instance) -> Value {
    let Instance { id, version, pod_namespace, pod_name, kubernetes_version, cluster, scope, since, tunnels } =
        instance;
    let since = unix_seconds(*since);
    let mut row: Vec<Value> =
        [json!(ShortId(*id)), json!(version), json!(pod_namespace), json!(pod_name)].into();
    row.extend([json!(kubernetes_version), json!(since), json!(tunnels), json!(cluster), json!(scope)]);
    // There are thousands of rows.
    while row.len() > ROW_START && row.last().is_some_and(Value::is_null) {
        row.pop();
    }
    row.into()
}

fn from_row(mut row: Vec<Value>) -> Result<Instance, WireError> {
    let mut end = row.split_off(row.len().min(ROW_START));
    end.resize(ROW_END, Value::Null);
    let start: RowStart = serde_json::from_value(row.into())?;
    let (ShortId(id), version, pod_namespace, pod_name, kubernetes_version, since, tunnels) = start;
    let (cluster, scope): RowEnd = serde_json::from_value(end.into())?;
    let texts = [Some(&version), pod_namespace.as_ref(), pod_name.as_ref(), kubernetes_version.as_ref()];
    if !texts.into_iter().chain([cluster.as_ref(), scope.as_ref()]).flatten().all(|text| is_text(text)) {
        return Err(WireError::InvalidText);
    }
    let since = from_unix_seconds(since).ok_or(WireError::InvalidText)?;
    Ok(Instance { id, version, pod_namespace, pod_name, kubernetes_version, cluster, scope, since, tunnels })
}

/// Converts a time into seconds since 1970; 0 for earlier times.
pub(super) fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Converts seconds since 1970 into a time, or returns `None` after the year 5138: the addition to a
/// `SystemTime` panics if it overflows.
pub(super) fn from_unix_seconds(seconds: u64) -> Option<SystemTime> {
    (seconds < 100_000_000_000).then(|| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
}

fn is_text(text: &str) -> bool {
    text.len() <= MAX_TEXT && !text.chars().any(char::is_control)
}

pub(super) fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain data has a JSON form")
}

pub(super) fn decode<T: DeserializeOwned>(text: &[u8], most: usize) -> Result<T, WireError> {
    if text.len() > most {
        return Err(WireError::TooLong(most));
    }
    match decode_version(text) {
        Some(VERSION) => Ok(serde_json::from_slice(text)?),
        Some(other) => Err(WireError::UnsupportedVersion(other)),
        None => Err(WireError::MissingVersion),
    }
}

/// Returns the version that a text begins with. Its rest may have any shape.
fn decode_version(text: &[u8]) -> Option<u16> {
    let digits = text.strip_prefix(b"[")?;
    let end = digits.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(&digits[..end]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heartbeat(url: &str) -> Heartbeat {
        Heartbeat {
            url: url.into(),
            fleet: "blue".into(),
            kas: "0.1.0".into(),
            started: 1_700_000_000,
            tunnels: Some(7),
        }
    }

    fn instance(pod: &str) -> Instance {
        Instance {
            id: InstanceId::random(),
            version: "0.1.0".into(),
            pod_namespace: Some("agentk".into()),
            pod_name: Some(pod.into()),
            kubernetes_version: None,
            cluster: Some("0b5c1e4f-6a0e-4b0e-9a53-1c6e1f0d2a7b".into()),
            scope: Some("cluster".into()),
            since: SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000),
            tunnels: 2,
        }
    }

    #[test]
    fn encoded_values_decode_to_the_same() {
        let heartbeat = heartbeat("https://10.0.0.1:8155");
        assert_eq!(Heartbeat::decode(heartbeat.encode().as_bytes()).unwrap(), heartbeat);
        let record = RouteRecord { epoch: Epoch(7), instances: vec![instance("a"), instance("b")] };
        assert_eq!(RouteRecord::decode(record.encode().as_bytes()).unwrap(), record);
        for kind in [
            EventKind::Heartbeat(heartbeat),
            EventKind::Changed(vec![AgentId(1), AgentId(u64::MAX)]),
            EventKind::Pushed(vec![GitPush::new(7, "group/project").unwrap()]),
            EventKind::Disabled,
            EventKind::Left,
        ] {
            let event = Event { replica: ReplicaId::random(), generation: 3, sequence: 9, kind };
            assert_eq!(Event::decode(event.encode().as_bytes()).unwrap(), event);
        }
    }

    #[test]
    fn record_format_is_stable() {
        let id = InstanceId::from_bytes([255; 16]);
        let instance = Instance { id, cluster: None, scope: None, ..instance("a") };
        let record = RouteRecord { epoch: Epoch(7), instances: vec![instance] };
        let rest = "\"0.1.0\",\"agentk\",\"a\",null,1700000000,2]]]";
        assert_eq!(record.encode(), format!("[1,7,[[\"_____________________w\",{rest}"));
        let digits = format!("[1,7,[[\"{}\",{rest}", "f".repeat(32));
        assert_eq!(RouteRecord::decode(digits.as_bytes()).unwrap(), record);
    }

    #[test]
    fn rows_of_older_and_newer_versions_are_decoded() {
        let id = "00000000000000000000000000000001";
        let row = |end: &str| {
            let text = format!("[1,5,[[\"{id}\",\"0.1.0\",null,null,null,1700000000,2{end}]]]");
            let instance = RouteRecord::decode(text.as_bytes()).unwrap().instances.remove(0);
            (instance.cluster, instance.scope)
        };
        assert_eq!(row(""), (None, None));
        assert_eq!(row(",\"uid\""), (Some("uid".to_owned()), None));
        assert_eq!(row(",\"uid\",\"shop\",{\"new\":1},7"), (Some("uid".to_owned()), Some("shop".to_owned())));
    }

    #[test]
    fn event_format_is_stable() {
        let replica = ReplicaId::random();
        let event = |kind| Event { replica, generation: 2, sequence: 3, kind }.encode();
        let head = format!("[1,\"{replica}\",2,3,");
        assert_eq!(event(EventKind::Left), format!("{head}\"left\"]"));
        assert_eq!(event(EventKind::Changed(vec![AgentId(7)])), format!("{head}{{\"changed\":[7]}}]"));
        let pushed = EventKind::Pushed(vec![GitPush::new(7, "a/b").unwrap()]);
        assert_eq!(event(pushed), format!("{head}{{\"pushed\":[[7,\"a/b\"]]}}]"));
        let text = event(EventKind::Heartbeat(heartbeat("https://a:1")));
        assert!(text.starts_with(&format!("{head}{{\"beat\":{{\"url\":\"https://a:1\"")), "{text}");
    }

    #[test]
    fn invalid_record_is_rejected_with_its_reason() {
        let long = "9".repeat(MAX_RECORD + 1);
        let control = RouteRecord { epoch: Epoch(1), instances: vec![instance("a\nb")] }.encode();
        for (text, expected) in [
            ("", "does not begin with the version"),
            ("\u{0}\u{1}garbage", "does not begin with the version"),
            ("[ 1,5,[]]", "does not begin with the version"),
            ("[2,5,[]]", "version 2"),
            ("[99999999,5,[]]", "does not begin with the version"),
            ("[1,-5,[]]", "malformed"),
            ("[1,5,[[[[[", "malformed"),
            ("[1,5,[[\"x\",\"\",null,null,null,0,0]]]", "malformed"),
            (
                "[1,5,[[\"00000000000000000000000000000000\",\"\",null,null,null,18446744073709551615,0]]]",
                "texts",
            ),
            (&control, "control characters"),
            (&long, "longer than 2048 bytes"),
        ] {
            let error = RouteRecord::decode(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn heartbeat_url_is_scheme_host_and_port() {
        for good in ["http://10.0.0.1:8155", "https://kas-1.kas:8155", "https://[fd00::1]:8155/"] {
            assert!(Heartbeat::decode(heartbeat(good).encode().as_bytes()).is_ok(), "{good}");
        }
        for bad in [
            "",
            "kas-1:8155",
            "ftp://kas-1",
            "http://",
            "http://a b",
            "http://a/b",
            "http://a/?b",
            "http://u:p@a",
            "http://a#b",
        ] {
            let error = Heartbeat::decode(heartbeat(bad).encode().as_bytes()).unwrap_err();
            assert!(matches!(error, WireError::InvalidUrl), "{bad}: {error}");
        }
    }

    #[test]
    fn record_drops_instances_beyond_its_limit() {
        let instances = (0..100).map(|n| instance(&format!("agentk-{n}"))).collect();
        let text = RouteRecord { epoch: Epoch(1), instances }.encode();
        assert!(text.len() <= MAX_RECORD);
        assert!(RouteRecord::decode(text.as_bytes()).unwrap().instances.len() > 10);
    }

    #[test]
    fn project_is_bounded_and_its_names_are_checked() {
        let names = |count: u64| -> BTreeMap<AgentId, AgentName> {
            (0..count).map(|n| (AgentId(n), format!("agent-{n}").parse().unwrap())).collect()
        };
        let few = names(3);
        let decoded = decode_project(encode_project(&few).as_bytes()).unwrap();
        assert_eq!(decoded.into_iter().collect::<BTreeMap<_, _>>(), few);
        let text = encode_project(&names(10_000));
        assert!(text.len() <= MAX_PROJECT && decode_project(text.as_bytes()).unwrap().len() > 180);
        for bad in ["", "[2,[]]", "[1,[[7,\"A b\"]]]", "[1,[[-7,\"a\"]]]", "[1,[[[["] {
            assert!(decode_project(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn largest_event_fits() {
        let kind = EventKind::Changed(vec![AgentId(u64::MAX); MAX_AGENTS]);
        let push = GitPush::new(u64::MAX, &"a".repeat(2048)).unwrap();
        for kind in [kind, EventKind::Pushed(vec![push; MAX_PUSHES])] {
            let event =
                Event { replica: ReplicaId::random(), generation: u64::MAX, sequence: u64::MAX, kind };
            assert!(Event::decode(event.encode().as_bytes()).is_ok());
        }
    }
}
