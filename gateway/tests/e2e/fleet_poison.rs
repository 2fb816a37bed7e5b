//! What should not stand in Redis, and who should not share it.

use crate::support::{Fleet, Kas, Recorder, Redis, Simulator, eventually, secret};

const STRANGER: &str = "00000000000000000000000000000001";

/// Makes a replica that there is not, which is said to be at `url` and to hold the agent.
fn plant(redis: &Redis, id: &str, heartbeat: &str, record: &str) {
    redis.says(&["SET", &format!("{{kas}}:replica:{id}"), heartbeat]);
    redis.says(&["SADD", "{kas}:replicas", id]);
    redis.says(&["HSET", &format!("{{kas}}:routes:{id}"), "7", record]);
}

fn heartbeat(url: &str) -> String {
    format!(r#"[1,{{"url":"{url}","fleet":"default","kas":"0.1.0","started":0}}]"#)
}

fn rejected(replica: &Kas) -> f64 {
    replica.metric("kas_redis_rejected_total")
}

#[test]
fn a_record_with_a_wrong_address_is_passed_over_and_named_if_there_is_no_other() {
    let (Some(redis), Some(cluster)) = (Redis::or_skip(), Simulator::or_skip()) else { return };
    let somebody = Recorder::start();
    let nobody = "00000000000000000000000000000002";
    plant(&redis, STRANGER, &heartbeat(&format!("http://{}", somebody.address)), "[1,1,[]]");
    plant(&redis, nobody, &heartbeat("http://127.0.0.1:1"), "[1,1,[]]");
    let fleet = Fleet::new(redis.section(), &cluster.kubeconfig);
    let [holder, asked] = fleet.replicas();

    let reply = fleet.ask(&asked);
    assert_eq!((reply.status, reply.header("kas-error")), (503, Some("agent-not-connected")));
    let text = reply.text();
    assert!(text.contains(STRANGER) && text.contains(nobody), "it says who is said to hold it: {text}");
    let _agent = fleet.agent_at(&holder);
    for _ in 0..10 {
        let reply = fleet.ask(&asked);
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    let sent = somebody.requests();
    let token = secrecy::ExposeSecret::expose_secret(&fleet.tokens.ops);
    assert!(
        !sent.iter().any(|sent| sent.head.iter().any(|line| line.contains(token))),
        "no request reached it"
    );

    redis.says(&["DEL", &format!("{{kas}}:replica:{STRANGER}"), &format!("{{kas}}:replica:{nobody}")]);
    eventually("what nobody stands for is removed", || {
        let left = redis.says(&["SMEMBERS", "{kas}:replicas"]);
        !left.contains(STRANGER) && !left.contains(nobody)
    });
    assert_eq!(redis.says(&["EXISTS", &format!("{{kas}}:routes:{STRANGER}")]), "0");
}

#[test]
fn garbage_and_a_future_version_are_counted_and_harm_nobody() {
    let (Some(redis), Some(cluster)) = (Redis::or_skip(), Simulator::or_skip()) else { return };
    plant(&redis, STRANGER, r#"[2,{"url":"http://127.0.0.1:1","fleet":"default","new":true}]"#, "[2,{}]");
    redis.says(&["LPUSH", "{kas}:gone", "of another type"]);
    let fleet = Fleet::new(redis.section(), &cluster.kubeconfig);
    let [mut holder, mut asked] = fleet.replicas();
    assert!(rejected(&asked) > 0.0, "a heartbeat of a future version");
    let _agent = fleet.agent_at(&holder);
    assert_eq!(fleet.ask(&asked).status, 200);

    let routes = format!("{{kas}}:routes:{}", holder.replica);
    for record in ["garbage", "[2,1,[]]", "[1,-1,[]]", "{}", "[[[[[[[[[["] {
        let before = rejected(&asked);
        redis.says(&["HSET", &routes, "8", record]);
        redis.says(&["PUBLISH", "kas:events", record]);
        eventually("it is counted", || rejected(&asked) > before);
        let absent = fleet.get(&asked, "/agents/absent/kubernetes/version");
        assert_eq!((absent.status, absent.header("kas-error")), (503, Some("agent-not-connected")));
        assert_eq!(fleet.ask(&asked).status, 200);
    }
    redis.says(&["DEL", &routes]);
    redis.says(&["SET", &routes, "of another type"]);
    eventually("it says again what it holds", || redis.says(&["TYPE", &routes]) == "hash");
    assert_eq!(fleet.ask(&asked).status, 200);
    assert!(holder.process.runs() && asked.process.runs());
}

#[test]
fn a_replica_with_another_secret_is_given_no_request() {
    let (Some(redis), Some(cluster)) = (Redis::or_skip(), Simulator::or_skip()) else { return };
    let mut fleet = Fleet::new(redis.section(), &cluster.kubeconfig);
    let [asked] = fleet.replicas();
    fleet.membership().secret = secret(fleet.directory(), "another-secret");
    let [stranger] = fleet.replicas();
    let _agent = fleet.agent_at(&stranger);
    let reply = fleet.ask(&asked);
    assert_eq!((reply.status, reply.header("kas-error")), (503, Some("agent-not-connected")));
    assert!(reply.text().contains("do not trust one another"), "{}", reply.text());
    assert!(asked.metric_with("kas_peer_questions_total", "untrusted") > 0.0);
    assert!(stranger.metric_with("kas_peer_served_total", "forged") > 0.0);
    assert_eq!(stranger.metric_with("kas_peer_served_total", "passed"), 0.0);
}

#[test]
fn a_second_fleet_that_shares_redis_by_mistake_is_refused_and_says_so() {
    let (Some(redis), Some(cluster)) = (Redis::or_skip(), Simulator::or_skip()) else { return };
    let mut fleet = Fleet::new(redis.section(), &cluster.kubeconfig);
    let [holder, asked] = fleet.replicas();
    let _agent = fleet.agent_at(&holder);
    fleet.membership().redis["fleet"] = "green".into();
    let intruder = fleet.replica();
    eventually("it does not use that Redis", || {
        let text = intruder.readiness().text();
        text.contains("this Redis is used by another fleet, \"default\"")
            && text.contains("this one is \"green\"")
            && text.contains("give each fleet its own redis.key_prefix")
    });
    intruder.process.line("its log says it too", |line| line.contains("used by another fleet"));
    let reply = fleet.ask(&intruder);
    assert_eq!(reply.status, 503, "{}", reply.text());
    assert!(reply.text().contains("used by another fleet"), "{}", reply.text());
    assert_eq!(fleet.ask(&asked).status, 200);
    assert_eq!(asked.readiness().text(), "ready\n");
    assert_eq!(redis.says(&["SCARD", "{kas}:replicas"]), "2");
}
