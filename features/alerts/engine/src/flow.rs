//! The alert that a flow of Hubble belongs to.

use crate::{
    alert::{AlertKey, Destination, Peer, Verdict},
    messages::{AUDIT, DROPPED, EGRESS, Endpoint, Flow, INGRESS, L7, Ports, Protocol},
    policy::{Direction, PolicyRef, PolicySet},
    text::clean,
};

/// The label that Cilium adds to what is no pod.
const RESERVED: &str = "reserved:";

/// The reason why a flow or an Event is no alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ignored {
    /// It is no drop by a policy.
    OtherReason,
    /// The policy does not ask for alerts.
    NotAsked,
    /// The configuration or the scope leaves the namespace out.
    OutOfScope,
}

impl Ignored {
    /// All reasons.
    pub const ALL: [Self; 3] = [Self::OtherReason, Self::NotAsked, Self::OutOfScope];

    /// Returns the word in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OtherReason => "other-reason",
            Self::NotAsked => "not-asked",
            Self::OutOfScope => "out-of-scope",
        }
    }
}

/// Returns the alert of a flow, and a detail about it. Without `policies`, each drop by a policy is one. `in_scope` gets the namespace of
/// the end whose policy decided, which is empty for a host.
///
/// # Errors
///
/// The flow is no alert.
pub fn key_of_flow(
    flow: &Flow,
    policies: Option<&PolicySet>,
    in_scope: impl FnOnce(&str) -> bool,
) -> Result<(AlertKey, String), Ignored> {
    let verdict = match flow.verdict {
        DROPPED => Verdict::Dropped,
        AUDIT => Verdict::Audited,
        _ => return Err(Ignored::OtherReason),
    };
    let reason = reason(flow, verdict).ok_or(Ignored::OtherReason)?;
    let nobody = Endpoint::default();
    let source = flow.source.as_ref().unwrap_or(&nobody);
    let destination = flow.destination.as_ref().unwrap_or(&nobody);
    let direction = direction(flow, destination);
    let (decided, denied_by) = match direction {
        Direction::Ingress => (destination, &flow.ingress_denied_by),
        Direction::Egress => (source, &flow.egress_denied_by),
    };
    if !in_scope(&decided.namespace) {
        return Err(Ignored::OutOfScope);
    }
    let policy = match policies {
        Some(policies) => {
            policies.responsible(decided, direction, denied_by).cloned().ok_or(Ignored::NotAsked)?
        }
        None => denied_by.first().map(policy_ref).unwrap_or_default(),
    };
    let (port, protocol) = port(flow);
    let mut peer = peer(destination);
    if peer.namespace.is_empty()
        && let Some(name) = flow.destination_names.first().map(|name| clean(name.trim_end_matches('.')))
        && !name.is_empty()
    {
        peer = Peer { name, ..Peer::default() };
    }
    let key = AlertKey {
        verdict,
        direction: Some(direction),
        namespace: clean(&decided.namespace),
        source: self::peer(source),
        destination: Destination { peer, port, protocol },
        policy,
        reason: reason.to_owned(),
    };
    let sample = flow.ip.as_ref().map(|ip| clean(&format!("{:.50} to {:.50}", ip.source, ip.destination)));
    Ok((key, sample.unwrap_or_default()))
}

/// Returns the reason if a policy has decided.
fn reason(flow: &Flow, verdict: Verdict) -> Option<&'static str> {
    match flow.drop_reason {
        133 => Some("not-allowed"),
        181 => Some("denied"),
        189 => Some("authentication-required"),
        // Proxies and audits have no reason of the kernel.
        0 if flow.r#type == L7 => Some("request-not-allowed"),
        0 if verdict == Verdict::Audited => Some("not-allowed"),
        _ => None,
    }
}

