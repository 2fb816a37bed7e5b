//! A limit on the work that a connection causes before other tasks of the thread run.

use std::{
    pin::pin,
    task::{Context, Poll},
};

use tokio::task::yield_now;

/// Bytes that a connection reads before its task yields: one read of [`ReadAhead`](crate::ReadAhead).
const TURN: usize = 64 << 10;

/// The budget of one turn: the bytes that a task reads before other tasks run.
///
/// Protocol libraries read until the socket has no more bytes, and one sender can fill it faster than they read. The other
/// connections of the thread would then wait.
#[derive(Debug)]
pub struct ReadBudget {
    left: usize,
}

impl Default for ReadBudget {
    fn default() -> Self {
        Self { left: TURN }
    }
}

impl ReadBudget {
    /// Takes `cost` from the budget: the bytes that were read, or the bytes that take as long to process.
    pub fn spend(&mut self, cost: usize) {
        self.left = self.left.saturating_sub(cost);
    }

    /// Returns the rest of the budget.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// Begins the next turn. The task must be about to return `Pending`, so that other tasks run.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// Returns `Pending` if the budget is spent, and begins the next turn. The task is woken after the other tasks of the
    /// thread, and after new events of the network.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.left > 0 {
            return Poll::Ready(());
        }
        self.reset();
        pin!(yield_now()).poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, future::poll_fn};

    use super::*;

    #[tokio::test]
    async fn reader_yields_to_other_tasks_each_time_its_budget_is_spent() {
        let others = Cell::new(0);
        let reader = async {
            let mut budget = ReadBudget::default();
            for turn in 0..10 {
                assert_eq!(others.get(), turn);
                budget.spend(TURN - 1);
                poll_fn(|cx| budget.poll(cx)).await;
                assert_eq!(others.get(), turn, "one byte is left");
                budget.spend(2);
                poll_fn(|cx| budget.poll(cx)).await;
                poll_fn(|cx| budget.poll(cx)).await;
            }
        };
        let other = async {
            loop {
                others.set(others.get() + 1);
                yield_now().await;
            }
        };
        tokio::select! {
            biased;
            () = reader => {}
            () = other => {}
        }
    }
}
