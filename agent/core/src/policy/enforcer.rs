//! Enforces the policy in force: checks, counts and logs requests, and reloads the policy file.

mod staging;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use agentk_policy::{
    Action, AllowedWebhook, DEFAULT_RULE, DecisionSource, JudgedUsers, LabelKeys, LabelUse, NamespaceLabels,
    Policy, PolicyDecision, PolicyMode, Review, UNCLEAR_RULE, admission_review::AdmissionRequest, describe,
};
use arc_swap::ArcSwap;
use http::Request;
use kube_cluster::AllowedKinds;
use process::LogLimiter;
use prometheus_client::metrics::counter::Counter;
use proto::{Reason, ServiceName, header};
use settings::ConfigError;
use tokio::{sync::watch, time::Instant};

use self::staging::Staging;
use super::LabelStore;
use crate::{ServiceError, metrics::AgentMetrics};

/// The longest description of a request in the log, in characters.
const MAX_DESCRIPTION: usize = 300;
/// The period in which refusals of one rule are logged once.
const LOG_PERIOD: Duration = Duration::from_secs(60);

/// Checks requests against the policy in force.
#[derive(Debug)]
pub struct PolicyEnforcer {
    file: PathBuf,
    /// The services that agentk announces. Rules for others cause warnings.
    served: Vec<ServiceName>,
    active: ArcSwap<ActivePolicy>,
    staging: Staging,
    labels: LabelStore,
    changes: watch::Sender<()>,
    metrics: AgentMetrics,
}

#[derive(Debug)]
struct ActivePolicy {
    /// The number of versions before this one.
    version: u64,
    text: String,
    policy: Policy,
    /// The keys of the labels of namespaces on which the rules depend.
    label_keys: LabelKeys,
    /// One for each rule, then that of the default, that of unclear requests, and one for each rule about objects.
    stats: Vec<RuleStats>,
    /// Limits the log lines of refusals, by the index in `stats`.
    log_limit: LogLimiter<usize>,
}

/// The result of the review of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The policy does not judge the write.
    NotJudged,
    /// The write may pass.
    Allowed,
    /// The write may pass because of `mode: dry-run`, and would be refused with this message.
    WouldRefuse(String),
    /// The write is refused with this message.
    Refused(String),
}

#[derive(Debug)]
struct RuleStats {
    name: String,
    /// The value of the metric label.
    decision: &'static str,
    counter: Counter,
}

impl PolicyEnforcer {
    /// Returns an enforcer of the policy in `file`. It reads the file, which blocks.
    pub fn load(file: PathBuf, served: Vec<ServiceName>, metrics: AgentMetrics) -> Result<Self, ConfigError> {
        let text = Policy::read(&file)?;
        let policy = Policy::parse(&file, &text)?;
        let active = ActivePolicy::new(0, text, policy, &metrics);
        let (staging, labels) = (Staging::new(active.label_keys.clone()), LabelStore::default());
        let (active, changes) = (ArcSwap::from_pointee(active), watch::Sender::new(()));
        let enforcer = Self { file, served, active, staging, labels, changes, metrics };
        enforcer.log_active();

        Ok(enforcer)
    }

    /// Returns the path of the policy file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Returns the mode and the number of rules of the policy in force.
    pub fn summary(&self) -> (PolicyMode, usize) {
        let active = self.active.load();
        (active.policy.mode(), active.policy.rules().len())
    }

    /// Returns the [warnings](Policy::warnings) of the policy in force.
    pub fn warnings(&self) -> Vec<String> {
        self.active.load().policy.warnings(&self.served)
    }

    /// Returns the entry that allows agentk to send events to a URL.
    pub fn allowed_webhook(&self, url: &str) -> Option<AllowedWebhook> {
        self.active.load().policy.allowed_webhook(url).cloned()
    }

    /// Checks a request, counts the decision, and logs a refusal. Returns the version of the policy that permits it.
    pub fn check<B>(&self, service: &str, request: &Request<B>) -> Result<u64, ServiceError> {
        let active = self.active.load();
        // Before the labels, so that a later change of them is a later version.
        let version = self.version_of(&active);
        let decision = self.decide(&active, |policy, labels| policy.evaluate(service, request, labels));
        let index = active.stats_index(decision.source);
        active.stats[index].counter.inc();
        if decision.allowed {
            return Ok(version);
        }

        let (enforced, described) = (active.policy.mode() == PolicyMode::Enforce, describe(service, request));
        active.log_refusal(decision, service, request, &described, enforced);
        if !enforced {
            return Ok(version);
        }
        Err(ServiceError::new(Reason::RefusedByPolicy, self.refusal(&active, decision, &described)))
    }

