//! Enforces the policy in force: checks, counts and logs requests, and reloads the policy file.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use agentk_policy::{
    Action, AllowedWebhook, DEFAULT_RULE, DecisionSource, JudgedUsers, Policy, PolicyMode, Review,
    UNCLEAR_RULE, admission_review::AdmissionRequest, describe,
};
use arc_swap::ArcSwap;
use files::{WatchedFile, follow};
use http::Request;
use kube_cluster::AllowedKinds;
use process::LogLimiter;
use prometheus_client::metrics::counter::Counter;
use proto::{Reason, ServiceName, header};
use settings::ConfigError;
use tokio::{sync::watch, time::Instant};

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
    changes: watch::Sender<()>,
    metrics: AgentMetrics,
}

#[derive(Debug)]
struct ActivePolicy {
    /// The number of versions before this one.
    version: u64,
    text: String,
    policy: Policy,
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
        let active = ArcSwap::from_pointee(ActivePolicy::new(0, text, policy, &metrics));
        let enforcer = Self { file, served, active, changes: watch::Sender::new(()), metrics };
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
        let decision = active.policy.evaluate(service, request);
        let index = active.stats_index(decision.source);
        active.stats[index].counter.inc();
        if decision.allowed {
            return Ok(active.version);
        }

        let (enforced, described) = (active.policy.mode() == PolicyMode::Enforce, describe(service, request));
        active.log_refusal(index, service, request, &described, enforced);
        if !enforced {
            return Ok(active.version);
        }
        let message = refusal(&active.stats[index].name, decision.source, &described);
        Err(ServiceError::new(Reason::RefusedByPolicy, message))
    }

    /// Reviews a write for the API server, counts the decision, and logs a refusal.
    pub fn review(&self, users: &JudgedUsers, request: &AdmissionRequest) -> Verdict {
        let active = self.active.load();
        let review = active.policy.review(users, request);
        let index = match review {
            Review::NotJudged => return Verdict::NotJudged,
            Review::Decided(decision) => active.stats_index(decision.source),
            Review::Object(rule) => active.policy.rules().len() + 2 + rule,
        };
        active.stats[index].counter.inc();
        let (rule, described) = (&active.stats[index].name, request.describe());
        let message = match review {
            Review::Decided(decision) if decision.allowed => return Verdict::Allowed,
            Review::Decided(decision) => refusal(rule, decision.source, &described),
            _ => object_refusal(rule, &described),
        };
        let enforced = active.policy.mode() == PolicyMode::Enforce;
        active.log(index, "admission", &described, Some(&request.uid), enforced);
        if enforced { Verdict::Refused(message) } else { Verdict::WouldRefuse(message) }
    }

    /// Returns the resources that may be objects of environments.
    pub fn provisioned(&self) -> AllowedKinds {
        self.active.load().policy.provisioned()
    }

    /// Returns whether the policy in force [grants](Policy::grants) a request.
    pub fn grants<B>(&self, service: &str, request: &Request<B>) -> bool {
        self.active.load().policy.grants(service, request)
    }

    /// Returns whether a request would be permitted. It is neither counted nor logged, because nobody sends it.
    pub fn permits<B>(&self, service: &str, request: &Request<B>) -> bool {
        let policy = &self.active.load().policy;
        policy.mode() != PolicyMode::Enforce || policy.evaluate(service, request).allowed
    }

    /// Checks a request that an earlier version permitted. Only a refusal is counted, and logged.
    pub(super) fn check_again<B>(&self, service: &str, request: &Request<B>) -> Result<(), ServiceError> {
        let active = self.active.load();
        let decision = active.policy.evaluate(service, request);
        if decision.allowed || active.policy.mode() == PolicyMode::DryRun {
            return Ok(());
        }

        let (index, described) = (active.stats_index(decision.source), describe(service, request));
        active.stats[index].counter.inc();
        active.log_refusal(index, service, request, &described, true);
        let message = refusal(&active.stats[index].name, decision.source, &described);
        Err(ServiceError::new(Reason::RefusedByPolicy, message))
    }

    /// Returns the version in force.
    pub(super) fn version(&self) -> u64 {
        self.active.load().version
    }

    /// Returns a receiver of each version that comes into force after this call.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Reloads the file when it changes and on each of `requests`. The future never completes. While the file cannot be used,
    /// the last good version stays in force.
    pub fn follow(
        self: Arc<Self>,
        file: WatchedFile,
        requests: watch::Receiver<()>,
    ) -> impl Future<Output = ()> + Send {
        follow(file, vec![self.file.clone()], requests, move || self.reload())
    }

    /// Reads the file again.
    ///
    /// # Errors
    ///
    /// The file cannot be used. The version before stays in force.
    pub fn reload(&self) -> Result<(), ConfigError> {
        let parsed = Policy::read(&self.file).and_then(|text| {
            let policy = Policy::parse(&self.file, &text)?;
            Ok((text, policy))
        });
        self.metrics.record_policy_reload(parsed.is_ok());
        let (text, policy) = parsed?;
        if self.active.load().text != text {
            self.replace(text, policy);
        }
        Ok(())
    }

    fn replace(&self, text: String, policy: Policy) {
        let next = Arc::new(ActivePolicy::new(self.version() + 1, text, policy, &self.metrics));
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
        let version = self.version();
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

        Self { version, text, stats: stats.collect(), policy, log_limit: LogLimiter::new(LOG_PERIOD) }
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
        index: usize,
        service: &str,
        request: &Request<B>,
        described: &str,
        enforced: bool,
    ) {
        let id = request.headers().get(header::REQUEST_ID).and_then(|id| id.to_str().ok());
        self.log(index, service, described, id, enforced);
    }

    fn log(&self, index: usize, service: &str, described: &str, id: Option<&str>, enforced: bool) {
        let Some(suppressed) = self.log_limit.admit(index, Instant::now().into_std()) else { return };
        let rule = &self.stats[index].name;
        let request: String = described.chars().take(MAX_DESCRIPTION).collect();
        let message = if enforced {
            "request refused by the policy"
        } else {
            "dry-run: the policy would refuse this request"
        };
        tracing::warn!(service, rule, request, request.id = id, suppressed, "{message}");
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

fn object_refusal(rule: &str, described: &str) -> String {
    format!(
        "the policy of this cluster does not allow this: rule {rule:?} demands another name or other labels of the object: {described}"
    )
}
