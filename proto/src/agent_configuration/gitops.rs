//! Section `gitops`: the manifests in Git that agentk applies. The keys are those of GitLab's agent, and some of ours.

mod field_path;
mod invalid;
mod objects;
mod render;
mod run_as;
mod source;
#[cfg(test)]
mod tests;

use std::{collections::HashSet, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use settings::AnyDuration;

pub use self::{
    field_path::{FieldPath, InvalidFieldPath, PathSegment},
    invalid::InvalidManifestProject,
    objects::{Conflicts, IgnoredFields, InventoryPolicy, ResourceFilter, SelfHeal},
    render::{Helm, Render},
    run_as::RunAs,
    source::{GitRef, ManifestPath, PathMatcher},
};
use super::{
    InvalidValue, is_namespace,
    unset::{null_as_default, text},
};

/// The most projects of an agent.
const MAX_PROJECTS: usize = 100;
/// The most globs of a project, which is the limit of GitLab's kas.
const MAX_PATHS: usize = 100;
/// The namespace of namespaced objects that name none.
const DEFAULT_NAMESPACE: &str = "default";
/// The time for objects to become healthy, or to disappear.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(3600);
/// The longest id of a project, in bytes.
const MAX_ID: usize = 255;
/// The longest name of a release of helm.
const MAX_RELEASE_NAME: usize = 53;

/// Section `gitops`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gitops {
    /// The projects whose manifests are applied.
    #[serde(default, deserialize_with = "null_as_default")]
    pub manifest_projects: Vec<ManifestProject>,
}

/// A project whose manifests are applied.
#[expect(clippy::struct_excessive_bools, reason = "each is a key of the file")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ManifestProject {
    /// The name among the projects of the agent. The default is `id`. Several projects with the same `id` need names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The full path of the project, or the id of a repository in the configuration of kas. The default is the project that has
    /// this configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The version. The default is the default branch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub r#ref: Option<GitRef>,
    /// The namespace of namespaced objects that name none.
    #[serde(deserialize_with = "default_namespace")]
    pub default_namespace: String,
    /// The files. A file that two globs match is applied once.
    #[serde(deserialize_with = "default_paths")]
    pub paths: Vec<ManifestPath>,
    /// The time that the objects may take to become healthy. Zero: the sync does not wait.
    #[serde(with = "default_timeout")]
    pub reconcile_timeout: Duration,
    /// The kind of dry run, if there is one.
    #[serde(deserialize_with = "null_as_default")]
    pub dry_run_strategy: DryRunStrategy,
    /// Objects that left Git are deleted.
    #[serde(deserialize_with = "default_prune")]
    pub prune: bool,
    /// The time that deleted objects may take to disappear.
    #[serde(with = "default_timeout")]
    pub prune_timeout: Duration,
    /// The propagation policy for the dependents of a deleted object.
    #[serde(deserialize_with = "null_as_default")]
    pub prune_propagation_policy: PropagationPolicy,
    /// The policy for objects that exist without this project.
    #[serde(deserialize_with = "null_as_default")]
    pub inventory_policy: InventoryPolicy,
    /// The kinds that may be applied. Without an entry, all kinds may.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resource_inclusions: Vec<ResourceFilter>,
    /// The kinds that may not be applied.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resource_exclusions: Vec<ResourceFilter>,
    /// The time between two looks at the repository. The default depends on whether kas learns of pushes.
    #[serde(skip_serializing_if = "Option::is_none", with = "optional_duration")]
    pub interval: Option<Duration>,
    /// The namespaces whose objects may be applied. Without it, all may.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<Vec<String>>,
    /// The permission to apply cluster-scoped objects. The default is true, and false with `namespaces`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_scoped: Option<bool>,
    /// The largest part of the objects that may be deleted within an hour without an approval, in percent.
    pub max_prune_percent: u8,
    /// The number of objects that may always be deleted within an hour.
    pub max_prune: u32,
    /// Objects that cannot be had back from Git, such as volume claims and namespaces, are deleted like others.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub prune_irreplaceable: bool,
    /// The reaction to a change of an object by somebody else.
    pub self_heal: SelfHeal,
    /// The project is not synced.
    pub suspend: bool,
    /// The identity in the cluster. The default is that of agentk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_as: Option<RunAs>,
    /// The way in which files become manifests.
    pub render: Render,
    /// The name of the release and the values for `helm template`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub helm: Option<Helm>,
    /// Charts may have random functions and the time. What each rendering gives another value is written once.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub allow_unstable_rendering: bool,
    /// The reaction to a field that Git has and another manager has set.
    pub conflicts: Conflicts,
    /// Fields that agentk writes when it creates an object, and leaves to others from then on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ignore_differences: Vec<IgnoredFields>,
    /// kas writes the diff of each merge request of the project into a note, where all readers of the merge request see it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub merge_request_previews: bool,
}

/// The kind of dry run, in which objects are not written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DryRunStrategy {
    /// No dry run: objects are written.
    #[default]
    #[serde(alias = "")]
    None,
    /// Objects are parsed and validated in agentk.
    Client,
    /// Objects are validated by the API server, too.
    Server,
}

