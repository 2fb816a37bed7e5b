//! The internal API.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use access::{
    ApiTokenVerifier, Identity,
    token::{self, Holder, TokenHash},
};
use agentk_core::Services;
use base64::{
    Engine as _,
    prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD},
};
use environments_wire::{
    Deployment, DeploymentFacts, DeploymentRecords as _, DeploymentStatus, EnvironmentSources, Tier,
};
use gateway::config::Config;
use hmac::Hmac;
use http::{Request, StatusCode, header::AUTHORIZATION};
use kas_core::peers::ReplicaContext;
use kas_environments::EnvironmentFile;
use kas_testing::{
    fleet::TestFleet,
    internal_api::{connect_with, get, send, send_over, valid_request, valid_token},
    issuer::now,
    world::{World, configuration, text},
};
use proto::{AgentId, ReplicaId};
use serde_json::{Value, json};
use sha2::Sha256;
use store::{
    Replica,
    redis::{RedisAddress, RedisServers, RedisSettings, RedisStore},
};
use tunnel::Body;

async fn read(world: &World, path: &str) -> Value {
    let answer = get(world, path).await;
    assert_eq!(answer.status(), StatusCode::OK, "{path}");
    assert_eq!(answer.headers()["content-type"], "application/json");
    let value: Value = serde_json::from_str(&text(answer).await).unwrap();
    assert_eq!(value["replica"], world.kas.agents.replica.to_string());
    assert_eq!(value["missing"], Value::Null);
    value
}

