//! The changes that a sync would make in a cluster, before anything is written.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, SeqAccess, Visitor},
};
use serde_json::Value;

use super::{CommitInfo, ObjectError, ObjectId};
use crate::{agent_configuration::gitops::GitRef, graph::ApplicationDescriptor};

/// The most files of one sync or diff.
pub const MAX_FILES: usize = 20_000;

/// The body of a request for a diff. An empty object is the project as it is configured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DiffRequest {
    /// Another version of the repository.
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    pub reference: Option<GitRef>,
    /// Another directory of the repository, instead of the paths of the project.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// Manifests, instead of those of the repository. They are a part of the project: nothing counts as deleted.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "bounded_files")]
    pub files: Option<Vec<ManifestFile>>,
}

/// Reads at most [`MAX_FILES`] files. A file takes memory besides its content, which counts in no limit of bytes.
fn bounded_files<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<ManifestFile>>, D::Error> {
    struct Files;

    impl<'de> Visitor<'de> for Files {
        type Value = Option<Vec<ManifestFile>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of files")
        }

        fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut files = Vec::new();
            while let Some(file) = list.next_element()? {
                if files.len() == MAX_FILES {
                    return Err(de::Error::custom(format_args!("there are more than {MAX_FILES} files")));
                }
                files.push(file);
            }
            Ok(Some(files))
        }
    }

    deserializer.deserialize_any(Files)
}

/// A file with manifests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestFile {
    /// The path, which errors name.
    pub path: String,
    /// The content: YAML or JSON.
    pub content: String,
}

/// A line of the response.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiffLine {
    /// An object that a sync would change, or would keep although it left Git.
    Object(ObjectDiff),
    /// An error of an object or of a file that a sync would refuse.
    Error(ObjectError),
    /// The end. A response without it is incomplete.
    End(DiffSummary),
}

/// The difference of one object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ObjectDiff {
    /// The action of a sync.
    pub action: DiffAction,
    /// The object.
    pub object: ObjectId,
    /// The file with its line, unless the object left Git.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub file: String,
    /// A sentence about the action, if it needs one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// The fields that differ.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<FieldDiff>,
}

/// The action that a sync would take on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiffAction {
    /// Create it.
    Create,
    /// Change it.
    Change,
    /// Delete it and create it again.
    Recreate,
    /// Delete it, because it left Git.
    Delete,
    /// Keep it although it left Git.
    Keep,
}

/// The difference of one field. The values of Secrets are masked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FieldDiff {
    /// The path, such as `spec.template.spec.containers[name=web].image`; empty for the whole object.
    pub path: String,
    /// The value in the cluster, if the field is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Value>,
    /// The value after a sync, if the field is there then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Value>,
}

/// The end of a diff.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DiffSummary {
    /// The version that was compared, such as `branch main`; empty for posted manifests.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reference: String,
    /// The commit that was compared, unless manifests were posted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<CommitInfo>,
    /// Objects that would be created.
    pub create: u32,
    /// Objects that would be changed.
    pub change: u32,
    /// Objects that would be deleted and created again.
    pub recreate: u32,
    /// Objects that would be deleted.
    pub delete: u32,
    /// Objects that left Git and would be kept.
    pub keep: u32,
    /// Objects that are as in Git.
    pub unchanged: u32,
    /// Errors, each of which stops a sync.
    pub errors: u32,
    /// Things that the diff could not look at.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The Applications of `app.k8s.io` among the manifests, at most 50, also if they are not in the cluster.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub applications: Vec<ManifestApplication>,
}

/// An Application of `app.k8s.io` in a manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestApplication {
    /// The object.
    pub object: ObjectId,
    /// The file with its line.
    pub file: String,
    /// The description in short. Its texts are not trusted.
    pub descriptor: ApplicationDescriptor,
}

/// A request of agentk to kas for the data of a diff.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreviewRequest {
    /// The number by which kas answers.
    pub number: u64,
    /// The id of the project.
    pub project: String,
    /// Another version than that of the project.
    #[serde(rename = "ref", default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<GitRef>,
    /// Another directory than the paths of the project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// Only the settings of the project are needed.
    #[serde(default)]
    pub settings_only: bool,
}

impl DiffSummary {
    /// Counts a line.
    pub fn count(&mut self, line: &DiffLine) {
        let counter = match line {
            DiffLine::Object(object) => match object.action {
                DiffAction::Create => &mut self.create,
                DiffAction::Change => &mut self.change,
                DiffAction::Recreate => &mut self.recreate,
                DiffAction::Delete => &mut self.delete,
                DiffAction::Keep => &mut self.keep,
            },
            DiffLine::Error(_) => &mut self.errors,
            DiffLine::End(_) => return,
        };
        *counter += 1;
    }

    /// Returns whether a sync would change anything.
    pub fn has_changes(&self) -> bool {
        self.create + self.change + self.recreate + self.delete > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn diff_has_a_bounded_number_of_files() {
        let parse = |files: usize| {
            let file = r#"{"path":"","content":""}"#;
            let body = format!("{{\"files\":[{}]}}", vec![file; files].join(","));
            serde_json::from_str::<DiffRequest>(&body).map(|request| request.files.map(|files| files.len()))
        };
        assert_eq!(parse(MAX_FILES).unwrap(), Some(MAX_FILES));
        let error = parse(MAX_FILES + 1).unwrap_err().to_string();
        assert!(error.starts_with("there are more than 20000 files"), "{error}");
        assert_eq!(serde_json::from_str::<DiffRequest>("{}").unwrap(), DiffRequest::default());
        assert_eq!(serde_json::from_str::<DiffRequest>(r#"{"files":null}"#).unwrap(), DiffRequest::default());
        assert!(serde_json::from_str::<DiffRequest>(r#"{"files":7}"#).is_err());
    }
}
