//! The conditions of a status.

use serde_json::{Map, Value};

use super::{Course, ENDED, Finding, Rank, text, truth};
use crate::{
    integer, number,
    words::{DENIALS, Meaning, meaning, of_word, of_words, words},
};

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
/// The number of words at the start of a message that say what it is about.
const MESSAGE_START: usize = 4;

/// The conditions of an object that are not older than its last change.
pub(super) struct Conditions<'a> {
    /// The conditions of the object, or if it has none, those of its parts.
    pub(super) all: Vec<&'a Value>,
    /// Some were left out because the object has changed since.
    pub(super) any_stale: bool,
    /// One of them names the last change.
    pub(super) any_observed: bool,
}

impl<'a> Conditions<'a> {
    pub(super) fn new(object: &Value, status: &'a Map<String, Value>) -> Self {
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

    /// Returns the findings of all conditions of an object.
    pub(super) fn findings(&self, course: Course) -> Vec<Finding> {
        let status = ConditionContext {
            course,
            has_summary: self.all.iter().any(|condition| is_summary(text(condition, "type"))),
            denies_failure: self.all.iter().any(|condition| {
                of_words(&words(text(condition, "type"))) == Some(Meaning::Failure)
                    && truth(&condition["status"]) == Some(false)
            }),
        };
        self.all.iter().filter_map(|condition| of_condition(condition, status)).collect()
    }
}

fn list(conditions: Option<&Value>) -> Vec<&Value> {
    let conditions = conditions.and_then(Value::as_array).into_iter().flatten();
    conditions.filter(|condition| condition["type"].is_string()).collect()
}

/// The facts about a status that its conditions depend on.
#[derive(Clone, Copy)]
struct ConditionContext {
    course: Course,
    /// A condition judges the whole object.
    has_summary: bool,
    /// A condition that is true once the object has failed is false.
    denies_failure: bool,
}

fn is_summary(kind: &str) -> bool {
    SUMMARY.contains(&kind)
}

fn of_condition(condition: &Value, context: ConditionContext) -> Option<Finding> {
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
        Some(Meaning::Failure) if ends_well => of_good(condition, context, &name)?,
        Some(Meaning::NotGood) if state == Some(true) && reason == Some(Meaning::Busy) => Rank::Busy,
        Some(Meaning::Failure | Meaning::NotGood) => (state == Some(true)).then_some(Rank::Failed)?,
        Some(Meaning::Stopped) => (state == Some(true)).then_some(Rank::Stopped)?,
        _ if kind == "Progressing" && reason == Some(Meaning::Failure) => Rank::Failed,
        _ if is_work && !ends_well => {
            let words = words(text(condition, "reason"));
            let has_ended =
                reason == Some(Meaning::Good) || words.iter().any(|word| ENDED.contains(&&**word));
            // A person has to approve it.
            let is_stopped = meaning(text(condition, "message")) == Some(Meaning::Stopped);
            match state == Some(true) && !has_ended {
                true if is_stopped => Rank::Stopped,
                true => Rank::Busy,
                false => return None,
            }
        }
        // `Scheduled` is good for conditions, and work for phases.
        meaning if meaning == Some(Meaning::Good) || ends_well || last == Some("scheduled") => {
            of_good(condition, context, &name)?
        }
        _ => (reason == Some(Meaning::Failure)).then_some(Rank::Failed)?,
    };
    Some(Finding { rank, reason: words_of(condition) })
}

/// Returns the rank of a condition that is good if it is true.
fn of_good(condition: &Value, context: ConditionContext, name: &[String]) -> Option<Rank> {
    let ConditionContext { course, has_summary, denies_failure } = context;
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
        Some(false) => of_denied(condition, reason, name, denies_failure),
        None if name.len() > 1 => Rank::PartBusy,
        None => Rank::Busy,
    })
}

/// Returns the rank of a condition that would be good, and is false.
fn of_denied(condition: &Value, reason: Option<Meaning>, name: &[String], denies_failure: bool) -> Rank {
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
        // The other object may never be good: `PullRequestNotReady` with "… because: failed to merge".
        Some(Meaning::NotGood) if has_subject() => match meaning(text(condition, "message")) {
            Some(Meaning::Failure) => Rank::Failed,
            _ => Rank::Busy,
        },
        _ if begins_with_work(text(condition, "message")) => Rank::Busy,
        _ if text(condition, "severity") == "Info" => Rank::Busy,
        _ if name.len() == 1 && is_later() => Rank::Busy,
        // Its controller has a condition for failures, and says that there is none.
        _ if denies_failure => Rank::Busy,
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
