//! The kill switch: rules by which the operator disables requests.
//!
//! ```text
//!   disabled.file ──┐
//!   Redis: fleet ───┼─► KillSwitch ─┬─► proxy: new requests get 503 `disabled`, long responses and upgrades end
//!   external ───────┘               ├─► agents: a control request reports the rules to agentk
//!                                   └─► admin: /readiness, /agents, kas_disabled
//! ```
//!
//! The replica that accepted a request of a caller decides. Tunnels stay open, so that a lifted rule has effect at once.

pub mod file;
pub mod fleet;
mod rule;

use std::{
    path::Path,
    sync::{Arc, atomic::AtomicU64},
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};
use proto::control::{DisabledNotice, DisabledScope};
use settings::ConfigError;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

pub use self::rule::{DisableRule, RequestAttributes, Selector};
use crate::{AgentAttributes, Identities, RequestError};

/// The values of the label `what` of `kas_disabled`.
const WHAT: [&str; 6] = ["all", "service", "agent", "caller", "user", "address"];

/// The longest time between two checks for rules that have ended. The clock of the system may be set meanwhile.
const CHECK_PERIOD: Duration = Duration::from_secs(10);

/// The rules of a replica.
#[derive(Debug)]
pub struct KillSwitch {
    identities: Identities,
    /// The rules that have not ended, of all sources.
    active: ArcSwap<Vec<DisableRule>>,
    sources: Mutex<Sources>,
    changes: watch::Sender<()>,
    gauges: Family<WhatLabel, Gauge>,
    /// The time at which the rules for all replicas were written, in seconds since 1970; 0 without such rules.
    fleet_time: Gauge<f64, AtomicU64>,
}

/// The rules by their source.
#[derive(Clone, Debug, Default)]
struct Sources {
    file: Vec<DisableRule>,
    fleet: Vec<DisableRule>,
    external: Option<DisableRule>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WhatLabel {
    what: &'static str,
}

impl KillSwitch {
    /// Creates a switch without rules. Rules name agents of `identities`.
    pub fn new(identities: Identities) -> Self {
        let gauges = Family::default();
        for what in WHAT {
            drop(gauges.get_or_create(&WhatLabel { what }));
        }
        Self {
            identities,
            active: ArcSwap::default(),
            sources: Mutex::default(),
            changes: watch::Sender::new(()),
            gauges,
            fleet_time: Gauge::default(),
        }
    }

    /// Registers `kas_disabled` and `kas_disabled_fleet_timestamp_seconds`.
    pub fn register(&self, registry: &mut Registry) {
        let help = "1 if a rule that disables requests selects by this, else 0";
        registry.register("kas_disabled", help, self.gauges.clone());
        let help = "time at which the rules for all replicas were written, or 0 if this replica has none";
        registry.register("kas_disabled_fleet_timestamp_seconds", help, self.fleet_time.clone());
    }

    /// Replaces the rules of `disabled.file`.
    pub fn set_file(&self, rules: Vec<DisableRule>) {
        self.update(|sources| sources.file = rules);
    }

    /// Replaces the rules for all replicas. `version`: that of the record, the time in microseconds since 1970.
    pub fn set_fleet(&self, version: u64, rules: Vec<DisableRule>) {
        self.fleet_time.set(version as f64 / 1e6);
        self.update(|sources| sources.fleet = rules);
    }

    /// Reads a new version of `disabled.file`. If it is invalid, the current rules stay.
    ///
    /// # Errors
    ///
    /// The version is invalid.
    pub fn reload(&self, file: &Path) -> Result<(), ConfigError> {
        self.set_file(file::read(file)?);
        Ok(())
    }

    /// Disables everything for a reason outside of kas, or lifts that with `None`.
    pub fn set_external(&self, reason: Option<String>) {
        let rule = |reason| DisableRule { selector: Selector::default(), reason, until: None };
        self.update(|sources| sources.external = reason.map(rule));
    }

    /// Returns the error for a request that a rule matches.
    ///
    /// # Errors
    ///
    /// The reason is `disabled`.
    pub fn check(&self, request: &RequestAttributes<'_>) -> Result<(), RequestError> {
        let rules = self.active.load();
        if rules.is_empty() {
            return Ok(());
        }
        let (now, identity) = (SystemTime::now(), self.identities.load());
        let matches = |rule: &&DisableRule| rule.is_active(now) && rule.selector.matches(request, &identity);
        rules.iter().find(matches).map_or(Ok(()), |rule| Err(rule.error(request, &identity, now)))
    }

