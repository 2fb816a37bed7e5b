//! A token that somebody else keeps fresh: the kubelet replaces a projected service account token when 80 % of its
//! life is over.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::HeaderValue;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{ClusterError, credentials::bearer};

/// How often the file's time and length are looked at: often enough that nobody waits for a rotation done by hand,
/// rarely enough to cost nothing.
const CHECK_EVERY: Duration = Duration::from_secs(5);

/// How often the file is read even if it looks the same, as client-go does: not every file system keeps good time.
const READ_EVERY: Duration = Duration::from_secs(60);

pub(super) struct TokenFile {
    path: Arc<Path>,
    state: Mutex<State>,
}

struct State {
    authorization: HeaderValue,
    /// None until the file was read.
    version: Option<Version>,
    /// None if the next request is to look at once.
    checked: Option<Instant>,
    read: Option<Instant>,
}

/// What differs when a file is another one.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Version {
    modified: Option<SystemTime>,
    length: u64,
}

impl TokenFile {
    /// Reads the file now; it blocks.
    pub(super) fn open(path: PathBuf) -> Result<Self, ClusterError> {
        let now = Instant::now();
        let (authorization, version) = read(&path)?;
        let state = State { authorization, version: Some(version), checked: Some(now), read: Some(now) };

        Ok(Self { path: path.into(), state: Mutex::new(state) })
    }

    /// Uses `fallback` until the file can be read.
    pub(super) fn open_or(path: PathBuf, fallback: HeaderValue) -> Self {
        Self::open(path.clone()).unwrap_or_else(|error| {
            tracing::warn!(%error, "the kubeconfig's own token is used until its token file can be read");
            let state = State { authorization: fallback, version: None, checked: None, read: None };
            Self { path: path.into(), state: Mutex::new(state) }
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) async fn authorization(&self, now: Instant) -> HeaderValue {
        let unless = {
            let mut state = self.state.lock();
            if state.checked.is_some_and(|checked| now.duration_since(checked) < CHECK_EVERY) {
                return state.authorization.clone();
            }
            // Whoever comes meanwhile uses the token that is there.
            state.checked = Some(now);
            let recent = state.read.is_some_and(|read| now.duration_since(read) < READ_EVERY);
            state.version.filter(|_| recent)
        };

        let path = Arc::clone(&self.path);
        let read = tokio::task::spawn_blocking(move || match unless {
            Some(known) if Version::of(&path).is_ok_and(|found| found == known) => None,
            _ => Some(read(&path)),
        });
        let read = read.await.unwrap_or_default();
        let mut state = self.state.lock();
        match read {
            None => {}
            Some(Ok((authorization, version))) => {
                *state =
                    State { authorization, version: Some(version), checked: state.checked, read: Some(now) };
            }
            Some(Err(error)) => tracing::warn!(%error, "the last good token stays in use"),
        }

        state.authorization.clone()
    }

    pub(super) fn rejected(&self) {
        let mut state = self.state.lock();
        state.checked = None;
        state.read = None;
    }
}

impl Version {
    fn of(path: &Path) -> io::Result<Self> {
        let metadata = fs::metadata(path)?;
        Ok(Self { modified: metadata.modified().ok(), length: metadata.len() })
    }
}

/// The version is taken first: a file replaced in between is then read once more, not missed.
fn read(path: &Path) -> Result<(HeaderValue, Version), ClusterError> {
    let failed = |cause| ClusterError::Read { path: path.to_owned(), cause, hint: "" };
    let invalid = |problem| ClusterError::Token { path: path.to_owned(), problem };
    let version = Version::of(path).map_err(failed)?;
    let text = fs::read_to_string(path).map_err(failed)?;
    let token = text.trim();
    if token.is_empty() {
        return Err(invalid("is empty"));
    }
    let authorization = bearer(token).ok_or_else(|| invalid("cannot be sent in a header"))?;

    Ok((authorization, version))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixture {
        _directory: tempfile::TempDir,
        path: PathBuf,
        file: TokenFile,
        start: Instant,
    }

    impl Fixture {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("token");
            fs::write(&path, "one\n").unwrap();
            let file = TokenFile::open(path.clone()).unwrap();
            Self { _directory: directory, path, file, start: Instant::now() }
        }

        /// With the time of modification unchanged unless asked for.
        fn write(&self, token: &str, touch: bool) {
            let modified = fs::metadata(&self.path).unwrap().modified().unwrap();
            fs::write(&self.path, token).unwrap();
            let modified = if touch { modified + Duration::from_secs(1) } else { modified };
            fs::File::options().write(true).open(&self.path).unwrap().set_modified(modified).unwrap();
        }

        async fn after(&self, seconds: u64) -> String {
            let value = self.file.authorization(self.start + Duration::from_secs(seconds)).await;
            assert!(value.is_sensitive());
            value.to_str().unwrap().to_owned()
        }
    }

    #[tokio::test]
    async fn a_new_version_is_read_at_the_next_check() {
        let fixture = Fixture::new();
        fixture.write("two", true);
        assert_eq!(fixture.after(4).await, "Bearer one");
        assert_eq!(fixture.after(6).await, "Bearer two");
        fixture.write("three", false);
        assert_eq!(fixture.after(12).await, "Bearer three", "another length");
    }

    #[tokio::test]
    async fn what_looks_the_same_is_read_every_minute() {
        let fixture = Fixture::new();
        fixture.write("two\n", false);
        assert_eq!(fixture.after(50).await, "Bearer one");
        assert_eq!(fixture.after(59).await, "Bearer one");
        assert_eq!(fixture.after(65).await, "Bearer two");
    }

    #[tokio::test]
    async fn a_rejected_token_is_read_at_once() {
        let fixture = Fixture::new();
        fixture.write("two\n", false);
        assert_eq!(fixture.after(1).await, "Bearer one");
        fixture.file.rejected();
        assert_eq!(fixture.after(1).await, "Bearer two");
    }

    #[tokio::test]
    async fn the_last_good_token_survives_its_file() {
        let fixture = Fixture::new();
        for broken in ["", "\n", "a\nb", "caf\u{7f}"] {
            fixture.write(broken, true);
            fixture.file.rejected();
            assert_eq!(fixture.after(100).await, "Bearer one");
        }
        fs::remove_file(&fixture.path).unwrap();
        assert_eq!(fixture.after(200).await, "Bearer one");
        fs::write(&fixture.path, "two").unwrap();
        assert_eq!(fixture.after(300).await, "Bearer two");
    }

    #[tokio::test]
    async fn a_fallback_until_there_is_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let file = TokenFile::open_or(path.clone(), bearer("fallback").unwrap());
        let start = Instant::now();
        assert_eq!(file.authorization(start).await, "Bearer fallback");
        fs::write(&path, "fresh").unwrap();
        assert_eq!(file.authorization(start + CHECK_EVERY).await, "Bearer fresh");
    }

    #[test]
    fn errors_name_the_file_and_not_the_token() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let error = || TokenFile::open(path.clone()).err().unwrap().to_string();
        assert_eq!(
            error(),
            format!("cannot read {}: No such file or directory (os error 2)", path.display())
        );
        fs::write(&path, " ").unwrap();
        assert_eq!(error(), format!("the token in {} is empty", path.display()));
        fs::write(&path, "sec\0ret").unwrap();
        assert_eq!(error(), format!("the token in {} cannot be sent in a header", path.display()));
    }
}
