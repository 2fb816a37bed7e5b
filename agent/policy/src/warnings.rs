//! The parts of a policy that are valid but probably a mistake.

use http::{Method, Request};
use proto::{LabelSelector, ServiceName};
use request_info::ResourceTarget;

use super::{
    Action, NamespaceLabels, Policy,
    rule::{ResourceScope, Rule, UserPatterns, matches_pattern, matches_resource_pattern, within},
};

/// The verbs and subresources of the requests that choose labels of a namespace. A patch may be a server-side apply, which creates the
/// namespace if it does not exist.
const LABELLING: [(&str, Option<&str>); 7] = [
    ("create", None),
    ("update", None),
    ("patch", None),
    ("update", Some("status")),
    ("patch", Some("status")),
    ("update", Some("finalize")),
    ("patch", Some("finalize")),
];
/// The services whose callers choose the objects that are written, and whether `*` includes the service: objects of environments need a rule
/// with its name.
const WRITING: [(&str, bool); 3] =
    [(ServiceName::KUBERNETES, true), (ServiceName::GITOPS, true), (ServiceName::PROVISION, false)];

impl Policy {
    /// Returns a warning for each part that is valid but probably a mistake, in an agentk that serves these services.
    pub fn warnings(&self, served: &[ServiceName]) -> Vec<String> {
        if self.rules.is_empty() {
            return vec!["there are no rules: the policy refuses every request".to_owned()];
        }
        let is_served = |name: &str| name == "*" || served.iter().any(|served| served.as_str() == name);
        let unserved = self.rules.iter().flat_map(|rule| {
            let names = rule.services.iter().filter(|name| !is_served(name));
            names.map(|name| format!("rule {:?}: this agentk does not serve {name}", rule.name))
        });
        unserved.chain(self.warnings_about_environments()).chain(self.warnings_about_labels()).collect()
    }

    /// Returns a warning if callers with the identity of agentk may use the rights that agentk has for environments.
    fn warnings_about_environments(&self) -> Vec<String> {
        if self.provisioned().is_empty() {
            return Vec::new();
        }
        let widest = self.widest();
        let allows = |method: &Method, path: &str| {
            let request = Request::builder().method(method).uri(path).body(());
            let labels = NamespaceLabels::default();
            request.is_ok_and(|request| widest.evaluate(ServiceName::KUBERNETES, &request, &labels).allowed)
        };
        let writes = [Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
        let mut paths = self.rules.iter().flat_map(Rule::provisioned_paths);
        let mut warnings = Vec::new();
        if let Some(path) = paths.find(|path| writes.iter().any(|method| allows(method, path))) {
            warnings.push(format!(
                "callers with the identity of agentk (access_as: agent) may change {path}, which agentk changes for environments: begin \
                 with the rule environments-not-by-jobs of docs/managed-resources.md"
            ));
        }
        if allows(&Method::GET, "/api/v1/secrets") {
            warnings.push(
                "callers with the identity of agentk (access_as: agent) may list the Secrets of all namespaces, a right that agentk may have \
                 for the end of environments: begin with the rule secrets-not-by-jobs of docs/managed-resources.md"
                    .to_owned(),
            );
        }
        warnings
    }

    /// Returns the policy that allows as much as this one may, whatever labels the namespaces have.
    fn widest(&self) -> Self {
        let mut widest = self.clone();
        widest.rules.retain(|rule| rule.action == Action::Allow || rule.scope.selector.is_none());
        for selector in widest.rules.iter_mut().filter_map(|rule| rule.scope.selector.as_mut()) {
            *selector = LabelSelector::default();
        }
        widest
    }

    /// Returns a warning for each rule whose callers may choose the labels on which other rules depend.
    fn warnings_about_labels(&self) -> Vec<String> {
        let Some((dependent, _)) = self.selectors().next() else { return Vec::new() };
        let rules = self.rules.iter().enumerate();
        let labelling = rules.filter(|(index, rule)| rule.lets_label(&self.rules[..*index]));
        let warning = |(_, rule): (usize, &Rule)| {
            format!(
                "rule {:?} lets its callers choose the labels of namespaces, on which rule {dependent:?} depends: begin with the rule \
                 no-labels-of-namespaces of docs/policy.md",
                rule.name
            )
        };
        labelling.map(warning).collect()
    }
}

impl Rule {
    /// Returns whether the rule lets one of its callers choose the labels of any namespace, after the rules `before` it.
    fn lets_label(&self, before: &[Self]) -> bool {
        let is_of = |(name, in_any): &(&str, bool)| {
            self.services.iter().any(|service| service == name || (*in_any && service == "*"))
        };
        let is_denied = |service: &str, verb: &str, sub: Option<&str>| {
            before.iter().any(|rule| rule.has_service(service) && rule.denies_all(self, verb, sub))
        };
        self.action == Action::Allow
            && WRITING.iter().filter(|service| is_of(service)).any(|(service, _)| {
                let open = |(verb, sub): &(&str, Option<&str>)| {
                    self.scope.labels_namespaces(verb, *sub) && !is_denied(service, verb, *sub)
                };
                LABELLING.iter().any(open)
            })
    }

