//! SelfSubjectReview for `kubectl auth whoami`. The simulator accepts every caller and every impersonation.

use http::{HeaderMap, HeaderName, Method, StatusCode};
use serde_json::{Map, Value, json};

use super::error::StatusError;
use super::fields::section;
use super::request::{ApiRequest, decode};
use super::response::{self, ApiResponse};

/// The user of a request without impersonation.
const AGENT: &str = "system:serviceaccount:simulated:agentk";

const USER: HeaderName = HeaderName::from_static("impersonate-user");
const UID: HeaderName = HeaderName::from_static("impersonate-uid");
const GROUP: HeaderName = HeaderName::from_static("impersonate-group");
const EXTRA: &str = "impersonate-extra-";

pub(crate) async fn review(mut call: ApiRequest) -> Result<ApiResponse, StatusError> {
    if call.request.method() != Method::POST {
        return Err(StatusError::method_not_allowed());
    }
    let mut review = call.object().await?;
    section(&mut review, "status").insert("userInfo".to_owned(), user(call.request.headers()));
    Ok(response::json(StatusCode::CREATED, &review))
}

fn user(headers: &HeaderMap) -> Value {
    let Some(name) = text(headers, &USER) else {
        return json!({
            "username": AGENT,
            "groups": ["system:serviceaccounts", "system:serviceaccounts:simulated", "system:authenticated"],
        });
    };
    let groups = headers.get_all(GROUP).iter().filter_map(|group| group.to_str().ok());
    let groups: Vec<&str> = groups.chain(["system:authenticated"]).collect();
    let mut user = json!({ "username": name, "groups": groups });
    if let Some(uid) = text(headers, &UID) {
        user["uid"] = uid.into();
    }
    let extra = extra(headers);
    if !extra.is_empty() {
        user["extra"] = Value::Object(extra);
    }
    user
}

/// Collects the headers `Impersonate-Extra-<key>`, which may be repeated.
fn extra(headers: &HeaderMap) -> Map<String, Value> {
    let mut extra = Map::new();
    for name in headers.keys() {
        let Some(key) = name.as_str().strip_prefix(EXTRA) else { continue };
        let values: Vec<&str> =
            headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
        extra.insert(decode(key).into_owned(), json!(values));
    }
    extra
}

fn text<'headers>(headers: &'headers HeaderMap, name: &HeaderName) -> Option<&'headers str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}