    /// Completes when a rule matches the request, at once if one does. Returns the error of [`Self::check`]. Cancel-safe.
    pub async fn disabled(&self, request: RequestAttributes<'_>) -> RequestError {
        let mut changes = self.changes.subscribe();
        loop {
            if let Err(error) = self.check(&request) {
                return error;
            }
            // The sender lives as long as self.
            let _ = changes.changed().await;
        }
    }

    /// Completes when no rule matches the request, at once if none does. Cancel-safe.
    pub async fn enabled(&self, request: &RequestAttributes<'_>) {
        let mut changes = self.changes.subscribe();
        while self.check(request).is_err() {
            // The sender lives as long as self.
            let _ = changes.changed().await;
        }
    }

    /// Removes rules that end by themselves, at the time of their end. The future never completes.
    pub async fn run(&self) {
        let mut changes = self.changes.subscribe();
        loop {
            changes.borrow_and_update();
            let now = SystemTime::now();
            self.remove_ended(now);
            let next = self.active.load().iter().filter_map(|rule| rule.until).min();
            let left = next.map(|until| until.duration_since(now).unwrap_or_default());
            let changed = changes.changed();
            let _ = match left {
                Some(left) => timeout(left.min(CHECK_PERIOD), changed).await,
                None => Ok(changed.await),
            };
            // Timers have a resolution of a millisecond, and may complete before the clock shows the end of a rule.
            if left.is_some_and(|left| left.is_zero()) {
                sleep(Duration::from_millis(1)).await;
            }
        }
    }

    /// Returns a receiver of the changes of the rules.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Returns the rules that have not ended.
    pub fn rules(&self) -> Arc<Vec<DisableRule>> {
        self.active.load_full()
    }

    /// Returns the rules that have not ended, as text.
    pub fn lines(&self) -> Vec<String> {
        self.active.load().iter().map(ToString::to_string).collect()
    }

    /// Returns the rule that disables all requests to an agent, as text.
    pub fn rule_of_agent(&self, agent: AgentAttributes<'_>) -> Option<String> {
        let (rules, identity) = (self.active.load(), self.identities.load());
        let whole = |rule: &&DisableRule| {
            rule.selector.service.is_none() && rule.selector.concerns_agent(agent, &identity)
        };
        rules.iter().find(whole).map(ToString::to_string)
    }

    /// Returns the rules to report to an agent: those that disable the requests of all callers to it, or to one of its services.
    pub fn notice(&self, agent: AgentAttributes<'_>) -> DisabledNotice {
        let (rules, identity) = (self.active.load(), self.identities.load());
        let concerning = rules.iter().filter(|rule| rule.selector.concerns_agent(agent, &identity));
        let scope = |rule: &DisableRule| DisabledScope {
            service: rule.selector.service.clone(),
            reason: rule.reason.clone(),
            until: rule.until.map(|until| humantime::format_rfc3339_seconds(until).to_string()),
        };
        DisabledNotice { rules: concerning.take(DisabledNotice::MAX_RULES).map(scope).collect() }
    }

    fn remove_ended(&self, now: SystemTime) {
        if !self.active.load().iter().all(|rule| rule.is_active(now)) {
            self.update(|_| {});
        }
    }

    fn update(&self, change: impl FnOnce(&mut Sources)) {
        // Held until the rules are in use, so that a later change is not overwritten.
        let mut sources = self.sources.lock();
        change(&mut sources);
        let now = SystemTime::now();
        let Sources { file, fleet, external } = &*sources;
        let all = file.iter().chain(fleet).chain(external);
        let active: Vec<DisableRule> = all.filter(|rule| rule.is_active(now)).cloned().collect();
        let before = self.active.load_full();
        if active == *before {
            return;
        }

        for rule in active.iter().filter(|rule| !before.contains(rule)) {
            tracing::warn!(%rule, "requests are disabled");
            let missing =
                rule.selector.agent.as_ref().and_then(|agent| agent.missing_in(&self.identities.load()));
            if missing.is_some() {
                tracing::warn!(
                    %rule,
                    "the rule disables no agent, because the identity file has none with this name: an agent of GitLab is \
                     project/path:name or its id"
                );
            }
        }
        for rule in before.iter().filter(|rule| !active.contains(rule)) {
            tracing::warn!(%rule, "requests are no longer disabled by this rule");
        }
        for what in WHAT {
            let used = active.iter().any(|rule| rule.selector.fields().any(|field| field == what));
            self.gauges.get_or_create(&WhatLabel { what }).set(used.into());
        }
        self.active.store(active.into());
        self.changes.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use crate::Identity;
    use futures_util::FutureExt as _;
    use proto::{AgentId, ServiceName};

    use super::*;

    fn rule(agent: Option<&str>, reason: &str) -> DisableRule {
        let selector = Selector { agent: agent.map(|agent| agent.parse().unwrap()), ..Selector::default() };
        DisableRule { selector, reason: reason.to_owned(), until: None }
    }

    fn switch() -> KillSwitch {
        let identity = "agents: [{id: 1, name: prod, tokens: []}, {id: 2, name: test, tokens: []}]";
        KillSwitch::new(Identities::new(Identity::parse(Path::new("identity.yaml"), identity).unwrap()))
    }

    const PROD: AgentAttributes<'_> = AgentAttributes { id: AgentId(1), name: None, project_path: None };

    fn request(service: &ServiceName) -> RequestAttributes<'_> {
        let address = Some("192.0.2.1".parse().unwrap());
        RequestAttributes { address, service, agent: Some(PROD), caller: Some("me"), user: None }
    }

