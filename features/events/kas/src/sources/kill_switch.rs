//! Reports changes of the rules of the kill switch.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use proto::events::{EventContent, EventKind, Severity};
use sha2::{Digest as _, Sha256};
use store::{StateScope, SubjectState};
use tokio::time::sleep;

use super::EventSources;
use access::kill_switch::{DisableRule, Selector};

/// The time in which changes are one event: a replica that starts reads its sources one after the other.
const SETTLE: Duration = Duration::from_secs(3);

/// The rules in force as text, each with the agent that it disables for all of its callers, if it is for one agent.
type Rules = BTreeMap<String, Option<String>>;

impl EventSources {
    /// Reports each change of the rules that are in force. The future never completes.
    pub(crate) async fn follow_kill_switch(&self) {
        let mut changes = self.kill_switch.changes();
        if let Some(redis) = &self.redis {
            // Before, the rules for all replicas are not known.
            redis.wait_until_healthy().await;
        }
        let mut before: Option<Rules> = None;
        loop {
            sleep(SETTLE).await;
            changes.borrow_and_update();
            let now: Rules =
                self.kill_switch.rules().iter().map(|rule| (rule.to_string(), agent(rule))).collect();
            if before.as_ref() != Some(&now) {
                self.report_rules(&before.unwrap_or_default(), &now);
            }
            before = Some(now);
            // The sender lives as long as the switch.
            let _ = changes.changed().await;
        }
    }

    fn report_rules(&self, before: &Rules, now: &Rules) {
        let (content, state) = describe(before, now);
        let mut changed = difference(now, before).chain(difference(before, now));
        // Whoever follows one agent sees the rules about it.
        let agent = match (changed.next(), changed.next()) {
            (Some((_, agent)), None) if now.len() <= 1 => agent.as_ref(),
            _ => None,
        };
        let agent = agent.and_then(|name| self.identities.load().find(name)).map(|id| self.agent(id));
        self.emit(agent, SystemTime::now(), content, state);
    }
}

/// Returns the agent that a rule disables for all of its callers.
fn agent(DisableRule { selector, .. }: &DisableRule) -> Option<String> {
    let Selector { service: _, agent, caller, user, address } = selector;
    let agent = agent.as_ref().map(ToString::to_string);
    agent.filter(|_| caller.is_none() && user.is_none() && address.is_none())
}

/// Returns the rules that are not among others.
fn difference<'a>(
    rules: &'a Rules,
    others: &'a Rules,
) -> impl Iterator<Item = (&'a String, &'a Option<String>)> {
    rules.iter().filter(|(rule, _)| !others.contains_key(*rule))
}

/// Returns the event about the rules that are in force now. Replicas with the same rules report it once.
fn describe(before: &Rules, now: &Rules) -> (EventContent, SubjectState) {
    fn list<'a>(rules: impl Iterator<Item = (&'a String, &'a Option<String>)>) -> String {
        rules.map(|(rule, _)| rule.as_str()).collect::<Vec<_>>().join("; ")
    }
    let (severity, message) = if now.is_empty() {
        (Severity::Info, "no rule disables requests any more".to_owned())
    } else {
        (Severity::Warning, format!("requests are disabled: {}", list(now.iter())))
    };
    let content = EventContent::new(EventKind::KillSwitch, severity, message)
        .with_detail("rules", now.len().to_string())
        .with_detail("added", list(difference(now, before)))
        .with_detail("removed", list(difference(before, now)));
    let digest = Sha256::digest(now.keys().map(String::as_str).collect::<Vec<_>>().join("\n"));
    let state = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    // The rules have one state, also if the event names the agent of the one that has changed.
    let (scope, subject) = (StateScope::Fleet, "kill-switch".to_owned());
    (content, SubjectState { scope, subject, state, quiet: now.is_empty() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_has_the_rules_and_the_change() {
        let rules = |rules: &[&str]| rules.iter().map(|&rule| (rule.to_owned(), None)).collect::<Rules>();
        let (content, first) =
            describe(&rules(&["agent a: old"]), &rules(&["agent b: drill", "agent c: drill"]));
        assert_eq!(content.message, "requests are disabled: agent b: drill; agent c: drill");
        assert_eq!(
            (&*content.details["added"], &*content.details["removed"]),
            ("agent b: drill; agent c: drill", "agent a: old")
        );
        let (_, again) = describe(&Rules::new(), &rules(&["agent c: drill", "agent b: drill"]));
        assert_eq!(first, again, "another replica has the same rules");
        let (content, none) = describe(&rules(&["agent a: old"]), &Rules::new());
        assert_eq!((content.severity, none.quiet), (Severity::Info, true));
        assert_ne!(none.state, first.state);
    }

    #[test]
    fn rule_about_one_caller_is_no_rule_about_an_agent() {
        let rule = |selector| DisableRule { selector, reason: "drill".to_owned(), until: None };
        let of_agent = Selector { agent: Some("prod".parse().unwrap()), ..Selector::default() };
        assert_eq!(agent(&rule(of_agent.clone())).as_deref(), Some("prod"));
        assert_eq!(agent(&rule(Selector { caller: Some("bob".to_owned()), ..of_agent })), None);
        assert_eq!(agent(&rule(Selector::default())), None);
    }
}
