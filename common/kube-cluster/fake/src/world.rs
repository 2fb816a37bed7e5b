//! The API server in memory: objects, their deletion, and server-side apply.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use kube_cluster::{ApiError, Applied, ApplyOptions, Cause, GroupKind, Kind};
use proto::{agent_configuration::gitops::PropagationPolicy, gitops::ObjectId};
use serde_json::{Map, Value, json};

use super::{
    Death, Failure, Fault, error,
    fields::{self, FieldSet},
};

pub type Objects = BTreeMap<ObjectId, Value>;

/// A write that arrives later, when its sender is dead.
pub(super) type LateWrite = Box<dyn FnOnce(&mut World) + Send>;

/// The kind of definitions of further kinds.
const DEFINITIONS: (&str, &str) = ("apiextensions.k8s.io", "CustomResourceDefinition");
/// The largest ConfigMap, in bytes.
const MAX_CONFIG_MAP: usize = 1 << 20;

#[derive(Default)]
pub(super) struct World {
    pub(super) objects: Objects,
    pub(super) kinds: Vec<Kind>,
    /// An API group whose server does not respond.
    pub(super) unavailable: Option<String>,
    /// All requests, such as `apply ConfigMap shop/a`.
    pub(super) requests: Vec<String>,
    pub(super) fault: Option<Fault>,
    /// The number of requests so far.
    pub(super) count: usize,
    pub(super) failure: Option<Failure>,
    /// The number of the request at which the process dies, and how.
    pub(super) death: Option<(usize, Death)>,
    /// The process is dead: none of its requests has a response.
    pub(super) dead: bool,
    pub(super) late: Vec<LateWrite>,
    /// The work of somebody else before the request with this number.
    pub(super) interruption: Option<(usize, Box<dyn FnOnce() + Send>)>,
    /// Controllers make each workload healthy at once.
    pub(super) controllers: bool,
    counter: u64,
}

/// How `metadata.generation` of a kind moves.
#[derive(PartialEq)]
enum Generation {
    /// The kind has none.
    None,
    /// It is always 1.
    Fixed,
    /// With each change of anything but metadata and status.
    Moves,
}

