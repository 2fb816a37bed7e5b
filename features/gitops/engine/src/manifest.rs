//! Objects as Git has them.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use kube_cluster::GroupKind;
use proto::gitops::{ObjectError, ObjectId};
use serde_json::Value;

/// A file of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// The path in the repository.
    pub path: String,
    /// The content.
    pub content: Bytes,
}

/// The place of an object in Git.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceLine {
    /// The path of the file.
    pub file: Arc<str>,
    /// The first line of the document, from 1.
    pub line: u64,
}

/// An object as Git has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// The object. Its namespace is empty until the scope of its kind is known.
    pub id: ObjectId,
    /// The version of the API, without the group.
    pub version: String,
    /// The object as JSON.
    pub object: Value,
    /// The place in Git.
    pub source: SourceLine,
}

/// Returns the place of the specification of pods in objects of Kubernetes that have one, as a JSON pointer.
pub(crate) fn pod_spec(id: &ObjectId) -> Option<&'static str> {
    match (&*id.group, &*id.kind) {
        ("", "Pod") => Some("/spec"),
        ("", "ReplicationController")
        | ("apps", "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet")
        | ("batch", "Job") => Some("/spec/template/spec"),
        ("batch", "CronJob") => Some("/spec/jobTemplate/spec/template/spec"),
        _ => None,
    }
}

impl Manifest {
    /// Returns the kind.
    pub fn group_kind(&self) -> GroupKind {
        GroupKind::of(&self.id)
    }

    /// Returns the value of an annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.object.get("metadata")?.get("annotations")?.get(key)?.as_str()
    }

    /// Returns an error about this object.
    pub fn error(&self, message: impl fmt::Display) -> ObjectError {
        let message = message.to_string();
        ObjectError { object: Some(self.id.clone()), file: self.source.to_string(), message }
    }

    /// Sets a label, which the object gets in the cluster.
    pub fn set_label(&mut self, key: &str, value: &str) {
        self.object["metadata"]["labels"][key] = Value::from(value);
    }
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}
