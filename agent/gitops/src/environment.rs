//! The objects of environments: makes them, and deletes them unless others use them.
//!
//! ```text
//!   ensure: resolve all ─► whose are they? ─► apply, namespaces first
//!   delete: list by label ─► delete, namespaces last, each only if nothing of others is in it
//! ```
//!
//! Nothing is kept between calls: the labels of the objects say whose they are. Each environment has a field manager of its own, so that
//! two environments of a project may share an object.

mod deletion;
mod owner;
#[cfg(test)]
mod tests;

use std::time::Duration;

use proto::{
    gitops::ObjectId,
    provision::{ObjectChange, ProvisionedObject},
};
use serde_json::Value;
use tokio::time::sleep;

pub use self::{deletion::MaySweep, owner::EnvironmentOwner};
use crate::{ApiError, Applied, ApplyOptions, Cluster, GroupKind, Kind, KindLookup, Manifest};

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

/// The kinds that may be objects of environments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedKinds(Vec<AllowedResources>);

/// Resources of API groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedResources {
    /// The API groups, or `None` for each group that has the resources.
    pub groups: Option<Vec<String>>,
    /// The resources, such as `rolebindings`.
    pub resources: Vec<String>,
}

/// The objects of environments in a cluster.
#[derive(Clone, Debug)]
pub struct Environments<C> {
    cluster: C,
    kinds: AllowedKinds,
}

/// An object of a template whose kind the cluster has.
struct Resolved {
    manifest: Manifest,
    kind: Kind,
    /// The resource version of the object in the cluster.
    live: Option<String>,
}

impl AllowedKinds {
    /// Allows the resources of each entry.
    pub fn new(entries: impl IntoIterator<Item = AllowedResources>) -> Self {
        Self(entries.into_iter().collect())
    }

    /// Returns whether no kind is allowed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn allows(&self, kind: &Kind) -> bool {
        self.0.iter().any(|entry| entry.has_group(&kind.kind.group) && entry.resources.contains(&kind.plural))
    }

    fn has_group(&self, group: &str) -> bool {
        self.0.iter().any(|entry| entry.has_group(group))
    }
}

impl AllowedResources {
    fn has_group(&self, group: &str) -> bool {
        self.groups.as_ref().is_none_or(|groups| groups.iter().any(|each| each == "*" || each == group))
    }
}

impl<C: Cluster> Environments<C> {
    /// Looks after objects of these kinds in a cluster.
    pub fn new(cluster: C, kinds: AllowedKinds) -> Self {
        Self { cluster, kinds }
    }

    /// Makes the objects of a template exist, in its order but with namespaces first. Nothing is written unless all of them may be.
    ///
    /// # Errors
    ///
    /// An object belongs to somebody else, its kind is not allowed, or the API server refuses it. Objects before it exist then.
    pub async fn ensure(
        &self,
        owner: &EnvironmentOwner,
        manifests: Vec<Manifest>,
    ) -> Result<Vec<ProvisionedObject>, EnvironmentError> {
        let mut objects = Vec::with_capacity(manifests.len());
        for manifest in manifests {
            objects.push(self.resolve(owner, manifest).await?);
        }
        objects.sort_by_key(|object| object.kind.namespaced);
        let mut done = Vec::with_capacity(objects.len());
        for object in &objects {
            let change = self.apply(owner, object).await?;
            done.push(ProvisionedObject { id: object.manifest.id.clone(), change });
        }
        Ok(done)
    }

    /// Returns the objects of an environment, in order.
    ///
    /// # Errors
    ///
    /// The API server refuses a list, or does not respond.
    pub async fn list(&self, owner: &EnvironmentOwner) -> Result<Vec<ObjectId>, EnvironmentError> {
        let mut ids: Vec<ObjectId> = self.members(owner).await?.into_iter().map(|member| member.id).collect();
        ids.sort();
        Ok(ids)
    }

