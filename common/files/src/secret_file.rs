//! Files of secret keys, which are read again when they change.

use std::path::{Path, PathBuf};

use settings::{ConfigError, Secret, Spanned};

use crate::{read_text_at_most, unreadable};

/// The largest file, in bytes: many times four keys.
const MAX_FILE_BYTES: u64 = 64 * 1024;

/// A secret and the file that it was read from.
#[derive(Clone, Debug)]
pub struct SecretFile {
    config: PathBuf,
    key: &'static str,
    path: Spanned<PathBuf>,
    secret: Secret,
}

impl SecretFile {
    /// Reads the file that the configuration file `config` names at `key`.
    pub fn read(config: &Path, key: &'static str, path: &Spanned<PathBuf>) -> Result<Self, ConfigError> {
        let secret = load(config, key, path)?;
        Ok(Self { config: config.to_owned(), key, path: path.clone(), secret })
    }

    /// Reads the file again. If the new version is invalid, the keys do not change.
    pub fn reload(&self) -> Result<(), ConfigError> {
        self.secret.replace(&load(&self.config, self.key, &self.path)?);
        Ok(())
    }

    /// Returns the secret. [`SecretFile::reload`] replaces its keys.
    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// Returns the key of the configuration that names the file.
    pub fn config_key(&self) -> &'static str {
        self.key
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path.value
    }
}

fn load(config: &Path, key: &str, path: &Spanned<PathBuf>) -> Result<Secret, ConfigError> {
    let text = read_text_at_most(&path.value, MAX_FILE_BYTES).map_err(|error| unreadable(&error));
    let secret = text.and_then(|text| Secret::parse(&text).map_err(|error| error.to_string()));
    secret.map_err(|problem| {
        ConfigError::new(config, path.referenced, key, format!("{}: {problem}", path.value.display()))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use base64::{Engine as _, prelude::BASE64_STANDARD};

    use super::*;

    #[test]
    fn reload_replaces_the_keys_of_clones_unless_the_file_is_invalid() {
        let key = |byte: u8| BASE64_STANDARD.encode([byte; 32]);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        fs::write(&path, key(1)).unwrap();
        let spanned: Spanned<PathBuf> = serde_saphyr::from_str(path.to_str().unwrap()).unwrap();
        let file = SecretFile::read(Path::new("kas.yaml"), "api.listen.authentication_secret_file", &spanned)
            .unwrap();
        let clone = file.secret().clone();
        let first_byte = || clone.keys().signing().expose_bytes()[0];
        assert_eq!(first_byte(), 1);

        fs::write(&path, key(2)).unwrap();
        file.reload().unwrap();
        assert_eq!(first_byte(), 2);

        fs::write(&path, "half a fi").unwrap();
        let error = file.reload().unwrap_err().to_string();
        assert!(error.starts_with("kas.yaml:1:1: api.listen.authentication_secret_file: "), "{error}");
        assert!(error.contains("secret: is not base64"), "{error}");
        assert_eq!(first_byte(), 2);
    }
}
