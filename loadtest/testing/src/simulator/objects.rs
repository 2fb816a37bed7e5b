//! The verbs list, watch, get, create, replace, patch, apply and delete, and the subresource `scale`.

use std::sync::Arc;

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::simulator::{
    Target, admission, exec,
    patch::{Lists, Operation, apply_json_patch, merge},
    pods,
    request::{self, ApiRequest},
    resources::{DEPLOYMENTS, Resource},
    response::{self, ApiResponse, StatusError},
    selector::{Selector, number, section, text},
    store::{Key, WriteMode},
    view::View,
    watcher, websocket,
};

/// Handles a request for an object, a collection or a subresource.
pub(crate) async fn answer(call: ApiRequest, target: Target) -> Result<ApiResponse, StatusError> {
    let method = call.request.method().clone();
    let Target { resource, namespace, name, subresource } = &target;
    let Some(name) = name else {
        return match method {
            Method::GET | Method::HEAD if call.query.flag("watch") => watcher::start(&call, target),
            Method::GET | Method::HEAD => list(&call, &target),
            Method::POST if resource.namespaced == namespace.is_some() => create(call, target).await,
            _ => Err(StatusError::method_not_allowed()),
        };
    };
    let key = Key::new(resource, namespace.as_deref().unwrap_or_default(), name);
    match (subresource.as_deref(), resource.plural, method) {
        (None, _, Method::GET | Method::HEAD) => get(&call, resource, &key),
        (None, _, Method::PUT) => replace(call, resource, &key).await,
        (None, _, Method::PATCH) => patch(call, &target, &key).await,
        (None, _, Method::DELETE) => delete(call, resource, &key).await,
        (Some("log"), "pods", Method::GET) => pods::log(&call, &key),
        (Some("exec"), "pods", Method::GET | Method::POST) => exec::answer(call, &key),
        (Some("portforward"), "pods", Method::GET | Method::POST) => websocket::port_forward(call, &key),
        (Some("scale"), "deployments", method) => scale(call, method, &key).await,
        (None | Some("log" | "exec" | "portforward"), _, _) => Err(StatusError::method_not_allowed()),
        (Some(_), _, _) => Err(StatusError::no_such_path()),
    }
}

fn list(call: &ApiRequest, target: &Target) -> Result<ApiResponse, StatusError> {
    let selector = Selector::from_query(&call.query)?;
    let limit = call.query.number("limit")?.filter(|limit| *limit > 0);
    let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    let snapshot = call.cluster.store.list(target.resource, target.namespace.as_deref());
    // The continue token is the last returned key; later pages show the current objects.
    let after = call.query.get("continue").filter(|token| !token.is_empty());
    let after = after.map(|token| token.split_once('/').unwrap_or(("", token)));
    let matching: Vec<_> = snapshot
        .objects
        .into_iter()
        .filter(|(key, _)| after.is_none_or(|after| (key.namespace.as_str(), key.name.as_str()) > after))
        .filter(|(_, object)| selector.matches(object))
        .collect();
    let mut metadata = json!({ "resourceVersion": snapshot.revision.to_string() });
    if let Some((last, _)) = matching.get(limit - 1).filter(|_| matching.len() > limit) {
        metadata["continue"] = format!("{}/{}", last.namespace, last.name).into();
        metadata["remainingItemCount"] = (matching.len() - limit).into();
    }
    let objects: Vec<Arc<Value>> = matching.into_iter().take(limit).map(|(_, object)| object).collect();
    Ok(View::of(call).list(target.resource, &metadata, &objects))
}

fn get(call: &ApiRequest, resource: &Resource, key: &Key) -> Result<ApiResponse, StatusError> {
    let object = call.cluster.store.get(key).ok_or_else(|| StatusError::not_found(resource, &key.name))?;
    Ok(View::of(call).one(StatusCode::OK, resource, &object))
}

async fn create(mut call: ApiRequest, target: Target) -> Result<ApiResponse, StatusError> {
    let object = call.object().await?;
    let (_, created) = insert(&call, target.resource, target.namespace.as_deref(), object)?;
    Ok(View::of(&call).one(StatusCode::CREATED, target.resource, &created))
}

