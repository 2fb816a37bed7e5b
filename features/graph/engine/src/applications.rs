//! The applications of a cluster: those that Applications of `app.k8s.io` describe, and those that the recommended labels of Kubernetes
//! name. An object is a member of the latter only if it is none of the former.

use std::collections::{BTreeMap, BTreeSet};

use proto::graph::{
    Application, ApplicationDescriptor, ApplicationFacts, ApplicationKind, ApplicationList,
    ApplicationMember, ApplicationOrigin, GroupHealth, HealthState,
};

use crate::{
    access::Access,
    entry::Entry,
    graph::Graph,
    groups,
    query::Query,
    rollup::{MAX_APPLICATIONS, Memberships},
};

/// The labels that name an application, the widest one first.
const NAMES: [&str; 3] =
    ["app.kubernetes.io/part-of", "app.kubernetes.io/instance", "app.kubernetes.io/name"];
const TYPE: &str = "app.kubernetes.io/name";
const VERSION: &str = "app.kubernetes.io/version";
const MANAGER: &str = "app.kubernetes.io/managed-by";
/// The most members and kinds of one application.
const MAX_MEMBERS: usize = 100;
const MAX_KINDS: usize = 64;
/// The largest lists, in bytes of JSON without their frame: with all details, and for kas, which asks many agents.
const MAX_FULL: usize = 1 << 20;
const MAX_BRIEF: usize = 64 << 10;

/// The details of applications in a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ApplicationDetail {
    /// All of them.
    #[default]
    Full,
    /// The facts that a list of many clusters shows.
    Brief,
}

/// An application with its members.
struct FoundApplication<'a> {
    namespace: &'a str,
    name: &'a str,
    source: Source<'a>,
    members: Vec<u32>,
}