    /// Returns whether the rule denies such a request for each namespace and for each user that the other rule covers. The result is false if
    /// this needs several patterns together: the warning is then one too many.
    fn denies_all(&self, other: &Self, verb: &str, sub: Option<&str>) -> bool {
        let (mine, theirs) = (&self.scope, &other.scope);
        // The namespace of a create is not known, so that the rule denies it, whatever namespaces it has.
        let places = verb == "create"
            || (mine.selector.is_none()
                && covers(mine.namespaces.as_deref(), theirs.namespaces.as_deref())
                && covers(mine.names.as_deref(), theirs.names.as_deref()));
        let everybody = UserPatterns { agentk: true, users: vec!["*".to_owned()], groups: Vec::new() };
        let users =
            mine.users.as_ref().is_none_or(|mine| mine.covers(theirs.users.as_ref().unwrap_or(&everybody)));
        self.action == Action::Deny && mine.covers_namespaces(verb, sub) && places && users
    }
}

impl ResourceScope {
    /// Returns whether the scope includes such requests for a namespace, as far as verbs and resources decide.
    fn covers_namespaces(&self, verb: &str, sub: Option<&str>) -> bool {
        let target = ResourceTarget { resource: "namespaces", subresource: sub, ..ResourceTarget::default() };
        (self.paths.is_none() || self.names_resources())
            && within(self.verbs.as_deref(), |name| name == "*" || name == verb)
            && within(self.groups.as_deref(), |group| group == "*" || group.is_empty())
            && within(self.resources.as_deref(), |pattern| matches_resource_pattern(pattern, &target))
    }

