//! A value for each core, so that no two of them touch the same memory.

use crate::{count, here};

/// One for each core, and one more for all other threads.
#[derive(Debug)]
pub struct PerCore<T>(Box<[T]>);

impl<T> PerCore<T> {
    /// Made by `make`, one by one.
    pub fn new(make: impl FnMut() -> T) -> Self {
        Self(std::iter::repeat_with(make).take(count() + 1).collect())
    }

    /// That of the core that this is called on.
    pub fn here(&self) -> &T {
        &self.0[self.index()]
    }

    /// The index of [`PerCore::here`], for who comes back to it from elsewhere.
    pub fn index(&self) -> usize {
        // Cores beyond the number that was counted share: it is their speed that suffers, and nothing else.
        here().map_or(0, |core| 1 + core.0 % (self.0.len() - 1))
    }

    /// That of an index.
    pub fn at(&self, index: usize) -> &T {
        &self.0[index]
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::{Core, HERE};

    #[test]
    fn each_core_has_its_own_and_strangers_share_one() {
        let number = Cell::new(0);
        let values = PerCore::new(|| number.replace(number.get() + 1));
        assert_eq!(*values.here(), 0);
        HERE.set(Some(Core(0)));
        assert_eq!(*values.here(), 1);
        assert_eq!(values.at(values.index()), values.here());
        HERE.set(Some(Core(count())));
        assert_eq!(*values.here(), 1, "more cores than were counted");
        assert_eq!(values.iter().count(), count() + 1);
    }
}
