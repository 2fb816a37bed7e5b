//! kas and agentk in front of a test server.

use std::net::SocketAddr;

use loadtest::installation::stack::{AGENT, KasProcess, StackConfig, process::ChildProcess};
use tempfile::TempDir;

use crate::program::programs;

/// Running kas and agentk. Dropping it kills both.
pub(crate) struct TunnelSetup {
    directory: TempDir,
    kas: KasProcess,
    _agentk: ChildProcess,
}

impl TunnelSetup {
    /// Starts both and waits until a request for `path` succeeds. Returns `None` if they are not built.
    pub(crate) async fn start(cluster: SocketAddr, path: &str) -> Option<Self> {
        let setup = StackConfig { programs: Some(programs()?.to_owned()), ..StackConfig::default() };
        let directory = tempfile::tempdir().unwrap();
        let kas = KasProcess::start(directory.path(), &setup).await.unwrap();
        let agentk = kas.start_agentk(&setup, cluster, path).await.unwrap();
        Some(Self { directory, kas, _agentk: agentk })
    }

    /// Returns the URL of a path of the server.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}/agents/{AGENT}/kubernetes{path}", self.kas.public)
    }

    /// Returns the flag with the caller's token.
    pub(crate) fn token(&self) -> String {
        format!("--token-file {}", self.directory.path().join("caller-token").display())
    }
}
