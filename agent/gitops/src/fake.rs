//! A cluster in memory for tests: server-side apply with field managers, UIDs, finalizers and faults.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;
use proto::{agent_configuration::gitops::PropagationPolicy, gitops::ObjectId};
use serde_json::{Map, Value, json};

use crate::{ApiError, Applied, ApplyOptions, Cluster, GroupKind, Kind, KindLookup, MetadataPage};

/// The objects of a page of metadata.
const PAGE: usize = 100;

/// A cluster. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct FakeCluster(Arc<Mutex<World>>);

type Objects = BTreeMap<ObjectId, Value>;
type Fault = Box<dyn FnMut(&mut Objects, &str) -> Option<ApiError> + Send>;

#[derive(Default)]
struct World {
    objects: Objects,
    /// The objects as each manager has applied them last.
    applied: HashMap<(ObjectId, String), Value>,
    kinds: Vec<Kind>,
    /// An API group whose server does not respond to the discovery.
    unavailable: Option<String>,
    /// All requests, such as `apply ConfigMap shop/a`.
    requests: Vec<String>,
    fault: Option<Fault>,
    counter: u64,
}

impl FakeCluster {
    /// Returns a cluster with the kinds of the tests and nothing in it.
    pub(crate) fn new() -> Self {
        let cluster = Self::default();
        for (group, version, kind, plural, namespaced) in [
            ("", "v1", "ConfigMap", "configmaps", true),
            ("", "v1", "Secret", "secrets", true),
            ("", "v1", "Service", "services", true),
            ("", "v1", "Namespace", "namespaces", false),
            ("apps", "v1", "Deployment", "deployments", true),
            ("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", false),
        ] {
            cluster.add_kind(group, version, kind, plural, namespaced);
        }
        cluster
    }

    pub(crate) fn add_kind(&self, group: &str, version: &str, kind: &str, plural: &str, namespaced: bool) {
        let text = str::to_owned;
        let kind = GroupKind { group: text(group), kind: text(kind) };
        self.0.lock().kinds.push(Kind { kind, version: text(version), plural: text(plural), namespaced });
    }

    /// Puts an object there as another program would.
    pub(crate) fn put(&self, id: ObjectId, manager: &str, object: Value) {
        let mut world = self.0.lock();
        world.counter += 1;
        let counter = world.counter;
        let mut object = object;
        let metadata = &mut object["metadata"];
        metadata["uid"] = format!("uid-{counter}").into();
        metadata["name"] = id.name.clone().into();
        metadata["namespace"] = id.namespace.clone().into();
        metadata["resourceVersion"] = counter.to_string().into();
        metadata["managedFields"] =
            json!([{"manager": manager, "operation": "Update", "time": counter.to_string()}]);
        world.objects.insert(id, object);
    }

    /// Changes an object as another program would.
    pub(crate) fn edit(&self, id: &ObjectId, manager: &str, change: impl FnOnce(&mut Value)) {
        let mut world = self.0.lock();
        world.counter += 1;
        let counter = world.counter.to_string();
        let object = world.objects.get_mut(id).expect("an object that exists");
        change(object);
        object["metadata"]["resourceVersion"] = counter.clone().into();
        let entry = json!({"manager": manager, "operation": "Update", "time": counter});
        object["metadata"]["managedFields"].as_array_mut().expect("managed fields").push(entry);
    }

    /// Deletes an object as another program would.
    pub(crate) fn remove(&self, id: &ObjectId) {
        let mut world = self.0.lock();
        world.objects.remove(id);
        world.applied.retain(|(applied, _), _| applied != id);
    }

    /// Sets what fails: a function of the request.
    pub(crate) fn set_fault(&self, mut fault: impl FnMut(&str) -> Option<ApiError> + Send + 'static) {
        self.0.lock().fault = Some(Box::new(move |_, request| fault(request)));
    }

    /// Sets what somebody else does just before a request.
    pub(crate) fn set_intruder(&self, mut change: impl FnMut(&mut Objects, &str) + Send + 'static) {
        self.0.lock().fault = Some(Box::new(move |objects, request| {
            change(objects, request);
            None
        }));
    }

