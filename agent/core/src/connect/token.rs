//! The agent token: the credential that agentk shows to kas.

use std::{
    fmt,
    future::pending,
    io,
    path::{Path, PathBuf},
};

use http::HeaderValue;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::sync::watch;

/// The longest token, in bytes: many times that of `kas token new`.
const MAX_LENGTH: usize = 4096;

/// The source of the agent token. It is never the value of a flag: every user of a machine can read command lines.
///
/// A token file is read for each tunnel, and when it changes. While the file cannot be used, the last good token is. Clones
/// share it.
#[derive(Clone, Debug)]
pub struct AgentToken {
    source: Source,
    last_good: watch::Sender<Option<HeaderValue>>,
}

/// Reports when another token replaces the one of a tunnel.
#[derive(Debug)]
pub struct TokenChange(watch::Receiver<Option<HeaderValue>>);

#[derive(Clone, Debug)]
enum Source {
    File(PathBuf),
    Value(SecretString),
}

/// The reason why a source holds no usable token.
#[derive(Debug, thiserror::Error)]
pub enum AgentTokenError {
    /// The file is missing or cannot be read.
    #[error("cannot read the token file {}: {cause}", .path.display())]
    Read {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        cause: io::Error,
    },
    /// The source, which is named, is empty.
    #[error("{0} is empty")]
    Empty(String),
    /// The source, which is named, has line breaks or other bytes that are invalid in a header.
    #[error(
        "{0} contains characters that no token has; of what `kas token new` prints, only what follows \"token:\" belongs there"
    )]
    Malformed(String),
    /// The source, which is named, has more than 4096 bytes.
    #[error("{0} has more than 4096 bytes, and no token is that long")]
    TooLong(String),
}

impl AgentToken {
    /// Returns a token that is read from a file.
    pub fn file(path: PathBuf) -> Self {
        Self { source: Source::File(path), last_good: watch::Sender::default() }
    }

    /// Returns a token with a fixed value, which comes from the environment.
    pub fn value(token: impl Into<SecretString>) -> Self {
        Self { source: Source::Value(token.into()), last_good: watch::Sender::default() }
    }

    /// Returns the path of the token file, if there is one.
    pub fn path(&self) -> Option<&Path> {
        match &self.source {
            Source::File(path) => Some(path),
            Source::Value(_) => None,
        }
    }

    /// Returns the Authorization header with the current token, or with the last good one. It is marked as sensitive.
    ///
    /// # Errors
    ///
    /// The source has never held a usable token.
    pub async fn authorization(&self) -> Result<HeaderValue, AgentTokenError> {
        let reloaded = match &self.source {
            Source::Value(_) => self.reload(),
            Source::File(_) => {
                let token = self.clone();
                let reloading = tokio::task::spawn_blocking(move || token.reload());
                reloading.await.unwrap_or_else(|error| self.header(Err(error.into())))
            }
        };
        reloaded.or_else(|error| {
            let last_good = self.last_good.borrow().clone().ok_or(error)?;
            // The follower of the file has reported the reason to the operator.
            tracing::debug!("the last good agent token is used");
            Ok(last_good)
        })
    }

    /// Returns the same header as [`AgentToken::authorization`], and the change that replaces it.
    pub(crate) async fn authorization_until_change(
        &self,
    ) -> Result<(HeaderValue, TokenChange), AgentTokenError> {
        let mut last_good = self.last_good.subscribe();
        let header = self.authorization().await?;
        // Another tunnel may have read a newer token meanwhile.
        if last_good.borrow_and_update().as_ref() != Some(&header) {
            last_good.mark_changed();
        }
        Ok((header, TokenChange(last_good)))
    }

    /// Reads the token and keeps it as the last good one; it blocks.
    pub fn reload(&self) -> Result<HeaderValue, AgentTokenError> {
        let header = self.header(match &self.source {
            Source::File(path) => files::read_text(path).map(SecretString::from),
            Source::Value(token) => Ok(token.clone()),
        })?;
        self.last_good.send_if_modified(|last_good| {
            let changed = last_good.as_ref() != Some(&header);
            *last_good = Some(header.clone());
            changed
        });
        Ok(header)
    }

    fn header(&self, text: io::Result<SecretString>) -> Result<HeaderValue, AgentTokenError> {
        let text = match (text, &self.source) {
            (Ok(text), _) => text,
            (Err(cause), Source::File(path)) => {
                return Err(AgentTokenError::Read { path: path.clone(), cause });
            }
            (Err(_), Source::Value(_)) => return Err(AgentTokenError::Empty(self.to_string())),
        };
        let token = text.expose_secret().trim();
        if token.is_empty() {
            return Err(AgentTokenError::Empty(self.to_string()));
        }
        if token.len() > MAX_LENGTH {
            return Err(AgentTokenError::TooLong(self.to_string()));
        }
        if !token.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(AgentTokenError::Malformed(self.to_string()));
        }

        let mut value = HeaderValue::from_str(&format!("Bearer {token}")).expect("visible ASCII");
        value.set_sensitive(true);
        Ok(value)
    }
}

impl TokenChange {
    /// Waits until the token changes. Cancel-safe. Each change completes one call.
    pub(crate) async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            // There is no source any more.
            pending().await
        }
    }
}

/// Names the source, never the token.
impl fmt::Display for AgentToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Source::File(path) => write!(f, "the token file {}", path.display()),
            Source::Value(_) => f.write_str("the environment variable AGENTK_TOKEN"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test]
    async fn token_file_is_read_at_every_dial() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let token = AgentToken::file(path.clone());
        for text in ["one\n", "  two  "] {
            fs::write(&path, text).unwrap();
            let value = token.authorization().await.unwrap();
            assert_eq!(value, format!("Bearer {}", text.trim()));
            assert!(value.is_sensitive());
        }
    }

    #[tokio::test]
    async fn last_good_token_is_used_while_its_file_is_unusable() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let token = AgentToken::file(path.clone());
        fs::write(&path, "one").unwrap();
        token.reload().unwrap();
        for broken in ["", "\n", "a\nb"] {
            fs::write(&path, broken).unwrap();
            assert_eq!(token.authorization().await.unwrap(), "Bearer one", "{broken:?}");
            assert!(token.reload().is_err(), "{broken:?}");
        }
        fs::remove_file(&path).unwrap();
        assert_eq!(token.clone().authorization().await.unwrap(), "Bearer one");
        fs::create_dir(&path).unwrap();
        assert_eq!(token.authorization().await.unwrap(), "Bearer one");

        fs::remove_dir(&path).unwrap();
        fs::write(&path, "two").unwrap();
        assert_eq!(token.authorization().await.unwrap(), "Bearer two");
        fs::write(&path, "").unwrap();
        assert_eq!(token.authorization().await.unwrap(), "Bearer two");
    }

    #[tokio::test]
    async fn errors_name_the_source_and_not_the_token() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let token = AgentToken::file(path.clone());
        let error = token.authorization().await.unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot read the token file {}: No such file", path.display())));
        let long = "sec".repeat(2000);
        for (text, problem) in
            [("\n", "is empty"), ("sec\nret", "contains characters"), (&long, "has more than 4096 bytes")]
        {
            fs::write(&path, text).unwrap();
            let error = token.reload().unwrap_err().to_string();
            assert!(error.starts_with(&format!("the token file {} {problem}", path.display())), "{error}");
            assert!(!error.contains("sec"));
        }
        let error = AgentToken::value("").reload().unwrap_err().to_string();
        assert_eq!(error, "the environment variable AGENTK_TOKEN is empty");
    }
}