fn insert(
    call: &ApiRequest,
    resource: &Resource,
    namespace: Option<&str>,
    object: Value,
) -> Result<(Key, Arc<Value>), StatusError> {
    let store = &call.cluster.store;
    admission::check_namespace(store, namespace)?;
    let (key, object) = admission::create(store, resource, namespace, object)?;
    let created = store.put(&key, call.mode(), |present| match present {
        None => Ok(object),
        Some(_) => Err(StatusError::already_exists(resource, &key.name)),
    })?;
    Ok((key, created))
}

async fn replace(mut call: ApiRequest, resource: &Resource, key: &Key) -> Result<ApiResponse, StatusError> {
    let object = call.object().await?;
    let replaced = call.cluster.store.put(key, call.mode(), |present| {
        let present = present.ok_or_else(|| StatusError::not_found(resource, &key.name))?;
        admission::update(resource, present, object)
    })?;
    Ok(View::of(&call).one(StatusCode::OK, resource, &replaced))
}

/// The media types of patches.
enum Patch {
    Json(Vec<Operation>),
    Merge(Value, Lists),
    /// Server-side apply, without field ownership: fields that a later configuration omits stay.
    Apply(Value),
}

impl Patch {
    async fn read(call: &mut ApiRequest) -> Result<Self, StatusError> {
        let body = call.body().await?;
        match call.content_type().as_str() {
            "application/json-patch+json" => {
                let operations = serde_json::from_value(request::json(&body)?);
                let operations = operations.map_err(|error| StatusError::bad_request(error.to_string()))?;
                Ok(Self::Json(operations))
            }
            "application/merge-patch+json" => Ok(Self::Merge(object(request::json(&body)?)?, Lists::Replace)),
            "application/strategic-merge-patch+json" => {
                Ok(Self::Merge(object(request::json(&body)?)?, Lists::MergeByKey))
            }
            "application/apply-patch+yaml" => Ok(Self::Apply(object(request::yaml(&body)?)?)),
            found => Err(StatusError::unsupported_media_type(found, PATCH_TYPES)),
        }
    }

    fn apply(self, present: &Value) -> Result<Value, StatusError> {
        let mut patched = present.clone();
        match self {
            Self::Json(operations) => apply_json_patch(&mut patched, operations)?,
            Self::Merge(patch, lists) => merge(&mut patched, patch, lists),
            Self::Apply(configuration) => merge(&mut patched, configuration, Lists::MergeByKey),
        }
        Ok(patched)
    }
}

const PATCH_TYPES: &str = "application/json-patch+json, application/merge-patch+json, \
    application/strategic-merge-patch+json and application/apply-patch+yaml";

fn object(value: Value) -> Result<Value, StatusError> {
    if value.is_object() { Ok(value) } else { Err(StatusError::bad_request("the patch is not an object")) }
}

async fn patch(mut call: ApiRequest, target: &Target, key: &Key) -> Result<ApiResponse, StatusError> {
    let resource = target.resource;
    let patch = Patch::read(&mut call).await?;
    let patch = match patch {
        Patch::Apply(configuration) if call.cluster.store.get(key).is_none() => {
            if text(&configuration, "/metadata/name") != key.name {
                return Err(StatusError::bad_request("the name in the path is not the name in the body"));
            }
            let (_, created) = insert(&call, resource, target.namespace.as_deref(), configuration)?;
            return Ok(View::of(&call).one(StatusCode::CREATED, resource, &created));
        }
        patch => patch,
    };
    let patched = call.cluster.store.put(key, call.mode(), |present| {
        let present = present.ok_or_else(|| StatusError::not_found(resource, &key.name))?;
        admission::update(resource, present, patch.apply(present)?)
    })?;
    Ok(View::of(&call).one(StatusCode::OK, resource, &patched))
}

