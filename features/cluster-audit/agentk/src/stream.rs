//! The lines of a response.

use std::{io, ops::ControlFlow, sync::Arc, time::Duration};

use agentk_core::{
    policy::ScopeEnforcer,
    services::{caller_permits::CallerPermit, response::line},
};
use bytes::Bytes;
use cluster_audit::{Cursor, EventFilter, Progress};
use futures_util::{Stream, stream};
use proto::audit::{AuditLine, ClusterEvent};
use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

/// The longest time of a response that does not follow. Then it ends with a position from which the next one continues.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Events within this time are sent together to a caller that follows.
const COALESCE: Duration = Duration::from_millis(50);
/// The time after which a caller that follows is sent the position, also without an event for it.
const ALIVE: Duration = Duration::from_secs(15);

/// The lines of a response, as they are read.
pub(super) struct EventStream {
    pub(super) cursor: Cursor,
    pub(super) filter: Arc<EventFilter>,
    pub(super) scope: Option<Arc<ScopeEnforcer>>,
    /// The user of agentk in the cluster, if it is known.
    pub(super) own_user: Option<String>,
    /// The number of events that may follow, unless the response has no end.
    pub(super) left: usize,
    pub(super) follows: bool,
    pub(super) changes: watch::Receiver<u64>,
    /// The time at which a caller that follows is sent the position.
    pub(super) alive_at: Instant,
    /// A response that follows ends then, and its caller continues at the position.
    pub(super) stopping: CancellationToken,
    /// One for each response.
    pub(super) _permit: CallerPermit,
}

/// The lines of one chunk of a file.
struct Chunk {
    lines: Vec<u8>,
    events: usize,
    progress: Progress,
}

impl EventStream {
    /// Returns the lines. The stream ends after a line of the type `end`, or early if a file cannot be read.
    pub(super) fn into_lines(self) -> impl Stream<Item = Bytes> + Send + 'static {
        let deadline = Instant::now() + READ_TIMEOUT;
        stream::unfold(Some(self), move |stream| async move {
            let (lines, rest) = stream?.next(deadline).await?;
            Some((lines, rest))
        })
    }

    /// Returns the next lines, and the rest of the stream. Returns `None` after an error.
    async fn next(mut self, deadline: Instant) -> Option<(Bytes, Option<Self>)> {
        loop {
            if self.follows && self.stopping.is_cancelled() {
                let end = self.end(true);
                return Some((end, None));
            }
            // Before the read, so that no change is missed.
            self.changes.mark_unchanged();
            let (stream, chunk) = self.read().await;
            self = stream;
            let Chunk { lines, events, progress } = match chunk {
                Ok(chunk) => chunk,
                Err(error) => {
                    tracing::warn!(%error, "the audit events cannot be read");
                    return None;
                }
            };
            if !self.follows {
                self.left -= events;
                let is_over = progress == Progress::End || self.left == 0 || Instant::now() >= deadline;
                if is_over {
                    let end = self.end(progress != Progress::End);
                    return Some(([lines, end.to_vec()].concat().into(), None));
                }
            }
            if !lines.is_empty() {
                return Some(self.send(lines.into()));
            }
            // A filter may select none of the events of a busy cluster.
            if self.follows && Instant::now() >= self.alive_at {
                let position = self.end(true);
                return Some(self.send(position));
            }
            if progress == Progress::End {
                tokio::select! {
                    // The sender is dropped only when agentk stops.
                    changed = self.changes.changed() => {
                        changed.ok()?;
                        sleep(COALESCE).await;
                    }
                    () = sleep_until(self.alive_at) => {}
                    () = self.stopping.cancelled() => {}
                }
            }
        }
    }

    /// Returns lines with the rest of the stream.
    fn send(mut self, lines: Bytes) -> (Bytes, Option<Self>) {
        self.alive_at = Instant::now() + ALIVE;
        (lines, Some(self))
    }

    /// Reads a chunk on a thread that may block.
    async fn read(mut self) -> (Self, io::Result<Chunk>) {
        let scope = self.scope.as_ref().and_then(|scope| scope.in_force()).map(|scope| scope.namespaces);
        let most = if self.follows { usize::MAX } else { self.left };
        let (filter, own_user) = (Arc::clone(&self.filter), self.own_user.take());
        let mut cursor = self.cursor;
        let reading = spawn_blocking(move || {
            let (mut lines, mut events) = (Vec::new(), 0);
            let progress = cursor.read(&filter, scope.as_deref(), |position, user, event| {
                let is_own = own_user.as_deref().map(|own| own == user);
                let mark = is_own.map(|is_own| format!(r#""of_agentk":{is_own},"#)).unwrap_or_default();
                lines.extend_from_slice(
                    format!(r#"{{"type":"event","position":"{position}",{mark}"#).as_bytes(),
                );
                // The line begins with a bracket, and has at least one field.
                lines.extend_from_slice(&event[1..]);
                lines.push(b'\n');
                events += 1;
                if events == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            if let Ok(Progress::Gap(lost_bytes)) = progress {
                let gap =
                    AuditLine::<ClusterEvent>::Gap { position: cursor.position().to_string(), lost_bytes };
                lines.extend_from_slice(&line(&gap));
            }
            (cursor, own_user, progress.map(|progress| Chunk { lines, events, progress }))
        });
        let (cursor, own_user, chunk) = reading.await.expect("it does not panic");
        (Self { cursor, own_user, ..self }, chunk)
    }

    /// Returns the line with the position.
    fn end(&self, has_more: bool) -> Bytes {
        let position = self.cursor.position().to_string();
        line(&AuditLine::<ClusterEvent>::End { position, has_more })
    }
}
