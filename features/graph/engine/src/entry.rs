//! One object of the graph, as it is kept in memory.

use std::sync::Arc;

use object_health::{Assessment, AssessmentContext, JudgedParts};
use proto::graph::{Amounts, ApplicationFacts, HealthState, Ready, Relation};
use serde_json::Value;

use crate::{
    amounts, groups,
    references::{self, PodSelector},
    resources::ResourceKind,
    summary::{Summary, summarize},
    text::{Interner, MAX_MESSAGE, MAX_NAME, cut},
    time,
};

/// The most labels of one object.
const MAX_LABELS: usize = 32;
/// The most owners of one object.
const MAX_OWNERS: usize = 16;

/// A text that many objects share.
pub(crate) type Text = Arc<str>;

/// One object.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) uid: Text,
    /// The place of its resource in the graph.
    pub(crate) resource: usize,
    /// The facts that a reader sees.
    pub(crate) facts: Facts,
    /// The time since which it has this health, in seconds since 1970.
    pub(crate) since: i64,
    /// The number of its last change.
    pub(crate) sequence: u64,
    /// The list that has shown it last.
    pub(crate) round: u64,
    /// An estimate of its memory in bytes.
    pub(crate) size: usize,
}

/// The facts of an object. A change of others is no change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) namespace: Text,
    pub(crate) name: Text,
    /// In seconds since 1970.
    pub(crate) created: i64,
    pub(crate) deleted: Option<i64>,
    pub(crate) owners: Box<[EntryOwner]>,
    pub(crate) labels: Box<[(Text, Text)]>,
    pub(crate) status: Text,
    pub(crate) ready: Option<Ready>,
    pub(crate) restarts: u32,
    pub(crate) images: Box<[Text]>,
    pub(crate) details: Box<[(&'static str, Text)]>,
    /// The capacity that a node offers to Pods, and the requests of a Pod there.
    pub(crate) amounts: Amounts,
    pub(crate) health: HealthState,
    pub(crate) message: Box<str>,
    /// The objects that it owns and about which its health says how they are.
    pub(crate) judged_parts: JudgedParts,
    /// A Pod that has ended: its owner has made another one, if it wants one.
    pub(crate) is_over: bool,
    /// The time at which it is healthy if nothing changes until then, in seconds since 1970: the crashes of its containers are forgotten,
    /// or its controller writes no status.
    pub(crate) healthy_from: Option<i64>,
    pub(crate) groups: Box<[Text]>,
    pub(crate) references: Box<[EntryReference]>,
    pub(crate) selector: Option<Box<PodSelector>>,
    /// The templates of claims of a StatefulSet.
    pub(crate) templates: Box<[Text]>,
    /// The selector and the description of an Application of `app.k8s.io`.
    pub(crate) application: Option<Box<ApplicationFacts>>,
}

/// The owner of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EntryOwner {
    /// Empty if only kind and name are known.
    pub(crate) uid: Text,
    pub(crate) group: Text,
    pub(crate) kind: Text,
    pub(crate) name: Text,
}

/// A relation to an object with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EntryReference {
    pub(crate) relation: Relation,
    pub(crate) group: Text,
    pub(crate) kind: Text,
    pub(crate) namespace: Text,
    pub(crate) name: Text,
}

