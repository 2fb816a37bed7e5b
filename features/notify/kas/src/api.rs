//! `POST /api/v1/events`: a program reports a change of a Git project.

use std::time::SystemTime;

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    response::Response,
    routing::post,
};
use http::StatusCode;
use http_body_util::{BodyExt as _, Limited};
use proto::notify::{MAX_EVENT, ProjectEvent, ProjectEventFields};
use serde::{Deserialize, Serialize};
use settings::rfc3339;
use store::RecordedEvent;

use super::{EventOrigin, NotifyService, commit_event_id};
use kas_core::api::{InternalApiError, json, unavailable};

/// The body of a request.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewEvent {
    id: Option<String>,
    project: String,
    r#ref: Option<String>,
    before: Option<String>,
    after: Option<String>,
    #[serde(default)]
    urls: Vec<String>,
    time: Option<RfcTime>,
}

/// A time in a body.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
struct RfcTime(#[serde(with = "rfc3339")] SystemTime);

/// The body of a response.
#[derive(Debug, Serialize)]
struct RecordedBody<'a> {
    id: &'a str,
    /// The event was the latest one of its reference before.
    known: bool,
}

/// Returns the routes of the events of projects. The log of events is at the same path.
pub(super) fn routes(notify: NotifyService) -> Router {
    let record = post(record_event).fallback(async || InternalApiError::Method("GET, HEAD, POST"));
    Router::new().route("/api/v1/events", record).with_state(notify)
}

/// Keeps an event, and sends it to the agents whose configuration names its project.
async fn record_event(State(notify): State<NotifyService>, body: Body) -> Result<Response, InternalApiError> {
    let invalid = |what: String| InternalApiError::BadRequest(what);
    let body = Limited::new(body, MAX_EVENT).collect().await;
    let body: Bytes = body
        .map_err(|_| invalid(format!("the event has more than {MAX_EVENT} bytes, or is cut")))?
        .to_bytes();
    let event: NewEvent =
        serde_json::from_slice(&body).map_err(|error| invalid(format!("the event is invalid: {error}")))?;
    let event = event.into_event().map_err(invalid)?;
    let recorded = record(&notify, &event, EventOrigin::Api).await?;
    let status = match recorded {
        RecordedEvent::New(_) => StatusCode::CREATED,
        RecordedEvent::Known => StatusCode::OK,
        RecordedEvent::UnknownProject => {
            return Err(InternalApiError::NotFound(format!(
                "no agent receives events of the project {}: an agent that has been connected must name it in its configuration \
                 (notify.projects) and be allowed to read it; the log of kas has the projects that an agent may not read",
                event.project()
            )));
        }
    };
    Ok(json(status, &RecordedBody { id: event.id(), known: status == StatusCode::OK }))
}

/// Keeps an event, and announces a new one to all replicas.
pub(super) async fn record(
    notify: &NotifyService,
    event: &ProjectEvent,
    origin: EventOrigin,
) -> Result<RecordedEvent, InternalApiError> {
    let recorded = notify.record(event, origin).await;
    recorded.map_err(|error| unavailable(format!("the event is not kept: {error}")))
}

impl NewEvent {
    /// Returns the event. Without an id, an event with a commit has one that is the same when it is sent again.
    fn into_event(self) -> Result<ProjectEvent, String> {
        let Self { id, project, r#ref: reference, before, after, urls, time } = self;
        let commit =
            |after: &String| commit_event_id(&project, reference.as_deref().unwrap_or_default(), after);
        let id = id.or_else(|| after.as_ref().map(commit)).unwrap_or_else(random_id);
        let time = time.map_or_else(SystemTime::now, |time| time.0);
        let fields = ProjectEventFields { id, sequence: 0, project, reference, before, after, urls, time };
        ProjectEvent::try_from(fields).map_err(|error| error.to_string())
    }
}

/// Returns an id for an event that has none.
pub(super) fn random_id() -> String {
    format!("{:032x}", rand::random::<u128>())
}
