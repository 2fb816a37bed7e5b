//! The calls of agentk besides its tunnels: its registration, its configuration, and pushes for Flux.

use std::{sync::Arc, time::Duration};

use kas_testing::world::World;
use tokio::time::{Instant, sleep, timeout};

use super::{
    client::{Agentk, Call, End, ok},
    messages::{
        AgentConfiguration, ConfigurationRequest, ConfigurationResponse, Empty, GET_CONFIGURATION, Project,
        RECONCILE_PROJECTS, ReconcileProjectsRequest,
    },
};
use crate::set_configuration::Configuration;

async fn configuration(agentk: &mut Agentk, commit: &str) -> Call {
    let mut call = agentk.call(GET_CONFIGURATION).await;
    let request =
        ConfigurationRequest { commit_id: commit.to_owned(), skip_register: true, ..Default::default() };
    call.send(&request);
    call.half_close();
    call
}

async fn next(call: &mut Call) -> (String, AgentConfiguration) {
    let response: ConfigurationResponse = call.next().await.unwrap();
    (response.commit_id, response.configuration.unwrap())
}

#[tokio::test(start_paused = true)]
async fn each_new_version_of_the_configuration_is_sent() {
    let (world, file) = (World::new(), Configuration::default());
    file.set("observability: {logging: {level: debug, grpc_level: warn}}");
    world.kas.agents.configuration.add_source(Arc::new(file.clone()));
    let (mut agentk, _streams) = Agentk::start(&world).await;
    let mut call = configuration(&mut agentk, "").await;
    let (commit, first) = next(&mut call).await;
    assert_eq!((commit.as_str(), first.agent_id, first.project_path.as_str()), ("1", 1, "group/agents"));
    let logging = first.observability.unwrap().logging.unwrap();
    assert_eq!((logging.level, logging.grpc_level), (1, Some(2)));

    file.set("observability: {logging: {level: error}}");
    let (commit, second) = next(&mut call).await;
    assert_eq!(commit, "2");
    assert_eq!(second.observability.unwrap().logging.unwrap().level, 3);
    // A version that agentk has already is not sent again.
    let mut again = configuration(&mut agentk, "2").await;
    let silence = timeout(Duration::from_secs(60), again.next::<ConfigurationResponse>()).await;
    assert!(silence.is_err(), "{silence:?}");
}

#[tokio::test(start_paused = true)]
async fn invalid_configuration_is_a_failed_precondition() {
    let (world, file) = (World::new(), Configuration::default());
    file.set("no_such_key: 1");
    world.kas.agents.configuration.add_source(Arc::new(file.clone()));
    let (mut agentk, _streams) = Agentk::start(&world).await;
    let mut call = configuration(&mut agentk, "").await;
    let End::Status(code, message) = call.end().await else { panic!("no status") };
    assert_eq!(code, 9, "{message}");
    assert!(message.contains("no_such_key"), "{message}");

    // agentk waits, and asks again.
    file.set("observability: {logging: {level: info}}");
    let started = Instant::now();
    let commit = loop {
        let mut call = configuration(&mut agentk, "").await;
        match call.try_next::<ConfigurationResponse>().await {
            Ok(Some(response)) => break response.commit_id,
            _ => assert!(started.elapsed() < Duration::from_secs(900), "the valid version is never sent"),
        }
        sleep(Duration::from_secs(20)).await;
    };
    assert_eq!(commit, "2");
}

#[tokio::test(start_paused = true)]
async fn unknown_method_is_unimplemented_and_disturbs_no_other_call() {
    let world = World::new();
    let (mut agentk, [first, _second]) = Agentk::start(&world).await;
    for method in [
        "/gitlab.agent.agent_registrar.rpc.AgentRegistrar/Other",
        "/gitlab.agent.reverse_tunnel.rpc.ReverseTunnel",
        "/",
        "/gitlab.agent.gitops.rpc.Gitops/GetObjectsToSynchronize",
    ] {
        let mut call = agentk.call(method).await;
        call.send(&Empty {});
        call.half_close();
        assert!(matches!(call.end().await, End::Status(12, _)), "{method}");
    }
    assert_eq!(world.metric("kas_gitlab_agentk_calls_total{method=\"unknown\",code=\"Unimplemented\"}"), 4.0);
    agentk.register("agentk-1").await;
    let calling = super::get(&world, "/version");
    first.serve().await;
    assert_eq!(calling.await.unwrap().0, 200);
}

/// Without GitLab, kas cannot find out which projects the agent may read.
#[tokio::test(start_paused = true)]
async fn pushes_for_flux_need_gitlab() {
    let world = World::new();
    let (mut agentk, _streams) = Agentk::start(&world).await;
    let mut call = agentk.call(RECONCILE_PROJECTS).await;
    call.send(&ReconcileProjectsRequest { project: vec![Project { id: "group/project".to_owned() }] });
    call.half_close();
    let End::Status(code, message) = call.end().await else { panic!("no status") };
    assert!(code != 0 && message.contains("GitLab"), "{code} {message}");
}

#[tokio::test(start_paused = true)]
async fn calls_end_without_an_error_when_kas_drains() {
    let (world, file) = (World::new(), Configuration::default());
    file.set("");
    world.kas.agents.configuration.add_source(Arc::new(file.clone()));
    let (mut agentk, _streams) = Agentk::start(&world).await;
    let mut call = configuration(&mut agentk, "").await;
    next(&mut call).await;
    world.kas.agents.connections.draining.cancel();
    assert_eq!(call.end().await, ok());
}