/// Returns the end whose policy decided. Without a direction, that is the end that names a policy, or the receiver if it is a pod.
fn direction(flow: &Flow, destination: &Endpoint) -> Direction {
    match flow.traffic_direction {
        INGRESS => Direction::Ingress,
        EGRESS => Direction::Egress,
        _ if !flow.ingress_denied_by.is_empty() => Direction::Ingress,
        _ if !flow.egress_denied_by.is_empty() || destination.namespace.is_empty() => Direction::Egress,
        _ => Direction::Ingress,
    }
}

fn policy_ref(policy: &crate::messages::Policy) -> PolicyRef {
    PolicyRef { namespace: clean(&policy.namespace), name: clean(&policy.name) }
}

/// Returns the workload of a pod, or the word of Cilium for what is no pod.
fn peer(endpoint: &Endpoint) -> Peer {
    let named = |kind: &str, name: &str| {
        let name = clean(name);
        let name = if name.is_empty() { "unknown".to_owned() } else { name };
        Peer { namespace: clean(&endpoint.namespace), kind: clean(kind), name }
    };
    if endpoint.namespace.is_empty() {
        let words = endpoint.labels.iter().filter_map(|label| label.strip_prefix(RESERVED));
        // A cluster's API server has two labels, of which the other one is more general.
        let word = words.max_by_key(|word| word.starts_with("kube-apiserver"));
        return named("", word.unwrap_or_default());
    }
    match endpoint.workloads.first() {
        Some(workload) => named(&workload.kind, &workload.name),
        None => named("Pod", &endpoint.pod_name),
    }
}

