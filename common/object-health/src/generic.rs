//! The rule for kinds without their own: what the words of a status say.
//!
//! A status is read as people read it. Conditions have a polarity by the words of their type: `Ready` is good, `InstallFailed` is bad,
//! `Reconciling` is work, `Paused` is a stop. The reason of a condition that is not good, or else its message, tells a failure from work
//! that goes on. Fields such as `phase` and `state` have a meaning by their words, too; then there are errors and counts of replicas. The
//! worst finding is the health. Nothing that is known to be older than the object counts.

mod conditions;
mod fields;

use std::time::{Duration, SystemTime};

use proto::graph::HealthState;
use serde_json::{Map, Value};

use self::{
    conditions::Conditions,
    fields::{of_counts, of_errors, of_flags, of_states},
};
use crate::{Assessment, NOT_OBSERVED, healthy, integer, number, progressing, suspended};

/// The reason of objects without a status.
pub(crate) const NO_STATUS: &str = "its controller has written no status yet";
/// The time in which a controller writes the first status. Controllers that have not, never write one.
const FIRST_STATUS: Duration = Duration::from_secs(600);
/// Words of work that has ended well.
const ENDED: [&str; 9] = [
    "available",
    "complete",
    "completed",
    "done",
    "finished",
    "succeeded",
    "success",
    "successful",
    "successfully",
];
/// The fields of a status that say how the whole object is.
const STATES: [&str; 5] = ["health", "phase", "stage", "state", "status"];
/// The ends of the names of kinds whose objects do something.
const ACTIONS: [&str; 14] = [
    "Analysis",
    "Backup",
    "Build",
    "Execution",
    "Export",
    "Import",
    "Migration",
    "Operation",
    "Request",
    "Restore",
    "Scan",
    "Task",
    "Test",
    "Upgrade",
];
/// Parts of a status that show who writes it, with the condition that this controller sets once the object outside of the cluster is
/// known: those of Crossplane's providers and of AWS Controllers for Kubernetes, which have an API group for each service of a cloud.
const PROVIDERS: [(&str, &str); 2] = [("ackResourceMetadata", "ACK.ResourceSynced"), ("atProvider", "Ready")];
/// Kinds of Crossplane's providers, in all their API groups, whose status is written once another object uses them.
const PROVIDER_CONFIGS: [&str; 3] = ["ClusterProviderConfig", "ProviderConfig", "ProviderConfigUsage"];

/// One thing that a status says.
struct Finding {
    rank: Rank,
    reason: String,
}

/// The importance of a finding, from the highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Failed,
    Stopped,
    Unknown,
    Busy,
    /// Not good, and nothing in it says that work goes on.
    NotGood,
    Good,
    /// Good for objects that do not end.
    NotEnded,
    /// A part has failed, which matters if the object is not good.
    PartFailed,
    /// A part is at work or not good, which matters if nothing is good.
    PartBusy,
}

/// The expectation that a controller writes a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatusWriter {
    /// The API server keeps no status of the kind apart.
    None,
    /// The API server keeps the status apart, so that a controller may write one.
    Possible,
    /// A rule of agentk reads the status that the controller of the kind writes.
    Known,
}

/// Assesses an object of any kind.
pub(crate) fn assess(object: &Value, writer: StatusWriter, now: SystemTime) -> Assessment {
    if let Some(reason) = stop(object) {
        return suspended(reason);
    }
    let Some(status) = status(object) else {
        let is_due = match writer {
            _ if PROVIDER_CONFIGS.contains(&text(object, "kind")) => false,
            StatusWriter::None => false,
            StatusWriter::Possible => healthy_from(object).is_none_or(|time| now < time),
            StatusWriter::Known => true,
        };
        return if is_due { progressing(NO_STATUS) } else { healthy() };
    };
    let conditions = Conditions::new(object, status);
    let is_behind = status
        .get("observedGeneration")
        .and_then(integer)
        .is_some_and(|observed| observed < number(object, "/metadata/generation"));
    if is_behind && !conditions.any_observed {
        return progressing(NOT_OBSERVED);
    }
    if conditions.any_stale && conditions.all.is_empty() {
        return progressing(NOT_OBSERVED);
    }
    match worst(findings(object, status, &conditions)) {
        Some(finding) => finding.into(),
        None if says_nothing(status, &conditions) => progressing("its status says nothing yet"),
        None => healthy(),
    }
}

/// Returns the finding that is the health.
fn worst(findings: Vec<Finding>) -> Option<Finding> {
    let (parts, whole): (Vec<_>, Vec<_>) =
        findings.into_iter().partition(|finding| finding.rank >= Rank::PartFailed);
    let part = parts.into_iter().min_by_key(|finding| finding.rank);
    let Some(worst) = whole.into_iter().min_by_key(|finding| finding.rank) else { return part };
    let explains = |part: &Finding| match part.rank {
        Rank::PartFailed => matches!(worst.rank, Rank::Busy | Rank::NotGood),
        _ => worst.rank == Rank::NotGood,
    };
    Some(part.filter(explains).unwrap_or(worst))
}

/// Returns whether the objects of a kind do something once, such as a Workflow.
pub(crate) fn ends(kind: &str) -> bool {
    Course::new(kind) == Course::Ends
}

/// Returns whether the objects of a kind make others again and again, such as a CronWorkflow its Workflows.
pub(crate) fn repeats(kind: &str) -> bool {
    kind.starts_with("Cron")
        || kind.starts_with("Scheduled")
        || ["CronJob", "ScaledJob", "Schedule"].iter().any(|end| kind.ends_with(end))
}