/// The object or the label by which an application was found.
#[derive(Clone, Copy)]
enum Source<'a> {
    Object(&'a ApplicationFacts),
    Label(&'static str),
}

impl Graph {
    /// Returns the applications among the visible objects in the namespaces of a query, in order of namespace and name.
    pub fn applications(
        &self,
        query: &Query,
        access: &Access,
        now: i64,
        detail: ApplicationDetail,
    ) -> ApplicationList {
        let (found, cut) = self.found_applications(query, access);
        let mut budget = detail.largest_list();
        let mut fits = |application: &Application| {
            let left = budget.checked_sub(application.json_size());
            budget = left.unwrap_or(0);
            left.is_some()
        };
        let described = found.iter().take(MAX_APPLICATIONS);
        let described = described.map(|found| detail.of(self.describe(found, query, access, now)));
        let applications: Vec<_> = described.take_while(|application| fits(application)).collect();
        ApplicationList {
            omitted: (found.len() - applications.len()) as u64,
            applications,
            partial: [self.partial(query, access), cut].concat(),
        }
    }

    /// Returns the applications, and the reasons why they may lack members.
    fn found_applications(&self, query: &Query, access: &Access) -> (Vec<FoundApplication<'_>>, Vec<String>) {
        let mut of_objects = self.described_applications(query, access);
        let mut of_labels = BTreeMap::new();
        let mut memberships = Memberships::new(self, access);
        for (slot, entry) in self.visible(query, access) {
            let mut is_member = entry.facts.application.is_some();
            for id in memberships.of(slot).iter() {
                if let Some(found) = of_objects.get_mut(&**id) {
                    found.members.push(slot);
                    is_member = true;
                }
            }
            if let Some((label, found)) = labelled(entry).filter(|_| !is_member) {
                let key = (found.namespace, found.name, label);
                of_labels.entry(key).or_insert(found).members.push(slot);
            }
        }
        let of_labels = of_labels.into_values().filter(|found| self.has_workload(&found.members));
        let mut all: Vec<_> = of_objects.into_values().chain(of_labels).collect();
        // An object comes before labels with its name.
        all.sort_by_key(|found| (found.namespace, found.name, matches!(found.source, Source::Label(_))));
        (all, memberships.partial())
    }

    /// Returns the visible Applications by the ids of their groups, without their members.
    fn described_applications(
        &self,
        query: &Query,
        access: &Access,
    ) -> BTreeMap<String, FoundApplication<'_>> {
        let described = self.visible(query, access).filter_map(|(_, entry)| {
            let (namespace, name) = (&*entry.facts.namespace, &*entry.facts.name);
            let source = Source::Object(entry.facts.application.as_deref()?);
            let found = FoundApplication { namespace, name, source, members: Vec::new() };
            Some((groups::application(namespace, name), found))
        });
        described.collect()
    }

    fn visible(&self, query: &Query, access: &Access) -> impl Iterator<Item = (u32, &Entry)> {
        self.entries().filter(move |(_, entry)| {
            access.sees_entry(entry) && !query.excludes_namespace(&entry.facts.namespace)
        })
    }

    fn has_workload(&self, members: &[u32]) -> bool {
        members
            .iter()
            .map(|&slot| self.api(self.entry(slot)))
            .any(|api| object_health::is_workload(&api.group, &api.kind))
    }

    fn describe(
        &self,
        found: &FoundApplication<'_>,
        query: &Query,
        access: &Access,
        now: i64,
    ) -> Application {
        let FoundApplication { namespace, name, source, members } = found;
        let common = Application {
            namespace: (*namespace).to_owned(),
            name: (*name).to_owned(),
            managed_by: self.common_label(members, MANAGER),
            kinds: self.kinds(*source, members),
            members: self.first_members(members),
            omitted_members: members.len().saturating_sub(MAX_MEMBERS) as u64,
            health: if members.is_empty() {
                GroupHealth { health: HealthState::Unknown, ..GroupHealth::default() }
            } else {
                self.group_health(members, query, access, now)
            },
            ..Application::default()
        };
        match source {
            Source::Object(facts) => Application {
                group: groups::application(namespace, name),
                descriptor: facts.descriptor.clone(),
                assembly_phase: facts.assembly_phase.clone(),
                info: facts.info.clone(),
                reported: facts.reported.clone(),
                conditions: facts.conditions.clone(),
                ..common
            },
            Source::Label(key) => Application {
                origin: ApplicationOrigin::Labels,
                label: format!("{key}={name}"),
                descriptor: ApplicationDescriptor {
                    application_type: self.common_label(members, TYPE),
                    version: self.common_label(members, VERSION),
                    ..ApplicationDescriptor::default()
                },
                ..common
            },
        }
    }

    /// Returns the value of a label, if the members that have the label have the same one.
    fn common_label(&self, members: &[u32], key: &str) -> String {
        let values: BTreeSet<&str> =
            members.iter().filter_map(|&slot| self.entry(slot).facts.label(key)).collect();
        if values.len() == 1 { values.into_iter().collect() } else { String::new() }
    }

    fn kinds(&self, source: Source<'_>, members: &[u32]) -> Vec<ApplicationKind> {
        let mut kinds = BTreeMap::<(String, String), ApplicationKind>::new();
        if let Source::Object(facts) = source {
            let declared = facts.kinds.iter().cloned();
            kinds.extend(declared.map(|kind| ((kind.group.clone(), kind.kind.clone()), kind)));
        }
        for api in members.iter().map(|&slot| self.api(self.entry(slot))) {
            let key = (api.group.clone(), api.kind.clone());
            let kind = kinds.entry(key).or_insert_with(|| ApplicationKind {
                group: api.group.clone(),
                kind: api.kind.clone(),
                ..ApplicationKind::default()
            });
            kind.members += 1;
        }
        kinds.into_values().take(MAX_KINDS).collect()
    }

    fn first_members(&self, members: &[u32]) -> Vec<ApplicationMember> {
        let mut sorted = members.to_vec();
        sorted.sort_by_cached_key(|&slot| self.sort_key(slot));
        let member = |slot: u32| {
            let entry = self.entry(slot);
            let api = self.api(entry);
            ApplicationMember {
                uid: entry.uid.to_string(),
                group: api.group.clone(),
                kind: api.kind.clone(),
                namespace: entry.facts.namespace.to_string(),
                name: entry.facts.name.to_string(),
                health: entry.facts.health,
            }
        };
        sorted.into_iter().take(MAX_MEMBERS).map(member).collect()
    }
}

impl ApplicationDetail {
    fn largest_list(self) -> usize {
        match self {
            Self::Full => MAX_FULL,
            Self::Brief => MAX_BRIEF,
        }
    }

    /// Returns the application with these details.
    fn of(self, application: Application) -> Application {
        match self {
            Self::Full => application,
            Self::Brief => application.into_brief(),
        }
    }
}

/// Returns the application that the labels of an object name, without its members, and the label.
fn labelled(entry: &Entry) -> Option<(&'static str, FoundApplication<'_>)> {
    let facts = &entry.facts;
    let of_label = |key: &'static str| Some((key, facts.label(key).filter(|value| groups::is_name(value))?));
    let (key, name) = NAMES.into_iter().find_map(of_label)?;
    let found = FoundApplication {
        namespace: &facts.namespace,
        name,
        source: Source::Label(key),
        members: Vec::new(),
    };
    (!facts.namespace.is_empty()).then_some((key, found))
}
