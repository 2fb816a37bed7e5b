//! The cluster that `KUBECONFIG` names.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::{
    Kubectl, eventually,
    skip::{installed, skipped},
};

/// A real cluster, reached without any tunnel.
pub(crate) struct Cluster {
    /// What agentk is given.
    pub(crate) kubeconfig: PathBuf,
    /// The reference.
    pub(crate) kubectl: Kubectl,
    _directory: TempDir,
}

/// A namespace of one test, deleted after it.
pub(crate) struct Namespace {
    /// Its name.
    pub(crate) name: String,
    /// In it, without any tunnel.
    pub(crate) kubectl: Kubectl,
}

impl Cluster {
    /// The cluster, or a word about the test that is left out for want of it.
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
        let kubectl = Kubectl::of_cluster(&kubeconfig, directory.path());
        Some(Self { kubeconfig, kubectl, _directory: directory })
    }

    /// A namespace in which pods can be made.
    pub(crate) fn namespace(&self, topic: &str) -> Namespace {
        let name = format!("e2e-{topic}-{:08x}", rand::random::<u32>());
        self.kubectl.ok(&["create", "namespace", &name]);
        let namespace = Namespace { kubectl: self.kubectl.within(&name), name };
        // `kubectl wait --for=create` is not in kubectl before 1.31.
        eventually("the namespace has its service account", || {
            namespace.kubectl.run(&["get", "serviceaccount", "default"]).code == 0
        });
        namespace
    }
}

impl Namespace {
    /// Makes a pod that runs a shell script in busybox, and waits until it does.
    pub(crate) fn pod(&self, name: &str, script: &str) {
        self.kubectl.ok_with(&["create", "--filename", "-"], &pod(name, script));
        self.kubectl.ok(&["wait", "--for=condition=Ready", "--timeout=40s", &format!("pod/{name}")]);
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.kubectl.run(&["delete", "namespace", &self.name, "--wait=false"]);
    }
}

/// The manifest of a pod. The image is loaded beforehand, and nobody waits for a shell that ignores SIGTERM.
pub(crate) fn pod(name: &str, script: &str) -> String {
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

/// A path as an argument.
pub(crate) fn file(path: &Path) -> &str {
    path.to_str().unwrap()
}
