//! The answer to a request for events: a list, or a stream. The listeners differ only in how they send it.

use access::Caller;
use http::HeaderMap;
use proto::{AgentId, ReplicaId, header::LAST_EVENT_ID};
use tokio_util::sync::CancellationToken;

use super::{EventList, EventQuery, EventQueryError, EventStream, Events, TooManyWatchers};

/// A request for events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventRequest<'a> {
    /// The query of the URL.
    pub(crate) query: Option<&'a str>,
    /// The headers.
    pub(crate) headers: &'a HeaderMap,
    /// The only agent whose events may be read.
    pub(crate) only: Option<AgentId>,
    /// The caller. Operators and the internal API are none.
    pub(crate) caller: Option<&'a Caller>,
    /// This replica.
    pub(crate) replica: ReplicaId,
    /// Cancelled when the replica stops.
    pub(crate) draining: &'a CancellationToken,
}

/// The answer to a request for events.
#[derive(Debug)]
pub(crate) enum EventAnswer {
    List(EventList),
    Stream(EventStream),
}

/// The error of a request for events.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EventRequestError {
    #[error(transparent)]
    Query(#[from] EventQueryError),
    #[error(transparent)]
    TooMany(#[from] TooManyWatchers),
}

impl Events {
    /// Answers a request for events.
    ///
    /// # Errors
    ///
    /// A parameter is wrong, or too many others follow.
    pub(crate) fn answer(&self, request: EventRequest<'_>) -> Result<EventAnswer, EventRequestError> {
        let EventRequest { query, headers, only, caller, replica, draining } = request;
        let mut query: EventQuery = query.unwrap_or_default().parse()?;
        query.filter.only = only;
        if !query.watch {
            return Ok(EventAnswer::List(self.list(&query, replica)));
        }
        if let Some(last) = headers.get(LAST_EVENT_ID) {
            query.resume(last.as_bytes())?;
        }
        Ok(EventAnswer::Stream(EventStream::new(self, query, caller.map(Caller::names), draining.clone())?))
    }
}
