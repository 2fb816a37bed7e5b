//! Translates a policy into a `ValidatingAdmissionPolicy`, whose rules the API server evaluates itself (CEL).
//!
//! The expressions are those of `rule` and `review`, rule by rule, so that both can be read side by side.

use std::fmt::Write as _;

use kube_cluster::LEASE_PREFIX;
use proto::{LabelOperator, LabelSelector};
use serde_json::{Value, json};

use super::{
    Policy, PolicyMode,
    object_rule::ObjectRule,
    review::{ADDED_GROUPS, INVENTORY_PREFIX, JudgedUsers, OWN_QUESTIONS},
    rule::{Action, ResourceScope, Rule, UserPatterns},
};

/// The most rules. Their expression is nested once for each, and the API server limits the depth.
const MAX_RULES: usize = 100;
/// The verbs that a request may have, in CEL: `review::verbs`.
const VERBS: &str = "request.operation == 'CONNECT' ? ['get', 'create'] : request.operation == 'DELETE' ? \
    (variables.name == '' ? ['deletecollection'] : ['delete']) : request.operation == 'UPDATE' ? ['update', 'patch'] : \
    ['create', 'patch', 'update']";
/// The path of a create has no name, and that of a new namespace no namespace: `review::info`.
const IS_NEW: &str = "verb == 'create' && variables.subresource == ''";

/// A namespace has no other namespace: its labels are those before the write.
const IS_NAMESPACE: &str = "variables.group == '' && variables.resource == 'namespaces'";

/// The policy has more rules than an expression can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the policy has {0} rules: an admission policy can have at most {MAX_RULES}; use the webhook (agentk admission)"
)]
pub struct TooManyRulesError(usize);

impl Policy {
    /// Returns the `ValidatingAdmissionPolicy` and its binding, both with this name.
    ///
    /// # Errors
    ///
    /// The policy has more than 100 rules.
    pub fn render(&self, users: &JudgedUsers, name: &str) -> Result<[Value; 2], TooManyRulesError> {
        if self.rules.len() + self.objects.len() > MAX_RULES {
            return Err(TooManyRulesError(self.rules.len() + self.objects.len()));
        }
        let actions = match self.mode {
            PolicyMode::Enforce => ["Deny"].as_slice(),
            PolicyMode::DryRun => ["Warn", "Audit"].as_slice(),
        };
        let variable = |name: &str, expression: String| json!({"name": name, "expression": expression});
        let allowed = users
            .writing_services()
            .map(|service| format!("variables.verbs.exists(verb, {})", self.chain(service)));
        let allowed: Vec<_> = allowed.collect();
        let mut validations = vec![json!({
            "expression": format!("variables.isUnjudged || {}", allowed.join(" || ")),
            "message": "the policy of this cluster does not allow this",
            "reason": "Forbidden",
        })];
        validations.extend(self.objects.iter().map(ObjectRule::validation));
        let mut variables = vec![
            variable("isAgentk", format!("request.userInfo.username == {}", literal(&users.username()))),
            variable("groups", groups()),
            variable("group", "request.requestResource.group".to_owned()),
            variable("resource", "request.requestResource.resource".to_owned()),
            variable("subresource", "has(request.subResource) ? request.subResource : ''".to_owned()),
            variable("inNamespace", "has(request.namespace) ? request.namespace : ''".to_owned()),
            variable("name", "has(request.name) ? request.name : ''".to_owned()),
            variable("verbs", VERBS.to_owned()),
            variable("isUnjudged", users.unjudged()),
        ];
        if self.selectors().next().is_some() {
            variables.push(variable("hasLabels", format!("!({IS_NAMESPACE}) || oldObject != null")));
            variables.push(variable("labels", labels()));
        }
        let policy = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": [
                    {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]},
                ]},
                "matchConditions": [{"name": "users-of-agentk", "expression": users.condition()}],
                "variables": variables,
                "validations": validations,
            },
        });
        let binding = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": actions},
        });
        Ok([policy, binding])
    }

    /// Returns the expression of the first rule that matches.
    fn chain(&self, service: &str) -> String {
        let mut chain = String::new();
        for rule in self.rules.iter().filter(|rule| rule.has_service(service)) {
            let Some(matches) = rule.expression() else { continue };
            let allows = rule.action == Action::Allow;
            let _ = write!(chain, "{matches} ? {allows} : ");
        }
        chain + "false"
    }
}

