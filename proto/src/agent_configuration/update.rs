//! The request of the service `configuration`, with which kas sends an agent its configuration.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{
    InvalidValue, LogLevel, Scope,
    alerts::AlertsSection,
    environments::NamedEnvironment,
    graph::GraphSection,
    notify::{Flux, Notify},
};
use crate::{AgentId, AgentName};

/// The path of the request. Its method is PUT.
pub const CONFIGURATION_PATH: &str = "/v1/configuration";

/// The largest body of the request, in bytes. JSON takes more than the YAML of the file.
pub const MAX_UPDATE: usize = 4 << 20;

/// The body of the request: the configuration that is in force, and the error of a newer one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConfigurationUpdate {
    /// The time when kas read the repository or the file, in milliseconds since 1970, for an agentk that does not know `age`.
    pub observed: u64,
    /// The time since then, in milliseconds. agentk ignores an update that was read before the last one: replicas of kas read
    /// independently, and their clocks differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age: Option<u64>,
    /// The version of the configuration, for people: a commit, or a digest of a local file. `None` if kas has no valid
    /// configuration, so that agentk keeps the one that it has.
    pub version: Option<String>,
    /// The configuration file as JSON.
    pub configuration: Option<Value>,
    /// The reason why the newest version cannot be used.
    pub error: Option<String>,
    /// The places in the file of the keys that the owner of the cluster may refuse, such as `config.yaml:12:9`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub places: BTreeMap<String, String>,
    /// The part about managed resources. A kas without them sends none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provision: Option<ProvisionSettings>,
}

/// The body of the response, if agentk uses a configuration only in part, or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigurationResponse {
    /// A sentence for each key without effect, with its place in the file.
    pub refused: Vec<String>,
    /// agentk has a configuration that was read later, and ignores this one.
    #[serde(default)]
    pub ignored: bool,
}

/// What a configuration says about managed resources.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProvisionSettings {
    /// The id of the agent.
    pub agent: AgentId,
    /// The name of the agent.
    pub name: AgentName,
    /// The configuration has `resource_management`. Without it, no template applies, not even the built-in one.
    #[serde(default)]
    pub managed: bool,
    /// The template, if the directory of the agent has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<TemplateFile>,
}

/// The file of a template.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateFile {
    /// The path in the repository.
    pub path: String,
    /// The text, or the reason why the file cannot be used.
    pub text: Result<String, String>,
}

impl TemplateFile {
    /// The name of the template that applies to each environment.
    pub const DEFAULT_NAME: &str = "default";
    /// The directory of the templates, beside the configuration file of the agent.
    pub const DIRECTORY: &str = "environment_templates";
    /// The largest template, in bytes.
    pub const MAX_BYTES: usize = 64 << 10;
}

/// The keys of the file that agentk applies.
///
/// A newer kas may send keys that this agentk does not have. Those of [`Scope`] restrict requests, so an unknown one is an
/// error. Without their sections, the graph and the alerts work as by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppliedKeys {
    /// The level of agentk's log.
    pub log_level: Option<LogLevel>,
    /// The part of the cluster that requests may reach.
    pub scope: Option<Scope>,
    /// The graph of what runs.
    pub graph: GraphSection,
    /// The reason why the section of the graph has no effect.
    pub graph_error: Option<String>,
    /// The events that matter to the cluster.
    pub notify: Notify,
    /// The sources of Flux that reconcile at events.
    pub flux: Option<Flux>,
    /// The reason why the sections of events have no effect.
    pub notify_error: Option<String>,
    /// The traffic and the violations that agentk reports.
    pub alerts: AlertsSection,
    /// The reason why the section of the alerts has no effect.
    pub alerts_error: Option<String>,
    /// The environments whose objects are in the cluster. Unknown keys of a later kas leave all of them out.
    pub environments: Vec<NamedEnvironment>,
    /// The health of these environments is looked at all the time.
    pub environment_health: bool,
}

