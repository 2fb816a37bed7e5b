//! The project of an agent in GitLab.

use proto::percent::encode;
use serde::Deserialize;

use super::{
    gitlab::GitLab,
    refusal::{ErrorContext, RequestError},
};
use crate::CliError;

/// The longest path of a project. Those of GitLab are shorter.
const MAX_PATH: usize = 1000;

/// The project whose agent is registered.
#[derive(Debug, Deserialize)]
pub(super) struct AgentProject {
    /// The id.
    pub(super) id: u64,
    /// The path, which has only letters, digits and `-_./`.
    #[serde(rename = "path_with_namespace")]
    pub(super) path: String,
    /// The branch from which kas reads configurations. GitLab hides it from those who may not read the repository.
    pub(super) default_branch: Option<String>,
}

impl AgentProject {
    /// Finds the project with this id or path.
    pub(super) async fn find(gitlab: &GitLab, id_or_path: &str) -> Result<Self, CliError> {
        let found: Self = gitlab.get(&format!("/projects/{}", encode(id_or_path))).await.map_err(|error| {
            match error.refusal() {
                Some(refusal) if refusal.is_missing() => CliError::usage(format!(
                    "GitLab has no project {id_or_path}, or the holder of the token may not see it: check --project, and ask \
                     an owner of the project for the role Maintainer"
                )),
                _ => error.into_error(
                    ErrorContext { gitlab: gitlab.url().as_str(), project: id_or_path },
                    "Maintainer",
                ),
            }
        })?;
        // It is written into a file of YAML and into commands.
        if !is_project_path(&found.path) {
            return Err(CliError::unavailable("GitLab responded with a path that no project can have"));
        }
        Ok(found)
    }

    /// Returns the address of a page of the project.
    pub(super) fn page(&self, gitlab: &GitLab, page: &str) -> String {
        format!("{}/{}/-/{page}", gitlab.url().as_str(), self.path)
    }

    /// Returns the context for errors of a step.
    pub(super) fn context<'a>(&'a self, gitlab: &'a GitLab) -> ErrorContext<'a> {
        ErrorContext { gitlab: gitlab.url().as_str(), project: &self.path }
    }

    /// Returns the error of a request for something in the project, which needs a role.
    pub(super) fn error(&self, gitlab: &GitLab, error: RequestError, role: &str) -> CliError {
        error.into_error(self.context(gitlab), role)
    }
}

/// Parses the value of `--project`: a full path, or an id.
pub(super) fn parse_project(text: &str) -> Result<String, String> {
    let is_id = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_path = is_project_path(text) && text.contains('/');
    (is_id || is_path).then(|| text.to_owned()).ok_or_else(|| "write it like group/project".to_owned())
}

fn is_project_path(text: &str) -> bool {
    let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte));
    plain && (1..=MAX_PATH).contains(&text.len()) && !text.starts_with('/') && !text.ends_with('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn project_is_a_path_or_an_id() {
        for good in ["group/shop", "a/b/c_d.e-f", "42"] {
            assert_eq!(parse_project(good).as_deref(), Ok(good));
        }
        for bad in
            ["", "shop", "/shop", "group/", "group/shop?a", "group/shop\n", "https://gitlab/group/shop"]
        {
            assert!(parse_project(bad).is_err(), "{bad}");
        }
    }
}
