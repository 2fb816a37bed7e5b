//! Invalid records in Redis, and replicas that must not share it.

use crate::support::{Fleet, Kas, RecordingServer, Redis, Simulator, eventually, write_secret};

const WRONG_ADDRESS: &str = "00000000000000000000000000000001";

/// Writes the records of a replica that does not exist, with a route to the agent.
fn write_fake_replica(redis: &Redis, id: &str, heartbeat: &str, record: &str) {
    redis.run(&["SET", &format!("{{kas}}:replica:{id}"), heartbeat]);
    redis.run(&["SADD", "{kas}:replicas", id]);
    redis.run(&["HSET", &format!("{{kas}}:routes:{id}"), "7", record]);
}

fn heartbeat(url: &str) -> String {
    format!(r#"[1,{{"url":"{url}","fleet":"default","kas":"0.1.0","started":0}}]"#)
}

fn rejected(replica: &Kas) -> f64 {
    replica.metric("kas_redis_rejected_total")
}

#[test]
fn forged_addresses_get_no_connection() {
    let (Some(redis), Some(cluster)) = (Redis::or_skip(), Simulator::or_skip()) else { return };
    let server = RecordingServer::start();
    write_fake_replica(&redis, WRONG_ADDRESS, &heartbeat(&format!("http://{}", server.address)), "[1,1,[]]");
    let fleet = Fleet::new(redis.section(), &cluster.kubeconfig);
    let [owner, entry] = fleet.start_replicas();

    let response = fleet.get_version(&entry);
    assert_eq!((response.status, response.header("kas-error")), (503, Some("agent-not-connected")));
    assert!(rejected(&entry) > 0.0, "its heartbeat has no MAC");
    let _agent = fleet.start_agent_at(&owner);
    for _ in 0..10 {
        let response = fleet.get_version(&entry);
        assert_eq!(response.status, 200, "{}", response.text());
    }
    // The heartbeat of a replica that exists, with another address: first it is removed, then it comes back elsewhere.
    let beat = heartbeat(&format!("http://{}", server.address)).replacen("[1,", "", 1);
    let beat = beat.strip_suffix(']').unwrap();
    let before = rejected(&entry);
    redis.run(&["PUBLISH", "kas:events", &format!(r#"[1,"{}",1000,1,"left"]"#, owner.replica)]);
    redis.run(&["PUBLISH", "kas:events", &format!(r#"[1,"{}",1000,2,{{"beat":{beat}}}]"#, owner.replica)]);
    eventually("the heartbeat is counted as rejected", || rejected(&entry) > before);
    eventually("the replica is found again by its own heartbeat", || fleet.get_version(&entry).status == 200);
    assert!(server.requests().is_empty(), "nothing was sent to the wrong address");
}

#[test]
fn invalid_redis_records_are_counted_and_ignored() {
    let (Some(redis), Some(cluster)) = (Redis::or_skip(), Simulator::or_skip()) else { return };
    write_fake_replica(
        &redis,
        WRONG_ADDRESS,
        r#"[2,{"url":"http://127.0.0.1:1","fleet":"default","new":true}]"#,
        "[2,{}]",
    );
    redis.run(&["LPUSH", "{kas}:gone", "of another type"]);
    let fleet = Fleet::new(redis.section(), &cluster.kubeconfig);
    let [mut owner, mut entry] = fleet.start_replicas();
    assert!(rejected(&entry) > 0.0, "a heartbeat of a future version is rejected");
    let _agent = fleet.start_agent_at(&owner);
    assert_eq!(fleet.get_version(&entry).status, 200);

    let routes = format!("{{kas}}:routes:{}", owner.replica);
    for record in ["garbage", "[2,1,[]]", "[1,-1,[]]", "{}", "[[[[[[[[[["] {
        let before = rejected(&entry);
        redis.run(&["HSET", &routes, "8", record]);
        redis.run(&["PUBLISH", "kas:events", record]);
        eventually("the record is counted as rejected", || rejected(&entry) > before);
        let absent = fleet.get(&entry, "/agents/absent/kubernetes/version");
        assert_eq!((absent.status, absent.header("kas-error")), (503, Some("agent-not-connected")));
        assert_eq!(fleet.get_version(&entry).status, 200);
    }
    redis.run(&["DEL", &routes]);
    redis.run(&["SET", &routes, "of another type"]);
    eventually("the replica publishes its routes again", || redis.run(&["TYPE", &routes]) == "hash");
    assert_eq!(fleet.get_version(&entry).status, 200);
    assert!(owner.process.runs() && entry.process.runs());
}

#[test]
fn replica_with_another_secret_gets_no_request() {
    let (Some(redis), Some(cluster)) = (Redis::or_skip(), Simulator::or_skip()) else { return };
    let mut fleet = Fleet::new(redis.section(), &cluster.kubeconfig);
    let [entry] = fleet.start_replicas();
    fleet.membership().secret = write_secret(fleet.directory(), "another-secret");
    let untrusted = fleet.start_replica();
    untrusted.process.line("Redis is in use", |line| line.contains("connected to Redis"));
    let _agent = fleet.start_agent_at(&untrusted);
    let response = fleet.get_version(&entry);
    assert_eq!((response.status, response.header("kas-error")), (503, Some("agent-not-connected")));
    let ignored = "ignored the heartbeat of a replica";
    for replica in [&entry, &untrusted] {
        replica
            .process
            .line(ignored, |line| line.contains(ignored) && line.contains("another secret of private_api"));
        assert!(rejected(replica) > 0.0);
    }
    assert_eq!(untrusted.metric_with("kas_peer_served_total", "forwarded"), 0.0);
}

#[test]
fn second_fleet_on_same_redis_is_refused() {
    let (Some(redis), Some(cluster)) = (Redis::or_skip(), Simulator::or_skip()) else { return };
    let mut fleet = Fleet::new(redis.section(), &cluster.kubeconfig);
    let [owner, entry] = fleet.start_replicas();
    let _agent = fleet.start_agent_at(&owner);
    fleet.membership().redis["fleet"] = "green".into();
    let second_fleet = fleet.start_replica();
    eventually("the second fleet does not use that Redis", || {
        let text = second_fleet.readiness().text();
        text.contains("this Redis is used by another fleet, \"default\"")
            && text.contains("this one is \"green\"")
            && text.contains("give each fleet its own redis.key_prefix")
    });
    second_fleet
        .process
        .line("a log line reports the other fleet", |line| line.contains("used by another fleet"));
    let response = fleet.get_version(&second_fleet);
    assert_eq!(response.status, 503, "{}", response.text());
    assert!(response.text().contains("used by another fleet"), "{}", response.text());
    assert_eq!(fleet.get_version(&entry).status, 200);
    assert_eq!(entry.readiness().text(), "ready\n");
    assert_eq!(redis.run(&["SCARD", "{kas}:replicas"]), "2");
}
