//! The agent token: what kas knows us by.

use std::{fmt, io, path::PathBuf};

use http::HeaderValue;
use secrecy::{ExposeSecret as _, SecretString};

/// Where the token comes from. Never a flag's value: command lines are seen by everybody on the machine.
#[derive(Clone, Debug)]
pub enum Token {
    /// Read at every dial, so that a rotated secret is used by the next tunnel.
    File(PathBuf),
    /// From the environment.
    Value(SecretString),
}

/// Why there is no token to show.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// Missing, or not readable for us.
    #[error("cannot read the token file {}: {cause}", .path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the operating system says.
        cause: io::Error,
    },
    /// Nothing in it.
    #[error("{0} is empty")]
    Empty(String),
    /// Line breaks or other bytes that no header takes.
    #[error(
        "{0} contains characters that no token has; of what `kas token new` prints, only what follows \"token:\" belongs there"
    )]
    Malformed(String),
}

impl Token {
    /// The Authorization header, marked as sensitive.
    pub async fn authorization(&self) -> Result<HeaderValue, TokenError> {
        match self {
            Self::File(path) => {
                let text = tokio::fs::read_to_string(path).await;
                self.header(text.map(SecretString::from))
            }
            Self::Value(token) => self.header(Ok(token.clone())),
        }
    }

    /// Whether there is a usable token now; it blocks.
    pub fn check(&self) -> Result<(), TokenError> {
        let text = match self {
            Self::File(path) => std::fs::read_to_string(path).map(SecretString::from),
            Self::Value(token) => Ok(token.clone()),
        };
        self.header(text).map(drop)
    }

    fn header(&self, text: io::Result<SecretString>) -> Result<HeaderValue, TokenError> {
        let text = match (text, self) {
            (Ok(text), _) => text,
            (Err(cause), Self::File(path)) => return Err(TokenError::Read { path: path.clone(), cause }),
            (Err(_), Self::Value(_)) => return Err(TokenError::Empty(self.to_string())),
        };
        let token = text.expose_secret().trim();
        if token.is_empty() {
            return Err(TokenError::Empty(self.to_string()));
        }
        if !token.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(TokenError::Malformed(self.to_string()));
        }

        let mut value = HeaderValue::from_str(&format!("Bearer {token}")).expect("visible ASCII");
        value.set_sensitive(true);
        Ok(value)
    }
}

/// Where to look, never the token.
impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "the token file {}", path.display()),
            Self::Value(_) => f.write_str("the environment variable AGENTK_TOKEN"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_is_read_at_every_dial() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let token = Token::File(path.clone());
        for text in ["one\n", "  two  "] {
            std::fs::write(&path, text).unwrap();
            let value = token.authorization().await.unwrap();
            assert_eq!(value, format!("Bearer {}", text.trim()));
            assert!(value.is_sensitive());
        }
    }

    #[tokio::test]
    async fn errors_name_the_source_and_not_the_token() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let token = Token::File(path.clone());
        let error = token.authorization().await.unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot read the token file {}: No such file", path.display())));
        for (text, problem) in [("\n", "is empty"), ("sec\nret", "contains characters")] {
            std::fs::write(&path, text).unwrap();
            let error = token.check().unwrap_err().to_string();
            assert!(error.starts_with(&format!("the token file {} {problem}", path.display())), "{error}");
            assert!(!error.contains("sec"));
        }
        let error = Token::Value("".into()).check().unwrap_err().to_string();
        assert_eq!(error, "the environment variable AGENTK_TOKEN is empty");
    }
}
