//! A rate limit that replicas share: one command for each who comes.

use std::time::Duration;

use super::RedisStore;
use crate::{limit::Pace, store::StoreError};

impl RedisStore {
    /// Counts one, or says how long to wait; fails if Redis does not answer.
    pub(crate) async fn admit(
        &self,
        digest: [u8; 16],
        pace: Pace,
    ) -> Result<Result<(), Duration>, StoreError> {
        let shared = &self.0;
        let line = shared.line()?;
        let digest = format!("{:032x}", u128::from_be_bytes(digest));
        let mut script = shared.scripts.admit.key(shared.keys.limit(&digest));
        script.arg(pace.cost).arg(pace.credit);
        let wait: u64 = line.link.run(&script, &shared.counts).await.map_err(|error| {
            shared.give_up(&line);
            StoreError(error)
        })?;
        Ok(if wait == 0 { Ok(()) } else { Err(Duration::from_micros(wait)) })
    }
}
