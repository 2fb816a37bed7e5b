//! The object `Repository`, which shows the latest commit of a reference to other programs in the cluster.

use proto::{
    gitops::ObjectId,
    notify::{ProjectEvent, ProjectEventFields},
};
use serde_json::{Value, json};

use super::{
    Notify,
    lane::EffectError,
    objects::{self, MANAGER},
    record::short_digest,
};

const GROUP: &str = "kas.dev";
const KIND: &str = "Repository";
/// The longest readable part of a name, in bytes.
const MAX_READABLE: usize = 200;

/// Writes the latest event into the object of its reference.
pub(super) async fn apply(notify: &Notify, namespace: &str, event: &ProjectEvent) -> Result<(), EffectError> {
    let kind = objects::kind(notify, GROUP, KIND, "the CustomResourceDefinition of agentk's chart").await?;
    let ProjectEventFields { id: event_id, project, reference, before, after, urls, time, .. } =
        event.fields();
    let id = ObjectId {
        group: GROUP.to_owned(),
        kind: KIND.to_owned(),
        namespace: namespace.to_owned(),
        name: name(project, event.reference()),
    };
    let labels = json!({"app.kubernetes.io/managed-by": "agentk"});
    let spec = known(json!({"project": project, "ref": reference, "urls": urls}));
    objects::apply(notify, &kind, &id, json!({"metadata": {"labels": labels}, "spec": spec})).await?;
    let time = humantime::format_rfc3339_seconds(*time).to_string();
    let url = urls.first();
    let status = known(
        json!({"url": url, "ref": reference, "commit": after, "previousCommit": before, "time": time, "event": event_id}),
    );
    let object = json!({
        "apiVersion": objects::api_version(&kind),
        "kind": KIND,
        "metadata": {"name": id.name, "namespace": id.namespace},
        "status": status,
    });
    let written = notify.cluster.apply_status(&kind, &id, &object, MANAGER);
    Ok(notify.leader.while_leading(written).await?)
}

/// Leaves unknown values out: kubectl prints `<no value>` for null.
fn known(mut fields: Value) -> Value {
    if let Some(fields) = fields.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    fields
}

/// Returns the name of an object: readable, valid in Kubernetes, and different for each project and reference.
fn name(project: &str, reference: &str) -> String {
    let short =
        reference.trim_start_matches("refs/").trim_start_matches("heads/").trim_start_matches("tags/");
    let readable: String = format!("{project}-{short}")
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
        .take(MAX_READABLE)
        .collect();
    let readable = readable.trim_matches('-');
    format!("{readable}-{}", &short_digest(&format!("{project}\0{reference}"))[..8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_valid_and_differs_for_each_reference() {
        let names = [
            name("group/shop", "refs/heads/main"),
            name("group/shop", "refs/tags/main"),
            name("group/shop", ""),
            name("group-shop", "refs/heads/main"),
            name(&"a/".repeat(500), "refs/heads/_"),
        ];
        assert!(names[0].starts_with("group-shop-main-"), "{names:?}");
        for (index, name) in names.iter().enumerate() {
            let valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            assert!(name.chars().all(valid) && name.len() <= 253 && !name.starts_with('-'), "{name}");
            assert!(!names[..index].contains(name), "{name}");
        }
    }
}
