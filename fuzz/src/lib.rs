//! What several targets need: an input as lines, a file to be read back, and where a secret stands in a YAML text.

use std::{
    fs,
    path::{Path, PathBuf},
};

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;

/// Stands for a token in the seeds: no error may show it.
pub const CANARY: &str = "CANARYSECRET";

/// Reads `name: value` lines; what no HTTP parser would let through is left out.
pub fn headers(text: &[u8]) -> HeaderMap {
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

/// A file of this process, in a directory of its own.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes the directory.
    pub fn new(name: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("kas-fuzz-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("the temporary directory is writable");
        Self(directory.join(name))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Replaces its content.
    pub fn write(&self, bytes: &[u8]) {
        fs::write(&self.0, bytes).expect("the temporary directory is writable");
    }
}

/// Whether the text has [`CANARY`] only where one of these keys has it as its value, so that nothing has a reason to
/// show it.
pub fn canary_is_secret(text: &str, keys: &[&str]) -> bool {
    let written = text.matches(CANARY).count();
    if written == 0 {
        return false;
    }

    match serde_saphyr::from_str::<Value>(text) {
        Ok(tree) => count(&tree, None, keys) == written,
        // Not YAML: then line by line, where that is unambiguous.
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

/// How often the canary is, or is in a list that is, the value of one of the keys.
fn count(tree: &Value, key: Option<&str>, keys: &[&str]) -> usize {
    match tree {
        Value::Object(map) => map.iter().map(|(key, value)| count(value, Some(key), keys)).sum(),
        Value::Array(list) => list.iter().map(|value| count(value, key, keys)).sum(),
        Value::String(text) if key.is_some_and(|key| keys.contains(&key)) => text.matches(CANARY).count(),
        _ => 0,
    }
}
