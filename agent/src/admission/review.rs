//! The messages between the API server and an admission webhook (`admission.k8s.io/v1`), as far as a policy reads them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The `apiVersion` of the messages.
const API_VERSION: &str = "admission.k8s.io/v1";
/// The `kind` of the messages.
const KIND: &str = "AdmissionReview";

/// A question of the API server.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AdmissionReview {
    api_version: String,
    /// The request that the API server reviews.
    pub request: AdmissionRequest,
}

/// A request that the API server has authorized, and reviews before it is carried out.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AdmissionRequest {
    /// The id of the question, which its answer repeats.
    pub uid: String,
    /// What the request does.
    #[serde(default)]
    pub operation: Operation,
    /// The resource, which may have another group than that of the request.
    #[serde(default)]
    pub resource: Resource,
    /// The resource as it was requested.
    pub request_resource: Option<Resource>,
    /// The subresource; empty without one.
    #[serde(default)]
    pub sub_resource: String,
    /// The namespace; empty for cluster-scoped resources.
    #[serde(default)]
    pub namespace: String,
    /// The name; empty for a collection.
    #[serde(default)]
    pub name: String,
    /// The user.
    #[serde(default)]
    pub user_info: UserInfo,
    /// The new object, if there is one.
    pub object: Option<ReviewedObject>,
}

/// What a request does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    /// It creates an object, or the contents of a subresource.
    #[default]
    Create,
    /// It changes an object.
    Update,
    /// It deletes one or more objects.
    Delete,
    /// It opens a connection, such as exec.
    Connect,
}

/// A resource without its version.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Resource {
    /// The API group; empty for the core group.
    pub group: String,
    /// The name in the plural.
    pub resource: String,
}

/// A user.
#[derive(Debug, Default, Deserialize)]
pub struct UserInfo {
    /// The name.
    #[serde(default)]
    pub username: String,
    /// The groups, also those that the API server has added.
    #[serde(default)]
    pub groups: Vec<String>,
}

/// An object, as far as rules about objects read it.
#[derive(Debug, Default, Deserialize)]
pub struct ReviewedObject {
    #[serde(default)]
    pub(crate) metadata: ObjectMetadata,
}

/// The metadata of an object.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct ObjectMetadata {
    #[serde(default)]
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) labels: BTreeMap<String, String>,
}

/// The answer to a question.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AdmissionAnswer<'a> {
    api_version: &'static str,
    kind: &'static str,
    response: AdmissionResponse<'a>,
}

#[derive(Debug, Serialize)]
struct AdmissionResponse<'a> {
    uid: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status<'a>>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    warnings: &'a [String],
}

#[derive(Debug, Serialize)]
struct Status<'a> {
    code: u16,
    reason: &'static str,
    message: &'a str,
}

impl AdmissionReview {
    /// Parses a question.
    ///
    /// # Errors
    ///
    /// The text is not a question of this version.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let review: Self = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        match review.api_version.as_str() {
            API_VERSION => Ok(review),
            other => Err(format!("apiVersion is {other:?}: only {API_VERSION} is supported")),
        }
    }
}

impl AdmissionRequest {
    /// Returns the resource as it was requested.
    pub(crate) fn requested(&self) -> &Resource {
        self.request_resource.as_ref().unwrap_or(&self.resource)
    }
}

impl<'a> AdmissionAnswer<'a> {
    /// Returns an answer that lets the request pass, with these warnings for its user.
    pub(super) fn allowed(uid: &'a str, warnings: &'a [String]) -> Self {
        Self::new(AdmissionResponse { uid, allowed: true, status: None, warnings })
    }

    /// Returns an answer that refuses the request.
    pub(super) fn refused(uid: &'a str, message: &'a str) -> Self {
        let status = Some(Status { code: 403, reason: "Forbidden", message });
        Self::new(AdmissionResponse { uid, allowed: false, status, warnings: &[] })
    }

    fn new(response: AdmissionResponse<'a>) -> Self {
        Self { api_version: API_VERSION, kind: KIND, response }
    }
}