async fn delete(mut call: ApiRequest, resource: &Resource, key: &Key) -> Result<ApiResponse, StatusError> {
    let body = call.body().await?;
    let options = if body.is_empty() { Value::Null } else { request::yaml(&body)? };
    let policy = call.query.get("propagationPolicy").unwrap_or_else(|| text(&options, "/propagationPolicy"));
    if policy == "Orphan" || call.query.flag("orphanDependents") {
        return Err(StatusError::bad_request(
            "the simulator cannot delete an object and keep its dependents",
        ));
    }
    let protected = ["default", "kube-system"].contains(&key.name.as_str());
    if resource.plural == "namespaces" && protected {
        return Err(StatusError::forbidden(format!("the namespace \"{}\" may not be deleted", key.name)));
    }
    let dry = options["dryRun"].as_array().is_some_and(|stages| stages.iter().any(|stage| stage == "All"));
    let mode = if dry { WriteMode::DryRun } else { call.mode() };
    let store = &call.cluster.store;
    let removed = store.remove(key, mode, |present| {
        for field in ["uid", "resourceVersion"] {
            let wanted = &options["preconditions"][field];
            if !wanted.is_null() && *wanted != present["metadata"][field] {
                let why = format!("the precondition on its {field} does not hold");
                return Err(StatusError::conflict(resource, &key.name, &why));
            }
        }
        Ok(())
    })?;
    let removed = removed.ok_or_else(|| StatusError::not_found(resource, &key.name))?;
    if resource.plural == "namespaces" && mode == WriteMode::Commit {
        store.clear_namespace(&key.name);
    }
    Ok(response::json(
        StatusCode::OK,
        &json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Success",
            "details": {
                "name": key.name,
                "group": resource.group,
                "kind": resource.plural,
                "uid": removed["metadata"]["uid"],
            },
        }),
    ))
}

/// `deployments/scale`: reads or changes the number of replicas.
async fn scale(mut call: ApiRequest, method: Method, key: &Key) -> Result<ApiResponse, StatusError> {
    let patch = match method {
        Method::GET | Method::HEAD => {
            let deployment = call.cluster.store.get(key);
            let deployment = deployment.ok_or_else(|| StatusError::not_found(&DEPLOYMENTS, &key.name))?;
            return Ok(response::json(StatusCode::OK, &scale_object(&deployment)));
        }
        // A replacement changes the same two fields as a patch: the revision and the replicas.
        Method::PUT => call.object().await?,
        Method::PATCH => match call.content_type().as_str() {
            "application/merge-patch+json" | "application/strategic-merge-patch+json" => {
                request::json(&call.body().await?)?
            }
            found => return Err(StatusError::unsupported_media_type(found, "merge patches")),
        },
        _ => return Err(StatusError::method_not_allowed()),
    };
    let scaled = call.cluster.store.put(key, call.mode(), |present| {
        let present = present.ok_or_else(|| StatusError::not_found(&DEPLOYMENTS, &key.name))?;
        let mut wanted = scale_object(present);
        merge(&mut wanted, patch, Lists::Replace);
        let mut deployment = present.clone();
        // Admission refuses a value that is no number.
        let replicas = number(&wanted, "/spec/replicas").unwrap_or(-1);
        section(&mut deployment, "spec").insert("replicas".to_owned(), replicas.into());
        let revision = wanted["metadata"]["resourceVersion"].clone();
        section(&mut deployment, "metadata").insert("resourceVersion".to_owned(), revision);
        admission::update(&DEPLOYMENTS, present, deployment)
    })?;
    Ok(response::json(StatusCode::OK, &scale_object(&scaled)))
}

fn scale_object(deployment: &Value) -> Value {
    let labels = deployment["spec"]["selector"]["matchLabels"].as_object();
    let terms = labels.into_iter().flatten().map(|(key, value)| {
        let value = value.as_str().unwrap_or_default();
        format!("{key}={value}")
    });
    let metadata = &deployment["metadata"];
    json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
            "creationTimestamp": metadata["creationTimestamp"],
        },
        "spec": { "replicas": deployment["spec"]["replicas"] },
        "status": {
            "replicas": number(deployment, "/status/replicas").unwrap_or_default(),
            "selector": terms.collect::<Vec<_>>().join(","),
        },
    })
}
