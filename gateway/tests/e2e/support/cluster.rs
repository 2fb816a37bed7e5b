//! The cluster of the kubeconfig in `KUBECONFIG`.

use std::path::{Path, PathBuf};

use tempfile::TempDir;
use testing::skip::{installed, skipped};

use super::{Kubectl, eventually};

/// A real cluster, with direct access to it.
pub(crate) struct Cluster {
    /// The kubeconfig for agentk.
    pub(crate) kubeconfig: PathBuf,
    /// kubectl without the tunnel, as the reference.
    pub(crate) kubectl: Kubectl,
    _directory: TempDir,
}

/// A Kubernetes namespace of one test. Dropping it deletes the namespace.
pub(crate) struct Namespace {
    /// The name of the namespace.
    pub(crate) name: String,
    /// kubectl in this namespace, without the tunnel.
    pub(crate) kubectl: Kubectl,
}

impl Cluster {
    /// Returns the cluster, or skips the test if there is none.
    pub(crate) fn or_skip() -> Option<Self> {
        let kubeconfig = std::env::var_os("KUBECONFIG").map(PathBuf::from).filter(|file| file.is_file());
        let Some(kubeconfig) = kubeconfig else {
            skipped("KUBECONFIG names no cluster");
            return None;
        };
        if !installed("kubectl") {
            skipped("there is no kubectl");
            return None;
        }

        let directory = tempfile::tempdir().unwrap();
        let kubectl = Kubectl::direct(&kubeconfig, directory.path());
        Some(Self { kubeconfig, kubectl, _directory: directory })
    }

    /// Creates a namespace and waits until pods can be created in it.
    pub(crate) fn namespace(&self, topic: &str) -> Namespace {
        let name = format!("e2e-{topic}-{:08x}", rand::random::<u32>());
        self.kubectl.ok(&["create", "namespace", &name]);
        let namespace = Namespace { kubectl: self.kubectl.in_namespace(&name), name };
        // `kubectl wait --for=create` is not in kubectl before 1.31.
        eventually("the namespace has its service account", || {
            namespace.kubectl.run(&["get", "serviceaccount", "default"]).code == 0
        });
        namespace
    }
}

impl Namespace {
    /// Creates a pod that runs a shell script in busybox, and waits until it is ready.
    pub(crate) fn pod(&self, name: &str, script: &str) {
        self.kubectl.ok_with_stdin(&["create", "--filename", "-"], &pod_manifest(name, script));
        self.kubectl.ok(&["wait", "--for=condition=Ready", "--timeout=40s", &format!("pod/{name}")]);
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.kubectl.run(&["delete", "namespace", &self.name, "--wait=false"]);
    }
}

/// Returns the manifest of a pod that runs a shell script in busybox.
///
/// The image is loaded beforehand. The grace period is 0, because a shell as process 1 ignores SIGTERM.
pub(crate) fn pod_manifest(name: &str, script: &str) -> String {
    serde_json::json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "main",
                "image": "busybox:1.35",
                "imagePullPolicy": "Never",
                "command": ["sh", "-c", script],
            }],
        },
    })
    .to_string()
}

/// Returns a path as a command line argument.
pub(crate) fn path_argument(path: &Path) -> &str {
    path.to_str().unwrap()
}
