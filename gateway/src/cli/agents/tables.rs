//! The list of agents as text.

use std::{collections::BTreeSet, time::SystemTime};

use store::ReportedInfo;

use cli::table::{Table, age, milliseconds};
use kas_core::{
    agent_list::{AgentList, AgentStatus, ServiceLoad, TunnelStatus},
    agent_locations::{AgentState, InstanceInfo},
    agents::VersionSkew,
};

/// Returns a table with one line per agent.
pub(super) fn summary(listing: &AgentList) -> String {
    let mut table = Table::new(&[
        "ID",
        "NAME",
        "STATE",
        "AWAY",
        "REPLICAS",
        "TUNNELS",
        "IN-FLIGHT",
        "ROUND-TRIP",
        "AGENTK",
        "KUBERNETES",
        "SCOPE",
        "SERVICES",
    ]);
    for agent in &listing.agents {
        let tunnels = &agent.tunnels;
        let services = || tunnels.iter().flat_map(|tunnel| &tunnel.services);
        let slowest = tunnels.iter().filter_map(|tunnel| tunnel.round_trip_ms).reduce(f64::max);
        let instances = || agent.elsewhere.iter().flat_map(|holder| &holder.instances);
        let here = || tunnels.iter().map(|tunnel| &tunnel.reported);
        let processes = || here().chain(instances().map(|instance| &instance.reported));
        let versions: Vec<String> =
            processes().map(|process| agentk_version(&process.version, listing)).collect();
        let count = tunnels.len() + instances().map(|instance| usize::from(instance.tunnels)).sum::<usize>();
        let some = |text: String| if tunnels.is_empty() { String::new() } else { text };
        table.row([
            agent.id.to_string(),
            agent.name.to_string(),
            marked(agent, state(&agent.state)),
            away(agent, listing.time),
            replicas(agent, listing),
            if count == 0 { String::new() } else { count.to_string() },
            some(in_flight(services())),
            slowest.map(milliseconds).unwrap_or_default(),
            distinct(versions.iter().map(String::as_str)),
            distinct(processes().filter_map(|process| process.kubernetes_version.as_deref())),
            distinct(processes().filter_map(|process| process.scope.as_deref())),
            distinct(services().map(|service| service.name.as_str())),
        ]);
    }
    table.to_string()
}

/// Returns a table with one line per tunnel, per agentk process at another replica, and per agent without tunnels.
pub(super) fn wide(listing: &AgentList) -> String {
    let mut table = Table::new(&[
        "ID",
        "NAME",
        "STATE",
        "AWAY",
        "REPLICA",
        "TUNNEL",
        "OPEN",
        "PEER",
        "TOKEN",
        "INSTANCE",
        "POD",
        "AGENTK",
        "KUBERNETES",
        "ROUND-TRIP",
        "IN-FLIGHT",
    ]);
    for agent in &listing.agents {
        let (id, name) = (agent.id.to_string(), agent.name.to_string());
        for tunnel in &agent.tunnels {
            let state = if tunnel.draining { "draining" } else { state(&agent.state) };
            table.row([
                id.clone(),
                name.clone(),
                marked(agent, state),
                String::new(),
                short(&listing.replica.to_string()),
                short(&tunnel.id.to_string()),
                since(tunnel.since, listing.time),
                tunnel.peer.clone(),
                tunnel.token.clone(),
                format!("{}#{}", short(&tunnel.instance.to_string()), tunnel.index),
                pod(&tunnel.reported),
                agentk_version(&tunnel.reported.version, listing),
                tunnel.reported.kubernetes_version.clone().unwrap_or_default(),
                tunnel.round_trip_ms.map(milliseconds).unwrap_or_default(),
                by_service(tunnel),
            ]);
        }
        for holder in &agent.elsewhere {
            for instance in &holder.instances {
                let replica = short(&holder.replica.to_string());
                let state = marked(agent, "elsewhere");
                table.row(other_replica_cells([&id, &name, &state], replica, instance, listing));
            }
        }
        if agent.tunnels.is_empty() && agent.elsewhere.is_empty() {
            let mut cells = [const { String::new() }; 15];
            cells[..4].clone_from_slice(&[
                id,
                name,
                marked(agent, state(&agent.state)),
                away(agent, listing.time),
            ]);
            table.row(cells);
        }
    }
    table.to_string()
}

