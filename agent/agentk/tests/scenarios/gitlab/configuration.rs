//! Tests of `GetConfiguration`.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::{config, configurable, echo};
use crate::support::{
    gitlab_kas::{AgentStream, GitLabKas},
    protobuf::Message,
    start,
};

fn configuration(level: Option<i64>, commit: &str) -> Message {
    let mut configuration = Message::new().number(4, 5).number(5, 7).bytes(8, "group/project");
    if let Some(level) = level {
        configuration = configuration.message(2, Message::new().message(1, Message::new().number(1, level)));
    }
    Message::new().message(1, configuration).bytes(2, commit)
}

fn commit(stream: &AgentStream) -> String {
    stream.first.get_text(1)
}

#[tokio::test(start_paused = true)]
async fn log_level_is_applied_and_the_next_stream_has_the_last_commit() {
    let (services, mut updates) = configurable();
    let (mut kas, dial) = GitLabKas::grpc();
    let _agent = start(config(), dial, services);
    let mut connection = kas.connection().await;
    let mut stream = connection.configurations.recv().await.unwrap();
    assert_eq!(commit(&stream), "");
    assert_eq!(stream.first.get_number(3), 1, "skip_register");

    stream.send(configuration(Some(1), "c1"));
    let update = updates.recv().await.unwrap();
    assert_eq!(update["version"], "c1");
    assert_eq!(update["configuration"]["observability"]["logging"]["level"], "debug");
    stream.send(configuration(None, "c2"));
    let update = updates.recv().await.unwrap();
    assert_eq!((&update["version"], &update["error"]), (&json!("c2"), &Value::Null));
    assert_eq!(update["configuration"]["observability"]["logging"]["level"], Value::Null);

    // The age of the stream.
    sleep(Duration::from_secs(600)).await;
    stream.end(0);
    let next = timeout(Duration::from_millis(1), connection.configurations.recv()).await.unwrap().unwrap();
    assert_eq!(commit(&next), "c2");

    // An invalid file: the configuration stays, and agentk asks again.
    let failed = Instant::now();
    next.end(9);
    let update = updates.recv().await.unwrap();
    assert_eq!((&update["configuration"], &update["error"]), (&Value::Null, &json!("from the test")));
    let mut next = connection.configurations.recv().await.unwrap();
    assert!((8..=12).contains(&failed.elapsed().as_secs()), "{:?}", failed.elapsed());

    // The commit outlives the connection.
    next.send(configuration(None, "c3"));
    updates.recv().await.unwrap();
    connection.cut();
    let mut connection = kas.connection().await;
    assert_eq!(commit(&connection.configurations.recv().await.unwrap()), "c3");
}

#[tokio::test(start_paused = true)]
async fn agent_that_accepts_no_configuration_does_not_ask_for_it() {
    let (mut kas, dial) = GitLabKas::grpc();
    let _agent = start(config(), dial, echo());
    let mut connection = kas.connection().await;
    assert!(timeout(Duration::from_secs(600), connection.configurations.recv()).await.is_err());
}
