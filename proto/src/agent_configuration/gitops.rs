//! Section `gitops`: the manifests in Git that agentk applies. The keys are those of GitLab's agent, and some of ours.

mod field_path;
mod run_as;

use std::{collections::HashSet, fmt, time::Duration};

use globset::{GlobBuilder, GlobMatcher};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::{Map, Value};
use settings::AnyDuration;

pub use self::{
    field_path::{FieldPath, PathSegment},
    run_as::RunAs,
};
use super::{
    is_namespace,
    unset::{null_as_default, text},
};

/// The most projects of an agent.
const MAX_PROJECTS: usize = 100;
/// The most globs of a project, which is the limit of GitLab's kas.
const MAX_PATHS: usize = 100;
/// The longest name of a release of helm.
const MAX_RELEASE_NAME: usize = 53;
/// The namespace of namespaced objects that name none.
const DEFAULT_NAMESPACE: &str = "default";
/// The time for objects to become healthy, or to disappear.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(3600);
/// The longest id of a project, in bytes.
const MAX_ID: usize = 255;

/// Section `gitops`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gitops {
    /// The projects whose manifests are applied.
    #[serde(default, deserialize_with = "null_as_default")]
    pub manifest_projects: Vec<ManifestProject>,
}

/// A project whose manifests are applied.
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
}

/// Fields of objects that are left to others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IgnoredFields {
    /// Kinds: `Deployment.apps`, `Deployment` in any API group, or `*` for all.
    pub kinds: Vec<String>,
    /// The names of the objects. Without an entry, all objects of these kinds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// The paths of the fields.
    pub paths: Vec<FieldPath>,
}

/// A version of a repository. Exactly one key is set.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GitRef {
    /// The newest commit of a branch.
    Branch(String),
    /// The commit of a tag.
    Tag(String),
    /// A commit, by its full id.
    Commit(String),
}

/// Files of a project.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestPath {
    /// A pattern with `*`, `?`, `[a-z]`, `{a,b}` and `**`. It begins at the root of the repository.
    pub glob: String,
}

/// Matches the files of a glob.
#[derive(Clone, Debug)]
pub struct PathMatcher {
    glob: GlobMatcher,
    /// The glob names files that begin with `.`.
    names_hidden: bool,
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

/// The policy for objects that exist without this project.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InventoryPolicy {
    /// No object is taken over: a manifest of such an object is an error.
    #[default]
    #[serde(alias = "")]
    MustMatch,
    /// Objects that belong to no other project are taken over.
    AdoptIfNoInventory,
    /// All objects are taken over.
    AdoptAll,
}

/// Kinds of objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResourceFilter {
    /// API groups; `*` is all, and the empty string is the core group.
    pub api_groups: Vec<String>,
    /// Kinds; `*` is all.
    pub kinds: Vec<String>,
}

/// The reaction to a change of an object by somebody else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SelfHeal {
    /// The object is applied again.
    #[default]
    Heal,
    /// The change is reported.
    Report,
    /// Nothing happens before the next commit.
    Ignore,
}

/// The way in which files become manifests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Render {
    /// The directory of each path decides: with a kustomization for kustomize, with a chart for helm, and otherwise its files are
    /// manifests.
    #[default]
    Auto,
    /// All files are manifests.
    Plain,
    /// `kustomize build` of the directory of each path.
    Kustomize,
    /// `helm template` of the directory of each path.
    Helm,
}

/// The name of the release and the values for `helm template`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Helm {
    /// The name of the release. The default is that of the directory of the chart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release_name: Option<String>,
    /// Files with values, from the root of the repository. The last one is the strongest.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub values_files: Vec<String>,
    /// Values, which are stronger than those of files.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub values: Map<String, Value>,
}

/// The reaction to a field that Git has and another manager has set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Conflicts {
    /// The value of Git is written.
    #[default]
    Force,
    /// The object is not written, and the conflict is reported.
    Report,
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
        }
    }
}

