//! A cluster in memory for tests: server-side apply with field managers, UIDs, deletion with finalizers and all that an object takes with
//! it, faults, and processes that die at any request.

mod fields;
#[cfg(test)]
mod tests;
mod world;

use std::{future::pending, ops::Range, sync::Arc};

use kube_cluster::{
    ApiError, Applied, ApplyOptions, Cluster, FIELD_MANAGER, GroupKind, Kind, KindLookup, MetadataPage,
};
use parking_lot::Mutex;
use proto::{agent_configuration::gitops::PropagationPolicy, gitops::ObjectId};
use serde_json::{Map, Value, json};
use tokio::sync::Notify;

pub use self::world::Objects;
use self::world::{LateWrite, World};

/// The objects of a page of metadata.
const PAGE: usize = 100;

/// A cluster. Clones share it.
#[derive(Clone, Default)]
pub struct FakeCluster {
    world: Arc<Mutex<World>>,
    died: Arc<Notify>,
}

type Fault = Box<dyn FnMut(&mut Objects, &str) -> Option<ApiError> + Send>;

/// The moment in a request at which the process dies that has sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// Before the request has an effect.
    Before,
    /// After its effect.
    After,
    /// The request is on its way, and arrives with [`FakeCluster::deliver_late`].
    Late,
}

/// Requests that fail.
struct Failure {
    /// The numbers of the requests.
    range: Range<usize>,
    error: ApiError,
    /// The request has its effect, and only its response is an error.
    after: bool,
}

/// What happens to a request.
enum Decision {
    Run,
    /// It runs, and this is the response.
    Lose(ApiError),
    Die(Death),
}

impl FakeCluster {
    /// Returns a cluster with the kinds of the tests and nothing in it.
    pub fn new() -> Self {
        let cluster = Self::default();
        for (group, version, kind, plural, namespaced) in [
            ("", "v1", "ConfigMap", "configmaps", true),
            ("", "v1", "Secret", "secrets", true),
            ("", "v1", "Service", "services", true),
            ("", "v1", "Namespace", "namespaces", false),
            ("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", true),
            ("apps", "v1", "Deployment", "deployments", true),
            ("apps", "v1", "StatefulSet", "statefulsets", true),
            ("batch", "v1", "Job", "jobs", true),
            ("coordination.k8s.io", "v1", "Lease", "leases", true),
            ("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", false),
            ("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", false),
        ] {
            cluster.add_kind(group, version, kind, plural, namespaced);
        }
        cluster
    }

    pub fn add_kind(&self, group: &str, version: &str, kind: &str, plural: &str, namespaced: bool) {
        let text = str::to_owned;
        let kind = GroupKind { group: text(group), kind: text(kind) };
        let kind = Kind { kind, version: text(version), plural: text(plural), namespaced, has_status: false };
        self.world.lock().kinds.push(kind);
    }

    /// Forgets a kind, as an API server does that does not list it yet.
    pub fn remove_kind(&self, group: &str, kind: &str) {
        self.world.lock().kinds.retain(|known| (&*known.kind.group, &*known.kind.kind) != (group, kind));
    }

    /// Puts an object there as another program would. One of the same name is replaced by one with another UID.
    pub fn put(&self, id: ObjectId, manager: &str, object: Value) {
        self.world.lock().put(id, manager, object);
    }

    /// Changes an object as another program would.
    pub fn edit(&self, id: &ObjectId, manager: &str, change: impl FnOnce(&mut Value)) {
        self.world.lock().edit(id, manager, change);
    }

    /// Deletes an object as another program would.
    pub fn remove(&self, id: &ObjectId) {
        self.world.lock().delete(id);
    }

    /// Removes the finalizers of an object, which completes its deletion.
    pub fn remove_finalizers(&self, id: &ObjectId) {
        self.edit(id, "finalizer", |object| object["metadata"]["finalizers"] = json!([]));
    }

    /// Lets controllers make each workload healthy and bind each claim at once.
    pub fn set_controllers(&self, controllers: bool) {
        self.world.lock().controllers = controllers;
    }

    /// Lets controllers make a workload healthy, or bind a claim.
    pub fn run_controllers(&self, id: &ObjectId) {
        self.world.lock().run_controllers(id);
    }

