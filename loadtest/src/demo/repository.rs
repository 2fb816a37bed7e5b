//! A Git repository for the simulated cluster: the configuration of the agent, and a manifest that somebody changes in the cluster.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use tokio::process::Command;

use crate::installation::stack::{AGENT, write_file};

/// The namespace of the manifests, and of agentk.
pub(super) const NAMESPACE: &str = "demo";

/// agentk reports a change by others, and does not revert it.
const CONFIGURATION: &str = "\
gitops:
  manifest_projects:
  - {paths: [{glob: '/manifests/**'}], default_namespace: demo, self_heal: report}
";

const MANIFEST: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: checkout-settings}
data: {currency: EUR, discount: '10'}
";

/// Creates the repository `agents` in a directory, which replaces an earlier one.
pub(super) async fn create(directory: &Path) -> anyhow::Result<PathBuf> {
    let repository = directory.join("agents");
    if repository.exists() {
        std::fs::remove_dir_all(&repository).context("the repository of before cannot be removed")?;
    }
    let configuration = repository.join(".gitlab/agents").join(AGENT);
    let manifests = repository.join("manifests");
    std::fs::create_dir_all(&configuration)?;
    std::fs::create_dir_all(&manifests)?;
    write_file(&configuration, "config.yaml", CONFIGURATION)?;
    write_file(&manifests, "checkout.yaml", MANIFEST)?;
    git(&repository, &["init", "--quiet", "--initial-branch=main"]).await?;
    git(&repository, &["add", "--all"]).await?;
    git(&repository, &["commit", "--quiet", "--message=Give a discount of 10 %"]).await?;
    Ok(repository)
}

async fn git(repository: &Path, arguments: &[&str]) -> anyhow::Result<()> {
    let author = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com", "-c", "commit.gpgsign=false"];
    let mut command = Command::new("git");
    let status = command.arg("-C").arg(repository).args(author).args(arguments).status().await;
    let status = status.context("git cannot be started")?;
    ensure!(status.success(), "git {} ended with {status}", arguments.join(" "));
    Ok(())
}
