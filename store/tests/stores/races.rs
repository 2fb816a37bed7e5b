//! Tests of concurrent and delayed writes.

use proto::{AgentId, Epoch};
use store::{Route, RouteStore as _};

use crate::{TestReplica, redis};

#[tokio::test]
async fn highest_epoch_wins_in_any_order() {
    let Some(server) = redis() else { return };
    let (here, there) =
        (TestReplica::joined(server.settings()).await, TestReplica::joined(server.settings()).await);
    let mut tasks = Vec::new();
    for agent in 0..20 {
        for step in 0..50_u64 {
            // Odd epochs are withdrawn, even ones stay. The order differs for each agent.
            let epoch = (step * 7 + agent * 13) % 50 + 1;
            let (store, replica) = (here.store.clone(), here.id);
            tasks.push(tokio::spawn(async move {
                let route = Route { replica, epoch: Epoch(epoch) };
                store.announce(AgentId(agent), route).await.unwrap();
                tokio::task::yield_now().await;
                if epoch % 2 == 1 {
                    store.withdraw(AgentId(agent), route).await.unwrap();
                }
            }));
        }
    }
    futures_util::future::join_all(tasks).await;
    for agent in 0..20 {
        there.wait_routes(agent, &[here.route(50)]).await;
    }
}

#[tokio::test]
async fn delayed_write_of_an_old_connection_is_refused() {
    let Some(server) = redis() else { return };
    let (here, there) =
        (TestReplica::joined(server.settings()).await, TestReplica::joined(server.settings()).await);
    here.announce(1, 2).await;
    there.wait_routes(1, &[here.route(2)]).await;

    let mut late = redis::cmd("EVAL");
    late.arg(include_str!("../../src/redis/scripts/publish.lua")).arg(2);
    late.arg(format!("{{kas}}:routes:{}", here.id)).arg("{kas}:gone");
    late.arg(0).arg(0).arg(1000).arg("kas:events").arg("").arg(1).arg("[1,1,[]]");
    assert_eq!(server.run_cmd::<u8>(late).await, 0, "another generation");
    let record: String = server.run(&format!("HGET {{kas}}:routes:{} 1", here.id)).await;
    assert_eq!(record, "[1,2,[]]");
}
