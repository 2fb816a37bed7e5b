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
use proto::{AgentId, AgentName, Epoch, InstanceId, ReplicaId, events};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, DeserializeOwned},
};
use serde_json::{Value, json, value::RawValue};

use crate::{
    pushes::GitPush,
    routes::{Instance, ReportedInfo},
};

/// The version of all formats.
const VERSION: u16 = 1;
/// The greatest length of a heartbeat or route record in bytes. Longer values are not read from Redis.
pub(super) const MAX_RECORD: usize = 2048;
/// The greatest length of the list of a project's agents in bytes: some 180 agents or more.
pub(super) const MAX_PROJECT: usize = 16_384;
/// The greatest length of the record of the kill switch in bytes.
pub const MAX_DISABLED: usize = 65_536;
/// The greatest length of an event of the log in bytes.
pub(super) const MAX_LOGGED_EVENT: usize = 8192;
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
    /// The MAC of the URL, if the replicas share a secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
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
pub struct RedisEvent {
    /// The replica that sent it.
    pub replica: ReplicaId,
    /// The number of its connections to Redis. It writes all records anew after each.
    pub generation: u64,
    /// The number of the event in its generation, from 1. A gap is a missed event.
    pub sequence: u64,
    /// The kind of the event.
    pub kind: RedisEventKind,
}

/// The kind of an [`RedisEvent`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RedisEventKind {
    /// The replica is alive.
    #[serde(rename = "beat")]
    Heartbeat(Heartbeat),
    /// The replica's records of these agents have changed.
    Changed(Vec<AgentId>),
    /// Git projects were pushed to.
    Pushed(Vec<GitPush>),
    /// The record of the kill switch has changed.
    Disabled,
    /// The log has more events.
    Logged,
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
    /// The record, or the URL of the heartbeat, has no MAC, or one that is not valid.
    #[error("it has no MAC of the secret of this replica")]
    InvalidMac,
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
        let texts = [Some(&self.url), Some(&self.fleet), Some(&self.kas), self.mac.as_ref()];
        if !texts.into_iter().flatten().all(|text| is_text(text)) {
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

impl RedisEvent {
    /// Encodes the event.
    pub fn encode(&self) -> String {
        to_json(&(VERSION, self.replica, self.generation, self.sequence, &self.kind))
    }

    /// Decodes an event.
    pub fn decode(text: &[u8]) -> Result<Self, WireError> {
        let (_, replica, generation, sequence, kind): (u16, _, _, _, RedisEventKind) =
            decode(text, MAX_EVENT)?;
        match &kind {
            RedisEventKind::Heartbeat(heartbeat) => heartbeat.check()?,
            RedisEventKind::Changed(agents) if agents.len() > MAX_AGENTS => {
                return Err(WireError::TooManyAgents);
            }
            RedisEventKind::Pushed(pushes) if pushes.len() > MAX_PUSHES => {
                return Err(WireError::TooManyPushes);
            }
            RedisEventKind::Changed(_)
            | RedisEventKind::Pushed(_)
            | RedisEventKind::Disabled
            | RedisEventKind::Logged
            | RedisEventKind::Left => {}
        }
        Ok(Self { replica, generation, sequence, kind })
    }
}

/// Encodes the agents of a project, as many as fit into the greatest length.
pub fn encode_project(agents: &BTreeMap<AgentId, AgentName>) -> String {
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
pub fn decode_project(text: &[u8]) -> Result<Vec<(AgentId, AgentName)>, WireError> {
    let (_, rows): (u16, Vec<(AgentId, AgentName)>) = decode(text, MAX_PROJECT)?;
    Ok(rows)
}

/// Encodes an event of the log. `seal` adds its MAC.
pub fn encode_logged_event(event: &events::Event, seal: impl FnOnce(&str) -> String) -> String {
    format!("[{VERSION},{}]", seal(&to_json(event)))
}

/// Decodes an event of the log, and cuts it to the limits of events. `open` checks its MAC.
pub fn decode_logged_event(
    text: &[u8],
    open: impl FnOnce(Vec<u8>) -> Option<Vec<u8>>,
) -> Result<events::Event, WireError> {
    let (_, sealed): (u16, Box<RawValue>) = decode(text, MAX_LOGGED_EVENT)?;
    let event = open(sealed.get().as_bytes().to_vec()).ok_or(WireError::InvalidMac)?;
    let event: events::Event = serde_json::from_slice(&event)?;
    Ok(events::Event { content: event.content.bounded(), ..event })
}

fn to_row(instance: &Instance) -> Value {
    let Instance { id, reported, since, tunnels } = instance;
    let ReportedInfo { version, pod_namespace, pod_name, kubernetes_version, cluster, scope } = reported;
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
    let reported = ReportedInfo { version, pod_namespace, pod_name, kubernetes_version, cluster, scope };
    Ok(Instance { id, reported, since, tunnels })
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
mod tests;