    /// Sets what fails: a function of the request.
    pub fn set_fault(&self, mut fault: impl FnMut(&str) -> Option<ApiError> + Send + 'static) {
        self.world.lock().fault = Some(Box::new(move |_, request| fault(request)));
    }

    /// Sets what somebody else does just before a request.
    pub fn set_intruder(&self, mut change: impl FnMut(&mut Objects, &str) + Send + 'static) {
        self.world.lock().fault = Some(Box::new(move |objects, request| {
            change(objects, request);
            None
        }));
    }

    pub fn clear_fault(&self) {
        self.world.lock().fault = None;
    }

    /// Lets requests fail: those with these numbers, counted from the next one. `after` says that they have their effects all the same.
    pub fn fail_requests(&self, range: Range<usize>, error: ApiError, after: bool) {
        let mut world = self.world.lock();
        let range = range.start + world.count..range.end.saturating_add(world.count);
        world.failure = Some(Failure { range, error, after });
    }

    /// Kills the process at a request, counted from the next one: from then on no request has a response, and the test has to drop the
    /// process when [`Self::died`] is ready.
    pub fn kill_at(&self, number: usize, death: Death) {
        let mut world = self.world.lock();
        world.death = Some((world.count + number, death));
    }

    /// Waits until the process is dead.
    pub async fn died(&self) {
        while !self.world.lock().dead {
            self.died.notified().await;
        }
    }

    /// Lets another process send requests. Nothing fails, and nothing is killed or interrupted any more.
    pub fn revive(&self) {
        let mut world = self.world.lock();
        (world.dead, world.death, world.failure, world.interruption) = (false, None, None, None);
    }

    /// Lets the oldest write of a dead process arrive. Returns whether there was one.
    pub fn deliver_late(&self) -> bool {
        let mut world = self.world.lock();
        let late = (!world.late.is_empty()).then(|| world.late.remove(0));
        let arrives = late.is_some();
        late.into_iter().for_each(|write| write(&mut world));
        arrives
    }

    /// Returns the number of writes of dead processes that did not arrive yet.
    pub fn late_writes(&self) -> usize {
        self.world.lock().late.len()
    }

    /// Sets what somebody else does just before a request, counted from the next one.
    pub fn interrupt_at(&self, number: usize, work: impl FnOnce() + Send + 'static) {
        let mut world = self.world.lock();
        world.interruption = Some((world.count + number, Box::new(work)));
    }

    /// Sets the API group whose server does not respond.
    pub fn set_unavailable(&self, group: Option<&str>) {
        self.world.lock().unavailable = group.map(str::to_owned);
    }

    pub fn object(&self, id: &ObjectId) -> Option<Value> {
        self.world.lock().objects.get(id).cloned()
    }

    /// Returns all objects.
    pub fn objects(&self) -> Objects {
        self.read(Objects::clone)
    }

    /// Reads all objects.
    pub fn read<T>(&self, read: impl FnOnce(&Objects) -> T) -> T {
        read(&self.world.lock().objects)
    }

    /// Replaces all objects by those of another moment, as a restored etcd would.
    pub fn restore(&self, objects: Objects) {
        self.world.lock().objects = objects;
    }

    /// Returns the inventory.
    pub fn parent(&self) -> Value {
        let world = self.world.lock();
        let found =
            world.objects.iter().find(|(id, _)| id.namespace == "agentk" && id.name.starts_with("gitops-"));
        found.expect("an inventory").1.clone()
    }

    /// Returns the objects that are no inventory.
    pub fn ids(&self) -> Vec<String> {
        let world = self.world.lock();
        world.objects.keys().filter(|id| id.namespace != "agentk").map(ToString::to_string).collect()
    }

