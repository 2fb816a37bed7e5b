//! The fields of a status that say how an object is, beside its conditions.

use serde_json::{Map, Value};

use super::{Course, Finding, Rank, STATES, truth};
use crate::{
    integer,
    words::{Meaning, meaning, of_words, words},
};

/// Beginnings of fields that say how something else is, or was.
const OTHER_STATES: [&str; 5] = ["desired", "expected", "last", "previous", "target"];
/// The nouns of counts, as in `readyReplicas`.
const COUNTED: [&str; 5] = ["Instances", "Members", "Nodes", "Pods", "Replicas"];

/// A field of a status that says how an object or a part of it is.
pub(super) struct StateField<'a> {
    /// The names of the field and of the parts around it, such as `applicationState.state`.
    path: String,
    value: &'a str,
    place: FieldLevel,
    /// The fields beside it.
    beside: &'a Map<String, Value>,
}

/// The relation of a field to the whole object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FieldLevel {
    /// It is about the whole object: `phase`.
    Whole,
    /// Its name ends so, or it is in a field whose name does: `clusterStatus`, `applicationState.state`.
    Near,
    /// It is about a part: `proxy.status`.
    Part,
}

/// Returns the findings of the fields that say how an object is. `has_conditions` is true if conditions say more.
pub(super) fn of_states(status: &Map<String, Value>, has_conditions: bool, course: Course) -> Vec<Finding> {
    let mut fields = Vec::new();
    add_states(status, "", None, &mut fields);
    let is_alone = !has_conditions && !fields.iter().any(|field| field.place == FieldLevel::Whole);
    let reason = status.get("reason").and_then(Value::as_str).unwrap_or_default();
    let failed = (is_alone && meaning(reason) == Some(Meaning::Failure)).then(|| {
        let message = status.get("message").and_then(Value::as_str).filter(|message| !message.is_empty());
        Finding { rank: Rank::Failed, reason: message.unwrap_or(reason).to_owned() }
    });
    fields.iter().filter_map(|field| field.finding(is_alone, course)).chain(failed).collect()
}

/// Adds the states of the fields of a status, or of a part of it with a path and a place.
fn add_states<'a>(
    fields: &'a Map<String, Value>,
    part: &str,
    place: Option<FieldLevel>,
    found: &mut Vec<StateField<'a>>,
) {
    const PARTS: [&str; 7] = ["health", "lastoperation", "result", "state", "status", "statuses", "sync"];
    for (name, value) in fields {
        let small = name.to_ascii_lowercase();
        let ends_so = |ends: &[&str]| ends.iter().any(|end| small.ends_with(end));
        if small != "lastoperation" && OTHER_STATES.iter().any(|start| small.starts_with(start)) {
            continue;
        }
        let is_exact = STATES.contains(&&**name);
        let path = if part.is_empty() { name.clone() } else { format!("{part}.{name}") };
        match value {
            Value::String(value) if is_exact || (ends_so(&STATES) && place != Some(FieldLevel::Part)) => {
                let place = place.unwrap_or(if is_exact { FieldLevel::Whole } else { FieldLevel::Near });
                found.push(StateField { path, value, place, beside: fields });
            }
            Value::Object(below) if place.is_none() => {
                let place = if ends_so(&PARTS) { FieldLevel::Near } else { FieldLevel::Part };
                add_states(below, &path, Some(place), found);
            }
            // Such as the statuses of several controllers.
            Value::Object(below) if place == Some(FieldLevel::Near) && !part.contains('.') => {
                add_states(below, &path, place, found);
            }
            _ => {}
        }
    }
}

impl StateField<'_> {
    /// Returns the finding of a field. `is_alone` is true if nothing is about the whole object.
    fn finding(&self, is_alone: bool, course: Course) -> Option<Finding> {
        let is_whole = self.place == FieldLevel::Whole;
        let rank = of_state(self.value, is_whole, course)?;
        let rank = match rank {
            Rank::Failed => rank,
            rank if is_whole => rank,
            Rank::Busy if !is_alone => Rank::PartBusy,
            Rank::Stopped if self.place == FieldLevel::Part => return None,
            rank if is_alone => rank,
            _ => return None,
        };
        let message = ["message", "reason"].iter().find_map(|field| self.beside.get(*field)?.as_str());
        let message = message.filter(|message| !message.is_empty());
        let message = message.map(|message| format!(": {message}")).unwrap_or_default();
        Some(Finding { rank, reason: format!("its {} is {}{message}", self.path, self.value) })
    }
}

fn of_state(value: &str, is_whole: bool, course: Course) -> Option<Rank> {
    let words = words(value);
    if is_whole && *words == ["unknown"] {
        return Some(Rank::Unknown);
    }
    Some(match of_words(&words)? {
        Meaning::Failure => Rank::Failed,
        Meaning::Stopped => Rank::Stopped,
        Meaning::Busy | Meaning::NotGood => Rank::Busy,
        Meaning::Good if course.goes_on(&words) => Rank::NotEnded,
        Meaning::Good => Rank::Good,
    })
}

pub(super) fn of_errors(status: &Map<String, Value>) -> Option<Finding> {
    let text = |error: &Value| {
        let text = error.as_str().or_else(|| error["message"].as_str());
        text.filter(|text| !text.is_empty()).map(str::to_owned)
    };
    let error = |field: &str| {
        let error = status.get(field)?;
        text(error).or_else(|| text(error.as_array()?.first()?))
    };
    let fields = ["failureMessage", "errorMessage", "failureReason", "error", "errors"];
    let reason = fields.into_iter().find_map(error)?;
    Some(Finding { rank: Rank::Failed, reason })
}

/// Reads fields such as `ready`, which may be counts: `1/3`.
pub(super) fn of_flags(status: &Map<String, Value>) -> impl Iterator<Item = Finding> {
    let flags = [
        ("ready", "ready"),
        ("healthy", "healthy"),
        ("available", "available"),
        ("readyToUse", "ready to use"),
    ];
    flags.into_iter().filter_map(|(field, word)| {
        let value = status.get(field)?;
        let counts = value.as_str().and_then(|text| text.split_once('/'));
        if let Some((found, wanted)) = counts {
            let is_less = found.trim().parse::<u32>().ok()? < wanted.trim().parse::<u32>().ok()?;
            let rank = if is_less { Rank::Busy } else { Rank::Good };
            return Some(Finding { rank, reason: format!("{found} of {wanted} are {word}") });
        }
        let rank = match truth(value)? {
            true => Rank::Good,
            false if field == "healthy" => Rank::NotGood,
            false => Rank::Busy,
        };
        Some(Finding { rank, reason: format!("it is not {word}") })
    })
}

/// Compares counts such as `readyReplicas` with the number that there should be.
pub(super) fn of_counts(object: &Value, status: &Map<String, Value>) -> impl Iterator<Item = Finding> {
    COUNTED.into_iter().filter_map(|noun| {
        let count = |field: &str| status.get(&format!("{field}{noun}")).and_then(integer);
        let small = noun.to_ascii_lowercase();
        let wanted = ["desired", "expected"].into_iter().find_map(count);
        let wanted = wanted.or_else(|| integer(&object["spec"][&*small])).or_else(|| count("total"))?;
        let states = ["ready", "available", "updated"].into_iter();
        let (state, found) =
            states.filter_map(|state| Some((state, count(state)?))).find(|it| it.1 < wanted)?;
        let verb = if wanted == 1 { "is" } else { "are" };
        Some(Finding { rank: Rank::Busy, reason: format!("{found} of {wanted} {small} {verb} {state}") })
    })
}
