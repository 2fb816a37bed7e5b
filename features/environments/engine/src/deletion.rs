//! Deletes the objects of an environment that stops, and nothing that others use.

use std::collections::{HashSet, VecDeque};

use kube_cluster::{ApiError, Cluster, Kind, MetadataPage};
use proto::{
    agent_configuration::gitops::PropagationPolicy,
    gitops::ObjectId,
    provision::{Deletion, KeptObject},
};
use serde_json::Value;

use super::{
    EnvironmentError, EnvironmentOwner, Environments, namespace_id, namespace_kind,
    owner::is_of_environments, version,
};

/// The most objects that a reason names.
const MAX_NAMED: usize = 5;
/// The most objects of an environment, and the most in a namespace.
const MAX_OBJECTS: usize = 10_000;
/// The annotation of a secret that Kubernetes has made for a service account.
const OF_ACCOUNT: &str = "kubernetes.io/service-account.name";
/// The labels of objects that another program makes from Git.
const OF_GITOPS: [&str; 3] =
    ["applyset.kubernetes.io/part-of", "kustomize.toolkit.fluxcd.io/name", "helm.toolkit.fluxcd.io/name"];

/// Decides whether the content of a namespace may be deleted with it: the kind, and the namespace.
pub type MaySweep<'a> = dyn Fn(&Kind, &str) -> bool + Send + Sync + 'a;

/// An object of an environment in the cluster.
struct Member {
    id: ObjectId,
    kind: Kind,
    object: Value,
}

/// The lists in which the objects of an environment may be, as far as they are not read yet.
struct MemberLists {
    /// A kind and a namespace, which is empty for all namespaces. Namespaces themselves are the last.
    open: VecDeque<(Kind, String)>,
    /// Selects the next page of the first list.
    token: Option<String>,
    /// The objects so far.
    found: usize,
}

/// The content of a namespace before its deletion. As little of it as possible is kept.
#[derive(Default)]
struct Content<'a> {
    found: usize,
    uids: HashSet<String>,
    /// The objects that do not belong to the environment and were not made by Kubernetes.
    of_others: Vec<OtherObject<'a>>,
}

/// An object in a namespace that does not belong to the environment.
struct OtherObject<'a> {
    kind: &'a Kind,
    id: ObjectId,
    /// The UIDs of its owners; `None` is an owner without one.
    owners: Vec<Option<String>>,
}

