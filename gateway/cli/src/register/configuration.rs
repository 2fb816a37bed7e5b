//! The first configuration of an agent: a file in the repository of its project.

use std::path::Path;

use proto::{
    AgentName,
    agent_configuration::{AgentConfiguration, DEFAULT_MAX_BYTES},
    percent::encode,
};
use serde::de::IgnoredAny;
use serde_json::json;

use super::{gitlab::GitLab, project::AgentProject, refusal::RequestError};
use crate::CliError;

/// The configuration of an agent on a branch.
#[derive(Debug)]
pub(super) struct ConfigurationFile<'a> {
    project: &'a AgentProject,
    agent: &'a AgentName,
    path: String,
    default_branch: &'a str,
    /// The branch that gets the first configuration.
    branch: &'a str,
}

/// Where the configuration is before the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConfigurationState {
    /// It is on the default branch, where kas reads it.
    Exists,
    /// It is on the chosen branch only.
    ExistsOnBranch,
    /// The chosen branch exists and lacks it.
    Missing,
    /// The chosen branch is made by the commit.
    MissingWithBranch,
}

/// The state of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BranchState {
    HasFile,
    LacksFile,
    NoBranch,
}

impl<'a> ConfigurationFile<'a> {
    /// Creates the file of an agent, on this branch or on the default branch.
    pub(super) fn new(
        project: &'a AgentProject,
        agent: &'a AgentName,
        branch: Option<&'a str>,
    ) -> Result<Self, CliError> {
        let hidden = "GitLab does not show the default branch of the project: its repository is switched off, or the holder of \
                      the token may not read it; --no-configuration leaves the configuration out";
        let default_branch = project.default_branch.as_deref().ok_or_else(|| CliError::forbidden(hidden))?;
        let path = format!(".gitlab/agents/{agent}/config.yaml");
        Ok(Self { project, agent, path, default_branch, branch: branch.unwrap_or(default_branch) })
    }

    /// Returns the path in the repository.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Returns the branch for the commit.
    pub(super) fn branch(&self) -> &str {
        self.branch
    }

    /// Returns whether kas reads the configuration only after a merge.
    pub(super) fn needs_merge(&self) -> bool {
        self.branch != self.default_branch
    }

    /// Returns the page on which a user merges the branch.
    pub(super) fn merge_page(&self, gitlab: &GitLab) -> String {
        let query = format!("merge_requests/new?merge_request%5Bsource_branch%5D={}", encode(self.branch));
        self.project.page(gitlab, &query)
    }

    /// Looks for the file.
    pub(super) async fn find(&self, gitlab: &GitLab) -> Result<ConfigurationState, CliError> {
        if self.look(gitlab, self.default_branch).await? == BranchState::HasFile {
            return Ok(ConfigurationState::Exists);
        }
        if !self.needs_merge() {
            return Ok(ConfigurationState::Missing);
        }
        Ok(match self.look(gitlab, self.branch).await? {
            BranchState::HasFile => ConfigurationState::ExistsOnBranch,
            BranchState::LacksFile => ConfigurationState::Missing,
            BranchState::NoBranch => ConfigurationState::MissingWithBranch,
        })
    }

    async fn look(&self, gitlab: &GitLab, branch: &str) -> Result<BranchState, CliError> {
        let path = format!("{}?ref={}", self.endpoint(), encode(branch));
        match gitlab.get::<IgnoredAny>(&path).await {
            Ok(_) => Ok(BranchState::HasFile),
            // `404 Commit Not Found` for a branch that does not exist, and for a repository without a commit.
            Err(RequestError::Refused(refusal)) if refusal.is_missing() => {
                Ok(if refusal.mentions("commit") { BranchState::NoBranch } else { BranchState::LacksFile })
            }
            Err(error) => Err(self.project.error(gitlab, error, "Developer")),
        }
    }

