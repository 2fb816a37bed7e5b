//! Selects events.

use std::{borrow::Cow, str::FromStr};

use proto::audit::parse_id;
use serde::Deserialize;

/// Selects events. A part that is `None` selects all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// The first time and the last one, in the form of events.
    pub since: Option<String>,
    /// See `since`.
    pub until: Option<String>,
    /// The user of the cluster, also one that was impersonated. Requests through kas are selected as well: only kas knows their users.
    pub user: Option<String>,
    /// The verb.
    pub verb: Option<String>,
    /// The resource.
    pub resource: Option<AuditResourceFilter>,
    /// The namespace.
    pub namespace: Option<String>,
}

/// Selects resources: `pods` with all of its subresources, `deployments.apps`, or `pods/exec`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditResourceFilter {
    resource: String,
    group: Option<String>,
    subresource: Option<String>,
}

/// The error of a text that is no resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write a resource like pods, deployments.apps or pods/exec")]
pub struct InvalidFilter;

/// The fields of a kept event that a filter needs.
#[derive(Deserialize)]
pub(crate) struct EventFields<'a> {
    #[serde(borrow)]
    time: Cow<'a, str>,
    #[serde(borrow)]
    audit_id: Cow<'a, str>,
    #[serde(borrow)]
    verb: Cow<'a, str>,
    #[serde(borrow)]
    cluster_user: UserFields<'a>,
    #[serde(borrow, default)]
    impersonated_user: Option<UserFields<'a>>,
    #[serde(borrow, default)]
    object: Option<ObjectFields<'a>>,
}

#[derive(Deserialize)]
struct UserFields<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
}

#[derive(Deserialize)]
struct ObjectFields<'a> {
    #[serde(borrow, default)]
    group: Cow<'a, str>,
    #[serde(borrow)]
    resource: Cow<'a, str>,
    #[serde(borrow, default)]
    subresource: Cow<'a, str>,
    #[serde(borrow, default)]
    namespace: Cow<'a, str>,
}

impl<'a> EventFields<'a> {
    /// Reads a line of the ring. Returns `None` if it is none: a position of a caller may lead into a line.
    pub(crate) fn new(line: &'a [u8]) -> Option<Self> {
        serde_json::from_slice(line).ok()
    }

    /// Returns the name of the user whose credential the request has.
    pub(crate) fn user(&self) -> &str {
        &self.cluster_user.name
    }
}

impl EventFilter {
    /// Returns whether an event is selected. `scope` has the namespaces to which agentk is limited: with a scope, events about objects
    /// in other namespaces, in none or in all of them are not selected.
    pub(crate) fn selects(&self, event: &EventFields<'_>, scope: Option<&[String]>) -> bool {
        let namespace = event.object.as_ref().map_or("", |object| &object.namespace);
        // Times of the same form are in the order of their texts.
        self.since.as_deref().is_none_or(|since| &*event.time >= since)
            && self.until.as_deref().is_none_or(|until| &*event.time <= until)
            && self.verb.as_deref().is_none_or(|verb| event.verb == verb)
            && self.namespace.as_deref().is_none_or(|wanted| namespace == wanted)
            && scope.is_none_or(|scope| scope.iter().any(|each| each == namespace))
            && self
                .resource
                .as_ref()
                .is_none_or(|wanted| event.object.as_ref().is_some_and(|object| wanted.selects(object)))
            && self.user.as_deref().is_none_or(|user| {
                event.cluster_user.name == user
                    || event.impersonated_user.as_ref().is_some_and(|impersonated| impersonated.name == user)
                    || parse_id(&event.audit_id).is_some()
            })
    }
}

impl AuditResourceFilter {
    fn selects(&self, object: &ObjectFields<'_>) -> bool {
        self.resource == object.resource
            && self.group.as_deref().is_none_or(|group| group == object.group)
            && self.subresource.as_deref().is_none_or(|subresource| subresource == object.subresource)
    }
}

impl FromStr for AuditResourceFilter {
    type Err = InvalidFilter;

