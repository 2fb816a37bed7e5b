//! What an idle fleet costs Redis, counted by Redis.

use std::time::{Duration, SystemTime};

use proto::{AgentId, InstanceId};
use router::{Instance, RouteStore as _};
use tokio::time::timeout;

use crate::{Member, PATIENCE, redis, server::Server};

const AGENTS: u64 = 10_000;

/// Commands by `INFO commandstats`, those that scripts run included.
async fn commands(server: &Server) -> u64 {
    let stats: String = server.run("INFO commandstats").await;
    let calls =
        stats.lines().filter(|line| line.starts_with("cmdstat_") && !line.starts_with("cmdstat_info"));
    let calls = calls.filter_map(|line| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok());
    calls.sum()
}

#[tokio::test]
async fn ten_thousand_idle_agents_on_three_replicas() {
    let Some(server) = redis().await else { return };
    let mut members = Vec::new();
    for _ in 0..3 {
        members.push(Member::joined(server.settings()).await);
    }
    let before: usize = memory(&server).await;
    for member in &members {
        for agent in 0..AGENTS {
            let instance = Instance {
                id: InstanceId::random(),
                version: "0.1.0".into(),
                pod_namespace: Some("gitlab-agent-prod".into()),
                pod_name: Some("agentk-7d9f8b6c5-x2x4z".into()),
                kubernetes_version: Some("v1.34.1".into()),
                since: SystemTime::now(),
                tunnels: 1,
            };
            member.store.describe(AgentId(agent), member.id, vec![instance]);
            member.announce(agent, agent + 1).await;
        }
    }
    // Every replica has told Redis everything.
    let told = async {
        for member in &members {
            let key = format!("HLEN {{kas}}:routes:{}", member.id);
            while server.run::<u64>(&key).await <= AGENTS {
                tokio::task::yield_now().await;
            }
        }
    };
    timeout(PATIENCE, told).await.unwrap();
    let pairs = 3 * AGENTS as usize;
    let bytes = (memory(&server).await - before) / pairs;
    assert!(bytes < 200, "{bytes} bytes for each agent and replica");

    for member in &members {
        let life: i64 = server.run(&format!("PTTL {{kas}}:routes:{}", member.id)).await;
        assert!((1..=3_600_000).contains(&life), "{life}");
        let life: i64 = server.run(&format!("PTTL {{kas}}:replica:{}", member.id)).await;
        assert!((1..=10_000).contains(&life), "{life}");
    }

    // Five beats of each replica are the period of everything that repeats.
    let sent =
        |members: &[Member]| members.iter().map(|member| member.store.counts().commands.get()).sum::<u64>();
    let (scripts, start) = (sent(&members), commands(&server).await);
    let idle = async {
        while sent(&members) < scripts + 15 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, idle).await.unwrap();
    let repeated = commands(&server).await - start;
    // 15 beats of three commands each and three audits of two more, besides what this test itself asks: they are sent in
    // 15 seconds, however long this machine took for them.
    assert!((45..5 * 15).contains(&repeated), "{repeated} commands for 15 beats");
}

async fn memory(server: &Server) -> usize {
    let info: String = server.run("INFO memory").await;
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory_dataset:"));
    used.unwrap().trim().parse().unwrap()
}
