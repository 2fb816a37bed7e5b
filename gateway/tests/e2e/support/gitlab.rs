//! The stand-in for GitLab, and an agent that GitLab knows.

use std::{fs, path::Path};

use kas_testing::gitaly::{TestFile, TestGitaly};
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use tempfile::TempDir;
use testing::gitlab::{Agent as GitLabAgent, Gitaly, Project, StandIn};
use tokio::runtime::{Builder, Runtime};

use super::{Agent, AgentOptions, Installation, eventually};

/// The token of the agent. Tokens of the identity file would not be sent to GitLab.
const TOKEN: &str = "glagent-0123456789";

/// A running stand-in with one agent.
pub(crate) struct GitLab {
    /// The stand-in.
    pub(crate) standin: StandIn,
    directory: TempDir,
    runtime: Runtime,
}

impl GitLab {
    /// The id of the agent. The one of its configuration project is 142.
    pub(crate) const AGENT: u64 = 42;

    /// Starts the stand-in.
    pub(crate) fn start() -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let standin = runtime.block_on(StandIn::start());
        standin.state().add_agent(GitLabAgent::new(Self::AGENT, "gitlab", TOKEN));
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("secret"), standin.secret()).unwrap();
        Self { standin, directory, runtime }
    }

    /// Serves the repository of the project of the agent, with this configuration and these manifests.
    pub(crate) fn serve_project(&self, files: &[(&str, &str)]) -> TestGitaly {
        let mut project = Project::new(7, "group/project");
        let gitaly = self.serve(&mut project, files);
        let mut agent = GitLabAgent::new(Self::AGENT, "gitlab", TOKEN);
        agent.project = project;
        self.standin.state().add_agent(agent);
        gitaly
    }

    /// Serves the repository of another project, which the agent may read.
    pub(crate) fn serve_other_project(&self, files: &[(&str, &str)]) -> TestGitaly {
        let mut project = Project::new(8, "group/other");
        let gitaly = self.serve(&mut project, files);
        self.standin.state().projects.push(project);
        gitaly
    }

    fn serve(&self, project: &mut Project, files: &[(&str, &str)]) -> TestGitaly {
        let gitaly = TestGitaly::new();
        let files: Vec<_> =
            files.iter().map(|(path, text)| (*path, TestFile::Content(text.as_bytes()))).collect();
        gitaly.repository.commit("main", &files);
        let server = self.runtime.block_on(gitaly.listen());
        project.relative_path = gitaly.location().relative_path;
        let (token, features) =
            (server.token.expose_secret().to_owned(), server.features.into_iter().collect());
        project.gitaly = Gitaly { address: server.address, token, features };
        gitaly
    }

    /// Returns the section `gitlab` of the configuration of kas.
    pub(crate) fn section(&self) -> Value {
        json!({"address": self.standin.url(), "authentication_secret_file": self.directory.path().join("secret")})
    }

    /// Starts an agentk with the token of the agent, for the cluster of the agentk of the installation.
    pub(crate) fn start_agent(&self, world: &Installation) -> Agent {
        self.start_agent_with(world, &world.agent_options)
    }

    /// Starts an agentk with the token of the agent and these options.
    pub(crate) fn start_agent_with(&self, world: &Installation, options: &AgentOptions) -> Agent {
        let options = AgentOptions { token: TOKEN.to_owned(), ..options.clone() };
        let directory: &Path = self.directory.path();
        let before = world.kas.metric("kas_tunnels");
        let agent = Agent::start(directory, &options);
        eventually("the agent of GitLab has its tunnels", || world.kas.metric("kas_tunnels") == before + 2.0);
        agent
    }
}
