//! Checks that the namespaces of the scope exist, so that `/readiness` names those that do not.
//!
//! agentk serves the other namespaces, and starts without any of them: an owner may install agentk first.

use std::{collections::BTreeMap, convert::Infallible, future::pending, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::sleep;

use crate::{
    health::AgentHealth,
    policy::ScopeEnforcer,
    services::{KubernetesService, kubernetes::NamespaceLookup},
};

/// The time between two checks of the namespaces with a problem.
const RETRY_PERIOD: Duration = Duration::from_secs(15);
/// The time between two checks of all namespaces.
const CHECK_PERIOD: Duration = Duration::from_secs(300);

/// The problems of the scope in force, as of the last check.
#[derive(Debug, Default)]
pub struct ScopeHealth(Mutex<BTreeMap<String, ScopeProblem>>);

/// The reason why agentk cannot serve a namespace of its scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScopeProblem {
    /// The namespace does not exist.
    Missing,
    /// The API server does not let agentk read the namespace, also if it does not exist.
    Forbidden,
    /// The two scopes have no namespace in common. The key is empty.
    Empty,
}

impl ScopeHealth {
    /// Returns a line for each problem.
    pub(crate) fn problems(&self) -> Vec<String> {
        let problems = self.0.lock();
        let lines = problems.iter().map(|(name, problem)| match problem {
            ScopeProblem::Missing => {
                format!("scope: the namespace {name} does not exist: create it, or correct --namespaces")
            }
            ScopeProblem::Forbidden => format!(
                "scope: agentk may not read the namespace {name}: it does not exist, or no RoleBinding there allows `get namespaces`"
            ),
            ScopeProblem::Empty => {
                "scope: --namespaces and the configuration of the agent have no namespace in common".to_owned()
            }
        });
        lines.collect()
    }

    fn replace(&self, problems: BTreeMap<String, ScopeProblem>) {
        let mut current = self.0.lock();
        if *current == problems {
            return;
        }
        let names: Vec<_> = problems.keys().map(String::as_str).filter(|name| !name.is_empty()).collect();
        match (problems.is_empty(), names.is_empty()) {
            (true, _) => tracing::info!("all namespaces of the scope exist"),
            (false, true) => tracing::warn!("no namespace is in scope: all requests for objects are refused"),
            (false, false) => {
                tracing::warn!(namespaces = ?names, "namespaces of the scope are missing or unreadable")
            }
        }
        *current = problems;
    }
}

/// Checks the namespaces of the scope at each change, and periodically. Never completes.
pub(crate) async fn run(scope: Arc<ScopeEnforcer>, kubernetes: KubernetesService, health: Arc<AgentHealth>) {
    let mut changes = scope.changes();
    loop {
        changes.mark_unchanged();
        let namespaces = scope.in_force().map(|scope| scope.namespaces);
        tokio::select! {
            // The sender lives as long as the enforcer.
            _ = changes.changed() => {}
            () = sleep(CHECK_PERIOD) => {}
            never = check(&kubernetes, namespaces, &health.scope) => match never {},
        }
    }
}

/// Checks all namespaces once, and again those that have a problem. Never completes.
async fn check(
    kubernetes: &KubernetesService,
    namespaces: Option<Vec<String>>,
    health: &ScopeHealth,
) -> Infallible {
    if namespaces.as_ref().is_some_and(Vec::is_empty) {
        health.replace(BTreeMap::from([(String::new(), ScopeProblem::Empty)]));
        return pending().await;
    }
    let mut due = namespaces.unwrap_or_default();
    // The result before counts while the API server does not answer.
    let mut problems = health.0.lock().clone();
    problems.retain(|name, _| due.contains(name));
    loop {
        let mut unknown = Vec::new();
        for name in due {
            match kubernetes.namespace(&name).await {
                Ok(NamespaceLookup::Found { .. }) => drop(problems.remove(&name)),
                Ok(NamespaceLookup::Missing) => drop(problems.insert(name, ScopeProblem::Missing)),
                Ok(NamespaceLookup::Forbidden) => drop(problems.insert(name, ScopeProblem::Forbidden)),
                Err(error) => {
                    tracing::debug!(namespace = name, %error, "namespace of the scope not checked");
                    unknown.push(name);
                }
            }
        }
        health.replace(problems.clone());
        unknown.retain(|name| !problems.contains_key(name));
        due = problems.keys().cloned().chain(unknown).collect();
        if due.is_empty() {
            pending().await
        }
        sleep(RETRY_PERIOD).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_problem_is_a_line_with_the_namespace() {
        let health = ScopeHealth::default();
        assert!(health.problems().is_empty());
        let problems = [("shop", ScopeProblem::Missing), ("web", ScopeProblem::Forbidden)];
        health.replace(problems.map(|(name, problem)| (name.to_owned(), problem)).into());
        let lines = health.problems();
        assert!(lines[0].contains("the namespace shop does not exist"), "{lines:?}");
        assert!(lines[1].contains("may not read the namespace web"), "{lines:?}");
        health.replace(BTreeMap::from([(String::new(), ScopeProblem::Empty)]));
        assert!(health.problems()[0].contains("no namespace in common"));
    }
}
