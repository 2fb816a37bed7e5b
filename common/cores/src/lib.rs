//! One single-threaded runtime for each core.
//!
//! The tasks of a caller's connection, of its requests and of the tunnel that they take wake each other many thousand times a
//! second. On one core a wake-up is a push to a queue. Between the threads of a work-stealing runtime it is a lock, a
//! system call and a cold cache, which costs a proxy a third of its speed. So each connection gets a core when it is
//! accepted, and all of its tasks stay there.
//!
//! * [`Cores`] starts the threads and chooses a core for each connection. A [`CoreSlot`] spawns the task there.
//! * [`current`] returns the core of the calling thread, and [`PerCore`] holds a value for each core.
//! * [`poll_on_wake()`] keeps rare events from being polled whenever a busy task is.
//! * A [`TaskGroup`] has tasks on several cores that end together.
//!
//! The cores only affect speed: without them, as in tests, every task runs on the runtime that spawns it.
#![warn(missing_docs)]

mod per_core;
mod poll_on_wake;
mod task_group;
mod threads;

use std::{cell::Cell, num::NonZero, sync::LazyLock, thread::available_parallelism};

pub use self::per_core::PerCore;
pub use self::poll_on_wake::poll_on_wake;
pub use self::task_group::TaskGroup;
pub use self::threads::{CoreSlot, Cores, WorkerPool};

/// The number of one of the threads of [`Cores`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Core(usize);

thread_local! {
    static CURRENT: Cell<Option<Core>> = const { Cell::new(None) };
}

/// Returns the core of the calling thread, or `None` if the thread does not belong to [`Cores`].
pub fn current() -> Option<Core> {
    CURRENT.get()
}

/// Returns the number of cores that this process may use, which respects the CPU limit of a container.
pub fn count() -> usize {
    static COUNT: LazyLock<usize> = LazyLock::new(|| available_parallelism().map_or(1, NonZero::get));
    *COUNT
}

impl Core {
    /// Returns the core with this number, counted from 0.
    pub const fn new(number: usize) -> Self {
        Self(number)
    }
}