    fn from_str(text: &str) -> Result<Self, InvalidFilter> {
        let (whole, subresource) = match text.split_once('/') {
            Some((whole, subresource)) => (whole, Some(subresource)),
            None => (text, None),
        };
        let (resource, group) = match whole.split_once('.') {
            Some((resource, group)) => (resource, Some(group)),
            None => (whole, None),
        };
        let is_name = |name: &str| {
            !name.is_empty()
                && name
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte))
        };
        let valid = is_name(resource) && group.is_none_or(is_name) && subresource.is_none_or(is_name);
        let owned = |text: Option<&str>| text.map(str::to_owned);
        valid
            .then(|| Self {
                resource: resource.to_owned(),
                group: owned(group),
                subresource: owned(subresource),
            })
            .ok_or(InvalidFilter)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn line(object: Option<&str>) -> String {
        let object = object.map(|text| {
            let [group, resource, subresource, namespace]: [&str; 4] =
                text.split(',').collect::<Vec<_>>().try_into().unwrap();
            json!({"group": group, "resource": resource, "subresource": subresource, "namespace": namespace})
        });
        json!({
            "time": "2026-01-31T12:00:00.000000Z", "audit_id": "a", "verb": "delete",
            "cluster_user": {"name": "agentk"}, "impersonated_user": {"name": "ci"}, "object": object,
        })
        .to_string()
    }

    fn selects(filter: EventFilter, line: &str, scope: Option<&[String]>) -> bool {
        filter.selects(&EventFields::new(line.as_bytes()).unwrap(), scope)
    }

    #[test]
    fn filter_selects_by_all_of_its_parts() {
        let exec = line(Some(",pods,exec,shop"));
        let text = |text: &str| Some(text.to_owned());
        let all = EventFilter::default;
        for (filter, expected) in [
            (all(), true),
            (EventFilter { since: text("2026-01-31T12:00:00.000000Z"), ..all() }, true),
            (EventFilter { since: text("2026-01-31T12:00:00.000001Z"), ..all() }, false),
            (EventFilter { until: text("2026-01-31T11:59:59.999999Z"), ..all() }, false),
            (EventFilter { user: text("agentk"), ..all() }, true),
            (EventFilter { user: text("ci"), verb: text("delete"), ..all() }, true),
            (EventFilter { user: text("jane"), ..all() }, false),
            (EventFilter { verb: text("get"), ..all() }, false),
            (EventFilter { namespace: text("shop"), ..all() }, true),
            (EventFilter { namespace: text("sho"), ..all() }, false),
        ] {
            assert_eq!(selects(filter.clone(), &exec, None), expected, "{filter:?}");
        }
        let through_kas = exec.replace("\"a\"", "\"kas-000102030405060708090a0b0c0d0e0f\"");
        assert!(
            selects(EventFilter { user: text("jane"), ..all() }, &through_kas, None),
            "kas knows the user"
        );
    }

    #[test]
    fn resource_may_have_a_group_and_a_subresource() {
        for (filter, object, expected) in [
            ("pods", ",pods,,a", true),
            ("pods", ",pods,exec,a", true),
            ("pods/exec", ",pods,exec,a", true),
            ("pods/exec", ",pods,log,a", false),
            ("deployments", "apps,deployments,,a", true),
            ("deployments.apps", "apps,deployments,,a", true),
            ("deployments.extensions", "apps,deployments,,a", false),
            ("ingresses.networking.k8s.io/status", "networking.k8s.io,ingresses,status,a", true),
        ] {
            let resource = Some(filter.parse().unwrap());
            let filter = EventFilter { resource, ..EventFilter::default() };
            assert_eq!(selects(filter, &line(Some(object)), None), expected, "{object}");
        }
        let pods = EventFilter { resource: Some("pods".parse().unwrap()), ..EventFilter::default() };
        assert!(!selects(pods, &line(None), None), "a request for no object");
        for invalid in ["", "/", "pods/", ".apps", "Pods", "a b", "pods/exec/x"] {
            assert_eq!(invalid.parse::<AuditResourceFilter>(), Err(InvalidFilter), "{invalid:?}");
        }
    }

    #[test]
    fn scope_hides_other_namespaces_and_what_is_in_none() {
        let scope = ["shop".to_owned()];
        for (object, expected) in [
            (Some(",pods,,shop"), true),
            (Some(",pods,,other"), false),
            (Some(",nodes,,"), false),
            (None, false),
        ] {
            assert_eq!(selects(EventFilter::default(), &line(object), Some(&scope)), expected, "{object:?}");
        }
        assert!(!selects(EventFilter::default(), &line(Some(",pods,,")), Some(&[])));
    }
}