impl AppliedKeys {
    /// Reads the keys from the configuration of an update.
    ///
    /// # Errors
    ///
    /// A key has an invalid value, or a key of the scope is unknown.
    pub fn new(configuration: &Value) -> Result<Self, InvalidValue> {
        let scope: Option<Scope> = value(configuration, "/scope")?;
        scope
            .iter()
            .try_for_each(Scope::validate)
            .map_err(|invalid| InvalidValue::new("scope.namespaces", invalid))?;
        let graph: Result<Option<GraphSection>, _> = value(configuration, "/graph");
        let graph = graph.and_then(|section| {
            let section = section.unwrap_or_default();
            section.validate().map(|()| section)
        });
        let (graph, graph_error) = match graph {
            Ok(section) => (section, None),
            Err(error) => (GraphSection::default(), Some(error.to_string())),
        };
        let events = events(configuration);
        let notify_error = events.as_ref().err().map(ToString::to_string);
        let (notify, flux) = events.unwrap_or_default();
        let alerts: Result<Option<AlertsSection>, _> = value(configuration, "/alerts");
        let alerts = alerts.and_then(|section| {
            let section = section.unwrap_or_default();
            section.validate().map(|()| section)
        });
        let (alerts, alerts_error) = match alerts {
            Ok(section) => (section, None),
            Err(error) => (AlertsSection::default(), Some(error.to_string())),
        };
        let log_level = value(configuration, "/observability/logging/level")?;
        let environments = value(configuration, "/environments").ok().flatten().unwrap_or_default();
        let environment_health = value(configuration, "/events/environment_health").ok().flatten();
        let environment_health = environment_health.unwrap_or_default();
        Ok(Self {
            log_level,
            scope,
            graph,
            graph_error,
            notify,
            flux,
            notify_error,
            alerts,
            alerts_error,
            environments,
            environment_health,
        })
    }
}

/// Reads the sections `notify` and `flux`.
fn events(configuration: &Value) -> Result<(Notify, Option<Flux>), InvalidValue> {
    let notify: Notify = value(configuration, "/notify")?.unwrap_or_default();
    let flux: Option<Flux> = value(configuration, "/flux")?;
    notify.validate()?;
    flux.iter().try_for_each(Flux::validate)?;
    let flux = flux.and_then(Flux::enabled);
    Ok((notify, flux))
}

fn value<T: DeserializeOwned>(configuration: &Value, pointer: &str) -> Result<Option<T>, InvalidValue> {
    let value = configuration.pointer(pointer).unwrap_or(&Value::Null);
    Option::deserialize(value).map_err(|error| InvalidValue::new(pointer[1..].replace('/', "."), error))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn applied_keys_are_read_and_others_are_ignored() {
        let keys = AppliedKeys::new(&json!({
            "observability": {"logging": {"level": "warn"}},
            "scope": {"namespaces": ["a"]},
            "feature_of_a_later_kas": {},
        }));
        let keys = keys.unwrap();
        assert_eq!(keys.log_level, Some(LogLevel::Warn));
        assert_eq!(keys.scope.unwrap().namespaces, ["a"]);
        assert_eq!(AppliedKeys::new(&json!({})).unwrap(), AppliedKeys::default());
    }

    #[test]
    fn environments_and_events_are_read_as_far_as_they_are_known() {
        let one = json!([{"slug": "live", "namespace": "shop"}]);
        let configuration = json!({"environments": one, "events": {"environment_health": true, "later": 1}});
        let keys = AppliedKeys::new(&configuration).unwrap();
        assert_eq!((keys.environments.len(), keys.environment_health), (1, true));
        let later = json!({"environments": [{"slug": "live", "namespace": "shop", "later": 1}], "events": 7});
        let keys = AppliedKeys::new(&later).unwrap();
        assert_eq!((keys.environments.len(), keys.environment_health), (0, false));
    }

    #[test]
    fn unknown_key_of_the_graph_does_not_harm_the_scope() {
        let keys = AppliedKeys::new(&json!({
            "scope": {"namespaces": ["a"]},
            "graph": {"limits": {"objects": 7}, "feature_of_a_later_kas": {}},
        }));
        let keys = keys.unwrap();
        assert_eq!((keys.scope.unwrap().namespaces.len(), keys.graph), (1, GraphSection::default()));
        assert!(keys.graph_error.unwrap().starts_with("graph: unknown field"));
        let keys = AppliedKeys::new(&json!({"graph": {"limits": {"objects": 7}}})).unwrap();
        assert_eq!((keys.graph.limits.objects, keys.graph_error), (7, None));
    }

    #[test]
    fn unknown_key_of_the_alerts_does_not_harm_the_scope() {
        let keys = AppliedKeys::new(&json!({
            "scope": {"namespaces": ["a"]},
            "alerts": {"namespaces": ["a"], "feature_of_a_later_kas": {}},
        }));
        let keys = keys.unwrap();
        assert_eq!((keys.scope.unwrap().namespaces.len(), keys.alerts), (1, AlertsSection::default()));
        assert!(keys.alerts_error.unwrap().starts_with("alerts: unknown field"));
    }

    #[test]
    fn scope_that_cannot_be_enforced_is_refused() {
        for scope in [json!({}), json!({"namespaces": []}), json!({"namespaces": ["a"], "clusters": []})] {
            assert!(AppliedKeys::new(&json!({"scope": scope})).is_err());
        }
    }
}
