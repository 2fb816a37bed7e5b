//! One rule, and the requests and effective users that it matches.

use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue, header::CONNECTION};
use kube_cluster::AllowedResources;
use proto::{IdentityValue, LabelSelector, ServiceName, impersonation::PREFIX};
use request_info::{RequestInfo, RequestTarget, ResourceTarget, UnclearRequestError};

use super::{LabelUse, NamespaceLabels};

pub(crate) const USER: HeaderName = HeaderName::from_static("impersonate-user");
const GROUP: HeaderName = HeaderName::from_static("impersonate-group");

/// The objects of environments that give rights: the API group, and the resource.
const GIVE_RIGHTS: [(&str, &str); 4] = [
    ("", "namespaces"),
    ("", "serviceaccounts"),
    ("rbac.authorization.k8s.io", "roles"),
    ("rbac.authorization.k8s.io", "rolebindings"),
];

/// The action of a rule on the requests that it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// The request passes.
    Allow,
    /// The request is refused.
    Deny,
}

/// A rule of a policy. An absent list restricts nothing.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(crate) name: String,
    pub(crate) action: Action,
    /// Service names, or `*`.
    pub(crate) services: Vec<String>,
    /// The restrictions that apply to requests to the Kubernetes API only.
    pub(crate) scope: ResourceScope,
}

/// Restrictions of requests to the Kubernetes API.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResourceScope {
    pub(crate) verbs: Option<Vec<String>>,
    pub(crate) groups: Option<Vec<String>>,
    pub(crate) resources: Option<Vec<String>>,
    /// Names, prefixes with a `*` at the end, or `*`.
    pub(crate) namespaces: Option<Vec<String>>,
    /// The labels of the namespaces.
    pub(crate) selector: Option<LabelSelector>,
    pub(crate) names: Option<Vec<String>>,
    pub(crate) paths: Option<Vec<String>>,
    pub(crate) users: Option<UserPatterns>,
}

/// The result of the comparison of a rule with a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuleMatch {
    pub(crate) matches: bool,
    /// The part that labels had in it.
    pub(crate) labels: LabelUse,
}

/// The effective users that a rule matches.
#[derive(Clone, Debug, Default)]
pub(crate) struct UserPatterns {
    pub(crate) agentk: bool,
    pub(crate) users: Vec<String>,
    pub(crate) groups: Vec<String>,
}

/// The effective user of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EffectiveUser<'a> {
    /// The user of agentk's own credential.
    Agentk,
    /// An impersonated user. Policies ignore uids and extra attributes, as RBAC does.
    Impersonated {
        /// The user's name.
        user: &'a str,
        /// The groups that the request names; the API server adds its own, like `system:authenticated`.
        groups: Vec<&'a str>,
    },
}

impl Rule {
    /// Returns the name of the rule.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the action of the rule.
    pub fn action(&self) -> Action {
        self.action
    }

    pub(crate) fn has_service(&self, service: &str) -> bool {
        self.services.iter().any(|name| name == "*" || name == service)
    }

    /// Returns whether the rule has the service and the verb by their names, and not as `*`.
    pub(crate) fn names(&self, service: &str, verb: &str) -> bool {
        let verbs = self.scope.verbs.iter().flatten();
        self.services.iter().any(|name| name == service) && verbs.into_iter().any(|name| name == verb)
    }

    /// Returns the path of an object for each resource that gives rights and that the rule makes an object of environments, in each of its
    /// namespaces.
    pub(crate) fn provisioned_paths(&self) -> Vec<String> {
        let Some(AllowedResources { groups, resources }) = self.provisioned() else { return Vec::new() };
        let is_listed = |(group, resource): &(&str, &str)| {
            within(groups.as_deref(), |name| name == "*" || name == *group)
                && resources.iter().any(|name| name == resource)
        };
        let listed: Vec<_> = GIVE_RIGHTS.into_iter().filter(is_listed).collect();
        let everywhere = ["*".to_owned()];
        let namespaces = self.scope.namespaces.as_deref().unwrap_or(&everywhere);
        let paths = |pattern: &String| {
            let namespace = example_of(pattern);
            listed.iter().map(|target| provisioned_path(&namespace, *target)).collect::<Vec<_>>()
        };
        namespaces.iter().flat_map(paths).collect()
    }

    /// Returns the resources that the rule makes objects of environments.
    pub(crate) fn provisioned(&self) -> Option<AllowedResources> {
        let scope = &self.scope;
        let by_name = self.services.iter().any(|service| service == ServiceName::PROVISION);
        let writes = within(scope.verbs.as_deref(), |verb| verb == "*" || verb == "patch");
        if !by_name || !writes || self.action == Action::Deny {
            return None;
        }
        let is_name = |resource: &&String| *resource != "*" && !resource.contains('/');
        let resources = scope.resources.iter().flatten().filter(is_name).cloned();
        Some(AllowedResources { groups: scope.groups.clone(), resources: resources.collect() })
    }

