//! Selects the Service of Prometheus among candidates, and its address.

use std::{fmt, net::IpAddr};

use serde::Deserialize;

use crate::upstream::{ServerUrl, is_service_address};

/// The names of HTTP ports: that of the operator, of kube-prometheus-stack, and of the Helm chart `prometheus`.
const PORT_NAMES: [&str; 3] = ["web", "http-web", "http"];
/// The default port of Prometheus.
const PORT: u16 = 9090;

/// The result of a selection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Selection {
    None,
    One(DiscoveredService),
    /// The names of the candidates.
    Several(Vec<String>),
}

/// A Service and its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DiscoveredService {
    /// `namespace/name`.
    pub(super) service: String,
    pub(super) url: ServerUrl,
}

#[derive(Debug, Deserialize)]
pub(super) struct ServiceList {
    pub(super) items: Vec<KubeService>,
}

#[derive(Debug, Deserialize)]
pub(super) struct KubeService {
    metadata: Metadata,
    spec: Spec,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    name: String,
    namespace: String,
}

#[derive(Debug, Deserialize)]
struct Spec {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(rename = "clusterIP", default)]
    cluster_ip: String,
    #[serde(default)]
    ports: Vec<Port>,
}

#[derive(Debug, Deserialize)]
struct Port {
    #[serde(default)]
    name: String,
    port: u16,
}

/// Selects the only candidate. Services with a cluster IP are preferred to headless ones: charts create both for the same
/// server.
pub(super) fn select(services: &[KubeService]) -> Selection {
    let candidates =
        services.iter().filter_map(|service| Some((service.is_headless(), service.discovered()?)));
    let (headless, other): (Vec<_>, Vec<_>) = candidates.partition(|(headless, _)| *headless);
    let mut candidates: Vec<_> =
        if other.is_empty() { headless } else { other }.into_iter().map(|(_, service)| service).collect();
    match candidates.pop() {
        None => Selection::None,
        Some(service) if candidates.is_empty() => Selection::One(service),
        Some(last) => {
            candidates.push(last);
            let mut names: Vec<_> = candidates.into_iter().map(|candidate| candidate.service).collect();
            names.sort();
            Selection::Several(names)
        }
    }
}

impl KubeService {
    fn is_headless(&self) -> bool {
        matches!(&*self.spec.cluster_ip, "" | "None")
    }

    /// Returns `None` for a Service without an HTTP port, and for an `ExternalName`, which is outside of the cluster.
    fn discovered(&self) -> Option<DiscoveredService> {
        if self.spec.kind == "ExternalName" {
            return None;
        }
        let Metadata { name, namespace } = &self.metadata;
        if ![name, namespace].into_iter().all(|name| is_label(name)) {
            return None;
        }
        // A cluster IP needs no DNS; a headless Service has nothing else.
        let host = if self.is_headless() {
            format!("{name}.{namespace}.svc")
        } else {
            match self.spec.cluster_ip.parse().ok().filter(is_service_address)? {
                IpAddr::V4(ip) => ip.to_string(),
                IpAddr::V6(ip) => format!("[{ip}]"),
            }
        };
        let url = format!("http://{host}:{}", port(&self.spec.ports)?).parse().ok()?;

        Some(DiscoveredService { service: format!("{namespace}/{name}"), url })
    }
}

/// Returns true for a DNS label (RFC 1123), which every name of a Service or a namespace is. Any other name could be another
/// host, or a path.
fn is_label(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=63).contains(&name.len()) && name.bytes().all(plain)
}

/// Returns the port with a known name, with the default number, or the only one.
fn port(ports: &[Port]) -> Option<u16> {
    let plain = || ports.iter().filter(|port| !port.name.contains("https"));
    let named = PORT_NAMES.iter().find_map(|name| plain().find(|port| port.name == *name));
    let known = named.or_else(|| plain().find(|port| port.port == PORT));
    let only = || plain().next().filter(|_| ports.len() == 1);

    known.or_else(only).map(|port| port.port)
}

impl fmt::Display for DiscoveredService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.service, self.url)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn service(name: &str, cluster_ip: &str, ports: Value) -> Value {
        json!({
            "metadata": {"name": name, "namespace": "monitoring"},
            "spec": {"type": "ClusterIP", "clusterIP": cluster_ip, "ports": ports},
        })
    }

    fn selected(items: &[Value]) -> Result<String, String> {
        let list: ServiceList = serde_json::from_value(json!({"items": items})).unwrap();
        match select(&list.items) {
            Selection::None => Err("nothing".to_owned()),
            Selection::One(found) => Ok(found.to_string()),
            Selection::Several(names) => Err(names.join(" ")),
        }
    }

    #[test]
    fn services_of_known_charts_are_selected() {
        let stack = [
            service(
                "kps-prometheus",
                "10.0.0.7",
                json!([{"name": "http-web", "port": 9090}, {"name": "reloader-web", "port": 8080}]),
            ),
            service("prometheus-operated", "None", json!([{"name": "http-web", "port": 9090}])),
        ];
        assert_eq!(selected(&stack).unwrap(), "monitoring/kps-prometheus at http://10.0.0.7:9090");
        assert_eq!(
            selected(&stack[1..]).unwrap(),
            "monitoring/prometheus-operated at http://prometheus-operated.monitoring.svc:9090"
        );
        let chart = service("prometheus-server", "fd00::7", json!([{"name": "http", "port": 80}]));
        assert_eq!(selected(&[chart]).unwrap(), "monitoring/prometheus-server at http://[fd00::7]:80");
    }

    #[test]
    fn several_candidates_are_named() {
        let [a, b] = ["b", "a"].map(|name| service(name, "10.0.0.1", json!([{"port": 9090}])));
        assert_eq!(selected(&[a, b]), Err("monitoring/a monitoring/b".to_owned()));
    }

    #[test]
    fn service_that_cannot_be_prometheus_is_skipped() {
        let mut elsewhere = service("elsewhere", "", json!([{"port": 9090}]));
        elsewhere["spec"]["type"] = "ExternalName".into();
        let bare = json!({"metadata": {"name": "bare", "namespace": "x"}, "spec": {}});
        for odd in [
            elsewhere,
            bare,
            service("secure", "10.0.0.1", json!([{"name": "https-web", "port": 9090}])),
            service("many", "10.0.0.1", json!([{"name": "a", "port": 1}, {"name": "b", "port": 2}])),
            service("odd", "evil.example/", json!([{"port": 9090}])),
            service("metadata", "169.254.169.254", json!([{"port": 80}])),
            service("loopback", "127.0.0.1", json!([{"port": 9090}])),
            service("loopback", "::1", json!([{"port": 9090}])),
            service("mapped", "::ffff:127.0.0.1", json!([{"port": 9090}])),
            service("evil.example/x", "None", json!([{"port": 9090}])),
            service("me@evil", "None", json!([{"port": 9090}])),
            service("", "None", json!([{"port": 9090}])),
            service("zero", "10.0.0.1", json!([{"port": 0}])),
        ] {
            let found = selected(std::slice::from_ref(&odd));
            assert!(found == Err("nothing".to_owned()), "{odd}: {found:?}");
        }
        assert!(selected(&[]).is_err());
    }

    #[test]
    fn only_port_is_used_whatever_its_name() {
        let one = service("p", "10.0.0.1", json!([{"name": "main", "port": 8080}]));
        assert_eq!(selected(&[one]).unwrap(), "monitoring/p at http://10.0.0.1:8080");
    }
}
