//! `deployments/scale`: the number of replicas as an object.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::admission;
use super::error::StatusError;
use super::fields::{number, section};
use super::merge::{Lists, merge};
use super::request::{self, ApiRequest};
use super::resources::DEPLOYMENTS;
use super::response::{self, ApiResponse};
use super::store::Key;

pub(crate) async fn answer(
    mut call: ApiRequest,
    method: Method,
    key: &Key,
) -> Result<ApiResponse, StatusError> {
    let patch = match method {
        Method::GET | Method::HEAD => {
            let deployment = call.cluster.store.get(key);
            let deployment = deployment.ok_or_else(|| StatusError::not_found(&DEPLOYMENTS, &key.name))?;
            return Ok(response::json(StatusCode::OK, &scale(&deployment)));
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
        let mut wanted = scale(present);
        merge(&mut wanted, patch, Lists::Replace);
        let mut deployment = present.clone();
        // Admission refuses a value that is no number.
        let replicas = number(&wanted, "/spec/replicas").unwrap_or(-1);
        section(&mut deployment, "spec").insert("replicas".to_owned(), replicas.into());
        let revision = wanted["metadata"]["resourceVersion"].clone();
        section(&mut deployment, "metadata").insert("resourceVersion".to_owned(), revision);
        admission::update(&DEPLOYMENTS, present, deployment)
    })?;
    Ok(response::json(StatusCode::OK, &scale(&scaled)))
}

fn scale(deployment: &Value) -> Value {
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