    /// Returns a decision. A policy without selectors takes no lock.
    fn decide<T>(&self, active: &ActivePolicy, decide: impl FnOnce(&Policy, &NamespaceLabels) -> T) -> T {
        if active.label_keys.is_empty() {
            decide(&active.policy, &NamespaceLabels::default())
        } else {
            self.labels.read(|labels| decide(&active.policy, labels))
        }
    }

    /// Returns the message about a refused request. If labels had a part in it, the message is the same for a namespace that does not exist, so
    /// that it does not show which ones do.
    fn refusal(&self, active: &ActivePolicy, decision: PolicyDecision, described: &str) -> String {
        if decision.labels == LabelUse::Unused {
            return refusal(
                &active.stats[active.stats_index(decision.source)].name,
                decision.source,
                described,
            );
        }
        let message = format!(
            "the policy of this cluster does not allow this: no rule allows {described} with the labels of its namespace"
        );
        match self.labels.read(NamespaceLabels::problem) {
            Some(problem) => format!("{message}; the labels of namespaces are not known: {problem}"),
            None => message,
        }
    }

    /// Reviews a write for the API server, counts the decision, and logs a refusal.
    pub fn review(&self, users: &JudgedUsers, request: &AdmissionRequest) -> Verdict {
        let active = self.active.load();
        let review = self.decide(&active, |policy, labels| policy.review(users, request, labels));
        let index = match review {
            Review::NotJudged => return Verdict::NotJudged,
            Review::Decided(decision) => active.stats_index(decision.source),
            Review::Object(rule) => active.policy.rules().len() + 2 + rule,
        };
        active.stats[index].counter.inc();
        let described = request.describe();
        let (message, labels) = match review {
            Review::Decided(decision) if decision.allowed => return Verdict::Allowed,
            Review::Decided(decision) => (self.refusal(&active, decision, &described), decision.labels),
            Review::Object(rule) => {
                (format!("{}: {described}", active.policy.object_refusal(rule)), LabelUse::Unused)
            }
            Review::NotJudged => return Verdict::NotJudged,
        };
        let enforced = active.policy.mode() == PolicyMode::Enforce;
        active.log((index, labels), "admission", &described, Some(&request.uid), enforced);
        if enforced { Verdict::Refused(message) } else { Verdict::WouldRefuse(message) }
    }

    /// Returns the resources that may be objects of environments.
    pub fn provisioned(&self) -> AllowedKinds {
        self.active.load().policy.provisioned()
    }

    /// Returns whether the policy in force [grants](Policy::grants) a request.
    pub fn grants<B>(&self, service: &str, request: &Request<B>) -> bool {
        self.decide(&self.active.load(), |policy, labels| policy.grants(service, request, labels))
    }

    /// Returns whether a request would be permitted. It is neither counted nor logged, because nobody sends it.
    pub fn permits<B>(&self, service: &str, request: &Request<B>) -> bool {
        let active = self.active.load();
        active.policy.mode() != PolicyMode::Enforce
            || self.decide(&active, |policy, labels| policy.evaluate(service, request, labels)).allowed
    }

    /// Checks a request that an earlier version permitted. Only a refusal is counted, and logged.
    pub(super) fn check_again<B>(&self, service: &str, request: &Request<B>) -> Result<(), ServiceError> {
        let active = self.active.load();
        let decision = self.decide(&active, |policy, labels| policy.evaluate(service, request, labels));
        if decision.allowed || active.policy.mode() == PolicyMode::DryRun {
            return Ok(());
        }

        let described = describe(service, request);
        active.stats[active.stats_index(decision.source)].counter.inc();
        active.log_refusal(decision, service, request, &described, true);
        Err(ServiceError::new(Reason::RefusedByPolicy, self.refusal(&active, decision, &described)))
    }

    /// Returns the version in force. It grows with each change of labels, too.
    pub(super) fn version(&self) -> u64 {
        self.version_of(&self.active.load())
    }

    fn version_of(&self, active: &ActivePolicy) -> u64 {
        active.version + self.labels.generation()
    }

    /// Returns the labels of the namespaces.
    pub fn labels(&self) -> &LabelStore {
        &self.labels
    }

    /// Returns whether the policy in force depends on labels of namespaces.
    pub fn needs_labels(&self) -> bool {
        !self.active.load().label_keys.is_empty()
    }

    /// Returns a line about the labels of namespaces, if the policy in force depends on some that are not known.
    pub fn label_problem(&self) -> Option<String> {
        let active = self.active.load();
        if active.label_keys.is_empty() {
            return None;
        }
        let (is_known, problem) =
            self.labels.read(|labels| (labels.covers(&active.label_keys), labels.problem()));
        if is_known {
            return None;
        }
        let problem = problem.unwrap_or(NamespaceLabels::UNREAD);
        Some(format!(
            "policy: the labels of namespaces are not known, so that rules by labels allow nothing: {problem}"
        ))
    }

