//! The hello of GitLab's agentk, which kas writes for it.

use gitlab_tunnel::messages::AgentMeta;
use kas_core::agents::admission::Admission;
use proto::{Hello, InstanceId, ServiceName};
use sha2::{Digest as _, Sha256};

/// Describes GitLab's agentk like an agentk of kas. Its texts are untrusted: those that a hello may not have are left out.
pub(super) fn hello(agent: &Admission, meta: &AgentMeta) -> Hello {
    let printable = |text: &str| {
        let text: String = text.chars().filter(|c| c.is_ascii_graphic()).take(63).collect();
        Some(text).filter(|text| !text.is_empty())
    };
    let pod_name = printable(&meta.pod_name);
    let pod_namespace = printable(&meta.pod_namespace);
    // Connections of one pod belong to one process: agentk sends its id only later.
    let instance = match &pod_name {
        Some(pod) => {
            let text =
                format!("{}/{}/{pod}", agent.identity.id, pod_namespace.as_deref().unwrap_or_default());
            let digest = Sha256::digest(text);
            InstanceId::from_bytes(*digest.first_chunk().expect("a digest is longer than an id"))
        }
        None => InstanceId::random(),
    };
    let version =
        printable(meta.version.trim_start_matches('v')).unwrap_or_else(|| Hello::UNKNOWN.to_owned());
    let kubernetes = meta.kubernetes_version.as_ref().and_then(|version| printable(&version.git_version));
    Hello {
        instance,
        version: format!("{}{version}", Hello::GITLAB),
        pod_name,
        pod_namespace,
        kubernetes_version: kubernetes,
        services: vec![ServiceName::KUBERNETES.parse().expect("a service name")],
        tunnel_index: 0,
        cluster: None,
        scope: None,
    }
}

/// Returns what is known after a further description. A text that is empty in it keeps its value.
pub(super) fn merge(known: &AgentMeta, mut newer: AgentMeta) -> AgentMeta {
    let texts = [
        (&mut newer.version, &known.version),
        (&mut newer.commit_id, &known.commit_id),
        (&mut newer.pod_namespace, &known.pod_namespace),
        (&mut newer.pod_name, &known.pod_name),
    ];
    for (newer, known) in texts.into_iter().filter(|(newer, _)| newer.is_empty()) {
        newer.clone_from(known);
    }
    if newer.kubernetes_version.as_ref().is_none_or(|version| version.git_version.is_empty()) {
        newer.kubernetes_version.clone_from(&known.kubernetes_version);
    }
    newer
}
