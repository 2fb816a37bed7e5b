//! A close look at objects before they are deleted: what their deletion takes with it, and who else uses it.

use std::collections::{BTreeSet, HashMap, HashSet};

use kube_cluster::{Cluster, GroupKind, Kind};
use proto::gitops::ObjectId;
use serde_json::Value;

use super::{Engine, SyncContext, SyncError, SyncState, members::Members, stage::run_all};
use crate::{
    Manifest,
    applyset::PART_OF,
    deletion_plan::{
        Candidate, Consent, Member, NAMESPACE, STATEFUL_SET, VOLUME, VOLUME_CLAIM, may_take_others,
    },
    ownership::{self, ObjectOwner},
    retry::{ApiCallError, with_retry},
    validate::DEFINITIONS,
};

/// Kinds whose objects are records about other objects.
const RECORDS: [(&str, &str); 6] = [
    ("", "Event"),
    ("events.k8s.io", "Event"),
    ("", "Endpoints"),
    ("discovery.k8s.io", "EndpointSlice"),
    ("metrics.k8s.io", "PodMetrics"),
    ("coordination.k8s.io", "Lease"),
];
/// The words for the claims of a StatefulSet that cannot be listed.
const UNSEEN_CLAIMS: &str = "its volume claims, which agentk may not list";
/// The annotation with which Kubernetes before 1.24 marks the token of a service account.
const TOKEN_OF: &str = "kubernetes.io/service-account.name";

/// The result of a close look at an object that left Git.
pub(super) enum Inspection {
    /// It stays, for this reason.
    Keep(String),
    /// Its deletion takes this with it, which may be nothing, and these volume claims.
    Takes(String, Vec<String>),
}

/// The volume claims that objects own.
#[derive(Debug, Default)]
struct OwnedClaims {
    /// Their names, by the UIDs of their owners.
    names: HashMap<String, Vec<String>>,
    /// The namespaces whose claims cannot be listed; an empty one is all of them.
    unseen: BTreeSet<String>,
}

impl OwnedClaims {
    fn add(&mut self, claim: &Value) {
        let metadata = &claim["metadata"];
        let name = metadata["name"].as_str().unwrap_or_default();
        for uid in owners(metadata) {
            self.names.entry(uid).or_default().push(name.to_owned());
        }
    }

    /// Returns the names of the claims that an object owns, or `None` if that is not known.
    fn of(&self, member: &Member) -> Option<&[String]> {
        let is_unseen = ["", &*member.id.namespace].iter().any(|namespace| self.unseen.contains(*namespace));
        match self.names.get(&member.uid) {
            None if is_unseen && may_own_claims(&member.id) => None,
            names => Some(names.map_or(&[], Vec::as_slice)),
        }
    }
}

impl<C: Cluster> Engine<C> {
    /// Looks closely at the objects that may take others with them. An object that stays is added to `kept`, with the reason.
    pub(super) async fn inspect_all(
        &self,
        deletable: Vec<Member>,
        kept: &mut Vec<(ObjectId, String)>,
        state: &SyncState,
        sync: &SyncContext<'_>,
    ) -> Result<Vec<Candidate>, SyncError> {
        let claims = self.owned_claims(&deletable, sync).await?;
        let mut candidates = Vec::with_capacity(deletable.len());
        for member in deletable {
            let Some(kind) = state.members.kinds.get(&GroupKind::of(&member.id)) else { continue };
            let (takes, mut names) = match self.inspect(kind, &member, kept, state, sync).await? {
                Inspection::Takes(takes, names) => (takes, names),
                Inspection::Keep(reason) => {
                    kept.push((member.id, reason));
                    continue;
                }
            };
            let owned = claims.of(&member);
            let takes = match (&*takes, &owned) {
                ("", None) => "volume claims that it may own, which agentk may not list".to_owned(),
                ("", Some([name])) => format!("the volume claim {name}, which it owns"),
                ("", Some([name, ..])) => {
                    format!("{} volume claims that it owns, such as {name}", owned.unwrap_or_default().len())
                }
                _ => takes,
            };
            let owned = owned.unwrap_or_default().iter().cloned();
            names.extend(owned);
            candidates.push(Candidate { member, takes, claims: names });
        }
        Ok(candidates)
    }

