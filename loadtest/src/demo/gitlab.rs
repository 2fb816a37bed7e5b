//! A stand-in for GitLab with a CI job, and the kubeconfig that GitLab writes for the job.

use std::path::{Path, PathBuf};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::json;
use testing::gitlab::{Agent, Job, Project, StandIn};

use crate::installation::stack::write_file;

/// The id of the agent. The identity file of the demo has the agent 1.
const AGENT: u64 = 42;
/// The context of the kubeconfig: the project and the name of the agent.
pub(super) const CONTEXT: &str = "shop/clusters:demo";

/// A running stand-in.
pub(super) struct DemoGitLab {
    standin: StandIn,
    job_token: String,
    /// The file with the token for agentk.
    pub(super) agent_token: PathBuf,
}

impl DemoGitLab {
    /// Starts the stand-in, and writes its secret and the token of its agent.
    pub(super) async fn start(directory: &Path) -> anyhow::Result<Self> {
        let standin = StandIn::start().await;
        let token = |kind: &str| format!("{kind}-{:032x}", rand::random::<u128>());
        let (agent_token, job_token) = (token("glagent"), token("glcbt"));
        let project = Project::new(142, "shop/clusters");
        let job = Job::new(1, 30).with_agent(AGENT, json!({"access_as": {"agent": {}}}));
        let mut state = standin.state();
        state.add_agent(Agent { project, ..Agent::new(AGENT, "demo", &agent_token) });
        state.add_job(&job_token, job);
        drop(state);
        write_file(directory, "gitlab-secret", &standin.secret())?;
        write_file(directory, "gitlab-agent-token", &agent_token)?;
        Ok(Self { standin, job_token, agent_token: directory.join("gitlab-agent-token") })
    }

    /// Returns the section `gitlab` of the configuration of kas.
    pub(super) fn section(&self) -> String {
        format!(
            "gitlab: {{address: \"{}\", authentication_secret_file: gitlab-secret}}\n",
            self.standin.url()
        )
    }

    /// Returns the credential of the job for its agent.
    pub(super) fn job_credential(&self) -> String {
        format!("ci:{AGENT}:{}", self.job_token)
    }

    /// Writes the kubeconfig `ci.kubeconfig`.
    pub(super) fn write_kubeconfig(
        &self,
        directory: &Path,
        server: &str,
        authority: &str,
    ) -> anyhow::Result<()> {
        let (user, authority) = (format!("agent:{AGENT}"), BASE64_STANDARD.encode(authority));
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "gitlab", "cluster": {"server": server, "certificate-authority-data": authority}}],
            "users": [{"name": user, "user": {"token": self.job_credential()}}],
            "contexts": [{"name": CONTEXT, "context": {"cluster": "gitlab", "user": user}}],
        });
        write_file(directory, "ci.kubeconfig", &kubeconfig.to_string())
    }
}
