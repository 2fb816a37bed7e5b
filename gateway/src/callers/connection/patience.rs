//! How long a caller is waited for.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

/// For the next request of a connection, or the rest of its head.
pub(super) struct Patience<'a> {
    leaving: Pin<Box<WaitForCancellationFuture<'a>>>,
    /// Wakes the connection, earlier than necessary: it is moved only when it was found to be too early, and not with
    /// every request.
    alarm: Pin<Box<Sleep>>,
    until: Instant,
}

/// Why nobody waits any longer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Tired {
    /// This replica takes no new requests.
    Leaving,
    /// The caller took too long.
    Late,
}

impl<'a> Patience<'a> {
    /// For so long, from now on, and until `leaving`.
    pub(super) fn new(leaving: &'a CancellationToken, limit: Duration) -> Self {
        let alarm = Box::pin(sleep(limit));
        Self { leaving: Box::pin(leaving.cancelled()), until: alarm.deadline(), alarm }
    }

    /// For so long, from now on.
    pub(super) fn begin(&mut self, limit: Duration) {
        self.until = Instant::now() + limit;
        if self.until < self.alarm.deadline() {
            self.alarm.as_mut().reset(self.until);
        }
    }

    /// Ready when it is over.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Tired> {
        if self.leaving.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Tired::Leaving);
        }
        while self.alarm.as_mut().poll(cx).is_ready() {
            if self.until <= Instant::now() {
                return Poll::Ready(Tired::Late);
            }
            self.alarm.as_mut().reset(self.until);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn patience_lasts_as_long_as_was_said_last() {
        let leaving = CancellationToken::new();
        let (short, long) = (Duration::from_secs(5), Duration::from_secs(60));
        for limits in [&[short][..], &[long, short], &[short, long], &[short, long, short]] {
            let mut patience = Patience::new(&leaving, limits[0]);
            limits[1..].iter().for_each(|limit| patience.begin(*limit));
            let started = Instant::now();
            assert_eq!(poll_fn(|cx| patience.poll(cx)).await, Tired::Late);
            assert_eq!(started.elapsed().as_secs(), limits[limits.len() - 1].as_secs(), "{limits:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_alarm_of_an_earlier_request_is_none() {
        let leaving = CancellationToken::new();
        let mut patience = Patience::new(&leaving, Duration::from_secs(5));
        let started = Instant::now();
        sleep(Duration::from_secs(7)).await;
        patience.begin(Duration::from_secs(5));
        assert_eq!(poll_fn(|cx| patience.poll(cx)).await, Tired::Late);
        assert_eq!(started.elapsed().as_secs(), 12);
    }

    #[tokio::test(start_paused = true)]
    async fn patience_is_over_when_the_replica_leaves() {
        let leaving = CancellationToken::new();
        let mut patience = Patience::new(&leaving, Duration::from_secs(5));
        leaving.cancel();
        assert_eq!(poll_fn(|cx| patience.poll(cx)).await, Tired::Leaving);
    }
}
