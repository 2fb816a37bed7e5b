//! The requests of the engine to a cluster.

use std::{fmt, time::Duration};

use proto::{agent_configuration::gitops::PropagationPolicy, gitops::ObjectId};
use serde_json::Value;

use crate::{GroupKind, Kind};

/// A cluster. Every call is one request or a list in pages; the engine repeats what may be repeated.
pub trait Cluster: Clone + Send + Sync + 'static {
    /// Looks a kind up in this version or in the preferred one. The cluster may remember kinds.
    fn resolve(
        &self,
        kind: &GroupKind,
        version: Option<&str>,
    ) -> impl Future<Output = Result<KindLookup, ApiError>> + Send;

    /// Returns the kinds that can be listed, in their preferred versions, and the API groups whose kinds are not known now.
    fn listable_kinds(&self) -> impl Future<Output = Result<(Vec<Kind>, Vec<String>), ApiError>> + Send;

    /// Forgets the kinds, because a definition was applied.
    fn forget_kinds(&self);

    /// Returns an object.
    fn get(&self, kind: &Kind, id: &ObjectId)
    -> impl Future<Output = Result<Option<Value>, ApiError>> + Send;

    /// Returns the objects with a label, or only their metadata. `namespace` is empty for all namespaces.
    fn list(
        &self,
        kind: &Kind,
        namespace: &str,
        selector: &str,
        only_metadata: bool,
    ) -> impl Future<Output = Result<Vec<Value>, ApiError>> + Send;

    /// Returns a page of the objects with a label: of their metadata, the name, the UID, the version, the owners, the time of the
    /// deletion, and the labels and annotations whose keys `is_read` selects. The size of a page is limited, also if others have made the
    /// objects. `namespace` is empty for all namespaces.
    fn metadata_page(
        &self,
        kind: &Kind,
        namespace: &str,
        selector: &str,
        is_read: fn(&str) -> bool,
        token: Option<&str>,
    ) -> impl Future<Output = Result<MetadataPage, ApiError>> + Send;

    /// Applies an object on the server.
    fn apply(
        &self,
        kind: &Kind,
        id: &ObjectId,
        object: &Value,
        options: ApplyOptions<'_>,
    ) -> impl Future<Output = Result<Applied, ApiError>> + Send;

    /// Tries to create an object, without a write. An object with the same name may exist: it does not count.
    fn try_create(
        &self,
        kind: &Kind,
        id: &ObjectId,
        object: &Value,
    ) -> impl Future<Output = Result<(), ApiError>> + Send;

    /// Changes an object with a JSON patch (RFC 6902), and returns it.
    fn patch(
        &self,
        kind: &Kind,
        id: &ObjectId,
        patch: &Value,
    ) -> impl Future<Output = Result<Value, ApiError>> + Send;

    /// Deletes an object, if it still has this UID, and this resource version if there is one. Returns whether it is certainly gone.
    fn delete(
        &self,
        kind: &Kind,
        id: &ObjectId,
        uid: &str,
        resource_version: Option<&str>,
        propagation: PropagationPolicy,
    ) -> impl Future<Output = Result<bool, ApiError>> + Send;
}

/// The result of the lookup of a kind in a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KindLookup {
    /// The cluster has the kind.
    Found(Kind),
    /// The cluster does not have the kind.
    Missing,
    /// The server of its API group, such as an aggregated API, does not respond. The kind may exist.
    Unavailable,
}

/// A part of a list of metadata.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MetadataPage {
    /// The objects.
    pub objects: Vec<Value>,
    /// Selects the next page, if there is one.
    pub next: Option<String>,
}

/// The options of an apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApplyOptions<'a> {
    /// The field manager.
    pub manager: &'a str,
    /// Nothing is written.
    pub dry_run: bool,
    /// Fields of other managers are taken over.
    pub force: bool,
}

/// The result of an apply.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    /// The object did not exist.
    pub created: bool,
    /// The object.
    pub object: Value,
}

impl KindLookup {
    /// Returns the kind, if the cluster has it.
    pub fn found(self) -> Option<Kind> {
        match self {
            Self::Found(kind) => Some(kind),
            Self::Missing | Self::Unavailable => None,
        }
    }
}

/// A field that the API server refuses.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default)]
pub struct Cause {
    /// The path of the field, such as `spec.selector`.
    pub field: String,
    /// The reason. It may contain the value.
    pub message: String,
}

/// The API server did not do what it was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiError {
    /// The status; 0 if there was no response.
    pub status: u16,
    /// The reason for programs, such as `Invalid`.
    pub reason: String,
    /// The words of the API server. They may contain values of the object.
    pub message: String,
    /// The fields that are wrong, each with the words of the API server.
    pub causes: Vec<Cause>,
    /// The time after which the API server wants to be asked again.
    pub retry_after: Option<Duration>,
}

impl ApiError {
    /// Returns whether the same request may succeed in a moment: too many requests, an error of the server, no response. What the API
    /// server or a webhook refuses for good may have the status 500, too, and a webhook that has not answered in time will not do so at once.
    pub fn is_transient(&self) -> bool {
        let has = |words: &[&str]| words.iter().any(|words| self.message.contains(words));
        let is_final = has(&["failed to create typed patch object", "denied the request"])
            || (has(&["failed calling webhook"]) && has(&["deadline exceeded", "imeout"]));
        self.status == 0 || self.status == 429 || (self.status >= 500 && self.status != 501 && !is_final)
    }