    #[test]
    fn sources_do_not_replace_each_other() {
        let (switch, service) = (switch(), "kubernetes".parse().unwrap());
        let request = request(&service);
        assert!(switch.check(&request).is_ok());
        switch.set_file(vec![rule(Some("prod"), "file")]);
        switch.set_external(Some("outside".to_owned()));
        switch.set_fleet(1, vec![rule(Some("test"), "fleet")]);
        assert_eq!(switch.lines(), ["agent prod: file", "agent test: fleet", "everything: outside"]);

        switch.set_file(Vec::new());
        assert_eq!(switch.lines(), ["agent test: fleet", "everything: outside"]);
        switch.set_fleet(2, Vec::new());
        assert!(switch.check(&request).unwrap_err().message.ends_with("everything: outside"));
        switch.set_external(None);
        assert!(switch.check(&request).is_ok());
        assert!(switch.lines().is_empty());
    }

    #[test]
    fn metric_shows_the_kinds_of_rules() {
        let switch = switch();
        let set = || WHAT.map(|what| switch.gauges.get_or_create(&WhatLabel { what }).get());
        assert_eq!(set(), [0; 6]);
        switch.set_file(vec![rule(Some("prod"), "a")]);
        assert_eq!(set(), [0, 0, 1, 0, 0, 0]);
        switch.set_external(Some("b".to_owned()));
        assert_eq!(set(), [1, 0, 1, 0, 0, 0]);
        switch.set_file(Vec::new());
        assert_eq!(set(), [1, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn request_in_flight_ends_when_a_rule_matches_it() {
        let (switch, service) = (switch(), "kubernetes".parse().unwrap());
        let mut disabled = Box::pin(switch.disabled(request(&service)));
        assert!(disabled.as_mut().now_or_never().is_none());
        switch.set_file(vec![rule(Some("test"), "another agent")]);
        assert!(disabled.as_mut().now_or_never().is_none());
        switch.set_file(vec![rule(Some("1"), "this agent")]);
        assert!(disabled.as_mut().now_or_never().is_some());
    }

    #[test]
    fn agent_gets_the_rules_for_all_of_its_callers() {
        let switch = switch();
        let mut of_caller = rule(Some("prod"), "one caller");
        of_caller.selector.caller = Some("me".to_owned());
        let mut of_service = rule(None, "one service");
        of_service.selector.service = Some("kubernetes".parse().unwrap());
        switch.set_file(vec![of_caller, of_service, rule(Some("test"), "another agent")]);
        let reasons = |notice: DisabledNotice| notice.rules.into_iter().map(|rule| rule.reason);
        assert!(reasons(switch.notice(PROD)).eq(["one service"]));
        assert_eq!(switch.rule_of_agent(PROD), None);

        switch.set_external(Some("drill".to_owned()));
        assert!(reasons(switch.notice(PROD)).eq(["one service", "drill"]));
        assert_eq!(switch.rule_of_agent(PROD).unwrap(), "everything: drill");
    }

    #[tokio::test]
    async fn rule_ends_by_itself() {
        let (switch, service) = (switch(), "kubernetes".parse().unwrap());
        let until = Some(SystemTime::now() + Duration::from_millis(50));
        switch.set_file(vec![DisableRule { until, ..rule(None, "short") }]);
        assert!(switch.check(&request(&service)).is_err());
        let mut changes = switch.changes();
        tokio::select! {
            () = switch.run() => unreachable!("it never completes"),
            changed = changes.changed() => changed.unwrap(),
        }
        assert!(switch.check(&request(&service)).is_ok());
        assert!(switch.lines().is_empty());
    }
}
