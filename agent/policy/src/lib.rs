//! The policy of a cluster's owner (`--policy-file`): the requests that agentk may send to the cluster. Decisions only, without I/O but the
//! reading of the file.
//!
//! ```text
//!   request ──► request_info: verb, resource ─┐
//!           ──► rule: effective user ─────────┴─► rules, the first that matches ──► PolicyDecision
//!   file ──► Policy, or an error with file, line and key
//! ```
//!
//! `review` decides by the same rules about the writes that the API server reviews, and `render` translates them for it.
//!
//! RBAC applies in addition to the requests that pass. The semantics are in `docs/policy.md`.
#![warn(missing_docs)]

pub mod admission_review;
mod entries;
mod file;
mod kubectl_names;
mod labels;
mod object_rule;
mod render;
mod review;
mod rule;
mod validate;
mod warnings;
mod webhooks;

use http::Request;
use kube_cluster::AllowedKinds;
use proto::{LabelSelector, ServiceName};
use request_info::{DecodedPath, RequestInfo, UnclearRequestError};

pub use self::{
    labels::{LabelKeys, LabelUse, NamespaceLabels},
    review::{FeatureWrites, JudgedUsers, Review},
    rule::{Action, Rule},
    webhooks::AllowedWebhook,
};
use self::{
    object_rule::ObjectRule,
    rule::{EffectiveUser, RuleMatch},
};

/// The label in metrics and logs of requests that no rule matches.
pub const DEFAULT_RULE: &str = "default";
/// The label in metrics and logs of requests that cannot be interpreted.
pub const UNCLEAR_RULE: &str = "unclear";

/// An ordered list of rules, and a mode.
#[derive(Clone, Debug)]
pub struct Policy {
    mode: PolicyMode,
    rules: Vec<Rule>,
    /// Rules about the objects of writes, all of which apply. Only admission sees objects.
    objects: Vec<ObjectRule>,
    /// The URLs to which agentk may send events.
    webhooks: Vec<AllowedWebhook>,
}

/// The effect of a decision to refuse a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyMode {
    /// The request is refused.
    #[default]
    Enforce,
    /// The request passes, and is logged and counted.
    DryRun,
}

/// The decision of a policy about one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyDecision {
    /// True if the request may pass.
    pub allowed: bool,
    /// The origin of the decision.
    pub source: DecisionSource,
    /// The part that the labels of the namespace had in it.
    pub labels: LabelUse,
}

/// The origin of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecisionSource {
    /// The rule with this index.
    Rule(usize),
    /// No rule matches the request.
    Default,
    /// The request cannot be interpreted.
    Unclear(UnclearRequestError),
}

impl Policy {
    /// Returns the mode.
    pub fn mode(&self) -> PolicyMode {
        self.mode
    }

    /// Returns the rules, in order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Returns the names of the rules about objects, in order.
    pub fn object_rules(&self) -> impl Iterator<Item = &str> {
        self.objects.iter().map(|rule| &*rule.name)
    }

    /// Returns the message about an object that the rule with this index refuses.
    pub fn object_refusal(&self, index: usize) -> String {
        self.objects[index].refusal()
    }

    /// Returns the entry that allows agentk to send events to a URL.
    pub fn allowed_webhook(&self, url: &str) -> Option<&AllowedWebhook> {
        webhooks::find(&self.webhooks, url)
    }

    /// Returns the keys of the labels of namespaces on which rules depend.
    pub fn label_keys(&self) -> LabelKeys {
        let selectors = self.selectors().flat_map(|(_, selector)| selector.requirements());
        selectors.map(|(key, ..)| key.to_owned()).collect()
    }

    /// Returns the name and the selector of each rule that has one.
    fn selectors(&self) -> impl Iterator<Item = (&str, &LabelSelector)> {
        let of_rules = self.rules.iter().map(|rule| (&*rule.name, rule.scope.selector.as_ref()));
        let of_objects = self.objects.iter().map(|rule| (&*rule.name, rule.selector.as_ref()));
        of_rules.chain(of_objects).filter_map(|(name, selector)| Some((name, selector?)))
    }

