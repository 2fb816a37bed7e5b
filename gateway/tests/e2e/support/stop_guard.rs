//! Ends the threads of a test that panics.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Sets the flag when it is dropped, also by a panic.
pub(crate) struct StopGuard<'a>(pub(crate) &'a AtomicBool);

impl Drop for StopGuard<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
