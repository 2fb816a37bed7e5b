//! Reads files again when they change, or when the operator asks for it.

use std::{
    fmt::Display,
    io,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{Instant, MissedTickBehavior, interval},
};

use crate::{FileVersion, WatchedFile};

/// Time between two checks of the files. A check reads metadata, which is cheap and, unlike inotify, follows the symbolic
/// links by which Kubernetes replaces mounted files.
const CHECK_PERIOD: Duration = Duration::from_secs(2);

/// Time between two reads of a refused version: the cause of the refusal may be outside of the file.
const RETRY_PERIOD: Duration = Duration::from_secs(60);

/// Versions of the files that are read together. A file whose metadata cannot be read has the kind of the error.
type Versions = Vec<Result<FileVersion, io::ErrorKind>>;

/// Decides when the files are read again.
#[derive(Debug)]
struct Schedule {
    /// `None` until the first check, which reads: the file may have changed since the program read it at its start.
    seen: Option<Versions>,
    refused: Option<Instant>,
}

/// The reason for reading the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadReason {
    /// The first check.
    First,
    /// Only the change time differs. The kubelet sets owner and mode of mounted files about once a minute, if the pod has an
    /// `fsGroup`.
    Touched,
    /// A file was written or replaced, the operator asked, or the last version was refused.
    Changed,
}

impl Schedule {
    /// Returns the reason to read the files now, if there is one, and stores the versions that were `found`.
    fn check(&mut self, found: Versions, requested: bool, now: Instant) -> Option<ReadReason> {
        let last = self.seen.replace(found);
        let found = self.seen.as_ref()?;
        let retry = self.refused.is_some_and(|last| now.saturating_duration_since(last) >= RETRY_PERIOD);
        match last {
            _ if requested || retry => Some(ReadReason::Changed),
            None => Some(ReadReason::First),
            Some(last) if last == *found => None,
            Some(last) if self.refused.is_none() && are_same_files(&last, found) => Some(ReadReason::Touched),
            Some(_) => Some(ReadReason::Changed),
        }
    }
}

/// Returns whether only the change times differ.
fn are_same_files(last: &Versions, found: &Versions) -> bool {
    let same = |(last, found): (&Result<FileVersion, _>, &Result<FileVersion, _>)| match (last, found) {
        (Ok(last), Ok(found)) => last.is_same_file(found),
        _ => last == found,
    };
    last.iter().zip(found).all(same)
}

/// Calls `read` at once, whenever one of the `paths` has changed, whenever `requests` changes, and once a minute while the last
/// version is refused. The future never completes.
pub async fn follow<E: Display + Send + 'static>(
    file: WatchedFile,
    paths: Vec<PathBuf>,
    mut requests: watch::Receiver<()>,
    read: impl Fn() -> Result<(), E> + Clone + Send + 'static,
) {
    let mut schedule = Schedule { seen: None, refused: None };
    let mut checks = interval(CHECK_PERIOD);
    checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let requested = tokio::select! {
            // Fails when the sender of the requests is dropped.
            Ok(()) = requests.changed() => true,
            _ = checks.tick() => false,
        };
        let checked = paths.clone();
        let found =
            spawn_blocking(move || versions(&checked)).await.expect("reading metadata does not panic");
        let Some(reason) = schedule.check(found, requested, Instant::now()) else { continue };
        let read = read.clone();
        let result = spawn_blocking(move || read().map_err(|error| error.to_string())).await;
        let result =
            result.unwrap_or_else(|_| Err("a defect of this program: reading it panicked".to_owned()));
        let now = Instant::now();
        schedule.refused = result.is_err().then_some(now);
        match result {
            Ok(()) => {
                file.set_accepted();
                if reason == ReadReason::Changed {
                    tracing::info!(file = file.key(), "file reloaded");
                }
            }
            Err(error) if file.set_refused(&error, SystemTime::now(), now) => {
                tracing::error!(file = file.key(), error, "the version on disk of a file is refused");
            }
            Err(_) => {}
        }
    }
}