/// Reads the facts of an object at a time in seconds since 1970. Returns them with its UID, or `None` for an object without a UID or a
/// name.
pub(crate) fn read(
    resource: &ResourceKind,
    object: &mut Value,
    interner: &mut Interner,
    now: i64,
) -> Option<(Text, Facts)> {
    let api = &resource.api;
    let (group, kind) = (&*api.group, &*api.kind);
    // Items of lists have neither, and the health depends on them.
    let fields = object.as_object_mut()?;
    fields.insert("apiVersion".to_owned(), api.api_version.as_str().into());
    fields.insert("kind".to_owned(), kind.into());
    let object = &*object;
    let metadata = &object["metadata"];
    let (uid, name) = (metadata["uid"].as_str()?, metadata["name"].as_str()?);
    if uid.is_empty() || name.is_empty() {
        return None;
    }
    let time = |key: &str| metadata[key].as_str().and_then(time::seconds);
    let context = AssessmentContext {
        now: time::at(now),
        has_status: resource.has_status,
        rule: resource.rule.as_deref(),
    };
    let assessment = object_health::assess(object, context);
    let healthy_from = object_health::healthy_from(object, &assessment, context).map(time::of);
    let judged_parts = object_health::judged_parts(object, &assessment, context);
    let Assessment { health, reason } = assessment;
    let Summary { status, ready, restarts, images, details } = summarize(group, kind, object);
    let mut intern = |text: &str| interner.get(text);
    let labels = metadata["labels"].as_object().into_iter().flatten();
    let labels = labels
        .filter_map(|(key, value)| Some((key, value.as_str()?)))
        .take(MAX_LABELS)
        .map(|(key, value)| (intern(key), intern(value)))
        .collect();
    let owners = metadata["ownerReferences"].as_array().into_iter().flatten().take(MAX_OWNERS);
    let mut owners: Vec<EntryOwner> = owners
        .filter_map(|owner| {
            let field = |key: &str| owner[key].as_str();
            let group =
                field("apiVersion").and_then(|api| api.split_once('/')).map_or("", |(group, _)| group);
            Some(EntryOwner {
                uid: intern(field("uid").unwrap_or_default()),
                group: intern(group),
                kind: intern(field("kind")?),
                name: intern(field("name")?),
            })
        })
        .collect();
    if owners.is_empty() && (group, kind) == ("discovery.k8s.io", "EndpointSlice") {
        // Slices that somebody has made by hand have no owner.
        owners.extend(references::service_of_slice(object).map(|service| EntryOwner {
            uid: intern(""),
            group: intern(&service.group),
            kind: intern(&service.kind),
            name: intern(&service.name),
        }));
    }
    let references =
        references::references(group, kind, object).into_iter().map(|reference| EntryReference {
            relation: reference.relation,
            group: intern(&reference.target.group),
            kind: intern(&reference.target.kind),
            namespace: intern(&reference.target.namespace),
            name: intern(&reference.target.name),
        });
    let references = references.collect();
    let facts = Facts {
        references,
        namespace: intern(metadata["namespace"].as_str().unwrap_or_default()),
        name: cut(name, MAX_NAME).into(),
        created: time("creationTimestamp").unwrap_or_default(),
        deleted: time("deletionTimestamp"),
        owners: owners.into(),
        labels,
        status: intern(&status),
        ready,
        restarts,
        images: images.iter().map(|image| intern(image)).collect(),
        amounts: amounts::amounts(group, kind, object),
        details: details.into_iter().map(|(key, value)| (key, intern(&value))).collect(),
        health,
        message: cut(&reason, MAX_MESSAGE).into(),
        judged_parts,
        is_over: (group, kind) == ("", "Pod")
            && object.pointer("/status/phase").is_some_and(|phase| phase == "Failed"),
        healthy_from,
        groups: groups::groups(object).iter().map(|id| intern(id)).collect(),
        selector: references::pod_selector(group, kind, object).map(Box::new),
        templates: references::claim_templates(object).iter().map(|name| intern(name)).collect(),
        application: ApplicationFacts::read(group, kind, object),
    };
    Some((cut(uid, MAX_NAME).into(), facts))
}

impl Facts {
    /// Returns the value of a label.
    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        self.labels.iter().find(|label| &*label.0 == key).map(|label| &*label.1)
    }

    /// Returns an estimate of the memory in bytes: that of the struct and of its lists. Shared texts do not count.
    pub(crate) fn size(&self) -> usize {
        size_of::<Entry>()
            + size_of_val(&*self.owners)
            + size_of_val(&*self.labels)
            + size_of_val(&*self.images)
            + size_of_val(&*self.details)
            + size_of_val(&*self.groups)
            + size_of_val(&*self.references)
            + self.name.len()
            + self.message.len()
            + self.selector.as_ref().map_or(0, |_| 256)
            + self.application.as_ref().map_or(0, |application| application.size())
            // The UID, and the entries of the indexes.
            + 250
    }
}
