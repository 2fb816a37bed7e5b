//! Rules about the objects of writes, which RBAC does not have: their names and their labels.

use std::collections::BTreeMap;

use proto::LabelSelector;
use request_info::ResourceTarget;

use super::{
    NamespaceLabels,
    admission_review::{AdmissionRequest, Operation, ReviewedObject},
    rule::{matches_pattern, matches_resource_pattern, within},
};

/// A rule about objects. An absent list restricts nothing.
#[derive(Clone, Debug)]
pub(crate) struct ObjectRule {
    pub(crate) name: String,
    pub(crate) groups: Option<Vec<String>>,
    pub(crate) resources: Option<Vec<String>>,
    pub(crate) namespaces: Option<Vec<String>>,
    /// The labels of the namespaces.
    pub(crate) selector: Option<LabelSelector>,
    /// The patterns of which the name has to match one.
    pub(crate) names: Option<Vec<String>>,
    /// The labels that the object has to have, with the patterns of which the value has to match one.
    pub(crate) labels: BTreeMap<String, Vec<String>>,
}

impl ObjectRule {
    /// Returns whether a write is refused because of its object. Deletions and subresources have none.
    pub(crate) fn refuses(&self, request: &AdmissionRequest, labels: &NamespaceLabels) -> bool {
        let writes = matches!(request.operation, Operation::Create | Operation::Update);
        let Some(object) = request.object.as_ref().filter(|_| writes && request.sub_resource.is_empty())
        else {
            return false;
        };
        self.applies(request, labels) && !self.accepts(object)
    }

    /// Returns the message about an object that is refused. The name of a rule with a selector would show the writer the labels of the namespace.
    pub(crate) fn refusal(&self) -> String {
        let rule =
            if self.selector.is_some() { "a rule".to_owned() } else { format!("rule {:?}", self.name) };
        format!(
            "the policy of this cluster does not allow this: {rule} demands another name or other labels of the object"
        )
    }

    /// Returns whether the rule applies to an object. It does if the labels of the namespace are not known.
    fn applies(&self, request: &AdmissionRequest, labels: &NamespaceLabels) -> bool {
        let resource = request.requested();
        let target = ResourceTarget {
            group: &resource.group,
            resource: &resource.resource,
            ..ResourceTarget::default()
        };
        within(self.groups.as_deref(), |group| group == "*" || group == target.group)
            && within(self.resources.as_deref(), |pattern| matches_resource_pattern(pattern, &target))
            && within(self.namespaces.as_deref(), |name| matches_pattern(name, &request.namespace))
            && self.selector.as_ref().is_none_or(|selector| {
                !request.namespace.is_empty() && labels.selects(selector, &request.namespace).unwrap_or(true)
            })
    }

    fn accepts(&self, object: &ReviewedObject) -> bool {
        let metadata = &object.metadata;
        let one_of =
            |patterns: &[String], text: &str| patterns.iter().any(|each| matches_pattern(each, text));
        self.names.as_ref().is_none_or(|names| one_of(names, &metadata.name))
            && self
                .labels
                .iter()
                .all(|(label, values)| metadata.labels.get(label).is_some_and(|value| one_of(values, value)))
    }
}