/// Returns the cells of an agentk process with tunnels to another replica.
fn other_replica_cells(
    agent: [&str; 3],
    replica: String,
    instance: &InstanceInfo,
    listing: &AgentList,
) -> [String; 15] {
    let mut cells = [const { String::new() }; 15];
    cells[..3].clone_from_slice(&agent.map(str::to_owned));
    cells[4..7].clone_from_slice(&[
        replica,
        format!("{}x", instance.tunnels),
        since(instance.since, listing.time),
    ]);
    cells[9..13].clone_from_slice(&[
        short(&instance.id.to_string()),
        pod(&instance.reported),
        agentk_version(&instance.reported.version, listing),
        instance.reported.kubernetes_version.clone().unwrap_or_default(),
    ]);
    cells
}

/// Returns the owners of an agent, beginning with the replica that created the list.
fn replicas(agent: &AgentStatus, listing: &AgentList) -> String {
    let here = (!agent.tunnels.is_empty()).then_some(listing.replica);
    let all = here.into_iter().chain(agent.elsewhere.iter().map(|holder| holder.replica));
    all.map(|replica| short(&replica.to_string())).collect::<Vec<_>>().join(",")
}

/// Returns the version of an agentk, marked if the next minor version of kas does not serve it.
fn agentk_version(version: &str, listing: &AgentList) -> String {
    match VersionSkew::new(&listing.version, version) {
        VersionSkew::Served | VersionSkew::TooNew => version.to_owned(),
        VersionSkew::Outdated | VersionSkew::TooOld => format!("{version}(outdated)"),
    }
}

/// Returns the state of an agent or a tunnel with marks for the problems of the agent.
fn marked(agent: &AgentStatus, state: &str) -> String {
    let marks = [
        (agent.disabled.is_some(), ",disabled"),
        (!agent.clusters.is_empty(), ",several-clusters"),
        (agent.refused.is_some(), ",refused"),
    ];
    marks.into_iter().filter(|(applies, _)| *applies).fold(state.to_owned(), |text, (_, mark)| text + mark)
}

fn state(state: &AgentState) -> &'static str {
    match state {
        AgentState::Connected => "connected",
        AgentState::Elsewhere => "elsewhere",
        AgentState::Away { .. } => "away",
        AgentState::Never => "never",
        AgentState::Unknown => "unknown",
    }
}

fn away(agent: &AgentStatus, now: SystemTime) -> String {
    match agent.state {
        AgentState::Away { since: then } => since(then, now),
        _ => String::new(),
    }
}

fn since(then: SystemTime, now: SystemTime) -> String {
    age(now.duration_since(then).unwrap_or_default())
}

fn in_flight<'a>(services: impl Iterator<Item = &'a ServiceLoad>) -> String {
    let (short, long) = services.fold((0u64, 0u64), |(short, long), service| {
        (short + u64::from(service.short), long + u64::from(service.long))
    });
    format!("{short}/{long}")
}

fn by_service(tunnel: &TunnelStatus) -> String {
    let each =
        tunnel.services.iter().map(|ServiceLoad { name, short, long }| format!("{name}={short}/{long}"));
    each.collect::<Vec<_>>().join(",")
}

fn distinct<'a>(values: impl Iterator<Item = &'a str>) -> String {
    let values: BTreeSet<_> = values.collect();
    values.into_iter().collect::<Vec<_>>().join(",")
}

fn pod(ReportedInfo { pod_namespace, pod_name, .. }: &ReportedInfo) -> String {
    [pod_namespace, pod_name].into_iter().flatten().map(String::as_str).collect::<Vec<_>>().join("/")
}