/// The reason why an object stays when its environment stops.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum KeepReason {
    #[error("its template says delete_resources: never")]
    NeverDeleted,
    #[error("it is also an object of {environments}")]
    Shared { environments: String },
    #[error("it is also an object of {environments}, and its labels cannot be changed: {error}")]
    NotReleased { environments: String, error: ApiError },
    /// Another request has changed it meanwhile.
    #[error("it was changed just now: try again")]
    Changed,
    /// The API server refuses to delete it, in these words.
    #[error("{0}")]
    Api(String),
    #[error("it is not known what is in it: {0}")]
    UnknownKinds(ApiError),
    #[error("it is not known what is in it: the API groups {groups} do not respond")]
    UnavailableGroups { groups: String },
    #[error("it is not known what is in it: {plural} cannot be listed: {error}")]
    Unlisted { plural: String, error: ApiError },
    #[error("it contains more than {MAX_OBJECTS} objects, which are too many to look at")]
    TooManyObjects,
    #[error("{id} is in it, which is an object of {environment}")]
    OtherEnvironment { id: ObjectId, environment: String },
    #[error("{id} is in it, which comes from Git ({label})")]
    FromGit { id: ObjectId, label: &'static str },
    #[error(
        "it contains {objects}, and the policy of this cluster has no rule for the service provision, with this name and the verb \
         deletecollection, of these kinds in this namespace: delete them first"
    )]
    ForeignObjects { objects: String },
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
        let mut lists = self.member_lists().await?;
        let mut deletion = Deletion::default();
        while let Some(members) = self.next_members(owner, &mut lists).await? {
            for member in members {
                match self.delete_member(owner, &member, may_sweep).await {
                    Ok(()) => deletion.deleted.push(member.id),
                    Err(reason) => {
                        deletion.kept.push(KeptObject { id: member.id, reason: reason.to_string() });
                    }
                }
            }
        }
        Ok(deletion)
    }

    /// Returns the objects of an environment, in order.
    ///
    /// # Errors
    ///
    /// The API server refuses a list, or does not respond.
    pub async fn list(&self, owner: &EnvironmentOwner) -> Result<Vec<ObjectId>, EnvironmentError> {
        let (mut lists, mut ids) = (self.member_lists().await?, Vec::new());
        while let Some(members) = self.next_members(owner, &mut lists).await? {
            ids.extend(members.into_iter().map(|member| member.id));
        }
        for namespace in self.namespaces.iter().flatten() {
            ids.extend(self.member_namespace(owner, namespace).await?);
        }
        ids.sort();
        Ok(ids)
    }

    /// Returns a namespace of the scope, if it is an object of the environment. A scope refuses lists of namespaces.
    async fn member_namespace(
        &self,
        owner: &EnvironmentOwner,
        name: &str,
    ) -> Result<Option<ObjectId>, EnvironmentError> {
        let found = self.cluster.resolve(&namespace_kind(), None).await.map_err(|error| unknown(&error))?;
        let Some(kind) = found.found().filter(|kind| self.kinds.allows(kind)) else { return Ok(None) };
        let id = namespace_id(name);
        let namespace =
            self.cluster.get(&kind, &id).await.map_err(|error| not_read(&id.to_string(), &error))?;
        let is_member = |object: &Value| object["metadata"]["labels"].get(owner.label()).is_some();
        Ok(namespace.filter(is_member).map(|_| id))
    }

    /// Returns the lists of the allowed kinds, in the namespaces of the scope if there is one.
    async fn member_lists(&self) -> Result<MemberLists, EnvironmentError> {
        let (mut kinds, unavailable) =
            self.cluster.listable_kinds().await.map_err(|error| unknown(&error))?;
        kinds.retain(|kind| kind.namespaced);
        if let Some(group) = unavailable.iter().find(|group| self.kinds.has_group(group)) {
            let what =
                format!("the API group {group} does not respond, and may have objects of the environment");
            return Err(EnvironmentError::Unavailable(what));
        }
        if self.namespaces.is_none() {
            let namespaces =
                self.cluster.resolve(&namespace_kind(), None).await.map_err(|error| unknown(&error))?;
            kinds.extend(namespaces.found());
        }
        kinds.retain(|kind| self.kinds.allows(kind));
        let everywhere = [String::new()];
        let namespaces = self.namespaces.as_deref().unwrap_or(&everywhere);
        let of_kind = |kind: Kind| namespaces.iter().map(move |namespace| (kind.clone(), namespace.clone()));
        let open = kinds.into_iter().flat_map(of_kind).collect();
        Ok(MemberLists { open, token: None, found: 0 })
    }

    /// Returns the next objects of an environment, or `None` after the last ones.
    async fn next_members(
        &self,
        owner: &EnvironmentOwner,
        lists: &mut MemberLists,
    ) -> Result<Option<Vec<Member>>, EnvironmentError> {
        let Some((kind, namespace)) = lists.open.front() else { return Ok(None) };
        let (selector, token) = (owner.label(), lists.token.as_deref());
        let page = self.cluster.metadata_page(kind, namespace, &selector, is_read, token).await;
        let MetadataPage { objects, next } = page.map_err(|error| not_read(&kind.plural, &error))?;
        lists.found += objects.len();
        if lists.found > MAX_OBJECTS {
            let what = format!("the environment has more than {MAX_OBJECTS} objects: delete some of them");
            return Err(EnvironmentError::Refused(what));
        }
        let member = |object: Value| Member { id: id(kind, &object), kind: kind.clone(), object };
        let members = objects.into_iter().map(member).collect();
        lists.token = next;
        if lists.token.is_none() {
            lists.open.pop_front();
        }
        Ok(Some(members))
    }

    /// Deletes an object, or takes it away from the environment. The error is the reason why it stays.
    async fn delete_member(
        &self,
        owner: &EnvironmentOwner,
        Member { id, kind, object }: &Member,
        may_sweep: &MaySweep<'_>,
    ) -> Result<(), KeepReason> {
        if owner.is_never_deleted(object) {
            return Err(KeepReason::NeverDeleted);
        }
        if object["metadata"]["deletionTimestamp"].is_string() {
            return Ok(());
        }
        let others = owner.others(object);
        if !others.is_empty() {
            let environments = others.join(", ");
            return Err(match self.release_live(owner, kind, id).await {
                Ok(()) => KeepReason::Shared { environments },
                Err(error) => KeepReason::NotReleased { environments, error },
            });
        }
        let mut deleted_version = version(object);
        if kind.kind == namespace_kind() {
            // Another process may make the objects of the environment at this moment, which may change nothing. It takes the annotation
            // back, so that the namespace has another version than the one that is deleted.
            match self.cluster.patch(kind, id, &owner.end(object)).await {
                Ok(ending) => deleted_version = version(&ending),
                Err(error) if error.status == 404 => return Ok(()),
                Err(error) if is_changed(&error) => return Err(KeepReason::Changed),
                Err(error) => return Err(KeepReason::Api(error.describe(id))),
            }
            self.check_content(owner, &id.name, may_sweep).await?;
        }
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
        let propagation = PropagationPolicy::Background;
        match self.cluster.delete(kind, id, uid, Some(&deleted_version), propagation).await {
            Ok(_) => Ok(()),
            Err(error) if error.status == 404 => Ok(()),
            Err(error) if error.status == 409 => Err(KeepReason::Changed),
            Err(error) => Err(KeepReason::Api(error.describe(id))),
        }
    }

    /// Takes an object away from the environment. A page of a list has not all of its labels.
    async fn release_live(
        &self,
        owner: &EnvironmentOwner,
        kind: &Kind,
        id: &ObjectId,
    ) -> Result<(), ApiError> {
        match self.cluster.get(kind, id).await? {
            Some(object) => self.release(owner, kind, id, &object).await,
            None => Ok(()),
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
        self.cluster.patch(kind, id, &owner.release(object)).await.map(drop)
    }

    /// Checks that a namespace has nothing of others. The error is the reason why it stays.
    async fn check_content(
        &self,
        owner: &EnvironmentOwner,
        namespace: &str,
        may_sweep: &MaySweep<'_>,
    ) -> Result<(), KeepReason> {
        let (kinds, unavailable) = self.cluster.listable_kinds().await.map_err(KeepReason::UnknownKinds)?;
        if !unavailable.is_empty() {
            return Err(KeepReason::UnavailableGroups { groups: unavailable.join(", ") });
        }
        let mut content = Content::default();
        for kind in kinds.iter().filter(|kind| kind.namespaced && !is_transient_kind(kind)) {
            let mut token = None;
            loop {
                let page = self.cluster.metadata_page(kind, namespace, "", is_read, token.as_deref()).await;
                let page = match page {
                    Ok(page) => page,
                    // The kind has no lists, or its definition was deleted.
                    Err(error) if matches!(error.status, 404 | 405) => break,
                    Err(error) => {
                        return Err(KeepReason::Unlisted { plural: kind.plural.clone(), error });
                    }
                };
                page.objects.iter().try_for_each(|object| content.add(owner, kind, object))?;
                token = page.next;
                if token.is_none() {
                    break;
                }
            }
        }
        content.judge(namespace, may_sweep)
    }
}

