//! The groups to which an object belongs by its own labels and annotations.
//!
//! An id has the program that made the group, a colon, and the name: `helm:shop/web`.

use serde_json::Value;

use crate::text::{MAX_NAME, cut};

/// The most groups of one object.
const MAX_GROUPS: usize = 4;

/// The ways to find the environments of GitLab, with their labels. GitLab's charts and documentation give the second ones.
pub(crate) const GITLAB: &str = "gitlab";
pub(crate) const ENVIRONMENT_LABELS: [&str; 2] =
    ["app.gitlab.com/project_id", "app.gitlab.com/environment_slug"];
pub(crate) const GITLAB_APP: &str = "gitlab-app";
pub(crate) const APP_KEYS: [&str; 2] = ["app.gitlab.com/app", "app.gitlab.com/env"];

/// Ways to find a group, with the words for people. The first part of an id is one of these.
pub(crate) const FOUND_BY: [(&str, &str); 10] = [
    ("application", "the selector of an Application of app.k8s.io"),
    ("applyset", "the label applyset.kubernetes.io/part-of"),
    ("argocd", "the tracking id of Argo CD"),
    ("flux", "the labels of Flux"),
    (GITLAB, "the labels app.gitlab.com/project_id and app.gitlab.com/environment_slug"),
    (GITLAB_APP, "the labels or annotations app.gitlab.com/app and app.gitlab.com/env"),
    ("gitlab-inventory", "the annotation config.k8s.io/owning-inventory of GitLab's agent"),
    ("gitops", "manifests from Git"),
    ("helm", "the annotations of Helm"),
    ("namespace", "the namespace"),
];

/// Returns the id of the group of an Application of `app.k8s.io`.
pub(crate) fn application(namespace: &str, name: &str) -> String {
    format!("application:{namespace}/{name}")
}

/// Returns whether a group is that of an Application of `app.k8s.io`.
pub(crate) fn is_application(id: &str) -> bool {
    id.starts_with("application:")
}

/// Returns by what a group was found, in words.
pub(crate) fn found_by(id: &str) -> &'static str {
    let (kind, _) = id.split_once(':').unwrap_or((id, ""));
    FOUND_BY.iter().find(|known| known.0 == kind).map_or("", |known| known.1)
}

/// Returns the groups that the labels and annotations of an object name.
pub(crate) fn groups(object: &Value) -> Vec<String> {
    let metadata = &object["metadata"];
    let label = |key: &str| metadata["labels"][key].as_str().filter(|value| is_name(value));
    let annotation = |key: &str| metadata["annotations"][key].as_str().filter(|value| !value.is_empty());
    let mut found = Vec::new();
    if let [Some(project), Some(slug)] = ENVIRONMENT_LABELS.map(label) {
        found.push(format!("{GITLAB}:{project}/{slug}"));
    }
    let named = |key: &str| label(key).or_else(|| annotation(key).filter(|value| is_name(value)));
    if let [Some(app), Some(environment)] = APP_KEYS.map(named) {
        found.push(format!("{GITLAB_APP}:{app}/{environment}"));
    }
    for tool in ["kustomize", "helm"] {
        let key = |field: &str| format!("{tool}.toolkit.fluxcd.io/{field}");
        if let (Some(namespace), Some(name)) = (label(&key("namespace")), label(&key("name"))) {
            found.push(format!("flux:{namespace}/{name}"));
        }
    }
    if let Some(id) = annotation("argocd.argoproj.io/tracking-id") {
        // `<application>:<group>/<kind>:<namespace>/<name>`, where the application may be `<namespace>_<name>`.
        let (application, _) = id.split_once(':').unwrap_or((id, ""));
        if is_name(application) {
            found.push(format!("argocd:{application}"));
        }
    } else if let Some(application) = label("argocd.argoproj.io/instance") {
        found.push(format!("argocd:{application}"));
    }
    if let (Some(namespace), Some(name)) = (
        annotation("meta.helm.sh/release-namespace").filter(|name| is_name(name)),
        annotation("meta.helm.sh/release-name").filter(|name| is_name(name)),
    ) && label("app.kubernetes.io/managed-by") == Some("Helm")
    {
        found.push(format!("helm:{namespace}/{name}"));
    }
    if let Some(set) = label("applyset.kubernetes.io/part-of") {
        found.push(format!("applyset:{set}"));
    }
    if let Some(inventory) = annotation("config.k8s.io/owning-inventory").filter(|id| is_name(id)) {
        found.push(format!("gitlab-inventory:{inventory}"));
    }
    found.truncate(MAX_GROUPS);
    found
}

