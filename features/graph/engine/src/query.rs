//! The query of a caller: the parameters of a request.

use std::{collections::BTreeSet, time::Duration};

use kube::core::ApiResource;
use proto::{
    LabelSelector,
    agent_configuration::graph::ViewDefinition,
    graph::{HealthState, KindName},
};

use crate::{entry::Entry, graph::Graph};

/// The largest number of values of one parameter.
const MAX_VALUES: usize = 100;

/// Selects objects. Without parameters, it selects all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    kinds: Vec<KindName>,
    namespaces: Vec<String>,
    names: Vec<String>,
    labels: LabelSelector,
    health: Vec<HealthState>,
    /// The id of a group.
    pub group: Option<String>,
    /// The time for which an object must be unhealthy before its group is.
    pub degraded_after: Duration,
}

/// A parameter that is unknown or wrong.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct QueryError(String);

impl Query {
    /// Returns what a view selects.
    pub(crate) fn of_view(definition: &ViewDefinition) -> Self {
        Self {
            kinds: definition.kind().into_iter().cloned().collect(),
            namespaces: definition.namespaces.clone(),
            labels: LabelSelector::of_labels(&definition.labels),
            health: definition.health.clone(),
            ..Self::default()
        }
    }

    /// Adds a parameter. Returns false if it is none of a query. One without a value, such as that of an empty field of a form, selects all.
    ///
    /// # Errors
    ///
    /// The value is wrong.
    pub fn set(&mut self, key: &str, value: &str) -> Result<bool, QueryError> {
        match key {
            "kind" | "namespace" | "name" | "health" | "label" | "group" | "degraded_after"
                if value.is_empty() => {}
            "kind" => add(key, &mut self.kinds, value, |text| {
                Ok(text.parse().unwrap_or_else(|error| match error {}))
            })?,
            "namespace" => add(key, &mut self.namespaces, value, |text| Ok(text.to_owned()))?,
            "name" => add(key, &mut self.names, value, |text| Ok(text.to_owned()))?,
            "health" => add(key, &mut self.health, value, |text| {
                let known = HealthState::ALL.into_iter().find(|known| known.as_str() == text);
                known.ok_or_else(|| {
                    let all = HealthState::ALL.map(HealthState::as_str).join(", ");
                    QueryError(format!("health={text}: no health has this name; use {all}"))
                })
            })?,
            "label" => {
                let selector = value.parse().map_err(|error| QueryError(format!("label: {error}")))?;
                self.labels = std::mem::take(&mut self.labels).and(selector);
            }
            "group" => self.group = Some(value.to_owned()),
            "degraded_after" => {
                let duration = settings::duration::parse(value);
                self.degraded_after =
                    duration.map_err(|error| QueryError(format!("degraded_after={value}: {error}")))?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Checks that the kinds exist.
    ///
    /// # Errors
    ///
    /// The graph has no resource of a kind.
    pub fn check(&self, graph: &Graph) -> Result<(), QueryError> {
        if graph.resources().is_empty() {
            // The API server has not said yet which kinds it has.
            return Ok(());
        }
        for wanted in &self.kinds {
            if !graph.served().any(|(_, known)| is(wanted, &known.kind.api)) {
                let mut kinds: Vec<&str> = graph.served().map(|(_, known)| &*known.kind.api.kind).collect();
                kinds.sort_unstable();
                kinds.dedup();
                let kind = wanted.kind();
                return Err(QueryError(format!(
                    "kind={kind}: no such kind is loaded; the graph has {}",
                    kinds.join(", ")
                )));
            }
        }
        Ok(())
    }

    /// Returns whether the query selects an object, apart from its group.
    pub(crate) fn selects(&self, graph: &Graph, entry: &Entry) -> bool {
        let facts = &entry.facts;
        (self.namespaces.is_empty() || self.namespaces.iter().any(|name| **name == *facts.namespace))
            && (self.kinds.is_empty() || self.kinds.iter().any(|kind| is(kind, graph.api(entry))))
            && (self.names.is_empty() || self.names.iter().any(|name| **name == *facts.name))
            && (self.health.is_empty() || self.health.contains(&facts.health))
            && self.labels.matches(|key| facts.label(key))
    }

    /// Returns whether the query may select objects of a resource.
    pub(crate) fn concerns(&self, api: &ApiResource) -> bool {
        self.kinds.is_empty() || self.kinds.iter().any(|kind| is(kind, api))
    }

    /// Returns whether the query selects objects of these namespaces only.
    pub(crate) fn is_within(&self, namespaces: &BTreeSet<String>) -> bool {
        !self.namespaces.is_empty() && self.namespaces.iter().all(|name| namespaces.contains(name))
    }

    /// Returns whether the query names namespaces, and not this one.
    pub(crate) fn excludes_namespace(&self, namespace: &str) -> bool {
        !self.namespaces.is_empty() && !self.namespaces.iter().any(|name| name == namespace)
    }

    /// Returns the selection in words, for the sentence about an empty result.
    pub(crate) fn describe(&self, text: &str) -> String {
        let mut parts = Vec::new();
        if !self.namespaces.is_empty() {
            parts.push(format!("in the namespace {}", self.namespaces.join(" or ")));
        }
        if !text.is_empty() {
            parts.push(format!("with the labels {text}"));
        }
        parts.join(" ")
    }
}

fn is(kind: &KindName, api: &ApiResource) -> bool {
    kind.is(&api.group, &api.kind, &api.plural)
}

fn add<T>(
    key: &str,
    values: &mut Vec<T>,
    value: &str,
    parse: impl Fn(&str) -> Result<T, QueryError>,
) -> Result<(), QueryError> {
    for part in value.split(',').filter(|part| !part.is_empty()) {
        if values.len() == MAX_VALUES {
            return Err(QueryError(format!("{key}: more than {MAX_VALUES} values")));
        }
        values.push(parse(part)?);
    }
    Ok(())
}