impl Gitops {
    /// Returns the key and the problem of the first invalid value.
    pub(super) fn validate(&self) -> Result<(), (String, String)> {
        const KEY: &str = "gitops.manifest_projects";
        let error = |what: String| (KEY.to_owned(), what);
        if self.manifest_projects.len() > MAX_PROJECTS {
            return Err(error(format!("an agent has at most {MAX_PROJECTS} projects")));
        }
        let mut names = HashSet::new();
        for (index, project) in self.manifest_projects.iter().enumerate() {
            project.validate().map_err(|what| error(format!("manifest_projects[{index}].{what}")))?;
            if !names.insert(project.name()) {
                let name = project.name().unwrap_or("the project of this configuration");
                return Err(error(format!(
                    "{name} is listed twice: its objects would belong to both entries; write one entry with all paths, or give one of them \
                     another name"
                )));
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

    /// Returns the settings as agentk reads them: for agentk, a project is one of its own, whose id is the name.
    pub fn into_named(mut self) -> Self {
        self.id = self.name.take().or(self.id);
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
    /// The version or the directory is invalid. The error names it.
    pub fn at(mut self, reference: Option<GitRef>, directory: Option<&str>) -> Result<Self, String> {
        if reference.is_some() {
            self.r#ref = reference;
        }
        if let Some(directory) = directory {
            let directory = directory.trim_matches('/');
            let inside = |part: &str| !part.is_empty() && part != "..";
            if !directory.split('/').all(inside) {
                return Err(format!(
                    "directory: {directory:?} is not a path from the root of the repository"
                ));
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
    pub fn matchers(&self) -> Result<Vec<PathMatcher>, String> {
        self.paths.iter().map(ManifestPath::matcher).collect()
    }

    /// Returns the key and the problem of the first invalid value.
    fn validate(&self) -> Result<(), String> {
        if let Some(id) = &self.id
            && (id.is_empty() || id.len() > MAX_ID || id.chars().any(char::is_control))
        {
            return Err(format!("id must be the path of a project, of at most {MAX_ID} bytes"));
        }
        if self.name.as_ref().is_some_and(|name| !is_namespace(name)) {
            return Err("name must have at most 63 characters: a-z, 0-9, and - in the middle".to_owned());
        }
        self.r#ref.iter().try_for_each(GitRef::validate)?;
        let namespaces = self.namespaces.as_deref().unwrap_or_default();
        if let Some(name) =
            namespaces.iter().chain([&self.default_namespace]).find(|name| !is_namespace(name))
        {
            return Err(format!("namespaces, default_namespace: {name:?} is not a namespace"));
        }
        if self.namespaces.as_ref().is_some_and(Vec::is_empty) {
            return Err("namespaces: name at least one namespace, or remove the key to allow all".to_owned());
        }
        if self.paths.len() > MAX_PATHS {
            return Err(format!("paths must have at most {MAX_PATHS} entries"));
        }
        self.matchers()?;
        if self.max_prune_percent > 100 {
            return Err("max_prune_percent must be from 0 to 100".to_owned());
        }
        if let Some((namespace, name)) = self.service_account()
            && (!is_namespace(namespace) || name.is_empty() || !name.split('.').all(is_namespace))
        {
            return Err("run_as.service_account must be a name, or namespace/name".to_owned());
        }
        if let Some(helm) = &self.helm {
            if !matches!(self.render, Render::Auto | Render::Helm) {
                return Err("helm: it has no effect without render: helm".to_owned());
            }
            helm.validate()?;
        }
        if self.allow_unstable_rendering && !matches!(self.render, Render::Auto | Render::Helm) {
            return Err("allow_unstable_rendering: it has no effect without render: helm".to_owned());
        }
        let ignored = &self.ignore_differences;
        if ignored.len() > MAX_PATHS || ignored.iter().any(|ignored| ignored.paths.len() > MAX_PATHS) {
            return Err(format!(
                "ignore_differences must have at most {MAX_PATHS} entries with {MAX_PATHS} paths each"
            ));
        }
        if ignored.iter().any(|ignored| ignored.kinds.is_empty() || ignored.paths.is_empty()) {
            return Err("ignore_differences: each entry needs kinds and paths; '*' is all kinds".to_owned());
        }
        let filters = self.resource_inclusions.iter().chain(&self.resource_exclusions);
        if filters.clone().any(|filter| filter.api_groups.is_empty() || filter.kinds.is_empty()) {
            Err("resource_inclusions, resource_exclusions: each entry needs api_groups and kinds; '*' is all"
                .to_owned())
        } else {
            Ok(())
        }
    }
}

impl Helm {
    fn validate(&self) -> Result<(), String> {
        let is_name = |name: &String| name.len() <= MAX_RELEASE_NAME && is_namespace(name);
        if self.release_name.as_ref().is_some_and(|name| !is_name(name)) {
            return Err(format!(
                "helm.release_name must have at most {MAX_RELEASE_NAME} characters: a-z, 0-9, and - in the middle"
            ));
        }
        if self.values_files.len() > MAX_PATHS {
            return Err(format!("helm.values_files must have at most {MAX_PATHS} entries"));
        }
        let inside = |part: &str| !matches!(part, "" | "." | "..");
        match self.values_files.iter().find(|path| !path.split('/').all(inside)) {
            Some(path) => {
                Err(format!("helm.values_files: {path:?} is not a path from the root of the repository"))
            }
            None => Ok(()),
        }
    }
}

impl GitRef {
    fn validate(&self) -> Result<(), String> {
        match self {
            Self::Commit(id) => {
                let digits = id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
                (digits && matches!(id.len(), 40 | 64)).then_some(()).ok_or_else(|| {
                    "ref.commit must be the full id of a commit: 40 or 64 hexadecimal digits".to_owned()
                })
            }
            Self::Branch(name) | Self::Tag(name) => is_reference_name(name)
                .then_some(())
                .ok_or_else(|| format!("ref: {name:?} is not the name of a branch or tag")),
        }
    }
}

impl fmt::Display for GitRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Branch(name) => write!(f, "branch {name}"),
            Self::Tag(name) => write!(f, "tag {name}"),
            Self::Commit(id) => write!(f, "commit {id}"),
        }
    }
}

impl ManifestPath {
    /// Returns a matcher. `*` matches no `/`, as in GitLab's kas.
    fn matcher(&self) -> Result<PathMatcher, String> {
        let glob = self.glob.strip_prefix("./").unwrap_or(&self.glob).trim_start_matches('/');
        if glob.is_empty() {
            return Err("paths: a glob must not be empty".to_owned());
        }
        let built = GlobBuilder::new(glob).literal_separator(true).empty_alternates(true).build();
        let glob_matcher = built.map_err(|error| format!("paths: {error}"))?.compile_matcher();
        let names_hidden = file_name(glob).starts_with('.');
        Ok(PathMatcher { glob: glob_matcher, names_hidden })
    }
}

impl PathMatcher {
    /// Returns whether a path is one of these files. Files that begin with `.`, such as `.gitlab-ci.yml`, are for programs, unless the glob
    /// names them.
    pub fn is_match(&self, path: &str) -> bool {
        (self.names_hidden || !file_name(path).starts_with('.')) && self.glob.is_match(path)
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

impl IgnoredFields {
    fn is_about(&self, group: &str, kind: &str, name: &str) -> bool {
        (self.names.is_empty() || self.names.iter().any(|entry| entry == name))
            && self.kinds.iter().any(|entry| match entry.split_once('.') {
                Some((only, of)) => (only, of) == (kind, group),
                None => entry == "*" || entry == kind,
            })
    }
}

impl ResourceFilter {
    fn matches(&self, group: &str, kind: &str) -> bool {
        let has = |list: &[String], value: &str| list.iter().any(|entry| entry == "*" || entry == value);
        has(&self.api_groups, group) && has(&self.kinds, kind)
    }
}

impl Serialize for SelfHeal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Heal => serializer.serialize_bool(true),
            Self::Report => serializer.serialize_str("report"),
            Self::Ignore => serializer.serialize_bool(false),
        }
    }
}

impl<'de> Deserialize<'de> for SelfHeal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = SelfHeal;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, report or false")
            }

            fn visit_bool<E: de::Error>(self, heals: bool) -> Result<SelfHeal, E> {
                Ok(if heals { SelfHeal::Heal } else { SelfHeal::Ignore })
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<SelfHeal, E> {
                match word {
                    "report" => Ok(SelfHeal::Report),
                    _ => Err(E::invalid_value(de::Unexpected::Str(word), &self)),
                }
            }
        }

        deserializer.deserialize_any(Visitor)
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

/// Returns whether a text is the name of a branch or a tag, without `refs/heads/` (`git check-ref-format`).
fn is_reference_name(name: &str) -> bool {
    let special = |c: char| c.is_control() || " ~^:?*[\\".contains(c);
    let segment = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock");
    !name.starts_with('-')
        && !name.ends_with('.')
        && name.len() <= MAX_ID
        && !name.contains("..")
        && !name.contains("@{")
        && !name.contains(special)
        && name.split('/').all(segment)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ManifestProject, String> {
        let gitops: Gitops =
            serde_saphyr::from_str(&format!("manifest_projects: [{text}]")).map_err(|e| e.to_string())?;
        gitops.validate().map_err(|(key, what)| format!("{key}: {what}"))?;
        Ok(gitops.manifest_projects.into_iter().next().unwrap())
    }

    #[test]
    fn every_key_of_gitlab_has_its_default() {
        let project = parse("{}").unwrap();
        assert_eq!(project, ManifestProject::default());
        assert_eq!(project.default_namespace, "default");
        assert_eq!(project.paths[0].glob, "**/*.{yaml,yml,json}");
        assert_eq!(
            (project.reconcile_timeout, project.prune_timeout),
            (Duration::from_secs(3600), Duration::from_secs(3600))
        );
        assert_eq!(project.dry_run_strategy, DryRunStrategy::None);
        assert_eq!(project.prune_propagation_policy, PropagationPolicy::Foreground);
        assert_eq!(project.inventory_policy, InventoryPolicy::MustMatch);
        assert!(project.prune);
    }

    #[test]
    fn empty_value_is_the_default() {
        for keys in [
            "paths:",
            "paths: []",
            "default_namespace:",
            "default_namespace: ''",
            "dry_run_strategy:",
            "dry_run_strategy: ''",
            "prune_propagation_policy: ''",
            "inventory_policy: ''",
            "{prune_propagation_policy: , inventory_policy: , prune: , reconcile_timeout: , prune_timeout: , ref: , id: }",
        ] {
            let keys = if keys.starts_with('{') { keys.to_owned() } else { format!("{{{keys}}}") };
            assert_eq!(parse(&keys), Ok(ManifestProject::default()), "{keys}");
        }
        assert_eq!(serde_saphyr::from_str::<Gitops>("manifest_projects:").unwrap(), Gitops::default());
    }

    #[test]
    fn every_key_is_parsed_and_survives_json() {
        let project = parse(
            "{ignore_differences: [{kinds: [Deployment.apps], paths: [spec.replicas, 'spec.a[*].b']}], \
             id: group/app, name: app, ref: {tag: v1}, default_namespace: shop, paths: [{glob: '/prod/**/*.yaml'}], \
             reconcile_timeout: 600s, dry_run_strategy: server, prune: false, prune_timeout: 60s, \
             prune_propagation_policy: orphan, inventory_policy: adopt_all, \
             resource_inclusions: [{api_groups: [apps], kinds: ['*']}], \
             resource_exclusions: [{api_groups: ['*'], kinds: [Secret]}], interval: 1m, namespaces: [shop], \
             cluster_scoped: true, max_prune_percent: 10, max_prune: 1, prune_irreplaceable: true, self_heal: report, suspend: true, \
             run_as: {service_account: deployer}, render: helm, conflicts: report, allow_unstable_rendering: true, \
             helm: {release_name: shop, values_files: [a/b.yaml], values: {replicas: 2}}}",
        )
        .unwrap();
        assert_eq!(project.r#ref, Some(GitRef::Tag("v1".to_owned())));
        assert_eq!(project.service_account(), Some(("shop", "deployer")));
        assert_eq!(project.self_heal, SelfHeal::Report);
        assert!(
            project.allows_cluster_scoped()
                && project.allows_namespace("shop")
                && !project.allows_namespace("x")
        );
        assert!(project.allows_kind("apps", "Deployment") && !project.allows_kind("", "Secret"));
        let json = serde_json::to_value(&project).unwrap();
        assert_eq!(serde_json::from_value::<ManifestProject>(json).unwrap(), project);
    }

    #[test]
    fn invalid_key_is_refused_by_name() {
        for (text, expected) in [
            ("{ids: a}", "unknown field `ids`"),
            ("{id: ''}", "id must be the path"),
            ("{ref: {branch: a, tag: b}}", ""),
            ("{ref: {commit: abc}}", "ref.commit must be the full id"),
            ("{ref: {branch: '-x'}}", "not the name of a branch"),
            ("{ref: {branch: 'a..b'}}", "not the name of a branch"),
            ("{default_namespace: A}", "\"A\" is not a namespace"),
            ("{namespaces: []}", "name at least one namespace"),
            ("{namespaces: ['*']}", "\"*\" is not a namespace"),
            ("{paths: [{glob: ''}]}", "must not be empty"),
            ("{paths: [{glob: 'a{b'}]}", "paths: error parsing glob"),
            ("{max_prune_percent: 101}", "max_prune_percent"),
            ("{self_heal: perhaps}", "true, report or false"),
            ("{run_as: {service_account: a/b/c}}", "service_account must be"),
            ("{resource_inclusions: [{api_groups: [], kinds: [a]}]}", "each entry needs"),
            ("{ignore_differences: [{kinds: [a], paths: [/spec/a]}]}", "\"/spec/a\" is not a path such as"),
            (
                "{ignore_differences: [{kinds: [a], paths: [metadata.name]}]}",
                "only single labels and annotations",
            ),
            (
                "{ignore_differences: [{kinds: [], paths: [a]}]}",
                "ignore_differences: each entry needs kinds and paths",
            ),
            ("{ignore_differences: [{paths: [a]}]}", "missing field `kinds`"),
            ("{id: a}, {id: a}", "a is listed twice"),
            ("{}, {}", "is listed twice"),
            ("{id: a}, {id: b, name: a}", "a is listed twice"),
            ("{id: a, name: x}, {id: a, name: x}", "x is listed twice"),
            ("{name: a/b}", "name must have"),
            ("{reconcile_timeout: 10}", "duration"),
            ("{render: kustomize, helm: {}}", "helm: it has no effect"),
            ("{render: plain, allow_unstable_rendering: true}", "allow_unstable_rendering: it has no effect"),
            ("{helm: {release_name: A}}", "helm.release_name must have"),
            ("{helm: {values_files: [../x]}}", "helm.values_files: \"../x\" is not a path"),
            ("{helm: {values_files: [/x]}}", "helm.values_files: \"/x\" is not a path"),
            ("{helm: {set: {}}}", "unknown field `set`"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text} gave {error}");
        }
    }

    #[test]
    fn service_account_may_be_an_object() {
        let of = |text: &str| {
            let project = parse(&format!("{{default_namespace: shop, run_as: {{service_account: {text}}}}}"));
            project.map(|project| {
                project.service_account().map(|(namespace, name)| format!("{namespace}/{name}")).unwrap()
            })
        };
        for (text, expected) in [
            ("deployer", "shop/deployer"),
            ("ops/deployer", "ops/deployer"),
            ("{name: deployer}", "shop/deployer"),
            ("{name: deployer, namespace: ops}", "ops/deployer"),
        ] {
            assert_eq!(of(text).as_deref(), Ok(expected), "{text}");
        }
        assert!(of("{name: deployer, uid: 1}").unwrap_err().contains("uid"));
        assert!(of("1").unwrap_err().contains("{name, namespace}"));
    }

    #[test]
    fn projects_of_one_repository_have_names() {
        let project = parse("{id: group/app, name: app-prod}, {id: group/app}, {name: own}, {}").unwrap();
        assert_eq!(project.name(), Some("app-prod"));
        let named = project.into_named();
        assert_eq!((named.name.as_deref(), named.id.as_deref()), (None, Some("app-prod")));
        assert_eq!(parse("{id: group/app}").unwrap().into_named().id.as_deref(), Some("group/app"));
    }

    #[test]
    fn ignored_fields_are_those_of_a_kind() {
        let project = parse(
            "{ignore_differences: [{kinds: [Deployment], paths: [a]}, {kinds: [Job.batch, Role.example.com], paths: [b]}, \
             {kinds: ['*'], paths: [c]}, {kinds: [Secret.], names: [web, pw], paths: [d]}]}",
        )
        .unwrap();
        let of = |group: &str, kind: &str| {
            project.ignored_fields(group, kind, "web").map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of("apps", "Deployment"), "a c");
        assert_eq!(of("batch", "Job"), "b c");
        assert_eq!((of("", "Secret"), of("example.com", "Secret")), ("c d".to_owned(), "c".to_owned()));
        assert_eq!(project.ignored_fields("", "Secret", "other").count(), 1);
        assert_eq!((of("volcano.sh", "Job"), of("example.com", "Role")), ("c".to_owned(), "b c".to_owned()));
    }

    #[test]
    fn cluster_scoped_objects_are_refused_with_a_list_of_namespaces() {
        assert!(parse("{}").unwrap().allows_cluster_scoped());
        assert!(!parse("{namespaces: [a]}").unwrap().allows_cluster_scoped());
    }

    #[test]
    fn project_is_looked_at_in_another_directory() {
        let at = |directory: &str| {
            parse("{id: a}").unwrap().at(Some(GitRef::Branch("x".to_owned())), Some(directory))
        };
        for (directory, path, expected) in [
            ("prod", "prod/a/b.yaml", true),
            ("prod/", "staging/b.yaml", false),
            ("/prod/./a", "prod/a/b.json", true),
            ("./[a]*", "[a]*/b.yaml", true),
            ("[a]*", "a/b.yaml", false),
            (".", "any/where.yml", true),
        ] {
            let project = at(directory).unwrap();
            assert_eq!(project.r#ref, Some(GitRef::Branch("x".to_owned())));
            assert_eq!(project.matchers().unwrap()[0].is_match(path), expected, "{directory} {path}");
        }
        for wrong in ["", "/", "a//b", "../x", "a/../b"] {
            assert!(at(wrong).unwrap_err().contains("not a path from the root"), "{wrong}");
        }
        let error = parse("{id: a}").unwrap().at(Some(GitRef::Commit("abc".to_owned())), None).unwrap_err();
        assert!(error.contains("ref.commit"), "{error}");
    }

    #[test]
    fn glob_matches_as_doublestar_does() {
        for (glob, path, expected) in [
            ("**/*.{yaml,yml,json}", "a.yaml", true),
            ("**/*.{yaml,yml,json}", "a/b/c.json", true),
            ("**/*.{yaml,yml,json}", "a/b/c.txt", false),
            ("/manifests/*.yaml", "manifests/a.yaml", true),
            ("/manifests/*.yaml", "manifests/sub/a.yaml", false),
            ("a/**/b.yaml", "a/b.yaml", true),
            ("file.yaml", "dir/file.yaml", false),
            ("./deploy/**/*.yaml", "deploy/kube/a.yaml", true),
            ("./a.yaml", "a.yaml", true),
            ("**/*.{yaml,yml,json}", ".gitlab-ci.yml", false),
            ("**/*.{yaml,yml,json}", "a/.b.yaml", false),
            ("**/.*.yaml", "a/.b.yaml", true),
            (".hidden/a.yaml", ".hidden/a.yaml", true),
        ] {
            let project = parse(&format!("{{paths: [{{glob: '{glob}'}}]}}")).unwrap();
            let matches = project.matchers().unwrap()[0].is_match(path);
            assert_eq!(matches, expected, "{glob} {path}");
        }
    }
}
