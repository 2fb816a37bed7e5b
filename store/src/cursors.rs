//! The cursors of the log of events: each is the position up to which one replica at a time has processed the events.

use std::{collections::HashMap, fmt, time::Duration};

use futures_util::future::BoxFuture;
use proto::ReplicaId;
use tokio::time::Instant;

use crate::{events::EventPosition, routes::StoreError};

/// The time after which the claim of a cursor ends unless it is renewed.
pub const CURSOR_TTL: Duration = Duration::from_secs(12);

/// A request about a cursor: the position up to which one replica at a time has processed the events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CursorRequest {
    /// Claims the cursor for [`CURSOR_TTL`], or renews the claim. A new one begins at this position.
    Claim(EventPosition),
    /// Moves a claimed cursor forward.
    Move(EventPosition),
    /// Ends the claim.
    Release,
}

/// The cursors of the log of events that replicas share.
pub trait CursorStore: fmt::Debug + Send + Sync + 'static {
    /// Claims, moves or releases a cursor of the log. Returns its position, or `None` if this replica has not claimed it.
    fn event_cursor<'a>(
        &'a self,
        name: &'a str,
        replica: ReplicaId,
        request: CursorRequest,
    ) -> BoxFuture<'a, Result<Option<EventPosition>, StoreError>>;
}

/// The cursors in memory.
#[derive(Debug, Default)]
pub(crate) struct CursorTable(HashMap<String, Cursor>);

#[derive(Debug)]
struct Cursor {
    holder: Option<(ReplicaId, Instant)>,
    position: EventPosition,
}

impl CursorTable {
    /// Returns the position of a cursor, or `None` if another replica has claimed it.
    pub(crate) fn apply(
        &mut self,
        name: &str,
        replica: ReplicaId,
        request: CursorRequest,
        now: Instant,
    ) -> Option<EventPosition> {
        let cursor = match request {
            CursorRequest::Claim(initial) => {
                self.0.entry(name.to_owned()).or_insert(Cursor { holder: None, position: initial })
            }
            CursorRequest::Move(_) | CursorRequest::Release => self.0.get_mut(name)?,
        };
        if cursor.holder.is_some_and(|(holder, end)| holder != replica && end > now) {
            return None;
        }
        let is_own = cursor.holder.is_some_and(|(holder, _)| holder == replica);
        match request {
            CursorRequest::Claim(_) => cursor.holder = Some((replica, now + CURSOR_TTL)),
            CursorRequest::Move(_) | CursorRequest::Release if !is_own => return None,
            CursorRequest::Move(position) => cursor.position = cursor.position.max(position),
            CursorRequest::Release => cursor.holder = None,
        }
        Some(cursor.position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> EventPosition {
        EventPosition { millis, sequence: 3 }
    }

    #[tokio::test(start_paused = true)]
    async fn one_replica_at_a_time_has_a_cursor() {
        use CursorRequest::{Claim, Move, Release};

        let mut cursors = CursorTable::default();
        let replica = |number| ReplicaId::from_bytes([number; 16]);
        let mut apply = |number, request| cursors.apply("hook", replica(number), request, Instant::now());
        assert_eq!(apply(1, Move(at(1))), None, "nobody has claimed it");
        assert_eq!(apply(1, Claim(at(5))), Some(at(5)));
        assert_eq!((apply(2, Claim(at(9))), apply(2, Move(at(9)))), (None, None));
        assert_eq!(apply(1, Move(at(7))), Some(at(7)));
        assert_eq!(apply(1, Move(at(6))), Some(at(7)), "it never moves back");
        assert_eq!((apply(1, Release), apply(2, Claim(at(9)))), (Some(at(7)), Some(at(7))));
        tokio::time::advance(CURSOR_TTL).await;
        assert_eq!(apply(3, Move(at(8))), None);
        assert_eq!(apply(3, Claim(at(0))), Some(at(7)), "the second replica has not renewed it");
        assert_eq!(apply(2, Move(at(8))), None);
    }
}
