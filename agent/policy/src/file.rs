//! Parses policy files.

use std::{collections::HashSet, io, path::Path};

use proto::{LabelOperator, LabelSelector};
use settings::{self, ConfigError, Spanned};

use super::{
    DEFAULT_RULE, Policy, UNCLEAR_RULE,
    entries::{
        ExpressionEntry, Impersonate, MAX_NAME, MAX_RULES, MAX_WEBHOOKS, ObjectEntry, PolicyFile, RuleEntry,
        SelectorEntry, StringList,
    },
    kubectl_names,
    object_rule::ObjectRule,
    rule::{Action, ResourceScope, Rule, UserPatterns},
    validate,
    webhooks::AllowedWebhook,
};

/// The largest policy file, in bytes.
const MAX_FILE: u64 = 1 << 20;

impl Policy {
    /// Reads and parses a policy file, which blocks.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is invalid.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        Self::parse(file, &Self::read(file)?)
    }

    /// Reads the text of a policy file, which blocks.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is longer than a policy may be.
    pub fn read(file: &Path) -> Result<String, ConfigError> {
        files::read_text_at_most(file, MAX_FILE).map_err(|error| {
            let what = match error.kind() {
                io::ErrorKind::NotFound => "the file does not exist".to_owned(),
                io::ErrorKind::PermissionDenied => {
                    "permission denied: agentk's user may not read the file".to_owned()
                }
                _ => format!("cannot be read: {error}"),
            };
            ConfigError::whole(file, what)
        })
    }

    /// Returns the JSON Schema of policy files.
    pub fn json_schema() -> String {
        settings::json_schema::<PolicyFile>("policy.yaml")
    }

    /// Parses the text of a policy file. Errors contain the path `file`.
    ///
    /// # Errors
    ///
    /// The text is not valid, or a rule has a word that matches no request. The error has line, column and key.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        let parsed: PolicyFile = settings::parse(file, text)?;
        if parsed.rules.len() + parsed.objects.len() > MAX_RULES {
            return Err(ConfigError::whole(file, format!("there are more than {MAX_RULES} rules")));
        }
        let mut names = HashSet::new();
        let rules = parsed.rules.into_iter().enumerate().map(|(index, entry)| {
            let parser = RuleParser { file, key: format!("rules[{index}]") };
            parser.name(&entry.name, &mut names)?;
            parser.rule(entry)
        });
        let rules = rules.collect::<Result<_, _>>()?;
        let objects = parsed.objects.into_iter().enumerate().map(|(index, entry)| {
            let parser = RuleParser { file, key: format!("objects[{index}]") };
            parser.name(&entry.name, &mut names)?;
            parser.object_rule(entry)
        });
        let webhooks = parsed.webhooks.into_iter().enumerate().map(|(index, entry)| {
            AllowedWebhook::new(&entry.url.value, entry.secret_file).map_err(|what| {
                ConfigError::new(file, entry.url.referenced, format!("webhooks[{index}].url"), what)
            })
        });
        let webhooks: Vec<_> = webhooks.collect::<Result<_, _>>()?;
        if webhooks.len() > MAX_WEBHOOKS {
            return Err(ConfigError::whole(file, format!("there are more than {MAX_WEBHOOKS} webhooks")));
        }
        Ok(Self { mode: parsed.mode, rules, objects: objects.collect::<Result<_, _>>()?, webhooks })
    }
}

/// Parses one rule.
struct RuleParser<'a> {
    file: &'a Path,
    /// The key of the rule, such as `rules[0]`.
    key: String,
}

