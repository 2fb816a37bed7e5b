//! A future that is polled only after its own wake-up.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{
            AtomicBool,
            Ordering::{AcqRel, Release},
        },
    },
    task::{Context, Poll, Wake, Waker},
};

use futures_util::task::AtomicWaker;

#[derive(Debug)]
struct PollOnWake<F> {
    /// `None` after it has completed.
    future: Option<Pin<Box<F>>>,
    wake_up: Arc<WakeUp>,
}

/// The waker of the inner future.
#[derive(Debug)]
struct WakeUp {
    is_due: AtomicBool,
    task: AtomicWaker,
}

/// Polls `future` only after it was woken, however often the returned future is polled.
///
/// `select!` polls all of its branches whenever one of them wakes the task. Beside a busy connection, a cancellation
/// token then costs two locks each time, and a timer a read of the clock.
///
/// The returned future stays pending after it has completed.
pub fn poll_on_wake<F: Future>(future: F) -> impl Future<Output = F::Output> + Unpin {
    let wake_up = Arc::new(WakeUp { is_due: AtomicBool::new(true), task: AtomicWaker::new() });
    PollOnWake { future: Some(Box::pin(future)), wake_up }
}

impl Wake for WakeUp {
    fn wake(self: Arc<Self>) {
        self.is_due.store(true, Release);
        self.task.wake();
    }
}

impl<F: Future> Future for PollOnWake<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Self { future, wake_up } = &mut *self;
        wake_up.task.register(cx.waker());
        // After the registration: a wake-up in between is seen here, and a later one wakes the task.
        if !wake_up.is_due.swap(false, AcqRel) {
            return Poll::Pending;
        }
        let Some(inner) = future else { return Poll::Pending };
        let waker = Waker::from(Arc::clone(wake_up));
        let polled = inner.as_mut().poll(&mut Context::from_waker(&waker));
        if polled.is_ready() {
            *future = None;
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, future::poll_fn, time::Duration};

    use futures_util::FutureExt as _;
    use tokio::time::{Instant, sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn inner_future_is_polled_only_when_it_was_woken() {
        let polls = Cell::new(0);
        let mut timer = Box::pin(sleep(Duration::from_secs(5)));
        let counted = poll_fn(|cx| {
            polls.set(polls.get() + 1);
            timer.as_mut().poll(cx)
        });
        let mut rare = poll_on_wake(counted);
        for _ in 0..100 {
            tokio::select! {
                biased;
                () = &mut rare => panic!("it is not due yet"),
                () = tokio::task::yield_now() => {}
            }
        }
        assert_eq!(polls.get(), 1);

        let started = Instant::now();
        rare.await;
        assert_eq!((started.elapsed().as_secs(), polls.get()), (5, 2));
    }

    #[tokio::test]
    async fn wake_up_during_a_poll_is_not_lost() {
        poll_on_wake(tokio::task::yield_now()).await;
    }

    #[tokio::test]
    async fn completed_future_stays_pending() {
        let mut completed = poll_on_wake(async { 7 });
        assert_eq!((&mut completed).await, 7);
        assert_eq!((&mut completed).now_or_never(), None);
    }
}
