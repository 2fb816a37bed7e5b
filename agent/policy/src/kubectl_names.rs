//! The names of built-in resources that kubectl accepts, and that requests do not have.

/// The names in requests, and the other names that kubectl accepts.
const BUILT_IN: [(&str, &[&str]); 35] = [
    ("certificatesigningrequests", &["certificatesigningrequest", "csr"]),
    ("clusterrolebindings", &["clusterrolebinding"]),
    ("clusterroles", &["clusterrole"]),
    ("configmaps", &["configmap", "cm"]),
    ("cronjobs", &["cronjob", "cj"]),
    ("customresourcedefinitions", &["customresourcedefinition", "crd", "crds"]),
    ("daemonsets", &["daemonset", "ds"]),
    ("deployments", &["deployment", "deploy"]),
    ("endpoints", &["ep"]),
    ("endpointslices", &["endpointslice"]),
    ("events", &["event", "ev"]),
    ("horizontalpodautoscalers", &["horizontalpodautoscaler", "hpa"]),
    ("ingresses", &["ingress", "ing"]),
    ("jobs", &["job"]),
    ("leases", &["lease"]),
    ("limitranges", &["limitrange", "limits"]),
    ("namespaces", &["namespace", "ns"]),
    ("networkpolicies", &["networkpolicy", "netpol"]),
    ("nodes", &["node", "no"]),
    ("persistentvolumeclaims", &["persistentvolumeclaim", "pvc"]),
    ("persistentvolumes", &["persistentvolume", "pv"]),
    ("poddisruptionbudgets", &["poddisruptionbudget", "pdb"]),
    ("pods", &["pod", "po"]),
    ("podtemplates", &["podtemplate"]),
    ("priorityclasses", &["priorityclass", "pc"]),
    ("replicasets", &["replicaset", "rs"]),
    ("replicationcontrollers", &["replicationcontroller", "rc"]),
    ("resourcequotas", &["resourcequota", "quota"]),
    ("rolebindings", &["rolebinding"]),
    ("roles", &["role"]),
    ("secrets", &["secret"]),
    ("serviceaccounts", &["serviceaccount", "sa"]),
    ("services", &["service", "svc"]),
    ("statefulsets", &["statefulset", "sts"]),
    ("storageclasses", &["storageclass", "sc"]),
];

/// The subresources of pods, and the commands that use them.
const SUBRESOURCES: [(&str, &[&str]); 3] = [
    ("log", &["logs"]),
    ("portforward", &["port-forward", "portforwards"]),
    ("ephemeralcontainers", &["ephemeralcontainer", "debug"]),
];

/// Returns the name in requests for a name that kubectl accepts, if they differ: `secrets` for `secret`, `pods/log` for
/// `pod/logs`.
pub(crate) fn request_name(word: &str) -> Option<String> {
    let (resource, subresource) = match word.split_once('/') {
        Some((resource, subresource)) => (resource, Some(subresource)),
        None => (word, None),
    };
    let plural = find(&BUILT_IN, resource);
    let of_pods = matches!(plural.unwrap_or(resource), "pods" | "*");
    let used = subresource.filter(|_| of_pods).and_then(|subresource| find(&SUBRESOURCES, subresource));
    if plural.is_none() && used.is_none() {
        return None;
    }

    let resource = plural.unwrap_or(resource);
    Some(match used.or(subresource) {
        Some(subresource) => format!("{resource}/{subresource}"),
        None => resource.to_owned(),
    })
}

fn find(table: &[(&'static str, &[&str])], word: &str) -> Option<&'static str> {
    table.iter().find(|(_, others)| others.contains(&word)).map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubectl_name_has_a_request_name() {
        for (word, expected) in [
            ("secret", Some("secrets")),
            ("svc", Some("services")),
            ("pod/logs", Some("pods/log")),
            ("pods/logs", Some("pods/log")),
            ("po/exec", Some("pods/exec")),
            ("*/port-forward", Some("*/portforward")),
            ("pods/log", None),
            ("pods/*", None),
            ("widgets/logs", None),
            ("widget", None),
        ] {
            assert_eq!(request_name(word).as_deref(), expected, "{word}");
        }
    }
}
