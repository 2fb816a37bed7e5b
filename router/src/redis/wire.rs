//! What stands in Redis, as text: heartbeats, records, events. Pure; everything read here is foreign and bounded.
//!
//! JSON, so that `redis-cli` shows it; arrays where a record stands ten thousand times. Each begins with the version of
//! its format: a reader leaves what it does not know alone, so that replicas of two versions share a Redis.

use std::time::{Duration, SystemTime};

use http::Uri;
use proto::{AgentId, Epoch, InstanceId, ReplicaId};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::store::Instance;

/// The format of all of them.
const VERSION: u16 = 1;
/// Longest heartbeat or record, in bytes: Redis is asked for no more.
pub(super) const MAX_RECORD: usize = 2048;
/// Longest event, in bytes.
pub(super) const MAX_EVENT: usize = 65_536;
/// Most agents in one event: each is a number of at most 20 digits.
pub(super) const MAX_AGENTS: usize = 2000;
/// Longest text within a heartbeat or a record.
const MAX_TEXT: usize = 253;

/// A replica, while it lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Where its peers reach it.
    pub url: String,
    /// Which kas replicas belong together.
    pub fleet: String,
    /// Its version.
    pub kas: String,
    /// When it started, in seconds since 1970.
    pub started: u64,
    /// How many tunnels it has, if it takes more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tunnels: Option<u32>,
}

/// What a replica holds of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Orders what the replica says of the agent.
    pub epoch: Epoch,
    /// The agent's processes.
    pub instances: Vec<Instance>,
}

/// What a replica tells the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Who says it.
    pub from: ReplicaId,
    /// Counts its connections to Redis: with each it says everything anew.
    pub generation: u64,
    /// Counts its events in a generation, from 1: a gap is an event that was missed.
    pub sequence: u64,
    /// What it says.
    pub news: News,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum News {
    /// It lives.
    Beat(Heartbeat),
    /// Its records of these agents have changed.
    Changed(Vec<AgentId>),
    /// It holds nothing more and is gone.
    Left,
}

/// Why a text cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Rejected {
    /// Longer than any honest one.
    #[error("it is longer than {0} bytes")]
    TooLong(usize),
    /// Of another kas.
    #[error("it has version {0} of the format, and this kas reads {VERSION}")]
    Version(u16),
    /// Not one of kas, or one that somebody has written by hand.
    #[error("it does not begin with the version of its format")]
    Unversioned,
    /// Not JSON, or not of this shape.
    #[error("it is malformed: {0}")]
    Malformed(#[from] serde_json::Error),
    /// An address that no peer has.
    #[error("its address is not an http or https URL of scheme, host and port")]
    Address,
    /// A text out of bounds.
    #[error("one of its texts is longer than {MAX_TEXT} bytes or holds control characters")]
    Text,
    /// A list out of bounds.
    #[error("it names more than {MAX_AGENTS} agents")]
    TooMany,
}

/// Instance id, version, namespace, pod, Kubernetes, since, tunnels.
type Row = (InstanceId, String, Option<String>, Option<String>, Option<String>, u64, u16);

impl Heartbeat {
    /// As it stands in Redis.
    pub fn encode(&self) -> String {
        json(&(VERSION, self))
    }

    /// Reads one.
    pub fn decode(text: &[u8]) -> Result<Self, Rejected> {
        let (_, beat): (u16, Self) = decode(text, MAX_RECORD)?;
        beat.check()?;
        Ok(beat)
    }

    fn check(&self) -> Result<(), Rejected> {
        if ![&self.url, &self.fleet, &self.kas].into_iter().all(|text| is_text(text)) {
            return Err(Rejected::Text);
        }
        let url: Uri = self.url.parse().map_err(|_| Rejected::Address)?;
        let known = matches!(url.scheme_str(), Some("http" | "https"));
        let bare = url.path() == "/" && url.query().is_none() && !self.url.contains(['@', '#']);
        if !known || !bare || url.host().is_none_or(str::is_empty) {
            return Err(Rejected::Address);
        }
        Ok(())
    }
}

impl Held {
    /// As it stands in Redis: with as many instances as fit.
    pub fn encode(&self) -> String {
        let mut rows: Vec<Row> = self.instances.iter().map(row).collect();
        loop {
            let text = json(&(VERSION, self.epoch, &rows));
            if text.len() <= MAX_RECORD {
                return text;
            }
            rows.pop();
        }
    }

    /// Reads one.
    pub fn decode(text: &[u8]) -> Result<Self, Rejected> {
        let (_, epoch, rows): (u16, Epoch, Vec<Row>) = decode(text, MAX_RECORD)?;
        let instances = rows.into_iter().map(instance).collect::<Result<_, _>>()?;
        Ok(Self { epoch, instances })
    }
}