    /// Returns whether a rule that allows covers such a request for any namespace.
    fn labels_namespaces(&self, verb: &str, sub: Option<&str>) -> bool {
        let anywhere =
            self.selector.is_none() && self.names.is_none() && covers(self.namespaces.as_deref(), None);
        self.covers_namespaces(verb, sub) && (verb != "create" || anywhere)
    }
}

impl UserPatterns {
    /// Returns whether a rule that denies these users denies each request of the others.
    fn covers(&self, others: &Self) -> bool {
        (self.agentk || !others.agentk) && covers(Some(&self.users), Some(&others.users))
    }
}

/// Returns whether patterns match all that others match. Absent ones match everything.
fn covers(patterns: Option<&[String]>, others: Option<&[String]>) -> bool {
    let everything = ["*".to_owned()];
    let others = others.unwrap_or(&everything);
    // A pattern that matches the text of another one, with its `*`, matches all that this one matches.
    others.iter().all(|other| within(patterns, |pattern| matches_pattern(pattern, other)))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn policy(text: &str) -> Policy {
        Policy::parse(Path::new("policy.yaml"), text).unwrap()
    }

    fn served() -> [ServiceName; 6] {
        ["kubernetes", "alerts", "gitops", "graph", "notify", "provision"].map(|name| name.parse().unwrap())
    }

    #[test]
    fn rule_that_lets_callers_label_namespaces_has_a_warning() {
        const TEAM: &str = "{name: t, action: allow, services: [kubernetes], resources: [pods], namespaceSelector: {matchLabels: {team: shop}}}";
        const NO_LABELS: &str = "{name: no-labels-of-namespaces, action: deny, services: [kubernetes, gitops, provision], verbs: [create, update, patch], apiGroups: [''], resources: [namespaces, 'namespaces/*']}";
        let warnings = |rules: &[&str]| {
            let served = served();
            policy(&format!("rules: [{}]", rules.join(", "))).warnings(&served)
        };
        for rule in [
            "{name: a, action: allow, services: [kubernetes]}",
            "{name: a, action: allow, services: ['*']}",
            "{name: a, action: allow, services: [gitops], verbs: [patch]}",
            "{name: a, action: allow, services: [kubernetes], resources: ['*/status']}",
            "{name: a, action: allow, services: [kubernetes], resources: ['namespaces/finalize'], verbs: [update]}",
            "{name: a, action: allow, services: [kubernetes], namespaces: ['review-*']}",
            "{name: a, action: allow, services: [kubernetes], verbs: [create], resources: [namespaces]}",
            "{name: a, action: allow, services: [provision], verbs: [patch], apiGroups: [''], resources: [namespaces], namespaces: ['env-*']}",
            "{name: a, action: allow, services: [kubernetes], resources: [namespaces], resourceNames: [shop]}",
            "{name: a, action: allow, services: [kubernetes], impersonate: {users: ['gitlab:*']}}",
            "{name: a, action: allow, services: [kubernetes], namespaceSelector: {matchLabels: {a: b}}}",
        ] {
            let found = warnings(&[TEAM, rule]);
            assert!(
                found.len() == 1 && found[0].contains("rule \"a\" lets its callers choose the labels"),
                "{rule}: {found:?}"
            );
            assert_eq!(warnings(&[rule]).len(), usize::from(rule.contains("Selector")), "{rule}");
            assert!(warnings(&[NO_LABELS, TEAM, rule]).is_empty(), "{rule}");
        }
        for harmless in [
            "{name: a, action: allow, services: [kubernetes], verbs: [get, list, delete]}",
            "{name: a, action: allow, services: [kubernetes], verbs: [create], namespaces: ['review-*']}",
            "{name: a, action: allow, services: [graph, alerts, notify]}",
            "{name: a, action: allow, services: [kubernetes], apiGroups: [apps]}",
            "{name: a, action: allow, services: [kubernetes], resources: [pods, 'pods/*']}",
            "{name: a, action: allow, services: [kubernetes], nonResourceURLs: [/api]}",
        ] {
            assert!(warnings(&[TEAM, harmless]).is_empty(), "{harmless}");
        }
    }

    /// The rules before deny some of the requests only: others of the same rule may still label a namespace.
    #[test]
    fn denial_of_some_namespaces_or_users_does_not_hide_the_others() {
        const ALLOW: &str = "{name: a, action: allow, services: [kubernetes], resources: [namespaces], namespaces: [shop, 'review-*'], impersonate: {users: ['ci-*', dev]}}";
        let labelled = |deny: &str| {
            let text = format!(
                "rules: [{{name: d, action: deny, services: [kubernetes], {deny}}}, {ALLOW}, {{name: t, action: allow, services: [graph], namespaceSelector: {{matchLabels: {{a: b}}}}}}]"
            );
            let served = served();
            !policy(&text).warnings(&served).is_empty()
        };
        for hidden in [
            "namespaces: [shop, 'review-*']",
            "namespaces: ['*']",
            "namespaces: ['s*', 'rev*']",
            "verbs: [create, update, patch], resources: [namespaces], impersonate: {users: ['ci-*', 'd*']}",
        ] {
            assert!(!labelled(hidden), "{hidden}");
        }
        for open in [
            "namespaces: [shop]",
            "namespaces: [shop, 'review-x*']",
            "namespaceSelector: {matchLabels: {tier: prod}}",
            "resourceNames: [shop]",
            "verbs: [update]",
            "verbs: [patch], impersonate: {users: ['*']}",
            "impersonate: {users: ['ci-*']}",
            "impersonate: {users: ['ci-*'], groups: [dev]}",
            "resources: ['namespaces/*']",
        ] {
            assert!(labelled(open), "{open}");
        }
    }

    /// A deny rule with a selector may not hide that callers have the rights for environments.
    #[test]
    fn warnings_assume_the_labels_that_allow_the_most() {
        let text = "rules: [
          {name: d, action: deny, services: [kubernetes], namespaceSelector: {matchLabels: {tier: prod}}},
          {name: m, action: allow, services: [provision], verbs: [patch], resources: [namespaces], namespaces: ['review-*']},
          {name: s, action: allow, services: [kubernetes], namespaceSelector: {matchLabels: {team: shop}}}]";
        let served = served();
        let found = policy(text).warnings(&served);
        assert!(found[0].contains("may change /api/v1/namespaces/review-x, which"), "{found:?}");
        assert!(
            !found.iter().any(|warning| warning.contains("Secrets")),
            "a selector covers no list of all namespaces: {found:?}"
        );
    }
}
