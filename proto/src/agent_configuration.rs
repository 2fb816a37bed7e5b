//! The configuration file of an agent, `.gitlab/agents/<name>/config.yaml`, and the request that carries it to agentk.
//!
//! The keys are those of GitLab's agent, and `scope`. Sections of features that do not exist here are accepted with any keys, so
//! that a file of GitLab works unchanged, and [`AgentConfiguration::warnings`] names them. All other unknown keys are errors.

mod access;
pub mod alerts;
pub mod environments;
mod gitlab_syntax;
pub mod gitops;
pub mod graph;
mod invalid;
pub mod notify;
mod unset;
mod update;

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::invalid::{InvalidScope, InvalidValue};
pub use self::{
    access::{
        CiAccess, CiAccessAs, CiAuthorization, Empty, Extra, Impersonate, MAX_SERVICES, ResourceManagement,
        Role, UserAccess, UserAccessAs, UserAuthorization, UserServiceRight, check_services_of_jobs,
    },
    update::{
        AppliedKeys, CONFIGURATION_PATH, ConfigurationResponse, ConfigurationUpdate, MAX_UPDATE,
        ProvisionSettings, TemplateFile,
    },
};
use self::{gitlab_syntax::GitLabSyntax, unset::null_as_default};
use settings::{Budget, ConfigError, DuplicateKeyPolicy, KeyLocations, Options, options, parse_with_options};

/// The default limit of a file, in bytes, which is that of GitLab's kas.
pub const DEFAULT_MAX_BYTES: usize = 128 << 10;

/// The most namespaces of a scope.
const MAX_NAMESPACES: usize = 1000;

/// The configuration of an agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentConfiguration {
    /// The observability of agentk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observability: Option<Observability>,
    /// The part of the cluster that requests may reach.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
    /// The CI jobs that may use the agent. GitLab evaluates it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ci_access: Option<CiAccess>,
    /// The users who may use the agent. GitLab evaluates it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_access: Option<UserAccess>,
    /// The manifests in Git that agentk applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gitops: Option<gitops::Gitops>,
    /// The environments whose objects are in the cluster.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub environments: Vec<environments::NamedEnvironment>,
    /// The graph of what runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graph: Option<graph::GraphSection>,
    /// The events of projects that matter to the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notify: Option<notify::Notify>,
    /// The sources of Flux, which reconcile when their repository changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flux: Option<notify::Flux>,
    /// The traffic and the violations that agentk reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alerts: Option<alerts::AlertsSection>,
    /// The events of agentk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<EventsSection>,
    /// A feature of GitLab that does not exist here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_scanning: Option<Value>,
    /// A feature of GitLab that does not exist here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_development: Option<Value>,
    /// A feature of GitLab that does not exist here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<Value>,
    /// A sentence for each part of the file that GitLab's parser drops.
    #[serde(skip)]
    dropped: Vec<String>,
}

/// Section `events`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EventsSection {
    /// agentk loads the graph all the time, to report when the health of an environment changes.
    pub environment_health: bool,
}

/// Section `observability`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Observability {
    /// The log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logging: Option<Logging>,
    /// A feature of GitLab that does not exist here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub google_profiler: Option<Value>,
}

/// Section `observability.logging`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Logging {
    /// The level of agentk's log. Without it, that of agentk's command line applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<LogLevel>,
    /// The level of gRPC, which agentk does not use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc_level: Option<LogLevel>,
}

/// A level of the log, by its word or its number in GitLab's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Events of interest for operators.
    #[serde(alias = "0")]
    Info,
    /// Details for the search of a defect.
    #[serde(alias = "1")]
    Debug,
    /// Problems that agentk handles.
    #[serde(alias = "2")]
    Warn,
    /// Problems that agentk does not handle.
    #[serde(alias = "3")]
    Error,
}

/// Section `scope`: the part of the cluster that requests may reach. agentk enforces it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scope {
    /// The namespaces. Requests for other namespaces and for cluster-scoped objects are refused, but for reviews of the caller's own
    /// name and rights.
    pub namespaces: Vec<String>,
}