    /// Returns whether the object has another version or another UID than the request says. A conflict with another field manager has
    /// causes.
    pub fn is_stale(&self) -> bool {
        self.status == 409 && self.causes.is_empty()
    }

    /// Returns whether fields that cannot change are all that is wrong, so that a new object may be accepted. Values of fields are in the
    /// messages, so that only a try to create it shows that.
    pub fn is_immutable(&self) -> bool {
        let immutable = |message: &str| {
            ["immutable", "Forbidden: updates to", "may not change"]
                .iter()
                .any(|words| message.contains(words))
        };
        self.status == 422
            && match &*self.causes {
                [] => immutable(&self.message),
                causes => causes.iter().all(|cause| immutable(&cause.message)),
            }
    }

    /// Describes fields that cannot change, without their values, which may be longer than a status.
    pub fn describe_immutable(&self) -> String {
        let reason = |message: &str| match message.strip_prefix("Invalid value: ") {
            Some(value) => value.rsplit_once(": ").map_or(value, |(_, reason)| reason).to_owned(),
            None => message.to_owned(),
        };
        let causes: Vec<String> =
            self.causes.iter().map(|cause| format!("{}: {}", cause.field, reason(&cause.message))).collect();
        if causes.is_empty() { self.to_string() } else { causes.join("; ") }
    }

    /// Describes the error. Nothing of a Secret is in it but the names of fields.
    pub fn describe(&self, id: &ObjectId) -> String {
        if id.group.is_empty() && id.kind == "Secret" {
            let reason = if self.reason.is_empty() { "no reason" } else { &self.reason };
            let fields: Vec<&str> =
                self.causes.iter().map(|cause| &*cause.field).filter(|field| !field.is_empty()).collect();
            let fields = if fields.is_empty() { String::new() } else { format!(": {}", fields.join(", ")) };
            return format!(
                "the API server refused the Secret ({}, {reason}{fields}); its words are not shown, because they may contain values",
                self.status
            );
        }
        self.to_string()
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.status, &*self.message) {
            (0, message) => f.write_str(message),
            (status, "") => write!(f, "the API server answered {status}"),
            (status, message) => write!(f, "{message} ({status})"),
        }
    }
}

impl std::error::Error for ApiError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_for_good_is_not_repeated() {
        let error = |status: u16, message: &str| ApiError {
            status,
            message: message.to_owned(),
            ..ApiError::default()
        };
        for message in [
            "failed to create typed patch object (shop/web; apps/v1, Kind=Deployment): .spec.replica: field not declared in schema",
            "admission webhook \"policy.example.com\" denied the request: no",
            "Internal error occurred: failed calling webhook \"a.b\": failed to call webhook: Post \"https://c\": context deadline exceeded",
        ] {
            assert!(!error(500, message).is_transient(), "{message}");
        }
        let restarts = "Internal error occurred: failed calling webhook \"a.b\": failed to call webhook: connection refused";
        for transient in
            [error(500, "etcdserver: leader changed"), error(500, restarts), error(503, ""), error(429, "")]
        {
            assert!(transient.is_transient(), "{transient}");
        }
    }

    #[test]
    fn reason_of_an_immutable_field_is_not_behind_its_value() {
        let value = "x".repeat(2000);
        let cause = |field: &str, message: String| Cause { field: field.to_owned(), message };
        let causes = vec![
            cause(
                "spec.selector",
                format!("Invalid value: {{\"matchLabels\":{{\"app\":\"{value}: a\"}}}}: field is immutable"),
            ),
            cause(
                "spec",
                "Forbidden: updates to statefulset spec for fields other than 'replicas' are forbidden"
                    .to_owned(),
            ),
        ];
        let error = ApiError { status: 422, causes, ..ApiError::default() };
        let expected = "spec.selector: field is immutable; spec: Forbidden: updates to statefulset spec for fields other than 'replicas' are \
                        forbidden";
        assert_eq!(error.describe_immutable(), expected);
        assert_eq!(
            ApiError { causes: Vec::new(), ..error }.describe_immutable(),
            "the API server answered 422"
        );
    }

    #[test]
    fn refusal_is_about_immutable_fields_if_all_causes_are() {
        let error = |status: u16, message: &str, causes: &[&str]| {
            let cause = |message: &&str| Cause { field: "spec".to_owned(), message: (*message).to_owned() };
            let causes = causes.iter().map(cause).collect();
            ApiError { status, message: message.to_owned(), causes, ..ApiError::default() }
        };
        let immutable = "Invalid value: {\"app\": \"web\"}: field is immutable";
        let stateful_set =
            "Forbidden: updates to statefulset spec for fields other than 'replicas' are forbidden";
        assert!(error(422, "is invalid", &[immutable]).is_immutable());
        assert!(error(422, "is invalid", &[immutable, stateful_set]).is_immutable());
        assert!(error(422, "spec.clusterIP: Invalid value: may not change once set", &[]).is_immutable());
        assert!(
            !error(422, "is invalid", &[immutable, "Invalid value: -1: must be non-negative"]).is_immutable()
        );
        assert!(!error(422, "image is required", &[]).is_immutable());
        assert!(!error(403, immutable, &[]).is_immutable(), "a webhook may say so");
    }
}