impl Event {
    /// As it is published.
    pub fn encode(&self) -> String {
        json(&(VERSION, self.from, self.generation, self.sequence, &self.news))
    }

    /// Reads one.
    pub fn decode(text: &[u8]) -> Result<Self, Rejected> {
        let (_, from, generation, sequence, news): (u16, _, _, _, News) = decode(text, MAX_EVENT)?;
        match &news {
            News::Beat(beat) => beat.check()?,
            News::Changed(agents) if agents.len() > MAX_AGENTS => return Err(Rejected::TooMany),
            News::Changed(_) | News::Left => {}
        }
        Ok(Self { from, generation, sequence, news })
    }
}

fn row(instance: &Instance) -> Row {
    let Instance { id, version, pod_namespace, pod_name, kubernetes_version, since, tunnels } =
        instance.clone();
    (id, version, pod_namespace, pod_name, kubernetes_version, seconds(since), tunnels)
}

fn instance(row: Row) -> Result<Instance, Rejected> {
    let (id, version, pod_namespace, pod_name, kubernetes_version, since, tunnels) = row;
    let texts = [Some(&version), pod_namespace.as_ref(), pod_name.as_ref(), kubernetes_version.as_ref()];
    if !texts.into_iter().flatten().all(|text| is_text(text)) {
        return Err(Rejected::Text);
    }
    let since = time(since).ok_or(Rejected::Text)?;
    Ok(Instance { id, version, pod_namespace, pod_name, kubernetes_version, since, tunnels })
}

/// Seconds since 1970.
pub(super) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The time of so many seconds since 1970, if there is one before the year 5138.
pub(super) fn time(seconds: u64) -> Option<SystemTime> {
    (seconds < 100_000_000_000).then(|| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
}

fn is_text(text: &str) -> bool {
    text.len() <= MAX_TEXT && !text.chars().any(char::is_control)
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("it is plain data")
}

fn decode<T: DeserializeOwned>(text: &[u8], most: usize) -> Result<T, Rejected> {
    if text.len() > most {
        return Err(Rejected::TooLong(most));
    }
    match version(text) {
        Some(VERSION) => Ok(serde_json::from_slice(text)?),
        Some(other) => Err(Rejected::Version(other)),
        None => Err(Rejected::Unversioned),
    }
}

/// Of a text whose rest may be of any shape.
fn version(text: &[u8]) -> Option<u16> {
    let digits = text.strip_prefix(b"[")?;
    let end = digits.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(&digits[..end]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beat(url: &str) -> Heartbeat {
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
            since: SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000),
            tunnels: 2,
        }
    }

    #[test]
    fn what_is_written_reads_back() {
        let beat = beat("https://10.0.0.1:8155");
        assert_eq!(Heartbeat::decode(beat.encode().as_bytes()).unwrap(), beat);
        let held = Held { epoch: Epoch(7), instances: vec![instance("a"), instance("b")] };
        assert_eq!(Held::decode(held.encode().as_bytes()).unwrap(), held);
        for news in [News::Beat(beat), News::Changed(vec![AgentId(1), AgentId(u64::MAX)]), News::Left] {
            let event = Event { from: ReplicaId::random(), generation: 3, sequence: 9, news };
            assert_eq!(Event::decode(event.encode().as_bytes()).unwrap(), event);
        }
    }

    #[test]
    fn what_is_no_record_is_rejected_with_its_reason() {
        let long = "9".repeat(MAX_RECORD + 1);
        let control = Held { epoch: Epoch(1), instances: vec![instance("a\nb")] }.encode();
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
            let error = Held::decode(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn an_address_is_scheme_host_and_port() {
        for good in ["http://10.0.0.1:8155", "https://kas-1.kas:8155", "https://[fd00::1]:8155/"] {
            assert!(Heartbeat::decode(beat(good).encode().as_bytes()).is_ok(), "{good}");
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
            let error = Heartbeat::decode(beat(bad).encode().as_bytes()).unwrap_err();
            assert!(matches!(error, Rejected::Address), "{bad}: {error}");
        }
    }

    #[test]
    fn a_crowd_of_instances_is_cut_to_what_fits() {
        let instances = (0..100).map(|n| instance(&format!("agentk-{n}"))).collect();
        let text = Held { epoch: Epoch(1), instances }.encode();
        assert!(text.len() <= MAX_RECORD);
        assert!(Held::decode(text.as_bytes()).unwrap().instances.len() > 10);
    }

    #[test]
    fn the_largest_event_fits() {
        let news = News::Changed(vec![AgentId(u64::MAX); MAX_AGENTS]);
        let event = Event { from: ReplicaId::random(), generation: u64::MAX, sequence: u64::MAX, news };
        assert!(Event::decode(event.encode().as_bytes()).is_ok());
    }
}
