//! The lines of a response of the service `audit`, with the callers of requests.

use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body::Frame;
use http_body_util::StreamBody;
use proto::audit::{AuditLine, ClusterEvent, JoinedEvent, MAX_LINE};
use tokio::time::{Instant, timeout_at};
use tunnel::Body;

use super::AuditJoiner;
use kas_core::attachments::Lines;

/// The most events that are joined together.
const MAX_BATCH: usize = 256;
/// Events within this time are joined together: each lookup is a request to all other replicas.
const BATCH_TIME: Duration = Duration::from_millis(100);

type Line = AuditLine<ClusterEvent>;

/// The lines of agentk that are not joined yet.
struct Joining {
    joiner: AuditJoiner,
    lines: Lines<Body>,
    /// agentk has sent the last line, or an invalid one.
    end: Option<Result<(), String>>,
}

/// Joins the events of a response of agentk, which is not trusted: the response fails at a line that is none.
pub(super) fn join_body(joiner: AuditJoiner, body: Body) -> Body {
    let joining = Joining { joiner, lines: Lines::new(body, MAX_LINE), end: None };
    let frames = stream::unfold(joining, async |mut joining| {
        let next = joining.next().await?;
        Some((next.map(Frame::data), joining))
    });
    Body::new(StreamBody::new(Box::pin(frames)))
}

impl Joining {
    /// Returns the next joined lines, or `None` at the end.
    async fn next(&mut self) -> Option<Result<Bytes, String>> {
        loop {
            if let Some(end) = self.end.take() {
                // The end of a stream that has failed is polled once more.
                self.end = Some(Ok(()));
                return end.err().map(Err);
            }
            let joined = self.next_batch().await;
            if !joined.is_empty() {
                return Some(Ok(joined.into()));
            }
        }
    }

    /// Reads some lines, and joins them.
    async fn next_batch(&mut self) -> Vec<u8> {
        let mut batch: Vec<Line> = Vec::new();
        let mut deadline = None;
        while batch.len() < MAX_BATCH {
            let read = match deadline {
                None => self.lines.next::<Line>().await,
                Some(deadline) => match timeout_at(deadline, self.lines.next::<Line>()).await {
                    Ok(read) => read,
                    Err(_) => break,
                },
            };
            match read {
                Ok(Some(line)) => batch.push(line),
                Ok(None) => {
                    self.end = Some(Ok(()));
                    break;
                }
                Err(error) => {
                    self.end = Some(Err(error));
                    break;
                }
            }
            deadline.get_or_insert_with(|| Instant::now() + BATCH_TIME);
        }
        encode(&mut self.joiner, batch).await
    }
}

/// Joins events, and encodes them. The other lines stay at their places.
async fn encode(joiner: &mut AuditJoiner, batch: Vec<Line>) -> Vec<u8> {
    let (mut text, mut events) = (Vec::new(), Vec::new());
    for line in batch {
        let other = match line {
            AuditLine::Event(event) => {
                events.push(*event);
                continue;
            }
            AuditLine::Gap { position, lost_bytes } => AuditLine::Gap { position, lost_bytes },
            AuditLine::End { position, has_more } => AuditLine::End { position, has_more },
        };
        add_events(joiner, std::mem::take(&mut events), &mut text).await;
        add(&other, &mut text);
    }
    add_events(joiner, events, &mut text).await;
    text
}

async fn add_events(joiner: &mut AuditJoiner, events: Vec<ClusterEvent>, text: &mut Vec<u8>) {
    if !events.is_empty() {
        for event in joiner.join(events).await {
            add(&AuditLine::Event(Box::new(event)), text);
        }
    }
}

fn add(line: &AuditLine<JoinedEvent>, text: &mut Vec<u8>) {
    serde_json::to_writer(&mut *text, line).expect("it has keys that are text");
    text.push(b'\n');
}
