//! The tables of agents and clusters. All texts come from kas and from agents.

use std::{collections::BTreeMap, fmt::Write as _};

use serde::Deserialize;

use super::NO_AGENT;
use crate::table::{Table, printable};

/// A page of agents.
#[derive(Deserialize)]
pub(super) struct AgentPage {
    pub(super) agents: Vec<AgentLine>,
    pub(super) missing: Option<String>,
    #[serde(rename = "continue")]
    pub(super) next: Option<String>,
}

/// An agent.
#[derive(Deserialize)]
pub(super) struct AgentLine {
    #[serde(flatten)]
    facts: FactsLine,
    rights: BTreeMap<String, Vec<String>>,
}

/// The fleet.
#[derive(Deserialize)]
pub(super) struct FleetReport {
    pub(super) missing: Option<String>,
    agentk_versions: Vec<VersionLine>,
    kubernetes_versions: Vec<VersionLine>,
    total: TotalLine,
    pub(super) clusters: Vec<ClusterLine>,
}

/// The cluster of an agent.
#[derive(Deserialize)]
pub(super) struct ClusterLine {
    #[serde(flatten)]
    facts: FactsLine,
    pub(super) missing: Option<String>,
    capacity: Option<CapacityLine>,
}

#[derive(Deserialize)]
struct FactsLine {
    name: String,
    title: Option<String>,
    state: String,
    agentk_versions: Vec<String>,
    kubernetes_version: Option<String>,
    tunnels: u32,
}

#[derive(Deserialize)]
struct VersionLine {
    version: Option<String>,
    agents: u64,
}

#[derive(Deserialize)]
struct TotalLine {
    clusters: u64,
    nodes: NodesLine,
    allocatable: AmountsLine,
    clusters_with_requests: u64,
    requested: AmountsLine,
}

#[derive(Deserialize)]
struct CapacityLine {
    nodes: Option<NodesLine>,
    allocatable: Option<AmountsLine>,
    requested: Option<AmountsLine>,
    #[serde(default)]
    partial: Vec<String>,
}

#[derive(Clone, Copy, Deserialize)]
struct NodesLine {
    all: u64,
    ready: u64,
}

#[derive(Clone, Copy, Deserialize)]
struct AmountsLine {
    cpu_millicores: u64,
    memory_bytes: u64,
}

/// Returns the table of agents.
pub(super) fn list(agents: &[AgentLine]) -> String {
    if agents.is_empty() {
        return NO_AGENT.to_owned();
    }
    let mut table = Table::new(&["AGENT", "TITLE", "STATE", "TUNNELS", "AGENTK", "KUBERNETES", "SERVICES"]);
    for AgentLine { facts, rights } in agents {
        let FactsLine { name, title, state, agentk_versions, kubernetes_version, tunnels } = facts;
        table.row([
            name.clone(),
            title.clone().unwrap_or_default(),
            state.clone(),
            tunnels.to_string(),
            agentk_versions.join(","),
            kubernetes_version.clone().unwrap_or_default(),
            rights.keys().cloned().collect::<Vec<_>>().join(","),
        ]);
    }
    table.to_string()
}

/// Returns the sums, the table of clusters, and the reasons why something is missing.
pub(super) fn describe(report: &FleetReport) -> String {
    let TotalLine { clusters, nodes, allocatable, clusters_with_requests, requested } = &report.total;
    let requests = |show: fn(AmountsLine) -> String| match clusters_with_requests {
        0 => "?".to_owned(),
        _ => show(*requested),
    };
    let mut text = format!(
        "{}, {} ({} ready), {} of {} CPUs and {} of {} memory requested",
        counted(*clusters, "cluster"),
        counted(nodes.all, "node"),
        nodes.ready,
        requests(cpus),
        cpus(*allocatable),
        requests(memory),
        memory(*allocatable),
    );
    if *clusters_with_requests > 0 && clusters_with_requests != clusters {
        let _ = write!(text, " (requests of {})", counted(*clusters_with_requests, "cluster"));
    }
    text.push('\n');
    let _ = writeln!(text, "agentk: {}", versions(&report.agentk_versions));
    let _ = writeln!(text, "Kubernetes: {}\n", versions(&report.kubernetes_versions));
    let _ = write!(text, "{}", table(&report.clusters));
    for ClusterLine { facts, missing, capacity } in &report.clusters {
        let partial = capacity.iter().flat_map(|capacity| &capacity.partial);
        for reason in missing.iter().chain(partial) {
            let _ = writeln!(text, "{}: {}", printable(&facts.name), printable(reason));
        }
    }
    text
}

