//! The objects of environments: makes them, and deletes them unless others use them.
//!
//! ```text
//!   ensure: resolve all ─► whose are they? ─► apply, namespaces first
//!   delete: list by label ─► delete, namespaces last, each only if nothing of others is in it
//! ```
//!
//! Nothing is kept between calls: the labels of the objects say whose they are. Each environment has a field manager of its own, so that
//! two environments of a project may share an object. A namespace that a stop deletes has an annotation before, so that several processes
//! agree on whether it ends.
#![warn(missing_docs)]

mod deletion;
mod owner;
#[cfg(test)]
mod tests;

use std::{borrow::Cow, collections::HashSet, fmt, time::Duration};

use kube_cluster::{AllowedKinds, ApiError, Applied, ApplyOptions, Cluster, GroupKind, Kind, KindLookup};
use proto::{
    gitops::ObjectId,
    provision::{ObjectChange, ProvisionedObject},
};
use serde_json::Value;
use tokio::time::sleep;

pub use self::{
    deletion::MaySweep,
    owner::{EnvironmentOwner, SlugTooLong},
};

/// The attempts to apply an object that somebody else creates or changes at the same time.
const ATTEMPTS: u32 = 4;
/// The pause between them.
const PAUSE: Duration = Duration::from_millis(100);

/// The reason why the objects of an environment do not exist, or were not looked at.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentError {
    /// Another attempt fails, too, until somebody changes the template, the policy, or the cluster.
    #[error("{0}")]
    Refused(String),
    /// Another attempt may succeed.
    #[error("{0}")]
    Unavailable(String),
}

/// The objects of environments in a cluster.
#[derive(Clone, Debug)]
pub struct Environments<C> {
    cluster: C,
    kinds: AllowedKinds,
    /// The namespaces of a scope, which refuses lists of all namespaces.
    namespaces: Option<Vec<String>>,
}

/// An object of a template, with the values of an environment.
#[derive(Clone, Debug, PartialEq)]
pub struct EnvironmentManifest {
    /// The object. Its namespace is empty until the scope of its kind is known.
    pub id: ObjectId,
    /// The version of the API, without the group.
    pub version: String,
    /// The object as JSON.
    pub object: Value,
    /// The file and the line of the template.
    pub source: String,
}

/// An object of a template whose kind the cluster has.
struct Resolved {
    manifest: EnvironmentManifest,
    kind: Kind,
    live: Option<LiveObject>,
}

/// An object of the environment in the cluster.
struct LiveObject {
    /// The resource version.
    version: String,
    /// A stop of the environment deletes it, or has tried that.
    ending: bool,
}

impl<C: Cluster> Environments<C> {
    /// Looks after objects of these kinds in a cluster.
    pub fn new(cluster: C, kinds: AllowedKinds) -> Self {
        Self { cluster, kinds, namespaces: None }
    }

    /// Lists in these namespaces alone, unless there is no restriction. Namespaces are not deleted then.
    #[must_use]
    pub fn within(mut self, namespaces: Option<Vec<String>>) -> Self {
        self.namespaces = namespaces;
        self
    }

    /// Makes the objects of a template exist, in its order but with namespaces first. Nothing is written unless all of them may be.
    ///
    /// # Errors
    ///
    /// An object belongs to somebody else, its kind is not allowed, or the API server refuses it. Objects before it exist then.
    pub async fn ensure(
        &self,
        owner: &EnvironmentOwner,
        manifests: Vec<EnvironmentManifest>,
    ) -> Result<Vec<ProvisionedObject>, EnvironmentError> {
        let mut objects = Vec::with_capacity(manifests.len());
        for manifest in manifests {
            objects.push(self.resolve(owner, manifest).await?);
        }
        self.check_namespaces(owner, &objects).await?;
        objects.sort_by_key(|object| object.kind.namespaced);
        let mut done = Vec::with_capacity(objects.len());
        for object in objects {
            let id = object.manifest.id.clone();
            let change = self.apply(owner, object).await?;
            done.push(ProvisionedObject { id, change });
        }
        Ok(done)
    }

