//! The rights that projects of GitOps need: of agentk in its own namespace, and of whoever applies the objects.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use gitops_engine::applyset::{ApplySet, PROJECT};
use kube_cluster::{ApiError, Cluster as _, GroupKind, KubeCluster};
use proto::{AgentId, gitops::ProjectStatus};
use serde_json::Value;

/// The verbs that a sync needs for the objects of a kind.
const VERBS: [&str; 6] = ["get", "list", "watch", "create", "patch", "delete"];
/// The rights of agentk in its namespace: a resource with its group and its verbs.
const OWN: [(&str, &str, &[&str]); 2] = [
    ("", "configmaps", &["get", "list", "watch", "create", "patch", "delete"]),
    ("coordination.k8s.io", "leases", &["get", "create", "update"]),
];

/// The rights for the Events about projects, in the namespace of agentk.
const EVENTS: (&str, &str, &[&str]) = ("", "events", &["get", "create", "patch"]);

/// The rights that one user of the cluster lacks.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Missing(BTreeMap<Place, BTreeSet<&'static str>>);

/// A resource, and where it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    /// Empty for all namespaces, and for resources without namespaces.
    namespace: String,
    group: String,
    resource: String,
}

/// A project that was synced before.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StoredProject {
    pub(super) id: String,
    /// The namespace and the name of the service account that applies its objects, if it is not that of agentk.
    account: Option<(String, String)>,
    kinds: Vec<GroupKind>,
    namespaces: Vec<String>,
}

/// Returns the rights that agentk lacks for its inventories and its Lease.
pub(super) async fn own_rights(own: &KubeCluster, namespace: &str) -> Result<Missing, ApiError> {
    missing_in(own, namespace, &OWN).await
}

/// Returns the rights that agentk lacks for the Events about projects.
pub(super) async fn event_rights(own: &KubeCluster, namespace: &str) -> Result<Missing, ApiError> {
    missing_in(own, namespace, &[EVENTS]).await
}

