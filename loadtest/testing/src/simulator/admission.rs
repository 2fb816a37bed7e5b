//! Defaults and validation of objects before they are stored.

use serde_json::{Value, json};

use crate::simulator::{
    clock, pods,
    resources::{NAMESPACES, Resource},
    response::StatusError,
    selector::{fields, items, number, section, text},
    store::{Key, Store},
};

/// The maximum of `spec.replicas`: each replica is an object in memory.
pub(crate) const MAX_REPLICAS: i64 = 1000;

/// Sets the defaults of a new object in `namespace`, and returns its key.
pub(crate) fn create(
    store: &Store,
    resource: &Resource,
    namespace: Option<&str>,
    mut object: Value,
) -> Result<(Key, Value), StatusError> {
    check_type(resource, &object)?;
    let metadata = section(&mut object, "metadata");
    let serial = store.serial();
    if !metadata.contains_key("name")
        && let Some(prefix) = metadata.get("generateName").and_then(Value::as_str)
    {
        let name = format!("{prefix}{}", pods::suffix(serial));
        metadata.insert("name".to_owned(), name.into());
    }
    for (field, value) in
        [("uid", format!("00000000-0000-4000-8000-{serial:012x}")), ("creationTimestamp", clock::timestamp())]
    {
        metadata.insert(field.to_owned(), value.into());
    }
    metadata.remove("managedFields");
    metadata.remove("resourceVersion");
    if fields(&mut object).contains_key("spec") {
        section(&mut object, "metadata").insert("generation".to_owned(), 1.into());
    }
    default(resource, &mut object, serial);
    let name = text(&object, "/metadata/name").to_owned();
    place(resource, namespace, &name, &mut object)?;
    check(resource, &name, &object)?;
    let key = Key::new(resource, namespace.unwrap_or_default(), &name);
    Ok((key, object))
}

/// Sets the fields of a new version of `old` that a caller cannot change.
pub(crate) fn update(resource: &Resource, old: &Value, mut object: Value) -> Result<Value, StatusError> {
    check_type(resource, &object)?;
    let name = text(old, "/metadata/name");
    let metadata = section(&mut object, "metadata");
    let revision = metadata.get("resourceVersion").filter(|revision| !revision.is_null());
    if revision.is_some_and(|revision| *revision != "" && *revision != old["metadata"]["resourceVersion"]) {
        let why =
            "the object has been modified; please apply your changes to the latest version and try again";
        return Err(StatusError::conflict(resource, name, why));
    }
    let uid = metadata.get("uid").filter(|uid| !uid.is_null());
    if uid.is_some_and(|uid| *uid != "" && *uid != old["metadata"]["uid"]) {
        return Err(StatusError::conflict(resource, name, "it has another uid"));
    }
    if metadata.get("name").is_some_and(|new| *new != name) {
        return Err(StatusError::bad_request(format!("the name of the object is not \"{name}\"")));
    }
    metadata.remove("managedFields");
    for kept in ["name", "uid", "creationTimestamp", "generation"] {
        match old["metadata"].get(kept) {
            Some(value) => metadata.insert(kept.to_owned(), value.clone()),
            None => metadata.remove(kept),
        };
    }
    // Only the controller writes the status: a caller may write back an old one.
    match old.get("status") {
        Some(status) => fields(&mut object).insert("status".to_owned(), status.clone()),
        None => fields(&mut object).remove("status"),
    };
    if object["spec"] != old["spec"] {
        let generation = number(old, "/metadata/generation").unwrap_or_default() + 1;
        section(&mut object, "metadata").insert("generation".to_owned(), generation.into());
    }
    let namespace = old["metadata"]["namespace"].as_str();
    place(resource, namespace, name, &mut object)?;
    check(resource, name, &object)?;
    Ok(object)
}

fn check_type(resource: &Resource, object: &Value) -> Result<(), StatusError> {
    let (api_version, kind) = (text(object, "/apiVersion"), text(object, "/kind"));
    if (api_version, kind) != (resource.api_version().as_str(), resource.kind) {
        let wanted = format!("apiVersion \"{}\" and kind \"{}\"", resource.api_version(), resource.kind);
        return Err(StatusError::bad_request(format!("the object is not of {wanted}")));
    }
    Ok(())
}