/// The propagation policy for the dependents of a deleted object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PropagationPolicy {
    /// They stay.
    Orphan,
    /// They are deleted after it.
    Background,
    /// They are deleted before it.
    #[default]
    #[serde(alias = "")]
    Foreground,
}

impl Default for ManifestProject {
    fn default() -> Self {
        Self {
            name: None,
            id: None,
            r#ref: None,
            default_namespace: DEFAULT_NAMESPACE.to_owned(),
            paths: all_manifests(),
            reconcile_timeout: DEFAULT_TIMEOUT,
            dry_run_strategy: DryRunStrategy::default(),
            prune: true,
            prune_timeout: DEFAULT_TIMEOUT,
            prune_propagation_policy: PropagationPolicy::default(),
            inventory_policy: InventoryPolicy::default(),
            resource_inclusions: Vec::new(),
            resource_exclusions: Vec::new(),
            interval: None,
            namespaces: None,
            cluster_scoped: None,
            max_prune_percent: 30,
            max_prune: 3,
            prune_irreplaceable: false,
            self_heal: SelfHeal::default(),
            suspend: false,
            run_as: None,
            render: Render::default(),
            helm: None,
            allow_unstable_rendering: false,
            conflicts: Conflicts::default(),
            ignore_differences: Vec::new(),
            merge_request_previews: false,
        }
    }
}

impl Gitops {
    /// Returns the key and the problem of the first invalid value.
    pub(super) fn validate(&self) -> Result<(), InvalidValue> {
        const KEY: &str = "gitops.manifest_projects";
        if self.manifest_projects.len() > MAX_PROJECTS {
            return Err(InvalidValue::new(KEY, format!("an agent has at most {MAX_PROJECTS} projects")));
        }
        let mut names = HashSet::new();
        for (index, project) in self.manifest_projects.iter().enumerate() {
            project
                .validate()
                .map_err(|invalid| InvalidValue::new(KEY, format!("manifest_projects[{index}].{invalid}")))?;
            if !names.insert(project.name()) {
                let name = project.name().unwrap_or("the project of this configuration");
                let what = format!(
                    "{name} is listed twice: its objects would belong to both entries; write one entry with all paths, or give one of them \
                     another name"
                );
                return Err(InvalidValue::new(KEY, what));
            }
        }
        Ok(())
    }
}