    /// Checks the namespaces that the template does not make.
    async fn check_namespaces(
        &self,
        owner: &EnvironmentOwner,
        objects: &[Resolved],
    ) -> Result<(), EnvironmentError> {
        let made = objects.iter().filter(|object| object.kind.kind == namespace_kind());
        let mut checked: HashSet<&str> = made.map(|object| &*object.manifest.id.name).collect();
        for Resolved { manifest, kind, .. } in objects {
            let name = &*manifest.id.namespace;
            if !kind.namespaced || !checked.insert(name) {
                continue;
            }
            let found = self.cluster.resolve(&namespace_kind(), None).await;
            let kind = found.map_err(|error| failed(manifest, &error))?.found();
            let kind = kind.ok_or_else(|| {
                EnvironmentError::Unavailable("the API server has no Namespaces now".to_owned())
            })?;
            let namespace = self.cluster.get(&kind, &namespace_id(name)).await;
            let Some(namespace) = namespace.map_err(|error| failed(manifest, &error))? else {
                let what = format!("its namespace {name} does not exist, and is not in the template");
                return Err(refused(manifest, what));
            };
            owner.check_namespace(&namespace).map_err(|conflict| refused(manifest, conflict))?;
            check_alive(&namespace_id(name), &namespace)?;
        }
        Ok(())
    }

    /// Looks the kind of an object up, and whose the object in the cluster is.
    async fn resolve(
        &self,
        owner: &EnvironmentOwner,
        mut manifest: EnvironmentManifest,
    ) -> Result<Resolved, EnvironmentError> {
        let group_kind = GroupKind::of(&manifest.id);
        let found = self.find(&group_kind, &manifest.version).await;
        let kind = match found.map_err(|error| failed(&manifest, &error))? {
            KindLookup::Found(kind) => kind,
            KindLookup::Missing => {
                let what = format!(
                    "the cluster does not have the kind {group_kind} in version {}",
                    manifest.version
                );
                return Err(refused(&manifest, what));
            }
            KindLookup::Unavailable => {
                let what =
                    format!("{}: the API group {} does not respond", manifest.source, group_kind.group);
                return Err(EnvironmentError::Unavailable(what));
            }
        };
        if !self.kinds.allows(&kind) {
            let what = format!(
                "the policy of this cluster does not list {} among the resources of a rule that allows the service provision to patch \
                 them",
                kind.plural
            );
            return Err(refused(&manifest, what));
        }
        let is_namespace = kind.kind == namespace_kind();
        match (kind.namespaced, manifest.id.namespace.is_empty()) {
            (true, true) => {
                return Err(refused(&manifest, "the template must name metadata.namespace"));
            }
            (false, _) if !is_namespace => {
                let what = "it is cluster-scoped, and of those only a Namespace can belong to an environment";
                return Err(refused(&manifest, what));
            }
            (false, false) => {
                let what = "a Namespace is in no namespace: remove metadata.namespace";
                return Err(refused(&manifest, what));
            }
            (true, false) | (false, true) => {}
        }
        owner.mark(&mut manifest.object);
        let live = self.live(owner, &manifest, &kind).await?;
        Ok(Resolved { manifest, kind, live })
    }

    /// Looks an object up, which may be changed only if it is one of the environment.
    async fn live(
        &self,
        owner: &EnvironmentOwner,
        manifest: &EnvironmentManifest,
        kind: &Kind,
    ) -> Result<Option<LiveObject>, EnvironmentError> {
        let live = self.cluster.get(kind, &manifest.id).await.map_err(|error| failed(manifest, &error))?;
        let Some(live) = live else { return Ok(None) };
        owner.check(&live).map_err(|conflict| refused(manifest, conflict))?;
        check_alive(&manifest.id, &live)?;
        Ok(Some(LiveObject { version: version(&live), ending: owner.is_ending(&live) }))
    }

    /// Looks a kind up. Its definition may be newer than the kinds that are known.
    async fn find(&self, kind: &GroupKind, version: &str) -> Result<KindLookup, ApiError> {
        let found = self.cluster.resolve(kind, Some(version)).await?;
        if found != KindLookup::Missing {
            return Ok(found);
        }
        self.cluster.forget_kinds();
        self.cluster.resolve(kind, Some(version)).await
    }

    /// Applies an object. Fields that somebody has changed become those of the template; fields of another environment stay.
    async fn apply(
        &self,
        owner: &EnvironmentOwner,
        Resolved { manifest, kind, live }: Resolved,
    ) -> Result<ObjectChange, EnvironmentError> {
        let (mut live, mut force) = (live, false);
        for attempt in 1.. {
            let error = match self.try_apply(owner, &manifest, &kind, live.as_ref(), force).await {
                Ok(Applied { created: true, .. }) => return Ok(ObjectChange::Created),
                Ok(Applied { object, .. }) => match live {
                    Some(LiveObject { version: before, .. }) if before == version(&object) => {
                        return Ok(ObjectChange::Unchanged);
                    }
                    Some(_) => return Ok(ObjectChange::Updated),
                    None => {
                        self.check_found(owner, &manifest, &kind, &object).await?;
                        return Ok(ObjectChange::Updated);
                    }
                },
                Err(error) => error,
            };
            if error.status == 409 && !error.causes.is_empty() && !force {
                if let Some(other) = owner.other_manager(&error) {
                    let what = format!(
                        "its fields differ from those of {other}, which uses it, too: give each environment an object of its own"
                    );
                    return Err(refused(&manifest, what));
                }
                force = true;
                continue;
            }
            let may_succeed = error.is_transient() || error.is_stale() || error.reason == "AlreadyExists";
            if !may_succeed || attempt >= ATTEMPTS {
                return Err(failed(&manifest, &error));
            }
            sleep(PAUSE).await;
            live = self.live(owner, &manifest, &kind).await?;
        }
        unreachable!("the last attempt returns")
    }