/// Returns whether the status of an object says how it is.
pub(crate) fn has_evidence(object: &Value) -> bool {
    let Some(status) = status(object) else { return false };
    let conditions = Conditions::new(object, status);
    !findings(object, status, &conditions).is_empty()
}

/// Returns when an object without a status is healthy: its controller seems to write none.
pub(crate) fn healthy_from(object: &Value) -> Option<SystemTime> {
    let created = object["metadata"]["creationTimestamp"].as_str()?;
    let created = humantime::parse_rfc3339_weak(created).ok()?;
    status(object).is_none().then(|| created + FIRST_STATUS)
}

fn status(object: &Value) -> Option<&Map<String, Value>> {
    object.get("status")?.as_object().filter(|status| !status.is_empty())
}

/// Returns how somebody has stopped an object by its specification or an annotation.
fn stop(object: &Value) -> Option<String> {
    let fields = [
        ("suspend", "suspended"),
        ("suspended", "suspended"),
        ("paused", "paused"),
        ("hibernate", "hibernated"),
        ("hibernated", "hibernated"),
    ];
    if let Some((_, word)) = fields.iter().find(|(field, _)| object["spec"][field] == true) {
        return Some(format!("it is {word}"));
    }
    let rollout = ["/spec/updateStrategy/paused", "/spec/updateStrategy/rollingUpdate/paused"];
    if rollout.iter().any(|pointer| object.pointer(pointer) == Some(&Value::Bool(true))) {
        return Some("its rollout is paused".to_owned());
    }
    let annotations = object["metadata"]["annotations"].as_object().into_iter().flatten();
    let mut stops = annotations.filter(|(name, value)| {
        let stops = ["/hibernated", "/hibernation", "/paused", "/suspend", "/suspended"];
        let is_off = ["false", "no", "off"].iter().any(|off| value.as_str() == Some(off));
        stops.iter().any(|end| name.ends_with(end)) && !is_off
    });
    stops.next().map(|(name, _)| format!("its annotation {name} stops it"))
}

fn findings(object: &Value, status: &Map<String, Value>, conditions: &Conditions<'_>) -> Vec<Finding> {
    let course = Course::new(object["kind"].as_str().unwrap_or_default());
    let mut found = conditions.findings(course);
    found.extend(of_provider(status, conditions));
    found.extend(of_errors(status));
    found.extend(of_states(status, !conditions.all.is_empty(), course));
    found.extend(of_flags(status));
    found.extend(of_counts(object, status));
    found
}

/// Returns a finding for an object about which its provider has not said anything yet.
fn of_provider(status: &Map<String, Value>, conditions: &Conditions<'_>) -> Option<Finding> {
    let has = |kind: &str| conditions.all.iter().any(|condition| text(condition, "type") == kind);
    let is_open = |(part, kind): &&(&str, &str)| status.contains_key(*part) && !has(kind);
    let (_, kind) = PROVIDERS.iter().find(is_open)?;
    Some(Finding { rank: Rank::Busy, reason: format!("its condition {kind} is not set yet") })
}

/// The course of the objects of a kind.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Course {
    /// They serve until they are deleted.
    Serves,
    /// They do something: `Running` says that they have not ended.
    Acts,
    /// They are healthy only once they have ended.
    Ends,
}

impl Course {
    fn new(kind: &str) -> Self {
        let is = |names: &[&str]| names.iter().any(|name| kind.ends_with(name));
        match () {
            () if is(&["CronJob", "CronWorkflow", "FlinkSessionJob", "ScaledJob"]) => Self::Serves,
            () if is(&["Experiment", "Job", "Run", "Workflow"]) => Self::Ends,
            () if is(&ACTIONS) => Self::Acts,
            () => Self::Serves,
        }
    }

    /// Returns whether something good does not say that an object has ended.
    fn goes_on(self, words: &[String]) -> bool {
        match self {
            Self::Serves => false,
            Self::Acts => words.iter().any(|word| word == "running"),
            Self::Ends => !words.iter().any(|word| ENDED.contains(&&**word)),
        }
    }
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// Returns a value of true or false, which may be written as text.
fn truth(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(value) => Some(*value),
        Value::String(text) if text.eq_ignore_ascii_case("true") => Some(true),
        Value::String(text) if text.eq_ignore_ascii_case("false") => Some(false),
        _ => None,
    }
}

/// Returns whether a status has places for states, and nothing in them.
fn says_nothing(status: &Map<String, Value>, conditions: &Conditions<'_>) -> bool {
    let is_empty = |value: &Value| match value {
        Value::Array(list) => list.is_empty(),
        Value::String(text) => text.is_empty(),
        value => value.is_null(),
    };
    let places = STATES.iter().chain(&["ancestors", "conditions", "parents"]);
    let mut open = conditions.all.iter().map(|condition| truth(&condition["status"]).is_none());
    places.filter_map(|place| status.get(*place)).any(is_empty)
        || (!conditions.all.is_empty() && open.all(|open| open))
}

impl From<Finding> for Assessment {
    fn from(finding: Finding) -> Self {
        let health = match finding.rank {
            Rank::Failed | Rank::PartFailed | Rank::NotGood => HealthState::Degraded,
            Rank::Stopped => HealthState::Suspended,
            Rank::Unknown => HealthState::Unknown,
            Rank::Busy | Rank::PartBusy => HealthState::Progressing,
            Rank::Good => return healthy(),
            Rank::NotEnded => return progressing("it has not ended"),
        };
        Self { health, reason: finding.reason }
    }
}