impl Rule {
    /// Returns the expression that is true if the rule matches, or `None` if it matches no resource.
    fn expression(&self) -> Option<String> {
        let scope = &self.scope;
        let partial = self.action == Action::Deny;
        if scope.paths.is_some() && !scope.names_resources() {
            return None;
        }
        let mut all = Vec::new();
        all.extend(scope.verbs.as_deref().and_then(|verbs| one_of("verb", verbs)));
        all.extend(scope.users.as_ref().map(|users| users.expression(partial)));
        all.extend(scope.target_expressions(partial));
        Some(if all.is_empty() { "true".to_owned() } else { format!("({})", all.join(" && ")) })
    }
}

impl ResourceScope {
    fn target_expressions(&self, partial: bool) -> Vec<String> {
        let mut all = Vec::new();
        all.extend(self.groups.as_deref().and_then(|groups| one_of("variables.group", groups)));
        all.extend(self.resources.as_deref().and_then(resources));
        let listed = [
            self.namespaces.as_deref().and_then(namespaces),
            self.selector.as_ref().map(|it| selector(it, partial)),
        ];
        for listed in listed.into_iter().flatten() {
            // A request for all namespaces includes the listed ones; one for a cluster-scoped object has none.
            let single = "variables.name != '' && verb in ['get', 'update', 'patch', 'delete']";
            let without = if partial { format!("!({single})") } else { "false".to_owned() };
            let has_none = format!(
                "variables.inNamespace == '' || ({IS_NEW} && variables.group == '' && variables.resource == 'namespaces')"
            );
            all.push(format!("({has_none} ? {without} : {listed})"));
        }
        if let Some(listed) = self.names.as_deref().and_then(|names| one_of("variables.name", names)) {
            all.push(format!("(variables.name == '' || ({IS_NEW}) ? {partial} : {listed})"));
        }
        all
    }
}

impl UserPatterns {
    fn expression(&self, partial: bool) -> String {
        let user = one_pattern("request.userInfo.username", &self.users);
        let group = one_pattern("group", &self.groups);
        let impersonated = if partial {
            format!("({user} || variables.groups.exists(group, {group}))")
        } else {
            format!("({user} && variables.groups.all(group, {group}))")
        };
        format!("(variables.isAgentk ? {} : {impersonated})", self.agentk)
    }
}

impl ObjectRule {
    fn validation(&self) -> Value {
        let mut applies = vec!["variables.subresource == ''".to_owned()];
        applies.push("request.operation in ['CREATE', 'UPDATE']".to_owned());
        applies.extend(self.groups.as_deref().and_then(|groups| one_of("variables.group", groups)));
        applies.extend(self.resources.as_deref().and_then(resources));
        applies.extend(self.namespaces.as_deref().and_then(namespaces));
        applies.extend(
            self.selector.as_ref().map(|it| format!("variables.inNamespace != '' && {}", selector(it, true))),
        );
        let mut demands = Vec::new();
        if let Some(names) = &self.names {
            demands.push(one_pattern("object.metadata.name", names));
        }
        for (label, values) in &self.labels {
            let key = literal(label);
            let value = one_pattern(&format!("object.metadata.labels[{key}]"), values);
            demands
                .push(format!("has(object.metadata.labels) && {key} in object.metadata.labels && {value}"));
        }
        json!({
            "expression": format!("variables.isUnjudged || !({}) || ({})", applies.join(" && "), demands.join(" && ")),
            "message": self.refusal(),
            "reason": "Forbidden",
        })
    }
}

impl JudgedUsers {
    fn condition(&self) -> String {
        let user = "request.userInfo.username";
        let prefixes = self.prefixes.iter().map(|prefix| format!("{user}.startsWith({})", literal(prefix)));
        let own = format!("{user} == {}", literal(&self.username()));
        [own].into_iter().chain(prefixes).collect::<Vec<_>>().join(" || ")
    }

    /// Returns the expression of what is not judged: `is_own_object`, and questions.
    fn unjudged(&self) -> String {
        let is = |group: &str, resource: &str| {
            format!("(variables.group == '{group}' && variables.resource == '{resource}')")
        };
        let here = format!("variables.inNamespace == {}", literal(&self.namespace));
        let suffixes = self.features.lease_suffixes.iter();
        let suffixes: Vec<_> =
            suffixes.map(|suffix| format!("variables.name.endsWith('{suffix}')")).collect();
        let lease = format!(
            "{} && {here} && variables.name.startsWith('{LEASE_PREFIX}') && ({})",
            is("coordination.k8s.io", "leases"),
            suffixes.join(" || ")
        );
        let inventory =
            format!("{} && {here} && variables.name.startsWith('{INVENTORY_PREFIX}')", is("", "configmaps"));
        let events = format!(
            "({} || {}) && request.operation != 'DELETE'",
            is("", "events"),
            is("events.k8s.io", "events")
        );
        let questions = OWN_QUESTIONS.map(|(group, resource)| is(group, resource)).join(" || ");
        format!("{questions} || (variables.isAgentk && (({lease}) || ({inventory}) || ({events})))")
    }
}