fn port(flow: &Flow) -> (u16, &'static str) {
    let port = |ports: &Ports| u16::try_from(ports.destination).unwrap_or(0);
    match flow.l4.as_ref().and_then(|l4| l4.protocol.as_ref()) {
        Some(Protocol::Tcp(ports)) => (port(ports), "TCP"),
        Some(Protocol::Udp(ports)) => (port(ports), "UDP"),
        Some(Protocol::Sctp(ports)) => (port(ports), "SCTP"),
        Some(Protocol::IcmpV4(_)) => (0, "ICMP"),
        Some(Protocol::IcmpV6(_)) => (0, "ICMPv6"),
        None => (0, ""),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::messages::{Ip, Layer4, Policy, Workload};

    /// A flow that Cilium records when a pod opens a connection that no policy allows.
    fn egress_drop() -> Flow {
        let workload = Workload { name: "web".to_owned(), kind: "Deployment".to_owned() };
        Flow {
            verdict: DROPPED,
            drop_reason: 133,
            r#type: 1,
            traffic_direction: EGRESS,
            ip: Some(Ip { source: "10.0.1.7".to_owned(), destination: "93.184.216.34".to_owned() }),
            l4: Some(Layer4 { protocol: Some(Protocol::Tcp(Ports { destination: 443 })) }),
            source: Some(Endpoint {
                namespace: "shop".to_owned(),
                labels: vec!["k8s:app=web".to_owned(), "k8s:io.kubernetes.pod.namespace=shop".to_owned()],
                pod_name: "web-5d4b8c7f9-x2x7q".to_owned(),
                workloads: vec![workload],
            }),
            destination: Some(Endpoint { labels: vec!["reserved:world".to_owned()], ..Endpoint::default() }),
            destination_names: vec!["example.com.".to_owned()],
            ..Flow::default()
        }
    }

    fn key(flow: &Flow) -> Result<AlertKey, Ignored> {
        key_of_flow(flow, None, |_| true).map(|(key, _)| key)
    }

    #[test]
    fn drop_has_workload_name_and_port() {
        let (key, sample) = key_of_flow(&egress_drop(), None, |namespace| namespace == "shop").unwrap();
        assert_eq!(key.source.to_string(), "shop/Deployment/web");
        assert_eq!(key.destination.to_string(), "example.com (443/TCP)");
        assert_eq!(
            (&*key.namespace, &*key.reason, &*sample),
            ("shop", "not-allowed", "10.0.1.7 to 93.184.216.34")
        );
    }

    #[test]
    fn only_policies_that_ask_are_alerts() {
        let policy = |asks: &str| {
            let mut set = PolicySet::default();
            set.apply(&json!({
                "metadata": {"namespace": "shop", "name": "p", "annotations": {"app.gitlab.com/alert": asks}},
                "spec": {"endpointSelector": {"matchLabels": {"app": "web"}}, "egress": [{}]},
            }));
            set
        };
        let found =
            |asks| key_of_flow(&egress_drop(), Some(&policy(asks)), |_| true).map(|(key, _)| key.policy);
        assert_eq!(found("true").unwrap().to_string(), "shop/p");
        assert_eq!(found("false"), Err(Ignored::NotAsked));
    }

    #[test]
    fn other_flows_are_ignored() {
        let flow = egress_drop();
        assert_eq!(key(&Flow { verdict: 1, ..flow.clone() }), Err(Ignored::OtherReason), "forwarded");
        assert_eq!(
            key(&Flow { drop_reason: 151, ..flow.clone() }),
            Err(Ignored::OtherReason),
            "not routable"
        );
        assert_eq!(key(&Flow { verdict: i32::MIN, ..flow.clone() }), Err(Ignored::OtherReason));
        assert_eq!(key_of_flow(&flow, None, |_| false).unwrap_err(), Ignored::OutOfScope);
        assert_eq!(key(&Flow::default()), Err(Ignored::OtherReason));
    }

    #[test]
    fn audits_and_requests_have_no_drop_reason() {
        let audited = key(&Flow { verdict: AUDIT, drop_reason: 0, ..egress_drop() }).unwrap();
        assert_eq!(audited.verdict, Verdict::Audited);
        let request = key(&Flow { drop_reason: 0, r#type: L7, ..egress_drop() }).unwrap();
        assert_eq!(request.reason, "request-not-allowed");
        assert_eq!(key(&Flow { drop_reason: 0, ..egress_drop() }), Err(Ignored::OtherReason));
    }

    #[test]
    fn ingress_belongs_to_the_namespace_of_the_receiver() {
        let Flow { source, destination, .. } = egress_drop();
        let labels = vec!["reserved:kube-apiserver".to_owned(), "reserved:world".to_owned()];
        let denied = Policy { name: "deny".to_owned(), namespace: "shop".to_owned(), ..Policy::default() };
        let flow = Flow {
            traffic_direction: 0,
            source: destination.map(|world| Endpoint { labels, ..world }),
            destination: source.map(|pod| Endpoint { workloads: Vec::new(), ..pod }),
            ingress_denied_by: vec![denied],
            ..egress_drop()
        };
        let key = key(&flow).unwrap();
        assert_eq!((&*key.namespace, key.policy.to_string().as_str()), ("shop", "shop/deny"));
        assert_eq!(key.source.to_string(), "kube-apiserver");
        assert_eq!(
            key.destination.to_string(),
            "shop/Pod/web-5d4b8c7f9-x2x7q (443/TCP)",
            "no DNS name for a pod"
        );
    }

    #[test]
    fn hostile_texts_are_cut() {
        let long = "x\u{1b}\n".repeat(100_000);
        let mut flow = egress_drop();
        flow.destination_names = vec![long.clone()];
        flow.ip = Some(Ip { source: long.clone(), destination: long.clone() });
        flow.l4 = Some(Layer4 { protocol: Some(Protocol::Udp(Ports { destination: u32::MAX })) });
        let source = flow.source.as_mut().unwrap();
        (source.namespace, source.workloads[0].name, source.workloads[0].kind) =
            (long.clone(), long.clone(), long.clone());
        source.labels = vec![long; 100];
        let (key, sample) = key_of_flow(&flow, None, |_| true).unwrap();
        let texts = [&key.namespace, &key.source.kind, &key.source.name, &key.destination.peer.name, &sample];
        assert!(texts.iter().all(|text| text.len() <= 253 && !text.contains(char::is_control)), "{texts:?}");
        assert_eq!(key.destination.port, 0, "it is no port");
    }
}