    /// Commits a configuration. Returns false if another process has done so since.
    pub(super) async fn commit(
        &self,
        gitlab: &GitLab,
        text: &str,
        state: ConfigurationState,
    ) -> Result<bool, CliError> {
        let mut body = json!({
            "branch": self.branch,
            "content": text,
            "commit_message": format!("Add the configuration of the agent {}", self.agent),
        });
        if state == ConfigurationState::MissingWithBranch {
            body["start_branch"] = json!(self.default_branch);
        }
        let Err(error) = gitlab.post::<IgnoredAny>(&self.endpoint(), &body).await else { return Ok(true) };
        let because = |text| error.refusal().is_some_and(|refusal| refusal.is_invalid_because(text));
        if because("file with this name already exists") {
            return Ok(false);
        }
        if because("not allowed to push") {
            return Err(CliError::forbidden(format!(
                "the branch {} is protected, and the holder of the token may not push to it: --branch NAME commits to a new \
                 branch for a merge request, and --no-configuration leaves the configuration out",
                self.branch
            )));
        }
        Err(self.project.error(gitlab, error, "Developer"))
    }

    fn endpoint(&self) -> String {
        format!("/projects/{}/repository/files/{}", self.project.id, encode(&self.path))
    }
}

/// Reads the file of `--configuration`, which agentk has to accept.
pub(super) fn read_configuration(file: &Path) -> Result<String, CliError> {
    let text = files::read_text_at_most(file, DEFAULT_MAX_BYTES as u64).map_err(|error| {
        CliError::usage(format!("--configuration {}: {}", file.display(), files::unreadable(&error)))
    })?;
    AgentConfiguration::parse(file, &text)?;
    Ok(text)
}

/// Returns a configuration that lets the jobs and the developers of the project use the agent.
pub(super) fn default_configuration(agent: &AgentName, project: &str) -> String {
    format!(
        "\
# The configuration of the agent {agent}. kas reads this file on the default branch when it changes.
# It lists the users of the agent. Their rights in the cluster are those of agentk there.
# Keys: docs/configuration-from-git.md of kas, and https://docs.gitlab.com/user/clusters/agent/

# CI jobs of these projects may use the cluster. A job selects it with
#   kubectl config use-context {project}:{agent}
ci_access:
  projects:
    - id: {project}

# Developers of these projects may use the cluster, with kubectl and on GitLab's pages, as agentk itself.
# With `user: {{}}` in place of `agent: {{}}` (GitLab Premium), each has an identity of their own, which needs rights in the cluster.
user_access:
  access_as:
    agent: {{}}
  projects:
    - id: {project}
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_configuration_gives_the_project_access() {
        let text = default_configuration(&"production".parse().unwrap(), "group/shop");
        let parsed = AgentConfiguration::parse(Path::new("config.yaml"), &text).unwrap();
        assert_eq!(parsed.warnings(), Vec::<String>::new());
        let written = parsed.as_written(&text);
        assert_eq!(written["ci_access"]["projects"], json!([{"id": "group/shop"}]));
        assert_eq!(written["user_access"]["projects"], json!([{"id": "group/shop"}]));
        assert_eq!(written["user_access"]["access_as"], json!({"agent": {}}));
        assert!(text.contains("use-context group/shop:production\n"), "{text}");
    }

    #[test]
    fn configuration_that_agentk_refuses_is_not_committed() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config.yaml");
        std::fs::write(&file, "ci_acces: {}\n").unwrap();
        let error = read_configuration(&file).unwrap_err().message;
        assert!(error.contains("config.yaml:1:1") && error.contains("ci_acces"), "{error}");
        let error = read_configuration(Path::new("absent.yaml")).unwrap_err().message;
        assert!(error.starts_with("--configuration absent.yaml: "), "{error}");
        std::fs::write(&file, "ci_access: {projects: [{id: a/b}]}\n").unwrap();
        assert_eq!(read_configuration(&file).unwrap(), "ci_access: {projects: [{id: a/b}]}\n");
    }
}
