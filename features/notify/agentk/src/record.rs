//! The events that were done: in memory, and in a ConfigMap for each project, so that the next leader does none of them again.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use kube_cluster::{ApplyOptions, Cluster as _, GroupKind, Kind};
use parking_lot::Mutex;
use proto::{AgentId, gitops::ObjectId, notify::ProjectEvent};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::{
    sync::{OnceCell, Semaphore},
    time::sleep,
};

use super::{Notify, lane::EffectError, plan::possible_targets};

/// The field manager of the records.
const MANAGER: &str = "agentk-notify";
/// The attempts to write a record, and the time between them.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_secs(1);
/// The most references of one target in a record. The oldest ones are forgotten.
const MAX_REFERENCES: usize = 100;

/// The records of all projects with events.
#[derive(Debug, Default)]
pub(super) struct Records(Mutex<HashMap<String, Arc<Record>>>);

/// The record of one project.
#[derive(Debug)]
struct Record {
    done: OnceCell<Mutex<DoneEvents>>,
    /// The events that were refused last, which this pod does not try again. They are in memory only.
    refused: Mutex<DoneEvents>,
    /// Lets one lane write, so that a later state replaces an earlier one.
    writing: Semaphore,
}

/// The last event that was done for each target and reference.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
struct DoneEvents(BTreeMap<String, BTreeMap<String, DoneEvent>>);

/// An event that was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct DoneEvent {
    id: String,
    sequence: u64,
}

impl DoneEvents {
    /// Reads a record. Nothing is known if it is damaged: the latest events are done once more then.
    fn parse(object: Option<&Value>) -> Self {
        let text = object.and_then(|object| object["data"]["events"].as_str());
        text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    /// Returns whether an event, or a later one, was done.
    fn contains(&self, target: &str, event: &ProjectEvent) -> bool {
        let done = self.0.get(target).and_then(|references| references.get(event.reference()));
        done.is_some_and(|done| done.id == event.id() || done.sequence > event.fields().sequence)
    }

    fn insert(&mut self, target: &str, event: &ProjectEvent) {
        let references = self.0.entry(target.to_owned()).or_default();
        let done = DoneEvent { id: event.id().to_owned(), sequence: event.fields().sequence };
        references.insert(event.reference().to_owned(), done);
        if references.len() > MAX_REFERENCES {
            let oldest = references.iter().min_by_key(|(_, done)| done.sequence);
            let oldest = oldest.map(|(reference, _)| reference.clone());
            oldest.and_then(|oldest| references.remove(&oldest));
        }
    }
}

impl Records {
    /// Returns whether an event was done for a target by this pod or a former leader.
    pub(super) async fn is_done(
        &self,
        notify: &Notify,
        target: &str,
        event: &ProjectEvent,
    ) -> Result<bool, EffectError> {
        let record = self.of_project(event.project());
        let done = record.done.get_or_try_init(|| read(notify, event.project())).await?;
        Ok(done.lock().contains(target, event) || record.refused.lock().contains(target, event))
    }

    /// Notes that an event was refused for a target.
    pub(super) fn note_refused(&self, target: &str, event: &ProjectEvent) {
        self.of_project(event.project()).refused.lock().insert(target, event);
    }

    /// Notes that an event was done for a target. Until it is written, the next leader would do it again.
    pub(super) async fn note(&self, notify: &Notify, target: &str, event: &ProjectEvent) {
        let record = self.of_project(event.project());
        let Some(done) = record.done.get() else { return };
        done.lock().insert(target, event);
        let Ok(_permit) = record.writing.acquire().await else { return };
        let (project, text) = (event.project(), {
            let mut done = done.lock();
            // Targets that left the configuration would make the record grow.
            let sections = notify.sections.borrow();
            let configured = possible_targets(&sections, event.project());
            done.0.retain(|target, _| configured.iter().any(|configured| configured.to_string() == *target));
            serde_json::to_string(&*done).expect("it has keys that are text")
        });
        let Some((kind, id)) = object(notify, project) else { return };
        let object = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": id.name,
                "namespace": id.namespace,
                "labels": {"app.kubernetes.io/managed-by": "agentk"},
            },
            "data": {"project": project, "events": text},
        });
        let options = ApplyOptions { manager: MANAGER, dry_run: false, force: true };
        for attempt in 1..=ATTEMPTS {
            let written = notify.leader.own_cluster().apply(&kind, &id, &object, options);
            match notify.leader.while_leading(written).await {
                Ok(_) => return,
                Err(error) if attempt == ATTEMPTS => {
                    tracing::warn!(project, %error, "the record of events cannot be written; the next leader repeats the last one");
                }
                Err(_) => sleep(PAUSE).await,
            }
        }
    }

    /// Forgets what was refused.
    pub(super) fn forget_refused(&self) {
        self.0.lock().values().for_each(|record| *record.refused.lock() = DoneEvents::default());
    }

    /// Forgets what is in memory, because another pod leads.
    pub(super) fn forget(&self) {
        self.0.lock().clear();
    }

    fn of_project(&self, project: &str) -> Arc<Record> {
        let mut records = self.0.lock();
        let new = || {
            Arc::new(Record { done: OnceCell::new(), refused: Mutex::default(), writing: Semaphore::new(1) })
        };
        Arc::clone(records.entry(project.to_owned()).or_insert_with(new))
    }
}

