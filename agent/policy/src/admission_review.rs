//! The questions of the API server about writes (`admission.k8s.io/v1`), as far as a policy reads them.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};

/// The `apiVersion` of questions and answers.
pub const API_VERSION: &str = "admission.k8s.io/v1";

/// The most groups of a user, and the most labels of an object. Each takes memory besides its bytes, which no limit of bytes counts.
const MAX_ENTRIES: usize = 10_000;

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
    #[serde(default, deserialize_with = "groups")]
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
    #[serde(default, deserialize_with = "labels")]
    pub(crate) labels: BTreeMap<String, String>,
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

/// Reads at most [`MAX_ENTRIES`] groups.
fn groups<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    struct Groups;

    impl<'de> Visitor<'de> for Groups {
        type Value = Vec<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of groups")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut groups = Vec::new();
            while let Some(group) = list.next_element()? {
                if groups.len() == MAX_ENTRIES {
                    return Err(A::Error::custom(format_args!("a user has more than {MAX_ENTRIES} groups")));
                }
                groups.push(group);
            }
            Ok(groups)
        }
    }

    deserializer.deserialize_seq(Groups)
}

/// Reads at most [`MAX_ENTRIES`] labels.
fn labels<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    struct Labels;

    impl<'de> Visitor<'de> for Labels {
        type Value = BTreeMap<String, String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("labels")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut labels = BTreeMap::new();
            while let Some((key, value)) = map.next_entry()? {
                if labels.len() == MAX_ENTRIES {
                    return Err(A::Error::custom(format_args!(
                        "an object has more than {MAX_ENTRIES} labels"
                    )));
                }
                labels.insert(key, value);
            }
            Ok(labels)
        }
    }

    deserializer.deserialize_map(Labels)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parse(groups: usize, labels: usize) -> Result<AdmissionReview, String> {
        let labels: serde_json::Map<String, Value> =
            (0..labels).map(|label| (label.to_string(), "".into())).collect();
        let review = json!({
            "apiVersion": API_VERSION,
            "request": {
                "uid": "1",
                "userInfo": {"groups": vec![""; groups]},
                "object": {"metadata": {"labels": labels}},
            },
        });
        AdmissionReview::parse(review.to_string().as_bytes())
    }

    #[test]
    fn question_has_a_bounded_number_of_groups_and_labels() {
        let AdmissionReview { request, .. } = parse(MAX_ENTRIES, MAX_ENTRIES).unwrap();
        assert_eq!(request.user_info.groups.len(), MAX_ENTRIES);
        assert_eq!(request.object.unwrap().metadata.labels.len(), MAX_ENTRIES);
        let error = parse(MAX_ENTRIES + 1, 0).unwrap_err();
        assert!(error.starts_with("a user has more than 10000 groups"), "{error}");
        let error = parse(0, MAX_ENTRIES + 1).unwrap_err();
        assert!(error.starts_with("an object has more than 10000 labels"), "{error}");
    }
}
