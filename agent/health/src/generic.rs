//! The rule for kinds without their own: what the words of a status say.
//!
//! A status is read as people read it. Conditions have a polarity by the words of their type: `Ready` is good, `InstallFailed` is bad,
//! `Reconciling` is work, `Paused` is a stop. The reason of a condition that is not good, or else its message, tells a failure from work
//! that goes on. Fields such as `phase` and `state` have a meaning by their words, too; then there are errors and counts of replicas. The
//! worst finding is the health. Nothing that is known to be older than the object counts.

mod fields;

use std::time::{Duration, SystemTime};

use proto::graph::HealthState;
use serde_json::{Map, Value};

use self::fields::{of_counts, of_errors, of_flags, of_states};
use crate::{
    Assessment, NOT_OBSERVED, healthy, integer, number, progressing, suspended,
    words::{DENIALS, Meaning, meaning, of_word, of_words, words},
};

/// The reason of objects without a status.
pub(crate) const NO_STATUS: &str = "its controller has written no status yet";
/// The time in which a controller writes the first status. Controllers that have not, never write one.
const FIRST_STATUS: Duration = Duration::from_secs(600);
/// Conditions that judge a whole object. Others that are good count only without them.
const SUMMARY: [&str; 4] = ["Available", "Healthy", "Ready", "Succeeded"];
/// Conditions that count beside those of a whole object.
const BESIDE_SUMMARY: [&str; 9] = [
    "Accepted",
    "Admitted",
    "Established",
    "Programmed",
    "Reconciled",
    "ResolvedRefs",
    "Synced",
    "Valid",
    "Validated",
];
/// Words at the end of the type of a condition that becomes true later: as long as it is false, work goes on.
const LATER: [&str; 16] = [
    "active",
    "available",
    "bound",
    "complete",
    "completed",
    "created",
    "deployed",
    "established",
    "initialized",
    "installed",
    "launched",
    "programmed",
    "provisioned",
    "registered",
    "running",
    "scheduled",
];
/// Words in the types of conditions that mean work while they are true.
const WORK: [&str; 25] = [
    "creating",
    "deleting",
    "deploying",
    "initializing",
    "inprogress",
    "installing",
    "issuing",
    "migrating",
    "pending",
    "processing",
    "progress",
    "progressing",
    "provisioning",
    "rebalancing",
    "reconciling",
    "resizing",
    "restarting",
    "restoring",
    "rolling",
    "scaling",
    "starting",
    "terminating",
    "updating",
    "upgrading",
    "waiting",
];
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
/// The number of words at the start of a message that say what it is about.
const MESSAGE_START: usize = 4;

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

