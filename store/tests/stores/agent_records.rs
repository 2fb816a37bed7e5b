//! Tests of what replicas share about agents: the values of views, and the environments that agents name.

use proto::AgentId;
use store::{ProjectAgent, RouteStore as _};

use crate::{TestReplica, redis};

const AGENT: AgentId = AgentId(7);

#[tokio::test]
async fn views_of_an_agent_are_read_by_others() {
    let Some(server) = redis() else { return };
    let [here, there] =
        [TestReplica::joined(server.settings()).await, TestReplica::joined(server.settings()).await];
    assert_eq!(there.store.read_views(AGENT).await.unwrap(), None);
    here.store.write_views(AGENT, "{\"a\": 1}").await.unwrap();
    assert_eq!(there.store.read_views(AGENT).await.unwrap().as_deref(), Some(&b"{\"a\": 1}"[..]));
    assert_eq!(there.store.read_views(AgentId(8)).await.unwrap(), None);
    let ttl: i64 = server.run("PTTL kas:views:7").await;
    assert!(ttl > 6 * 86_400_000, "{ttl}");

    // A record that is too long is cut, and a value of another type is no record.
    here.store.write_views(AGENT, &"x".repeat(300 << 10)).await.unwrap();
    assert_eq!(there.store.read_views(AGENT).await.unwrap().unwrap().len(), 256 << 10);
    let _: () = server.run("DEL kas:views:7").await;
    let _: i64 = server.run("LPUSH kas:views:7 x").await;
    assert_eq!(there.store.read_views(AGENT).await.unwrap(), None);
}

#[tokio::test]
async fn environments_of_all_agents_are_read_by_others() {
    let Some(server) = redis() else { return };
    let [here, there] =
        [TestReplica::joined(server.settings()).await, TestReplica::joined(server.settings()).await];
    assert_eq!(there.store.environments().await.unwrap(), [b""; 0]);
    here.store.write_environments(AGENT, Some("a")).await.unwrap();
    here.store.write_environments(AgentId(8), Some("b")).await.unwrap();
    let sorted = async || {
        let mut records = there.store.environments().await.unwrap();
        records.sort();
        records
    };
    assert_eq!(sorted().await, [b"a", b"b"]);
    here.store.write_environments(AGENT, None).await.unwrap();
    assert_eq!(sorted().await, [b"b"]);

    // A record that is too long is left out, and a key of another type is replaced.
    here.store.write_environments(AGENT, Some(&"x".repeat(20_000))).await.unwrap();
    assert_eq!(sorted().await, [b"b"]);
    let _: () = server.run("SET {kas}:environments x").await;
    assert_eq!(there.store.environments().await.unwrap(), [b""; 0]);
}

#[tokio::test]
async fn path_of_a_project_of_gitlab_is_read_by_others() {
    let Some(server) = redis() else { return };
    let (here, there) =
        (TestReplica::joined(server.settings()).await, TestReplica::joined(server.settings()).await);
    let agent = |path: Option<&str>| ProjectAgent {
        agent: AGENT,
        name: "prod".parse().unwrap(),
        project: 1,
        project_path: path.map(Into::into),
    };
    here.store.set_project(agent(Some("shop/web")), here.id);
    here.announce(7, 1).await;
    there.wait_routes(7, &[here.route(1)]).await;
    assert_eq!(there.store.list_project_agents(None).await.agents, [agent(Some("shop/web"))]);
    let routes = format!("{{kas}}:routes:{}", here.id);
    let _: i64 = server.run(&format!("HSET {routes} n1 not:a:path")).await;
    assert_eq!(there.store.list_project_agents(None).await.agents, [agent(None)]);
    here.withdraw(7, 1).await;
    there.wait_routes(7, &[]).await;
    let fields: Vec<String> = server.run(&format!("HKEYS {routes}")).await;
    assert!(!fields.contains(&"n1".to_owned()), "{fields:?}");
}
