//! A future that is polled only after its own wake-up.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use futures_util::stream::{FuturesUnordered, StreamExt as _};

#[derive(Debug)]
struct PollOnWake<F>(FuturesUnordered<Pin<Box<F>>>);

/// Polls `future` only after it was woken, however often the returned future is polled.
///
/// `select!` polls all of its branches whenever one of them wakes the task. Beside a busy connection, a cancellation
/// token then costs two locks each time, and a timer a read of the clock.
///
/// The returned future stays pending after it has completed.
pub fn poll_on_wake<F: Future>(future: F) -> impl Future<Output = F::Output> + Unpin {
    // Boxed, because `FuturesUnordered` has room for one more future than it holds.
    PollOnWake(FuturesUnordered::from_iter([Box::pin(future)]))
}

impl<F: Future> Future for PollOnWake<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        match self.0.poll_next_unpin(cx) {
            Poll::Ready(Some(output)) => Poll::Ready(output),
            // `None` means that the future has completed before.
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, future::poll_fn, time::Duration};

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
}