impl World {
    /// Returns the objects of a kind in a namespace with a label, in order.
    pub(super) fn select<'a>(
        &'a self,
        kind: &'a Kind,
        namespace: &'a str,
        selector: &'a str,
    ) -> impl Iterator<Item = (&'a ObjectId, &'a Value)> {
        let (key, value) =
            selector.split_once('=').map_or((selector, None), |(key, value)| (key, Some(value)));
        let matches = move |(id, object): &(&ObjectId, &Value)| {
            let label = &object["metadata"]["labels"][key];
            is_of(&kind.kind, id)
                && (namespace.is_empty() || id.namespace == namespace)
                && (key.is_empty() || value.map_or_else(|| label.is_string(), |value| label == value))
        };
        self.objects.iter().filter(matches)
    }

    /// Creates or replaces an object as another program would.
    pub(super) fn put(&mut self, id: ObjectId, manager: &str, mut object: Value) {
        self.counter += 1;
        let counter = self.counter;
        let version = self.kinds.iter().find(|kind| is_of(&kind.kind, &id));
        let version = version.map_or("v1", |kind| &*kind.version);
        object["apiVersion"] = match &*id.group {
            "" => version.into(),
            group => format!("{group}/{version}").into(),
        };
        object["kind"] = id.kind.clone().into();
        let metadata = &mut object["metadata"];
        metadata["uid"] = format!("uid-{counter}").into();
        set_name(metadata, &id);
        metadata["resourceVersion"] = counter.to_string().into();
        if let Some(metadata) = metadata.as_object_mut() {
            metadata.remove("generation");
            metadata.remove("deletionTimestamp");
        }
        set_generation(&id, None, &mut object);
        let set = fields::fields_of(&object);
        object["metadata"]["managedFields"] = json!([entry(manager, "Update", "", counter, set)]);
        self.objects.insert(id.clone(), object);
        self.define(&id);
        self.control(&id);
    }

    /// Changes an object as another program would.
    pub(super) fn edit(&mut self, id: &ObjectId, manager: &str, change: impl FnOnce(&mut Value)) {
        let before = self.objects.get(id).expect("an object that exists").clone();
        let mut after = before.clone();
        change(&mut after);
        self.update(id, manager, &before, after);
    }

    /// Applies a JSON patch as agentk does.
    pub(super) fn patch(&mut self, id: &ObjectId, manager: &str, patch: &Value) -> Result<Value, ApiError> {
        let before = self.objects.get(id).ok_or_else(not_found)?.clone();
        let mut after = before.clone();
        for operation in patch.as_array().expect("a list of operations") {
            apply_operation(&mut after, operation)?;
        }
        if after == before {
            return Ok(after);
        }
        self.update(id, manager, &before, after.clone());
        Ok(self.objects.get(id).cloned().unwrap_or(after))
    }

    /// Stores an object that a program has changed without server-side apply.
    fn update(&mut self, id: &ObjectId, manager: &str, before: &Value, mut after: Value) {
        self.counter += 1;
        for (subresource, set) in [
            ("", [fields::fields_of(before), fields::fields_of(&after)]),
            ("status", [fields::status_of(before), fields::status_of(&after)]),
        ] {
            let [old, new] = set;
            let mut touched = old;
            fields::add(&mut touched, &new);
            let touched = fields::changed(&touched, before, &after);
            if !touched.is_empty() {
                let now = fields::common(&touched, &new);
                self.own(&mut after, manager, subresource, &touched, &now);
            }
        }
        after["metadata"]["resourceVersion"] = self.counter.to_string().into();
        set_generation(id, Some(before), &mut after);
        self.objects.insert(id.clone(), after);
        self.control(id);
        if is_deleting(before) && has_finalizers(before) {
            self.finish(id);
        }
    }

    /// Makes a program the manager of fields that it has changed, and nobody else.
    fn own(&self, object: &mut Value, manager: &str, subresource: &str, touched: &FieldSet, now: &FieldSet) {
        let mut entries = take_entries(object);
        let is_own =
            |entry: &Value| is_entry(entry, manager, "Update") && subresource_of(entry) == subresource;
        for entry in entries.iter_mut().filter(|entry| !is_own(entry)) {
            if let Some(set) = entry.get_mut("fieldsV1").and_then(Value::as_object_mut) {
                let was_empty = set.is_empty();
                fields::subtract(set, touched);
                if set.is_empty() && !was_empty {
                    *entry = Value::Null;
                }
            }
        }
        let own = entries.iter_mut().find(|entry| is_own(entry)).map(Value::take);
        entries.retain(|entry| !entry.is_null());
        let mut set = own.as_ref().map(set_of).unwrap_or_default();
        fields::subtract(&mut set, touched);
        fields::add(&mut set, now);
        entries.push(entry(manager, "Update", subresource, self.counter, set));
        object["metadata"]["managedFields"] = entries.into();
    }

    /// Applies an object on the server (`kubectl apply --server-side`).
    pub(super) fn apply(
        &mut self,
        id: &ObjectId,
        object: &Value,
        options: ApplyOptions<'_>,
    ) -> Result<Applied, ApiError> {
        let live = self.objects.get(id).cloned();
        let mut object = object.clone();
        check_preconditions(&mut object, live.as_ref())?;
        if live.is_none() {
            self.check_create(id)?;
        }
        let mut result = live.clone().unwrap_or_else(|| json!({"metadata": {}}));
        let mut entries = take_entries(&mut result);
        let place = entries.iter().position(|entry| is_entry(entry, options.manager, "Apply"));
        let own = place.map(|index| entries.remove(index));
        let before = own.as_ref().map(set_of).unwrap_or_default();
        let now = fields::fields_of(&object);
        if let Some(live) = &live {
            take_fields(&mut entries, &now, live, &object, options.force)?;
        }
        let mut gone = before.clone();
        fields::subtract(&mut gone, &now);
        for other in &entries {
            fields::subtract(&mut gone, &set_of(other));
        }
        fields::remove(&mut result, &gone);
        merge(&mut result, &object);
        check_object(id, live.as_ref(), &result)?;

        let counter = self.counter + 1;
        let mut unchanged = entries.clone();
        if let (Some(index), Some(own)) = (place, own.filter(|_| before == now)) {
            unchanged.insert(index.min(unchanged.len()), own);
        }
        result["metadata"]["managedFields"] = unchanged.into();
        if live.as_ref() == Some(&result) {
            return Ok(Applied { created: false, object: result });
        }
        entries.push(entry(options.manager, "Apply", "", counter, now));
        let metadata = &mut result["metadata"];
        set_name(metadata, id);
        metadata["managedFields"] = entries.into();
        if live.is_none() {
            metadata["uid"] = format!("uid-{counter}").into();
        }
        if !options.dry_run || live.is_none() {
            metadata["resourceVersion"] = counter.to_string().into();
        }
        set_generation(id, live.as_ref(), &mut result);
        if !options.dry_run {
            self.counter = counter;
            self.objects.insert(id.clone(), result);
            self.define(id);
            self.control(id);
            result = self.objects[id].clone();
            if live.as_ref().is_some_and(|live| is_deleting(live) && has_finalizers(live)) {
                self.finish(id);
            }
        }
        Ok(Applied { created: live.is_none(), object: result })
    }

    /// Checks that the place of a new object exists and does not end.
    pub(super) fn check_create(&self, id: &ObjectId) -> Result<(), ApiError> {
        if let Some((_, definition)) = self.definition(&GroupKind::of(id))
            && is_deleting(definition)
        {
            let message = "create not allowed while custom resource definition is terminating";
            return Err(error(405, "MethodNotAllowed", message));
        }
        let name = &id.namespace;
        match self.objects.get(&namespace_id(name)) {
            _ if name.is_empty() => Ok(()),
            // These exist in each cluster, or at least for agentk.
            None if matches!(&**name, "agentk" | "default") => Ok(()),
            None => Err(error(404, "NotFound", &format!("namespaces {name:?} not found"))),
            Some(namespace) if is_deleting(namespace) => {
                let message = format!(
                    "{} is forbidden: unable to create new content in namespace {name} because it is being terminated",
                    id.name
                );
                Err(error(403, "Forbidden", &message))
            }
            Some(_) => Ok(()),
        }
    }

    /// Deletes an object as the request of a client does, if it is still the one that the client has seen.
    pub(super) fn delete_if(
        &mut self,
        id: &ObjectId,
        uid: &str,
        resource_version: Option<&str>,
        propagation: PropagationPolicy,
    ) -> Result<(), ApiError> {
        let metadata = &self.objects.get(id).ok_or_else(not_found)?["metadata"];
        if metadata["uid"] != uid {
            return Err(error(409, "Conflict", "the UID in the precondition does not match"));
        }
        if resource_version.is_some_and(|version| metadata["resourceVersion"] != version) {
            return Err(error(409, "Conflict", "the resourceVersion in the precondition does not match"));
        }
        if propagation == PropagationPolicy::Orphan {
            for dependent in self.dependents(uid) {
                self.release(&dependent, uid);
            }
        }
        self.delete(id);
        Ok(())
    }

    /// Deletes an object with all that is in it. It stays while it has finalizers, or while anything in it has.
    pub(super) fn delete(&mut self, id: &ObjectId) {
        self.counter += 1;
        let Some(object) = self.objects.get_mut(id) else { return };
        if !is_deleting(object) {
            let metadata = &mut object["metadata"];
            metadata["deletionTimestamp"] = time(self.counter).into();
            metadata["resourceVersion"] = self.counter.to_string().into();
            if let Some(generation) = metadata["generation"].as_u64() {
                metadata["generation"] = (generation + 1).into();
            }
            if *id == namespace_id(&id.name) {
                object["status"]["phase"] = "Terminating".into();
            }
        }
        for inner in self.content(id) {
            self.delete(&inner);
        }
        self.finish(id);
    }

    /// Removes an object whose deletion nothing holds up any more, and all that ends with it.
    fn finish(&mut self, id: &ObjectId) {
        let Some(object) = self.objects.get(id) else { return };
        if !is_deleting(object) || has_finalizers(object) || !self.content(id).is_empty() {
            return;
        }
        let object = self.objects.remove(id).expect("it was there");
        if let Some(kind) = defined_kind(id, &object) {
            self.kinds.retain(|known| known.kind != kind);
        }
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
        for dependent in self.dependents(uid) {
            if !self.objects.contains_key(&dependent) {
                continue;
            }
            self.release(&dependent, uid);
            let metadata = &self.objects[&dependent]["metadata"];
            if metadata["ownerReferences"].as_array().is_none_or(Vec::is_empty) {
                self.delete(&dependent);
            }
        }
        if !id.namespace.is_empty() {
            self.finish(&namespace_id(&id.namespace));
        }
        let definition = self.definition(&GroupKind::of(id)).map(|(id, _)| id.clone());
        definition.iter().for_each(|definition| self.finish(definition));
    }

    /// Returns the objects that are deleted with an object: those of a namespace, and those of a kind.
    fn content(&self, id: &ObjectId) -> Vec<ObjectId> {
        let kind = self.objects.get(id).and_then(|object| defined_kind(id, object));
        let is_namespace = *id == namespace_id(&id.name);
        if kind.is_none() && !is_namespace {
            return Vec::new();
        }
        let is_inside = |inner: &&ObjectId| match &kind {
            Some(kind) => is_of(kind, inner),
            None => inner.namespace == id.name,
        };
        self.objects.keys().filter(is_inside).cloned().collect()
    }

    /// Returns the objects with an owner of this UID.
    fn dependents(&self, uid: &str) -> Vec<ObjectId> {
        let is_owned = |(_, object): &(&ObjectId, &Value)| {
            let owners = object["metadata"]["ownerReferences"].as_array();
            owners.is_some_and(|owners| owners.iter().any(|owner| owner["uid"] == uid))
        };
        self.objects.iter().filter(is_owned).map(|(id, _)| id.clone()).collect()
    }

    /// Removes an owner of an object.
    fn release(&mut self, id: &ObjectId, uid: &str) {
        self.edit(id, "kube-controller-manager", |object| {
            let owners = object["metadata"]["ownerReferences"].as_array_mut();
            owners.expect("it has owners").retain(|owner| owner["uid"] != uid);
        });
    }

    /// Returns the definition of a kind.
    fn definition(&self, kind: &GroupKind) -> Option<(&ObjectId, &Value)> {
        self.objects.iter().find(|(id, object)| defined_kind(id, object).as_ref() == Some(kind))
    }

    /// Makes the kind of a definition known. A definition is established at once.
    fn define(&mut self, id: &ObjectId) {
        let Some(object) = self.objects.get_mut(id) else { return };
        let Some(kind) = defined_kind(id, object) else { return };
        object["status"] = json!({"conditions": [{"type": "Established", "status": "True"}]});
        if self.kinds.iter().any(|known| known.kind == kind) {
            return;
        }
        let namespaced = object["spec"]["scope"] == "Namespaced";
        let plural = object["spec"]["names"]["plural"].as_str().unwrap_or_default().to_owned();
        let has_status = object.pointer("/spec/versions/0/subresources/status").is_some();
        self.kinds.push(Kind { kind, version: "v1".to_owned(), plural, namespaced, has_status });
    }

    /// Does what controllers do with an object: workloads become healthy, and claims are bound.
    fn control(&mut self, id: &ObjectId) {
        if self.controllers {
            self.run_controllers(id);
        }
    }

    pub(super) fn run_controllers(&mut self, id: &ObjectId) {
        let Some(object) = self.objects.get(id) else { return };
        let replicas = object["spec"]["replicas"].as_u64().unwrap_or(1);
        let status = match (&*id.group, &*id.kind) {
            ("apps", "Deployment" | "StatefulSet") => json!({
                "observedGeneration": object["metadata"]["generation"],
                "replicas": replicas,
                "updatedReplicas": replicas,
                "readyReplicas": replicas,
                "availableReplicas": replicas,
            }),
            ("", "PersistentVolumeClaim") => json!({"phase": "Bound"}),
            _ => return,
        };
        if object["status"] != status && !is_deleting(object) {
            let before = object.clone();
            let mut after = before.clone();
            after["status"] = status;
            self.update(id, "kube-controller-manager", &before, after);
        }
    }
}