impl RuleParser<'_> {
    fn error<T>(&self, key: &str, value: &Spanned<T>, what: impl Into<String>) -> ConfigError {
        ConfigError::new(self.file, value.referenced, format!("{}.{key}", self.key), what)
    }

    fn name(&self, name: &Spanned<String>, taken: &mut HashSet<String>) -> Result<(), ConfigError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let text = &name.value;
        if text.is_empty() || text.len() > MAX_NAME || !text.chars().all(plain) {
            let what = format!("a rule's name has 1 to {MAX_NAME} letters, digits, '-', '_' and '.'");
            return Err(self.error("name", name, what));
        }
        if [DEFAULT_RULE, UNCLEAR_RULE].contains(&&**text) {
            return Err(self.error(
                "name",
                name,
                format!("{text:?} is reserved: metrics use it for requests without a rule"),
            ));
        }
        if !taken.insert(text.clone()) {
            return Err(self.error("name", name, format!("another rule has the name {text}")));
        }
        Ok(())
    }

    fn rule(&self, entry: RuleEntry) -> Result<Rule, ConfigError> {
        let services = self.words("services", Some(&entry.services), validate::service)?.unwrap_or_default();
        let kind = entry.target_kind();
        let scope = ResourceScope {
            verbs: self.words("verbs", entry.verbs.as_ref(), |word| validate::verb(word, kind))?,
            groups: self.words("apiGroups", entry.api_groups.as_ref(), validate::group)?,
            resources: self.words("resources", entry.resources.as_ref(), validate::resource)?,
            namespaces: self.words("namespaces", entry.namespaces.as_ref(), validate::namespace_pattern)?,
            selector: self.selector(entry.namespace_selector.as_ref())?,
            names: self.words("resourceNames", entry.resource_names.as_ref(), validate::resource_name)?,
            paths: self.words("nonResourceURLs", entry.non_resource_urls.as_ref(), validate::path)?,
            users: entry.impersonate.as_ref().map(|value| self.users(value, entry.action)).transpose()?,
        };
        let restricted = scope.users.is_some()
            || scope.selector.is_some()
            || [&scope.verbs, &scope.groups, &scope.resources, &scope.namespaces, &scope.names, &scope.paths]
                .into_iter()
                .any(Option::is_some);
        if restricted && !services.iter().all(|service| service != "*" && super::is_of_cluster(service)) {
            let what = "the rule has keys that apply to Kubernetes only: write services with kubernetes, alerts, gitops, graph, \
                        notify or provision, and another rule for other services";
            return Err(self.error("services", &entry.services, what));
        }
        if scope.groups.as_ref().is_none_or(|groups| groups.iter().any(|group| validate::is_built_in(group)))
        {
            self.check_resource_names(entry.resources.as_ref())?;
        }

        Ok(Rule { name: entry.name.value, action: entry.action, services, scope })
    }

    fn object_rule(&self, entry: ObjectEntry) -> Result<ObjectRule, ConfigError> {
        if entry.names.is_none() && entry.labels.is_empty() {
            let what = "the rule demands nothing of an object: write names or labels";
            return Err(self.error("name", &entry.name, what));
        }
        let groups = self.words("apiGroups", entry.api_groups.as_ref(), validate::group)?;
        if groups.as_ref().is_none_or(|groups| groups.iter().any(|group| validate::is_built_in(group))) {
            self.check_resource_names(entry.resources.as_ref())?;
        }
        let label = |(label, values): (String, StringList)| {
            let key = format!("labels.{label}");
            let values = self.words(&key, Some(&values), validate::pattern)?.unwrap_or_default();
            Ok((label, values))
        };
        Ok(ObjectRule {
            groups,
            resources: self.words("resources", entry.resources.as_ref(), validate::object_resource)?,
            namespaces: self.words("namespaces", entry.namespaces.as_ref(), validate::namespace_pattern)?,
            selector: self.selector(entry.namespace_selector.as_ref())?,
            names: self.words("names", entry.names.as_ref(), validate::pattern)?,
            labels: entry.labels.into_iter().map(label).collect::<Result<_, ConfigError>>()?,
            name: entry.name.value,
        })
    }

    /// Returns the words of a list. `problem` returns the problem of a word, if it has one.
    fn words(
        &self,
        key: &str,
        words: Option<&StringList>,
        problem: impl Fn(&str) -> Option<&'static str>,
    ) -> Result<Option<Vec<String>>, ConfigError> {
        let Some(words) = words else { return Ok(None) };
        if words.value.is_empty() {
            let what = "an empty list matches nothing: add an element, or remove the key to match everything";
            return Err(self.error(key, words, what));
        }
        let checked = words.value.iter().enumerate().map(|(index, word)| match problem(&word.value) {
            Some(what) => Err(self.error(&format!("{key}[{index}]"), word, what)),
            None => Ok(word.value.clone()),
        });
        checked.collect::<Result<_, _>>().map(Some)
    }

    /// Returns the requirements of a selector, which has at least one.
    fn selector(&self, entry: Option<&Spanned<SelectorEntry>>) -> Result<Option<LabelSelector>, ConfigError> {
        let Some(entry) = entry else { return Ok(None) };
        let mut selector = LabelSelector::default();
        for (label, value) in &entry.value.match_labels {
            let key = format!("namespaceSelector.matchLabels.{label}");
            let added = selector.require(label, LabelOperator::In, std::slice::from_ref(&value.value));
            added.map_err(|what| self.error(&key, value, what))?;
        }
        for (index, expression) in entry.value.match_expressions.iter().enumerate() {
            let ExpressionEntry { key, operator, values } = expression;
            let added = selector.require(&key.value, *operator, values);
            let name = format!("namespaceSelector.matchExpressions[{index}]");
            added.map_err(|what| self.error(&name, key, what))?;
        }
        if selector.is_empty() {
            let what = "the selector has no requirement, so that it would select everything: write matchLabels or matchExpressions, or \
                        remove it";
            return Err(self.error("namespaceSelector", entry, what));
        }
        Ok(Some(selector))
    }

    /// Refuses names of built-in resources that kubectl accepts, and that no request has.
    fn check_resource_names(&self, resources: Option<&StringList>) -> Result<(), ConfigError> {
        let resources = resources.map(|resources| &*resources.value).unwrap_or_default();
        let wrong = resources.iter().enumerate();
        let mut wrong =
            wrong.filter_map(|(at, word)| Some((at, word, kubectl_names::request_name(&word.value)?)));
        match wrong.next() {
            None => Ok(()),
            Some((index, word, right)) => {
                let what = format!("no request has the resource {:?}: write {right}", word.value);
                Err(self.error(&format!("resources[{index}]"), word, what))
            }
        }
    }

    fn users(&self, entry: &Spanned<Impersonate>, action: Action) -> Result<UserPatterns, ConfigError> {
        let value = &entry.value;
        let users =
            self.words("impersonate.users", value.users.as_ref(), validate::pattern)?.unwrap_or_default();
        let groups =
            self.words("impersonate.groups", value.groups.as_ref(), validate::pattern)?.unwrap_or_default();
        if !value.agentk && users.is_empty() && groups.is_empty() {
            return Err(self.error(
                "impersonate",
                entry,
                "it has no user: write self: true, users or groups",
            ));
        }
        if action == Action::Allow && users.is_empty() && !groups.is_empty() {
            let what =
                "a request that impersonates a group also impersonates a user: name users, or users: ['*']";
            return Err(self.error("impersonate", entry, what));
        }

        Ok(UserPatterns { agentk: value.agentk, users, groups })
    }
}