/// Sets the namespace of the object to that of the path, or refuses another one.
fn place(
    resource: &Resource,
    namespace: Option<&str>,
    name: &str,
    object: &mut Value,
) -> Result<(), StatusError> {
    let metadata = section(object, "metadata");
    let Some(namespace) = namespace else {
        metadata.remove("namespace");
        return Ok(());
    };
    let given = metadata.get("namespace").and_then(Value::as_str).unwrap_or_default();
    if !given.is_empty() && given != namespace {
        let why = format!("does not match the namespace of the request, \"{namespace}\"");
        return Err(StatusError::invalid(resource, name, "metadata.namespace", &why));
    }
    metadata.insert("namespace".to_owned(), namespace.into());
    Ok(())
}

/// Validates the fields that the simulator reads.
fn check(resource: &Resource, name: &str, object: &Value) -> Result<(), StatusError> {
    let invalid = |field, why: &str| Err(StatusError::invalid(resource, name, field, why));
    let label = |part: &str| {
        let edges = part.starts_with('-') || part.ends_with('-');
        let letters = part.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'));
        !part.is_empty() && !edges && letters
    };
    if name.len() > 253 || !name.split('.').all(label) {
        return invalid("metadata.name", "must be lower case letters, digits, '-' and '.'");
    }
    for field in ["labels", "annotations"] {
        let texts = match &object["metadata"][field] {
            Value::Null => true,
            Value::Object(map) => map.values().all(Value::is_string),
            _ => false,
        };
        if !texts {
            return Err(StatusError::bad_request(format!("metadata.{field} must map text to text")));
        }
    }
    match resource.plural {
        "pods" if items(object, "/spec/containers").is_empty() => {
            invalid("spec.containers", "a pod needs a container")
        }
        "deployments" => {
            let replicas = number(object, "/spec/replicas").unwrap_or(-1);
            if !(0..=MAX_REPLICAS).contains(&replicas) {
                let why = format!("must be from 0 to {MAX_REPLICAS} in the simulator");
                return invalid("spec.replicas", &why);
            }
            if items(object, "/spec/template/spec/containers").is_empty() {
                return invalid("spec.template.spec.containers", "a pod needs a container");
            }
            let labels = &object["spec"]["template"]["metadata"]["labels"];
            let selector = object["spec"]["selector"]["matchLabels"].as_object();
            let selected = |selector: &serde_json::Map<String, Value>| {
                !selector.is_empty() && selector.iter().all(|(key, value)| labels[key.as_str()] == *value)
            };
            if !selector.is_some_and(selected) {
                return invalid("spec.selector", "its matchLabels must be among the labels of the template");
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Sets the fields that a real server sets in new objects of a kind.
fn default(resource: &Resource, object: &mut Value, serial: u64) {
    match resource.plural {
        "namespaces" => {
            let name = object["metadata"]["name"].clone();
            let labels = section(object, "metadata").entry("labels").or_insert_with(|| json!({}));
            fields(labels).insert("kubernetes.io/metadata.name".to_owned(), name);
            section(object, "spec").insert("finalizers".to_owned(), json!(["kubernetes"]));
            section(object, "status").insert("phase".to_owned(), "Active".into());
        }
        "deployments" => {
            fields(object).remove("status");
            let spec = section(object, "spec");
            spec.entry("replicas").or_insert_with(|| 1.into());
            spec.entry("strategy").or_insert_with(|| {
                json!({
                    "type": "RollingUpdate",
                    "rollingUpdate": { "maxSurge": "100%", "maxUnavailable": 0 },
                })
            });
        }
        "pods" => pods::schedule(object),
        "services" => {
            let spec = section(object, "spec");
            spec.entry("type").or_insert_with(|| "ClusterIP".into());
            let address = format!("10.96.{}.{}", serial / 250 % 250, serial % 250 + 1);
            spec.entry("clusterIP").or_insert_with(|| address.into());
        }
        _ => {}
    }
}

/// Refuses an object in a namespace that does not exist.
pub(crate) fn check_namespace(store: &Store, namespace: Option<&str>) -> Result<(), StatusError> {
    let Some(namespace) = namespace else { return Ok(()) };
    match store.get(&Key::new(&NAMESPACES, "", namespace)) {
        Some(_) => Ok(()),
        None => Err(StatusError::not_found(&NAMESPACES, namespace)),
    }
}