    /// Decides about a request to a service. Requests to Prometheus and for the audit log are judged by the name of the service alone; all
    /// others are requests for the API of the cluster, also those that `alerts`, `gitops`, `graph`, `notify` and `provision` send.
    pub fn evaluate<B>(
        &self,
        service: &str,
        request: &Request<B>,
        labels: &NamespaceLabels,
    ) -> PolicyDecision {
        if !is_of_cluster(service) {
            return self.decide(|rule| rule.has_service(service).into());
        }

        let decision =
            interpret(request, |info, user| self.decide(|rule| rule.matches(service, info, user, labels)));
        decision.unwrap_or_else(|unclear| PolicyDecision {
            allowed: false,
            source: DecisionSource::Unclear(unclear),
            labels: LabelUse::Unused,
        })
    }

    /// Returns whether a rule that names the service and the verb allows a request, whatever the mode is. Rules that deny apply, and
    /// others that allow do not: it is the consent to something that nobody sends as a request.
    pub fn grants<B>(&self, service: &str, request: &Request<B>, labels: &NamespaceLabels) -> bool {
        let granted = interpret(request, |info, user| {
            let counts = |rule: &Rule| rule.action == Action::Deny || rule.names(service, info.verb);
            let matches = |rule: &Rule| {
                if counts(rule) { rule.matches(service, info, user, labels) } else { false.into() }
            };
            self.decide(matches).allowed
        });
        granted.unwrap_or(false)
    }

    /// Returns the decision of the first rule that matches.
    fn decide(&self, matches: impl Fn(&Rule) -> RuleMatch) -> PolicyDecision {
        let mut labels = LabelUse::Unused;
        for (index, rule) in self.rules.iter().enumerate() {
            let matched = matches(rule);
            labels = labels.max(matched.labels);
            if matched.matches {
                let allowed = rule.action == Action::Allow;
                return PolicyDecision { allowed, source: DecisionSource::Rule(index), labels };
            }
        }
        PolicyDecision { allowed: false, source: DecisionSource::Default, labels }
    }

    /// Returns the resources that may be objects of environments: those that a rule for the service `provision`, by this name, lists
    /// by their names. A rule for all services or all resources allows requests, and lists none.
    pub fn provisioned(&self) -> AllowedKinds {
        AllowedKinds::new(self.rules.iter().filter_map(Rule::provisioned))
    }

    /// Returns the name of the rule, or of its absence, in metrics and logs.
    pub fn rule_name(&self, source: DecisionSource) -> &str {
        match source {
            DecisionSource::Rule(index) => self.rules[index].name(),
            DecisionSource::Default => DEFAULT_RULE,
            DecisionSource::Unclear(_) => UNCLEAR_RULE,
        }
    }
}

/// Returns whether the requests of a service are those for the API of the cluster. A service that is not known here is judged by more than
/// its name.
fn is_of_cluster(service: &str) -> bool {
    let of_prometheus = service.strip_prefix(ServiceName::PROMETHEUS);
    service != ServiceName::AUDIT
        && of_prometheus.is_none_or(|rest| !(rest.is_empty() || rest.starts_with('.')))
}

/// Returns a description of a request for messages. It costs more than a decision, and most decisions need none.
pub fn describe<B>(service: &str, request: &Request<B>) -> String {
    let (method, path) = (request.method(), request.uri().path());
    if !is_of_cluster(service) {
        return format!("{method} {path} of {service}");
    }

    let described = interpret(request, |info, user| match user {
        EffectiveUser::Agentk => info.to_string(),
        user => format!("{info} {user}"),
    });
    described.unwrap_or_else(|_| format!("{method} {path}"))
}

fn interpret<B, T>(
    request: &Request<B>,
    then: impl FnOnce(&RequestInfo<'_>, &EffectiveUser<'_>) -> T,
) -> Result<T, UnclearRequestError> {
    let path = DecodedPath::new(request.uri())?;
    let info = RequestInfo::new(request.method(), &path, request.uri().query())?;
    let user = EffectiveUser::new(request.headers())?;
    Ok(then(&info, &user))
}

#[cfg(test)]
mod review_tests;
#[cfg(test)]
mod selector_tests;
#[cfg(test)]
mod tests;
