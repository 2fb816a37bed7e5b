//! The newest Warning events of the cluster.

use std::collections::HashMap;

use proto::graph::Warning;
use serde_json::Value;

use crate::{
    text::{MAX_MESSAGE, MAX_NAME, cut},
    time,
};

/// The number of events that are kept.
const MAX_WARNINGS: usize = 2000;

/// The reasons of events that say why an object does not do its work, as its own state does not.
const CAUSES: [&str; 7] = [
    "FailedAttachVolume",
    "FailedCreatePodSandBox",
    "FailedMount",
    "FailedPostStartHook",
    "FailedPreStopHook",
    "ProvisioningFailed",
    "Unhealthy",
];

/// The newest Warning events.
#[derive(Debug, Default)]
pub(crate) struct Warnings {
    /// By their UIDs.
    events: HashMap<String, EventEntry>,
    /// The UID of the newest event of [`CAUSES`] about each object, by the UID of the object.
    causes: HashMap<String, String>,
}

/// An event about an object.
#[derive(Debug)]
pub(crate) struct EventEntry {
    /// The UID of the object.
    pub(crate) object: String,
    pub(crate) namespace: String,
    /// In seconds since 1970.
    time: i64,
    warning: Warning,
}

impl Warnings {
    /// Adds or changes an event of the core group or of `events.k8s.io`. Returns the UIDs of the objects whose cause has changed.
    pub(crate) fn apply(&mut self, event: &Value) -> Vec<String> {
        let text = |value: &Value, limit| cut(value.as_str().unwrap_or_default(), limit).to_owned();
        let Some(uid) = event["metadata"]["uid"].as_str() else { return Vec::new() };
        let times = [&event["series"]["lastObservedTime"], &event["lastTimestamp"], &event["eventTime"]];
        let times = times.into_iter().chain([&event["metadata"]["creationTimestamp"]]);
        let time = times.filter_map(|time| time.as_str().and_then(time::seconds)).next().unwrap_or(0);
        let object = &event["involvedObject"];
        let count = event["series"]["count"].as_u64().or_else(|| event["count"].as_u64()).unwrap_or(1);
        let warning = Warning {
            kind: text(&object["kind"], MAX_NAME),
            namespace: text(&object["namespace"], MAX_NAME),
            name: text(&object["name"], MAX_NAME),
            reason: text(&event["reason"], MAX_NAME),
            message: text(&event["message"], MAX_MESSAGE),
            count: count.try_into().unwrap_or(u32::MAX),
            time: time::text(time),
        };
        let (object, namespace) =
            (text(&object["uid"], MAX_NAME), text(&event["metadata"]["namespace"], MAX_NAME));
        let mut changed = Vec::new();
        let before = self.cause(&object).map(str::to_owned);
        let uid = cut(uid, MAX_NAME).to_owned();
        self.events.insert(uid.clone(), EventEntry { object: object.clone(), namespace, time, warning });
        if CAUSES.contains(&&*self.events[&uid].warning.reason) {
            let newest = self.causes.get(&object).and_then(|known| self.events.get(known));
            if newest.is_none_or(|newest| newest.time <= time) {
                self.causes.insert(object.clone(), uid);
            }
        }
        if self.cause(&object) != before.as_deref() {
            changed.push(object);
        }
        if self.events.len() > MAX_WARNINGS {
            let oldest = self.events.iter().min_by_key(|(_, event)| event.time).map(|(uid, _)| uid.clone());
            changed.extend(oldest.and_then(|uid| self.remove(&uid)));
        }
        changed
    }

    /// Deletes an event. Returns the UIDs of the objects whose cause has changed.
    pub(crate) fn delete(&mut self, event: &Value) -> Vec<String> {
        self.remove(event["metadata"]["uid"].as_str().unwrap_or_default()).into_iter().collect()
    }

    /// Returns the words of the newest event that says why an object does not do its work.
    pub(crate) fn cause(&self, object: &str) -> Option<&str> {
        let event = self.events.get(self.causes.get(object)?)?;
        Some(event.warning.message.trim())
    }

