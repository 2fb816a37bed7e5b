//! The sessions of browsers over several replicas, and over a Redis that is not trusted.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{sync::Arc, time::Duration};

use access::token::{self, Holder, TokenHash};
use http::{Method, Response, header::COOKIE};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use kas_core::peers::ReplicaContext;
use kas_testing::{
    fleet::TestFleet,
    world::{World, configuration, text},
};
use proto::ReplicaId;
use secrecy::{ExposeSecret as _, SecretString};
use sha2::{Digest as _, Sha256};
use store::{
    EndedSessions, NewSession, Replica, RouteStore as _, SESSION_TTL, SessionHolder, SessionId,
    SessionLimits, SessionStore as _, Store,
    redis::{RedisAddress, RedisServers, RedisSettings, RedisStore},
};
use testing::redis::RedisServer;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::web::{Browser, services, with_page};

const SESSION: &str = "/web/v1/session";
const WATCH: &str = "/agents/prod/kubernetes/api/v1/pods?watch=true";

/// Two replicas that share a store, and the page of each in one browser.
fn replicas() -> (TestFleet, [Browser; 2]) {
    let fleet = TestFleet::with(2, with_page);
    let pages = [0, 1].map(|index| Browser::of(fleet.replicas[index].clone()));
    (fleet, pages)
}

async fn is_open(page: &Browser) -> bool {
    let status = page.get(SESSION).await.status().as_u16();
    assert!([200, 204].contains(&status), "{status}");
    status == 200
}

async fn watch(page: &Browser) -> Incoming {
    let mut watch = page.get(WATCH).await.into_body();
    watch.frame().await.unwrap().unwrap();
    watch
}

/// Waits until a stream has failed.
async fn wait_until_ended(mut stream: Incoming) {
    let ended = async { while stream.frame().await.is_some_and(|frame| frame.is_ok()) {} };
    timeout(Duration::from_secs(5), ended).await.expect("the stream ends");
}

/// Returns the key of the session of a cookie.
pub(crate) fn id(cookie: &str) -> SessionId {
    SessionId(Sha256::digest(cookie.strip_prefix("__Host-kas=").unwrap()).into())
}