    /// Sets the API group whose server does not respond to the discovery.
    pub(crate) fn set_unavailable(&self, group: Option<&str>) {
        self.0.lock().unavailable = group.map(str::to_owned);
    }

    pub(crate) fn clear_fault(&self) {
        self.0.lock().fault = None;
    }

    pub(crate) fn object(&self, id: &ObjectId) -> Option<Value> {
        self.0.lock().objects.get(id).cloned()
    }

    /// Returns the inventory.
    pub(crate) fn parent(&self) -> Value {
        let world = self.0.lock();
        let found =
            world.objects.iter().find(|(id, _)| id.namespace == "agentk" && id.name.starts_with("gitops-"));
        found.expect("an inventory").1.clone()
    }

    /// Returns the objects that are no inventory.
    pub(crate) fn ids(&self) -> Vec<String> {
        let world = self.0.lock();
        world.objects.keys().filter(|id| id.namespace != "agentk").map(ToString::to_string).collect()
    }

    /// Returns and forgets the requests.
    pub(crate) fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().requests)
    }

    /// Records a request, and fails if a fault wants that.
    fn request(&self, verb: &str, what: &str) -> Result<(), ApiError> {
        let mut world = self.0.lock();
        let request = format!("{verb} {what}");
        world.requests.push(request.clone());
        let World { objects, fault, .. } = &mut *world;
        match fault.as_mut().and_then(|fault| fault(objects, &request)) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

impl World {
    /// Returns the objects of a kind in a namespace with a label, in order.
    fn select<'a>(
        &'a self,
        kind: &'a Kind,
        namespace: &'a str,
        selector: &'a str,
    ) -> impl Iterator<Item = (&'a ObjectId, &'a Value)> {
        let (key, value) =
            selector.split_once('=').map_or((selector, None), |(key, value)| (key, Some(value)));
        let matches = move |(id, object): &(&ObjectId, &Value)| {
            let label = &object["metadata"]["labels"][key];
            GroupKind::of(id) == kind.kind
                && (namespace.is_empty() || id.namespace == namespace)
                && (key.is_empty() || value.map_or_else(|| label.is_string(), |value| label == value))
        };
        self.objects.iter().filter(matches)
    }

    fn apply(
        &mut self,
        id: &ObjectId,
        object: &Value,
        options: ApplyOptions<'_>,
    ) -> Result<Applied, ApiError> {
        let manager = options.manager.to_owned();
        if !id.namespace.is_empty() && id.namespace != "agentk" && id.namespace != "default" {
            let namespace =
                ObjectId { kind: "Namespace".to_owned(), name: id.namespace.clone(), ..ObjectId::default() };
            if !self.objects.contains_key(&namespace) && !options.dry_run {
                return Err(error(404, "NotFound", &format!("namespaces {:?} not found", id.namespace)));
            }
        }
        let live = self.objects.get(id).cloned();
        let mut object = object.clone();
        let uid = object["metadata"].as_object_mut().and_then(|metadata| metadata.remove("uid"));
        if uid.is_some_and(|uid| live.as_ref().is_none_or(|live| live["metadata"]["uid"] != uid)) {
            return Err(error(409, "Conflict", "the UID in the precondition does not match"));
        }
        let version =
            object["metadata"].as_object_mut().and_then(|metadata| metadata.remove("resourceVersion"));
        if version.is_some_and(|version| {
            live.as_ref().is_none_or(|live| live["metadata"]["resourceVersion"] != version)
        }) {
            return Err(error(409, "Conflict", "the object has been modified"));
        }
        let object = &object;
        if let (Some(live), Some(wanted)) = (&live, object.pointer("/spec/immutable"))
            && live.pointer("/spec/immutable").is_some_and(|before| before != wanted)
        {
            return Err(error(422, "Invalid", "spec.immutable: Invalid value: field is immutable"));
        }
        let before = self.applied.get(&(id.clone(), manager.clone())).cloned().unwrap_or_else(|| json!({}));
        let mut result = live.clone().unwrap_or_else(|| json!({}));
        remove_missing(&mut result, &before, object);
        merge(&mut result, object);
        let changed = live.as_ref() != Some(&result);
        if live.is_none() || changed {
            let counter = self.counter + 1;
            let metadata = &mut result["metadata"];
            if live.is_none() {
                metadata["uid"] = format!("uid-{counter}").into();
                metadata["managedFields"] = json!([]);
            }
            if !options.dry_run || live.is_none() {
                metadata["resourceVersion"] = counter.to_string().into();
            }
            let entries = metadata["managedFields"].as_array_mut().expect("managed fields");
            entries.retain(|entry| entry["manager"] != options.manager || entry["operation"] != "Apply");
            entries
                .push(json!({"manager": options.manager, "operation": "Apply", "time": counter.to_string()}));
            if !options.dry_run {
                self.counter = counter;
                self.objects.insert(id.clone(), result.clone());
                self.define(id, &result);
            }
        }
        if !options.dry_run {
            self.applied.insert((id.clone(), manager), object.clone());
        }
        Ok(Applied { created: live.is_none(), object: result })
    }

    /// A definition is established at once.
    fn define(&mut self, id: &ObjectId, object: &Value) {
        if id.kind != "CustomResourceDefinition" {
            return;
        }
        let text =
            |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let kind = GroupKind { group: text("/spec/group"), kind: text("/spec/names/kind") };
        let namespaced = text("/spec/scope") == "Namespaced";
        self.kinds.push(Kind {
            kind,
            version: "v1".to_owned(),
            plural: text("/spec/names/plural"),
            namespaced,
        });
        let status = json!({"conditions": [{"type": "Established", "status": "True"}]});
        self.objects.get_mut(id).expect("it was inserted")["status"] = status;
    }
}