    /// Looks the kind of an object up, and whose the object in the cluster is.
    async fn resolve(
        &self,
        owner: &EnvironmentOwner,
        mut manifest: Manifest,
    ) -> Result<Resolved, EnvironmentError> {
        let refused = |manifest: &Manifest, what: String| {
            EnvironmentError::Refused(format!("{}: {}: {what}", manifest.source, manifest.id))
        };
        let group_kind = manifest.group_kind();
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
                return Err(refused(&manifest, "the template must name metadata.namespace".to_owned()));
            }
            (false, _) if !is_namespace => {
                let what = "it is cluster-scoped, and of those only a Namespace can belong to an environment";
                return Err(refused(&manifest, what.to_owned()));
            }
            (false, false) => {
                return Err(refused(
                    &manifest,
                    "a Namespace is in no namespace: remove metadata.namespace".to_owned(),
                ));
            }
            (true, false) | (false, true) => {}
        }
        owner.mark(&mut manifest.object);
        let live = self.cluster.get(&kind, &manifest.id).await.map_err(|error| failed(&manifest, &error))?;
        if let Some(live) = &live {
            owner.check(live).map_err(|what| refused(&manifest, what))?;
            if live["metadata"]["deletionTimestamp"].is_string() {
                let what = format!("{} is being deleted, and can be made again after that", manifest.id);
                return Err(EnvironmentError::Unavailable(what));
            }
        }
        let live = live.map(|live| version(&live));
        Ok(Resolved { manifest, kind, live })
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

    async fn apply(
        &self,
        owner: &EnvironmentOwner,
        object: &Resolved,
    ) -> Result<ObjectChange, EnvironmentError> {
        let Resolved { manifest, kind, live } = object;
        let Applied { created, object } = self.try_apply(owner, object).await?;
        if created {
            return Ok(ObjectChange::Created);
        }
        if live.is_none()
            && let Err(what) = owner.check(&object)
        {
            // Another environment has made it since it was looked for. It stays with that one.
            self.release(owner, kind, &manifest.id, &object)
                .await
                .map_err(|error| failed(manifest, &error))?;
            return Err(EnvironmentError::Refused(format!("{}: {}: {what}", manifest.source, manifest.id)));
        }
        match live.as_ref() == Some(&version(&object)) {
            true => Ok(ObjectChange::Unchanged),
            false => Ok(ObjectChange::Updated),
        }
    }

    /// Applies an object. Fields that somebody has changed become those of the template; fields of another environment stay.
    async fn try_apply(
        &self,
        owner: &EnvironmentOwner,
        object: &Resolved,
    ) -> Result<Applied, EnvironmentError> {
        let Resolved { manifest, kind, .. } = object;
        let manager = owner.manager();
        let mut force = false;
        for attempt in 1.. {
            let options = ApplyOptions { manager: &manager, dry_run: false, force };
            let error = match self.cluster.apply(kind, &manifest.id, &manifest.object, options).await {
                Ok(applied) => return Ok(applied),
                Err(error) => error,
            };
            if error.status == 409 && !error.causes.is_empty() && !force {
                if let Some(other) = owner.other_manager(&error) {
                    let what = format!(
                        "{}: {}: its fields differ from those of {other}, which uses it, too: give each environment an object of its own",
                        manifest.source, manifest.id
                    );
                    return Err(EnvironmentError::Refused(what));
                }
                force = true;
                continue;
            }
            let may_succeed = error.is_transient() || error.is_stale() || error.reason == "AlreadyExists";
            if !may_succeed || attempt >= ATTEMPTS {
                return Err(failed(manifest, &error));
            }
            sleep(PAUSE).await;
        }
        unreachable!("the last attempt returns")
    }
}

/// Returns the error of a request about an object.
fn failed(manifest: &Manifest, error: &ApiError) -> EnvironmentError {
    let what = format!("{}: {}: {}", manifest.source, manifest.id, error.describe(&manifest.id));
    match error.is_transient() {
        true => EnvironmentError::Unavailable(what),
        false => EnvironmentError::Refused(what),
    }
}

fn namespace_kind() -> GroupKind {
    GroupKind { group: String::new(), kind: "Namespace".to_owned() }
}

fn version(object: &Value) -> String {
    object["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned()
}
