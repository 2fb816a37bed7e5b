//! The events, for `GET /api/v1/events`.

use std::{sync::Arc, time::Duration};

use access::SourceUnavailable;
use axum::{
    extract::{RawQuery, State},
    response::Response,
};
use http::HeaderMap;

use super::{
    ApiServer,
    response::{ApiError, ok},
};
use crate::features::events::{EventAnswer, EventRequest, EventRequestError, stream_response};

pub(super) async fn get_events(
    State(api): State<Arc<ApiServer>>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let request = EventRequest {
        query: query.as_deref(),
        headers: &headers,
        only: None,
        caller: None,
        replica: api.replica,
        draining: &api.draining,
    };
    Ok(match api.events.answer(request)? {
        EventAnswer::List(list) => ok(&list),
        EventAnswer::Stream(stream) => stream_response(stream),
    })
}

impl From<EventRequestError> for ApiError {
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
