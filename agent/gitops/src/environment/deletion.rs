//! Deletes the objects of an environment that stops, and nothing that others use.

use std::collections::HashSet;

use proto::{
    agent_configuration::gitops::PropagationPolicy,
    gitops::ObjectId,
    provision::{Deletion, KeptObject},
};
use serde_json::Value;

use super::{EnvironmentError, EnvironmentOwner, Environments, namespace_kind, version};
use crate::{ApiError, Cluster, Kind, KindLookup, applyset::PART_OF};

/// The most objects that a reason names.
const MAX_NAMED: usize = 5;
/// The annotation of a secret that Kubernetes has made for a service account.
const OF_ACCOUNT: &str = "kubernetes.io/service-account.name";
/// The labels of objects that another program makes from Git.
const OF_GITOPS: [&str; 3] = [PART_OF, "kustomize.toolkit.fluxcd.io/name", "helm.toolkit.fluxcd.io/name"];

/// Decides whether the content of a namespace may be deleted with it: the kind, and the namespace.
pub type MaySweep<'a> = dyn Fn(&Kind, &str) -> bool + Send + Sync + 'a;

/// An object of an environment in the cluster.
pub(super) struct Member {
    pub(super) id: ObjectId,
    kind: Kind,
    object: Value,
}

/// An object in a namespace that shall be deleted.
struct Content<'a> {
    kind: &'a Kind,
    id: ObjectId,
    object: Value,
}

impl<C: Cluster> Environments<C> {
    /// Deletes the objects of an environment, namespaces last. An object of several environments is taken away from this one. A namespace
    /// stays while it contains anything else, unless `may_sweep` allows that for each kind in it; what another environment or GitOps has
    /// made is never deleted.
    ///
    /// # Errors
    ///
    /// The API server refuses a list, or does not respond. Some objects may have been deleted.
    pub async fn delete(
        &self,
        owner: &EnvironmentOwner,
        may_sweep: &MaySweep<'_>,
    ) -> Result<Deletion, EnvironmentError> {
        // What is in a namespace may be of a kind that is new.
        self.cluster.forget_kinds();
        let mut members = self.members(owner).await?;
        members.sort_by_key(|member| !member.kind.namespaced);
        let mut deletion = Deletion::default();
        for member in members {
            match self.delete_member(owner, &member, may_sweep).await {
                Ok(()) => deletion.deleted.push(member.id),
                Err(reason) => deletion.kept.push(KeptObject { id: member.id, reason }),
            }
        }
        Ok(deletion)
    }

    /// Returns the objects of an environment.
    pub(super) async fn members(&self, owner: &EnvironmentOwner) -> Result<Vec<Member>, EnvironmentError> {
        let (mut kinds, unavailable) =
            self.cluster.namespaced_kinds().await.map_err(|error| unknown(&error))?;
        if let Some(group) = unavailable.iter().find(|group| self.kinds.has_group(group)) {
            let what =
                format!("the API group {group} does not respond, and may have objects of the environment");
            return Err(EnvironmentError::Unavailable(what));
        }
        let namespaces =
            self.cluster.resolve(&namespace_kind(), None).await.map_err(|error| unknown(&error))?;
        if let KindLookup::Found(namespaces) = namespaces {
            kinds.push(namespaces);
        }
        kinds.retain(|kind| self.kinds.allows(kind));
        let mut members = Vec::new();
        for kind in kinds {
            let listed = self.cluster.list(&kind, "", &owner.label(), true).await;
            let listed = listed.map_err(|error| match error.is_transient() {
                true => EnvironmentError::Unavailable(format!("{} cannot be listed: {error}", kind.plural)),
                false => EnvironmentError::Refused(format!("{} cannot be listed: {error}", kind.plural)),
            })?;
            members.extend(listed.into_iter().map(|object| Member {
                id: id(&kind, &object),
                kind: kind.clone(),
                object,
            }));
        }
        Ok(members)
    }

    /// Deletes an object, or takes it away from the environment. The error is the reason why it stays.
    async fn delete_member(
        &self,
        owner: &EnvironmentOwner,
        Member { id, kind, object }: &Member,
        may_sweep: &MaySweep<'_>,
    ) -> Result<(), String> {
        if owner.is_never_deleted(object) {
            return Err("its template says delete_resources: never".to_owned());
        }
        if object["metadata"]["deletionTimestamp"].is_string() {
            return Ok(());
        }
        let others = owner.others(object);
        if !others.is_empty() {
            self.release(owner, kind, id, object).await.map_err(|error| {
                format!(
                    "it is also an object of {}, and its labels cannot be changed: {error}",
                    others.join(", ")
                )
            })?;
            return Err(format!("it is also an object of {}", others.join(", ")));
        }
        if kind.kind == namespace_kind() {
            self.check_content(owner, &id.name, may_sweep).await?;
        }
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
        let version = version(object);
        let deleted = self.cluster.delete(kind, id, uid, Some(&version), PropagationPolicy::Background).await;
        match deleted {
            Ok(()) => Ok(()),
            Err(error) if error.status == 404 => Ok(()),
            Err(error) if error.status == 409 => Err("it was changed just now: try again".to_owned()),
            Err(error) => Err(error.describe(id)),
        }
    }