/// Returns the beginning of an id, which is enough to find it in the logs.
fn short(id: &str) -> String {
    id.chars().take(8).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shape is documented in docs/agents.md.
    const LISTING: &str = r#"{
      "replica": "0123456789abcdef0123456789abcdef", "version": "0.3.0", "time": "2026-11-20T13:00:00Z",
      "missing": null, "agents": [
        {"id": 1, "name": "production", "state": "connected", "tunnels": [
          {"id": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "peer": "192.0.2.7:40312", "token": "1a2b3c4d", "since": "2026-11-20T11:48:00Z",
           "draining": true, "instance": "cccccccccccccccccccccccccccccccc", "index": 0, "version": "0.1.0",
           "pod_namespace": "agentk", "pod_name": "agentk-7d9c", "kubernetes_version": "v1.34.1", "scope": "shop,web", "round_trip_ms": 12.3,
           "services": [{"name": "kubernetes", "short": 1, "long": 2}, {"name": "prometheus", "short": 3, "long": 0}]},
          {"id": "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb", "peer": "192.0.2.7:40313", "since": "2026-11-20T12:59:30Z",
           "draining": false, "instance": "cccccccccccccccccccccccccccccccc", "index": 1, "version": "0.2.0",
           "pod_namespace": null, "pod_name": null, "kubernetes_version": null, "round_trip_ms": null,
           "services": [{"name": "kubernetes", "short": 1, "long": 0}]}], "elsewhere": [
          {"replica": "fedcba9876543210fedcba9876543210", "instances": [{"id": "cccccccccccccccccccccccccccccccc",
           "version": "0.1.0", "pod_namespace": null, "pod_name": null, "kubernetes_version": null,
           "since": "2026-11-20T12:59:00Z", "tunnels": 3}]}]},
        {"id": 2, "name": "staging", "state": "away", "since": "2026-11-20T12:20:00Z", "tunnels": [], "elsewhere": [],
         "clusters": ["a", "b"], "refused": {"reason": "version", "message": "m", "time": "2026-11-20T12:59:00Z"}},
        {"id": 3, "name": "new", "state": "never", "tunnels": [], "elsewhere": []},
        {"id": 4, "name": "other", "state": "elsewhere", "tunnels": [], "elsewhere": [
          {"replica": "fedcba9876543210fedcba9876543210", "instances": [{"id": "dddddddddddddddddddddddddddddddd",
           "version": "0.3.0", "scope": "cluster", "pod_namespace": "agentk", "pod_name": "agentk-9", "kubernetes_version": "v1.33.0",
           "since": "2026-11-20T12:59:30Z", "tunnels": 2}]}]}
      ]}"#;

    fn listing() -> AgentList {
        serde_json::from_str(LISTING).unwrap()
    }

    #[test]
    fn summary_has_a_line_per_agent() {
        let expected = "\
ID  NAME        STATE                          AWAY   REPLICAS           TUNNELS  IN-FLIGHT  ROUND-TRIP  AGENTK                 KUBERNETES  SCOPE     SERVICES
1   production  connected                      -      01234567,fedcba98  5        5/2        12ms        0.1.0(outdated),0.2.0  v1.34.1     shop,web  kubernetes,prometheus
2   staging     away,several-clusters,refused  40m0s  -                  -        -          -           -                      -           -         -
3   new         never                          -      -                  -        -          -           -                      -           -         -
4   other       elsewhere                      -      fedcba98           2        -          -           0.3.0                  v1.33.0     cluster   -
";
        assert_eq!(summary(&listing()), expected);
    }

    #[test]
    fn wide_table_has_a_line_per_tunnel() {
        let table = wide(&listing());
        let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(lines.iter().all(|line| line.len() == 15), "{table}");
        assert_eq!(
            lines[1].join(" "),
            "1 production draining - 01234567 aaaaaaaa 1h12m 192.0.2.7:40312 1a2b3c4d cccccccc#0 agentk/agentk-7d9c 0.1.0(outdated) v1.34.1 12ms \
             kubernetes=1/2,prometheus=3/0"
        );
        assert_eq!(
            lines[2].join(" "),
            "1 production connected - 01234567 bbbbbbbb 30s 192.0.2.7:40313 - cccccccc#1 - 0.2.0 - - kubernetes=1/0"
        );
        assert_eq!(
            lines[3].join(" "),
            "1 production elsewhere - fedcba98 3x 1m0s - - cccccccc - 0.1.0(outdated) - - -"
        );
        assert_eq!(lines[4].join(" "), "2 staging away,several-clusters,refused 40m0s - - - - - - - - - - -");
        assert_eq!(
            lines[6].join(" "),
            "4 other elsewhere - fedcba98 2x 30s - - dddddddd agentk/agentk-9 0.3.0 v1.33.0 - -"
        );
    }
}