/// Writes the record of a session, as somebody who can write to Redis does.
async fn write(store: &dyn Store, id: SessionId, record: Vec<u8>) {
    let session = NewSession { id, holder: SessionHolder([7; 16]), record, ttl: SESSION_TTL };
    store.begin_session(session, SessionLimits { sessions: 1000, per_holder: 1000 }).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn session_is_valid_at_all_replicas() {
    let (fleet, [mut here, mut there]) = replicas();
    let _agent = fleet.agent(0, services()).await;
    here.log_in().await;
    there.cookie.clone_from(&here.cookie);
    assert!(is_open(&there).await);
    assert_eq!(there.get("/agents/prod/kubernetes/version").await.status(), 200);
    sleep(SESSION_TTL + Duration::from_secs(1)).await;
    assert!(!is_open(&here).await && !is_open(&there).await);
}

#[tokio::test(start_paused = true)]
async fn login_ends_the_session_of_before() {
    let (fleet, [mut here, mut there]) = replicas();
    let _agent = fleet.agent(0, services()).await;
    here.log_in().await;
    let old = here.cookie.clone();
    there.cookie.clone_from(&old);
    assert!(is_open(&there).await);
    here.log_in().await;
    assert_ne!(here.cookie, old);
    assert!(is_open(&here).await);
    sleep(Duration::from_secs(4)).await;
    let refused = there.get("/agents/prod/kubernetes/version").await;
    assert_eq!(
        (refused.status().as_u16(), &refused.headers()["kas-error"]),
        (401, &"unauthorized".parse().unwrap())
    );
    here.cookie = old;
    assert_eq!(here.get("/agents/prod/kubernetes/version").await.status(), 401);
}

#[tokio::test(start_paused = true)]
async fn logout_at_another_replica_ends_the_streams_of_this_one() {
    let (fleet, [mut here, mut there]) = replicas();
    let _agent = fleet.agent(0, services()).await;
    here.log_in().await;
    there.cookie.clone_from(&here.cookie);
    let stream = watch(&here).await;
    assert_eq!(there.page(Method::DELETE, SESSION).await.status(), 204);
    wait_until_ended(stream).await;
    assert!(!is_open(&here).await && !is_open(&there).await);
}

/// The token may be in the file again, for example because of a rollback of the file.
#[tokio::test(start_paused = true)]
async fn session_of_a_removed_token_has_ended_for_good() {
    let (fleet, [mut here, mut there]) = replicas();
    here.log_in().await;
    let mut unused = Browser::of(here.world.clone());
    unused.log_in().await;
    there.cookie.clone_from(&here.cookie);
    let before = here.world.identity_file("services: ['*']");
    for world in &fleet.replicas {
        world.revoke_caller();
    }
    sleep(Duration::from_millis(10)).await;
    for world in &fleet.replicas {
        world.kas.identities.replace(kas_testing::world::parse(&before));
    }
    sleep(Duration::from_secs(4)).await;
    assert!(!is_open(&here).await && !is_open(&there).await && !is_open(&unused).await);
    there.log_in().await;
    assert!(is_open(&there).await);
}

#[tokio::test(start_paused = true)]
async fn attack_91_forged_or_corrupted_record_is_no_session() {
    let (fleet, [mut here, mut there]) = replicas();
    here.log_in().await;
    let record = fleet.store.session(id(&here.cookie)).await.unwrap().unwrap();
    let mut corrupted = record.clone();
    corrupted[20] ^= 1;
    let plain = format!("{{\"token\":\"{}\",\"end\":9999999999}}", here.world.caller_token.expose_secret());
    for forged in [corrupted, plain.into_bytes(), Vec::new(), vec![0; 100_000], b"x".to_vec()] {
        write(&*fleet.store, id(&here.cookie), forged).await;
        there.cookie.clone_from(&here.cookie);
        assert!(!is_open(&there).await);
        let refused = there.get("/agents/prod/kubernetes/version").await;
        assert_eq!(refused.status(), 401);
    }
}

/// The thief can read and write Redis, and has a session of another token.
#[tokio::test(start_paused = true)]
async fn attack_91_stolen_record_of_redis_is_no_session_of_the_thief() {
    let (fleet, [mut here, mut there]) = replicas();
    here.log_in().await;
    let record = fleet.store.session(id(&here.cookie)).await.unwrap().unwrap();
    let token = here.world.caller_token.expose_secret();
    assert!(!record.windows(10).any(|part| token.as_bytes().windows(10).any(|known| known == part)));
    // The thief has neither the cookie nor the token: the record under a cookie that the thief chooses, and the id as the cookie.
    let chosen = "__Host-kas=QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE";
    write(&*fleet.store, id(chosen), record).await;
    for cookie in [chosen.to_owned(), format!("__Host-kas={}", id(&here.cookie))] {
        there.cookie = cookie;
        assert!(!is_open(&there).await);
    }
}

/// Another host of the same site cannot set a cookie with this prefix. A browser without the prefix sends both.
#[tokio::test(start_paused = true)]
async fn attack_91_two_cookies_of_one_name_are_no_session() {
    let (_fleet, [mut here, mut thief]) = replicas();
    here.log_in().await;
    thief.log_in().await;
    let mark = ("kas-web", "1");
    for cookies in
        [&[(COOKIE.as_str(), &*thief.cookie)][..], &[(COOKIE.as_str(), &*format!("{}; x=y", thief.cookie))]]
    {
        let response = here.send(Method::GET, SESSION, "", &[&[mark], cookies].concat()).await;
        assert_eq!(response.status(), 204, "neither of both");
    }
    assert!(is_open(&here).await);
}

#[tokio::test(start_paused = true)]
async fn attack_91_guessed_cookies_are_limited() {
    let (_fleet, [mut here, mut guesser]) = replicas();
    here.log_in().await;
    let mut statuses = Vec::new();
    for number in 0..70 {
        guesser.cookie = format!("__Host-kas=guess-{number}");
        statuses.push(guesser.get(SESSION).await.status().as_u16());
    }
    assert_eq!((statuses[0], statuses[69]), (204, 429), "{statuses:?}");
    assert!(is_open(&here).await, "known sessions go on");
}

/// Two replicas with a redis-server.
struct WithRedis {
    server: RedisServer,
    pages: [Browser; 2],
    _sync: [AbortOnDropHandle<()>; 2],
    stores: [RedisStore; 2],
}

impl WithRedis {
    async fn start_or_skip() -> Option<Self> {
        let server = RedisServer::start_or_skip(&[])?;
        let tokens = (token::new(Holder::Agent), token::new(Holder::Caller));
        let [one, two] = [replica(&server, &tokens), replica(&server, &tokens)];
        for (_, _, store) in [&one, &two] {
            timeout(Duration::from_secs(60), store.wait_until_healthy()).await.unwrap();
        }
        let [(one, sync_one, store_one), (two, sync_two, store_two)] = [one, two];
        Some(Self { server, pages: [one, two], _sync: [sync_one, sync_two], stores: [store_one, store_two] })
    }
}

fn replica(
    server: &RedisServer,
    tokens: &(SecretString, SecretString),
) -> (Browser, AbortOnDropHandle<()>, RedisStore) {
    let (id, mut config) = (ReplicaId::random(), configuration());
    with_page(&mut config);
    let settings = RedisSettings {
        servers: RedisServers::Single(RedisAddress::Unix(server.socket())),
        tls: None,
        username: None,
        password_file: None,
        database: 0,
        prefix: "kas".into(),
        fleet: "default".into(),
        urls: None,
        records: None,
        dial_timeout: Duration::from_secs(5),
        response_timeout: Duration::from_secs(2),
    };
    let (store, sync) = RedisStore::new(settings, Replica { id, url: "http://a:1".into() }, "0.1.0");
    let sync = AbortOnDropHandle::new(tokio::spawn(sync.run(std::future::pending())));
    let context = ReplicaContext::standalone(id, Arc::new(store.clone()), config.peer_settings());
    (Browser::of(World::replica(context, config, tokens.clone(), None, None)), sync, store)
}

async fn error(response: Response<Incoming>) -> (u16, bool, String) {
    let (status, retry) = (response.status().as_u16(), response.headers().contains_key("retry-after"));
    (status, retry, text(response).await)
}

#[tokio::test]
async fn redis_shares_sessions_and_its_outage_ends_none() {
    let Some(WithRedis { mut server, pages: [mut here, mut there], stores, _sync }) =
        WithRedis::start_or_skip().await
    else {
        return;
    };
    here.log_in().await;
    there.cookie.clone_from(&here.cookie);
    assert!(is_open(&there).await);
    let mut unknown_there = Browser::of(here.world.clone());
    unknown_there.log_in().await;

    server.kill();
    let begun = Instant::now();
    while stores.iter().any(|store| store.health() == store::StoreHealth::Healthy) {
        assert!(begun.elapsed() < Duration::from_secs(30));
        sleep(Duration::from_millis(10)).await;
    }
    sleep(Duration::from_secs(4)).await;
    assert!(is_open(&here).await && is_open(&there).await, "both replicas know the session");
    let token = here.world.caller_token.expose_secret().to_owned();
    let (status, retry, text) = error(here.try_login(&token).await).await;
    assert!((status, retry) == (503, true) && text.contains("does not reach Redis"), "{status} {text}");
    assert!(is_open(&here).await, "the session goes on after the login that failed");
    let at_other = Browser { cookie: unknown_there.cookie.clone(), ..Browser::of(there.world.clone()) };
    let (status, retry, _) = error(at_other.get(SESSION).await).await;
    assert_eq!((status, retry), (503, true), "it is not known whether the session has ended");
    // A logout counts at once here, and at the other replica once Redis is back.
    assert_eq!(here.page(Method::DELETE, SESSION).await.status(), 204);
    let (status, ..) = error(here.get(SESSION).await).await;
    assert_eq!(status, 503);

    server.restart();
    for store in &stores {
        timeout(Duration::from_secs(30), store.wait_until_healthy()).await.unwrap();
    }
    let begun = Instant::now();
    while is_open(&there).await {
        assert!(begun.elapsed() < Duration::from_secs(20), "Redis has lost the session");
        sleep(Duration::from_millis(200)).await;
    }
    here.log_in().await;
    there.cookie.clone_from(&here.cookie);
    assert!(is_open(&there).await);
    let holder = SessionHolder(TokenHash::of(&here.world.caller_token).digest());
    stores[0].end_sessions(EndedSessions::OfHolder(holder)).await.unwrap();
    sleep(Duration::from_secs(4)).await;
    assert!(!is_open(&here).await && !is_open(&there).await);
}
