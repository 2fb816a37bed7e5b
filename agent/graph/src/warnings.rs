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

/// The newest Warning events, by their UIDs.
#[derive(Debug, Default)]
pub(crate) struct Warnings(HashMap<String, EventEntry>);

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
    /// Adds or changes an event of the core group or of `events.k8s.io`.
    pub(crate) fn apply(&mut self, event: &Value) {
        let text = |value: &Value, limit| cut(value.as_str().unwrap_or_default(), limit).to_owned();
        let Some(uid) = event["metadata"]["uid"].as_str() else { return };
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
        self.0.insert(cut(uid, MAX_NAME).to_owned(), EventEntry { object, namespace, time, warning });
        if self.0.len() > MAX_WARNINGS {
            let oldest = self.0.iter().min_by_key(|(_, event)| event.time).map(|(uid, _)| uid.clone());
            oldest.map(|uid| self.0.remove(&uid));
        }
    }

    /// Deletes an event.
    pub(crate) fn delete(&mut self, event: &Value) {
        self.0.remove(event["metadata"]["uid"].as_str().unwrap_or_default());
    }

    /// Returns the namespaces that have events.
    pub(crate) fn namespaces(&self) -> impl Iterator<Item = &str> {
        self.0.values().map(|event| &*event.namespace).filter(|name| !name.is_empty())
    }

    /// Returns the newest events that are selected, at most ten.
    pub(crate) fn newest(&self, selects: impl Fn(&EventEntry) -> bool) -> Vec<Warning> {
        let mut found: Vec<&EventEntry> = self.0.values().filter(|event| selects(event)).collect();
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
        assert_eq!(warnings.0.len(), MAX_WARNINGS);
        let newest = warnings.newest(|_| true);
        assert_eq!((newest.len(), &*newest[0].name), (10, "pod-1999"));
        assert_eq!((newest[0].message.len(), newest[0].count), (MAX_MESSAGE, 3));
        assert!(!warnings.0.contains_key("5000"));
        warnings.delete(&event(1999, ""));
        assert_eq!(warnings.newest(|event| event.object == "p")[0].name, "pod-1998");
        assert!(warnings.newest(|event| event.object == "q").is_empty());
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
        assert!(warnings.0.is_empty());
    }
}
