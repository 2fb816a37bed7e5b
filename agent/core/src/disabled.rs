//! The rules by which the operator of kas has disabled this agent, as kas reports them in each tunnel.
//!
//! They change nothing in agentk: kas refuses the requests. The owner of the cluster sees here why there are none.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use proto::{
    TunnelId,
    control::{DisabledNotice, DisabledScope},
};

/// Longest reason that is shown, in characters. kas sends shorter ones.
const MAX_REASON: usize = 500;

/// The rules of all open tunnels. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct DisabledRules {
    by_tunnel: Arc<Mutex<HashMap<TunnelId, Vec<DisabledScope>>>>,
    /// 1 if there is a rule.
    gauge: Gauge,
}

/// The rules that one tunnel reports. They end with the tunnel, whose successor reports them again.
#[derive(Debug)]
pub struct TunnelRules {
    all: DisabledRules,
    tunnel: TunnelId,
}

impl DisabledRules {
    /// Returns the gauge `agentk_disabled`.
    pub fn gauge(&self) -> Gauge {
        self.gauge.clone()
    }

    /// Returns the rules of a new tunnel, which has none yet.
    pub fn tunnel(&self, tunnel: TunnelId) -> TunnelRules {
        TunnelRules { all: self.clone(), tunnel }
    }

    /// Returns a line for each rule.
    pub fn lines(&self) -> Vec<String> {
        self.distinct().iter().map(line).collect()
    }

    fn distinct(&self) -> BTreeSet<DisabledScope> {
        self.by_tunnel.lock().values().flatten().cloned().collect()
    }

    fn replace(&self, tunnel: TunnelId, rules: Option<Vec<DisabledScope>>) {
        let mut by_tunnel = self.by_tunnel.lock();
        match rules {
            Some(rules) => by_tunnel.insert(tunnel, rules),
            None => by_tunnel.remove(&tunnel),
        };
        self.gauge.set(by_tunnel.values().any(|rules| !rules.is_empty()).into());
    }
}

impl TunnelRules {
    /// Replaces the rules of the tunnel. Logs a change of the rules of all tunnels together.
    pub(crate) fn replace(&self, notice: DisabledNotice) {
        let before = self.all.distinct();
        let rules = notice.rules.into_iter().take(DisabledNotice::MAX_RULES).map(printable);
        self.all.replace(self.tunnel, Some(rules.collect()));
        let now = self.all.distinct();
        for rule in now.difference(&before) {
            let DisabledScope { service, reason, until } = rule;
            let service = service.as_ref().map(tracing::field::display);
            tracing::warn!(service, reason, until, "the operator of kas has disabled requests to this agent");
        }
        if now.is_empty() && !before.is_empty() {
            tracing::info!("the operator of kas has enabled requests to this agent again");
        }
    }
}

impl Drop for TunnelRules {
    fn drop(&mut self) {
        self.all.replace(self.tunnel, None);
    }
}

/// Removes control characters, which could forge lines of a log.
fn printable(rule: DisabledScope) -> DisabledScope {
    let clean = |text: String| text.chars().filter(|c| !c.is_control()).take(MAX_REASON).collect();
    DisabledScope { reason: clean(rule.reason), until: rule.until.map(clean), ..rule }
}

fn line(rule: &DisabledScope) -> String {
    let what =
        rule.service.as_ref().map_or_else(|| "all services".to_owned(), |name| format!("service {name}"));
    let until = rule.until.as_ref().map(|until| format!(" until {until}")).unwrap_or_default();
    format!("disabled by the operator of kas: {what}{until}: {}", rule.reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(reasons: &[&str]) -> DisabledNotice {
        let rule = |reason: &&str| DisabledScope { service: None, reason: (*reason).to_owned(), until: None };
        DisabledNotice { rules: reasons.iter().map(rule).collect() }
    }

    #[test]
    fn rules_of_all_tunnels_are_shown_once_until_each_tunnel_ends_or_lifts_them() {
        let all = DisabledRules::default();
        let (one, two) = (all.tunnel(TunnelId::random()), all.tunnel(TunnelId::random()));
        one.replace(notice(&["drill"]));
        two.replace(notice(&["drill"]));
        assert_eq!(all.lines(), ["disabled by the operator of kas: all services: drill"]);
        assert_eq!(all.gauge().get(), 1);

        one.replace(notice(&[]));
        assert_eq!(all.gauge().get(), 1, "the other replica has not reported yet");
        drop(two);
        assert!(all.lines().is_empty());
        assert_eq!(all.gauge().get(), 0);
    }

    #[test]
    fn rule_cannot_forge_a_line_and_is_bounded() {
        let all = DisabledRules::default();
        let tunnel = all.tunnel(TunnelId::random());
        let mut hostile = notice(&["a\nready\u{1b}[0m"]);
        hostile.rules[0].until = Some("x".repeat(2 * MAX_REASON));
        hostile.rules.extend(vec![hostile.rules[0].clone(); 100]);
        tunnel.replace(hostile);
        let lines = all.lines();
        assert_eq!(lines.len(), 1);
        assert!(lines[0].ends_with(": aready[0m") && lines[0].len() < 2 * MAX_REASON, "{lines:?}");
    }
}
