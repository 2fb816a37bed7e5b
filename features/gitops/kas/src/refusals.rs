//! Commits that were refused. To read them again gives the same: a tree with half a million entries costs seconds of the CPU each time.

use std::{collections::HashMap, time::Duration};

use git::{CommitId, RepositoryError};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

/// The time until a commit that was refused is read again. It grows by [`FACTOR`] with each refusal.
const FIRST_PAUSE: Duration = Duration::from_secs(60);
/// The longest such time.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);
/// The factor between two of them.
const FACTOR: u32 = 4;
/// The most commits that are remembered.
const MAX_REFUSALS: usize = 1000;

/// What was to be read from a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ReadKey([u8; 32]);

/// Remembers refused commits of all repositories at this replica.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<HashMap<ReadKey, Refusal>>);

#[derive(Clone, Debug)]
struct Refusal {
    error: RepositoryError,
    until: Instant,
    pause: Duration,
}

impl ReadKey {
    /// `source` is the repository with its credentials.
    pub(super) fn new(source: &str, commit: &CommitId, patterns: &[String]) -> Self {
        let mut hash = Sha256::new();
        for part in [source, commit.as_str()].into_iter().chain(patterns.iter().map(String::as_str)) {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        Self(hash.finalize().into())
    }
}

impl Refusals {
    /// Returns the error of the last read, if it is too early for another one.
    pub(super) fn get(&self, key: &ReadKey, now: Instant) -> Option<RepositoryError> {
        let refusals = self.0.lock();
        refusals.get(key).filter(|refusal| now < refusal.until).map(|refusal| refusal.error.clone())
    }

    /// Remembers the error of a read, unless another attempt may succeed.
    pub(super) fn record(&self, key: ReadKey, error: &RepositoryError, now: Instant) {
        if matches!(error, RepositoryError::Unavailable(_)) {
            return;
        }
        let mut refusals = self.0.lock();
        let pause = refusals.get(&key).map_or(FIRST_PAUSE, |last| (last.pause * FACTOR).min(LONGEST_PAUSE));
        refusals.insert(key, Refusal { error: error.clone(), until: now + pause, pause });
        if refusals.len() > MAX_REFUSALS
            && let Some(first) = refusals.iter().min_by_key(|(_, refusal)| refusal.until).map(|(key, _)| *key)
        {
            refusals.remove(&first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: usize) -> ReadKey {
        ReadKey::new("git /srv/app.git main", &format!("{n:040x}").parse().unwrap(), &["**".to_owned()])
    }

    #[test]
    fn refused_commit_is_read_again_after_growing_pauses() {
        let (refusals, mut now) = (Refusals::default(), Instant::now());
        for pause in [60, 240, 960, 3600, 3600] {
            assert_eq!(refusals.get(&key(1), now), None);
            refusals.record(key(1), &RepositoryError::TooManyFiles(1000), now);
            let pause = Duration::from_secs(pause);
            let before = now + pause.saturating_sub(Duration::from_secs(1));
            assert_eq!(refusals.get(&key(1), before), Some(RepositoryError::TooManyFiles(1000)));
            assert_eq!(refusals.get(&key(2), before), None, "another commit is read at once");
            now += pause;
        }
    }

    #[test]
    fn repository_that_does_not_respond_is_asked_again() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        refusals.record(key(1), &RepositoryError::Unavailable("gone".to_owned()), now);
        assert_eq!(refusals.get(&key(1), now), None);
    }

    #[test]
    fn number_of_refusals_is_bounded() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        (0..2 * MAX_REFUSALS).for_each(|n| {
            let at = now + Duration::from_millis(u64::try_from(n).unwrap());
            refusals.record(key(n), &RepositoryError::TooManyFiles(1), at);
        });
        assert_eq!(refusals.0.lock().len(), MAX_REFUSALS);
        assert!(refusals.get(&key(2 * MAX_REFUSALS - 1), now).is_some());
    }
}