fn table(clusters: &[ClusterLine]) -> Table {
    let mut table = Table::new(&["AGENT", "TITLE", "STATE", "KUBERNETES", "NODES", "CPU", "MEMORY"]);
    for ClusterLine { facts, capacity, .. } in clusters {
        let nodes = capacity.as_ref().and_then(|capacity| capacity.nodes);
        let amounts = |show: fn(AmountsLine) -> String| {
            let capacity = capacity.as_ref()?;
            let requested = capacity.requested.map_or_else(|| "?".to_owned(), show);
            Some(format!("{requested}/{}", show(capacity.allocatable?)))
        };
        table.row([
            facts.name.clone(),
            facts.title.clone().unwrap_or_default(),
            facts.state.clone(),
            facts.kubernetes_version.clone().unwrap_or_default(),
            nodes.map(|nodes| format!("{}/{}", nodes.ready, nodes.all)).unwrap_or_default(),
            amounts(cpus).unwrap_or_default(),
            amounts(memory).unwrap_or_default(),
        ]);
    }
    table
}

fn versions(versions: &[VersionLine]) -> String {
    let version = |line: &VersionLine| {
        format!("{} ({})", printable(line.version.as_deref().unwrap_or("unknown")), line.agents)
    };
    versions.iter().map(version).collect::<Vec<_>>().join(", ")
}

