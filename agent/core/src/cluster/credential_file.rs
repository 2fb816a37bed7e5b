//! A credential in a file that another process replaces: the kubelet replaces a projected service account token when 80 % of
//! its lifetime is over.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use files::FileVersion;
use http::HeaderValue;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    ClusterError,
    authorization::{basic, bearer},
};

/// The time between two checks of the file's metadata: short enough for a rotation by hand, and long enough to be cheap.
const CHECK_PERIOD: Duration = Duration::from_secs(5);

/// The time after which the file is read even if its metadata is the same, as in client-go: some file systems have
/// inaccurate timestamps.
const READ_PERIOD: Duration = Duration::from_secs(60);

/// A credential in a file, which is read again when it changes. While the file cannot be used, the last good credential is.
pub struct CredentialFile {
    path: Arc<Path>,
    kind: CredentialKind,
    state: Mutex<State>,
}

/// The kind of credential in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialKind {
    /// A bearer token.
    Token,
    /// `user:password`, for basic authentication (RFC 7617).
    Password,
}

struct State {
    authorization: HeaderValue,
    /// `None` until the file was read.
    version: Option<FileVersion>,
    /// `None` if the next request must check the file.
    checked: Option<Instant>,
    read: Option<Instant>,
}

impl CredentialFile {
    /// Reads the file, which blocks.
    pub fn open(path: PathBuf, kind: CredentialKind) -> Result<Self, ClusterError> {
        let now = Instant::now();
        let (authorization, version) = read(&path, kind)?;
        let state = State { authorization, version: Some(version), checked: Some(now), read: Some(now) };

        Ok(Self { path: path.into(), kind, state: Mutex::new(state) })
    }

    /// Reads a token file, which blocks. While it has never been read successfully, `fallback` is used.
    pub(super) fn open_or_fallback(path: PathBuf, fallback: HeaderValue) -> Self {
        Self::open(path.clone(), CredentialKind::Token).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read the token file of the kubeconfig; its own token is used");
            let state = State { authorization: fallback, version: None, checked: None, read: None };
            Self { path: path.into(), kind: CredentialKind::Token, state: Mutex::new(state) }
        })
    }

    /// Returns the Authorization header, marked as sensitive.
    pub(crate) async fn authorization(&self, now: Instant) -> HeaderValue {
        let cached_version = {
            let mut state = self.state.lock();
            if state.checked.is_some_and(|checked| now.duration_since(checked) < CHECK_PERIOD) {
                return state.authorization.clone();
            }
            // Concurrent requests use the credential that is cached.
            state.checked = Some(now);
            let recent = state.read.is_some_and(|read| now.duration_since(read) < READ_PERIOD);
            state.version.filter(|_| recent)
        };

        let (path, kind) = (Arc::clone(&self.path), self.kind);
        let read = tokio::task::spawn_blocking(move || match cached_version {
            Some(known) if FileVersion::of(&path).is_ok_and(|found| found == known) => None,
            _ => Some(read(&path, kind)),
        });
        let read = read.await.unwrap_or_default();
        let mut state = self.state.lock();
        match read {
            None => {}
            Some(Ok((authorization, version))) => {
                *state =
                    State { authorization, version: Some(version), checked: state.checked, read: Some(now) };
            }
            // The follower of the file reports it, once a minute.
            Some(Err(error)) => {
                tracing::debug!(%error, "cannot read a credential; the last good one is used")
            }
        }

        state.authorization.clone()
    }

    pub(super) fn path(&self) -> PathBuf {
        self.path.to_path_buf()
    }

    /// Returns a function that checks whether the file can be used now; it blocks.
    pub(super) fn check(&self) -> impl Fn() -> Result<(), ClusterError> + Clone + Send + 'static {
        let (path, kind) = (Arc::clone(&self.path), self.kind);
        move || read(&path, kind).map(drop)
    }

    /// Makes the next request read the file, after the server answered 401.
    pub(crate) fn invalidate(&self) {
        let mut state = self.state.lock();
        state.checked = None;
        state.read = None;
    }
}

impl CredentialKind {
    /// Returns the header, or the problem of the text.
    fn header(self, text: &str) -> Result<HeaderValue, &'static str> {
        if text.is_empty() {
            return Err("is empty");
        }
        let header = match self {
            Self::Token => bearer(text),
            Self::Password => {
                let (user, password) = text.split_once(':').ok_or("has no ':' after the user name")?;
                basic(user, &password.into())
            }
        };
        header.ok_or("cannot be sent in a header")
    }

    const fn describe(self) -> &'static str {
        match self {
            Self::Token => "the token",
            Self::Password => "the password",
        }
    }
}

