//! The cost of an idle fleet, measured by Redis.

use std::time::{Duration, SystemTime};

use proto::{AgentId, InstanceId};
use store::{Instance, ReportedInfo, RouteStore as _};
use tokio::time::timeout;

use crate::{TIMEOUT, TestReplica, redis, server::Server};

const AGENTS: u64 = 10_000;

/// Returns the number of commands so far by `INFO commandstats`, which includes those of scripts.
async fn commands(server: &Server) -> u64 {
    let stats: String = server.run("INFO commandstats").await;
    let calls =
        stats.lines().filter(|line| line.starts_with("cmdstat_") && !line.starts_with("cmdstat_info"));
    let calls = calls.filter_map(|line| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok());
    calls.sum()
}

#[tokio::test]
async fn idle_fleet_cost_does_not_depend_on_agents() {
    let Some(server) = redis() else { return };
    let mut replicas = Vec::new();
    for _ in 0..3 {
        replicas.push(TestReplica::joined(server.settings()).await);
    }
    let before: usize = memory(&server).await;
    for replica in &replicas {
        for agent in 0..AGENTS {
            let instance = Instance {
                id: InstanceId::random(),
                reported: ReportedInfo {
                    version: "0.1.0".into(),
                    pod_namespace: Some("gitlab-agent-prod".into()),
                    pod_name: Some("agentk-7d9f8b6c5-x2x4z".into()),
                    kubernetes_version: Some("v1.34.1".into()),
                    cluster: Some("0b5c1e4f-6a0e-4b0e-9a53-1c6e1f0d2a7b".into()),
                    scope: Some("cluster".into()),
                },
                since: SystemTime::now(),
                tunnels: 1,
            };
            replica.store.set_instances(AgentId(agent), replica.id, vec![instance]);
            replica.announce(agent, agent + 1).await;
        }
    }
    let written = async {
        for replica in &replicas {
            let key = format!("HLEN {{kas}}:routes:{}", replica.id);
            while server.run::<u64>(&key).await <= AGENTS {
                tokio::task::yield_now().await;
            }
        }
    };
    timeout(TIMEOUT, written).await.unwrap();
    let pairs = 3 * AGENTS as usize;
    let bytes = (memory(&server).await - before) / pairs;
    assert!(bytes < 260, "{bytes} bytes per agent and replica");

    for replica in &replicas {
        let ttl: i64 = server.run(&format!("PTTL {{kas}}:routes:{}", replica.id)).await;
        assert!((1..=3_600_000).contains(&ttl), "{ttl}");
        let ttl: i64 = server.run(&format!("PTTL {{kas}}:replica:{}", replica.id)).await;
        assert!((1..=17_000).contains(&ttl), "{ttl}");
    }

    // All periodic work repeats after three heartbeats of each replica.
    let sent = |replicas: &[TestReplica]| {
        replicas.iter().map(|replica| replica.store.metrics().commands.get()).sum::<u64>()
    };
    let (scripts, start) = (sent(&replicas), commands(&server).await);
    let idle = async {
        while sent(&replicas) < scripts + 9 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(TIMEOUT, idle).await.unwrap();
    let repeated = commands(&server).await - start;
    // 9 heartbeats of three commands each, three audits of three more, and the queries of this test. The limit counts
    // commands, not time, so that a busy machine does not matter.
    assert!((27..5 * 9).contains(&repeated), "{repeated} commands for 9 heartbeats");
}

async fn memory(server: &Server) -> usize {
    let info: String = server.run("INFO memory").await;
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory_dataset:"));
    used.unwrap().trim().parse().unwrap()
}