impl ManifestProject {
    /// Returns the name among the projects of the agent. Without one, and without an id, it is the project with the configuration.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref().or(self.id.as_deref())
    }

    /// Returns the settings as agentk reads them: for agentk, a project is one of its own, whose id is the name. What only kas does is not in
    /// them.
    pub fn into_named(mut self) -> Self {
        self.id = self.name.take().or(self.id);
        self.merge_request_previews = false;
        self
    }

    /// Returns whether cluster-scoped objects may be applied.
    pub fn allows_cluster_scoped(&self) -> bool {
        self.cluster_scoped.unwrap_or_else(|| self.namespaces.is_none())
    }

    /// Returns whether objects of a namespace may be applied.
    pub fn allows_namespace(&self, namespace: &str) -> bool {
        self.namespaces.as_ref().is_none_or(|allowed| allowed.iter().any(|allowed| allowed == namespace))
    }

    /// Returns whether objects of a kind may be applied. An exclusion is stronger than an inclusion.
    pub fn allows_kind(&self, group: &str, kind: &str) -> bool {
        let matches = |filters: &[ResourceFilter]| filters.iter().any(|filter| filter.matches(group, kind));
        (self.resource_inclusions.is_empty() || matches(&self.resource_inclusions))
            && !matches(&self.resource_exclusions)
    }

    /// Returns the paths of the fields of an object that are left to others.
    pub fn ignored_fields(&self, group: &str, kind: &str, name: &str) -> impl Iterator<Item = &FieldPath> {
        let entries =
            self.ignore_differences.iter().filter(move |ignored| ignored.is_about(group, kind, name));
        entries.flat_map(|ignored| &ignored.paths)
    }

    /// Returns the namespace and the name of the service account that the project acts as.
    pub fn service_account(&self) -> Option<(&str, &str)> {
        let account = &self.run_as.as_ref()?.service_account;
        Some(account.split_once('/').unwrap_or((&self.default_namespace, account)))
    }

    /// Returns the same project at another version, or with the manifests of one directory.
    ///
    /// # Errors
    ///
    /// The version or the directory is invalid.
    pub fn at(
        mut self,
        reference: Option<GitRef>,
        directory: Option<&str>,
    ) -> Result<Self, InvalidManifestProject> {
        if reference.is_some() {
            self.r#ref = reference;
        }
        if let Some(directory) = directory {
            let directory = directory.trim_matches('/');
            let inside = |part: &str| !part.is_empty() && part != "..";
            if !directory.split('/').all(inside) {
                return Err(InvalidManifestProject::Directory(directory.to_owned()));
            }
            let directory = directory.split('/').filter(|part| *part != ".").collect::<Vec<_>>().join("/");
            let slash = if directory.is_empty() { "" } else { "/" };
            let glob = format!("{}{slash}**/*.{{yaml,yml,json}}", globset::escape(&directory));
            self.paths = vec![ManifestPath { glob }];
        }
        self.validate()?;
        Ok(self)
    }

    /// Returns the name of the release of a chart in a directory with this name.
    pub fn release_name<'a>(&'a self, directory: &'a str) -> &'a str {
        let own = self.helm.as_ref().and_then(|helm| helm.release_name.as_deref());
        let derived = directory.len() <= MAX_RELEASE_NAME && is_namespace(directory);
        own.unwrap_or(if derived { directory } else { "release" })
    }

    /// Returns matchers for the paths. They match paths without a leading `/`.
    ///
    /// # Errors
    ///
    /// A glob is invalid.
    pub fn matchers(&self) -> Result<Vec<PathMatcher>, InvalidManifestProject> {
        self.paths.iter().map(ManifestPath::matcher).collect()
    }

    /// Returns the first invalid value.
    fn validate(&self) -> Result<(), InvalidManifestProject> {
        if let Some(id) = &self.id
            && (id.is_empty() || id.len() > MAX_ID || id.chars().any(char::is_control))
        {
            return Err(InvalidManifestProject::Id);
        }
        if self.name.as_ref().is_some_and(|name| !is_namespace(name)) {
            return Err(InvalidManifestProject::Name);
        }
        self.r#ref.iter().try_for_each(GitRef::validate)?;
        let namespaces = self.namespaces.as_deref().unwrap_or_default();
        if let Some(name) =
            namespaces.iter().chain([&self.default_namespace]).find(|name| !is_namespace(name))
        {
            return Err(InvalidManifestProject::Namespace(name.clone()));
        }
        if self.namespaces.as_ref().is_some_and(Vec::is_empty) {
            return Err(InvalidManifestProject::NoNamespaces);
        }
        if self.paths.len() > MAX_PATHS {
            return Err(InvalidManifestProject::TooManyPaths);
        }
        self.matchers()?;
        if self.max_prune_percent > 100 {
            return Err(InvalidManifestProject::PrunePercent);
        }
        if let Some((namespace, name)) = self.service_account()
            && (!is_namespace(namespace) || name.is_empty() || !name.split('.').all(is_namespace))
        {
            return Err(InvalidManifestProject::ServiceAccount);
        }
        if let Some(helm) = &self.helm {
            if !matches!(self.render, Render::Auto | Render::Helm) {
                return Err(InvalidManifestProject::HelmUnused);
            }
            helm.validate()?;
        }
        if self.allow_unstable_rendering && !matches!(self.render, Render::Auto | Render::Helm) {
            return Err(InvalidManifestProject::UnstableRenderingUnused);
        }
        let ignored = &self.ignore_differences;
        if ignored.len() > MAX_PATHS || ignored.iter().any(|ignored| ignored.paths.len() > MAX_PATHS) {
            return Err(InvalidManifestProject::TooManyDifferences);
        }
        if ignored.iter().any(|ignored| ignored.kinds.is_empty() || ignored.paths.is_empty()) {
            return Err(InvalidManifestProject::EmptyDifference);
        }
        let filters = self.resource_inclusions.iter().chain(&self.resource_exclusions);
        if filters.clone().any(|filter| filter.api_groups.is_empty() || filter.kinds.is_empty()) {
            Err(InvalidManifestProject::EmptyFilter)
        } else {
            Ok(())
        }
    }
}

fn all_manifests() -> Vec<ManifestPath> {
    vec![ManifestPath { glob: "**/*.{yaml,yml,json}".to_owned() }]
}

/// Deserializes a namespace. An empty one is the default.
fn default_namespace<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(text(deserializer)?.unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned()))
}

/// Deserializes a list of paths. An empty one is the default.
fn default_paths<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<ManifestPath>, D::Error> {
    let paths: Vec<ManifestPath> = null_as_default(deserializer)?;
    Ok(if paths.is_empty() { all_manifests() } else { paths })
}

fn default_prune<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(true))
}

/// A duration that may be null, for `#[serde(with)]`.
mod default_timeout {
    use super::{AnyDuration, DEFAULT_TIMEOUT, Deserialize, Deserializer, Duration, Serializer};

    #[derive(Deserialize)]
    struct Set(#[serde(with = "AnyDuration")] Duration);

    pub(super) fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        AnyDuration::serialize(value, serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        Ok(Option::<Set>::deserialize(deserializer)?.map_or(DEFAULT_TIMEOUT, |Set(value)| value))
    }
}

/// A duration that may be absent, for `#[serde(with)]`.
pub(super) mod optional_duration {
    use super::{AnyDuration, Deserializer, Duration, Serializer};

    #[expect(clippy::ref_option, reason = "the signature is serde's")]
    pub(in super::super) fn serialize<S: Serializer>(
        value: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        AnyDuration::serialize(&value.unwrap_or_default(), serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        AnyDuration::deserialize(deserializer).map(Some)
    }
}