/// Returns whether an object is of a kind.
fn is_of(kind: &GroupKind, id: &ObjectId) -> bool {
    kind.kind == id.kind && kind.group == id.group
}

pub(super) fn namespace_id(name: &str) -> ObjectId {
    ObjectId { kind: "Namespace".to_owned(), name: name.to_owned(), ..ObjectId::default() }
}

fn set_name(metadata: &mut Value, id: &ObjectId) {
    metadata["name"] = id.name.clone().into();
    if !id.namespace.is_empty() {
        metadata["namespace"] = id.namespace.clone().into();
    }
}

fn not_found() -> ApiError {
    error(404, "NotFound", "not found")
}

fn is_deleting(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

fn has_finalizers(object: &Value) -> bool {
    object["metadata"]["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty())
}

/// Returns the kind that a definition defines.
fn defined_kind(id: &ObjectId, object: &Value) -> Option<GroupKind> {
    if (&*id.group, &*id.kind) != DEFINITIONS {
        return None;
    }
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    Some(GroupKind { group: text("/spec/group"), kind: text("/spec/names/kind") })
}

/// Returns a moment in the form of the API. Each write has its own second.
fn time(counter: u64) -> String {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_780_000_000 + counter);
    humantime::format_rfc3339_seconds(time).to_string()
}

/// Returns an entry of `managedFields`.
fn entry(manager: &str, operation: &str, subresource: &str, counter: u64, set: FieldSet) -> Value {
    let mut entry = json!({
        "manager": manager,
        "operation": operation,
        "time": time(counter),
        "fieldsType": "FieldsV1",
        "fieldsV1": set,
    });
    if !subresource.is_empty() {
        entry["subresource"] = subresource.into();
    }
    entry
}

fn is_entry(entry: &Value, manager: &str, operation: &str) -> bool {
    entry["manager"] == manager && entry["operation"] == operation
}

fn subresource_of(entry: &Value) -> &str {
    entry["subresource"].as_str().unwrap_or_default()
}

fn set_of(entry: &Value) -> FieldSet {
    entry["fieldsV1"].as_object().cloned().unwrap_or_default()
}

fn take_entries(object: &mut Value) -> Vec<Value> {
    match object["metadata"]["managedFields"].take() {
        Value::Array(entries) => entries,
        _ => Vec::new(),
    }
}

/// Checks the version and the UID that a client wants, and removes what only the API server sets.
fn check_preconditions(object: &mut Value, live: Option<&Value>) -> Result<(), ApiError> {
    let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
    let Some(metadata) = metadata else { return Ok(()) };
    for (key, message) in [
        ("uid", "the UID in the precondition does not match"),
        ("resourceVersion", "the object has been modified"),
    ] {
        let wanted = metadata.remove(key).filter(|wanted| !wanted.is_null());
        if wanted.is_some_and(|wanted| live.is_none_or(|live| live["metadata"][key] != wanted)) {
            return Err(error(409, "Conflict", message));
        }
    }
    for key in ["generation", "creationTimestamp", "deletionTimestamp", "managedFields"] {
        metadata.remove(key);
    }
    Ok(())
}

/// Takes fields with other values away from their managers.
///
/// # Errors
///
/// There are such fields, and the client does not force it.
fn take_fields(
    entries: &mut Vec<Value>,
    now: &FieldSet,
    live: &Value,
    object: &Value,
    force: bool,
) -> Result<(), ApiError> {
    let changed = fields::changed(now, live, object);
    let mut causes = Vec::new();
    for entry in entries.iter_mut() {
        let mut set = set_of(entry);
        let conflicts = fields::common(&set, &changed);
        if conflicts.is_empty() {
            continue;
        }
        let manager = entry["manager"].as_str().unwrap_or_default();
        let message = format!("conflict with {manager:?}");
        causes.extend(
            fields::paths(&conflicts).into_iter().map(|field| Cause { field, message: message.clone() }),
        );
        fields::subtract(&mut set, &conflicts);
        *entry = if set.is_empty() {
            Value::Null
        } else {
            entry["fieldsV1"] = set.into();
            entry.take()
        };
    }
    entries.retain(|entry| !entry.is_null());
    if force || causes.is_empty() {
        return Ok(());
    }
    let message = format!("Apply failed with {} conflicts", causes.len());
    Err(ApiError { causes, ..error(409, "Conflict", &message) })
}

/// Validates an object as far as the tests need it.
fn check_object(id: &ObjectId, live: Option<&Value>, result: &Value) -> Result<(), ApiError> {
    let invalid = |message: &str| Err(error(422, "Invalid", message));
    let moved = |pointer: &str| {
        live.is_some_and(|live| {
            live.pointer(pointer).is_some() && live.pointer(pointer) != result.pointer(pointer)
        })
    };
    if moved("/spec/immutable") {
        return invalid("spec.immutable: Invalid value: field is immutable");
    }
    match (&*id.group, &*id.kind) {
        ("", "PersistentVolumeClaim") if moved("/spec/storageClassName") => {
            invalid("spec: Forbidden: spec is immutable after creation except resources.requests")
        }
        ("apps", "StatefulSet") if moved("/spec/volumeClaimTemplates") => invalid(
            "spec: Forbidden: updates to statefulset spec for fields other than 'replicas' are forbidden",
        ),
        ("", "ConfigMap") => {
            let values = |key: &str| result[key].as_object().into_iter().flatten();
            let size: usize = ["data", "binaryData"]
                .into_iter()
                .flat_map(values)
                .map(|(key, value)| key.len() + value.as_str().map_or(0, str::len))
                .sum();
            if size > MAX_CONFIG_MAP {
                return invalid("[]: Too long: may not be more than 1048576 bytes");
            }
            if values("binaryData").any(|(key, _)| result["data"].get(key).is_some()) {
                return invalid("data: Invalid value: duplicate of key present in binaryData");
            }
            let is_base64 =
                |value: &Value| value.as_str().is_some_and(|value| STANDARD.decode(value).is_ok());
            if values("binaryData").all(|(_, value)| is_base64(value)) {
                Ok(())
            } else {
                Err(error(400, "BadRequest", "illegal base64 data"))
            }
        }
        _ => Ok(()),
    }
}

fn generation_of(id: &ObjectId) -> Generation {
    match &*id.group {
        "scheduling.k8s.io" => Generation::Fixed,
        "apps" | "apiextensions.k8s.io" => Generation::Moves,
        // Custom resources.
        group if group.contains('.') && !group.ends_with(".k8s.io") => Generation::Moves,
        _ => Generation::None,
    }
}

/// Sets `metadata.generation` as the kind has it.
fn set_generation(id: &ObjectId, before: Option<&Value>, object: &mut Value) {
    let kind = generation_of(id);
    if kind == Generation::None {
        return;
    }
    let content = |object: &Value| {
        let parts = object.as_object().into_iter().flatten();
        let parts = parts.filter(|(key, _)| !matches!(&***key, "metadata" | "status"));
        parts.map(|(key, value)| (key.clone(), value.clone())).collect::<Map<_, _>>()
    };
    let generation = match before {
        Some(before) => {
            let generation = before["metadata"]["generation"].as_u64().unwrap_or(1);
            let moves = kind == Generation::Moves && content(before) != content(object);
            generation + u64::from(moves)
        }
        None => 1,
    };
    object["metadata"]["generation"] = generation.into();
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
