//! Which of some Services is Prometheus, and at which address.

use std::{fmt, net::IpAddr};

use serde::Deserialize;

use super::address;
use crate::upstream::Endpoint;

/// Names of ports that are HTTP: the operator's, kube-prometheus-stack's, and that of the Helm chart `prometheus`.
const PORT_NAMES: [&str; 3] = ["web", "http-web", "http"];
const PORT: u16 = 9090;

/// What Prometheus may be.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Choice {
    Nothing,
    One(Found),
    /// Their names.
    Several(Vec<String>),
}

/// A Service with an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// `namespace/name`.
    pub(super) service: String,
    pub(super) endpoint: Endpoint,
}

#[derive(Debug, Deserialize)]
pub(super) struct ServiceList {
    pub(super) items: Vec<Service>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Service {
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

/// One with a cluster IP is preferred to a headless one: charts make both for the same server.
pub(super) fn choose(services: &[Service]) -> Choice {
    let candidates = services.iter().filter_map(|service| Some((service.is_headless(), service.found()?)));
    let (headless, other): (Vec<_>, Vec<_>) = candidates.partition(|(headless, _)| *headless);
    let mut candidates: Vec<_> =
        if other.is_empty() { headless } else { other }.into_iter().map(|(_, found)| found).collect();
    match candidates.pop() {
        None => Choice::Nothing,
        Some(found) if candidates.is_empty() => Choice::One(found),
        Some(last) => {
            candidates.push(last);
            let mut names: Vec<_> = candidates.into_iter().map(|found| found.service).collect();
            names.sort();
            Choice::Several(names)
        }
    }
}

impl Service {
    fn is_headless(&self) -> bool {
        matches!(&*self.spec.cluster_ip, "" | "None")
    }

    /// None for what has no port of HTTP, and for an `ExternalName`, which leads out of the cluster.
    fn found(&self) -> Option<Found> {
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
            match self.spec.cluster_ip.parse().ok().filter(address::may_be_of_a_service)? {
                IpAddr::V4(ip) => ip.to_string(),
                IpAddr::V6(ip) => format!("[{ip}]"),
            }
        };
        let endpoint = format!("http://{host}:{}", port(&self.spec.ports)?).parse().ok()?;

        Some(Found { service: format!("{namespace}/{name}"), endpoint })
    }
}

/// A DNS label (RFC 1123), which every name of a Service or a namespace is: anything else would be another host, or a path.
fn is_label(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=63).contains(&name.len()) && name.bytes().all(plain)
}

/// By its name, by its number, or because there is no other.
fn port(ports: &[Port]) -> Option<u16> {
    let plain = || ports.iter().filter(|port| !port.name.contains("https"));
    let named = PORT_NAMES.iter().find_map(|name| plain().find(|port| port.name == *name));
    let known = named.or_else(|| plain().find(|port| port.port == PORT));
    let only = || plain().next().filter(|_| ports.len() == 1);

    known.or_else(only).map(|port| port.port)
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.service, self.endpoint)
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

    fn choice(items: &[Value]) -> Result<String, String> {
        let list: ServiceList = serde_json::from_value(json!({"items": items})).unwrap();
        match choose(&list.items) {
            Choice::Nothing => Err("nothing".to_owned()),
            Choice::One(found) => Ok(found.to_string()),
            Choice::Several(names) => Err(names.join(" ")),
        }
    }

    #[test]
    fn the_charts_services() {
        let stack = [
            service(
                "kps-prometheus",
                "10.0.0.7",
                json!([{"name": "http-web", "port": 9090}, {"name": "reloader-web", "port": 8080}]),
            ),
            service("prometheus-operated", "None", json!([{"name": "http-web", "port": 9090}])),
        ];
        assert_eq!(choice(&stack).unwrap(), "monitoring/kps-prometheus at http://10.0.0.7:9090");
        assert_eq!(
            choice(&stack[1..]).unwrap(),
            "monitoring/prometheus-operated at http://prometheus-operated.monitoring.svc:9090"
        );
        let chart = service("prometheus-server", "fd00::7", json!([{"name": "http", "port": 80}]));
        assert_eq!(choice(&[chart]).unwrap(), "monitoring/prometheus-server at http://[fd00::7]:80");
    }

    #[test]
    fn several_are_named_and_none_is_taken() {
        let [a, b] = ["b", "a"].map(|name| service(name, "10.0.0.1", json!([{"port": 9090}])));
        assert_eq!(choice(&[a, b]), Err("monitoring/a monitoring/b".to_owned()));
    }

    #[test]
    fn what_cannot_be_prometheus_is_passed_over() {
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
            let found = choice(std::slice::from_ref(&odd));
            assert!(found == Err("nothing".to_owned()), "{odd}: {found:?}");
        }
        assert!(choice(&[]).is_err());
    }

    #[test]
    fn the_only_port_is_the_one() {
        let one = service("p", "10.0.0.1", json!([{"name": "main", "port": 8080}]));
        assert_eq!(choice(&[one]).unwrap(), "monitoring/p at http://10.0.0.1:8080");
    }
}