impl AgentConfiguration {
    /// Parses the text of a file. An empty file is an empty configuration. `file` is for errors.
    ///
    /// # Errors
    ///
    /// The text is not YAML, has an unknown key or an invalid value, or expands to too many nodes. The error names file, line and
    /// key.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        let syntax = GitLabSyntax::new(text);
        let parsed: Result<Option<Self>, _> = parse_with_options(file, syntax.text, parser_options());
        let keys = KeyLocations::parse(syntax.text);
        let checked = syntax.check(file, &keys);
        let (parsed, dropped) = match (parsed, checked) {
            (Ok(parsed), Ok(dropped)) => (parsed.unwrap_or_default(), dropped),
            (parsed, checked) => {
                let errors = parsed.err().into_iter().chain(checked.err());
                return Err(ConfigError::several(errors).expect("one of both has failed"));
            }
        };
        let about = |InvalidValue { key, what }| ConfigError::about(file, &keys, key, what);
        ConfigError::check_all(parsed.validate().map(|result| result.map_err(about)))?;
        Ok(Self { dropped, ..parsed })
    }

    /// Returns the configuration of a file as its text has it, for GitLab: without the defaults of the other keys.
    pub fn as_written(&self, text: &str) -> Value {
        let mut value = serde_json::to_value(self).expect("serializable");
        gitlab_syntax::remove_defaults(&mut value, GitLabSyntax::new(text).text);
        value
    }

    /// Returns the key and the problem of the first invalid value of each section.
    fn validate(&self) -> [Result<(), InvalidValue>; 9] {
        let scope = self.scope.iter().try_for_each(Scope::validate);
        [
            scope.map_err(|invalid| InvalidValue::new("scope.namespaces", invalid)),
            self.gitops.iter().try_for_each(gitops::Gitops::validate),
            environments::validate(&self.environments),
            self.graph.iter().try_for_each(graph::GraphSection::validate),
            self.notify.iter().try_for_each(notify::Notify::validate),
            self.flux.iter().try_for_each(notify::Flux::validate),
            self.alerts.iter().try_for_each(alerts::AlertsSection::validate),
            self.ci_access.iter().try_for_each(CiAccess::validate),
            self.user_access.iter().try_for_each(UserAccess::validate),
        ]
    }

    /// Returns a sentence for each key that is accepted and has no effect.
    pub fn warnings(&self) -> Vec<String> {
        let observability = self.observability.as_ref();
        let logging = observability.and_then(|section| section.logging.as_ref());
        let absent = [
            ("container_scanning", self.container_scanning.is_some()),
            ("remote_development", self.remote_development.is_some()),
            ("config", self.config.is_some()),
            ("observability.google_profiler", observability.is_some_and(|it| it.google_profiler.is_some())),
        ];
        let absent = absent.into_iter().filter(|(_, is_set)| *is_set);
        let absent = absent.map(|(key, _)| {
            format!("{key} has no effect in the cluster: kas sends this feature of GitLab to no agentk, also not to that of GitLab")
        });
        let grpc_level = logging.is_some_and(|logging| logging.grpc_level.is_some());
        let grpc_level = grpc_level.then(|| {
            "observability.logging.grpc_level has an effect with GitLab's agentk only: agentk of kas does not use gRPC".to_owned()
        });
        let flux = self.flux.as_ref().and_then(notify::Flux::warning);
        self.dropped.iter().cloned().chain(absent).chain(grpc_level).chain(flux).collect()
    }

    /// Returns the keys of the webhooks, which the policy of agentk may refuse.
    pub fn keys_of_webhooks(&self) -> Vec<String> {
        let projects = self.notify.iter().flat_map(|notify| notify.projects.iter().enumerate());
        let webhooks = projects.flat_map(|(project, entry)| {
            let count = entry.webhooks.len();
            (0..count).map(move |index| notify::webhook_key(project, index))
        });
        let flux = self.flux.as_ref().and_then(notify::Flux::receiver);
        webhooks.chain(flux.map(|_| notify::RECEIVER_KEY.to_owned())).collect()
    }

    /// Returns the level of agentk's log.
    pub fn log_level(&self) -> Option<LogLevel> {
        self.observability.as_ref()?.logging.as_ref()?.level
    }
}

impl Scope {
    /// Returns a scope of these namespaces.
    ///
    /// # Errors
    ///
    /// There is no namespace, there are more than 1000, or one is not the name of a namespace.
    pub fn new(namespaces: Vec<String>) -> Result<Self, InvalidScope> {
        let scope = Self { namespaces };
        scope.validate().map(|()| scope)
    }

    /// Returns the problem of the section, if it has one.
    fn validate(&self) -> Result<(), InvalidScope> {
        if self.namespaces.is_empty() {
            return Err(InvalidScope::Empty);
        }
        if self.namespaces.len() > MAX_NAMESPACES {
            return Err(InvalidScope::TooManyNamespaces);
        }
        match self.namespaces.iter().find(|name| !is_namespace(name)) {
            Some(name) => Err(InvalidScope::Namespace(name.clone())),
            None => Ok(()),
        }
    }
}

