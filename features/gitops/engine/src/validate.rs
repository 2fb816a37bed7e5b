//! The checks of all objects before the first request that writes.

use std::collections::{HashMap, HashSet};

use kube_cluster::GroupKind;
use proto::{
    agent_configuration::gitops::ManifestProject,
    gitops::{ObjectError, ObjectId},
};
use serde_json::Value;

use crate::{Manifest, hook};

/// The kind of definitions of further kinds.
pub const DEFINITIONS: (&str, &str) = ("apiextensions.k8s.io", "CustomResourceDefinition");

/// API groups of Kubernetes whose objects have names of DNS. Those of RBAC and of aggregated APIs may have others.
const DNS_GROUPS: [&str; 12] = [
    "",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apps",
    "autoscaling",
    "batch",
    "coordination.k8s.io",
    "gateway.networking.k8s.io",
    "networking.k8s.io",
    "policy",
    "scheduling.k8s.io",
    "storage.k8s.io",
];

/// The reason why an object is not applied. The author of the manifest, or of the settings of the project, mends it; only
/// `UnavailableGroup` is a fault of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum ValidationError {
    #[error("the project may not apply the kind {0} (resource_inclusions, resource_exclusions)")]
    ForbiddenKind(GroupKind),
    #[error(
        "the API group {} does not respond, so that the kind {kind} is not known now: look at its APIService; the sync is tried again",
        kind.group
    )]
    UnavailableGroup { kind: GroupKind },
    #[error(
        "the cluster does not have the kind {kind} in version {version}: install its CustomResourceDefinition, or add it to the project"
    )]
    UnknownKind { kind: GroupKind, version: String },
    #[error("the project may not apply cluster-scoped objects, such as a {0} (cluster_scoped)")]
    ClusterScoped(GroupKind),
    #[error("the project may not apply objects in the namespace {0} (namespaces)")]
    ForbiddenNamespace(String),
    /// `kind` is that of an object, or `namespace`.
    #[error("{name:?} cannot be the name of a {kind}: {rule}")]
    InvalidName { name: String, kind: String, rule: &'static str },
    #[error("{object} is also in {first}: keep one of the two")]
    Duplicate { object: ObjectId, first: String },
}

/// The scopes of kinds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scopes {
    namespaced: HashMap<GroupKind, bool>,
    /// The API groups whose kinds are not known now.
    unavailable: HashSet<String>,
    /// The kinds that definitions among the objects bring.
    defined: HashSet<GroupKind>,
}

impl Scopes {
    /// Sets whether the objects of a kind are namespaced.
    pub fn insert(&mut self, kind: GroupKind, namespaced: bool) {
        self.namespaced.insert(kind, namespaced);
    }

    /// Adds a kind that a definition among the objects brings. It must not say another scope of a kind that the cluster has: limits of
    /// the project depend on it.
    pub fn define(&mut self, kind: GroupKind, namespaced: bool) {
        self.namespaced.entry(kind.clone()).or_insert(namespaced);
        self.defined.insert(kind);
    }

    /// Notes that the kinds of an API group are not known, because its server does not respond.
    pub fn set_unavailable(&mut self, group: &str) {
        self.unavailable.insert(group.to_owned());
    }

    /// Returns whether the objects of a kind are namespaced, or `None` if that is not known.
    pub fn is_namespaced(&self, kind: &GroupKind) -> Option<bool> {
        self.namespaced.get(kind).copied()
    }
}

/// Returns the kinds that definitions among the objects bring, with their scope.
pub fn defined_kinds(manifests: &[Manifest]) -> impl Iterator<Item = (GroupKind, bool)> {
    manifests.iter().filter(|manifest| (&*manifest.id.group, &*manifest.id.kind) == DEFINITIONS).filter_map(
        |manifest| {
            let spec = manifest.object.get("spec")?;
            let group = spec.get("group")?.as_str()?.to_owned();
            let kind = spec.get("names")?.get("kind")?.as_str()?.to_owned();
            Some((GroupKind { group, kind }, spec.get("scope")?.as_str()? == "Namespaced"))
        },
    )
}