    /// Takes an object away from the environment, unless it has changed.
    pub(super) async fn release(
        &self,
        owner: &EnvironmentOwner,
        kind: &Kind,
        id: &ObjectId,
        object: &Value,
    ) -> Result<(), ApiError> {
        self.cluster.patch(kind, id, &owner.release(object)).await
    }

    /// Checks that a namespace has nothing of others. The error is the reason why it stays.
    async fn check_content(
        &self,
        owner: &EnvironmentOwner,
        namespace: &str,
        may_sweep: &MaySweep<'_>,
    ) -> Result<(), String> {
        let unknown = |what: String| format!("it is not known what is in it: {what}");
        let (kinds, unavailable) =
            self.cluster.namespaced_kinds().await.map_err(|error| unknown(error.to_string()))?;
        if !unavailable.is_empty() {
            return Err(unknown(format!("the API groups {} do not respond", unavailable.join(", "))));
        }
        let mut content = Vec::new();
        for kind in kinds.iter().filter(|kind| !is_transient_kind(kind)) {
            let listed = self.cluster.list(kind, namespace, "", true).await;
            let listed = match listed {
                Ok(listed) => listed,
                // The kind has no lists, or its definition was deleted.
                Err(error) if matches!(error.status, 404 | 405) => continue,
                Err(error) => return Err(unknown(format!("{} cannot be listed: {error}", kind.plural))),
            };
            content.extend(listed.into_iter().map(|object| Content { kind, id: id(kind, &object), object }));
        }
        judge(owner, namespace, &content, may_sweep)
    }
}

/// Decides about a namespace by what is in it.
fn judge(
    owner: &EnvironmentOwner,
    namespace: &str,
    content: &[Content<'_>],
    may_sweep: &MaySweep<'_>,
) -> Result<(), String> {
    for Content { id, object, .. } in content {
        if let Some(other) = owner.others(object).first() {
            return Err(format!("{id} is in it, which is an object of {other}"));
        }
        if let Some(label) =
            OF_GITOPS.into_iter().find(|label| object["metadata"]["labels"].get(label).is_some())
        {
            return Err(format!("{id} is in it, which comes from Git ({label})"));
        }
    }
    let uids: HashSet<&str> =
        content.iter().filter_map(|content| content.object["metadata"]["uid"].as_str()).collect();
    let of_others = content.iter().filter(|content| {
        let is_own = content.object["metadata"]["labels"].get(owner.label()).is_some();
        !is_own && !content.is_of_kubernetes() && !content.is_dependent(&uids)
    });
    let of_others: Vec<_> = of_others.filter(|content| !may_sweep(content.kind, namespace)).collect();
    if of_others.is_empty() {
        return Ok(());
    }
    let mut named: Vec<_> = of_others.iter().take(MAX_NAMED).map(|content| content.id.to_string()).collect();
    if of_others.len() > MAX_NAMED {
        named.push(format!("{} more", of_others.len() - MAX_NAMED));
    }
    Err(format!(
        "it contains {}, and the policy of this cluster does not allow the service provision to deletecollection of these kinds in this \
         namespace: delete them first",
        named.join(", ")
    ))
}

impl Content<'_> {
    /// Returns whether Kubernetes itself makes the object in each namespace.
    fn is_of_kubernetes(&self) -> bool {
        let annotations = &self.object["metadata"]["annotations"];
        match (&*self.id.group, &*self.id.kind, &*self.id.name) {
            ("", "ConfigMap", "kube-root-ca.crt") | ("", "ServiceAccount", "default") => true,
            ("", "Secret", _) => annotations.get(OF_ACCOUNT).is_some(),
            _ => false,
        }
    }

    /// Returns whether all owners of the object are in the namespace, too, so that they decide.
    fn is_dependent(&self, uids: &HashSet<&str>) -> bool {
        let owners = self.object["metadata"]["ownerReferences"].as_array();
        owners.is_some_and(|owners| {
            !owners.is_empty()
                && owners.iter().all(|owner| owner["uid"].as_str().is_some_and(|uid| uids.contains(uid)))
        })
    }
}

/// Returns whether the objects of a kind come and go by themselves.
fn is_transient_kind(kind: &Kind) -> bool {
    match (&*kind.kind.group, &*kind.kind.kind) {
        ("" | "events.k8s.io", "Event") | ("", "Endpoints") | ("discovery.k8s.io", "EndpointSlice") => true,
        (group, _) => group == "metrics.k8s.io",
    }
}

fn id(kind: &Kind, object: &Value) -> ObjectId {
    let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
    ObjectId {
        group: kind.kind.group.clone(),
        kind: kind.kind.kind.clone(),
        namespace: text("namespace"),
        name: text("name"),
    }
}

fn unknown(error: &ApiError) -> EnvironmentError {
    let what = format!("the kinds of the cluster are not known: {error}");
    match error.is_transient() {
        true => EnvironmentError::Unavailable(what),
        false => EnvironmentError::Refused(what),
    }
}