/// Displays the path, never the credential.
impl fmt::Display for CredentialFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.kind.describe(), self.path.display())
    }
}

/// Reads the file and its version. The version is read first, so that a file which is replaced in between is read again.
fn read(path: &Path, kind: CredentialKind) -> Result<(HeaderValue, FileVersion), ClusterError> {
    let failed = |cause| ClusterError::Read { path: path.to_owned(), cause, hint: "" };
    let invalid = |problem| {
        let what = kind.describe();
        ClusterError::Credential { what, path: path.to_owned(), problem }
    };
    let version = FileVersion::of(path).map_err(failed)?;
    let text = files::read_text(path).map_err(failed)?;
    let authorization = kind.header(text.trim()).map_err(invalid)?;

    Ok((authorization, version))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    struct Fixture {
        _directory: tempfile::TempDir,
        path: PathBuf,
        file: CredentialFile,
        start: Instant,
    }

    impl Fixture {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("token");
            fs::write(&path, "one\n").unwrap();
            let file = CredentialFile::open(path.clone(), CredentialKind::Token).unwrap();
            Self { _directory: directory, path, file, start: Instant::now() }
        }

        fn write(&self, token: &str) {
            fs::write(&self.path, token).unwrap();
        }

        /// Writes the file without a change of its version, as on a file system with inaccurate timestamps.
        fn write_unnoticed(&self, token: &str) {
            self.write(token);
            self.file.state.lock().version = Some(FileVersion::of(&self.path).unwrap());
        }

        async fn after(&self, seconds: u64) -> String {
            let value = self.file.authorization(self.start + Duration::from_secs(seconds)).await;
            assert!(value.is_sensitive());
            value.to_str().unwrap().to_owned()
        }
    }

    #[tokio::test]
    async fn new_version_is_read_at_the_next_check() {
        let fixture = Fixture::new();
        fixture.write("two");
        assert_eq!(fixture.after(4).await, "Bearer one");
        assert_eq!(fixture.after(6).await, "Bearer two");
    }

    #[tokio::test]
    async fn unchanged_version_is_read_every_minute() {
        let fixture = Fixture::new();
        fixture.write_unnoticed("two");
        assert_eq!(fixture.after(50).await, "Bearer one");
        assert_eq!(fixture.after(59).await, "Bearer one");
        assert_eq!(fixture.after(65).await, "Bearer two");
    }

    #[tokio::test]
    async fn rejected_token_is_read_at_once() {
        let fixture = Fixture::new();
        fixture.write_unnoticed("two");
        assert_eq!(fixture.after(1).await, "Bearer one");
        fixture.file.invalidate();
        assert_eq!(fixture.after(1).await, "Bearer two");
    }

    #[tokio::test]
    async fn last_good_token_is_used_while_its_file_is_unusable() {
        let fixture = Fixture::new();
        for broken in ["", "\n", "a\nb", "caf\u{7f}"] {
            fixture.write(broken);
            fixture.file.invalidate();
            assert_eq!(fixture.after(100).await, "Bearer one");
        }
        fs::remove_file(&fixture.path).unwrap();
        assert_eq!(fixture.after(200).await, "Bearer one");
        fs::write(&fixture.path, "two").unwrap();
        assert_eq!(fixture.after(300).await, "Bearer two");
    }

    #[tokio::test]
    async fn fallback_is_used_until_the_file_can_be_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let file = CredentialFile::open_or_fallback(path.clone(), bearer("fallback").unwrap());
        let start = Instant::now();
        assert_eq!(file.authorization(start).await, "Bearer fallback");
        fs::write(&path, "fresh").unwrap();
        assert_eq!(file.authorization(start + CHECK_PERIOD).await, "Bearer fresh");
    }

    #[tokio::test]
    async fn password_is_sent_as_basic_authentication() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("password");
        fs::write(&path, "ada:l:ovelace\n").unwrap();
        let file = CredentialFile::open(path.clone(), CredentialKind::Password).unwrap();
        assert_eq!(file.authorization(Instant::now()).await, "Basic YWRhOmw6b3ZlbGFjZQ==");
        assert_eq!(file.to_string(), format!("the password in {}", path.display()));
        fs::write(&path, "ada").unwrap();
        let error = CredentialFile::open(path.clone(), CredentialKind::Password).err().unwrap().to_string();
        assert_eq!(error, format!("the password in {} has no ':' after the user name", path.display()));
    }

    #[test]
    fn errors_name_the_file_and_not_the_token() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let error = || CredentialFile::open(path.clone(), CredentialKind::Token).err().unwrap().to_string();
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
