//! The memory that kas keeps for one agent, whose calls and messages cost it nothing.

use super::*;
use messages::{Project, RECONCILE_PROJECTS, ReconcileProjectsRequest};

/// The names of a call, as many as kas takes.
fn projects() -> ReconcileProjectsRequest {
    let project = |number| Project { id: format!("group/project-{number:0>60}") };
    ReconcileProjectsRequest { project: (0..10_000).map(project).collect() }
}

#[tokio::test(start_paused = true)]
async fn unfinished_messages_of_one_agent_have_a_limit() {
    let attacked = Attacked::new().await;
    let memory = Memory::now();
    let mut attacker = Agentk::connect(&attacked.world).await;
    let (mut calls, mut refused) = (Vec::new(), 0);
    for _ in 0..500 {
        let mut call = attacker.call(RECONCILE_PROJECTS).await;
        call.send_beginning(1 << 20, 1_000_000);
        // Everything that kas takes has arrived before the clock goes on.
        match timeout(Duration::from_millis(10), call.any_end()).await {
            Ok(End::Status(code, message)) => {
                assert_eq!(code, 8, "{message}");
                assert!(message.contains("kas keeps 64 MiB for this agent"), "{message}");
                refused += 1;
            }
            Ok(end) => panic!("{end:?}"),
            Err(_) => calls.push(call),
        }
    }
    println!("{refused} of 500 calls were refused, memory grew by {} MiB", memory.grown() >> 20);
    assert!(refused > 400, "{refused}");
    memory.assert_below(2 * (96 << 20));
    attacked.assert_undisturbed().await;
    drop(calls);
    let (_again, _stream) = attacked.attacker().await;
}

#[tokio::test(start_paused = true)]
async fn each_connection_has_the_projects_of_its_newest_call_only() {
    let (_gitlab, world, _agent) = world_with(&ApiRateLimit::default(), |_| {}, Services::new()).await;
    let memory = Memory::now();
    let mut attacker = Agentk::connect(&world).await;
    let mut calls: Vec<Call> = Vec::new();
    for _ in 0..100 {
        let mut call = attacker.call(RECONCILE_PROJECTS).await;
        call.send(&projects());
        call.half_close();
        call.open().await.unwrap();
        if let Some(previous) = calls.last_mut() {
            assert_eq!(previous.any_end().await, ok());
        }
        calls.push(call);
    }
    println!("memory grew by {} MiB", memory.grown() >> 20);
    memory.assert_bounded();
}

#[tokio::test(start_paused = true)]
async fn stream_that_waits_for_a_request_takes_no_message() {
    let attacked = Attacked::new().await;
    let mut attacker = attacked.attacker().await;
    let mut early = attacker.0.idle().await;
    early.step(data(b"early"));
    let End::Status(code, message) = early.any_end().await else { panic!("no status") };
    assert!(code == 3 && message.contains("before its request"), "{code} {message}");
    let (asking, mut stream) = attacked.asked(&mut attacker).await;
    stream.finish(response(200, &[], b"ok"));
    assert_eq!(asking.await.unwrap().unwrap().0, StatusCode::OK);
}