/// Checks all objects that are applied, and gives namespaced ones their namespace.
///
/// # Errors
///
/// The errors of all objects: an unknown kind, a kind or a namespace that the project may not use, two manifests of one object.
pub fn validate(
    manifests: &mut [Manifest],
    scopes: &Scopes,
    project: &ManifestProject,
) -> Result<(), Vec<ObjectError>> {
    let mut errors = Vec::new();
    let mut seen: HashMap<ObjectId, String> = HashMap::with_capacity(manifests.len());
    for manifest in manifests {
        let validated = validate_one(manifest, scopes, project);
        if hook::is_skipped(manifest) {
            continue;
        }
        if let Err(error) = validated {
            errors.push(manifest.error(error));
        }
        let place = manifest.source.to_string();
        if let Some(first) = seen.insert(manifest.id.clone(), place) {
            let object = manifest.id.clone();
            errors.push(manifest.error(ValidationError::Duplicate { object, first }));
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

fn validate_one(
    manifest: &mut Manifest,
    scopes: &Scopes,
    project: &ManifestProject,
) -> Result<(), ValidationError> {
    let kind = manifest.group_kind();
    if !project.allows_kind(&kind.group, &kind.kind) {
        return Err(ValidationError::ForbiddenKind(kind));
    }
    let Some(namespaced) = scopes.is_namespaced(&kind) else {
        return Err(if scopes.unavailable.contains(&kind.group) {
            ValidationError::UnavailableGroup { kind }
        } else {
            ValidationError::UnknownKind { kind, version: manifest.version.clone() }
        });
    };
    check_name(&manifest.id, scopes.defined.contains(&kind))?;
    if !namespaced {
        if !manifest.id.namespace.is_empty() {
            // As kubectl: the API server ignores the namespace of such an object.
            manifest.id.namespace.clear();
            if let Some(metadata) = manifest.object["metadata"].as_object_mut() {
                metadata.remove("namespace");
            }
        }
        return if project.allows_cluster_scoped() {
            Ok(())
        } else {
            Err(ValidationError::ClusterScoped(kind))
        };
    }
    if manifest.id.namespace.is_empty() {
        manifest.id.namespace.clone_from(&project.default_namespace);
        manifest.object["metadata"]["namespace"] = Value::from(project.default_namespace.as_str());
    }
    let namespace = &manifest.id.namespace;
    if !is_dns_label(namespace) {
        let (name, kind) = (namespace.clone(), "namespace".to_owned());
        return Err(ValidationError::InvalidName { name, kind, rule: LABEL });
    }
    if project.allows_namespace(namespace) {
        Ok(())
    } else {
        Err(ValidationError::ForbiddenNamespace(namespace.clone()))
    }
}

const LABEL: &str = "the API server takes lower-case letters, digits and `-`, up to 63 characters";
const SUBDOMAIN: &str = "the API server takes lower-case letters, digits, `-` and `.`, up to 253 characters";

/// Checks the name of an object as the API server does. It would refuse the name only when the stages before are written, or the
/// definition of the kind.
fn check_name(id: &ObjectId, is_defined: bool) -> Result<(), ValidationError> {
    let rule = match (&*id.group, &*id.kind) {
        ("", "Namespace" | "Service") => (!is_dns_label(&id.name)).then_some(LABEL),
        // Its name is an address.
        ("networking.k8s.io", "IPAddress") => None,
        (group, _) if is_defined || DNS_GROUPS.contains(&group) => {
            (!is_dns_subdomain(&id.name)).then_some(SUBDOMAIN)
        }
        _ => None,
    };
    rule.map_or(Ok(()), |rule| {
        Err(ValidationError::InvalidName { name: id.name.clone(), kind: id.kind.clone(), rule })
    })
}

/// Returns whether this is a label of DNS in lower case (RFC 1123).
fn is_dns_label(text: &str) -> bool {
    text.len() <= 63 && is_dns_part(text)
}

fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_dns_part)
}

fn is_dns_part(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let edge = |byte: Option<&u8>| byte.is_some_and(|byte| allowed(*byte));
    let bytes = text.as_bytes();
    edge(bytes.first()) && edge(bytes.last()) && bytes.iter().all(|byte| allowed(*byte) || *byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SourceFile, parse};

    fn check(text: &str, settings: &str) -> Result<Vec<String>, Vec<String>> {
        let file = SourceFile { path: "a.yaml".to_owned(), content: text.to_owned().into() };
        let mut manifests = parse::parse(&[file]).unwrap();
        let project: ManifestProject = serde_saphyr::from_str(settings).unwrap();
        let mut scopes = Scopes::default();
        let kind = |group: &str, kind: &str| GroupKind { group: group.to_owned(), kind: kind.to_owned() };
        for (group, name, namespaced) in [
            ("", "ConfigMap", true),
            ("", "Namespace", false),
            ("", "Service", true),
            ("apps", "Deployment", true),
            ("rbac.authorization.k8s.io", "Role", true),
            ("apiextensions.k8s.io", "CustomResourceDefinition", false),
        ] {
            scopes.insert(kind(group, name), namespaced);
        }
        for (kind, namespaced) in defined_kinds(&manifests) {
            scopes.define(kind, namespaced);
        }
        let checked = validate(&mut manifests, &scopes, &project);
        let shown = |error: ObjectError| format!("{}: {}", error.file, error.message);
        checked.map_err(|errors| errors.into_iter().map(shown).collect::<Vec<_>>())?;
        Ok(manifests.into_iter().map(|manifest| manifest.id.to_string()).collect())
    }

    fn object(api: &str, kind: &str, metadata: &str) -> String {
        format!("---\napiVersion: {api}\nkind: {kind}\nmetadata: {{{metadata}}}\n")
    }

    #[test]
    fn namespaced_objects_get_the_default_namespace() {
        let text = object("v1", "ConfigMap", "name: a")
            + &object("v1", "ConfigMap", "name: a, namespace: other")
            + &object("v1", "Namespace", "name: shop, namespace: ignored");
        let ids = check(&text, "{default_namespace: shop}").unwrap();
        assert_eq!(ids, ["ConfigMap shop/a", "ConfigMap other/a", "Namespace shop"]);
    }

    #[test]
    fn definition_brings_its_kind() {
        let text = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: toys.example.com}\n\
                    spec: {group: example.com, names: {kind: Toy}, scope: Namespaced}\n"
            .to_owned()
            + &object("example.com/v1", "Toy", "name: a");
        assert_eq!(check(&text, "{}").unwrap()[1], "Toy.example.com default/a");
        let error = check(&object("example.com/v1", "Toy", "name: a"), "{}").unwrap_err();
        assert!(error[0].contains("does not have the kind Toy.example.com in version v1"), "{error:?}");
    }

    /// Test 58 of the attack list.
    #[test]
    fn object_outside_of_the_limits_of_its_project_is_refused() {
        let config_map = object("v1", "ConfigMap", "name: a, namespace: b");
        let namespace = object("v1", "Namespace", "name: a");
        for (text, settings, expected) in [
            (
                &config_map,
                "{namespaces: [default, shop]}",
                "may not apply objects in the namespace b (namespaces)",
            ),
            (
                &namespace,
                "{namespaces: [default]}",
                "may not apply cluster-scoped objects, such as a Namespace",
            ),
            (&namespace, "{cluster_scoped: false}", "may not apply cluster-scoped objects"),
            (
                &config_map,
                "{resource_inclusions: [{api_groups: [apps], kinds: ['*']}]}",
                "may not apply the kind ConfigMap",
            ),
            (
                &config_map,
                "{resource_exclusions: [{api_groups: [''], kinds: [ConfigMap]}]}",
                "may not apply the kind ConfigMap",
            ),
        ] {
            let errors = check(text, settings).unwrap_err();
            assert!(errors[0].contains(expected), "{settings}: {errors:?}");
        }
    }

    #[test]
    fn object_with_two_manifests_is_refused() {
        let text =
            object("v1", "ConfigMap", "name: a") + &object("v1", "ConfigMap", "name: a, namespace: default");
        let errors = check(&text, "{}").unwrap_err();
        assert_eq!(errors, ["a.yaml:6: ConfigMap default/a is also in a.yaml:2: keep one of the two"]);
    }

    #[test]
    fn name_that_the_api_server_refuses_is_found_before_the_first_write() {
        let definition = "---\napiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: toys.example.com}\n\
                          spec: {group: example.com, names: {kind: Toy}, scope: Namespaced}\n";
        let long = format!("name: {}", "a".repeat(64));
        for (api, kind, metadata, accepted) in [
            ("v1", "ConfigMap", "name: kube-root-ca.crt", true),
            ("v1", "ConfigMap", &*long, true),
            ("v1", "ConfigMap", "name: Upper", false),
            ("v1", "ConfigMap", "name: under_score", false),
            ("v1", "ConfigMap", "name: -a", false),
            ("v1", "ConfigMap", "name: a..b", false),
            ("v1", "ConfigMap", "name: a, namespace: a.b", false),
            ("v1", "ConfigMap", "name: a, namespace: Shop", false),
            ("v1", "Namespace", "name: shop.example", false),
            ("v1", "Service", &*long, false),
            ("apps/v1", "Deployment", "name: web-", false),
            ("example.com/v1", "Toy", "name: a_b", false),
            ("example.com/v1", "Toy", "name: a.b", true),
            ("rbac.authorization.k8s.io/v1", "Role", "name: 'system:Reader_1'", true),
        ] {
            let checked = check(&(object(api, kind, metadata) + definition), "{}");
            assert_eq!(checked.is_ok(), accepted, "{kind} {metadata}: {checked:?}");
            let shown =
                |errors: Vec<String>| errors.iter().all(|error| error.contains("cannot be the name of a"));
            assert!(checked.err().is_none_or(shown));
        }
    }
}