    /// Returns and forgets the requests.
    pub fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut self.world.lock().requests)
    }

    /// Runs a request, unless it fails or its process dies. `late` is the same request without its sender.
    async fn call<T>(
        &self,
        kind: &Kind,
        request: String,
        work: impl FnOnce(&mut World) -> Result<T, ApiError>,
        late: impl FnOnce() -> Option<LateWrite>,
    ) -> Result<T, ApiError> {
        if let Some(result) = self.run(kind, request, work, late) {
            return result;
        }
        self.died.notify_one();
        pending().await
    }

    /// Returns the response, unless the process is dead.
    fn run<T>(
        &self,
        kind: &Kind,
        request: String,
        work: impl FnOnce(&mut World) -> Result<T, ApiError>,
        late: impl FnOnce() -> Option<LateWrite>,
    ) -> Option<Result<T, ApiError>> {
        let mut world = self.world.lock();
        if world.dead {
            return None;
        }
        let count = world.count;
        if let Some((_, work)) = world.interruption.take_if(|(at, _)| *at == count) {
            drop(world);
            work();
            world = self.world.lock();
        }
        match world.decide(kind, request) {
            Ok(Decision::Run) => Some(work(&mut world)),
            Ok(Decision::Lose(error)) => Some(work(&mut world).and(Err(error))),
            Ok(Decision::Die(death)) => {
                match death {
                    Death::Before => {}
                    Death::After => drop(work(&mut world)),
                    Death::Late => world.late.extend(late()),
                }
                world.dead = true;
                None
            }
            Err(error) => Some(Err(error)),
        }
    }
}

impl World {
    /// Records a request. Returns what happens to it.
    fn decide(&mut self, kind: &Kind, request: String) -> Result<Decision, ApiError> {
        let number = self.count;
        self.count += 1;
        let fault = self.fault.as_mut().and_then(|fault| fault(&mut self.objects, &request));
        self.requests.push(request);
        if let Some((at, death)) = self.death
            && at == number
        {
            return Ok(Decision::Die(death));
        }
        let failure = self.failure.as_ref().filter(|failure| failure.range.contains(&number));
        match (fault, failure) {
            (Some(error), _) => Err(error),
            (None, Some(Failure { error, after: false, .. })) => Err(error.clone()),
            _ if self.unavailable.as_ref() == Some(&kind.kind.group) => {
                Err(error(503, "ServiceUnavailable", "the server is currently unable to handle the request"))
            }
            _ if !self.kinds.iter().any(|known| known.kind == kind.kind) => {
                Err(error(404, "NotFound", "the server could not find the requested resource"))
            }
            (None, Some(Failure { error, .. })) => Ok(Decision::Lose(error.clone())),
            (None, None) => Ok(Decision::Run),
        }
    }
}

impl Cluster for FakeCluster {
    async fn resolve(&self, kind: &GroupKind, version: Option<&str>) -> Result<KindLookup, ApiError> {
        let world = self.world.lock();
        if world.unavailable.as_ref() == Some(&kind.group) {
            return Ok(KindLookup::Unavailable);
        }
        let is_wanted = |found: &&Kind| found.kind == *kind && version.is_none_or(|v| v == found.version);
        let found = world.kinds.iter().find(is_wanted).cloned();
        Ok(found.map_or(KindLookup::Missing, KindLookup::Found))
    }

    async fn listable_kinds(&self) -> Result<(Vec<Kind>, Vec<String>), ApiError> {
        let world = self.world.lock();
        let unavailable = world.unavailable.clone();
        let is_known = |kind: &&Kind| unavailable.as_ref() != Some(&kind.kind.group);
        let known = world.kinds.iter().filter(is_known).cloned().collect();
        Ok((known, unavailable.into_iter().collect()))
    }

    fn forget_kinds(&self) {}

    async fn get(&self, kind: &Kind, id: &ObjectId) -> Result<Option<Value>, ApiError> {
        let got = self.call(kind, format!("get {id}"), |world| Ok(world.objects.get(id).cloned()), || None);
        match got.await {
            // The kind is gone.
            Err(error) if error.status == 404 => Ok(None),
            result => result,
        }
    }

    async fn list(
        &self,
        kind: &Kind,
        namespace: &str,
        selector: &str,
        only_metadata: bool,
    ) -> Result<Vec<Value>, ApiError> {
        let list = |world: &mut World| {
            let selected = world.select(kind, namespace, selector);
            Ok(selected.map(|(_, object)| item(object, only_metadata)).collect())
        };
        self.call(kind, format!("list {} {namespace}", kind.kind), list, || None).await
    }

