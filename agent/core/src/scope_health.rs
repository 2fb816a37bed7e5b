//! Checks that the namespaces of the scope exist, so that `/readiness` names those that do not.
//!
//! agentk serves the other namespaces, and starts without any of them: an owner may install agentk first.

use std::{collections::BTreeMap, convert::Infallible, future::pending, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::sleep;

use crate::{
    policy::{MissingScope, ScopeEnforcer},
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
    /// The required scope of the configuration is missing. The key is empty.
    Absent(MissingScope),
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
            ScopeProblem::Absent(missing) => format!("scope: {missing}"),
        });
        lines.collect()
    }

    /// Returns true if agentk cannot serve requests before kas has sent the scope.
    pub(crate) fn is_awaited(&self) -> bool {
        self.0.lock().values().any(|problem| *problem == ScopeProblem::Absent(MissingScope::Awaited))
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
pub async fn run(scope: Arc<ScopeEnforcer>, kubernetes: KubernetesService, health: Arc<ScopeHealth>) {
    let mut changes = scope.changes();
    loop {
        changes.mark_unchanged();
        let namespaces = match scope.missing() {
            Some(missing) => Err(ScopeProblem::Absent(missing)),
            None => match scope.in_force() {
                Some(scope) if scope.namespaces.is_empty() => Err(ScopeProblem::Empty),
                scope => Ok(scope.map(|scope| scope.namespaces).unwrap_or_default()),
            },
        };
        tokio::select! {
            // The sender lives as long as the enforcer.
            _ = changes.changed() => {}
            () = sleep(CHECK_PERIOD) => {}
            never = check(&kubernetes, namespaces, &health) => match never {},
        }
    }
}

/// Checks all namespaces once, and again those that have a problem. Without namespaces, there is one problem. Never completes.
async fn check(
    kubernetes: &KubernetesService,
    namespaces: Result<Vec<String>, ScopeProblem>,
    health: &ScopeHealth,
) -> Infallible {
    let mut due = match namespaces {
        Ok(namespaces) => namespaces,
        Err(problem) => {
            health.replace(BTreeMap::from([(String::new(), problem)]));
            return pending().await;
        }
    };
    // A scope that has arrived is no problem any more, whatever the API server answers.
    health.0.lock().remove("");
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
    use crate::health::AgentHealth;

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
        for (missing, awaited) in [(MissingScope::Awaited, true), (MissingScope::NotConfigured, false)] {
            health.replace(BTreeMap::from([(String::new(), ScopeProblem::Absent(missing))]));
            assert!(health.problems()[0].contains("--require-scope"));
            assert_eq!(health.is_awaited(), awaited);
        }
    }

    #[test]
    fn agentk_that_listens_is_ready_before_it_has_its_scope() {
        let health = AgentHealth::default();
        health.scope.replace(BTreeMap::from([(String::new(), ScopeProblem::Absent(MissingScope::Awaited))]));
        let waits = || health.problems().iter().any(|problem| problem.contains("--require-scope"));
        assert!(waits());
        health.set_listening(true);
        assert!(!waits());
    }
}
