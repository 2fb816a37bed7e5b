//! Sections `notify` and `flux`: what happens in the cluster when a project changes.

use std::{collections::HashSet, time::Duration};

use super::{
    InvalidValue,
    gitops::optional_duration,
    unset::{null_as_default, text},
};
use crate::notify::{MAX_PROJECTS, is_project_path};
use serde::{Deserialize, Serialize};

/// The most webhooks of one project.
const MAX_WEBHOOKS: usize = 16;
/// The longest URL of a webhook, in bytes.
const MAX_URL: usize = 2048;
/// The shortest period of looks at a repository.
const MIN_POLL: Duration = Duration::from_secs(10);

/// Section `notify`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Notify {
    /// The projects whose changes matter to the cluster.
    #[serde(default, deserialize_with = "null_as_default")]
    pub projects: Vec<NotifiedProject>,
}

/// A project, and what happens in the cluster when it changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NotifiedProject {
    /// The full path of the project.
    pub id: String,
    /// The full names of the branches and tags whose changes matter, such as `refs/heads/main`. All do if there is none. A name may end
    /// with `*`.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub refs: Vec<String>,
    /// The time between two looks of kas at the default branch of the repository. Without it, only events of GitLab and of programs
    /// count.
    #[serde(default, with = "optional_duration", skip_serializing_if = "Option::is_none")]
    pub poll: Option<Duration>,
    /// The URLs in the cluster to which agentk sends the event.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub webhooks: Vec<Webhook>,
    /// agentk keeps an object `Repository` with the latest commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<RepositoryTarget>,
    /// agentk makes Argo CD look at the Applications with this repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argocd: Option<ArgoCd>,
}

/// A URL to which agentk sends events. The policy file of agentk must list it, with the key for the signature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Webhook {
    /// The URL: `http` or `https`, without a user, a query or a fragment.
    pub url: String,
}

/// The namespace of the objects `Repository` of a project.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RepositoryTarget {
    /// The namespace.
    pub namespace: String,
}

/// The Applications of Argo CD.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArgoCd {
    /// Their namespace.
    #[serde(default = "argocd_namespace")]
    pub namespace: String,
}

/// Section `flux`: agentk makes Flux reconcile the sources whose repository changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flux {
    /// False: Flux is left alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// The address of Flux' notification controller, as GitLab's agent calls it. With it, agentk keeps a `Receiver` for each
    /// `GitRepository`, and calls it. Without it, agentk annotates the sources. GitLab's agent has a path of the API server's proxy here,
    /// too; agentk annotates the sources then, which needs no proxy.
    #[serde(default, deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    pub webhook_receiver_url: Option<String>,
}

/// The key of the URL of Flux' notification controller.
pub const RECEIVER_KEY: &str = "flux.webhook_receiver_url";

/// Returns the key of the URL of a webhook, by the indexes of its project and of itself.
pub fn webhook_key(project: usize, webhook: usize) -> String {
    format!("notify.projects[{project}].webhooks[{webhook}].url")
}

fn argocd_namespace() -> String {
    "argocd".to_owned()
}

impl Notify {
    /// Returns the key and the problem of the first invalid value.
    pub fn validate(&self) -> Result<(), InvalidValue> {
        if self.projects.len() > MAX_PROJECTS {
            let what = format!("an agent has at most {MAX_PROJECTS} projects");
            return Err(InvalidValue::new("notify.projects", what));
        }
        let mut ids = HashSet::new();
        for (index, project) in self.projects.iter().enumerate() {
            let at = |key: &str| format!("notify.projects[{index}].{key}");
            if !ids.insert(&project.id) {
                let what = format!("another entry has the project {}", project.id);
                return Err(InvalidValue::new(at("id"), what));
            }
            project.validate().map_err(|InvalidValue { key, what }| InvalidValue { key: at(&key), what })?;
        }
        Ok(())
    }
}

impl NotifiedProject {
    fn validate(&self) -> Result<(), InvalidValue> {
        let error = |key: &str, what: &str| Err(InvalidValue::new(key, what));
        if !is_project_path(&self.id) {
            return error("id", "not the full path of a project, such as group/project");
        }
        if let Some(index) = self.refs.iter().position(|name| !name.starts_with("refs/")) {
            return error(
                &format!("refs[{index}]"),
                "write the full name, such as refs/heads/main or refs/tags/*",
            );
        }
        if self.poll.is_some_and(|poll| poll < MIN_POLL) {
            return error("poll", "the shortest period is 10s");
        }
        if self.webhooks.len() > MAX_WEBHOOKS {
            return error("webhooks", "a project has at most 16 webhooks");
        }
        for (index, webhook) in self.webhooks.iter().enumerate() {
            if let Some(what) = webhook_problem(&webhook.url) {
                return error(&format!("webhooks[{index}].url"), what);
            }
            if self.webhooks[..index].contains(webhook) {
                return error(
                    &format!("webhooks[{index}].url"),
                    "another webhook of the project has this URL",
                );
            }
        }
        let namespaces = [
            ("repository.namespace", self.repository.as_ref().map(|target| &target.namespace)),
            ("argocd.namespace", self.argocd.as_ref().map(|target| &target.namespace)),
        ];
        match namespaces.iter().find(|(_, name)| name.is_some_and(|name| !super::is_namespace(name))) {
            Some((key, _)) => error(key, "not the name of a namespace"),
            None => Ok(()),
        }
    }

