//! The flag `--environment`: an environment of the file or of GitLab, and its place.

use environments_wire::{
    Environment, EnvironmentAgent, EnvironmentError, EnvironmentQuery, EnvironmentReader, EnvironmentSources,
    GitLabToken,
};
use kas_environments::EnvironmentFile;
use kas_gitlab::{CacheTtls, GitLabEnvironments, GitLabSetup};
use std::{fmt, path::Path, str::FromStr, sync::Arc, time::Duration};

use crate::config::Config;
use cli::CliError;

/// An environment: `PROJECT:SLUG`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EnvironmentName {
    project: String,
    slug: String,
}

/// The error of a text that is not an environment.
#[derive(Debug, thiserror::Error)]
#[error("write PROJECT:SLUG, like shop/web:production")]
pub(super) struct EnvironmentNameError;

impl EnvironmentName {
    /// Returns the environment. Those of GitLab need a token.
    pub(super) fn find(
        &self,
        config: (&Path, &Config),
        token: Option<&GitLabToken>,
    ) -> Result<Environment, CliError> {
        let (sources, names) = sources(config, token)?;
        let query = EnvironmentQuery {
            project: Some(self.project.clone()),
            slug: Some(self.slug.clone()),
            ..EnvironmentQuery::default()
        };
        let reader = token.map_or(EnvironmentReader::Public, EnvironmentReader::Holder);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("the operating system lets a runtime start");
        let found = runtime.block_on(sources.list(&query, reader)).map_err(|error| match error {
            EnvironmentError::Unavailable(error) => CliError::unavailable(error.to_string()),
            error => CliError::forbidden(error.to_string()),
        })?;
        let found = found.environments.into_iter().next();
        found.ok_or_else(|| CliError::usage(format!("there is no environment {self} in {names}")))
    }

    /// Returns the place of the environment that `agent` and `namespace` select.
    pub(super) fn choose(
        &self,
        found: Environment,
        agent: Option<&str>,
        namespace: Option<&str>,
    ) -> Result<EnvironmentAgent, String> {
        let mut places = found.agents;
        if places.is_empty() {
            return Err(format!(
                "GitLab knows no agent with a namespace for the environment {self}: select both in its settings"
            ));
        }
        let is = |wanted: Option<&str>, value: &str| wanted.is_none_or(|wanted| wanted == value);
        places.retain(|place| is(agent, &place.agent) && is(namespace, &place.namespace));
        match (places.pop(), &*places) {
            (Some(place), []) => Ok(place),
            (None, _) => Err(format!("the environment {self} is not in this namespace of this agent")),
            (Some(last), others) => {
                let places = others.iter().chain([&last]);
                let places: Vec<_> = places
                    .map(|place| format!("--agent {} --namespace {}", place.agent, place.namespace))
                    .collect();
                Err(format!("the environment {self} has several places, choose one: {}", places.join("; ")))
            }
        }
    }
}

impl FromStr for EnvironmentName {
    type Err = EnvironmentNameError;

    fn from_str(text: &str) -> Result<Self, EnvironmentNameError> {
        let (project, slug) = text.rsplit_once(':').ok_or(EnvironmentNameError)?;
        Ok(Self { project: project.to_owned(), slug: slug.to_owned() })
    }
}

impl fmt::Display for EnvironmentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.project, self.slug)
    }
}

/// Returns the sources of environments, and their names for errors. GitLab is a source if there is a token.
fn sources(
    (path, config): (&Path, &Config),
    token: Option<&GitLabToken>,
) -> Result<(EnvironmentSources, String), CliError> {
    let (mut sources, mut names) = (EnvironmentSources::default(), Vec::new());
    if let Some(section) = &config.environments {
        sources.0.push(Arc::new(EnvironmentFile::read(&section.file.value)?));
        names.push(section.file.value.display().to_string());
    }
    if let (Some(section), Some(_)) = (&config.gitlab, token) {
        let client = GitLabSetup::read(path, section)?.client();
        // The command asks once.
        let ttls = CacheTtls { responses: Duration::ZERO, errors: Duration::ZERO };
        sources.0.push(Arc::new(GitLabEnvironments::new(client, ttls)));
        names.push(format!("GitLab at {}, as the holder of the token sees it", section.address));
    }
    if names.is_empty() {
        return Err(CliError::usage(
            "the configuration names no environments: set the key environments.file, or use GitLab with --gitlab-token-file",
        ));
    }
    Ok((sources, names.join(" or in ")))
}
