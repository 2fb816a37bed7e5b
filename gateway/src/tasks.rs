//! A group of tasks that ends in two steps: first it drains, then it is cut.

use std::future::Future;

use cores::Seat;
use tokio::time::{Instant, timeout_at};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Tasks that end together. Cheap to clone; clones are the same group.
#[derive(Clone, Debug, Default)]
pub struct TaskGroup {
    /// Cancelled when the tasks are to finish their work and end.
    pub draining: CancellationToken,
    /// Cancelled when the tasks are to end at once.
    pub cut: CancellationToken,
    /// Counts the tasks.
    pub tasks: TaskTracker,
}

impl TaskGroup {
    /// Spawns a task that is dropped when the group is cut.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(Self::until_cut(self.cut.child_token(), task));
    }

    /// Spawns a task on a core. It is dropped when the group is cut.
    pub fn spawn_on(&self, seat: Seat, task: impl Future<Output = ()> + Send + 'static) {
        // Each task has a token of its own: tasks on several cores would contend for the lock of a shared one.
        seat.spawn(&self.tasks, Self::until_cut(self.cut.child_token(), task));
    }

    async fn until_cut(cut: CancellationToken, task: impl Future<Output = ()>) {
        cut.run_until_cancelled(task).await;
    }

    /// Asks the tasks to finish their work.
    pub fn drain(&self) {
        self.draining.cancel();
        self.tasks.close();
    }

    /// Drains the group until `deadline`, then cuts it. Returns whether every task had ended before.
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

    #[tokio::test(start_paused = true)]
    async fn tasks_of_group_are_dropped_when_it_is_cut() {
        let group = TaskGroup::default();
        group.spawn(pending());
        group.spawn_on(cores::Cores::default().seat(), pending());
        assert!(!group.drain_until(Instant::now() + Duration::from_secs(1)).await);
        group.tasks.wait().await;
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