    /// Removes an event. Returns the UID of its object if the event was its cause.
    fn remove(&mut self, uid: &str) -> Option<String> {
        let EventEntry { object, .. } = self.events.remove(uid)?;
        if self.causes.get(&object).is_none_or(|cause| cause != uid) {
            return None;
        }
        let others = self
            .events
            .iter()
            .filter(|(_, event)| event.object == object && CAUSES.contains(&&*event.warning.reason));
        let newest = others.max_by_key(|(_, event)| event.time).map(|(uid, _)| uid.clone());
        match newest {
            Some(uid) => drop(self.causes.insert(object.clone(), uid)),
            None => drop(self.causes.remove(&object)),
        }
        Some(object)
    }

    /// Returns the namespaces that have events.
    pub(crate) fn namespaces(&self) -> impl Iterator<Item = &str> {
        self.events.values().map(|event| &*event.namespace).filter(|name| !name.is_empty())
    }

    /// Returns the newest events that are selected, at most ten.
    pub(crate) fn newest(&self, selects: impl Fn(&EventEntry) -> bool) -> Vec<Warning> {
        let mut found: Vec<&EventEntry> = self.events.values().filter(|event| selects(event)).collect();
        found.sort_by(|a, b| b.time.cmp(&a.time).then_with(|| a.warning.name.cmp(&b.warning.name)));
        found.into_iter().take(10).map(|event| event.warning.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(uid: usize, time: &str) -> Value {
        json!({
            "metadata": {"uid": uid.to_string(), "namespace": "a"}, "reason": "BackOff", "message": "x".repeat(2000),
            "lastTimestamp": time, "count": 3,
            "involvedObject": {"kind": "Pod", "namespace": "a", "name": format!("pod-{uid}"), "uid": "p"},
        })
    }

    #[test]
    fn newest_events_come_first_and_the_oldest_are_forgotten() {
        let mut warnings = Warnings::default();
        warnings.apply(&event(5000, "2026-01-01T00:00:00Z"));
        for uid in 0..MAX_WARNINGS {
            warnings.apply(&event(uid, &format!("2026-02-01T00:{:02}:{:02}Z", uid / 60 % 60, uid % 60)));
        }
        assert_eq!(warnings.events.len(), MAX_WARNINGS);
        let newest = warnings.newest(|_| true);
        assert_eq!((newest.len(), &*newest[0].name), (10, "pod-1999"));
        assert_eq!((newest[0].message.len(), newest[0].count), (MAX_MESSAGE, 3));
        assert!(!warnings.events.contains_key("5000"));
        warnings.delete(&event(1999, ""));
        assert_eq!(warnings.newest(|event| event.object == "p")[0].name, "pod-1998");
        assert!(warnings.newest(|event| event.object == "q").is_empty());
    }

    #[test]
    fn cause_of_an_object_is_that_of_its_newest_event() {
        let cause = |uid: usize, time: &str, reason: &str, message: &str| {
            let mut event = event(uid, time);
            event["reason"] = reason.into();
            event["message"] = message.into();
            event
        };
        let mut warnings = Warnings::default();
        let first = cause(1, "2026-02-01T00:00:01Z", "Unhealthy", "Readiness probe failed: 503\n");
        assert_eq!(warnings.apply(&first), ["p"]);
        assert!(warnings.apply(&first).is_empty(), "the same words are no change");
        assert!(
            warnings.apply(&cause(2, "2026-02-01T00:00:09Z", "BackOff", "Back-off restarting")).is_empty()
        );
        let second = cause(3, "2026-02-01T00:00:02Z", "FailedMount", "no such volume");
        assert_eq!(warnings.apply(&second), ["p"]);
        assert_eq!(warnings.cause("p"), Some("no such volume"));
        assert!(warnings.apply(&cause(4, "2026-01-01T00:00:00Z", "Unhealthy", "old")).is_empty());
        assert_eq!(warnings.delete(&second), ["p"]);
        assert_eq!(warnings.cause("p"), Some("Readiness probe failed: 503"));
        assert_eq!(warnings.delete(&first), ["p"]);
        assert_eq!((warnings.cause("p"), warnings.cause("q")), (Some("old"), None));
    }

    #[test]
    fn event_without_a_uid_or_time_is_harmless() {
        let mut warnings = Warnings::default();
        for event in
            [json!({}), json!([1]), json!({"metadata": {"uid": "a"}, "involvedObject": 3, "count": -1})]
        {
            warnings.apply(&event);
            warnings.delete(&event);
        }
        assert!(warnings.events.is_empty());
    }
}
