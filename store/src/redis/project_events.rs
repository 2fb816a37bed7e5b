//! The latest events of Git projects, which replicas share.

use futures_util::future::BoxFuture;
use proto::notify::{MAX_EVENT, ProjectEvent};

use super::{RecordPlace, RedisStore};
use crate::{
    project_events::{MAX_NAMED_PROJECTS, MAX_REFERENCES, PROJECT_TTL, ProjectEventStore, RecordedEvent},
    routes::StoreError,
};

/// The digits of the number and of the length of the id, with which a value begins.
const NUMBER: usize = 16;
const LENGTH: usize = 3;
/// The most bytes of a MAC with its key.
const MAX_MAC: usize = 128;

impl ProjectEventStore for RedisStore {
    fn name_projects<'a>(&'a self, projects: &'a [String]) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
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
        })
    }

    fn record_event<'a>(
        &'a self,
        event: &'a ProjectEvent,
    ) -> BoxFuture<'a, Result<RecordedEvent, StoreError>> {
        Box::pin(async move {
            let shared = &self.0;
            let mut script = shared.scripts.record_event.key(shared.keys.projects());
            script.key(shared.keys.project_events(event.project()));
            let text = serde_json::to_string(event).expect("it has keys that are text");
            let text = shared.seal(place(event.project()), &text);
            script.arg(event.project()).arg(event.reference()).arg(event.id()).arg(text);
            script.arg(MAX_REFERENCES).arg(PROJECT_TTL.as_millis() as u64);
            Ok(match shared.query::<i64>(&script).await? {
                ..0 => RecordedEvent::UnknownProject,
                0 => RecordedEvent::Known,
                number => RecordedEvent::New(event.with_sequence(number.unsigned_abs())),
            })
        })
    }

    fn latest_events<'a>(&'a self, project: &'a str) -> BoxFuture<'a, Result<Vec<ProjectEvent>, StoreError>> {
        Box::pin(async move {
            let shared = &self.0;
            let mut script = shared.scripts.latest_events.key(shared.keys.project_events(project));
            script.arg(NUMBER + LENGTH + 255 + MAX_EVENT + MAX_MAC).arg(MAX_REFERENCES);
            let values: Vec<Vec<u8>> = shared.query(&script).await?;
            let events = values
                .into_iter()
                .filter_map(|value| self.decode(project, value))
                .filter(|event| event.project() == project);
            Ok(events.collect())
        })
    }
}

impl RedisStore {
    /// Decodes the value of an event, whose text a replica has signed.
    fn decode(&self, project: &str, value: Vec<u8>) -> Option<ProjectEvent> {
        let (number, id, sealed) = split(&value)?;
        let event = self.0.open(place(project), sealed.as_bytes().to_vec())?;
        let event: ProjectEvent = serde_json::from_slice(&event).ok()?;
        (event.id() == id).then_some(event.with_sequence(number))
    }
}

/// Returns the place of the events of a project.
fn place(project: &str) -> RecordPlace<'_> {
    RecordPlace { kind: "project event", key: project }
}

/// Returns the number, the id and the event of a value.
fn split(value: &[u8]) -> Option<(u64, &str, &str)> {
    let text = std::str::from_utf8(value).ok()?;
    let (number, rest) = text.split_at_checked(NUMBER)?;
    let (length, rest) = rest.split_at_checked(LENGTH)?;
    let (id, event) = rest.split_at_checked(length.parse().ok()?)?;
    Some((number.parse().ok()?, id, event))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_has_number_id_and_event() {
        let value =
            |text: &str| split(text.as_bytes()).map(|(number, id, event)| format!("{number} {id} {event}"));
        assert_eq!(value("0000001700000000001a{}").unwrap(), "1700000000 a {}");
        for text in [
            "",
            "0000001700000000",
            "0000001700000000999a{}",
            "000000170000000x001a{}",
            "000000170000000\u{e9}01a{}",
        ] {
            assert_eq!(value(text), None, "{text}");
        }
        assert_eq!(split(&[0xff; 40]), None);
    }
}