async fn missing_in(
    own: &KubeCluster,
    namespace: &str,
    rights: &[(&str, &str, &[&'static str])],
) -> Result<Missing, ApiError> {
    let mut missing = Missing::default();
    for (group, resource, verbs) in rights {
        let (group, resource) = ((*group).to_owned(), (*resource).to_owned());
        let place = Place { namespace: namespace.to_owned(), group, resource };
        missing.review(own, &place, verbs).await?;
    }
    Ok(missing)
}

/// Returns the projects whose inventories are in the namespace of agentk.
pub(super) async fn stored_projects(
    own: &KubeCluster,
    namespace: &str,
) -> Result<Vec<StoredProject>, ApiError> {
    let (kind, _) = ApplySet::new(AgentId(0), "", namespace).parent_id();
    let inventories = own.list(&kind, namespace, "app.kubernetes.io/managed-by=agentk", false).await?;
    Ok(inventories.iter().filter_map(|inventory| StoredProject::read(inventory, namespace)).collect())
}

impl StoredProject {
    /// Reads an inventory. Its content is not trusted.
    fn read(inventory: &Value, namespace: &str) -> Option<Self> {
        let id = inventory["metadata"]["annotations"][PROJECT].as_str()?;
        let status: ProjectStatus = serde_json::from_str(inventory["data"]["status"].as_str()?).ok()?;
        let mut set = ApplySet::new(AgentId(0), id, namespace);
        set.read(inventory).ok()?;
        let settings = status.settings.unwrap_or_default();
        let account =
            settings.service_account().map(|(namespace, name)| (namespace.to_owned(), name.to_owned()));
        // The first sync may have failed before it wrote an object into the set.
        let (mut kinds, mut namespaces) = (set.kinds, set.namespaces);
        for object in status.errors.iter().filter_map(|error| error.object.as_ref()) {
            kinds.insert(GroupKind::of(object));
            namespaces.extend(Some(&object.namespace).filter(|name| !name.is_empty()).cloned());
        }
        Some(Self {
            id: id.to_owned(),
            account,
            kinds: kinds.into_iter().collect(),
            namespaces: namespaces.into_iter().collect(),
        })
    }

    /// Returns what the user who applies the objects of the project lacks.
    pub(super) async fn rights(&self, own: &KubeCluster) -> Result<Missing, ApiError> {
        let cluster = match &self.account {
            Some((namespace, name)) => own.acting_as(namespace, name),
            None => own.clone(),
        };
        let mut missing = Missing::default();
        for kind in &self.kinds {
            // Its definition may have gone.
            let Some(kind) = own.resolve(kind, None).await?.found() else { continue };
            let place = |namespace: &str| Place {
                namespace: namespace.to_owned(),
                group: kind.kind.group.clone(),
                resource: kind.plural.clone(),
            };
            let mut everywhere = Missing::default();
            everywhere.review(&cluster, &place(""), &VERBS).await?;
            if everywhere.is_empty() {
                continue;
            }
            if !kind.namespaced {
                missing.0.extend(everywhere.0);
                continue;
            }
            for namespace in &self.namespaces {
                missing.review(&cluster, &place(namespace), &VERBS).await?;
            }
        }
        Ok(missing)
    }

    /// Describes who applies the objects.
    pub(super) fn user(&self) -> String {
        match &self.account {
            Some((namespace, name)) => format!("the service account {namespace}/{name}"),
            None => "agentk".to_owned(),
        }
    }

    /// Describes what the project consists of.
    pub(super) fn describe(&self) -> String {
        let who = self.user();
        let count = |count: usize, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
        let (kinds, namespaces) =
            (count(self.kinds.len(), "kind"), count(self.namespaces.len(), "namespace"));
        format!("{who} may write objects of {kinds} in {namespaces}")
    }
}

impl Missing {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    async fn review(
        &mut self,
        cluster: &KubeCluster,
        place: &Place,
        verbs: &[&'static str],
    ) -> Result<(), ApiError> {
        for verb in verbs {
            if !cluster.may(verb, &place.group, &place.resource, &place.namespace).await? {
                self.0.entry(place.clone()).or_default().insert(verb);
            }
        }
        Ok(())
    }

    /// Describes what is missing on one line.
    pub(super) fn describe(&self) -> String {
        let places = self.0.iter().map(|(Place { namespace, group, resource }, verbs)| {
            let group = if group.is_empty() { String::new() } else { format!(".{group}") };
            let place = if namespace.is_empty() { String::new() } else { format!(" in {namespace}") };
            format!("{} {resource}{group}{place}", list(verbs))
        });
        places.collect::<Vec<_>>().join("; ")
    }

    /// Returns a Role for each namespace, and a ClusterRole for what is in none.
    pub(super) fn roles(&self) -> String {
        let mut rules: BTreeMap<&str, String> = BTreeMap::new();
        for (Place { namespace, group, resource }, verbs) in &self.0 {
            let group = if group.is_empty() { "''" } else { group };
            // Writing to a string does not fail.
            let _ = writeln!(
                rules.entry(namespace).or_default(),
                "- {{apiGroups: [{group}], resources: [{resource}], verbs: [{}]}}",
                list(verbs)
            );
        }
        let role = |(namespace, rules): (&&str, &String)| {
            let (kind, place) = match *namespace {
                "" => ("ClusterRole", String::new()),
                namespace => ("Role", format!(", namespace: {namespace}")),
            };
            format!(
                "---\napiVersion: rbac.authorization.k8s.io/v1\nkind: {kind}\nmetadata: {{name: agentk-gitops-missing{place}}}\nrules:\n{rules}"
            )
        };
        rules.iter().map(role).collect()
    }
}

/// Returns verbs in the order of the alphabet.
fn list(verbs: &BTreeSet<&'static str>) -> String {
    verbs.iter().copied().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn missing_rights_are_roles() {
        let place = |namespace: &str, group: &str, resource: &str| Place {
            namespace: namespace.to_owned(),
            group: group.to_owned(),
            resource: resource.to_owned(),
        };
        let missing = Missing(BTreeMap::from([
            (place("shop", "apps", "deployments"), BTreeSet::from(["patch", "create"])),
            (place("shop", "", "services"), BTreeSet::from(["delete"])),
            (place("", "", "namespaces"), BTreeSet::from(["create"])),
        ]));
        assert_eq!(
            missing.describe(),
            "create namespaces; delete services in shop; create, patch deployments.apps in shop"
        );
        let roles = missing.roles();
        let parsed: Vec<Value> =
            roles.split("---\n").skip(1).map(|role| serde_saphyr::from_str(role).unwrap()).collect();
        assert_eq!((&parsed[0]["kind"], &parsed[1]["kind"]), (&json!("ClusterRole"), &json!("Role")));
        assert_eq!(parsed[1]["metadata"]["namespace"], "shop");
        assert_eq!(
            parsed[1]["rules"],
            json!([
                {"apiGroups": [""], "resources": ["services"], "verbs": ["delete"]},
                {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["create", "patch"]},
            ])
        );
    }

    #[test]
    fn project_is_read_from_its_inventory() {
        let settings = json!({"run_as": {"service_account": "shop/deployer"}});
        let status = json!({
            "project": "group/shop", "reference": "", "state": "synced", "message": "", "objects": {},
            "settings": settings,
        });
        let mut inventory = ApplySet::new(AgentId(7), "group/shop", "agentk").parent();
        inventory["data"]["status"] = status.to_string().into();
        inventory["metadata"]["annotations"]["applyset.kubernetes.io/contains-group-kinds"] =
            "Deployment.apps".into();
        inventory["metadata"]["annotations"]["applyset.kubernetes.io/additional-namespaces"] = "shop".into();
        let project = StoredProject::read(&inventory, "agentk").unwrap();
        assert_eq!(project.account, Some(("shop".to_owned(), "deployer".to_owned())));
        assert_eq!(
            project.describe(),
            "the service account shop/deployer may write objects of 1 kind in 1 namespace"
        );
        assert_eq!(StoredProject::read(&json!({}), "agentk"), None);
    }
}
