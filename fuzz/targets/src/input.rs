//! Inputs as headers and as files, and the search for secrets in YAML.

use std::{
    fs,
    path::{Path, PathBuf},
};

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;
use tempfile::TempDir;

/// Stands for a token in the seeds. No error may contain it.
pub(crate) const CANARY: &str = "CANARYSECRET";

/// Reads `name: value` lines, and skips lines that no HTTP parser accepts.
pub(crate) fn headers(text: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in text.split(|byte| *byte == b'\n') {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) else {
            continue;
        };
        headers.append(name, value);
    }
    headers
}

/// A file with an input as its content, in a temporary directory of its own.
#[derive(Debug)]
pub(crate) struct InputFile {
    path: PathBuf,
    /// Removes the directory on drop.
    _directory: TempDir,
}

impl InputFile {
    /// Creates the file.
    pub(crate) fn new(name: &str, content: &[u8]) -> Self {
        let directory = tempfile::tempdir().expect("the temporary directory is writable");
        let path = directory.path().join(name);
        fs::write(&path, content).expect("the temporary directory is writable");
        Self { path, _directory: directory }
    }

    /// Returns the absolute path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Returns whether the text contains [`CANARY`], and only as a value of one of these keys. Then an error has no reason to
/// contain it.
pub(crate) fn canary_is_secret(text: &str, keys: &[&str]) -> bool {
    let written = text.matches(CANARY).count();
    if written == 0 {
        return false;
    }

    match serde_saphyr::from_str::<Value>(text) {
        Ok(tree) => count_canaries(&tree, None, keys) == written,
        // The text is not YAML: each line is read alone, if quoting makes no difference.
        Err(_) => {
            let secret = |line: &str| {
                let line = line.trim_start_matches([' ', '-']);
                let value = keys.iter().find_map(|key| line.strip_prefix(key)?.strip_prefix(": "));
                value.is_some_and(|value| value == CANARY)
            };
            !text.contains(['|', '>', '"', '\'', '\\'])
                && text.lines().filter(|line| line.contains(CANARY)).all(secret)
        }
    }
}

/// Counts the canaries in values, and in lists of values, of the keys.
fn count_canaries(tree: &Value, key: Option<&str>, keys: &[&str]) -> usize {
    match tree {
        Value::Object(map) => map.iter().map(|(key, value)| count_canaries(value, Some(key), keys)).sum(),
        Value::Array(list) => list.iter().map(|value| count_canaries(value, key, keys)).sum(),
        Value::String(text) if key.is_some_and(|key| keys.contains(&key)) => text.matches(CANARY).count(),
        _ => 0,
    }
}
