//! The latest events of Git projects, which replicas share.

use proto::notify::{MAX_EVENT, ProjectEvent};

use super::RedisStore;
use crate::{
    project_events::{MAX_NAMED_PROJECTS, MAX_REFERENCES, PROJECT_TTL, RecordedEvent},
    store::StoreError,
};

/// The digits of the number and of the length of the id, with which a value begins.
const NUMBER: usize = 16;
const LENGTH: usize = 3;

impl RedisStore {
    /// Implements `RouteStore::record_event`.
    pub(super) async fn write_event(&self, event: &ProjectEvent) -> Result<RecordedEvent, StoreError> {
        let shared = &self.0;
        let mut script = shared.scripts.record_event.key(shared.keys.projects());
        script.key(shared.keys.project_events(event.project()));
        let text = serde_json::to_string(event).expect("it has keys that are text");
        script.arg(event.project()).arg(event.reference()).arg(event.id()).arg(text);
        script.arg(MAX_REFERENCES).arg(PROJECT_TTL.as_millis() as u64);
        Ok(match shared.query::<i64>(&script).await? {
            ..0 => RecordedEvent::UnknownProject,
            0 => RecordedEvent::Known,
            number => RecordedEvent::New(event.with_sequence(number.unsigned_abs())),
        })
    }

    /// Implements `RouteStore::latest_events`. Values that are no events are left out.
    pub(super) async fn read_events(&self, project: &str) -> Result<Vec<ProjectEvent>, StoreError> {
        let shared = &self.0;
        let mut script = shared.scripts.latest_events.key(shared.keys.project_events(project));
        script.arg(NUMBER + LENGTH + 255 + MAX_EVENT).arg(MAX_REFERENCES);
        let values: Vec<Vec<u8>> = shared.query(&script).await?;
        // Whoever can write to Redis can put the event of one project in the place of another.
        let events =
            values.iter().filter_map(|value| parse(value)).filter(|event| event.project() == project);
        Ok(events.collect())
    }

    /// Implements `RouteStore::name_projects`.
    pub(super) async fn write_projects(&self, projects: &[String]) -> Result<(), StoreError> {
        let shared = &self.0;
        for projects in projects.chunks(500) {
            let mut script = shared.scripts.name_projects.key(shared.keys.projects());
            script.arg(PROJECT_TTL.as_millis() as u64).arg(MAX_NAMED_PROJECTS);
            script.arg(shared.keys.project_events(""));
            for project in projects {
                script.arg(project);
            }
            shared.query::<()>(&script).await?;
        }
        Ok(())
    }
}

fn parse(value: &[u8]) -> Option<ProjectEvent> {
    let text = std::str::from_utf8(value).ok()?;
    let (number, rest) = text.split_at_checked(NUMBER)?;
    let (length, rest) = rest.split_at_checked(LENGTH)?;
    let (id, event) = rest.split_at_checked(length.parse().ok()?)?;
    let event: ProjectEvent = serde_json::from_str(event).ok()?;
    (event.id() == id).then_some(event.with_sequence(number.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_that_is_no_event_is_ignored() {
        let event = r#"{"id":"a","project":"g/p","time":"2026-11-24T10:00:00Z"}"#;
        let parsed = |text: &str| parse(text.as_bytes()).map(|event| event.fields().sequence);
        assert_eq!(parsed(&format!("0000001700000000001a{event}")), Some(1_700_000_000));
        for text in [
            "",
            "0000001700000000",
            &format!("0000001700000000001b{event}"),
            &format!("0000001700000000999a{event}"),
            &format!("000000170000000x001a{event}"),
            "0000001700000000001a{}",
            "000000170000000\u{e9}01a{}",
        ] {
            assert_eq!(parsed(text), None, "{text}");
        }
        assert_eq!(parse(&[0xff; 40]), None);
    }
}