fn versions(paths: &[PathBuf]) -> Versions {
    paths.iter().map(|path| FileVersion::of(path).map_err(|error| error.kind())).collect()
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::PermissionsExt as _,
        path::Path,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering::Relaxed},
        },
    };

    use rustix::fs::{CWD, Mode, mkfifoat};
    use tokio::time::timeout;
    use tokio_util::task::AbortOnDropHandle;

    use super::*;
    use crate::{ReloadHealth, read_text};

    /// A followed file. Its versions are accepted if they begin with `good`.
    struct Fixture {
        directory: tempfile::TempDir,
        health: ReloadHealth,
        requests: watch::Sender<()>,
        reads: Arc<AtomicUsize>,
        _following: AbortOnDropHandle<()>,
    }

    impl Fixture {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("file");
            fs::write(&path, "good").unwrap();
            let (health, requests) = (ReloadHealth::default(), watch::Sender::new(()));
            let reads = Arc::new(AtomicUsize::new(0));
            let read = {
                let (path, reads) = (path.clone(), Arc::clone(&reads));
                move || {
                    reads.fetch_add(1, Relaxed);
                    let text = read_text(&path).map_err(|error| error.to_string())?;
                    text.starts_with("good").then_some(()).ok_or_else(|| "it is not good".to_owned())
                }
            };
            let following = follow(health.file("key"), vec![path], requests.subscribe(), read);
            let following = AbortOnDropHandle::new(tokio::spawn(following));
            Self { directory, health, requests, reads, _following: following }
        }

        fn path(&self) -> &Path {
            self.directory.path()
        }

        fn write(&self, text: &str) {
            fs::write(self.path().join("next"), text).unwrap();
            fs::rename(self.path().join("next"), self.path().join("file")).unwrap();
        }

        fn reads(&self) -> usize {
            self.reads.load(Relaxed)
        }

        /// Waits for a condition, in virtual time, which does not pass while a file is read.
        async fn until(&self, condition: impl Fn(&Self) -> bool) {
            let met = async {
                while !condition(self) {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            };
            timeout(Duration::from_secs(70), met).await.expect("the condition is met");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn file_is_read_at_first_and_when_it_changes() {
        let fixture = Fixture::new();
        // Since the program read it at its start, it may have changed.
        fixture.write("good as well");
        tokio::time::sleep(RETRY_PERIOD * 5).await;
        assert_eq!(fixture.reads(), 1);
        fixture.write("good too");
        fixture.until(|fixture| fixture.reads() == 2).await;
        assert!(fixture.health.problems().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn refused_version_is_reported_and_tried_again_each_minute() {
        let fixture = Fixture::new();
        fixture.write("bad");
        fixture.until(|fixture| !fixture.health.problems().is_empty()).await;
        assert!(fixture.health.problems()[0].ends_with(": it is not good"));
        assert_eq!(fixture.reads(), 1);
        fixture.until(|fixture| fixture.reads() == 2).await;

        fixture.write("good again");
        fixture.until(|fixture| fixture.health.problems().is_empty()).await;
    }

    #[test]
    fn new_change_time_is_no_other_file_unless_the_last_version_was_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "text").unwrap();
        let found = || vec![FileVersion::of(&file).map_err(|error| error.kind())];
        let touch = || {
            let before = found();
            // The clock of the file system may have a resolution of some milliseconds.
            while found() == before {
                fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
            }
        };
        let now = Instant::now();
        let mut schedule = Schedule { seen: None, refused: None };
        assert_eq!(schedule.check(found(), false, now), Some(ReadReason::First));
        assert_eq!(schedule.check(found(), false, now), None);
        touch();
        assert_eq!(schedule.check(found(), false, now), Some(ReadReason::Touched));
        fs::write(&file, "longer text").unwrap();
        assert_eq!(schedule.check(found(), false, now), Some(ReadReason::Changed));
        schedule.refused = Some(now);
        touch();
        assert_eq!(schedule.check(found(), false, now), Some(ReadReason::Changed));
        assert_eq!(schedule.check(found(), true, now), Some(ReadReason::Changed));
    }

    #[tokio::test(start_paused = true)]
    async fn named_pipe_in_place_of_the_file_is_refused_until_it_is_replaced() {
        let fixture = Fixture::new();
        fs::remove_file(fixture.path().join("file")).unwrap();
        mkfifoat(CWD, fixture.path().join("file"), Mode::RUSR).unwrap();
        fixture.until(|fixture| !fixture.health.problems().is_empty()).await;
        let problem = fixture.health.problems().remove(0);
        assert!(problem.ends_with(": it is a named pipe, and only regular files are read"), "{problem}");

        fixture.write("good again");
        fixture.until(|fixture| fixture.health.problems().is_empty()).await;
    }

    #[tokio::test(start_paused = true)]
    async fn request_reads_an_unchanged_file_again() {
        let fixture = Fixture::new();
        fixture.until(|fixture| fixture.reads() == 1).await;
        fixture.requests.send_replace(());
        fixture.until(|fixture| fixture.reads() == 2).await;
    }

    #[tokio::test(start_paused = true)]
    async fn panic_of_a_reader_is_a_refusal_and_does_not_end_the_task() {
        let (health, requests) = (ReloadHealth::default(), watch::Sender::new(()));
        let panicking = || -> Result<(), String> { panic!("a defect") };
        let following = follow(health.file("key"), Vec::new(), requests.subscribe(), panicking);
        let following = AbortOnDropHandle::new(tokio::spawn(following));
        requests.send_replace(());
        while health.problems().is_empty() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(health.problems()[0].ends_with("reading it panicked"));
        assert!(!following.is_finished());
    }
}
