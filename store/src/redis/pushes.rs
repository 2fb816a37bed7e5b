//! Pushes to Git projects, which the synchronization publishes to the other replicas.

use tokio::sync::broadcast;

use super::RedisStore;
use crate::pushes::{GitPush, PushStore};

/// The most pushes that wait for Redis. The projects of others are polled only.
const MAX_UNSENT_PUSHES: usize = 1000;

impl PushStore for RedisStore {
    fn send_push(&self, push: GitPush) {
        self.0.pushes.send(push.clone());
        let mut unsent = self.0.unsent_pushes.lock();
        if unsent.len() < MAX_UNSENT_PUSHES && !unsent.contains(&push) {
            unsent.push(push);
            self.0.pushed.notify_one();
        }
    }

    fn pushes(&self) -> broadcast::Receiver<GitPush> {
        self.0.pushes.subscribe()
    }
}
