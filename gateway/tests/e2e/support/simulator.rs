//! The simulated cluster of `make demo`. Unlike old clusters, it supports `v5.channel.k8s.io` for exec over WebSocket.

use std::{path::PathBuf, process::Command};

use tempfile::TempDir;
use testing::skip::{installed, skipped};

use super::{Kas, Process, kubeconfig};

/// A running simulated cluster.
pub(crate) struct Simulator {
    /// The kubeconfig for agentk.
    pub(crate) kubeconfig: PathBuf,
    _process: Process,
    _directory: TempDir,
}

impl Simulator {
    /// Starts a simulated cluster, or skips the test if kubectl is missing.
    pub(crate) fn or_skip() -> Option<Self> {
        if !installed("kubectl") {
            skipped("there is no kubectl");
            return None;
        }

        let program = Kas::program().with_file_name("loadtest");
        let process = Process::start(
            "loadtest simulator",
            Command::new(program).args(["simulator", "--listen", "127.0.0.1:0"]),
        );
        let line = process.line("its address", |line| line.contains("listens on http://"));
        let url = line.rsplit(' ').next().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = kubeconfig::write(directory.path().join("kubeconfig"), url, None, "none");
        Some(Self { kubeconfig, _process: process, _directory: directory })
    }
}
