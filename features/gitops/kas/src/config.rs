//! Section `agent.gitops`: the repositories with manifests, and the limits of what is read from them.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use access::AgentSelector;
use git::{FileLimits, RepositoryConfig, RepositorySettings};
use kas_core::gitlab_key::GitLabKey;
use oci::OciSettings;
use outbound::AddressPolicy;
use render::{RenderSettings, Renderer, limits::can_take_network_away};
use schemars::JsonSchema;
use serde::Deserialize;
use settings::{ConfigError, Network, Rate, Spanned, Timeout, Within};

use super::sources::{GitopsSource, SourceSettings};

/// This program, which sets the limits of programs that render.
const LIMITER: &str = "/proc/self/exe";

/// Section `agent.gitops`. Its limits have the names and the defaults of GitLab's kas.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GitopsConfig {
    /// The time, ±10 %, after which a repository is looked at again, unless a project sets `interval`.
    #[serde(with = "Timeout")]
    pub poll_period: Duration,
    /// The shortest `interval` that a project may set.
    #[serde(with = "Timeout")]
    pub min_interval: Duration,
    /// The most looks per second at one server, by each replica. Further ones wait.
    #[serde(with = "Rate")]
    pub polls_per_server_per_second: u32,
    /// The largest file, in bytes.
    #[serde(with = "Within::<1, { 64 << 20 }>")]
    pub max_manifest_file_size: usize,
    /// The most bytes of all files of a project.
    #[serde(with = "Within::<1, { 64 << 20 }>")]
    pub max_total_manifest_file_size: usize,
    /// The most files of a project.
    #[serde(with = "Within::<1, 20_000>")]
    pub max_number_of_files: usize,
    /// Ignored: a project may have 100 paths.
    pub max_number_of_paths: GitLabKey,
    /// Ignored: kas keeps GitLab's answers about projects for a fixed time.
    pub project_info_cache_ttl: GitLabKey,
    /// Ignored, like `project_info_cache_ttl`.
    pub project_info_cache_error_ttl: GitLabKey,
    /// The networks to which registries may redirect. Without them, all but addresses with a special meaning.
    #[schemars(with = "Vec<String>")]
    pub allowed_networks: Vec<Network>,
    /// The programs that render manifests.
    pub render: GitopsRenderConfig,
    /// The repositories that agents may name by their id.
    pub repositories: Vec<GitopsRepositoryConfig>,
    /// The validated repositories.
    #[serde(skip)]
    pub(super) sources: Arc<Vec<GitopsSource>>,
}

/// Section `agent.gitops.render`: kustomize and helm, which run beside kas.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GitopsRenderConfig {
    /// The program kustomize: a path, or a name in `PATH`.
    pub kustomize: PathBuf,
    /// The program helm: a path, or a name in `PATH`.
    pub helm: PathBuf,
    /// The time for one directory.
    #[serde(with = "Timeout")]
    pub timeout: Duration,
    /// The most bytes of memory for one directory.
    #[serde(with = "Within::<{ 128 << 20 }, { 16 << 30 }>")]
    pub max_memory: usize,
    /// Whether the programs run also where the kernel lets kas not take their network away.
    pub allow_network: bool,
}

/// A repository with manifests.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GitopsRepositoryConfig {
    /// The id by which `gitops.manifest_projects` names the repository.
    #[schemars(with = "String")]
    pub id: Spanned<String>,
    /// The agents that may read the repository: ids, names of agents of the identity file, or project/path:name of agents of GitLab.
    #[schemars(with = "Vec<String>")]
    pub agents: Vec<AgentSelector>,
    /// The repository, or an OCI artifact (oci://registry/path:tag).
    pub repository: RepositoryConfig,
}

impl Default for GitopsConfig {
    fn default() -> Self {
        Self {
            poll_period: Duration::from_secs(20),
            min_interval: Duration::from_secs(5),
            polls_per_server_per_second: 100,
            max_manifest_file_size: 5 << 20,
            max_total_manifest_file_size: 20 << 20,
            max_number_of_files: 1000,
            max_number_of_paths: GitLabKey::default(),
            project_info_cache_ttl: GitLabKey::default(),
            project_info_cache_error_ttl: GitLabKey::default(),
            allowed_networks: Vec::new(),
            render: GitopsRenderConfig::default(),
            repositories: Vec::new(),
            sources: Arc::default(),
        }
    }
}

