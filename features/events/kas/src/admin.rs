//! The events, for `GET /events` of the observability listener.

use axum::{
    Router,
    extract::{RawQuery, State},
    response::{IntoResponse, Response},
    routing::get,
};
use http::{HeaderMap, StatusCode, header::CONTENT_TYPE};
use proto::ReplicaId;
use tokio_util::sync::CancellationToken;

use super::{EventAnswer, EventRequest, EventRequestError, Events, stream_response};

/// The state of the route.
#[derive(Clone)]
struct AdminEvents {
    events: Events,
    replica: ReplicaId,
    draining: CancellationToken,
}

/// Returns the route of the events. `draining` is cancelled when the replica stops.
pub(crate) fn routes(events: Events, replica: ReplicaId, draining: CancellationToken) -> Router {
    Router::new().route("/events", get(get_events)).with_state(AdminEvents { events, replica, draining })
}

async fn get_events(
    State(AdminEvents { events, replica, draining }): State<AdminEvents>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let request = EventRequest {
        query: query.as_deref(),
        headers: &headers,
        only: None,
        caller: None,
        replica,
        draining: &draining,
    };
    match events.answer(request) {
        Ok(EventAnswer::List(list)) => {
            let list = serde_json::to_string(&list).expect("it has keys that are text") + "\n";
            ([(CONTENT_TYPE, "application/json")], list).into_response()
        }
        Ok(EventAnswer::Stream(stream)) => stream_response(stream),
        Err(error @ EventRequestError::Query(_)) => {
            (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response()
        }
        Err(error @ EventRequestError::TooMany(_)) => {
            (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response()
        }
    }
}
