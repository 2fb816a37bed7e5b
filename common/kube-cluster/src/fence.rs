//! The permission of a pod to write.

use std::{future::poll_fn, task::Poll};

use tokio::{
    pin,
    time::{Instant, sleep_until},
};

/// Decides before each write whether it may happen.
pub trait Fence: Send + Sync {
    /// Returns the time until which a request may run before the fence must be asked again.
    ///
    /// # Errors
    ///
    /// The sync must stop before its next write.
    fn check(&self) -> Result<Instant, Stopped>;
}

/// The reason why a sync stops before its end. The objects that it has written stay, and the next sync continues from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stopped {
    /// Another pod leads.
    #[error("another pod of agentk leads now")]
    LostLease,
    /// There is a newer commit, or the settings have changed.
    #[error("a newer version is there")]
    Superseded,
    /// A person has suspended the project.
    #[error("the project was suspended")]
    Suspended,
    /// The time for a diff is over.
    #[error("it takes too long")]
    TooLong,
}

/// Runs a request for as long as a fence is open, and drops it then.
///
/// # Errors
///
/// The fence closed before the request ended. It may have been sent.
pub async fn while_open<T>(fence: &dyn Fence, request: impl Future<Output = T> + Send) -> Result<T, Stopped> {
    pin!(request);
    loop {
        let until = fence.check()?;
        let polled = poll_fn(|context| {
            if Instant::now() < until {
                request.as_mut().poll(context).map(Some)
            } else {
                // The process was frozen after the check: the timer is as late as this task, and the request must not begin.
                Poll::Ready(None)
            }
        });
        tokio::select! {
            biased;
            // The Lease may have been renewed meanwhile.
            () = sleep_until(until) => {}
            ended = polled => if let Some(result) = ended { return Ok(result) },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::pending,
        sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
        time::Duration,
    };

    use super::*;

    /// A fence with these ends, one after the other, which is closed then.
    struct Ends(Vec<Instant>, AtomicUsize);

    impl Ends {
        fn new(ends: &[Instant]) -> Self {
            Self(ends.to_vec(), AtomicUsize::new(0))
        }
    }

    impl Fence for Ends {
        fn check(&self) -> Result<Instant, Stopped> {
            self.0.get(self.1.fetch_add(1, SeqCst)).copied().ok_or(Stopped::LostLease)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn request_in_flight_is_dropped_at_the_end_of_the_lease() {
        let start = Instant::now();
        let ends = [1, 3].map(|seconds| start + Duration::from_secs(seconds));
        let stopped = while_open(&Ends::new(&ends), pending::<()>()).await;
        assert_eq!(
            (stopped, start.elapsed()),
            (Err(Stopped::LostLease), Duration::from_secs(3)),
            "renewed once"
        );
    }

    /// A fence in a process that is frozen after the check, for longer than the Lease lasts.
    struct FrozenAfter(AtomicBool);

    impl Fence for FrozenAfter {
        fn check(&self) -> Result<Instant, Stopped> {
            if self.0.swap(true, SeqCst) {
                return Err(Stopped::LostLease);
            }
            let until = Instant::now() + Duration::from_millis(5);
            #[expect(clippy::disallowed_methods, reason = "the whole process is frozen")]
            std::thread::sleep(Duration::from_millis(20));
            Ok(until)
        }
    }

    /// Test 55 of the attack list. The clock is real: one that is paused would fire the timer in time.
    #[tokio::test]
    async fn request_does_not_begin_after_the_end_of_the_lease() {
        let begun = AtomicBool::new(false);
        let request = async { begun.store(true, SeqCst) };
        let stopped = while_open(&FrozenAfter(AtomicBool::new(false)), request).await;
        assert_eq!((stopped, begun.into_inner()), (Err(Stopped::LostLease), false));
    }
}