impl LogLevel {
    /// Returns the word in a file and in a filter of the log.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

/// Returns whether a text is the name of a namespace: a label of RFC 1123.
fn is_namespace(name: &str) -> bool {
    let inner = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    inner && (1..=63).contains(&name.len()) && !name.starts_with('-') && !name.ends_with('-')
}

/// Returns the options of the parser, which takes the last one of several keys, as GitLab's does.
fn parser_options() -> Options {
    options! { budget: Some(budget()), duplicate_keys: DuplicateKeyPolicy::LastWins }
}

/// Returns the limits of the parser: the nodes that fit into the largest file, and few aliases.
fn budget() -> Budget {
    let mut budget = Budget::default();
    budget.max_nodes = 50_000;
    budget.max_events = 200_000;
    budget.max_total_scalar_bytes = 1 << 20;
    budget.max_aliases = 1000;
    budget
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<AgentConfiguration, String> {
        AgentConfiguration::parse(Path::new("config.yaml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn empty_file_is_an_empty_configuration() {
        for text in ["", "\n", "# nothing yet\n", "---\n", "{}"] {
            assert_eq!(parse(text).unwrap(), AgentConfiguration::default(), "{text:?}");
        }
    }

    #[test]
    fn keys_of_gitlab_and_the_scope_are_parsed() {
        let text = "
observability: {logging: {level: debug, grpc_level: warn}}
scope: {namespaces: [shop, shop-staging]}
ci_access:
  projects:
  - id: group/shop
    default_namespace: shop
    environments: [production, 'review/*']
    protected_branches_only: true
    resource_management: {enabled: true}
    access_as: {impersonate: {username: ci, groups: [jobs], uid: '7', extra: [{key: a, val: [b]}]}}
  - {id: group/other, access_as: {ci_job: {}}, services: [events, {service: gitops, verbs: [sync]}]}
  groups: [{id: group, access_as: {agent: {}}}]
  instance: {}
user_access:
  access_as: {user: {}}
  projects: [{id: group/shop}]
  groups: [{id: group}]
  services: [{service: gitops, verbs: [read], minimum_role: owner}, {service: graph}, {service: prometheus, minimum_role: owner},
             {service: prometheus, labels: {namespace: [shop]}}, {service: prometheus.thanos, labels: {namespace: [shop]}}]
gitops: {manifest_projects: [{id: group/shop, paths: [{glob: '/**/*.yaml'}]}]}
container_scanning: {cadence: '0 * * * *'}
flux: {webhook_receiver_url: 'http://webhook-receiver.flux-system'}
remote_development: {enabled: true, partial_sync_interval: 10s}
";
        let parsed = parse(text).unwrap();
        assert_eq!(parsed.log_level(), Some(LogLevel::Debug));
        assert_eq!(parsed.scope.as_ref().unwrap().namespaces, ["shop", "shop-staging"]);
        let ci = parsed.ci_access.as_ref().unwrap();
        assert!(
            matches!(&ci.projects[0].access_as, Some(CiAccessAs::Impersonate(who)) if who.username == "ci")
        );
        let warnings = parsed.warnings();
        let named = |key: &str| warnings.iter().any(|warning| warning.starts_with(key));
        for key in ["container_scanning", "remote_development", "observability.logging.grpc_level"] {
            assert!(named(key), "{key} is not in {warnings:?}");
        }
        assert_eq!(warnings.len(), 3);

        // GitLab receives the file as JSON.
        let json = serde_json::to_value(&parsed).unwrap();
        assert_eq!(json["ci_access"]["projects"][1]["access_as"]["ci_job"], serde_json::json!({}));
        assert_eq!(
            json["user_access"]["services"][0],
            serde_json::json!({"service": "gitops", "verbs": ["read"], "minimum_role": "owner"})
        );
        assert_eq!(
            json["user_access"]["services"][3],
            serde_json::json!({"service": "prometheus", "verbs": ["use"], "labels": {"namespace": ["shop"]}})
        );
        assert_eq!(json["remote_development"]["partial_sync_interval"], "10s");
        assert_eq!(serde_json::from_value::<AgentConfiguration>(json).unwrap(), parsed);
    }

    #[test]
    fn example_has_every_section_with_an_effect() {
        let parsed = parse(include_str!("../../deploy/agent-configuration.example.yaml")).unwrap();
        assert!(parsed.scope.is_some() && parsed.ci_access.is_some() && parsed.user_access.is_some());
        assert_eq!(parsed.graph.as_ref().unwrap().limits, graph::GraphLimits::default());
        assert_eq!(parsed.alerts.as_ref().unwrap().quiet_period.as_secs(), 600);
        assert!(parsed.events.is_some_and(|events| events.environment_health));
        assert_eq!((parsed.log_level(), parsed.warnings()), (Some(LogLevel::Info), Vec::<String>::new()));
    }

    #[test]
    fn invalid_file_is_refused_with_line_and_key() {
        for (text, expected) in [
            (
                "observability:\n  loging: {}\n",
                "config.yaml:2:3: observability.loging: unknown field `loging`",
            ),
            ("observability: {logging: {level: loud}}", "observability.logging.level: "),
            ("scope: {}", "the key namespaces is missing"),
            ("scope:\n  namespaces: []\n", "config.yaml:2:3: scope.namespaces: name at least one namespace"),
            ("scope: {namespaces: ['*']}", "\"*\" is not a namespace"),
            ("scope: {namespaces: [UPPER]}", "\"UPPER\" is not a namespace"),
            ("scope: {namespace: [a]}", "unknown field `namespace`"),
            ("ci_access: {projects: [{id: ''}]}", "ci_access.projects: projects[0].id must not be empty"),
            ("ci_access: {projects: [{name: a}]}", "unknown field `name`"),
            ("ci_access: {projects: [{id: a, access_as: {root: {}}}]}", "unknown variant"),
            (
                "ci_access: {groups: [{id: a, access_as: {impersonate: {username: ''}}}]}",
                "username must not be empty",
            ),
            (
                "ci_access: {groups: [{id: a, access_as: {impersonate: {username: u, groups: [' a']}}}]}",
                "groups must not be empty, begin or end with a blank",
            ),
            (
                "ci_access: {groups: [{id: a, access_as: {impersonate: {username: u, extra: [{key: k, val: []}]}}}]}",
                "extra[0].val must have a value",
            ),
            (
                "ci_access:\n  projects:\n  - id: a\n    services: [{service: graph, verbs: [sync]}]\n",
                "config.yaml:4:16: ci_access.projects[0].services[0]: the service graph has no verb sync; it has read",
            ),
            (
                "ci_access: {groups: [{id: a, services: [control]}]}",
                "the service control is reserved for kas",
            ),
            ("user_access: {services: [{service: manifests}]}", "the service manifests is reserved for kas"),
            ("user_access: {services: [graph]}", "user_access.services"),
            (
                "ci_access: {groups: [{id: a, services: [prometheus, {service: prometheus, labels: {ns: [a]}}]}]}",
                "services: the service prometheus has labels, and is there twice for the same callers",
            ),
            (
                "user_access: {services: [{service: prometheus, labels: {ns: [a]}}, {service: prometheus, minimum_role: developer}]}",
                "the service prometheus has labels, and is there twice for the same callers",
            ),
            (
                "user_access: {services: [{service: graph, labels: {ns: [a]}}]}",
                "the service graph has no labels",
            ),
            (
                "ci_access:\n  projects:\n  - id: a\n    services:\n    - service: prometheus\n      labels:\n",
                "a value is required",
            ),
            (
                "ci_access: {groups: [{id: a, services: [{service: gitops, verbs: null}]}]}",
                "a value is required",
            ),
            ("user_access:\n  services:\n  - service: prometheus\n    labels:\n", "a value is required"),
            ("user_access: {services: [{service: prometheus, labels: null}]}", "a value is required"),
            ("user_access: {services: [{service: gitops, verbs: null}]}", "a value is required"),
            (
                "user_access: {services: [{service: kubernetes, minimum_role: owner}]}",
                "the service kubernetes is for everybody whom user_access admits",
            ),
            ("user_access: {services: [{service: gitops, minimum_role: guest}]}", "unknown variant `guest`"),
            ("user_access: {access_as: {ci_job: {}}}", "unknown variant"),
            ("user_access: {projects: [{id: a, default_namespace: b}]}", "unknown field `default_namespace`"),
            ("- a\n- b\n", "it must be a mapping"),
            ("a: [", "config.yaml:1"),
            ("scope: {namespaces: [a]}\nscope: {namespaces: [b]}", "is set twice"),
            ("policy: {}", "config.yaml:1:1: policy: unknown field `policy`"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}\n gave {error}");
        }
    }

    #[test]
    fn expansion_of_aliases_is_limited() {
        let mut bomb = "flux:\n  a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..12 {
            let inner = format!("*a{}", level - 1);
            bomb += &format!("  a{level}: &a{level} [{}]\n", vec![inner; 9].join(", "));
        }
        let error = parse(&bomb).unwrap_err();
        assert!(error.starts_with("config.yaml"), "{error}");

        let long = format!("flux: {{a: &a {}, b: [{}]}}", "x".repeat(10_000), vec!["*a"; 100_000].join(","));
        assert!(parse(&long).is_err());
        assert!(parse(&format!("flux: {}{}", "[".repeat(100_000), "]".repeat(100_000))).is_err());
        assert!(parse(&format!("flux: [{}]", "a,".repeat(500_000))).is_err(), "a megabyte of nodes");
    }
}