impl Default for GitopsRenderConfig {
    fn default() -> Self {
        Self {
            kustomize: "kustomize".into(),
            helm: "helm".into(),
            timeout: Duration::from_secs(30),
            max_memory: 512 << 20,
            allow_network: false,
        }
    }
}

impl GitopsRenderConfig {
    fn settings(&self) -> RenderSettings {
        let Self { kustomize, helm, timeout, max_memory, allow_network } = self.clone();
        RenderSettings { kustomize, helm, timeout, max_memory: max_memory as u64, allow_network }
    }

    /// Returns the reason why kas at this machine renders nothing, although it has the programs.
    pub fn problem(&self) -> Option<String> {
        if self.allow_network || !self.settings().has_program() {
            return None;
        }
        let isolates = can_take_network_away(Path::new(LIMITER)).ok()?;
        (!isolates).then(|| {
            "agent.gitops.render: the kernel allows neither a network namespace nor a filter of system calls, so that kustomize and helm \
             would have a network: kas renders nothing at this machine unless agent.gitops.render.allow_network is true"
                .to_owned()
        })
    }
}

impl GitopsConfig {
    /// Validates the repositories.
    pub fn validate(&mut self, file: &Path) -> Result<(), ConfigError> {
        let mut sources: Vec<GitopsSource> = Vec::with_capacity(self.repositories.len());
        for (index, section) in self.repositories.iter().enumerate() {
            let key = format!("agent.gitops.repositories[{index}]");
            let error =
                |what: String| ConfigError::new(file, section.id.referenced, format!("{key}.id"), what);
            let id = &section.id.value;
            if id.is_empty() || id.chars().any(char::is_control) {
                return Err(error("it must be a text, like group/project".to_owned()));
            }
            if sources.iter().any(|source| source.id == *id) {
                return Err(error(format!("two repositories have the id {id}")));
            }
            let (repository, key) = (&section.repository, format!("{key}.repository"));
            let settings = if OciSettings::is_artifact(repository) {
                SourceSettings::Artifact(OciSettings::new(file, &key, repository)?)
            } else {
                SourceSettings::Git(RepositorySettings::new(file, &key, repository)?)
            };
            sources.push(GitopsSource { id: id.clone(), agents: section.agents.clone(), settings });
        }
        self.sources = Arc::new(sources);
        Ok(())
    }

    /// Returns the renderer. This program sets its limits.
    pub(super) fn renderer(&self) -> Renderer {
        Renderer::new(self.render.settings(), PathBuf::from(LIMITER))
    }

    /// Returns the rules for servers that a registry names.
    pub(super) fn addresses(&self) -> AddressPolicy {
        AddressPolicy::new("agent.gitops.allowed_networks", &self.allowed_networks)
    }

    /// Returns the limits of what is read for a project.
    pub(super) fn limits(&self) -> FileLimits {
        FileLimits {
            files: self.max_number_of_files,
            file_bytes: self.max_manifest_file_size,
            bytes: self.max_total_manifest_file_size,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_repository_is_refused_with_its_key() {
        let parse = |text: &str| {
            let file = Path::new("kas.yaml");
            let mut config: GitopsConfig = settings::parse(file, text).map_err(|error| error.to_string())?;
            config.validate(file).map(|()| config).map_err(|error| error.to_string())
        };
        let config = parse("repositories: [{id: a, agents: [prod], repository: {url: /srv/a.git}}]").unwrap();
        assert_eq!((config.sources.len(), config.poll_period), (1, Duration::from_secs(20)));
        for (text, expected) in [
            (
                "repositories: [{id: '', agents: [], repository: {url: /a}}]",
                "agent.gitops.repositories[0].id: it must be",
            ),
            (
                "repositories: [{id: a, agents: [], repository: {url: /a}}, {id: a, agents: [], repository: {url: /b}}]",
                "repositories[1].id: two repositories have the id a",
            ),
            (
                "repositories: [{id: a, agents: [], repository: {url: http://a/b}}]",
                "repositories[0].repository.url: ",
            ),
            (
                "repositories: [{id: a, agents: [], repository: {url: 'oci://x/a'}}]",
                "repositories[0].repository.url: write oci://",
            ),
            ("repositories: [{id: a, repository: {url: /a}}]", "the key agents is missing"),
            ("max_number_of_files: 0", "max_number_of_files: "),
            ("poll_period: 0s", "poll_period: "),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text} gave {error}");
        }
    }
}
