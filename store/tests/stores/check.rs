//! Tests of `RedisStore::check`, which `kas check-config --live` runs.

use proto::ReplicaId;
use store::{
    RouteStore as _,
    redis::{RedisReport, RedisSettings, RedisStore},
};

use crate::{
    TestReplica, redis,
    server::{Server, replica},
};

async fn check(settings: RedisSettings) -> RedisReport {
    let (store, _sync) = RedisStore::new(settings, replica(ReplicaId::random()), "0.1.0");
    store.check().await
}

fn failures(report: &RedisReport) -> Vec<(&str, String)> {
    let failed = report.checks.iter().filter_map(|check| Some((check.name, check.result.as_ref().err()?)));
    failed.map(|(name, error)| (name, error.to_string())).collect()
}

#[tokio::test]
async fn usable_redis_passes_unnoticed_by_replicas() {
    let Some(server) = redis() else { return };
    let replica = TestReplica::joined(server.settings()).await;
    replica.announce(1, 1).await;
    let before: usize = server.run("DBSIZE").await;
    let report = check(server.settings()).await;
    assert_eq!(failures(&report), []);
    let names: Vec<&str> = report.checks.iter().map(|check| check.name).collect();
    assert_eq!(names, ["redis", "redis commands", "redis events", "redis fleet"]);
    assert_eq!(report.replicas.iter().map(|found| found.id).collect::<Vec<_>>(), [replica.id]);
    let left: Vec<String> = server.run("KEYS *:check:*").await;
    assert!(left.is_empty(), "{left:?}");
    let after: usize = server.run("DBSIZE").await;
    assert!(after <= before + 1, "only the rate limit may be left, for some microseconds");
    assert!(replica.store.replicas().is_empty(), "no replica joined");
    assert_eq!(replica.store.metrics().rejected.get(), 0);
}

/// Returns the settings of a new user with these permissions.
async fn limited(server: &Server, permissions: &str) -> RedisSettings {
    server.run::<()>(&format!("ACL SETUSER limited on >secret {permissions}")).await;
    let password = server.directory().join("password");
    std::fs::write(&password, "secret").unwrap();
    RedisSettings { username: Some("limited".into()), password_file: Some(password), ..server.settings() }
}

#[tokio::test]
async fn documented_permissions_suffice() {
    let Some(server) = redis() else { return };
    let (_, section) = include_str!("../../../docs/redis.md").split_once("\n## Permissions\n").unwrap();
    // The commands of kas, those of the scripts, the keys and the channel.
    let permissions: Vec<&str> = section.split('`').skip(1).step_by(2).take(4).collect();
    let report = check(limited(&server, &permissions.join(" ")).await).await;
    assert_eq!(failures(&report), []);
}

#[tokio::test]
async fn forbidden_command_is_reported() {
    let Some(server) = redis() else { return };
    let settings = limited(&server, "~{kas}:* ~kas:* &kas:events +@all -sadd -publish -info").await;
    let report = check(settings).await;
    let failed = failures(&report);
    assert!(
        matches!(&failed[..], [("redis commands", error), ("redis events", _)] if error.contains("2 of them fail, the first is SADD")),
        "{failed:?}"
    );
    assert!(report.checks[0].result.as_ref().unwrap().contains("its version is unknown"));
}

#[tokio::test]
async fn other_fleet_and_unreachable_server_are_reported() {
    let Some(mut server) = redis() else { return };
    let _replica = TestReplica::joined(server.settings()).await;
    let report = check(RedisSettings { fleet: "green".into(), ..server.settings() }).await;
    let failed = failures(&report);
    assert!(
        matches!(&failed[..], [("redis fleet", error)] if error.contains("another fleet, \"blue\"")),
        "{failed:?}"
    );
    server.kill();
    let report = check(server.settings()).await;
    let failed = failures(&report);
    assert!(matches!(&failed[..], [("redis", error)] if error.contains("Redis")), "{failed:?}");
}