fn names(page: &Value) -> Vec<&str> {
    page["agents"].as_array().unwrap().iter().map(|agent| agent["name"].as_str().unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn any_replica_tells_who_is_connected_and_where() {
    let fleet = TestFleet::new(3);
    let _agent = fleet.agent(1, Services::new()).await;
    let _again = fleet.agent(2, Services::new()).await;
    for world in &fleet.replicas {
        let page = read(world, "/api/v1/agents").await;
        assert_eq!((names(&page), &page["continue"]), (vec!["prod"], &Value::Null));
        let agent = &page["agents"][0];
        assert_eq!((&agent["id"], &agent["state"]), (&json!(1), &json!("connected")));
        let holders = agent["replicas"].as_array().unwrap();
        let mut replicas: Vec<&str> = holders.iter().map(|h| h["replica"].as_str().unwrap()).collect();
        let mut expected = [1, 2].map(|index| fleet.id(index).to_string());
        replicas.sort();
        expected.sort();
        assert_eq!(replicas, expected);
        for holder in holders {
            let instance = &holder["instances"][0];
            assert_eq!(instance["tunnels"], 2, "{page}");
            assert_eq!(instance["version"], env!("CARGO_PKG_VERSION"));
            assert!(instance["since"].as_str().unwrap().ends_with('Z'));
        }
        let one = read(world, "/api/v1/agents/prod").await;
        assert_eq!(one["agent"], *agent);
        assert_eq!(read(world, "/api/v1/agents/1").await["agent"], *agent);
    }
}

#[tokio::test(start_paused = true)]
async fn agents_are_listed_by_project_and_page_by_page() {
    let world = World::new();
    let hash = TokenHash::of(&world.agent_token);
    let others: String =
        (2..=9).map(|id| format!("{{id: {id}, name: n{id}, project_id: 7, tokens: []}}, ")).collect();
    let file = format!("agents: [{others}{{id: 10, name: prod, project_id: 7, tokens: ['{hash}']}}]");
    world.kas.identities.replace(Identity::parse(Path::new("identity.yaml"), &file).unwrap());
    let _agent = world.agent(Services::new()).await;

    assert_eq!(names(&read(&world, "/api/v1/agents?project=7").await), ["prod"]);
    assert_eq!(names(&read(&world, "/api/v1/agents?project=8").await), [""; 0]);
    assert_eq!(names(&read(&world, "/api/v1/agents?name=prod").await), ["prod"]);
    assert_eq!(names(&read(&world, "/api/v1/agents?id=3&id=10").await), ["prod"]);
    let (mut seen, mut pages, mut next) = (Vec::new(), 0, String::new());
    loop {
        let page = read(&world, &format!("/api/v1/agents?limit=4{next}")).await;
        seen.extend(names(&page).into_iter().map(str::to_owned));
        pages += 1;
        let Some(last) = page["continue"].as_str() else { break };
        next = format!("&continue={last}");
    }
    assert_eq!((seen, pages), (vec!["prod".to_owned()], 3), "nine agents, four a page");

    let absent = read(&world, "/api/v1/agents/n3").await;
    assert_eq!(
        absent["agent"],
        json!({"id": 3, "name": "n3", "project_id": 7, "project": null, "state": "never", "replicas": []})
    );
}

/// Returns a replica that does not reach its Redis.
pub(crate) fn without_redis() -> (ReplicaContext, Config) {
    let id = ReplicaId::random();
    let config = configuration();
    let settings = RedisSettings {
        servers: RedisServers::Single(RedisAddress::Unix("/nowhere/redis.sock".into())),
        tls: None,
        username: None,
        password_file: None,
        database: 0,
        prefix: "kas".into(),
        fleet: "default".into(),
        urls: None,
        records: None,
        dial_timeout: Duration::from_secs(1),
        response_timeout: Duration::from_secs(1),
    };
    let (store, _sync) = RedisStore::new(settings, Replica { id, url: "http://a:1".into() }, "0.1.0");
    (ReplicaContext::standalone(id, Arc::new(store), config.peer_settings()), config)
}

#[tokio::test(start_paused = true)]
async fn without_the_directory_the_answer_is_partial_and_says_so() {
    let (replica, config) = without_redis();
    let tokens = (token::new(Holder::Agent), token::new(Holder::Caller));
    let world = World::replica(replica, config, tokens, None, None);
    let file = format!(
        "agents: [{{id: 1, name: prod, tokens: ['{}']}}, {{id: 2, name: other, tokens: []}}]",
        TokenHash::of(&world.agent_token)
    );
    world.kas.identities.replace(Identity::parse(Path::new("identity.yaml"), &file).unwrap());
    let _agent = world.agent(Services::new()).await;

    let page: Value = serde_json::from_str(&text(get(&world, "/api/v1/agents").await).await).unwrap();
    assert_eq!(names(&page), ["prod"], "what is here");
    assert!(page["missing"].as_str().unwrap().contains("Redis was not reached"), "{page}");
    let other: Value = serde_json::from_str(&text(get(&world, "/api/v1/agents/2").await).await).unwrap();
    assert_eq!(other["agent"]["state"], "unknown", "{other}");
    assert_eq!(world.kas.admin.agent_lister.list().await.missing.as_deref(), page["missing"].as_str());
}

#[tokio::test(start_paused = true)]
async fn pages_without_a_connected_agent_lead_to_the_next_one_without_redis() {
    let (replica, config) = without_redis();
    let tokens = (token::new(Holder::Agent), token::new(Holder::Caller));
    let world = World::replica(replica, config, tokens, None, None);
    let file = format!(
        "agents: [{{id: 1, name: first, tokens: []}}, {{id: 2, name: prod, tokens: ['{}']}}, {{id: 3, name: last, tokens: []}}]",
        TokenHash::of(&world.agent_token)
    );
    world.kas.identities.replace(Identity::parse(Path::new("identity.yaml"), &file).unwrap());
    let _agent = world.agent(Services::new()).await;

    let pages = [
        ("", vec![], json!("1")),
        ("&continue=1", vec!["prod"], json!("2")),
        ("&continue=2", vec![], Value::Null),
    ];
    for (from, expected, next) in pages {
        let response = get(&world, &format!("/api/v1/agents?limit=1{from}")).await;
        assert_eq!(response.status(), StatusCode::OK, "{from}");
        let page: Value = serde_json::from_str(&text(response).await).unwrap();
        assert_eq!((names(&page), &page["continue"]), (expected, &next), "{from}");
        assert!(page["missing"].as_str().unwrap().contains("Redis was not reached"), "{page}");
    }
    let whole = get(&world, "/api/v1/agents?id=1").await;
    assert_eq!(whole.status(), StatusCode::SERVICE_UNAVAILABLE, "the whole list has no connected agent");
}

#[tokio::test(start_paused = true)]
async fn invalid_request_is_refused_with_its_reason() {
    let world = World::new();
    for (path, status, error, message) in [
        ("/api/v1/agents/nobody", 404, "not-found", "no agent \"nobody\""),
        ("/api/v1/agents/%ff", 404, "not-found", "the paths are /api/v1/agents"),
        ("/api/v1/agents/", 404, "not-found", "the paths are /api/v1/agents"),
        ("/api/v1/agents/prod/tunnels", 404, "not-found", "the paths are /api/v1/agents"),
        ("/api/v1/agentsx", 404, "not-found", "the paths are /api/v1/agents"),
        ("/", 404, "not-found", "the paths are /api/v1/agents"),
        ("/api/v1/agents?limit=9999", 400, "bad-request", "between 1 and 500"),
        ("/api/v1/agents/prod?project=7", 400, "bad-request", "has no parameters"),
    ] {
        let answer = get(&world, path).await;
        assert_eq!(answer.status(), status, "{path}");
        let body: Value = serde_json::from_str(&text(answer).await).unwrap();
        assert_eq!(body["error"], error);
        assert!(body["message"].as_str().unwrap().contains(message), "{body}");
    }
    let head = Request::head("/api/v1/agents").header(AUTHORIZATION, format!("Bearer {}", valid_token()));
    let head = send(&world, head.body(Body::empty()).unwrap()).await;
    assert_eq!(
        (head.status(), &head.headers()["content-type"]),
        (StatusCode::OK, &"application/json".parse().unwrap())
    );
    assert_eq!(text(head).await, "");
    for (method, path) in [("POST", "/api/v1/agents"), ("DELETE", "/api/v1/agents/1")] {
        let request = Request::builder().method(method).uri(path);
        let request = request.header(AUTHORIZATION, format!("Bearer {}", valid_token()));
        let answer = send(&world, request.body(Body::empty()).unwrap()).await;
        assert_eq!(
            (answer.status(), &answer.headers()["allow"]),
            (StatusCode::METHOD_NOT_ALLOWED, &"GET, HEAD".parse().unwrap()),
            "{method} {path}"
        );
    }
    assert_eq!(world.metric("kas_api_requests_total{result=\"method-not-allowed\"}"), 2.0);
    assert_eq!(world.metric("kas_api_requests_total{result=\"not-found\"}"), 6.0);
}

#[tokio::test(start_paused = true)]
async fn tokens_of_other_issuers_are_refused_if_the_issuer_is_configured() {
    let verifier = ApiTokenVerifier::new(kas_testing::fleet::secret(1), Some("gitlab.example.com"));
    let check = |issuer: &Value| {
        let mut claims = json!({"aud": "gitlab-kas", "exp": now() + 60});
        if !issuer.is_null() {
            claims["iss"] = issuer.clone();
        }
        verifier.check(&kas_testing::internal_api::jwt(&[1; 32], &json!({"alg": "HS256"}), &claims))
    };
    check(&json!("gitlab.example.com")).unwrap();
    for (issuer, expected) in [
        (json!("other.example.com"), "authentication_issuer"),
        (json!(""), "authentication_issuer"),
        (json!(["other.example.com"]), "authentication_issuer"),
        (json!(["gitlab.example.com"]), "must be one text"),
        (json!(null), "no issuer"),
    ] {
        let error = check(&issuer).unwrap_err().to_string();
        assert!(error.contains(expected), "{issuer}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn tokens_of_every_length_of_hmac_are_good() {
    let secret = [1; 32];
    let verifier = ApiTokenVerifier::new(kas_testing::fleet::secret(1), None);
    let claims = json!({"aud": ["other", "gitlab-kas"], "iss": "gitlab.example.com", "exp": now() + 600});
    let claims = BASE64_URL_SAFE_NO_PAD.encode(claims.to_string());
    let sealed = |algorithm: &str, seal: fn(&[u8], &[u8]) -> Vec<u8>| {
        let head = BASE64_URL_SAFE_NO_PAD.encode(json!({"alg": algorithm}).to_string());
        let message = format!("{head}.{claims}");
        format!("{message}.{}", BASE64_URL_SAFE_NO_PAD.encode(seal(&secret, message.as_bytes())))
    };
    verifier.check(&sealed("HS256", hmac::<Hmac<Sha256>>)).unwrap();
    verifier.check(&sealed("HS384", hmac::<Hmac<sha2::Sha384>>)).unwrap();
    verifier.check(&sealed("HS512", hmac::<Hmac<sha2::Sha512>>)).unwrap();
    assert!(verifier.check(&sealed("HS512", hmac::<Hmac<Sha256>>)).is_err(), "a seal of another length");
    assert_eq!(BASE64_STANDARD.encode(secret).len(), 44, "as `openssl rand -base64 32` prints it");
}

fn hmac<M: hmac::Mac + hmac::KeyInit>(secret: &[u8], message: &[u8]) -> Vec<u8> {
    <M as hmac::KeyInit>::new_from_slice(secret)
        .unwrap()
        .chain_update(message)
        .finalize()
        .into_bytes()
        .to_vec()
}

#[tokio::test(start_paused = true)]
async fn environments_are_listed_from_the_last_valid_file() {
    let world = World::new();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("environments.yaml");
    let environment = |id: u32, slug: &str| {
        format!(
            "- {{id: {id}, project: shop/web, slug: {slug}, agents: [{{agent: prod, namespace: web}}]}}\n"
        )
    };
    std::fs::write(&path, format!("environments:\n{}{}", environment(2, "review"), environment(1, "live")))
        .unwrap();
    let file = EnvironmentFile::read(&path).unwrap();
    let slugs = async |query: &str| {
        let io = connect_with(&world, EnvironmentSources(vec![Arc::new(file.clone())]));
        let answer = send_over(io, valid_request(&format!("/api/v1/environments{query}"))).await;
        let list: Value = serde_json::from_str(&text(answer).await).unwrap();
        let slugs = list["environments"].as_array().unwrap().iter();
        slugs.map(|environment| environment["slug"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(slugs("").await, ["live", "review"]);
    assert_eq!(slugs("?project=shop%2Fweb&slug=live").await, ["live"]);
    assert_eq!(slugs("?agent=other").await, [""; 0]);

    std::fs::write(&path, format!("environments:\n{}", environment(1, "Live"))).unwrap();
    file.reload(&path).unwrap_err();
    assert_eq!(slugs("").await, ["live", "review"], "the last valid version stays");
    std::fs::write(&path, format!("environments:\n{}", environment(1, "live"))).unwrap();
    file.reload(&path).unwrap();
    assert_eq!(slugs("").await, ["live"]);

    let none = get(&world, "/api/v1/environments").await;
    let list: Value = serde_json::from_str(&text(none).await).unwrap();
    assert_eq!(list["environments"], json!([]), "without a file");
    assert_eq!(get(&world, "/api/v1/environments?tier=prod").await.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test(start_paused = true)]
async fn newest_deployments_are_listed_first() {
    let world = World::new();
    for job in 1..=3 {
        world.kas.deployments.record(deployment(job, DeploymentStatus::Success)).await.unwrap();
    }
    let jobs = async |query: &str| {
        let list = read(&world, &format!("/api/v1/deployments{query}")).await;
        let jobs = list["deployments"].as_array().unwrap().iter();
        jobs.map(|deployment| deployment["job"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(jobs("").await, [3, 2, 1]);
    assert_eq!(jobs("?project_id=1&environment=live&agent=1&limit=1").await, [3]);
    assert_eq!(jobs("?project=shop/web&environment=l*&tier=production&status=success").await, [3, 2, 1]);
    assert!(jobs("?agent=2").await.is_empty());
    assert_eq!(get(&world, "/api/v1/deployments?commit=abc").await.status(), StatusCode::BAD_REQUEST);
}

/// A deployment of a job to `live` of `shop/web`, with the number of the job as the first digits of its commit.
fn deployment(job: u64, status: DeploymentStatus) -> Deployment {
    Deployment {
        time: SystemTime::UNIX_EPOCH,
        agent: AgentId(1),
        namespace: Some("web".into()),
        project_id: job % 2,
        project: Some("shop/web".into()),
        environment: "live".into(),
        tier: Tier::Production,
        job,
        commit: Some(testing::gitlab::sha_of_job(job)),
        username: None,
        facts: DeploymentFacts { status, ..DeploymentFacts::default() },
    }
}

/// "Is commit X in production?" is one request about all clusters.
#[tokio::test(start_paused = true)]
async fn commit_is_in_production_if_its_deployment_is_the_last_successful_one() {
    use DeploymentStatus::{Failed, Success, Unknown};
    let world = World::new();
    let other_cluster = |job, status| Deployment { agent: AgentId(2), ..deployment(job, status) };
    let one_project = |deployment: Deployment| Deployment { project_id: 7, ..deployment };
    for deployment in [
        deployment(1, Success),
        deployment(2, Success),
        deployment(3, Failed),
        other_cluster(1, Success),
        other_cluster(4, Unknown),
    ] {
        world.kas.deployments.record(one_project(deployment)).await.unwrap();
    }
    let current = async |commit: &str| {
        let query = format!("/api/v1/deployments?commit={commit}&tier=production");
        let list = read(&world, &query).await;
        let found = list["deployments"].as_array().unwrap().iter();
        found.map(|found| (found["agent"].clone(), found["current"].clone())).collect::<Vec<_>>()
    };
    assert_eq!(current("0000002").await, [(json!(1), json!(true))]);
    assert_eq!(current("0000003d").await, [(json!(1), json!(false))], "it failed");
    let unclear = [(json!(2), json!(null)), (json!(1), json!(false))];
    assert_eq!(current("0000001").await, unclear, "one was replaced, and the other perhaps");
    assert_eq!(current(&testing::gitlab::sha_of_job(9)).await, []);
}

#[tokio::test(start_paused = true)]
async fn environment_has_the_last_deployments_of_its_jobs() {
    let world = World::new();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("environments.yaml");
    let content = "environments:\n\
        - {id: 1, project: shop/web, slug: live, agents: [{agent: prod, namespace: web}]}\n\
        - {id: 2, project: shop/web, slug: dev, agents: [{agent: prod, namespace: dev}]}\n";
    std::fs::write(&path, content).unwrap();
    let file = EnvironmentFile::read(&path).unwrap();
    for (job, status) in [(1, DeploymentStatus::Success), (2, DeploymentStatus::Canceled)] {
        world.kas.deployments.record(deployment(job, status)).await.unwrap();
    }
    let list = async |query: &str| {
        let io = connect_with(&world, EnvironmentSources(vec![Arc::new(file.clone())]));
        let answer = send_over(io, valid_request(&format!("/api/v1/environments{query}"))).await;
        serde_json::from_str::<Value>(&text(answer).await).unwrap()["environments"].clone()
    };
    assert!(list("").await[0].get("deployments").is_none(), "only if they are asked for");
    let environments = list("?deployments=true").await;
    let [live, dev] = [0, 1].map(|at| &environments[at]["deployments"]);
    assert_eq!((&live["source"], &live["missing"]), (&json!("jobs"), &Value::Null));
    assert_eq!((&live["last"]["job"], &live["last"]["status"]), (&json!(2), &json!("canceled")));
    assert_eq!(live["last_successful"]["commit"], json!(testing::gitlab::sha_of_job(1)));
    assert_eq!((&dev["last"], &dev["last_successful"]), (&Value::Null, &Value::Null));
}
