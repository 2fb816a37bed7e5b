//! The events, for `GET /api/v1/events` of the internal API.

use std::time::Duration;

use access::SourceUnavailable;
use axum::{
    Router,
    extract::{RawQuery, State},
    response::Response,
    routing::get,
};
use http::HeaderMap;

use super::{EventAnswer, EventRequest, EventRequestError, Events, stream_response};
use kas_core::api::{ApiContext, InternalApiError, ok};

/// The state of the routes.
#[derive(Clone)]
struct EventsApi {
    context: ApiContext,
    events: Events,
}

/// Returns the routes of the events.
pub(crate) fn routes(context: ApiContext, events: Events) -> Router {
    Router::new().route("/api/v1/events", get(get_events)).with_state(EventsApi { context, events })
}

async fn get_events(
    State(EventsApi { context, events }): State<EventsApi>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, InternalApiError> {
    let request = EventRequest {
        query: query.as_deref(),
        headers: &headers,
        only: None,
        caller: None,
        replica: context.replica,
        draining: &context.draining,
    };
    Ok(match events.answer(request)? {
        EventAnswer::List(list) => ok(&list),
        EventAnswer::Stream(stream) => stream_response(stream),
    })
}

impl From<EventRequestError> for InternalApiError {
    fn from(error: EventRequestError) -> Self {
        let message = error.to_string();
        match error {
            EventRequestError::Query(_) => Self::BadRequest(message),
            EventRequestError::TooMany(_) => {
                SourceUnavailable { message, retry_after: Duration::from_secs(5) }.into()
            }
        }
    }
}
