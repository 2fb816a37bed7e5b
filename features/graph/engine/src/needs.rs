//! The features of kas and agentk that need a program in the cluster, and whether it is there.

use std::collections::BTreeMap;

use proto::graph::{FEATURES, FeatureNeed, FeatureRule, FeatureState, HealthState};

use crate::{
    access::Access,
    components::{ComponentRule, FoundComponent, RULES, WORKLOADS},
    graph::Graph,
};

impl Graph {
    /// Returns the features with the state of the components that they need.
    pub(crate) fn feature_needs(
        &self,
        found: &BTreeMap<&str, FoundComponent>,
        access: &Access,
    ) -> Vec<FeatureNeed> {
        let sees_workloads =
            WORKLOADS.into_iter().all(|kind| self.whole_resource("apps", kind, access).is_some());
        let need = |feature: &FeatureRule| {
            let rules = || RULES.iter().filter(|rule| feature.needs.contains(&rule.id));
            let best = rules().filter_map(|rule| best(rule, found.get(&*rule.id)?)).min();
            let is_known = rules().all(|rule| {
                if rule.images.is_empty() { !self.resources().is_empty() } else { sees_workloads }
            });
            feature.with_state(state(best, is_known), |id| found.contains_key(id))
        };
        FEATURES.iter().map(need).collect()
    }
}

/// Returns the health of the best workload of a component. The definitions of a program that does not run do nothing.
fn best(rule: &ComponentRule, found: &FoundComponent) -> Option<HealthState> {
    if rule.images.is_empty() { Some(HealthState::Healthy) } else { found.best }
}

/// Decides from the health of the best workload, and from whether all workloads are known: without some of them, a better one may exist.
fn state(best: Option<HealthState>, is_known: bool) -> FeatureState {
    match best {
        Some(HealthState::Healthy) => FeatureState::Present,
        Some(_) if is_known => FeatureState::Unhealthy,
        None if is_known => FeatureState::Missing,
        Some(_) | None => FeatureState::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_is_that_of_the_best_workload() {
        for (best, is_known, expected) in [
            (Some(HealthState::Healthy), false, FeatureState::Present),
            (Some(HealthState::Progressing), true, FeatureState::Unhealthy),
            (Some(HealthState::Suspended), true, FeatureState::Unhealthy),
            (Some(HealthState::Degraded), false, FeatureState::Unknown),
            (None, true, FeatureState::Missing),
            (None, false, FeatureState::Unknown),
        ] {
            assert_eq!(state(best, is_known), expected, "{best:?} {is_known}");
        }
    }

    #[test]
    fn each_need_is_a_known_component() {
        for FeatureRule { feature, needs, .. } in &*FEATURES {
            for id in needs {
                assert!(RULES.iter().any(|rule| rule.id == *id), "{feature} needs {id}");
            }
        }
    }
}
