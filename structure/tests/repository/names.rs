//! A name has one meaning in the workspace.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::collections::BTreeMap;
use structure::{references::SourceTree, workspace::packages};

/// Names of several public types, with their number. The list may only get shorter, and the numbers smaller.
const SHARED_NAMES: &[(&str, usize)] = &[
    ("Agent", 2),
    ("AgentConfiguration", 2),
    ("AgentSelector", 2),
    ("App", 2),
    ("Applied", 2),
    ("Cli", 2),
    ("Cluster", 2),
    ("ConfigurationResponse", 2),
    ("ConfigurationService", 2),
    ("Credential", 2),
    ("Destination", 2),
    ("Empty", 3),
    ("Endpoint", 3),
    ("Environment", 2),
    ("EnvironmentError", 2),
    ("Events", 2),
    ("Fault", 2),
    ("Gitops", 2),
    ("Graph", 2),
    ("GraphLimits", 2),
    ("Heartbeat", 2),
    ("Identity", 2),
    ("Io", 2),
    ("Job", 2),
    ("Limit", 2),
    ("LogLevel", 2),
    ("LoggingConfig", 2),
    ("Observability", 2),
    ("ObservabilityConfig", 2),
    ("Plan", 2),
    ("Policy", 2),
    ("Progress", 2),
    ("Project", 2),
    ("ProjectEnvironment", 2),
    ("Query", 2),
    ("QueryError", 3),
    ("RequestInfo", 2),
    ("ResponseHead", 2),
    ("Route", 2),
    ("Session", 2),
    ("Table", 2),
    ("Timestamp", 2),
    ("Values", 2),
    ("Verdict", 2),
    ("View", 2),
    ("Webhook", 2),
];

/// The modules with a public type of each name, such as `gateway::config`.
fn public_types() -> BTreeMap<String, Vec<String>> {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in packages() {
        for tree in package.roots().map(SourceTree::read) {
            for (id, module) in tree.modules.iter().enumerate() {
                let place = format!("{}::{}", package.name, tree.name(id));
                // prost names the parts of a message by its fields. They have names of their own where they are exported.
                let is_part = place.contains("::generated::");
                for name in module.public_types.iter().filter(|_| !is_part) {
                    places.entry(name.clone()).or_default().push(place.clone());
                }
            }
        }
    }
    places
}

#[test]
fn two_public_types_have_no_common_name() {
    let types = public_types();
    assert!(types.len() > 1_000, "the test finds too few types: {}", types.len());
    let expected =
        |name: &str| SHARED_NAMES.iter().find(|(listed, _)| *listed == name).map_or(1, |entry| entry.1);
    let more: Vec<_> = types.iter().filter(|(name, places)| places.len() > expected(name)).collect();
    assert!(more.is_empty(), "the name of a public type is taken: {more:#?}");
    let count = |name: &str| types.get(name).map_or(0, Vec::len);
    let fewer: Vec<_> = SHARED_NAMES.iter().filter(|(name, number)| count(name) < *number).collect();
    assert!(fewer.is_empty(), "remove from the list, or lower its numbers: {fewer:?}");
}
