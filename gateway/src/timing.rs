//! Where the time of a request went, up to the head of its answer.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use proto::header;
use tokio::time::Instant;

/// W3C Server Timing; browsers show it in their developer tools.
const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// The time of one request by stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stages {
    /// Until a tunnel took it: the wait for an agent that reconnects is in here.
    pub queue: Duration,
    /// On its way to the agent and back.
    pub tunnel: Duration,
    /// Until the cluster's answer began, as the agent says.
    pub upstream: Duration,
}

impl Stages {
    /// Of a request that came at `started`, was `sent` to the agent and `answered` with these headers.
    pub fn of(started: Instant, sent: Instant, answered: Instant, headers: &HeaderMap) -> Self {
        let away = answered.saturating_duration_since(sent);
        let said = headers.get(header::UPSTREAM_TIME).and_then(|micros| micros.to_str().ok()?.parse().ok());
        // The agent may say anything, and an older one nothing: then all of it counts as the way.
        let upstream = Duration::from_micros(said.unwrap_or(0)).min(away);
        Self { queue: sent.saturating_duration_since(started), tunnel: away - upstream, upstream }
    }

    /// Tells the caller.
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

/// Like `0.250`. Not with `write!`, which takes longer than all else that kas does to a head.
fn push_millis(text: &mut String, time: Duration) {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    text.push_str(itoa::Buffer::new().format(micros / 1000));
    text.push('.');
    text.extend([100, 10, 1].map(|unit| char::from(b'0' + (micros / unit % 10) as u8)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stages(said: Option<&str>) -> (Stages, String) {
        let started = Instant::now();
        let (sent, answered) = (started + Duration::from_micros(250), started + Duration::from_micros(2250));
        let mut headers = HeaderMap::new();
        if let Some(said) = said {
            headers.insert(header::UPSTREAM_TIME, said.parse().unwrap());
        }
        let stages = Stages::of(started, sent, answered, &headers);
        stages.write(&mut headers);
        (stages, headers["server-timing"].to_str().unwrap().to_owned())
    }

    #[test]
    fn the_time_is_told_by_stage() {
        let (stages, said) = stages(Some("1500"));
        assert_eq!(stages.tunnel, Duration::from_micros(500));
        assert_eq!(said, "queue;dur=0.250, tunnel;dur=0.500, upstream;dur=1.500");
    }

    #[test]
    fn an_agent_cannot_have_taken_longer_than_it_took() {
        for said in ["99999999999999999", "18446744073709551615"] {
            assert_eq!(stages(Some(said)).1, "queue;dur=0.250, tunnel;dur=0.000, upstream;dur=2.000");
        }
        for said in [None, Some("-1"), Some("soon")] {
            assert_eq!(stages(said).1, "queue;dur=0.250, tunnel;dur=2.000, upstream;dur=0.000");
        }
    }
}
