//! The time of a request up to the head of its response, by stage.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use proto::header;
use tokio::time::Instant;

/// W3C Server Timing, which browsers show in their developer tools.
const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// The time of one request, by stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestTiming {
    /// The time until it was sent, including the wait for an agent that reconnects.
    pub queue: Duration,
    /// The time between kas and the agent, in both directions.
    pub tunnel: Duration,
    /// The time until the head of the cluster's response, as reported by the agent.
    pub upstream: Duration,
}

impl RequestTiming {
    /// Returns the timing of a request that arrived at `started`, was `sent` to the agent and `answered` with these headers.
    pub fn new(started: Instant, sent: Instant, answered: Instant, headers: &HeaderMap) -> Self {
        let away = answered.saturating_duration_since(sent);
        let reported =
            headers.get(header::UPSTREAM_TIME).and_then(|micros| micros.to_str().ok()?.parse().ok());
        // The agent is not trusted, and an older agent reports nothing. The time then counts as `tunnel`.
        let upstream = Duration::from_micros(reported.unwrap_or(0)).min(away);
        Self { queue: sent.saturating_duration_since(started), tunnel: away - upstream, upstream }
    }

    /// Adds the `Server-Timing` header.
    pub fn write(&self, headers: &mut HeaderMap) {
        let mut text = String::with_capacity(64);
        for (name, time) in [("queue", self.queue), (", tunnel", self.tunnel), (", upstream", self.upstream)]
        {
            text.push_str(name);
            text.push_str(";dur=");
            push_millis(&mut text, time);
        }
        headers.insert(SERVER_TIMING, HeaderValue::try_from(text).expect("it is ASCII"));
    }
}

/// Appends milliseconds like `0.250`. `write!` would take longer than all other changes of a head.
fn push_millis(text: &mut String, time: Duration) {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let mut buffer = itoa::Buffer::new();
    text.push_str(buffer.format(micros / 1000));
    text.push('.');
    // The first digit is that of the sum.
    text.push_str(&buffer.format(1000 + micros % 1000)[1..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(reported: Option<&str>) -> (RequestTiming, String) {
        let started = Instant::now();
        let (sent, answered) = (started + Duration::from_micros(250), started + Duration::from_micros(2250));
        let mut headers = HeaderMap::new();
        if let Some(reported) = reported {
            headers.insert(header::UPSTREAM_TIME, reported.parse().unwrap());
        }
        let timing = RequestTiming::new(started, sent, answered, &headers);
        timing.write(&mut headers);
        (timing, headers["server-timing"].to_str().unwrap().to_owned())
    }

    #[test]
    fn header_has_the_time_by_stage() {
        let (timing, header) = timing(Some("1500"));
        assert_eq!(timing.tunnel, Duration::from_micros(500));
        assert_eq!(header, "queue;dur=0.250, tunnel;dur=0.500, upstream;dur=1.500");
    }

    #[test]
    fn upstream_time_is_at_most_the_measured_time() {
        for reported in ["99999999999999999", "18446744073709551615"] {
            assert_eq!(timing(Some(reported)).1, "queue;dur=0.250, tunnel;dur=0.000, upstream;dur=2.000");
        }
        for reported in [None, Some("-1"), Some("soon")] {
            assert_eq!(timing(reported).1, "queue;dur=0.250, tunnel;dur=2.000, upstream;dur=0.000");
        }
    }
}
