//! Groups of tasks that end in two steps: a group drains, and is cut at a deadline.

use std::{future::Future, panic::AssertUnwindSafe};

use futures_util::FutureExt as _;
use tokio::{
    runtime::Handle,
    time::{Instant, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{CoreSlot, poll_on_wake};

/// Tasks that end together. Clones are cheap, and are the same group.
#[derive(Clone, Debug, Default)]
pub struct TaskGroup {
    /// Cancelled some time before that: clients should open their next connection to another replica.
    pub leaving: CancellationToken,
    /// Cancelled when the tasks should finish their work and end.
    pub draining: CancellationToken,
    /// Cancelled when the tasks must end at once.
    pub cut: CancellationToken,
    /// Counts the tasks.
    pub tasks: TaskTracker,
    /// Cancelled when a task of [`Self::spawn`] has panicked.
    pub panicked: CancellationToken,
}

impl TaskGroup {
    /// Spawns a task without which the group cannot work: its panic cancels `panicked`. It is dropped when the group is cut.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn_in(&Handle::current(), task);
    }

    /// Spawns such a task on another runtime.
    pub fn spawn_in(&self, runtime: &Handle, task: impl Future<Output = ()> + Send + 'static) {
        let panicked = self.panicked.clone();
        let task = Self::until_cut(self.cut.child_token(), task);
        let task = async move {
            // The state of the task is not used again.
            if AssertUnwindSafe(task).catch_unwind().await.is_err() {
                panicked.cancel();
            }
        };
        self.tasks.spawn_on(task, runtime);
    }

    /// Spawns one of many tasks on a core. Its panic does not affect the others. It is dropped when the group is cut.
    pub fn spawn_on(&self, slot: CoreSlot, task: impl Future<Output = ()> + Send + 'static) {
        // Boxed, because each future around it has room for it twice. Each task has its own token: tasks on several cores
        // would contend for the lock of a shared one.
        slot.spawn(&self.tasks, Self::until_cut(self.cut.child_token(), Box::pin(task)));
    }

    async fn until_cut(cut: CancellationToken, task: impl Future<Output = ()>) {
        tokio::select! {
            biased;
            () = task => {}
            () = poll_on_wake(cut.cancelled()) => {}
        }
    }

    /// Tells the tasks to finish their work.
    pub fn drain(&self) {
        self.draining.cancel();
        self.tasks.close();
    }

    /// Drains the group until `deadline`, then cuts it. Returns whether every task ended before the deadline.
    pub async fn drain_until(&self, deadline: Instant) -> bool {
        self.drain();
        let drained = timeout_at(deadline, self.tasks.wait()).await.is_ok();
        self.cut.cancel();
        drained
    }
}

#[cfg(test)]
mod tests {
    use std::{future::pending, time::Duration};

    use super::*;
    use crate::Cores;

    #[tokio::test(start_paused = true)]
    async fn tasks_of_group_are_dropped_when_it_is_cut() {
        let group = TaskGroup::default();
        group.spawn(pending());
        group.spawn_on(Cores::default().reserve(), pending());
        assert!(!group.drain_until(Instant::now() + Duration::from_secs(1)).await);
        group.tasks.wait().await;
    }

    #[tokio::test]
    async fn panic_of_vital_task_is_reported_and_others_continue() {
        let group = TaskGroup::default();
        group.spawn(pending());
        group.spawn_on(Cores::default().reserve(), async { panic!("one connection") });
        tokio::task::yield_now().await;
        assert!(!group.panicked.is_cancelled());
        group.spawn(async { panic!("an accept loop") });
        group.panicked.cancelled().await;
        assert!(!group.cut.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn drained_group_does_not_wait_for_deadline() {
        let (group, start) = (TaskGroup::default(), Instant::now());
        let draining = group.draining.clone();
        group.spawn(async move { draining.cancelled().await });
        assert!(group.drain_until(start + Duration::from_secs(3600)).await);
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}