    /// Returns a receiver of each version of the file that comes into force after this call. Labels have [their own](LabelStore::announcements).
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    fn replace(&self, text: String, policy: Policy) {
        let next = Arc::new(ActivePolicy::new(self.active.load().version + 1, text, policy, &self.metrics));
        let last = self.active.swap(Arc::clone(&next));
        let is_kept = |stats: &RuleStats| {
            next.stats.iter().any(|each| (&each.name, each.decision) == (&stats.name, stats.decision))
        };
        for removed in last.stats.iter().filter(|stats| !is_kept(stats)) {
            self.metrics.remove_policy_decisions(&removed.name, removed.decision);
        }
        self.changes.send_replace(());
        self.log_active();
    }

    #[cfg(test)]
    pub(crate) fn replace_with(&self, text: &str) {
        self.replace(text.to_owned(), Policy::parse(&self.file, text).unwrap());
    }

    fn log_active(&self) {
        let ((mode, rules), file) = (self.summary(), self.file.display());
        let version = self.active.load().version;
        match mode {
            PolicyMode::Enforce => tracing::info!(rules, version, %file, "policy in force"),
            PolicyMode::DryRun => {
                tracing::warn!(rules, version, %file, "policy in force; dry-run: no request is refused");
            }
        }
        for warning in self.warnings() {
            tracing::warn!(%file, warning, "the policy is probably wrong");
        }
    }
}

impl ActivePolicy {
    fn new(version: u64, text: String, policy: Policy, metrics: &AgentMetrics) -> Self {
        let refused = match policy.mode() {
            PolicyMode::Enforce => "refused",
            PolicyMode::DryRun => "would-refuse",
        };
        let rules = policy.rules().iter().map(|rule| match rule.action() {
            Action::Allow => (rule.name(), "allowed"),
            Action::Deny => (rule.name(), refused),
        });
        let objects = policy.object_rules().map(|name| (name, refused));
        let stats = rules.chain([(DEFAULT_RULE, refused), (UNCLEAR_RULE, refused)]).chain(objects);
        let stats = stats.map(|(name, decision)| RuleStats {
            name: name.to_owned(),
            decision,
            counter: metrics.policy_decisions(name, decision),
        });

        let (stats, label_keys) = (stats.collect(), policy.label_keys());
        Self { version, text, stats, policy, label_keys, log_limit: LogLimiter::new(LOG_PERIOD) }
    }

    fn stats_index(&self, source: DecisionSource) -> usize {
        match source {
            DecisionSource::Rule(index) => index,
            DecisionSource::Default => self.policy.rules().len(),
            DecisionSource::Unclear(_) => self.policy.rules().len() + 1,
        }
    }

    fn log_refusal<B>(
        &self,
        decision: PolicyDecision,
        service: &str,
        request: &Request<B>,
        described: &str,
        enforced: bool,
    ) {
        let id = request.headers().get(header::REQUEST_ID).and_then(|id| id.to_str().ok());
        let index = self.stats_index(decision.source);
        self.log((index, decision.labels), service, described, id, enforced);
    }

    /// Logs a refusal by the rule with this index in `stats`.
    fn log(
        &self,
        (index, labels): (usize, LabelUse),
        service: &str,
        described: &str,
        id: Option<&str>,
        enforced: bool,
    ) {
        let Some(suppressed) = self.log_limit.admit(index, Instant::now().into_std()) else { return };
        let rule = &self.stats[index].name;
        let request: String = described.chars().take(MAX_DESCRIPTION).collect();
        let message = if enforced {
            "request refused by the policy"
        } else {
            "dry-run: the policy would refuse this request"
        };
        tracing::warn!(
            service,
            rule,
            request,
            request.id = id,
            namespace.labels = log_value(labels),
            suppressed,
            "{message}"
        );
    }
}

/// Returns the word in the log for labels that had a part in a decision. Those of a namespace that does not exist are unknown.
fn log_value(labels: LabelUse) -> Option<&'static str> {
    match labels {
        LabelUse::Unused => None,
        LabelUse::Known => Some("known"),
        LabelUse::Unknown => Some("unknown"),
    }
}

fn refusal(rule: &str, source: DecisionSource, described: &str) -> String {
    match source {
        DecisionSource::Rule(_) => {
            format!("the policy of this cluster does not allow this: rule {rule:?} refuses {described}")
        }
        DecisionSource::Default => {
            format!("the policy of this cluster does not allow this: no rule allows {described}")
        }
        DecisionSource::Unclear(error) => {
            format!("the policy of this cluster refuses {described}, which it cannot interpret: {error}")
        }
    }
}
