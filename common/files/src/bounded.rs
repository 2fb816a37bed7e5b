//! A time limit for system calls on files. A call on a hung network file system returns only when its server answers, so
//! it runs on a thread that the caller can abandon.

use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{RecvTimeoutError, sync_channel},
    },
    thread,
    time::Duration,
};

use parking_lot::Mutex;

/// Longest time of an access to one file.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// Paths with an abandoned access, and whether it has returned since. While one is
/// abandoned, no further access to its path begins.
static HUNG: LazyLock<Mutex<HashMap<PathBuf, Arc<AtomicBool>>>> = LazyLock::new(Mutex::default);

/// Runs an access to `path` and fails if it takes longer than `limit`.
pub(crate) fn run<T: Send + 'static>(
    path: &Path,
    limit: Duration,
    access: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    forget_returned(path)?;
    let returned = Arc::new(AtomicBool::new(false));
    let (sender, result) = sync_channel(1);
    let done = Arc::clone(&returned);
    thread::Builder::new().name("file".to_owned()).spawn(move || {
        let outcome = access();
        done.store(true, Relaxed);
        // Fails if the access took too long.
        let _ = sender.send(outcome);
    })?;
    match result.recv_timeout(limit) {
        Ok(outcome) => outcome,
        Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("the access to it panicked")),
        Err(RecvTimeoutError::Timeout) => {
            HUNG.lock().insert(path.to_owned(), returned);
            Err(timed_out(&format!("the file system did not answer within {limit:?}")))
        }
    }
}

fn forget_returned(path: &Path) -> io::Result<()> {
    let mut hung = HUNG.lock();
    match hung.get(path) {
        Some(returned) if !returned.load(Relaxed) => {
            Err(timed_out("the file system has not answered an earlier access yet"))
        }
        Some(_) => {
            hung.remove(path);
            Ok(())
        }
        None => Ok(()),
    }
}

fn timed_out(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, what)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn access_that_hangs_fails_and_is_not_repeated_until_it_returns() {
        let path = Path::new("/hung/file");
        let (release, blocked) = channel::<()>();
        let (returned, wait) = channel::<()>();
        let hang = move || {
            let _ = blocked.recv();
            let _ = returned.send(());
            Ok(1)
        };
        let error = run(path, Duration::from_millis(1), hang).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(error.to_string(), "the file system did not answer within 1ms");

        let error = run(path, TIMEOUT, || Ok(2)).unwrap_err();
        assert_eq!(error.to_string(), "the file system has not answered an earlier access yet");
        assert_eq!(run(Path::new("/other/file"), TIMEOUT, || Ok(3)).unwrap(), 3);

        drop(release);
        wait.recv().unwrap();
        while run(path, TIMEOUT, || Ok(4)).is_err() {
            thread::yield_now();
        }
    }
}
