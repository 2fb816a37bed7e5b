//! The tokens of earlier logins, in the cache directory of the user.

use std::{
    env,
    fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use oidc::Tokens;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::print_notice;
use crate::CliError;

/// The file of one session.
#[derive(Debug)]
pub(super) struct TokenCache {
    file: PathBuf,
}

#[derive(Deserialize)]
struct Entry {
    token: SecretString,
    expires: u64,
    refresh_token: Option<SecretString>,
}

/// Returns the directory of all sessions: `kas/login` in the cache directory of the user.
pub(super) fn directory() -> Result<PathBuf, CliError> {
    // The specification ignores relative paths.
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    let base = base.ok_or_else(|| CliError::usage("set HOME or XDG_CACHE_HOME: tokens are kept there"))?;
    Ok(base.join("kas/login"))
}

impl TokenCache {
    /// Opens the file of a session, and creates its directory.
    pub(super) fn open(session: &str) -> Result<Self, CliError> {
        Self::open_in(&directory()?, session)
    }

    fn open_in(directory: &Path, session: &str) -> Result<Self, CliError> {
        let failed = |error: io::Error| CliError::output(format!("{}: {error}", directory.display()));
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
        // The directory may be older, and have other permissions.
        fs::set_permissions(directory, Permissions::from_mode(0o700)).map_err(failed)?;
        let digest = Sha256::digest(session);
        let name: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { file: directory.join(name) })
    }

    /// Returns the tokens. A file that is invalid, or that others may read, counts as missing.
    pub(super) fn read(&self) -> Option<Tokens> {
        let metadata = fs::symlink_metadata(&self.file).ok()?;
        if !metadata.is_file() || metadata.mode() & 0o077 != 0 {
            return None;
        }
        let text = SecretString::from(files::read_text(&self.file).ok()?);
        let Entry { token, expires, refresh_token } = serde_json::from_str(text.expose_secret()).ok()?;
        Some(Tokens { token, expires, refresh_token })
    }

    /// Waits until no other process logs in to the same session. The lock ends with the file.
    pub(super) fn lock(&self) -> Result<File, CliError> {
        let failed = |error: io::Error| CliError::output(format!("{}.lock: {error}", self.file.display()));
        let mut options = OpenOptions::new();
        let lock = options
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(self.file.with_extension("lock"));
        let lock = lock.map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                print_notice("kas: another process logs in: waiting for it");
                lock.lock().map_err(failed)?;
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        Ok(lock)
    }

    /// Replaces the file.
    pub(super) fn write(&self, tokens: &Tokens) -> Result<(), CliError> {
        let entry = json!({
            "token": tokens.token.expose_secret(),
            "expires": tokens.expires,
            "refresh_token": tokens.refresh_token.as_ref().map(ExposeSecret::expose_secret),
        });
        let new = self.file.with_extension("new");
        let written = replace(&new, entry.to_string().as_bytes()).and_then(|()| fs::rename(&new, &self.file));
        written.map_err(|error| CliError::output(format!("{}: {error}", self.file.display())))
    }
}

/// Creates a file that only its owner may read at any time.
fn replace(file: &Path, bytes: &[u8]) -> io::Result<()> {
    // A process that was killed may have left the file. The lock excludes any other writer.
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(token: &str) -> Tokens {
        Tokens { token: token.into(), expires: 7, refresh_token: Some("refresh".into()) }
    }

    #[test]
    fn tokens_are_readable_by_their_owner_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kas/login");
        let cache = TokenCache::open_in(&path, "a").unwrap();
        assert!(cache.read().is_none());
        for token in ["one", "two"] {
            cache.write(&tokens(token)).unwrap();
            assert_eq!(cache.read().unwrap().token.expose_secret(), token);
        }
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        assert_eq!(fs::metadata(&cache.file).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1, "nothing is left over");
        assert!(TokenCache::open_in(&path, "b").unwrap().read().is_none(), "another session");

        fs::set_permissions(&cache.file, Permissions::from_mode(0o644)).unwrap();
        assert!(cache.read().is_none(), "others may have read it");
        fs::write(&cache.file, "{\"token\": ").unwrap();
        fs::set_permissions(&cache.file, Permissions::from_mode(0o600)).unwrap();
        assert!(cache.read().is_none(), "it is half a file");
    }

    #[test]
    fn second_process_waits_for_the_lock() {
        let directory = tempfile::tempdir().unwrap();
        let cache = TokenCache::open_in(directory.path(), "a").unwrap();
        let held = cache.lock().unwrap();
        let second = File::open(cache.file.with_extension("lock")).unwrap();
        assert!(matches!(second.try_lock(), Err(TryLockError::WouldBlock)));
        drop(held);
        assert!(second.try_lock().is_ok());
    }
}