    /// Returns whether the rule matches a request to a service.
    ///
    /// A rule that allows matches if it covers the whole request. One that denies matches if the request may include
    /// anything that it covers: a list of all namespaces includes the one that is denied. Without the labels of the namespace, a rule with a
    /// selector matches if it denies.
    pub(crate) fn matches(
        &self,
        service: &str,
        info: &RequestInfo<'_>,
        user: &EffectiveUser<'_>,
        labels: &NamespaceLabels,
    ) -> RuleMatch {
        let scope = &self.scope;
        let partial = self.action == Action::Deny;
        let matches = self.has_service(service)
            && within(scope.verbs.as_deref(), |verb| verb == "*" || verb == info.verb)
            && scope.users.as_ref().is_none_or(|users| users.include(user, partial));
        match &info.target {
            _ if !matches => false.into(),
            RequestTarget::Path(path) => scope.matches_path(path).into(),
            RequestTarget::Resource(resource) if scope.matches_resource(info.verb, resource, partial) => {
                scope.matches_labels(info.verb, resource, partial, labels)
            }
            RequestTarget::Resource(_) => false.into(),
        }
    }
}

impl From<bool> for RuleMatch {
    fn from(matches: bool) -> Self {
        Self { matches, labels: LabelUse::Unused }
    }
}

impl ResourceScope {
    fn matches_path(&self, path: &str) -> bool {
        match &self.paths {
            Some(paths) => paths.iter().any(|pattern| matches_pattern(pattern, path)),
            None => !self.names_resources(),
        }
    }

    fn matches_resource(&self, verb: &str, requested: &ResourceTarget<'_>, partial: bool) -> bool {
        if self.paths.is_some() && !self.names_resources() {
            return false;
        }
        within(self.groups.as_deref(), |group| group == "*" || group == requested.group)
            && within(self.resources.as_deref(), |pattern| matches_resource_pattern(pattern, requested))
            && within(self.namespaces.as_deref(), |name| match requested.namespace {
                Some(namespace) => matches_pattern(name, namespace),
                None => name == "*" || (partial && !is_single(verb, requested)),
            })
            && within(self.names.as_deref(), |name| match &requested.name {
                Some(requested) => name == requested,
                None => partial,
            })
    }

    /// Compares the labels of the namespace. A request for all namespaces has none.
    fn matches_labels(
        &self,
        verb: &str,
        requested: &ResourceTarget<'_>,
        partial: bool,
        labels: &NamespaceLabels,
    ) -> RuleMatch {
        match (&self.selector, requested.namespace) {
            (None, _) => true.into(),
            (Some(_), None) => (partial && !is_single(verb, requested)).into(),
            (Some(selector), Some(namespace)) => match labels.selects(selector, namespace) {
                Some(matches) => RuleMatch { matches, labels: LabelUse::Known },
                None => RuleMatch { matches: partial, labels: LabelUse::Unknown },
            },
        }
    }

    pub(crate) fn names_resources(&self) -> bool {
        let lists = [&self.groups, &self.resources, &self.namespaces, &self.names];
        self.selector.is_some() || lists.into_iter().any(Option::is_some)
    }
}

/// Returns whether a request is for one object that is in no namespace. Others may include objects of all namespaces, also if a field selector
/// names one object.
fn is_single(verb: &str, requested: &ResourceTarget<'_>) -> bool {
    requested.name.is_some() && matches!(verb, "get" | "update" | "patch" | "delete")
}

impl UserPatterns {
    fn include(&self, user: &EffectiveUser<'_>, partial: bool) -> bool {
        let EffectiveUser::Impersonated { user, groups } = user else { return self.agentk };
        let named =
            |patterns: &[String], name: &str| patterns.iter().any(|pattern| matches_pattern(pattern, name));
        let user = named(&self.users, user);
        let mut groups = groups.iter().map(|group| named(&self.groups, group));
        if partial { user || groups.any(|named| named) } else { user && groups.all(|named| named) }
    }
}

impl<'a> EffectiveUser<'a> {
    /// Returns the effective user that the headers of a request determine.
    pub(crate) fn new(headers: &'a HeaderMap) -> Result<Self, UnclearRequestError> {
        // Headers that `Connection` lists are removed before the request is sent, which would remove the impersonation
        // (CVE-2021-31999).
        let removed = headers.get_all(CONNECTION).iter().any(|names| {
            let names = String::from_utf8_lossy(names.as_bytes()).to_ascii_lowercase();
            names.split(',').any(|name| name.trim().starts_with(PREFIX))
        });
        if removed {
            return Err(UnclearRequestError("its Connection header names an Impersonate-* header"));
        }

        let mut users = headers.get_all(USER).iter();
        let user = match (users.next(), users.next()) {
            (Some(user), None) => text(user)?,
            (Some(_), Some(_)) => return Err(UnclearRequestError("it impersonates several users")),
            (None, _) if headers.keys().any(|name| name.as_str().starts_with(PREFIX)) => {
                return Err(UnclearRequestError("it has Impersonate-* headers without Impersonate-User"));
            }
            (None, _) => return Ok(Self::Agentk),
        };
        let groups = headers.get_all(GROUP).iter().map(text).collect::<Result<_, _>>()?;
        Ok(Self::Impersonated { user, groups })
    }
}