/// Assesses an object of any kind. `has_status` is true if the API server keeps the status of its kind apart.
pub(crate) fn assess(object: &Value, has_status: bool, now: SystemTime) -> Assessment {
    if let Some(reason) = stop(object) {
        return suspended(reason);
    }
    let Some(status) = status(object) else {
        return match has_status && healthy_from(object).is_none_or(|time| now < time) {
            true => progressing(NO_STATUS),
            false => healthy(),
        };
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

/// The conditions of an object that are not older than its last change.
struct Conditions<'a> {
    /// The conditions of the object, or if it has none, those of its parts.
    all: Vec<&'a Value>,
    /// Some were left out because the object has changed since.
    any_stale: bool,
    /// One of them names the last change.
    any_observed: bool,
}

impl<'a> Conditions<'a> {
    fn new(object: &Value, status: &'a Map<String, Value>) -> Self {
        let generation = number(object, "/metadata/generation");
        let observed = |condition: &Value| integer(&condition["observedGeneration"]);
        let own = list(status.get("conditions"));
        let nested = status.values().flat_map(|part| match part {
            Value::Array(parts) => parts.iter().flat_map(|part| list(part.get("conditions"))).collect(),
            part => list(part.get("conditions")),
        });
        let has_own = !own.is_empty();
        // A part can only make the whole worse, so that its good conditions do not count.
        let nested = nested.filter(|condition| !has_own || truth(&condition["status"]) == Some(false));
        let (all, stale): (Vec<_>, Vec<_>) = own
            .into_iter()
            .chain(nested)
            .partition(|condition| observed(condition).is_none_or(|observed| observed >= generation));
        let any_observed = all.iter().any(|condition| observed(condition).is_some());
        Self { all, any_stale: !stale.is_empty(), any_observed }
    }
}

fn list(conditions: Option<&Value>) -> Vec<&Value> {
    let conditions = conditions.and_then(Value::as_array).into_iter().flatten();
    conditions.filter(|condition| condition["type"].is_string()).collect()
}

fn findings(object: &Value, status: &Map<String, Value>, conditions: &Conditions<'_>) -> Vec<Finding> {
    let course = Course::new(object["kind"].as_str().unwrap_or_default());
    let has_summary = conditions.all.iter().any(|condition| is_summary(text(condition, "type")));
    let mut found: Vec<Finding> =
        conditions.all.iter().filter_map(|condition| of_condition(condition, has_summary, course)).collect();
    found.extend(of_errors(status));
    found.extend(of_states(status, !conditions.all.is_empty(), course));
    found.extend(of_flags(status));
    found.extend(of_counts(object, status));
    found
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

fn is_summary(kind: &str) -> bool {
    SUMMARY.contains(&kind)
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

fn of_condition(condition: &Value, has_summary: bool, course: Course) -> Option<Finding> {
    let kind = text(condition, "type");
    let state = truth(&condition["status"]);
    let is_minor = ["Info", "Warning"].contains(&text(condition, "severity"));
    if is_minor && !is_summary(kind) {
        return None;
    }
    let name = words(kind);
    let reason = meaning(text(condition, "reason"));
    // The last word says what it is about: `ProvisioningSucceeded` is good, `ScalingLimited` is no work.
    let (first, last) = (name.first().map(String::as_str), name.last().map(String::as_str));
    let ends_well = last.and_then(of_word) == Some(Meaning::Good);
    let is_work =
        [first.filter(|word| *word != "scaling"), last].iter().flatten().any(|word| WORK.contains(word));
    let rank = match of_words(&name) {
        Some(Meaning::Failure) if ends_well => of_good(condition, has_summary, course, &name)?,
        Some(Meaning::NotGood) if state == Some(true) && reason == Some(Meaning::Busy) => Rank::Busy,
        Some(Meaning::Failure | Meaning::NotGood) => (state == Some(true)).then_some(Rank::Failed)?,
        Some(Meaning::Stopped) => (state == Some(true)).then_some(Rank::Stopped)?,
        _ if kind == "Progressing" && reason == Some(Meaning::Failure) => Rank::Failed,
        _ if is_work && !ends_well => {
            let words = words(text(condition, "reason"));
            let has_ended =
                reason == Some(Meaning::Good) || words.iter().any(|word| ENDED.contains(&&**word));
            (state == Some(true) && !has_ended).then_some(Rank::Busy)?
        }
        // `Scheduled` is good for conditions, and work for phases.
        meaning if meaning == Some(Meaning::Good) || ends_well || last == Some("scheduled") => {
            of_good(condition, has_summary, course, &name)?
        }
        _ => (reason == Some(Meaning::Failure)).then_some(Rank::Failed)?,
    };
    Some(Finding { rank, reason: words_of(condition) })
}

/// Returns the rank of a condition that is good if it is true.
fn of_good(condition: &Value, has_summary: bool, course: Course, name: &[String]) -> Option<Rank> {
    let (kind, reason) = (text(condition, "type"), meaning(text(condition, "reason")));
    let has_word = |list: &[&str]| name.iter().any(|word| list.contains(&&**word));
    let state = truth(&condition["status"]);
    if has_summary && !is_summary(kind) && !BESIDE_SUMMARY.contains(&kind) {
        return (state == Some(false) && reason == Some(Meaning::Failure)).then_some(Rank::PartFailed);
    }
    Some(match state {
        // Ansible's operators have it while a playbook runs.
        Some(true) if kind == "Running" && text(condition, "reason") == "Running" => Rank::Busy,
        Some(true) if kind != "Ready" && course.goes_on(name) => Rank::NotEnded,
        // A job that has failed is complete, too.
        Some(true) if has_word(&ENDED) && reason == Some(Meaning::Failure) && kind != "Available" => {
            Rank::Failed
        }
        Some(true) => Rank::Good,
        // It runs no more, or not yet.
        Some(false) if course != Course::Serves && has_word(&["running"]) => return None,
        Some(false) => of_denied(condition, reason, name),
        None if name.len() > 1 => Rank::PartBusy,
        None => Rank::Busy,
    })
}

/// Returns the rank of a condition that would be good, and is false.
fn of_denied(condition: &Value, reason: Option<Meaning>, name: &[String]) -> Rank {
    let kind = text(condition, "type");
    // `PodsNotReady` waits for Pods; `NotReady` says nothing more.
    let has_subject = || {
        let words = words(text(condition, "reason"));
        words.first().is_some_and(|word| !DENIALS.contains(&&**word))
    };
    let is_later = || name.last().is_some_and(|word| LATER.contains(&&**word));
    match reason {
        Some(Meaning::Failure) => Rank::Failed,
        Some(Meaning::Stopped) => Rank::Stopped,
        Some(Meaning::Busy) => Rank::Busy,
        Some(Meaning::NotGood) if has_subject() => Rank::Busy,
        _ if begins_with_work(text(condition, "message")) => Rank::Busy,
        _ if text(condition, "severity") == "Info" => Rank::Busy,
        _ if name.len() == 1 && is_later() => Rank::Busy,
        _ if is_summary(kind) || BESIDE_SUMMARY.contains(&kind) => Rank::NotGood,
        // A part, such as `BackupConfigured`, may be unimportant.
        _ => Rank::PartBusy,
    }
}

/// Returns whether the first words of a message are about work: `Waiting for replicas`.
fn begins_with_work(message: &str) -> bool {
    let words = words(message);
    of_words(&words[..words.len().min(MESSAGE_START)]) == Some(Meaning::Busy)
}

/// Returns the message of a condition, or what it is.
fn words_of(condition: &Value) -> String {
    let message = text(condition, "message").trim();
    if !message.is_empty() {
        return message.to_owned();
    }
    let status = condition["status"].as_str().map_or_else(|| condition["status"].to_string(), str::to_owned);
    let reason = text(condition, "reason");
    let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    format!("its condition {} is {status}{reason}", text(condition, "type"))
}

/// Returns whether a status has places for states, and nothing in them.
fn says_nothing(status: &Map<String, Value>, conditions: &Conditions<'_>) -> bool {
    let is_empty = |value: &Value| match value {
        Value::Array(list) => list.is_empty(),
        Value::String(text) => text.is_empty(),
        value => value.is_null(),
    };
    let places = STATES.iter().chain(&["conditions"]);
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
