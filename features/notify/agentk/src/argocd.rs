//! Argo CD: an annotation makes it compare the Applications of a repository at once.

use kube_cluster::Cluster as _;
use proto::notify::ProjectEvent;
use serde_json::Value;

use super::{
    Notify,
    lane::{EffectError, combine},
    objects,
    sources::RepositoryUrl,
};

const GROUP: &str = "argoproj.io";
const KIND: &str = "Application";
/// The annotation that Argo CD removes when it has compared (its documentation, "Annotations and Labels").
const REFRESH: &str = "argocd.argoproj.io/refresh";

/// Annotates the Applications whose repository has changed.
pub(super) async fn refresh(
    notify: &Notify,
    namespace: &str,
    event: &ProjectEvent,
) -> Result<(), EffectError> {
    let kind = objects::kind(notify, GROUP, KIND, "Argo CD").await?;
    let applications = notify.cluster.list(&kind, namespace, "", false).await?;
    let mut results = Vec::new();
    for application in applications.iter().filter(|application| is_of(application, event)) {
        results.push(objects::annotate(notify, &kind, application, REFRESH, "normal").await);
    }
    combine(results)
}

/// Returns whether an Application has a source in the repository of an event.
fn is_of(application: &Value, event: &ProjectEvent) -> bool {
    let spec = &application["spec"];
    let sources = spec["sources"].as_array().into_iter().flatten().chain([&spec["source"]]);
    let urls = sources.filter_map(|source| RepositoryUrl::parse(source["repoURL"].as_str()?));
    urls.into_iter().any(|url| url.matches(event))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use proto::notify::ProjectEventFields;
    use serde_json::json;

    use super::*;

    #[test]
    fn application_is_found_by_any_of_its_sources() {
        let fields = ProjectEventFields {
            id: "e-1".to_owned(),
            sequence: 1,
            project: "group/shop".to_owned(),
            reference: None,
            before: None,
            after: None,
            urls: Vec::new(),
            time: SystemTime::UNIX_EPOCH,
        };
        let event: ProjectEvent = fields.try_into().unwrap();
        let shop = json!({"repoURL": "https://gitlab.example.com/group/shop.git"});
        let other = json!({"repoURL": "https://gitlab.example.com/group/other.git"});
        for (spec, expected) in [
            (json!({"source": shop}), true),
            (json!({"sources": [other, shop]}), true),
            (json!({"source": other}), false),
            (json!({"sources": "x", "source": 7}), false),
            (Value::Null, false),
        ] {
            assert_eq!(is_of(&json!({"spec": spec}), &event), expected, "{spec}");
        }
    }
}
