//! The questions of the API server about writes (`admission.k8s.io/v1`), as far as a policy reads them.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The `apiVersion` of questions and answers.
pub(crate) const API_VERSION: &str = "admission.k8s.io/v1";

/// A question of the API server.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AdmissionReview {
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
    /// The effect of the request.
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

/// The effect of a request.
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

impl AdmissionReview {
    /// Parses a question.
    ///
    /// # Errors
    ///
    /// The text is not a question of this version.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, String> {
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