async fn read(notify: &Notify, project: &str) -> Result<Mutex<DoneEvents>, EffectError> {
    let missing = || EffectError::Failed("kas has not named the agent yet".to_owned());
    let (kind, id) = object(notify, project).ok_or_else(missing)?;
    let found = notify.leader.own_cluster().get(&kind, &id).await;
    // Without the right to read its own namespace agentk must not repeat an effect forever.
    let found = found
        .map_err(|error| EffectError::Failed(format!("the record of events cannot be read: {error}")))?;
    Ok(Mutex::new(DoneEvents::parse(found.as_ref())))
}

fn object(notify: &Notify, project: &str) -> Option<(Kind, ObjectId)> {
    let agent = notify.leader.agent()?;
    let kind = Kind {
        kind: GroupKind { group: String::new(), kind: "ConfigMap".to_owned() },
        version: "v1".to_owned(),
        plural: "configmaps".to_owned(),
        namespaced: true,
        has_status: false,
    };
    let id = ObjectId {
        group: String::new(),
        kind: "ConfigMap".to_owned(),
        namespace: notify.leader.namespace().to_owned(),
        name: name(agent, project),
    };
    Some((kind, id))
}

/// Returns the name of the ConfigMap. It has the prefix of inventories, which the policy of admission leaves to agentk.
fn name(agent: AgentId, project: &str) -> String {
    format!("gitops-notify-{agent}-{}", short_digest(project))
}

/// Returns the beginning of the SHA-256 of a text, as hexadecimal digits.
pub(super) fn short_digest(text: &str) -> String {
    Sha256::digest(text)[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use proto::notify::ProjectEventFields;

    use super::*;

    fn event(reference: &str, id: &str, sequence: u64) -> ProjectEvent {
        let fields = ProjectEventFields {
            id: id.to_owned(),
            sequence,
            project: "a/b".to_owned(),
            reference: Some(reference.to_owned()),
            before: None,
            after: None,
            urls: Vec::new(),
            time: SystemTime::UNIX_EPOCH,
        };
        fields.try_into().unwrap()
    }

    const MAIN: &str = "refs/heads/main";

    #[test]
    fn event_is_done_once_and_an_earlier_one_never_after_it() {
        let mut done = DoneEvents::default();
        assert!(!done.contains("flux", &event(MAIN, "a", 2)));
        done.insert("flux", &event(MAIN, "a", 2));
        for (id, sequence, expected) in [("a", 2, true), ("a", 9, true), ("b", 1, true), ("b", 3, false)] {
            assert_eq!(done.contains("flux", &event(MAIN, id, sequence)), expected, "{id} {sequence}");
        }
        assert!(!done.contains("repository:x", &event(MAIN, "a", 2)), "of another target");
        assert!(!done.contains("flux", &event("refs/heads/x", "a", 2)), "of another reference");
        let object = json!({"data": {"events": serde_json::to_string(&done).unwrap()}});
        assert_eq!(DoneEvents::parse(Some(&object)), done, "the next leader reads it");
    }

    #[test]
    fn damaged_record_is_empty_and_a_long_one_forgets_the_oldest() {
        for object in
            [json!({}), json!({"data": {"events": 7}}), json!({"data": {"events": "{\"flux\": []}"}})]
        {
            assert_eq!(DoneEvents::parse(Some(&object)), DoneEvents::default());
        }
        let mut done = DoneEvents::default();
        for number in 0..=MAX_REFERENCES as u64 {
            done.insert("flux", &event(&format!("refs/heads/{number}"), "a", number));
        }
        assert_eq!(done.0["flux"].len(), MAX_REFERENCES);
        assert!(!done.contains("flux", &event("refs/heads/0", "a", 0)));
    }
}