#[cfg(test)]
mod tests {
    use proto::ServiceName;

    use super::*;
    use crate::PolicyMode;

    fn error(text: &str) -> String {
        Policy::parse(Path::new("p.yaml"), text).unwrap_err().to_string()
    }

    #[test]
    fn invalid_policy_is_refused_with_line_and_key() {
        for (keys, expected) in [
            ("services: [kubernetes], verb: [get]", "p.yaml:1:58: rules[0].verb: unknown field `verb`"),
            ("services: [kubernetes], verbs: [read]", "rules[0].verbs[0]: not a verb"),
            ("services: [kubernetes], verbs: [GET]", "rules[0].verbs[0]: not a verb"),
            ("services: [kubernetes], verbs: [connect]", "exec, attach and port-forward are subresources"),
            ("services: [kubernetes], verbs: []", "rules[0].verbs: an empty list matches nothing"),
            ("services: [kubernetes], verbs: ", "rules[0].verbs: "),
            ("services: [kubernetes], resources: [Pods]", "rules[0].resources[0]: not a resource"),
            ("services: [kubernetes], resources: [pods/exec/x]", "not a resource"),
            ("services: [kubernetes], resources: ['pod*']", "not a resource"),
            ("services: [kubernetes], apiGroups: [apps/v1]", "without a version"),
            ("services: [kubernetes], namespaces: ['*-team']", "not a namespace"),
            ("services: [kubernetes], namespaces: ['Team-*']", "not a namespace"),
            ("services: [kubernetes], namespaces: ['**']", "not a namespace"),
            ("services: [kubernetes], namespaces: ['a**']", "not a namespace"),
            ("services: [kubernetes], namespaces: ['']", "not a namespace"),
            ("services: ['*'], namespaces: ['team-*']", "another rule for other services"),
            ("services: [kubernetes], resourceNames: ['a*']", "there are no patterns here"),
            ("services: [kubernetes], nonResourceURLs: [version]", "not a path"),
            ("services: [kubernetes], nonResourceURLs: ['/a*b']", "not a path"),
            ("services: [kubernetes], impersonate: {}", "it has no user"),
            ("services: [kubernetes], impersonate: {groups: [dev]}", "name users, or users: ['*']"),
            (
                "services: [kubernetes], impersonate: {users: ['*x']}",
                "rules[0].impersonate.users[0]: not a name",
            ),
            ("services: [kubernetes], impersonate: {user: [x]}", "unknown field `user`"),
            ("services: ['*'], verbs: [get]", "another rule for other services"),
            ("services: [kubernetes, prometheus], verbs: [get]", "another rule for other services"),
            ("services: [kubernetse]", "p.yaml:1:45: rules[0].services[0]: not the name of a service"),
            ("services: [prometheus.]", "not the name of a service"),
            (
                "services: [kubernetes], resources: [pods], verbs: [get, post]",
                "rules[0].verbs[1]: no request for",
            ),
            (
                "services: [kubernetes], nonResourceURLs: [/api], verbs: [list]",
                "rules[0].verbs[0]: no request for",
            ),
            (
                "services: [kubernetes], resources: [secret]",
                "rules[0].resources[0]: no request has the resource",
            ),
            (
                "services: [kubernetes], resources: [pods, pods/logs]",
                "[1]: no request has the resource \"pods/logs\"",
            ),
            ("services: [kubernetes], apiGroups: [''], resources: [svc]", ": write services"),
            ("services: [kubernetes], resources: [deployments.apps]", "the group apps in apiGroups"),
            (
                "services: [kubernetes], nonResourceURLs: [/api/v1/secrets]",
                "[0]: a request for this path is a request for a resource",
            ),
            (
                "services: [kubernetes], nonResourceURLs: ['/apis/apps/v1/d*']",
                "a request for this path is a request for a resource",
            ),
            (
                "services: [kubernetes], nonResourceURLs: ['//x']",
                "a request for this path is a request for a resource",
            ),
            ("services: [Kubernetes]", "rules[0].services[0]: not the name of a service"),
            ("services: [control]", "agentk's own"),
            ("services: []", "rules[0].services: an empty list"),
        ] {
            let text = format!("rules: [{{name: a, action: allow, {keys}}}]");
            assert!(error(&text).contains(expected), "{keys}\n gave {}", error(&text));
        }
        for (text, expected) in [
            ("mode: enforce", "the key rules is missing"),
            ("mode: warn\nrules: []", "p.yaml:1:7: mode: unknown variant `warn`"),
            ("rules: [{name: a, services: ['*']}]", "the key action is missing"),
            ("rules: [{name: a, action: deny}]", "the key services is missing"),
            ("rules: [{name: 'a b', action: deny, services: ['*']}]", "rules[0].name: a rule's name has"),
            ("rules: [{name: default, action: deny, services: ['*']}]", "\"default\" is reserved"),
            (
                "rules:\n- {name: a, action: deny, services: ['*']}\n- {name: a, action: deny, services: ['*']}",
                "p.yaml:3:10: rules[1].name: another rule has the name a",
            ),
            ("rules: [{name: a, name: b, action: deny, services: ['*']}]", "the key name is set twice"),
        ] {
            assert!(error(text).contains(expected), "{text}\n gave {}", error(text));
        }
    }

