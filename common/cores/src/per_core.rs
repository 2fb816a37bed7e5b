//! A value for each core, so that the cores do not write to the same memory.

use crate::{count, current};

/// Holds a value for each core, and one more for all other threads.
#[derive(Debug)]
pub struct PerCore<T>(Box<[T]>);

impl<T> PerCore<T> {
    /// Creates the values by calls of `make`.
    pub fn new(make: impl FnMut() -> T) -> Self {
        Self(std::iter::repeat_with(make).take(count() + 1).collect())
    }

    /// Returns the value of the calling thread's core.
    pub fn current(&self) -> &T {
        // Cores above the number that was counted share values, which only costs speed.
        &self.0[current().map_or(0, |core| 1 + core.0 % (self.0.len() - 1))]
    }

    /// Returns all values.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::{CURRENT, Core};

    #[test]
    fn each_core_has_a_value_and_other_threads_share_one() {
        let number = Cell::new(0);
        let values = PerCore::new(|| number.replace(number.get() + 1));
        assert_eq!(*values.current(), 0);
        CURRENT.set(Some(Core(0)));
        assert_eq!(*values.current(), 1);

        CURRENT.set(Some(Core(count())));
        assert_eq!(*values.current(), 1, "more cores than were counted");
        assert_eq!(values.iter().count(), count() + 1);
    }
}