fn counted(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Returns the processors. Few millicores are written as Kubernetes does.
fn cpus(amounts: AmountsLine) -> String {
    match amounts.cpu_millicores {
        0 => "0".to_owned(),
        millicores @ 1..100 => format!("{millicores}m"),
        millicores => format!("{:.1}", millicores as f64 / 1000.0),
    }
}

fn memory(amounts: AmountsLine) -> String {
    const MIB: u64 = 1 << 20;
    match amounts.memory_bytes {
        0 => "0".to_owned(),
        bytes if bytes.div_ceil(MIB) < 1 << 10 => format!("{}Mi", bytes.div_ceil(MIB)),
        bytes => format!("{:.1}Gi", bytes as f64 / (MIB << 10) as f64),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{super::ClusterReport as _, *};

    fn agent(name: &str, state: &str) -> Value {
        json!({"id": 7, "name": name, "title": "shop/web:prod", "project": "shop/web", "state": state, "tunnels": 2,
            "agentk_versions": ["0.1.0"], "kubernetes_version": "v1.34.1", "cluster": null})
    }

    #[test]
    fn table_of_agents_has_their_services() {
        let mut line = agent("7", "connected");
        line["rights"] = json!({"graph": ["read"], "kubernetes": ["use"]});
        let agents: Vec<AgentLine> = serde_json::from_value(json!([line])).unwrap();
        let lines = [
            "AGENT  TITLE          STATE      TUNNELS  AGENTK  KUBERNETES  SERVICES",
            "7      shop/web:prod  connected  2        0.1.0   v1.34.1     graph,kubernetes",
            "",
        ];
        assert_eq!(list(&agents), lines.join("\n"));
        assert_eq!(list(&[]), "There is no such agent.\n");
    }

    #[test]
    fn fleet_has_its_sums_and_what_is_missing() {
        let (mut one, mut two) = (agent("7", "connected"), agent("8", "away"));
        let amounts = |cpu: u64| json!({"cpu_millicores": cpu, "memory_bytes": cpu << 20});
        one["capacity"] = json!({"nodes": {"all": 3, "ready": 2, "unschedulable": 0}, "allocatable": amounts(6000),
            "requested": null, "partial": ["Pod: you may not\u{1b}[2J list them"]});
        two["missing"] = "the agent is not connected".into();
        let report = json!({"missing": null, "agentk_versions": [{"version": "0.1.0", "agents": 1}],
            "kubernetes_versions": [{"version": null, "agents": 1}], "clusters": [one, two],
            "total": {"clusters": 1, "nodes": {"all": 3, "ready": 2, "unschedulable": 0}, "allocatable": amounts(6000),
                "clusters_with_requests": 0, "requested": amounts(0)}});
        let report: FleetReport = serde_json::from_value(report).unwrap();
        let lines = [
            "1 cluster, 3 nodes (2 ready), ? of 6.0 CPUs and ? of 5.9Gi memory requested",
            "agentk: 0.1.0 (1)",
            "Kubernetes: unknown (1)",
            "",
            "AGENT  TITLE          STATE      KUBERNETES  NODES  CPU    MEMORY",
            "7      shop/web:prod  connected  v1.34.1     2/3    ?/6.0  ?/5.9Gi",
            "8      shop/web:prod  away       v1.34.1     -      -      -",
            "7: Pod: you may not?[2J list them",
            "8: the agent is not connected",
            "",
        ];
        assert_eq!(describe(&report), lines.join("\n"));
        assert_eq!(report.exit_code(), 2);
    }

    #[test]
    fn small_amounts_are_not_rounded_to_nothing() {
        let amounts = |cpu_millicores, memory_bytes| AmountsLine { cpu_millicores, memory_bytes };
        for (line, expected) in [
            (amounts(0, 0), ["0", "0"]),
            (amounts(5, 1), ["5m", "1Mi"]),
            (amounts(99, 70 << 20), ["99m", "70Mi"]),
            (amounts(100, 1 << 30), ["0.1", "1.0Gi"]),
            (amounts(100, (1 << 30) - (1 << 19)), ["0.1", "1.0Gi"]),
            (amounts(7900, 33 << 30), ["7.9", "33.0Gi"]),
        ] {
            assert_eq!([cpus(line), memory(line)], expected);
        }
        assert_eq!([0, 1, 2].map(|number| counted(number, "node")), ["0 nodes", "1 node", "2 nodes"]);
    }

    #[test]
    fn requests_of_some_clusters_say_so_and_unknown_agents_are_an_exit_code() {
        let amounts = |cpu: u64| json!({"cpu_millicores": cpu, "memory_bytes": cpu << 20});
        let report = |with_requests: u64, missing: Value| -> FleetReport {
            let report = json!({"missing": missing, "agentk_versions": [], "kubernetes_versions": [],
                "clusters": [agent("7", "connected")],
                "total": {"clusters": 2, "nodes": {"all": 6, "ready": 6, "unschedulable": 0}, "allocatable": amounts(12000),
                    "clusters_with_requests": with_requests, "requested": amounts(3000)}});
            serde_json::from_value(report).unwrap()
        };
        let text = describe(&report(1, Value::Null));
        let first = "2 clusters, 6 nodes (6 ready), 3.0 of 12.0 CPUs and 2.9Gi of 11.7Gi memory requested";
        assert_eq!(text.lines().next(), Some(&*format!("{first} (requests of 1 cluster)")));
        assert_eq!(describe(&report(2, Value::Null)).lines().next(), Some(first));
        assert_eq!(report(2, Value::Null).exit_code(), 0);
        assert_eq!(report(2, "Redis does not answer".into()).exit_code(), 2, "agents may be missing");
    }
}
