//! Tests of configurations as on laptops and in pods.

mod auth;
mod sources;

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use super::{Cluster, ClusterEnvironment, ClusterError, KubeconfigOptions};

/// A directory of files, and environment variables.
struct Fixture {
    directory: TempDir,
    variables: BTreeMap<&'static str, OsString>,
}

impl Fixture {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let variables = BTreeMap::from([("HOME", directory.path().join("home").into_os_string())]);
        Self { directory, variables }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, content: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    fn set(&mut self, name: &'static str, value: impl Into<OsString>) {
        self.variables.insert(name, value.into());
    }

    fn load(&self, kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Cluster, ClusterError> {
        let options =
            KubeconfigOptions { file: kubeconfig.map(Path::to_owned), context: context.map(str::to_owned) };
        let variable = |name: &str| self.variables.get(name).cloned();
        Cluster::load_in(
            &options,
            &ClusterEnvironment { variable: &variable, service_account: self.path("service-account") },
        )
    }

    /// Loads a kubeconfig with one cluster and one user, whose entries are in flow style without braces.
    fn with(&self, cluster: &str, user: &str) -> Result<Cluster, ClusterError> {
        self.load(Some(&self.write("config", &kubeconfig(cluster, user))), None)
    }

    fn with_user(&self, user: &str) -> Result<Cluster, ClusterError> {
        self.with(SERVER, user)
    }
}

const SERVER: &str = "server: https://api.example:6443, insecure-skip-tls-verify: true";

/// Returns a kubeconfig. `cluster` and `user` are in YAML's flow style, without braces.
fn kubeconfig(cluster: &str, user: &str) -> String {
    format!(
        "apiVersion: v1\n\
         kind: Config\n\
         preferences: {{}}\n\
         current-context: here\n\
         contexts:\n\
         - name: here\n  context: {{cluster: c, user: u}}\n\
         clusters:\n\
         - name: c\n  cluster: {{{cluster}}}\n\
         users:\n\
         - name: u\n  user: {{{user}}}\n"
    )
}

async fn authorization(cluster: &Cluster) -> Option<String> {
    let value = cluster.authorization().await.unwrap()?;
    assert!(value.is_sensitive());
    Some(value.to_str().unwrap().to_owned())
}

/// Returns the text of the error, with `DIR` for the temporary directory.
fn error(fixture: &Fixture, result: Result<Cluster, ClusterError>) -> String {
    result.unwrap_err().to_string().replace(fixture.directory.path().to_str().unwrap(), "DIR")
}
