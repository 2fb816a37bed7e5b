//! A credential that somebody else keeps fresh: the kubelet replaces a projected service account token when 80 % of
//! its life is over.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::HeaderValue;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    ClusterError,
    credentials::{basic, bearer},
};

/// How often the file's time and length are looked at: often enough that nobody waits for a rotation done by hand,
/// rarely enough to cost nothing.
const CHECK_EVERY: Duration = Duration::from_secs(5);

/// How often the file is read even if it looks the same, as client-go does: not every file system keeps good time.
const READ_EVERY: Duration = Duration::from_secs(60);

/// Read again when it changes.
pub struct CredentialFile {
    path: Arc<Path>,
    content: Content,
    state: Mutex<State>,
}

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A bearer token.
    Token,
    /// `user:password`, for basic authentication (RFC 7617).
    Password,
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

impl CredentialFile {
    /// Reads the file now; it blocks.
    pub fn open(path: PathBuf, content: Content) -> Result<Self, ClusterError> {
        let now = Instant::now();
        let (authorization, version) = read(&path, content)?;
        let state = State { authorization, version: Some(version), checked: Some(now), read: Some(now) };

        Ok(Self { path: path.into(), content, state: Mutex::new(state) })
    }

    /// A token's; uses `fallback` until the file can be read.
    pub(super) fn open_or(path: PathBuf, fallback: HeaderValue) -> Self {
        Self::open(path.clone(), Content::Token).unwrap_or_else(|error| {
            tracing::warn!(%error, "the kubeconfig's own token is used until its token file can be read");
            let state = State { authorization: fallback, version: None, checked: None, read: None };
            Self { path: path.into(), content: Content::Token, state: Mutex::new(state) }
        })
    }

    /// The Authorization header, marked as sensitive.
    pub(crate) async fn authorization(&self, now: Instant) -> HeaderValue {
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

        let (path, content) = (Arc::clone(&self.path), self.content);
        let read = tokio::task::spawn_blocking(move || match unless {
            Some(known) if Version::of(&path).is_ok_and(|found| found == known) => None,
            _ => Some(read(&path, content)),
        });
        let read = read.await.unwrap_or_default();
        let mut state = self.state.lock();
        match read {
            None => {}
            Some(Ok((authorization, version))) => {
                *state =
                    State { authorization, version: Some(version), checked: state.checked, read: Some(now) };
            }
            Some(Err(error)) => tracing::warn!(%error, "the last good credential stays in use"),
        }

        state.authorization.clone()
    }

    /// The server answered 401: the file is read before the next request.
    pub(crate) fn rejected(&self) {
        let mut state = self.state.lock();
        state.checked = None;
        state.read = None;
    }
}

impl Content {
    /// The header, or what is wrong with the text.
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

/// For logs and errors: never the credential.
impl fmt::Display for CredentialFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.content.describe(), self.path.display())
    }
}

impl Version {
    fn of(path: &Path) -> io::Result<Self> {
        let metadata = fs::metadata(path)?;
        Ok(Self { modified: metadata.modified().ok(), length: metadata.len() })
    }
}

/// The version is taken first: a file replaced in between is then read once more, not missed.
fn read(path: &Path, content: Content) -> Result<(HeaderValue, Version), ClusterError> {
    let failed = |cause| ClusterError::Read { path: path.to_owned(), cause, hint: "" };
    let invalid = |problem| {
        let what = content.describe();
        ClusterError::Credential { what, path: path.to_owned(), problem }
    };
    let version = Version::of(path).map_err(failed)?;
    let text = fs::read_to_string(path).map_err(failed)?;
    let authorization = content.header(text.trim()).map_err(invalid)?;

    Ok((authorization, version))
}

#[cfg(test)]
mod tests {
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
            let file = CredentialFile::open(path.clone(), Content::Token).unwrap();
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
        let file = CredentialFile::open_or(path.clone(), bearer("fallback").unwrap());
        let start = Instant::now();
        assert_eq!(file.authorization(start).await, "Bearer fallback");
        fs::write(&path, "fresh").unwrap();
        assert_eq!(file.authorization(start + CHECK_EVERY).await, "Bearer fresh");
    }

    #[tokio::test]
    async fn a_password_is_sent_as_basic_authentication() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("password");
        fs::write(&path, "ada:l:ovelace\n").unwrap();
        let file = CredentialFile::open(path.clone(), Content::Password).unwrap();
        assert_eq!(file.authorization(Instant::now()).await, "Basic YWRhOmw6b3ZlbGFjZQ==");
        assert_eq!(file.to_string(), format!("the password in {}", path.display()));
        fs::write(&path, "ada").unwrap();
        let error = CredentialFile::open(path.clone(), Content::Password).err().unwrap().to_string();
        assert_eq!(error, format!("the password in {} has no ':' after the user name", path.display()));
    }

    #[test]
    fn errors_name_the_file_and_not_the_token() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let error = || CredentialFile::open(path.clone(), Content::Token).err().unwrap().to_string();
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