    #[test]
    fn word_that_may_match_is_accepted() {
        for keys in [
            "services: ['*', prometheus, prometheus.other]",
            "services: [kubernetes], verbs: [get, post, list]",
            "services: [kubernetes], resources: [pods], nonResourceURLs: [/api], verbs: [get, post, list]",
            "services: [kubernetes], apiGroups: [example.com], resources: [secret]",
            "services: [kubernetes], nonResourceURLs: ['*', '/*', /, /api/, '/api/v1/*', '/a b', '/apis/apps/v1']",
        ] {
            let text = format!("rules: [{{name: a, action: deny, {keys}}}]");
            Policy::parse(Path::new("p.yaml"), &text).unwrap();
        }
    }

    #[test]
    fn policy_without_rules_or_with_unserved_services_has_warnings() {
        let served = [ServiceName::KUBERNETES.parse().unwrap(), "prometheus.a".parse().unwrap()];
        let warnings = |text: &str| Policy::parse(Path::new("p.yaml"), text).unwrap().warnings(&served);
        assert_eq!(warnings("rules: []"), ["there are no rules: the policy refuses every request"]);
        let rule =
            |services: &str| warnings(&format!("rules: [{{name: a, action: deny, services: [{services}]}}]"));
        assert!(rule("kubernetes, prometheus.a").is_empty() && rule("'*'").is_empty());
        assert_eq!(rule("prometheus.b"), [r#"rule "a": this agentk does not serve prometheus.b"#]);
    }

    #[test]
    fn policy_without_rules_is_valid() {
        let policy = Policy::parse(Path::new("p.yaml"), "rules: []").unwrap();
        assert_eq!((policy.mode(), policy.rules().len()), (PolicyMode::Enforce, 0));
    }
}
