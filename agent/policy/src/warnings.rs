//! The parts of a policy that are valid but probably a mistake.

use http::{Method, Request};
use proto::{LabelSelector, ServiceName};

use super::{
    Action, NamespaceLabels, Policy,
    rule::{ResourceScope, Rule, USER, UserPatterns, example_of},
};

/// The parts of a namespace through which its labels can be written.
const LABELLED: [&str; 3] = ["", "/status", "/finalize"];
/// The most requests that are tried for a rule. One with more users and namespaces is judged by the first ones.
const MAX_TRIED: usize = 10_000;
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
        let widest = self.widest();
        let allowing = self.rules.iter().filter(|rule| rule.action == Action::Allow);
        let labelling = allowing.filter(|rule| rule.lets_label(&widest));
        let warning = |rule: &Rule| {
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
    /// Returns whether a policy allows, by this rule, that a caller chooses the labels of a namespace.
    fn lets_label(&self, policy: &Policy) -> bool {
        let is_of = |(name, in_any): &&(&str, bool)| {
            self.services.iter().any(|service| service == name || (*in_any && service == "*"))
        };
        let services: Vec<&str> = WRITING.iter().filter(is_of).map(|(name, _)| *name).collect();
        let allows = |service: &str, request: &Request<()>| {
            let decision = policy.evaluate(service, request, &NamespaceLabels::default());
            decision.allowed && policy.rule_name(decision.source) == self.name
        };
        let (targets, callers) = (self.scope.labelling_targets(), self.scope.callers());
        let requests = targets.iter().flat_map(|(method, path)| {
            callers.iter().filter_map(move |caller| request_of(method, path, caller.as_deref()))
        });
        let mut tried = requests.take(MAX_TRIED);
        tried.any(|request| services.iter().any(|service| allows(service, &request)))
    }
}

impl ResourceScope {
    /// Returns the methods and paths that choose labels, of each namespace that the scope names. A patch may be a server-side apply, which creates
    /// the namespace if it does not exist.
    fn labelling_targets(&self) -> Vec<(&'static str, String)> {
        let named = self.namespaces.iter().chain(&self.names).flatten().map(String::as_str);
        let mut targets = vec![("POST", "/api/v1/namespaces".to_owned())];
        for namespace in named.chain(["*"]).map(example_of) {
            for part in LABELLED {
                let path = format!("/api/v1/namespaces/{namespace}{part}");
                targets.extend(["PUT", "PATCH"].map(|method| (method, path.clone())));
            }
        }
        targets
    }

    /// Returns users that the scope includes; `None` is that of agentk. They have no groups, which only add to what is denied.
    fn callers(&self) -> Vec<Option<String>> {
        let Some(UserPatterns { agentk, users, .. }) = &self.users else {
            return vec![None, Some(example_of("*"))];
        };
        let own = agentk.then_some(None);
        own.into_iter().chain(users.iter().map(|user| Some(example_of(user)))).collect()
    }
}

/// Returns a request of a user. It is `None` if its parts cannot be those of a request.
fn request_of(method: &str, path: &str, user: Option<&str>) -> Option<Request<()>> {
    let request = Request::builder().method(method).uri(path);
    let request = match user {
        Some(user) => request.header(USER, user.as_bytes()),
        None => request,
    };
    request.body(()).ok()
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

    /// Each namespace of a rule for environments counts, and not only the first one.
    #[test]
    fn rights_for_environments_are_looked_for_in_each_namespace() {
        const MAKES: &str = "{name: m, action: allow, services: [provision], verbs: [patch], apiGroups: [rbac.authorization.k8s.io], resources: [rolebindings], namespaces: [safe, 'review-*']}";
        let found = |namespace: &str| {
            let all =
                format!("{{name: a, action: allow, services: [kubernetes], namespaces: ['{namespace}']}}");
            policy(&format!("rules: [{MAKES}, {all}]")).warnings(&served())
        };
        for namespace in ["safe", "review-*"] {
            let found = found(namespace);
            assert!(
                found.len() == 1 && found[0].contains("/rolebindings/x, which"),
                "{namespace}: {found:?}"
            );
        }
        assert!(found("other").is_empty());
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
        assert!(found[0].contains("may change /api/v1/namespaces/review-zzz, which"), "{found:?}");
        assert!(
            !found.iter().any(|warning| warning.contains("Secrets")),
            "a selector covers no list of all namespaces: {found:?}"
        );
    }
}