    /// Returns the volume claims that these objects own. Where the project may not list claims, agentk does so itself.
    async fn owned_claims(
        &self,
        members: &[Member],
        sync: &SyncContext<'_>,
    ) -> Result<OwnedClaims, SyncError> {
        let mut claims = OwnedClaims::default();
        let places: BTreeSet<&str> = members
            .iter()
            .filter(|member| !member.id.namespace.is_empty() || may_own_claims(&member.id))
            .map(|member| &*member.id.namespace)
            .collect();
        // A cluster-scoped object may own claims in all namespaces.
        let places = if places.contains("") { BTreeSet::from([""]) } else { places };
        for namespace in places {
            match self.list_claims(namespace, sync).await? {
                Some(listed) => listed.iter().for_each(|claim| claims.add(claim)),
                None => drop(claims.unseen.insert(namespace.to_owned())),
            }
        }
        Ok(claims)
    }

    /// Lists the volume claims in a namespace, or in all if it is empty. Returns `None` if that is refused, or fails.
    async fn list_claims(
        &self,
        namespace: &str,
        sync: &SyncContext<'_>,
    ) -> Result<Option<Vec<Value>>, SyncError> {
        let claims = GroupKind { group: VOLUME_CLAIM.0.to_owned(), kind: VOLUME_CLAIM.1.to_owned() };
        let Some(kind) = self.resolve(&claims, None, sync.fence).await?.found() else { return Ok(None) };
        for cluster in [&self.cluster, &self.own] {
            match with_retry(sync.fence, || cluster.list(&kind, namespace, "", true)).await {
                Ok(listed) => return Ok(Some(listed)),
                Err(ApiCallError::Api(_)) => {}
                Err(ApiCallError::Stopped(stopped)) => return Err(stopped.into()),
            }
        }
        Ok(None)
    }

    /// Returns the reason why an object is not deleted to be created again: volume claims would go with it.
    pub(super) async fn keeps_claims(
        &self,
        live: &Value,
        manifest: &Manifest,
        sync: &SyncContext<'_>,
    ) -> Result<Option<String>, SyncError> {
        let id = &manifest.id;
        let in_git = Member::new(id.clone(), String::new(), &manifest.object["metadata"]);
        if in_git.consent == Consent::Allowed || sync.input.settings.prune_irreplaceable {
            return Ok(None);
        }
        let member = Member::new(id.clone(), String::new(), &live["metadata"]);
        let owned = self.owned_claims(std::slice::from_ref(&member), sync).await?;
        let mut lost = match owned.of(&member) {
            Some(names) => names.first().map(|name| format!("the volume claim {name}")),
            None => Some("volume claims that agentk may not list".to_owned()),
        };
        if (&*id.group, &*id.kind) == STATEFUL_SET
            && let Inspection::Takes(takes, names) = self.inspect_stateful_set(live, id, sync).await?
        {
            let has_claims = !names.is_empty() || takes == UNSEEN_CLAIMS;
            lost = lost.or_else(|| has_claims.then_some(takes));
        }
        Ok(lost.map(|lost| {
            format!(
                "a field cannot change, and a new object would cost {lost}: delete it with kubectl --cascade=orphan, or set the annotation \
                 agentk/prune: allow"
            )
        }))
    }

    /// Looks closely at an object: what its deletion takes with it, and whether it stays because of that. `kept` are objects that left
    /// Git and stay.
    pub(super) async fn inspect(
        &self,
        kind: &Kind,
        member: &Member,
        kept: &[(ObjectId, String)],
        state: &SyncState,
        sync: &SyncContext<'_>,
    ) -> Result<Inspection, SyncError> {
        let SyncState { members, desired, .. } = state;
        if !member.has_mark && !may_take_others(&member.id) {
            return Ok(Inspection::Takes(String::new(), Vec::new()));
        }
        let live = match with_retry(sync.fence, || self.cluster.get(kind, &member.id)).await {
            Ok(live) => live.unwrap_or_default(),
            Err(ApiCallError::Api(error)) => {
                return Ok(Inspection::Keep(format!("it cannot be read: {error}")));
            }
            Err(ApiCallError::Stopped(stopped)) => return Err(stopped.into()),
        };
        if let Some(owner) = ownership::foreign_owner(&live["metadata"]) {
            return Ok(Inspection::Keep(format!("it belongs to {owner}, too")));
        }
        let stays = |inside: &dyn Fn(&ObjectId) -> bool| {
            let mut staying = desired.iter().chain(kept.iter().map(|(id, _)| id));
            staying.find(|id| inside(id)).map(ToString::to_string)
        };
        let name = &member.id.name;
        match (&*kind.kind.group, &*kind.kind.kind) {
            NAMESPACE if *name == self.namespace => {
                Ok(Inspection::Keep("agentk itself is in the namespace".to_owned()))
            }
            NAMESPACE => match stays(&|id| id.namespace == *name) {
                Some(id) => Ok(Inspection::Keep(format!(
                    "objects of this project stay in the namespace, such as {id}"
                ))),
                None => self.inspect_namespace(name, members, sync).await,
            },
            DEFINITIONS => {
                let text = |pointer: &str| {
                    live.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
                };
                let defined = GroupKind { group: text("/spec/group"), kind: text("/spec/names/kind") };
                match stays(&|id| GroupKind::of(id) == defined) {
                    Some(id) => Ok(Inspection::Keep(format!("objects of its kind stay, such as {id}"))),
                    None => self.inspect_definition(&defined, members, sync).await,
                }
            }
            STATEFUL_SET => self.inspect_stateful_set(&live, &member.id, sync).await,
            VOLUME_CLAIM => {
                let volume = live["spec"]["volumeName"].as_str().unwrap_or_default();
                let volume = if volume.is_empty() { String::new() } else { format!(" {volume}") };
                Ok(Inspection::Takes(format!("the data of its volume{volume}"), Vec::new()))
            }
            VOLUME => Ok(Inspection::Takes("the data of the volume".to_owned(), Vec::new())),
            _ => Ok(Inspection::Takes(String::new(), Vec::new())),
        }
    }

