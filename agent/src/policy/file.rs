//! The policy file: its shape, and what makes it invalid.

use std::{collections::HashSet, path::Path};

use proto::{
    ServiceName,
    yaml::{self, Error, Spanned},
};
use serde::{Deserialize, Deserializer};

use super::{
    DEFAULT, Mode, Policy, UNCLEAR,
    rule::{Action, Actors, Rule, Scope},
};

/// Most rules: each is a label of a metric, and is tried for every request.
const MAX_RULES: usize = 500;
/// Longest name of a rule.
const MAX_NAME: usize = 63;

const VERBS: [&str; 15] = [
    "*",
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "proxy",
    "update",
    "watch",
    "head",
    "options",
    "post",
    "put",
    "connect",
];

type Words = Spanned<Vec<Spanned<String>>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    mode: Mode,
    rules: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Entry {
    name: Spanned<String>,
    action: Action,
    services: Words,
    #[serde(default, deserialize_with = "given")]
    verbs: Option<Words>,
    #[serde(default, deserialize_with = "given")]
    api_groups: Option<Words>,
    #[serde(default, deserialize_with = "given")]
    resources: Option<Words>,
    #[serde(default, deserialize_with = "given")]
    namespaces: Option<Words>,
    #[serde(default, deserialize_with = "given")]
    resource_names: Option<Words>,
    #[serde(default, deserialize_with = "given", rename = "nonResourceURLs")]
    non_resource_urls: Option<Words>,
    #[serde(default, deserialize_with = "given")]
    impersonate: Option<Spanned<Impersonate>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Impersonate {
    #[serde(default, rename = "self")]
    agentk: bool,
    #[serde(default, deserialize_with = "given")]
    users: Option<Words>,
    #[serde(default, deserialize_with = "given")]
    groups: Option<Words>,
}

/// A key without a value is a mistake, and not a restriction that is absent.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

impl Policy {
    /// Parses the text of a policy file; `file` is for errors.
    pub fn parse(file: &Path, text: &str) -> Result<Self, Error> {
        let parsed: File = yaml::parse(file, text)?;
        if parsed.rules.len() > MAX_RULES {
            return Err(Error::whole(file, format!("there are more than {MAX_RULES} rules")));
        }
        let mut names = HashSet::new();
        let rules = parsed.rules.into_iter().enumerate().map(|(index, entry)| {
            let at = At { file, key: format!("rules[{index}]") };
            at.name(&entry.name, &mut names)?;
            at.rule(entry)
        });
        Ok(Self { mode: parsed.mode, rules: rules.collect::<Result<_, _>>()? })
    }
}

/// Where in the file we are.
struct At<'a> {
    file: &'a Path,
    key: String,
}