/// Returns whether a text has only characters that names of Kubernetes have, so that it is safe in ids.
pub(crate) fn is_name(text: &str) -> bool {
    let of_names = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !text.is_empty() && cut(text, MAX_NAME).len() == text.len() && text.bytes().all(of_names)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn groups_of(labels: &Value, annotations: &Value) -> Vec<String> {
        groups(&json!({"metadata": {"labels": labels, "annotations": annotations}}))
    }

    #[test]
    fn group_is_found_by_labels_and_annotations() {
        for (labels, annotations, expected) in [
            (
                json!({"app.gitlab.com/project_id": "7", "app.gitlab.com/environment_slug": "production"}),
                json!({}),
                "gitlab:7/production",
            ),
            (json!({"app.gitlab.com/project_id": "7"}), json!({}), ""),
            (
                json!({}),
                json!({"app.gitlab.com/app": "shop-web", "app.gitlab.com/env": "live"}),
                "gitlab-app:shop-web/live",
            ),
            (
                json!({"app.gitlab.com/app": "shop-web"}),
                json!({"app.gitlab.com/app": "other", "app.gitlab.com/env": "live"}),
                "gitlab-app:shop-web/live",
            ),
            (json!({"app.gitlab.com/app": "shop-web"}), json!({"app.gitlab.com/env": "a/b"}), ""),
            (
                json!({"kustomize.toolkit.fluxcd.io/name": "apps", "kustomize.toolkit.fluxcd.io/namespace": "flux-system"}),
                json!({}),
                "flux:flux-system/apps",
            ),
            (
                json!({"helm.toolkit.fluxcd.io/name": "web", "helm.toolkit.fluxcd.io/namespace": "shop"}),
                json!({}),
                "flux:shop/web",
            ),
            (
                json!({}),
                json!({"argocd.argoproj.io/tracking-id": "shop:apps/Deployment:shop/web"}),
                "argocd:shop",
            ),
            (json!({"argocd.argoproj.io/instance": "shop"}), json!({}), "argocd:shop"),
            (
                json!({"app.kubernetes.io/managed-by": "Helm"}),
                json!({"meta.helm.sh/release-name": "web", "meta.helm.sh/release-namespace": "shop"}),
                "helm:shop/web",
            ),
            (
                json!({}),
                json!({"meta.helm.sh/release-name": "web", "meta.helm.sh/release-namespace": "shop"}),
                "",
            ),
            (json!({"applyset.kubernetes.io/part-of": "applyset-x-v1"}), json!({}), "applyset:applyset-x-v1"),
            (json!({}), json!({"config.k8s.io/owning-inventory": "7-3"}), "gitlab-inventory:7-3"),
        ] {
            assert_eq!(groups_of(&labels, &annotations).join(" "), expected, "{labels} {annotations}");
        }
    }

    #[test]
    fn hostile_names_make_no_group() {
        for name in ["", "a b", "a/b", "a\nb", "é", "a:b", &"x".repeat(300)] {
            let labels = json!({"app.gitlab.com/project_id": name, "app.gitlab.com/environment_slug": "p", "argocd.argoproj.io/instance": name});
            assert!(groups_of(&labels, &json!({})).is_empty(), "{name:?}");
        }
        assert!(groups_of(&json!({"applyset.kubernetes.io/part-of": 3}), &json!([1])).is_empty());
    }

    #[test]
    fn every_way_has_words() {
        assert!(FOUND_BY.is_sorted());
        assert_eq!(found_by("helm:a/b"), "the annotations of Helm");
        assert_eq!(found_by("other:a"), "");
    }
}