    /// Counts the objects in a namespace. Those of others keep it.
    async fn inspect_namespace(
        &self,
        name: &str,
        members: &Members,
        sync: &SyncContext<'_>,
    ) -> Result<Inspection, SyncError> {
        // A kind that was installed since the last look may have objects there.
        self.cluster.forget_kinds();
        let kinds = with_retry(sync.fence, || self.cluster.listable_kinds()).await;
        let (kinds, unavailable) =
            kinds.map_err(|error| SyncError::of_project("the kinds of the cluster cannot be read", error))?;
        let unseen = |what: String| {
            Ok(Inspection::Keep(format!("agentk cannot see whether the namespace is in use{what}")))
        };
        if let Some(group) = unavailable.first() {
            return unseen(format!(": the API group {group} does not respond"));
        }
        let is_record = |kind: &Kind| RECORDS.contains(&(&*kind.kind.group, &*kind.kind.kind));
        let kinds: Vec<Kind> = kinds.into_iter().filter(|kind| kind.namespaced && !is_record(kind)).collect();
        let lists = run_all(kinds.into_iter().map(async |kind| {
            let listed = with_retry(sync.fence, || self.cluster.list(&kind, name, "", true)).await;
            (kind, listed)
        }))
        .await;
        let mut content = Content::default();
        for (kind, listed) in lists {
            match listed {
                Ok(listed) => listed.iter().for_each(|object| content.add(&kind, object, members, sync)),
                // The kind has no lists.
                Err(ApiCallError::Api(error)) if error.status == 405 => {}
                Err(ApiCallError::Api(error)) => return unseen(format!(" ({}): {error}", kind.plural)),
                Err(ApiCallError::Stopped(stopped)) => return Err(stopped.into()),
            }
        }
        Ok(content.judge("the namespace", "all that is in it"))
    }

    /// Counts the objects of a kind. Those of others keep its definition.
    async fn inspect_definition(
        &self,
        defined: &GroupKind,
        members: &Members,
        sync: &SyncContext<'_>,
    ) -> Result<Inspection, SyncError> {
        let Some(kind) = self.resolve(defined, None, sync.fence).await?.found() else {
            return Ok(Inspection::Keep(format!(
                "agentk cannot see whether there are objects of the kind {defined}"
            )));
        };
        match with_retry(sync.fence, || self.cluster.list(&kind, "", "", true)).await {
            Ok(listed) => {
                let mut content = Content::default();
                listed.iter().for_each(|object| content.add(&kind, object, members, sync));
                Ok(match content.judge("its kind", "all objects of its kind") {
                    Inspection::Takes(..) if listed.is_empty() => {
                        Inspection::Takes(String::new(), Vec::new())
                    }
                    inspection => inspection,
                })
            }
            Err(ApiCallError::Api(error)) => Ok(Inspection::Keep(format!(
                "agentk cannot see whether there are objects of the kind {defined}: {error}"
            ))),
            Err(ApiCallError::Stopped(stopped)) => Err(stopped.into()),
        }
    }

