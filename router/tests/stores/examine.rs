//! What is found out about a Redis without joining it.

use proto::ReplicaId;
use router::{
    RouteStore as _,
    redis::{Examination, RedisStore, Settings},
};

use crate::{Member, redis, server::replica};

async fn examine(settings: Settings) -> Examination {
    let (store, _keeper) = RedisStore::new(settings, replica(ReplicaId::random()), "0.1.0");
    store.examine().await
}

fn failures(examination: &Examination) -> Vec<(&str, &str)> {
    let failed =
        examination.findings.iter().filter_map(|found| Some((found.what, found.result.as_ref().err()?)));
    failed.map(|(what, why)| (what, why.as_str())).collect()
}

#[tokio::test]
async fn a_redis_that_will_do_is_said_to_and_nobody_notices() {
    let Some(server) = redis().await else { return };
    let member = Member::joined(server.settings()).await;
    member.announce(1, 1).await;
    let before: usize = server.run("DBSIZE").await;
    let examination = examine(server.settings()).await;
    assert_eq!(failures(&examination), []);
    let told: Vec<&str> = examination.findings.iter().map(|found| found.what).collect();
    assert_eq!(told, ["redis", "redis commands", "redis events", "redis fleet"]);
    assert_eq!(examination.replicas.iter().map(|replica| replica.id).collect::<Vec<_>>(), [member.id]);
    let left: Vec<String> = server.run("KEYS *:check:*").await;
    assert!(left.is_empty(), "{left:?}");
    let after: usize = server.run("DBSIZE").await;
    assert!(after <= before + 1, "a limit of some microseconds at most");
    assert!(member.store.replicas().is_empty(), "nobody has come");
    assert_eq!(member.store.counts().rejected.get(), 0);
}

#[tokio::test]
async fn what_kas_may_not_do_is_named() {
    let Some(server) = redis().await else { return };
    server
        .run::<()>("ACL SETUSER poor on >secret ~{kas}:* ~kas:* &kas:events +@all -sadd -publish -info")
        .await;
    let password = server.directory().join("password");
    std::fs::write(&password, "secret").unwrap();
    let poor = Settings { username: Some("poor".into()), password_file: Some(password), ..server.settings() };
    let examination = examine(poor).await;
    let failed = failures(&examination);
    assert!(
        matches!(failed[..], [("redis commands", why), ("redis events", _)] if why.contains("2 of them fail, the first is SADD")),
        "{failed:?}"
    );
    assert!(examination.findings[0].result.as_ref().unwrap().contains("its version is unknown"));
}

#[tokio::test]
async fn a_redis_of_others_and_one_that_is_not_there_are_named() {
    let Some(mut server) = redis().await else { return };
    let _member = Member::joined(server.settings()).await;
    let examination = examine(Settings { fleet: "green".into(), ..server.settings() }).await;
    let failed = failures(&examination);
    assert!(
        matches!(failed[..], [("redis fleet", why)] if why.contains("another fleet, \"blue\"")),
        "{failed:?}"
    );
    server.kill();
    let examination = examine(server.settings()).await;
    let failed = failures(&examination);
    assert!(matches!(failed[..], [("redis", why)] if why.contains("Redis")), "{failed:?}");
}
