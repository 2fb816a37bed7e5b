//! The rules of the user, which can change while agentk runs.

use std::sync::Arc;

use parking_lot::RwLock;
use proto::agent_configuration::graph::HealthRule;
use serde_json::Value;

use crate::{Assessment, AssessmentContext, assess, has_health};

/// The rules of the user for kinds, in place of those of agentk. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct HealthRules(Arc<RwLock<Arc<[HealthRule]>>>);

impl HealthRules {
    /// Replaces the rules.
    pub fn set(&self, rules: &[HealthRule]) {
        *self.0.write() = rules.into();
    }

    /// Assesses an object of a kind. `plural` is the name of the resource; `has_status` is true if the API server keeps the status apart.
    pub fn assess(
        &self,
        group: &str,
        kind: &str,
        plural: &str,
        has_status: bool,
        object: &Value,
    ) -> Assessment {
        let rule = self.of(group, kind, plural);
        assess(object, AssessmentContext { rule: rule.as_ref(), ..AssessmentContext::now(has_status) })
    }

    /// Returns whether the health of a kind's objects can be anything but good.
    pub fn has_health(&self, group: &str, kind: &str, plural: &str) -> bool {
        has_health(group, kind) || self.of(group, kind, plural).is_some()
    }

    /// Returns the first rule of a kind.
    fn of(&self, group: &str, kind: &str, plural: &str) -> Option<HealthRule> {
        let rules = Arc::clone(&self.0.read());
        rules.iter().find(|rule| rule.kind.is(group, kind, plural)).cloned()
    }
}

#[cfg(test)]
mod tests {
    use proto::graph::HealthState;
    use serde_json::json;

    use super::*;

    #[test]
    fn first_rule_of_a_kind_replaces_those_of_agentk() {
        let rules = HealthRules::default();
        let assess = || {
            rules.assess("example.com", "Database", "databases", false, &json!({"kind": "Database"})).health
        };
        assert_eq!(assess(), HealthState::Healthy);
        let read = |text: &str| serde_saphyr::from_str::<Vec<HealthRule>>(text).unwrap();
        rules.clone().set(&read(
            "[{kind: ConfigMap, health: \"'degraded'\"}, {kind: databases.example.com, health: \"'progressing'\"}, \
             {kind: Database.example.com, health: \"'degraded'\"}]",
        ));
        assert_eq!(assess(), HealthState::Progressing);
        assert_eq!(
            rules
                .assess("", "Pod", "pods", true, &json!({"status": {"phase": "Succeeded"}, "kind": "Pod"}))
                .health,
            HealthState::Healthy
        );
        assert!(
            rules.has_health("", "ConfigMap", "configmaps") && !rules.has_health("", "Secret", "secrets")
        );
    }
}