    async fn metadata_page(
        &self,
        kind: &Kind,
        namespace: &str,
        selector: &str,
        is_read: fn(&str) -> bool,
        token: Option<&str>,
    ) -> Result<MetadataPage, ApiError> {
        let list = |world: &mut World| {
            // The token is the last object, since others may be deleted meanwhile.
            let after =
                |(id, _): &(&ObjectId, &Value)| token.is_none_or(|token| id.to_string().as_str() > token);
            let mut left: Vec<_> =
                world.select(kind, namespace, selector).filter(after).take(PAGE + 1).collect();
            let next = (left.len() > PAGE).then(|| left[PAGE - 1].0.to_string());
            left.truncate(PAGE);
            let objects = left.into_iter().map(|(_, object)| metadata_item(object, is_read)).collect();
            Ok(MetadataPage { objects, next })
        };
        self.call(kind, format!("list {} {namespace}", kind.kind), list, || None).await
    }

    async fn apply(
        &self,
        kind: &Kind,
        id: &ObjectId,
        object: &Value,
        options: ApplyOptions<'_>,
    ) -> Result<Applied, ApiError> {
        let verb = if options.dry_run { "try" } else { "apply" };
        let apply = |world: &mut World| world.apply(id, object, options);
        let late = || -> Option<LateWrite> {
            let (id, object, manager) = (id.clone(), object.clone(), options.manager.to_owned());
            let ApplyOptions { dry_run, force, .. } = options;
            Some(Box::new(move |world| {
                drop(world.apply(&id, &object, ApplyOptions { manager: &manager, dry_run, force }));
            }))
        };
        self.call(kind, format!("{verb} {id}"), apply, late).await
    }

    async fn try_create(&self, kind: &Kind, id: &ObjectId, _: &Value) -> Result<(), ApiError> {
        self.call(kind, format!("try-create {id}"), |world| world.check_create(id), || None).await
    }

    async fn patch(&self, kind: &Kind, id: &ObjectId, patch: &Value) -> Result<Value, ApiError> {
        let late = || -> Option<LateWrite> {
            let (id, patch) = (id.clone(), patch.clone());
            Some(Box::new(move |world| drop(world.patch(&id, FIELD_MANAGER, &patch))))
        };
        let work = |world: &mut World| world.patch(id, FIELD_MANAGER, patch);
        self.call(kind, format!("patch {id}"), work, late).await
    }

    async fn delete(
        &self,
        kind: &Kind,
        id: &ObjectId,
        uid: &str,
        resource_version: Option<&str>,
        propagation: PropagationPolicy,
    ) -> Result<bool, ApiError> {
        let late = || -> Option<LateWrite> {
            let (id, uid, version) = (id.clone(), uid.to_owned(), resource_version.map(str::to_owned));
            Some(Box::new(move |world| {
                drop(world.delete_if(&id, &uid, version.as_deref(), propagation));
            }))
        };
        let work = |world: &mut World| world.delete_if(id, uid, resource_version, propagation);
        self.call(kind, format!("delete {id}"), work, late).await?;
        Ok(self.object(id).is_none())
    }
}

pub fn error(status: u16, reason: &str, message: &str) -> ApiError {
    ApiError { status, reason: reason.to_owned(), message: message.to_owned(), ..ApiError::default() }
}

/// Returns an object as `KubeCluster::list` does: without the fields of its managers.
fn item(object: &Value, only_metadata: bool) -> Value {
    let mut item = if only_metadata {
        let keys = ["apiVersion", "kind", "metadata"];
        keys.into_iter().map(|key| (key.to_owned(), object[key].clone())).collect()
    } else {
        object.clone()
    };
    let managers = item["metadata"]["managedFields"].as_array_mut();
    for manager in managers.into_iter().flatten().filter_map(Value::as_object_mut) {
        manager.remove("fieldsV1");
    }
    item
}

/// Returns the metadata that `KubeCluster::metadata_page` reads.
fn metadata_item(object: &Value, is_read: fn(&str) -> bool) -> Value {
    let read = object["metadata"].as_object().into_iter().flatten().filter_map(|(key, value)| {
        let value = match &**key {
            "name" | "namespace" | "uid" | "resourceVersion" | "deletionTimestamp" => value.clone(),
            "labels" | "annotations" => {
                let selected = value.as_object()?.iter().filter(|(key, _)| is_read(key));
                selected.map(|(key, value)| (key.clone(), value.clone())).collect()
            }
            "ownerReferences" => value.as_array()?.iter().map(|owner| json!({"uid": owner["uid"]})).collect(),
            _ => return None,
        };
        Some((key.clone(), value))
    });
    json!({"metadata": read.collect::<Map<_, _>>()})
}