    /// Names the volume claims of a StatefulSet.
    async fn inspect_stateful_set(
        &self,
        live: &Value,
        id: &ObjectId,
        sync: &SyncContext<'_>,
    ) -> Result<Inspection, SyncError> {
        let templates = live["spec"]["volumeClaimTemplates"].as_array().into_iter().flatten();
        let prefixes: Vec<String> = templates
            .filter_map(|template| Some(format!("{}-{}-", template["metadata"]["name"].as_str()?, id.name)))
            .collect();
        if prefixes.is_empty() {
            return Ok(Inspection::Takes(String::new(), Vec::new()));
        }
        let Some(listed) = self.list_claims(&id.namespace, sync).await? else {
            return Ok(Inspection::Takes(UNSEEN_CLAIMS.to_owned(), Vec::new()));
        };
        let names = listed.iter().filter_map(|claim| claim["metadata"]["name"].as_str());
        let is_of_set = |name: &&str| {
            let ordinal = prefixes.iter().find_map(|prefix| name.strip_prefix(&**prefix));
            ordinal.is_some_and(|ordinal| {
                !ordinal.is_empty() && ordinal.bytes().all(|byte| byte.is_ascii_digit())
            })
        };
        let names: Vec<String> = names.filter(is_of_set).map(str::to_owned).collect();
        // The set itself says whether the claims stay: `persistentVolumeClaimRetentionPolicy`.
        let takes = match &names[..] {
            [] => "its volume claims, of which there are none now".to_owned(),
            [name] => format!("its volume claim {name}"),
            [name, ..] => format!("its {} volume claims, such as {name}", names.len()),
        };
        Ok(Inspection::Takes(takes, names))
    }
}

/// The objects that the deletion of another one takes with it.
#[derive(Debug, Default)]
struct Content {
    uids: HashSet<String>,
    /// Objects of others, with the UIDs of their owners.
    foreign: Vec<(ObjectId, Vec<String>)>,
    count: usize,
    /// The names of volume claims.
    claims: Vec<String>,
}

impl Content {
    fn add(&mut self, kind: &Kind, object: &Value, members: &Members, sync: &SyncContext<'_>) {
        let (id, metadata) = (kind.kind.object_id(object), &object["metadata"]);
        let uid = metadata["uid"].as_str().unwrap_or_default();
        if is_of_kubernetes(&id, metadata) || metadata.get("deletionTimestamp").is_some() {
            return;
        }
        self.count += 1;
        if (&*id.group, &*id.kind) == VOLUME_CLAIM {
            self.claims.push(id.name.clone());
        }
        let is_recorded = members.recorded.contains(uid);
        if ownership::owner(metadata, &sync.set, is_recorded) != ObjectOwner::Project {
            self.foreign.push((id, owners(metadata)));
        }
        self.uids.insert(uid.to_owned());
    }

    /// Returns the reason to keep the object, or what goes with it. An object with an owner among the others goes with its owner. Other
    /// owners are cluster-scoped, and have other reasons.
    fn judge(self, place: &str, all: &str) -> Inspection {
        let is_owned = |owners: &[String]| owners.iter().any(|owner| self.uids.contains(owner));
        let foreign: Vec<_> = self.foreign.iter().filter(|(_, owners)| !is_owned(owners)).collect();
        match foreign[..] {
            [] => {
                let takes = match self.count {
                    0 => format!("{all}, which is empty now"),
                    1 => format!("{all}, 1 object now"),
                    count => format!("{all}, {count} objects now"),
                };
                Inspection::Takes(takes, self.claims)
            }
            [(id, _)] => Inspection::Keep(format!("{place} has an object of others: {id}")),
            [(id, _), ..] => {
                Inspection::Keep(format!("{place} has {} objects of others, such as {id}", foreign.len()))
            }
        }
    }
}

/// Returns whether an object may be the owner of volume claims: a StatefulSet, or an object of an operator. The kinds of Kubernetes have groups
/// without a dot, or below `k8s.io`.
fn may_own_claims(id: &ObjectId) -> bool {
    let is_of_kubernetes = !id.group.contains('.') || id.group.ends_with(".k8s.io");
    !is_of_kubernetes || (&*id.group, &*id.kind) == STATEFUL_SET
}

/// Returns the UIDs of the owners of an object.
fn owners(metadata: &Value) -> Vec<String> {
    let owners = metadata["ownerReferences"].as_array().into_iter().flatten();
    owners.filter_map(|owner| owner["uid"].as_str().map(str::to_owned)).collect()
}

/// Returns whether Kubernetes itself puts such an object into each namespace.
fn is_of_kubernetes(id: &ObjectId, metadata: &Value) -> bool {
    match (&*id.group, &*id.kind, &*id.name) {
        ("", "ConfigMap", "kube-root-ca.crt") | ("", "ServiceAccount", "default") => true,
        // Kubernetes before 1.24.
        ("", "Secret", name) => {
            let is_token =
                metadata["annotations"][TOKEN_OF] == "default" && metadata["labels"][PART_OF].is_null();
            name.starts_with("default-token-") && is_token
        }
        _ => false,
    }
}
