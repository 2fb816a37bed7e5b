//! One single-threaded runtime for each core.
//!
//! A connection, the requests on it and the tunnel that they take are three tasks that wake each other many thousand times a
//! second. On one core a wake-up is a push to a queue. Between the threads of a work-stealing runtime it is a lock, a
//! system call and a cold cache, which costs a proxy a third of its speed. So each connection gets a core when it is
//! accepted and stays there, with all that it does.
//!
//! * [`Cores`] starts the threads and says which of them takes the next connection.
//! * [`here`] is the core that the caller runs on; [`PerCore`] is a value for each of them.
//!
//! Nothing depends on it for being right: without cores, as in tests, every task runs where it is spawned.
#![warn(missing_docs)]

mod per_core;
mod threads;

use std::{cell::Cell, num::NonZero, sync::LazyLock, thread::available_parallelism};

pub use self::per_core::PerCore;
pub use self::threads::{Cores, Seat, Threads};

/// One of the threads of [`Cores`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Core(usize);

thread_local! {
    static HERE: Cell<Option<Core>> = const { Cell::new(None) };
}

/// The core that this is called on; `None` on all other threads.
pub fn here() -> Option<Core> {
    HERE.get()
}

/// How many there are for this process: it respects the CPU limit of a container.
pub fn count() -> usize {
    static COUNT: LazyLock<usize> = LazyLock::new(|| available_parallelism().map_or(1, NonZero::get));
    *COUNT
}

impl Core {
    /// The one with this number, counted from 0.
    pub const fn new(number: usize) -> Self {
        Self(number)
    }
}