    /// Returns whether a change of a reference matters. One of an unknown reference does, unless kas looks at the repository itself.
    pub fn wants(&self, reference: &str) -> bool {
        if reference.is_empty() {
            return self.poll.is_none();
        }
        self.refs.is_empty()
            || self.refs.iter().any(|name| match name.strip_suffix('*') {
                Some(prefix) => reference.starts_with(prefix),
                None => reference == name,
            })
    }
}

impl Flux {
    /// Returns the section unless it is switched off.
    pub fn enabled(self) -> Option<Self> {
        (self.enabled != Some(false)).then_some(self)
    }

    /// Returns the address of the notification controller, if agentk calls it.
    pub fn receiver(&self) -> Option<&str> {
        self.webhook_receiver_url.as_deref().filter(|url| !is_service_proxy(url))
    }

    /// Returns the key and the problem of the first invalid value.
    pub fn validate(&self) -> Result<(), InvalidValue> {
        let problem = self.receiver().and_then(webhook_problem);
        problem.map_or(Ok(()), |what| Err(InvalidValue::new(RECEIVER_KEY, what)))
    }

    /// Returns a sentence for a key without effect.
    pub(super) fn warning(&self) -> Option<String> {
        let proxied = self.webhook_receiver_url.is_some() && self.receiver().is_none();
        proxied.then(|| {
            format!(
                "{RECEIVER_KEY} has no effect, since it is a path of the API server's proxy: agentk annotates the sources of Flux, \
                 which reconcile at once, too"
            )
        })
    }
}

/// Returns whether a text is the path of a Service behind the API server's proxy.
fn is_service_proxy(url: &str) -> bool {
    let parts: Vec<&str> = url.trim_end_matches('/').split('/').collect();
    matches!(parts[..], ["", "api", "v1", "namespaces", namespace, "services", service, "proxy"]
        if !namespace.is_empty() && !service.is_empty())
}

/// Returns the problem of the URL of a webhook, if it has one.
fn webhook_problem(url: &str) -> Option<&'static str> {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    let authority = rest.and_then(|rest| rest.split(['/', '?', '#']).next()).unwrap_or_default();
    if authority.is_empty() {
        return Some("not a URL; write it like http://receiver.ci.svc:8080/hook");
    }
    if authority.contains('@') {
        return Some("the URL has a user; the signature shows the receiver who sends the event");
    }
    let valid = url.len() <= MAX_URL && url.bytes().all(|byte| byte.is_ascii_graphic());
    (!valid || url.contains(['?', '#', '*', '\\']) || url.contains("/../") || url.ends_with("/.."))
        .then_some("the URL has a query, a fragment, a wildcard, '..' or characters beyond ASCII")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::agent_configuration::AgentConfiguration;

    fn error(project: &str) -> String {
        let text = format!("notify:\n  projects:\n  - id: group/shop\n    {project}\n");
        AgentConfiguration::parse(Path::new("config.yaml"), &text).unwrap_err().to_string()
    }

    #[test]
    fn section_is_parsed() {
        let text = "
notify:
  projects:
  - id: group/shop
    refs: [refs/heads/main, 'refs/tags/v*']
    poll: 1m
    webhooks: [{url: 'http://receiver.ci.svc:8080/hook'}]
    repository: {namespace: shop}
    argocd: {}
flux: {webhook_receiver_url: 'http://webhook-receiver.flux-system.svc.cluster.local'}
";
        let parsed = AgentConfiguration::parse(Path::new("config.yaml"), text).unwrap();
        let notify = parsed.notify.clone().unwrap();
        let project = &notify.projects[0];
        assert_eq!(project.argocd.as_ref().unwrap().namespace, "argocd");
        let wanted = ["refs/heads/main", "refs/tags/v1", "refs/heads/other", "refs/tags/x", ""];
        assert_eq!(wanted.map(|name| project.wants(name)), [true, true, false, false, false]);
        let value = serde_json::to_value(&parsed).unwrap();
        assert_eq!(serde_json::from_value::<AgentConfiguration>(value).unwrap(), parsed);
        assert!(parsed.warnings().is_empty());
    }

    #[test]
    fn invalid_value_is_named_with_its_line() {
        for (project, expected) in [
            ("refs: [main]", "config.yaml:4:12: notify.projects[0].refs[0]: write the full name"),
            ("poll: 1s", "notify.projects[0].poll: the shortest period"),
            ("webhooks: [{url: receiver}]", "notify.projects[0].webhooks[0].url: not a URL"),
            ("webhooks: [{url: 'http://user:hunter2@receiver/'}]", "webhooks[0].url: the URL has a user"),
            ("webhooks: [{url: 'http://a/?b'}]", "webhooks[0].url: the URL has a query"),
            ("webhooks: [{url: 'http://a/x/../y'}]", "webhooks[0].url: the URL has a query"),
            ("webhooks: [{url: 'http://a'}, {url: 'http://a'}]", "webhooks[1].url: another webhook"),
            ("webhooks: [{url: 'http://a', method: PUT}]", "unknown field"),
            ("repository: {namespace: 'A b'}", "repository.namespace: not the name of a namespace"),
        ] {
            let error = error(project);
            assert!(error.contains(expected), "{project}: {error}");
        }
        let twice = "notify: {projects: [{id: a/b}, {id: a/b}]}";
        let error = AgentConfiguration::parse(Path::new("c.yaml"), twice).unwrap_err().to_string();
        assert!(error.contains("notify.projects[1].id: another entry"), "{error}");
    }
}