    /// Applies an object once, if it is still in this version.
    async fn try_apply(
        &self,
        owner: &EnvironmentOwner,
        manifest: &EnvironmentManifest,
        kind: &Kind,
        live: Option<&LiveObject>,
        force: bool,
    ) -> Result<Applied, ApiError> {
        let (manager, mut object) = (owner.manager(), Cow::Borrowed(&manifest.object));
        if let Some(LiveObject { version: before, ending }) = live {
            let mut before = before.clone();
            if *ending {
                let resumed = self.cluster.patch(kind, &manifest.id, &owner.resume(&before)).await;
                // The statuses of a patch whose test of the version fails, and of one whose object is gone.
                let stale = |error: ApiError| match error.status {
                    404 | 422 => ApiError { status: 409, causes: Vec::new(), ..error },
                    _ => error,
                };
                before = version(&resumed.map_err(stale)?);
            }
            // An apply that changes nothing fails, too, if a stop of the environment has begun since the object was looked up.
            object.to_mut()["metadata"]["resourceVersion"] = before.into();
        }
        let options = ApplyOptions { manager: &manager, dry_run: false, force };
        self.cluster.apply(kind, &manifest.id, &object, options).await
    }

    /// Checks an object that somebody else has made between the look for it and the apply. It stays with them.
    async fn check_found(
        &self,
        owner: &EnvironmentOwner,
        manifest: &EnvironmentManifest,
        kind: &Kind,
        object: &Value,
    ) -> Result<(), EnvironmentError> {
        let error = match (owner.check(object), EnvironmentOwner::foreign_manager(object)) {
            (Ok(()), None) => return Ok(()),
            (Ok(()), Some(other)) => {
                let what = format!("{}: {}: {other} has made it just now", manifest.source, manifest.id);
                EnvironmentError::Unavailable(what)
            }
            (Err(conflict), _) => refused(manifest, conflict),
        };
        let released = self.release(owner, kind, &manifest.id, object).await;
        released.map_err(|error| failed(manifest, &error))?;
        Err(error)
    }
}

/// Returns the error of an object that may not be made.
fn refused(manifest: &EnvironmentManifest, what: impl fmt::Display) -> EnvironmentError {
    EnvironmentError::Refused(format!("{}: {}: {what}", manifest.source, manifest.id))
}

/// Checks that an object is not being deleted.
fn check_alive(id: &ObjectId, object: &Value) -> Result<(), EnvironmentError> {
    if !object["metadata"]["deletionTimestamp"].is_string() {
        return Ok(());
    }
    Err(EnvironmentError::Unavailable(format!("{id} is being deleted, and can be made again after that")))
}

/// Returns the error of a request about an object.
fn failed(manifest: &EnvironmentManifest, error: &ApiError) -> EnvironmentError {
    let what = format!("{}: {}: {}", manifest.source, manifest.id, error.describe(&manifest.id));
    if error.is_transient() || is_without_namespace(manifest, error) {
        EnvironmentError::Unavailable(what)
    } else {
        EnvironmentError::Refused(what)
    }
}

/// Returns whether the namespace of an object ends or has ended meanwhile, so that the next attempt makes it again, or says that it does
/// not exist.
fn is_without_namespace(manifest: &EnvironmentManifest, error: &ApiError) -> bool {
    match error.status {
        403 => error.message.contains("because it is being terminated"),
        404 => !manifest.id.namespace.is_empty() && error.message.starts_with("namespaces "),
        _ => false,
    }
}

fn namespace_id(name: &str) -> ObjectId {
    ObjectId { kind: namespace_kind().kind, name: name.to_owned(), ..ObjectId::default() }
}

fn namespace_kind() -> GroupKind {
    GroupKind { group: String::new(), kind: "Namespace".to_owned() }
}

fn version(object: &Value) -> String {
    object["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned()
}
