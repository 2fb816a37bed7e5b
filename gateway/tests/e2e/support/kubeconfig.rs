//! kubeconfig files for callers of kas, and for agents of unreachable clusters.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::json;

/// Writes a kubeconfig file and returns its path.
pub(super) fn write(file: PathBuf, server: &str, authority: Option<&Path>, token: &str) -> PathBuf {
    let mut cluster = json!({"server": server});
    if let Some(authority) = authority {
        cluster["certificate-authority"] = json!(authority);
    }
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "e2e", "cluster": cluster}],
        "users": [{"name": "e2e", "user": {"token": token}}],
        "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": "e2e"}}],
        "current-context": "e2e",
    });
    fs::write(&file, kubeconfig.to_string()).unwrap();
    file
}