impl At<'_> {
    fn error<T>(&self, key: &str, value: &Spanned<T>, what: impl Into<String>) -> Error {
        Error::new(self.file, value.referenced, format!("{}.{key}", self.key), what)
    }

    fn name(&self, name: &Spanned<String>, taken: &mut HashSet<String>) -> Result<(), Error> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let text = &name.value;
        if text.is_empty() || text.len() > MAX_NAME || !text.chars().all(plain) {
            let what = format!("a rule's name has 1 to {MAX_NAME} letters, digits, '-', '_' and '.'");
            return Err(self.error("name", name, what));
        }
        if [DEFAULT, UNCLEAR].contains(&&**text) {
            return Err(self.error(
                "name",
                name,
                format!("{text:?} is what metrics call the absence of a rule"),
            ));
        }
        if !taken.insert(text.clone()) {
            return Err(self.error("name", name, format!("another rule has the name {text}")));
        }
        Ok(())
    }

    fn rule(&self, entry: Entry) -> Result<Rule, Error> {
        let services = self.words("services", Some(&entry.services), service)?.unwrap_or_default();
        let scope = Scope {
            verbs: self.words("verbs", entry.verbs.as_ref(), verb)?,
            groups: self.words("apiGroups", entry.api_groups.as_ref(), group)?,
            resources: self.words("resources", entry.resources.as_ref(), resource)?,
            namespaces: self.words("namespaces", entry.namespaces.as_ref(), namespace)?,
            names: self.words("resourceNames", entry.resource_names.as_ref(), resource_name)?,
            paths: self.words("nonResourceURLs", entry.non_resource_urls.as_ref(), path)?,
            actors: entry.impersonate.as_ref().map(|entry_| self.actors(entry_, entry.action)).transpose()?,
        };
        let restricted = scope.actors.is_some()
            || [&scope.verbs, &scope.groups, &scope.resources, &scope.namespaces, &scope.names, &scope.paths]
                .into_iter()
                .any(Option::is_some);
        if restricted && services != [ServiceName::KUBERNETES] {
            let what = "the rule has keys that only requests to Kubernetes have: write services: [kubernetes], and \
                        another rule for other services";
            return Err(self.error("services", &entry.services, what));
        }

        Ok(Rule { name: entry.name.value, action: entry.action, services, scope })
    }

    fn words(
        &self,
        key: &str,
        words: Option<&Words>,
        problem: impl Fn(&str) -> Option<&'static str>,
    ) -> Result<Option<Vec<String>>, Error> {
        let Some(words) = words else { return Ok(None) };
        if words.value.is_empty() {
            let what =
                "an empty list is about nothing: name something, or leave the key out to mean everything";
            return Err(self.error(key, words, what));
        }
        let checked = words.value.iter().enumerate().map(|(index, word)| match problem(&word.value) {
            Some(what) => Err(self.error(&format!("{key}[{index}]"), word, what)),
            None => Ok(word.value.clone()),
        });
        checked.collect::<Result<_, _>>().map(Some)
    }

    fn actors(&self, entry: &Spanned<Impersonate>, action: Action) -> Result<Actors, Error> {
        let who = &entry.value;
        let users = self.words("impersonate.users", who.users.as_ref(), pattern)?.unwrap_or_default();
        let groups = self.words("impersonate.groups", who.groups.as_ref(), pattern)?.unwrap_or_default();
        if !who.agentk && users.is_empty() && groups.is_empty() {
            return Err(self.error(
                "impersonate",
                entry,
                "nobody is named: write self: true, users or groups",
            ));
        }
        if action == Action::Allow && users.is_empty() && !groups.is_empty() {
            let what = "whoever acts as a group acts as a user, too: name users, or users: ['*']";
            return Err(self.error("impersonate", entry, what));
        }

        Ok(Actors { agentk: who.agentk, users, groups })
    }
}

// What is wrong with a word.

fn service(word: &str) -> Option<&'static str> {
    match word {
        "*" => None,
        ServiceName::CONTROL => Some("the service 'control' is agentk's own, and no policy is about it"),
        _ if word.parse::<ServiceName>().is_err() => {
            Some("not the name of a service: write kubernetes, prometheus, prometheus.<name> or '*'")
        }
        _ => None,
    }
}

fn verb(word: &str) -> Option<&'static str> {
    match VERBS.contains(&word) {
        _ if word == "connect" => Some(
            "exec and its like are subresources, like resources: [pods/exec], with the verbs get and create",
        ),
        true => None,
        false => Some(
            "not a verb: write get, list, watch, create, update, patch, delete, deletecollection or '*'; and for \
             nonResourceURLs the method in lower case",
        ),
    }
}

fn group(word: &str) -> Option<&'static str> {
    let plain = word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.');
    (word != "*" && !plain)
        .then_some("not an API group: write '' (the core group), like apps, or '*'; without a version")
}

fn resource(word: &str) -> Option<&'static str> {
    let plain = |part: &str| {
        part == "*"
            || (!part.is_empty()
                && part
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.'))
    };
    let valid = match word.split_once('/') {
        Some((resource, sub)) => plain(resource) && plain(sub),
        None => plain(word),
    };
    (!valid).then_some(
        "not a resource: write it in the plural and lower case, like pods, pods/log, '*/scale' or '*'",
    )
}

fn namespace(word: &str) -> Option<&'static str> {
    let plain =
        !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    (word != "*" && !plain)
        .then_some("not a namespace: write its exact name, or '*' for all and for what has none")
}

fn resource_name(word: &str) -> Option<&'static str> {
    let valid = !word.is_empty() && !word.contains(['*', '/', '%']);
    (!valid).then_some("not an object's name: write it exactly; there are no patterns here")
}

