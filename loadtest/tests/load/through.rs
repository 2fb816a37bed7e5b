//! kas and agentk in front of a server of the test.

use std::net::SocketAddr;

use loadtest::stack::{AGENT, Kas, Setup, child::Child};
use tempfile::TempDir;

use crate::program::programs;

/// Dropping it ends both.
pub(crate) struct Through {
    directory: TempDir,
    kas: Kas,
    _agentk: Child,
}

impl Through {
    /// `None` if they were not built. Waits until `path` of the server is answered.
    pub(crate) async fn start(cluster: SocketAddr, path: &str) -> Option<Self> {
        let setup = Setup { programs: Some(programs()?.to_owned()), ..Setup::default() };
        let directory = tempfile::tempdir().unwrap();
        let kas = Kas::start(directory.path(), &setup).await.unwrap();
        let agentk = kas.agentk(&setup, cluster, path).await.unwrap();
        Some(Self { directory, kas, _agentk: agentk })
    }

    /// Of a path of the server.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}/agents/{AGENT}/kubernetes{path}", self.kas.public)
    }

    /// The flags that a caller needs.
    pub(crate) fn token(&self) -> String {
        format!("--token-file {}", self.directory.path().join("caller-token").display())
    }
}
