//! A timer for a peer that makes no progress.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep};

/// Measures for how long a peer has made no progress.
#[derive(Debug)]
pub struct StallTimer {
    limit: Duration,
    /// Allocated when the timer is armed for the first time: most connections and bodies never wait.
    sleep: Option<Pin<Box<Sleep>>>,
    armed: bool,
}

impl StallTimer {
    /// Returns a timer that expires `limit` after it was armed.
    pub fn new(limit: Duration) -> Self {
        Self { limit, sleep: None, armed: false }
    }

    /// Returns the time after which the timer expires.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Changes the time after which the timer expires when it is armed the next time.
    pub fn set_limit(&mut self, limit: Duration) {
        self.limit = limit;
    }

    /// Stops the timer: the peer has made progress.
    pub fn disarm(&mut self) {
        self.armed = false;
    }

    /// Returns whether the timer runs.
    pub fn is_armed(&self) -> bool {
        self.armed
    }

    /// Arms the timer if it does not run, and completes when it expires.
    pub fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let limit = self.limit;
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep(limit)));
        if !self.armed {
            self.armed = true;
            sleep.as_mut().reset(Instant::now() + limit);
        }
        sleep.as_mut().poll(cx)
    }
}