fn path(word: &str) -> Option<&'static str> {
    let inner = word.strip_suffix('*').unwrap_or(word);
    let valid = word == "*" || (inner.starts_with('/') && !inner.contains(['*', '%']));
    (!valid).then_some("not a path: write it like /version, or like /healthz* for all that begin so")
}

fn pattern(word: &str) -> Option<&'static str> {
    let inner = word.strip_suffix('*').unwrap_or(word);
    let valid = !word.is_empty() && !inner.contains('*') && word.trim() == word;
    (!valid).then_some("not a name: write it exactly, or with a '*' at its end for all that begin so")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        Policy::parse(Path::new("p.yaml"), text).unwrap_err().to_string()
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_its_place() {
        for (keys, expected) in [
            ("services: [kubernetes], verb: [get]", "p.yaml:1:58: rules[0].verb: unknown field `verb`"),
            ("services: [kubernetes], verbs: [read]", "rules[0].verbs[0]: not a verb"),
            ("services: [kubernetes], verbs: [GET]", "rules[0].verbs[0]: not a verb"),
            ("services: [kubernetes], verbs: [connect]", "exec and its like are subresources"),
            ("services: [kubernetes], verbs: []", "rules[0].verbs: an empty list is about nothing"),
            ("services: [kubernetes], verbs: ", "rules[0].verbs: "),
            ("services: [kubernetes], resources: [Pods]", "rules[0].resources[0]: not a resource"),
            ("services: [kubernetes], resources: [pods/exec/x]", "not a resource"),
            ("services: [kubernetes], resources: ['pod*']", "not a resource"),
            ("services: [kubernetes], apiGroups: [apps/v1]", "without a version"),
            ("services: [kubernetes], namespaces: ['team-*']", "not a namespace"),
            ("services: [kubernetes], resourceNames: ['a*']", "there are no patterns here"),
            ("services: [kubernetes], nonResourceURLs: [version]", "not a path"),
            ("services: [kubernetes], nonResourceURLs: ['/a*b']", "not a path"),
            ("services: [kubernetes], impersonate: {}", "nobody is named"),
            ("services: [kubernetes], impersonate: {groups: [dev]}", "name users, or users: ['*']"),
            (
                "services: [kubernetes], impersonate: {users: ['*x']}",
                "rules[0].impersonate.users[0]: not a name",
            ),
            ("services: [kubernetes], impersonate: {user: [x]}", "unknown field `user`"),
            ("services: ['*'], verbs: [get]", "another rule for other services"),
            ("services: [kubernetes, prometheus], verbs: [get]", "another rule for other services"),
            ("services: [Kubernetes]", "rules[0].services[0]: not the name of a service"),
            ("services: [control]", "agentk's own"),
            ("services: []", "rules[0].services: an empty list"),
        ] {
            let text = format!("rules: [{{name: a, action: allow, {keys}}}]");
            assert!(error(&text).contains(expected), "{keys}\n gave {}", error(&text));
        }
        for (text, expected) in [
            ("mode: enforce", "missing field `rules`"),
            ("mode: warn\nrules: []", "p.yaml:1:7: mode: unknown variant `warn`"),
            ("rules: [{name: a, services: ['*']}]", "missing field `action`"),
            ("rules: [{name: a, action: deny}]", "missing field `services`"),
            ("rules: [{name: 'a b', action: deny, services: ['*']}]", "rules[0].name: a rule's name has"),
            ("rules: [{name: default, action: deny, services: ['*']}]", "what metrics call the absence"),
            (
                "rules:\n- {name: a, action: deny, services: ['*']}\n- {name: a, action: deny, services: ['*']}",
                "p.yaml:3:10: rules[1].name: another rule has the name a",
            ),
            ("rules: [{name: a, name: b, action: deny, services: ['*']}]", "duplicate"),
        ] {
            assert!(error(text).contains(expected), "{text}\n gave {}", error(text));
        }
    }

    #[test]
    fn no_rule_is_a_policy_that_allows_nothing() {
        let policy = Policy::parse(Path::new("p.yaml"), "rules: []").unwrap();
        assert_eq!((policy.mode(), policy.rules().len()), (Mode::Enforce, 0));
    }
}
