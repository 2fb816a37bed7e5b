//! The places of the readers that follow.

use std::{collections::HashMap, sync::Arc};

use access::CallerNames;
use parking_lot::Mutex;
use tokio::time::Instant;

/// The most readers that follow at this replica at the same time.
pub(super) const MAX_WATCHERS: usize = 500;
/// The most of them that are callers. The other places are for operators and for the internal API.
const MAX_CALLERS: usize = 400;
/// The most streams of one caller.
const MAX_PER_CALLER: usize = 20;

/// The error of one reader too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TooManyWatchers {
    #[error("{MAX_WATCHERS} readers follow the events at this replica, which is the most")]
    All,
    #[error("{MAX_CALLERS} streams of callers follow events at this replica, which is the most")]
    Callers,
    #[error("{MAX_PER_CALLER} streams of this caller follow events at this replica, which is the most")]
    OfCaller,
}

/// The places of the readers at this replica. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Watchers(Arc<Mutex<Places>>);

#[derive(Debug, Default)]
struct Places {
    taken: HashMap<u64, Place>,
    /// The number of the next place.
    next: u64,
}

#[derive(Debug)]
struct Place {
    caller: Option<CallerNames>,
    /// The end of the stream. A reader that does not read keeps its stream beyond it, but not its place.
    end: Instant,
}

/// A place, until it is dropped or its stream has ended.
#[derive(Debug)]
pub(super) struct WatchPermit {
    watchers: Watchers,
    number: u64,
}

impl Watchers {
    /// Takes a place for a stream that ends at `end`. Operators and the internal API are no callers.
    ///
    /// # Errors
    ///
    /// There is none.
    pub(super) fn acquire(
        &self,
        caller: Option<CallerNames>,
        end: Instant,
    ) -> Result<WatchPermit, TooManyWatchers> {
        let now = Instant::now();
        let Places { taken, next } = &mut *self.0.lock();
        taken.retain(|_, place| place.end > now);
        if taken.len() >= MAX_WATCHERS {
            return Err(TooManyWatchers::All);
        }
        if caller.is_some() {
            let callers = taken.values().filter(|place| place.caller.is_some());
            if callers.clone().filter(|place| place.caller == caller).count() >= MAX_PER_CALLER {
                return Err(TooManyWatchers::OfCaller);
            }
            if callers.count() >= MAX_CALLERS {
                return Err(TooManyWatchers::Callers);
            }
        }
        let number = *next;
        *next += 1;
        taken.insert(number, Place { caller, end });
        Ok(WatchPermit { watchers: self.clone(), number })
    }
}

impl Drop for WatchPermit {
    fn drop(&mut self) {
        self.watchers.0.lock().taken.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn callers_leave_places_for_each_other_and_for_operators() {
        let (watchers, end) = (Watchers::default(), Instant::now() + Duration::from_secs(600));
        let caller = |number: usize| Some(CallerNames { name: format!("caller-{number}"), user: None });
        let take = |caller: Option<CallerNames>, number: usize| {
            (0..number).map(|_| watchers.acquire(caller.clone(), end)).collect::<Result<Vec<_>, _>>()
        };
        let first = take(caller(0), MAX_PER_CALLER).unwrap();
        assert_eq!(take(caller(0), 1).err(), Some(TooManyWatchers::OfCaller));
        let others: Vec<_> = (1..MAX_CALLERS / MAX_PER_CALLER)
            .map(|number| take(caller(number), MAX_PER_CALLER).unwrap())
            .collect();
        assert_eq!(take(caller(99), 1).err(), Some(TooManyWatchers::Callers));
        let operators = take(None, MAX_WATCHERS - MAX_CALLERS).unwrap();
        assert_eq!(take(None, 1).err(), Some(TooManyWatchers::All));
        drop(first);
        assert!(take(caller(99), 1).is_ok());
        // Their streams have ended, but nobody reads the end.
        advance(Duration::from_secs(600)).await;
        assert!(watchers.acquire(caller(1), end + Duration::from_secs(1)).is_ok());
        drop((others, operators));
        assert!(watchers.0.lock().taken.is_empty());
    }
}
