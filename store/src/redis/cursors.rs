//! The cursors of the log of events, in a hash.

use futures_util::future::BoxFuture;
use proto::ReplicaId;

use super::{RedisStore, keys::CURSORS_TTL, sync::millis};
use crate::{
    cursors::{CURSOR_TTL, CursorRequest, CursorStore},
    events::{EVENTS_PERIOD, EventPosition},
    routes::StoreError,
};

impl CursorStore for RedisStore {
    fn event_cursor<'a>(
        &'a self,
        name: &'a str,
        replica: ReplicaId,
        request: CursorRequest,
    ) -> BoxFuture<'a, Result<Option<EventPosition>, StoreError>> {
        Box::pin(async move {
            let shared = &self.0;
            let mut script = shared.scripts.event_cursor.key(shared.keys.event_cursors());
            script.arg(name).arg(replica.to_string()).arg(millis(CURSOR_TTL)).arg(millis(CURSORS_TTL));
            match request {
                CursorRequest::Claim(initial) => {
                    script.arg("claim").arg(initial.to_string()).arg(millis(EVENTS_PERIOD));
                }
                CursorRequest::Move(to) => drop(script.arg("move").arg(to.to_string())),
                CursorRequest::Release => drop(script.arg("release")),
            }
            let position: String = shared.query(&script).await?;
            if position.is_empty() {
                return Ok(None);
            }
            position
                .parse()
                .map(Some)
                .map_err(|error| StoreError(format!("Redis returned a wrong cursor: {error}")))
        })
    }
}