/// Returns the expression of the groups that a request with impersonation names.
fn groups() -> String {
    let added = ADDED_GROUPS.map(|added| {
        if added.ends_with(':') {
            format!("!group.startsWith({})", literal(added))
        } else {
            format!("group != {}", literal(added))
        }
    });
    let all = "has(request.userInfo.groups) ? request.userInfo.groups : []";
    format!("({all}).filter(group, {})", added.join(" && "))
}

/// Returns the expression that is true if the namespace matches one of the patterns, or `None` if it may be any.
fn namespaces(patterns: &[String]) -> Option<String> {
    let operand = "variables.inNamespace";
    if patterns.iter().any(|pattern| pattern.len() > 1 && pattern.ends_with('*')) {
        (!patterns.iter().any(|pattern| pattern == "*")).then(|| one_pattern(operand, patterns))
    } else {
        one_of(operand, patterns)
    }
}

/// Returns the expression of the labels of the namespace. It is evaluated only if there is one.
fn labels() -> String {
    let of = |object: &str| format!("(has({object}.metadata.labels) ? {object}.metadata.labels : {{}})");
    format!("{IS_NAMESPACE} ? {} : {}", of("oldObject"), of("namespaceObject"))
}

/// Returns the expression that is true if the namespace has the labels. `unknown` is the result if they are not known.
fn selector(selector: &LabelSelector, unknown: bool) -> String {
    let each = selector.requirements().map(|(key, operator, values)| {
        let key = literal(key);
        let has = format!("{key} in variables.labels");
        let is_in = one_of(&format!("variables.labels[{key}]"), values).unwrap_or_default();
        match operator {
            LabelOperator::In => format!("{has} && {is_in}"),
            LabelOperator::NotIn => format!("!({has} && {is_in})"),
            LabelOperator::Exists => has,
            LabelOperator::DoesNotExist => format!("!({has})"),
        }
    });
    let each: Vec<_> = each.collect();
    format!("(variables.hasLabels ? {} : {unknown})", each.join(" && "))
}

/// Returns the expression that is true if the operand is one of the words, or `None` if it may be anything.
fn one_of(operand: &str, words: &[String]) -> Option<String> {
    let any = words.iter().any(|word| word == "*");
    let words: Vec<String> = words.iter().map(|word| literal(word)).collect();
    (!any).then(|| format!("{operand} in [{}]", words.join(", ")))
}

/// Returns the expression that is true if the operand matches one of the patterns.
fn one_pattern(operand: &str, patterns: &[String]) -> String {
    let each = patterns.iter().map(|pattern| match pattern.strip_suffix('*') {
        Some("") => "true".to_owned(),
        Some(prefix) => format!("{operand}.startsWith({})", literal(prefix)),
        None => format!("{operand} == {}", literal(pattern)),
    });
    let each: Vec<String> = each.collect();
    if each.is_empty() { "false".to_owned() } else { format!("({})", each.join(" || ")) }
}

/// Returns the expression that is true if one of the patterns of resources matches, or `None` if each resource does.
fn resources(patterns: &[String]) -> Option<String> {
    let is = |operand: &str, word: &str| match word {
        "*" => "true".to_owned(),
        word => format!("{operand} == {}", literal(word)),
    };
    let each = patterns.iter().map(|pattern| match pattern.split_once('/') {
        None => format!("(variables.subresource == '' && {})", is("variables.resource", pattern)),
        Some((resource, sub)) => {
            let resource = is("variables.resource", resource);
            format!("(variables.subresource != '' && {resource} && {})", is("variables.subresource", sub))
        }
    });
    let each: Vec<String> = each.collect();
    (!patterns.iter().any(|pattern| pattern == "*")).then(|| format!("({})", each.join(" || ")))
}

/// Returns a literal of CEL, which has the escapes of JSON.
fn literal(text: &str) -> String {
    json!(text).to_string()
}
