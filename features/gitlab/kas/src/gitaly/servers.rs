//! The Gitaly servers that GitLab has named.

use std::{fmt, sync::Arc};

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use super::GitalyServer;
use crate::GitLabError;

/// The most Gitaly servers that are remembered. A GitLab has some.
const MAX_SERVERS: usize = 32;

/// The Gitaly servers that are known, so that thousands of agents do not each hold the same feature flags.
#[derive(Default)]
pub(crate) struct GitalyServers(Mutex<Vec<([u8; 32], Arc<GitalyServer>)>>);

impl GitalyServers {
    /// Returns the server with this description.
    pub(crate) fn get(&self, info: serde_json::Value) -> Result<Arc<GitalyServer>, GitLabError> {
        if info.is_null() {
            return Ok(Arc::default());
        }
        let digest: [u8; 32] = Sha256::digest(info.to_string()).into();
        let mut servers = self.0.lock();
        if let Some((_, server)) = servers.iter().find(|(known, _)| *known == digest) {
            return Ok(Arc::clone(server));
        }
        let server: GitalyServer = serde_json::from_value(info)
            .map_err(|_| GitLabError::unavailable("its gitaly_info is not the expected JSON"))?;
        let server = Arc::new(server);
        if servers.len() == MAX_SERVERS {
            servers.remove(0);
        }
        servers.push((digest, Arc::clone(&server)));
        Ok(server)
    }
}

impl fmt::Debug for GitalyServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GitalyServers")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn same_server_is_shared_and_a_changed_one_is_new() {
        let servers = GitalyServers::default();
        let info = |token: &str| json!({"address": "tcp://a:1", "token": token, "features": {"f": "true"}});
        let first = servers.get(info("a")).unwrap();
        assert_eq!((first.address.as_str(), first.features["f"].as_str()), ("tcp://a:1", "true"));
        assert!(Arc::ptr_eq(&first, &servers.get(info("a")).unwrap()));
        assert!(!Arc::ptr_eq(&first, &servers.get(info("b")).unwrap()));
        assert!(servers.get(json!([1])).is_err());
        assert!(!format!("{first:?}").contains("token: \"a\""));
        for n in 0..100 {
            servers.get(info(&n.to_string())).unwrap();
        }
        assert_eq!(servers.0.lock().len(), MAX_SERVERS);
    }
}
