//! The thread that counts heartbeats.

use std::{io, thread};

use signal_hook::low_level;
use tokio::{
    runtime::{Builder, Handle},
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

use super::{Liveness, history::TaskState};
use crate::Notifier;

/// `EX_SOFTWARE` of sysexits.h: a defect of the program.
const EXIT_CODE: i32 = 70;

/// A thread with a runtime of its own, which no other task of the program can block. Dropping it ends the thread.
#[derive(Debug)]
#[must_use = "dropping it ends the thread"]
pub struct LivenessThread {
    runtime: Handle,
    stop: CancellationToken,
}

impl LivenessThread {
    /// Starts a thread that counts heartbeats, and sends messages to the watchdog of systemd while all tasks are alive. If a
    /// task has not beaten for 45 ticks, the thread logs it and calls `on_fatal`, which should end the process ([`exit`]).
    ///
    /// # Errors
    ///
    /// If the system refuses the thread or the resources of its runtime.
    pub fn start(
        liveness: Liveness,
        notifier: Notifier,
        on_fatal: impl Fn() + Send + 'static,
    ) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let stop = CancellationToken::new();
        let this = Self { runtime: runtime.handle().clone(), stop: stop.clone() };
        thread::Builder::new().name("liveness".to_owned()).spawn(move || {
            runtime.block_on(stop.run_until_cancelled(count_ticks(&liveness, &notifier, on_fatal)));
        })?;
        Ok(this)
    }

    /// Returns the runtime of the thread, for the listener of probes. Its tasks must not wait for locks of the program.
    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }
}

impl Drop for LivenessThread {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Ends the process at once, with exit code 70.
pub fn exit() -> ! {
    low_level::exit(EXIT_CODE)
}

/// Counts ticks. Never completes.
async fn count_ticks(liveness: &Liveness, notifier: &Notifier, on_fatal: impl Fn()) {
    let mut ticks = interval(liveness.0.period);
    // A process that was frozen must not count the missed ticks at once: its tasks could not beat.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut watchdog = notifier.watchdog();
    loop {
        let now = ticks.tick().await;
        match liveness.tick() {
            TaskState::Alive => watchdog.alive(now),
            TaskState::Stalled => {}
            TaskState::Fatal => {
                let tasks = liveness.problems().join("; ");
                tracing::error!(tasks, "a thread is blocked, which is a defect: the process ends itself");
                on_fatal();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use tokio::time::{Instant, advance, sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn stalled_task_is_fatal_at_tick_45() {
        let (liveness, start) = (Liveness::default(), Instant::now());
        let _blocked = liveness.heartbeat("core-0");
        let fatal = CancellationToken::new();
        let notifier = Notifier::default();
        fatal.run_until_cancelled(count_ticks(&liveness, &notifier, || fatal.cancel())).await;
        // The first tick is at once.
        assert_eq!(start.elapsed().as_secs(), 44);
        assert_eq!(liveness.problems(), ["core-0: no heartbeat for 45s"]);
    }

    #[tokio::test(start_paused = true)]
    async fn frozen_process_is_alive_when_it_continues() {
        let liveness = Liveness::default();
        let _heartbeat = tokio::spawn(liveness.heartbeat("core-0").run());
        let counted = liveness.clone();
        let counting = tokio::spawn(async move { count_ticks(&counted, &Notifier::default(), || {}).await });
        sleep(Duration::from_secs(3)).await;
        for _ in 0..3 {
            // All timers of the process are late at once, as after SIGSTOP and SIGCONT.
            advance(Duration::from_secs(3600)).await;
            sleep(Duration::from_millis(1)).await;
            assert!(liveness.problems().is_empty(), "{:?}", liveness.problems());
        }
        assert!(!counting.is_finished());
    }

    #[test]
    fn thread_counts_and_runs_tasks_while_another_thread_is_blocked() {
        let liveness = Liveness::with_period(Duration::from_millis(1));
        let blocked = liveness.heartbeat("core-0");
        let thread =
            LivenessThread::start(liveness.clone(), Notifier::default(), || panic!("not in this test"))
                .unwrap();
        let (report, reports) = mpsc::channel();
        thread.runtime().spawn(async move {
            while liveness.problems().is_empty() {
                tokio::task::yield_now().await;
            }
            drop(blocked);
            report.send(liveness.problems()).unwrap();
        });
        assert!(reports.recv().unwrap().is_empty());
    }
}