fn text(value: &HeaderValue) -> Result<&str, UnclearRequestError> {
    IdentityValue::try_from(value).map(IdentityValue::as_str).map_err(|_| {
        UnclearRequestError(
            "it impersonates a user or group whose name is empty, begins or ends with a blank, holds control characters, or is \
             not UTF-8",
        )
    })
}

impl fmt::Display for EffectiveUser<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Agentk => f.write_str("as agentk"),
            Self::Impersonated { user, groups } if groups.is_empty() => write!(f, "as {user:?}"),
            Self::Impersonated { user, groups } => write!(f, "as {user:?} of {groups:?}"),
        }
    }
}

pub(crate) fn within(listed: Option<&[String]>, is: impl Fn(&str) -> bool) -> bool {
    listed.is_none_or(|listed| listed.iter().any(|each| is(each)))
}

/// Returns true if a pattern in RBAC's notation matches: `pods` excludes its subresources, `pods/log` is one of them,
/// `*/scale` is that of every resource, and `*` is everything. `pods/*`, as in admission webhooks, is all subresources of one
/// resource.
pub(crate) fn matches_resource_pattern(pattern: &str, requested: &ResourceTarget<'_>) -> bool {
    match (pattern.split_once('/'), requested.subresource) {
        _ if pattern == "*" => true,
        (None, None) => pattern == requested.resource,
        (Some((resource, sub)), Some(subresource)) => {
            (resource == "*" || resource == requested.resource) && (sub == "*" || sub == subresource)
        }
        _ => false,
    }
}

/// Returns true if the texts are equal, or if the pattern ends in `*` and the text begins with the rest of the pattern.
pub(crate) fn matches_pattern(pattern: &str, text: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => text.starts_with(prefix),
        None => text == pattern,
    }
}

/// Returns a text that a pattern matches. A narrower pattern hardly matches it by chance.
pub(crate) fn example_of(pattern: &str) -> String {
    match pattern.strip_suffix('*') {
        Some(prefix) => format!("{prefix}zzz"),
        None => pattern.to_owned(),
    }
}

/// Returns the path of an object of environments: the API group and the resource are among those that give rights.
fn provisioned_path(namespace: &str, target: (&str, &str)) -> String {
    match target {
        (_, "namespaces") => format!("/api/v1/namespaces/{namespace}"),
        ("", resource) => format!("/api/v1/namespaces/{namespace}/{resource}/x"),
        (group, resource) => format!("/apis/{group}/v1/namespaces/{namespace}/{resource}/x"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(headers: &[(&'static str, &'static [u8])]) -> Result<String, &'static str> {
        let header = |(name, value): &(&'static str, &'static [u8])| {
            (HeaderName::from_static(name), HeaderValue::from_bytes(value).unwrap())
        };
        let headers: HeaderMap = headers.iter().map(header).collect();
        EffectiveUser::new(&headers).map(|actor| actor.to_string()).map_err(|UnclearRequestError(why)| why)
    }

    #[test]
    fn impersonation_headers_determine_the_user() {
        assert_eq!(described(&[]).unwrap(), "as agentk");
        assert_eq!(described(&[("connection", b"upgrade")]).unwrap(), "as agentk");
        assert_eq!(described(&[("impersonate-user", b"ci")]).unwrap(), "as \"ci\"");
        let groups: &[(_, &[u8])] =
            &[("impersonate-user", b"ci"), ("impersonate-group", b"a"), ("impersonate-group", b"b")];
        assert_eq!(described(groups).unwrap(), "as \"ci\" of [\"a\", \"b\"]");
        assert_eq!(
            described(&[("impersonate-user", "J\u{fc}rgen".as_bytes())]).unwrap(),
            "as \"J\u{fc}rgen\""
        );
    }

    #[test]
    fn ambiguous_impersonation_is_refused() {
        for headers in [
            &[("impersonate-user", &b"a"[..]), ("impersonate-user", b"b")][..],
            &[("impersonate-user", b"")],
            &[("impersonate-user", b" admin")],
            &[("impersonate-user", b"admin\t")],
            &[("impersonate-user", b"\xff")],
            &[("impersonate-group", b"a")],
            &[("impersonate-uid", b"1")],
            &[("impersonate-extra-scopes", b"x")],
            &[("impersonate-user", b"ci"), ("impersonate-group", b" system:masters")],
            &[("impersonate-user", b"ci"), ("connection", b"close, Impersonate-User")],
            &[("impersonate-user", b"ci"), ("connection", b"\xff,impersonate-group")],
        ] {
            assert!(described(headers).is_err(), "{headers:?}");
        }
    }
}
