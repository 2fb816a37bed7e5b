//! The text of a diff of manifests: for a terminal, and for a comment in a merge request.
//!
//! Names, values and messages come from Git, from agents and from clusters. Nothing of them leaves its line, and in a comment nothing
//! of them leaves its code.
#![warn(missing_docs)]

mod comment;
mod lines;
mod printable;
mod sentence;

pub use self::{
    comment::{DiffComment, code_span},
    lines::{application_lines, error_line, object_lines},
    printable::{is_unprintable, printable},
    sentence::{sentence, short_commit},
};

#[cfg(test)]
mod examples {
    use proto::gitops::{CommitInfo, DiffAction, DiffSummary, FieldDiff, ObjectDiff, ObjectId};
    use serde_json::Value;

    pub(crate) fn field(path: &str, before: Option<Value>, after: Option<Value>) -> FieldDiff {
        FieldDiff { path: path.to_owned(), before, after }
    }

    pub(crate) fn object(action: DiffAction, name: &str, fields: Vec<FieldDiff>) -> ObjectDiff {
        let object = ObjectId {
            kind: "ConfigMap".to_owned(),
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            ..ObjectId::default()
        };
        let file = if action == DiffAction::Delete { String::new() } else { "app.yaml:3".to_owned() };
        ObjectDiff { action, object, file, note: String::new(), fields }
    }

    pub(crate) fn summary(reference: &str) -> DiffSummary {
        let commit = Some(CommitInfo { id: "c".repeat(40), ..CommitInfo::default() });
        DiffSummary { reference: reference.to_owned(), commit, ..DiffSummary::default() }
    }
}
