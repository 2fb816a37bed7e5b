//! The results of requests to a restarting kas.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use proto::Reason;
use serde::Serialize;

use crate::load::{LoadError, client::ResponseHead};

/// One request.
#[derive(Clone, Debug)]
pub(super) struct SentRequest {
    /// The moment when it was sent.
    pub(super) at: Instant,
    /// The time until the response was complete or the request failed.
    pub(super) took: Duration,
    /// The result.
    pub(super) response: RequestResult,
}

/// The result of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RequestResult {
    Answered,
    Refused,
    NotConnected,
    Cut,
    Other(String),
}

/// The summary of all requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct RestartOutcome {
    /// The number of responses below 400.
    pub(super) answered: usize,
    /// The number of refused connections.
    pub(super) refused: usize,
    /// The number of responses with the reason `agent-not-connected`.
    pub(super) not_connected: usize,
    /// The number of connections that were closed before the end of the response.
    pub(super) cut: usize,
    /// The number of other failures by reason.
    pub(super) other: BTreeMap<String, usize>,
    /// The duration of the slowest request.
    pub(super) worst_seconds: f64,
    /// The longest time from a start of kas to the first response after it.
    pub(super) back_seconds: f64,
}

impl From<Result<ResponseHead, LoadError>> for RequestResult {
    fn from(result: Result<ResponseHead, LoadError>) -> Self {
        match result {
            Ok(head) if head.status < 400 => Self::Answered,
            Ok(ResponseHead { reason: Some(Reason::AgentNotConnected), .. }) => Self::NotConnected,
            Ok(ResponseHead { status, reason: Some(reason), .. }) => {
                Self::Other(format!("status {status} ({reason})"))
            }
            Ok(head) => Self::Other(format!("status {}", head.status)),
            Err(LoadError::Connect(_)) => Self::Refused,
            Err(LoadError::Closed) => Self::Cut,
            Err(failure) => Self::Other(failure.to_string()),
        }
    }
}

impl RestartOutcome {
    /// Summarizes the requests around the `starts` of kas.
    pub(super) fn of(sent: &[SentRequest], starts: &[Instant]) -> Self {
        let mut outcome = Self::default();
        for SentRequest { response, .. } in sent {
            match response {
                RequestResult::Answered => outcome.answered += 1,
                RequestResult::Refused => outcome.refused += 1,
                RequestResult::NotConnected => outcome.not_connected += 1,
                RequestResult::Cut => outcome.cut += 1,
                RequestResult::Other(cause) => *outcome.other.entry(cause.clone()).or_default() += 1,
            }
        }
        let answered = || sent.iter().filter(|sent| sent.response == RequestResult::Answered);
        let back = starts.iter().filter_map(|start| {
            let ends = answered().map(|sent| sent.at + sent.took);
            ends.filter_map(|end| end.checked_duration_since(*start)).min()
        });
        outcome.back_seconds = back.max().unwrap_or_default().as_secs_f64();
        outcome.worst_seconds = sent.iter().map(|sent| sent.took).max().unwrap_or_default().as_secs_f64();
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcome_counts_responses_and_recovery_time() {
        let begin = Instant::now();
        let sent = |at: u64, took: u64, response| SentRequest {
            at: begin + Duration::from_millis(at),
            took: Duration::from_millis(took),
            response,
        };
        let requests = [
            sent(0, 2, RequestResult::Answered),
            sent(100, 1, RequestResult::Cut),
            sent(200, 1, RequestResult::Refused),
            sent(300, 2000, RequestResult::NotConnected),
            sent(400, 350, RequestResult::Answered),
            sent(900, 5, RequestResult::Other("status 500".to_owned())),
        ];
        let outcome = RestartOutcome::of(&requests, &[begin + Duration::from_millis(250)]);
        let RestartOutcome { answered, refused, not_connected, cut, ref other, .. } = outcome;
        assert_eq!((answered, refused, not_connected, cut), (2, 1, 1, 1));
        assert_eq!(other["status 500"], 1);
        assert_eq!((outcome.worst_seconds, outcome.back_seconds), (2.0, 0.5));
        assert_eq!(RestartOutcome::of(&[], &[begin]), RestartOutcome::default());
    }
}