impl Cluster for FakeCluster {
    async fn resolve(&self, kind: &GroupKind, version: Option<&str>) -> Result<KindLookup, ApiError> {
        let world = self.0.lock();
        if world.unavailable.as_ref() == Some(&kind.group) {
            return Ok(KindLookup::Unavailable);
        }
        let is_wanted = |found: &&Kind| found.kind == *kind && version.is_none_or(|v| v == found.version);
        let found = world.kinds.iter().find(is_wanted).cloned();
        Ok(found.map_or(KindLookup::Missing, KindLookup::Found))
    }

    async fn listable_kinds(&self) -> Result<(Vec<Kind>, Vec<String>), ApiError> {
        let world = self.0.lock();
        let unavailable = world.unavailable.clone();
        let is_known = |kind: &&Kind| unavailable.as_ref() != Some(&kind.kind.group);
        let known = world.kinds.iter().filter(is_known).cloned().collect();
        Ok((known, unavailable.into_iter().collect()))
    }

    fn forget_kinds(&self) {}

    async fn get(&self, _: &Kind, id: &ObjectId) -> Result<Option<Value>, ApiError> {
        self.request("get", &id.to_string())?;
        Ok(self.object(id))
    }

    async fn list(
        &self,
        kind: &Kind,
        namespace: &str,
        selector: &str,
        _: bool,
    ) -> Result<Vec<Value>, ApiError> {
        self.request("list", &format!("{} {namespace}", kind.kind))?;
        let world = self.0.lock();
        Ok(world.select(kind, namespace, selector).map(|(_, object)| object.clone()).collect())
    }

    async fn metadata_page(
        &self,
        kind: &Kind,
        namespace: &str,
        selector: &str,
        _: fn(&str) -> bool,
        token: Option<&str>,
    ) -> Result<MetadataPage, ApiError> {
        self.request("list", &format!("{} {namespace}", kind.kind))?;
        let world = self.0.lock();
        // The token is the last object, since others may be deleted meanwhile.
        let after = |(id, _): &(&ObjectId, &Value)| token.is_none_or(|token| id.to_string().as_str() > token);
        let mut left: Vec<_> = world.select(kind, namespace, selector).filter(after).take(PAGE + 1).collect();
        let next = (left.len() > PAGE).then(|| left[PAGE - 1].0.to_string());
        left.truncate(PAGE);
        Ok(MetadataPage { objects: left.into_iter().map(|(_, object)| object.clone()).collect(), next })
    }

