//! One rule, and whether it is about a request.

use super::{
    actor::Actor,
    request::{Asked, Resource, Target},
};

/// What happens to a request that a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// It passes.
    Allow,
    /// It does not.
    Deny,
}

/// A rule. Of a list that may be absent, absence is no restriction.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(super) name: String,
    pub(super) action: Action,
    /// Names, or `*`.
    pub(super) services: Vec<String>,
    /// What only requests to the Kubernetes API have.
    pub(super) scope: Scope,
}

/// Which requests to the Kubernetes API.
#[derive(Clone, Debug, Default)]
pub(super) struct Scope {
    pub(super) verbs: Option<Vec<String>>,
    pub(super) groups: Option<Vec<String>>,
    pub(super) resources: Option<Vec<String>>,
    pub(super) namespaces: Option<Vec<String>>,
    pub(super) names: Option<Vec<String>>,
    pub(super) paths: Option<Vec<String>>,
    pub(super) actors: Option<Actors>,
}

/// As whom.
#[derive(Clone, Debug, Default)]
pub(super) struct Actors {
    pub(super) agentk: bool,
    pub(super) users: Vec<String>,
    pub(super) groups: Vec<String>,
}

impl Rule {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it does.
    pub fn action(&self) -> Action {
        self.action
    }

    pub(super) fn is_for(&self, service: &str) -> bool {
        self.services.iter().any(|name| name == "*" || name == service)
    }

    /// A rule that allows is about a request if everything of the request is within it; one that denies, if anything
    /// of the request may be: a list of all namespaces reaches into the one that is denied.
    pub(super) fn is_about(&self, asked: &Asked<'_>, actor: &Actor<'_>) -> bool {
        let scope = &self.scope;
        let reaching = self.action == Action::Deny;
        within(scope.verbs.as_deref(), |verb| verb == "*" || verb == asked.verb)
            && scope.actors.as_ref().is_none_or(|actors| actors.include(actor, reaching))
            && match &asked.target {
                Target::Path(path) => scope.is_about_path(path),
                Target::Resource(resource) => scope.is_about_resource(asked.verb, resource, reaching),
            }
    }
}

impl Scope {
    fn is_about_path(&self, path: &str) -> bool {
        match &self.paths {
            Some(paths) => paths.iter().any(|pattern| matches(pattern, path)),
            None => !self.names_resources(),
        }
    }

    fn is_about_resource(&self, verb: &str, asked: &Resource<'_>, reaching: bool) -> bool {
        if self.paths.is_some() && !self.names_resources() {
            return false;
        }
        // Anything else may concern objects of all namespaces, also where a field selector names them.
        let single = asked.name.is_some() && matches!(verb, "get" | "update" | "patch" | "delete");
        within(self.groups.as_deref(), |group| group == "*" || group == asked.group)
            && within(self.resources.as_deref(), |pattern| resource(pattern, asked))
            && within(self.namespaces.as_deref(), |name| match asked.namespace {
                Some(namespace) => name == "*" || name == namespace,
                None => name == "*" || (reaching && !single),
            })
            && within(self.names.as_deref(), |name| match &asked.name {
                Some(asked) => name == asked,
                None => reaching,
            })
    }

    fn names_resources(&self) -> bool {
        [&self.groups, &self.resources, &self.namespaces, &self.names].into_iter().any(Option::is_some)
    }
}

impl Actors {
    fn include(&self, actor: &Actor<'_>, reaching: bool) -> bool {
        let Actor::Other { user, groups } = actor else { return self.agentk };
        let named = |patterns: &[String], name: &str| patterns.iter().any(|pattern| matches(pattern, name));
        let user = named(&self.users, user);
        let mut groups = groups.iter().map(|group| named(&self.groups, group));
        match reaching {
            true => user || groups.any(|named| named),
            false => user && groups.all(|named| named),
        }
    }
}

fn within(listed: Option<&[String]>, is: impl Fn(&str) -> bool) -> bool {
    listed.is_none_or(|listed| listed.iter().any(|each| is(each)))
}

/// RBAC's notation: `pods` is without its subresources, `pods/log` one of them, `*/scale` that of every resource, `*`
/// everything. And `pods/*`, which admission webhooks know, for all subresources of one.
fn resource(pattern: &str, asked: &Resource<'_>) -> bool {
    match (pattern.split_once('/'), asked.subresource) {
        _ if pattern == "*" => true,
        (None, None) => pattern == asked.resource,
        (Some((resource, sub)), Some(subresource)) => {
            (resource == "*" || resource == asked.resource) && (sub == "*" || sub == subresource)
        }
        _ => false,
    }
}

/// Exactly, or by what stands before a `*` at the end.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => text.starts_with(prefix),
        None => text == pattern,
    }
}