impl<'a> Content<'a> {
    /// Adds an object. The error is the reason why the namespace stays in any case.
    fn add(&mut self, owner: &EnvironmentOwner, kind: &'a Kind, object: &Value) -> Result<(), KeepReason> {
        let (id, metadata) = (id(kind, object), &object["metadata"]);
        self.found += 1;
        if self.found > MAX_OBJECTS {
            return Err(KeepReason::TooManyObjects);
        }
        if let Some(environment) = owner.others(object).into_iter().next() {
            return Err(KeepReason::OtherEnvironment { id, environment });
        }
        let mut of_gitops = OF_GITOPS.into_iter().filter(|label| metadata["labels"].get(label).is_some());
        if let Some(label) = of_gitops.next() {
            return Err(KeepReason::FromGit { id, label });
        }
        self.uids.extend(metadata["uid"].as_str().map(str::to_owned));
        let is_own = metadata["labels"].get(owner.label()).is_some();
        if !is_own && !is_of_kubernetes(&id, object) {
            let owners = metadata["ownerReferences"].as_array().into_iter().flatten();
            let owners = owners.map(|owner| owner["uid"].as_str().map(str::to_owned)).collect();
            self.of_others.push(OtherObject { kind, id, owners });
        }
        Ok(())
    }

    /// Decides about the namespace by all that is in it.
    fn judge(&self, namespace: &str, may_sweep: &MaySweep<'_>) -> Result<(), KeepReason> {
        // If all owners of an object are in the namespace, too, they decide.
        let is_dependent = |OtherObject { owners, .. }: &OtherObject<'_>| {
            let is_inside = |uid: &Option<String>| uid.as_ref().is_some_and(|uid| self.uids.contains(uid));
            !owners.is_empty() && owners.iter().all(is_inside)
        };
        let of_others = self.of_others.iter().filter(|object| !is_dependent(object));
        let of_others: Vec<_> = of_others.filter(|object| !may_sweep(object.kind, namespace)).collect();
        if of_others.is_empty() {
            return Ok(());
        }
        let mut named: Vec<_> =
            of_others.iter().take(MAX_NAMED).map(|object| object.id.to_string()).collect();
        if of_others.len() > MAX_NAMED {
            named.push(format!("{} more", of_others.len() - MAX_NAMED));
        }
        Err(KeepReason::ForeignObjects { objects: named.join(", ") })
    }
}

/// Returns whether Kubernetes itself makes the object in each namespace.
fn is_of_kubernetes(id: &ObjectId, object: &Value) -> bool {
    match (&*id.group, &*id.kind, &*id.name) {
        ("", "ConfigMap", "kube-root-ca.crt") | ("", "ServiceAccount", "default") => true,
        ("", "Secret", _) => object["metadata"]["annotations"].get(OF_ACCOUNT).is_some(),
        _ => false,
    }
}

/// Returns whether a decision depends on a label or an annotation.
fn is_read(key: &str) -> bool {
    key == OF_ACCOUNT || OF_GITOPS.contains(&key) || is_of_environments(key)
}

/// Returns whether a patch has failed because the object has another version than it tests.
fn is_changed(error: &ApiError) -> bool {
    matches!(error.status, 409 | 422)
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
    if error.is_transient() { EnvironmentError::Unavailable(what) } else { EnvironmentError::Refused(what) }
}

/// Returns the error of a read.
fn not_read(what: &str, error: &ApiError) -> EnvironmentError {
    if error.is_transient() {
        EnvironmentError::Unavailable(format!("{what} cannot be read: {error}"))
    } else {
        EnvironmentError::Refused(format!("{what} cannot be read: {error}"))
    }
}