    async fn apply(
        &self,
        _: &Kind,
        id: &ObjectId,
        object: &Value,
        options: ApplyOptions<'_>,
    ) -> Result<Applied, ApiError> {
        self.request(if options.dry_run { "try" } else { "apply" }, &id.to_string())?;
        self.0.lock().apply(id, object, options)
    }

    async fn try_create(&self, _: &Kind, id: &ObjectId, _: &Value) -> Result<(), ApiError> {
        self.request("try-create", &id.to_string())
    }

    async fn patch(&self, _: &Kind, id: &ObjectId, patch: &Value) -> Result<Value, ApiError> {
        self.request("patch", &id.to_string())?;
        let mut world = self.0.lock();
        let counter = world.counter + 1;
        let object = world.objects.get_mut(id).ok_or_else(|| error(404, "NotFound", "not found"))?;
        let mut patched = object.clone();
        for operation in patch.as_array().expect("a list of operations") {
            apply_operation(&mut patched, operation)?;
        }
        if patched != *object {
            patched["metadata"]["resourceVersion"] = counter.to_string().into();
            *object = patched.clone();
            world.counter = counter;
        }
        Ok(patched)
    }

    async fn delete(
        &self,
        _: &Kind,
        id: &ObjectId,
        uid: &str,
        resource_version: Option<&str>,
        _: PropagationPolicy,
    ) -> Result<(), ApiError> {
        self.request("delete", &id.to_string())?;
        let mut world = self.0.lock();
        let Some(object) = world.objects.get_mut(id) else { return Err(error(404, "NotFound", "not found")) };
        if object["metadata"]["uid"] != uid {
            return Err(error(409, "Conflict", "the UID in the precondition does not match"));
        }
        if resource_version.is_some_and(|version| object["metadata"]["resourceVersion"] != version) {
            return Err(error(409, "Conflict", "the resourceVersion in the precondition does not match"));
        }
        if object["metadata"].get("finalizers").is_some() {
            object["metadata"]["deletionTimestamp"] = "now".into();
            return Ok(());
        }
        world.objects.remove(id);
        world.applied.retain(|(applied, _), _| applied != id);
        Ok(())
    }
}

pub(crate) fn error(status: u16, reason: &str, message: &str) -> ApiError {
    ApiError { status, reason: reason.to_owned(), message: message.to_owned(), ..ApiError::default() }
}

/// Applies one operation of a JSON patch (RFC 6902) on members of objects.
fn apply_operation(object: &mut Value, operation: &Value) -> Result<(), ApiError> {
    let (parent, key) = operation["path"].as_str().and_then(|path| path.rsplit_once('/')).expect("a path");
    let key = key.replace("~1", "/");
    let parent = object.pointer_mut(parent).and_then(Value::as_object_mut);
    let parent = parent.ok_or_else(|| error(422, "Invalid", "the path does not exist"))?;
    let value = operation["value"].clone();
    match operation["op"].as_str() {
        Some("test") if parent.get(&key) != Some(&value) => {
            return Err(error(422, "Invalid", "the test of the patch failed"));
        }
        Some("test") => {}
        Some("add" | "replace") => drop(parent.insert(key, value)),
        Some("remove") => drop(parent.remove(&key)),
        other => panic!("{other:?} is not an operation of the tests"),
    }
    Ok(())
}

/// Removes what the manager has applied before and does not apply any more.
fn remove_missing(object: &mut Value, before: &Value, now: &Value) {
    let (Some(object), Some(before)) = (object.as_object_mut(), before.as_object()) else { return };
    for (key, before) in before {
        match now.get(key) {
            None => {
                object.remove(key);
            }
            Some(now) => {
                if let Some(child) = object.get_mut(key) {
                    remove_missing(child, before, now);
                }
            }
        }
    }
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key.clone()).or_insert(Value::Object(Map::new())), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}
