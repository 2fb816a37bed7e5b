//! The listener of the web page: sessions, and which requests reach an agent.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{path::Path, sync::Arc, time::Duration};

use access::{Identity, kill_switch::file};
use agentk_core::Services;
use gateway::config::Config;
use http::{
    Method, Request, Response, StatusCode,
    header::{ACCEPT_ENCODING, AUTHORIZATION, COOKIE, HOST, LOCATION, ORIGIN, SET_COOKIE},
};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use kas_testing::world::{CALLER, World, endless, parse, text};
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};
use tunnel::Body;

use crate::set_configuration::Configuration;

const HOST_NAME: &str = "kas.example.com:8156";

/// A browser with the page of a kas, whose agent tells what it has received.
pub(crate) struct Browser {
    pub(crate) world: World,
    pub(crate) cookie: String,
}

/// Edits a configuration so that kas serves the page.
pub(crate) fn with_page(config: &mut Config) {
    config.web = Some(serde_json::from_value(json!({"listen": {}})).unwrap());
    // No stream ends with its tunnel here.
    config.agent.listen.max_connection_age = Duration::from_secs(24 * 3600).into();
}

impl Browser {
    pub(crate) fn new() -> Self {
        Self::of(World::with(with_page))
    }

    /// Returns a browser with the page of a replica.
    pub(crate) fn of(world: World) -> Self {
        Self { world, cookie: String::new() }
    }

    /// Sends a request as the page does, with more headers or other ones.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        body: &str,
        headers: &[(&str, &str)],
    ) -> Response<Incoming> {
        let (near, far) = tokio::io::duplex(64 << 10);
        let web = self.world.kas.web.clone().unwrap();
        tokio::spawn(async move { web.serve(far, CALLER, Arc::default()).await });
        let mut request = Request::builder().method(method).uri(path).header(HOST, HOST_NAME);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if !self.cookie.is_empty() {
            request = request.header(COOKIE, &self.cookie);
        }
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(near)).await.unwrap();
        tokio::spawn(connection);
        sender.send_request(request.body(Body::from(body.to_owned())).unwrap()).await.unwrap()
    }

    pub(crate) async fn page(&self, method: Method, path: &str) -> Response<Incoming> {
        self.send(method, path, "", &[("kas-web", "1"), ("sec-fetch-site", "same-origin")]).await
    }

    pub(crate) async fn get(&self, path: &str) -> Response<Incoming> {
        self.page(Method::GET, path).await
    }

    pub(crate) async fn get_json(&self, path: &str) -> Value {
        let response = self.get(path).await;
        assert_eq!(response.status(), 200, "{path}");
        serde_json::from_str(&text(response).await).unwrap()
    }

    pub(crate) async fn try_login(&self, token: &str) -> Response<Incoming> {
        let body = json!({"token": token}).to_string();
        self.send(Method::POST, "/web/v1/session", &body, &[("kas-web", "1")]).await
    }

    /// Logs in as the caller of the world. Keeps the cookie as a browser does.
    pub(crate) async fn log_in(&mut self) {
        let token = self.world.caller_token.expose_secret().to_owned();
        let response = self.try_login(&format!(" {token}\n")).await;
        assert_eq!(response.status(), 204);
        let cookie = response.headers()[SET_COOKIE].to_str().unwrap();
        assert!(
            cookie.contains("; Secure; HttpOnly; SameSite=Strict") && !cookie.contains(&token),
            "{cookie}"
        );
        cookie.split(';').next().unwrap().clone_into(&mut self.cookie);
    }
}

pub(crate) fn services() -> Services {
    Services::new().with_fn("kubernetes", async |request: Request<Body>| {
        if request.uri().query().is_some_and(|query| query.contains("watch")) {
            return Response::new(endless("watching"));
        }
        match request.uri().path() {
            "/elsewhere" => {
                let response =
                    Response::builder().status(307).header(LOCATION, "/agents/other/kubernetes/evil");
                return response.body(Body::empty()).unwrap();
            }
            "/refused" => return Response::builder().status(401).body(Body::empty()).unwrap(),
            _ => {}
        }
        assert_eq!(request.method(), Method::GET, "no upgrade");
        for name in ["cookie", "origin", "authorization", "kas-web", "kas-web-caller", "referer", "upgrade"] {
            assert!(!request.headers().contains_key(name), "the agent receives {name}");
        }
        let response = Response::builder().header(SET_COOKIE, "__Host-kas=stolen; Path=/; Secure");
        response.header("content-type", "text/html").body(Body::from("<script>alert(1)</script>")).unwrap()
    })
}

#[tokio::test(start_paused = true)]
async fn session_stands_for_its_token() {
    let mut browser = Browser::new();
    let _agent = browser.world.agent(services()).await;
    assert_eq!(browser.get("/web/v1/session").await.status(), 204);
    let refused = browser.get("/agents/prod/kubernetes/version").await;
    assert_eq!(
        (refused.status().as_u16(), &refused.headers()["kas-error"]),
        (401, &"unauthorized".parse().unwrap())
    );
    browser.log_in().await;
    let session: Value = serde_json::from_str(&text(browser.get("/web/v1/session").await).await).unwrap();
    assert!(session["caller"].is_string() && session["expires"].is_string(), "{session}");
    let agents: Value = serde_json::from_str(&text(browser.get("/web/v1/agents").await).await).unwrap();
    assert_eq!(
        (&agents["agents"][0]["name"], &agents["agents"][0]["state"]),
        (&json!("prod"), &json!("connected"))
    );
    assert_eq!(agents["replicas"], json!([agents["replica"]]));
    let replica = &agents["agents"][0]["replicas"][0];
    assert_eq!((&replica["replica"], &replica["instances"][0]["tunnels"]), (&agents["replica"], &json!(2)));
    let headers = [
        ("kas-web", "1"),
        ("origin", "https://kas.example.com:8156"),
        ("referer", "https://kas.example.com:8156/agents/prod"),
        ("authorization", "Bearer stolen"),
        ("connection", "upgrade"),
        ("upgrade", "websocket"),
    ];
    let response = browser.send(Method::GET, "/agents/prod/kubernetes/version", "", &headers).await;
    assert_eq!(response.status(), 200);
    let refused = browser.get("/agents/prod/kubernetes/refused").await;
    assert_eq!(refused.status(), 401);
    assert!(
        !refused.headers().contains_key("kas-error"),
        "a 401 of the cluster is not the end of the session"
    );
    assert_eq!(browser.get("/agents/other/kubernetes/version").await.status(), 404);

    assert_eq!(browser.page(Method::DELETE, "/web/v1/session").await.status(), 204);
    assert_eq!(browser.get("/agents/prod/kubernetes/version").await.status(), 401);
    browser.log_in().await;
    sleep(Duration::from_secs(8 * 3600 + 1)).await;
    assert_eq!(browser.get("/web/v1/session").await.status(), 204, "a session lasts eight hours");
}

#[tokio::test(start_paused = true)]
async fn caller_sees_environments_of_its_agents_only() {
    let mut browser = Browser::new();
    let configuration = Configuration::default();
    configuration.set("environments: [{slug: live, project: group/web, tier: production, namespace: shop}]");
    browser.world.kas.agents.configuration.add_source(Arc::new(configuration));
    let _agent = browser.world.agent(services()).await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(browser.get("/web/v1/environments").await.status(), 401);
    browser.log_in().await;
    let list = browser.get_json("/web/v1/environments").await;
    let live = &list["environments"][0];
    assert_eq!(
        (&live["project"], &live["slug"], &live["tier"]),
        (&json!("group/web"), &json!("live"), &json!("production"))
    );
    assert_eq!(live["agents"], json!([{"agent": "prod", "namespace": "shop", "labels": {}}]));

    let rights = browser.world.identity_file("services: ['*']");
    let other = rights.replacen("tokens: [", "tokens: []}, {id: 2, name: test, tokens: [", 1);
    browser.world.kas.identities.replace(parse(&other.replace("agents: [prod]", "agents: [test]")));
    assert_eq!(browser.get_json("/web/v1/environments").await, json!({"environments": []}));
    browser.world.kas.identities.replace(parse("agents: [{id: 1, name: prod, tokens: []}]\ncallers: []"));
    assert_eq!(browser.get("/web/v1/environments").await.status(), 401, "the token was revoked");
    assert_eq!(browser.page(Method::PUT, "/web/v1/environments").await.status(), 405);
}

#[tokio::test(start_paused = true)]
async fn details_of_an_agent_have_errors_and_the_last_end() {
    let mut browser = Browser::new();
    let configuration = Configuration::default();
    configuration.set("environments: [{slug: Live, project: group/web, namespace: shop}]");
    browser.world.kas.agents.configuration.add_source(Arc::new(configuration));
    let agent = browser.world.agent(services()).await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(browser.get("/web/v1/agents/prod").await.status(), 401);
    browser.log_in().await;
    let details = browser.get_json("/web/v1/agents/prod").await;
    assert!(
        details["configuration"]["error"].as_str().unwrap().contains("environments[0].slug"),
        "{details}"
    );
    assert_eq!(
        (&details["last_end"], &details["dial_error"], &details["refused"]),
        (&json!(null), &json!(null), &json!(null))
    );
    for name in ["test", "", "prod/x", "%2e%2e"] {
        assert_eq!(browser.get(&format!("/web/v1/agents/{name}")).await.status(), 404, "{name}");
    }
    assert_eq!(browser.page(Method::DELETE, "/web/v1/agents/prod").await.status(), 405);

    drop(agent);
    sleep(Duration::from_secs(60)).await;
    let details = browser.get_json("/web/v1/agents/prod").await;
    assert_eq!(details["configuration"], json!(null));
    assert!(
        details["last_end"]["reason"].is_string() && details["last_end"]["time"].is_string(),
        "{details}"
    );

    let rights = browser.world.identity_file("services: ['*']");
    let other = rights.replacen("tokens: [", "tokens: []}, {id: 2, name: test, tokens: [", 1);
    browser.world.kas.identities.replace(parse(&other.replace("agents: [prod]", "agents: [test]")));
    assert_eq!(browser.get("/web/v1/agents/prod").await.status(), 404, "another caller's agent");
}

/// Content of a cluster must not run as a page with the session of the reader.
#[tokio::test(start_paused = true)]
async fn response_of_a_cluster_is_never_a_page() {
    let mut browser = Browser::new();
    let _agent = browser.world.agent(services()).await;
    browser.log_in().await;
    let response = browser.get("/agents/prod/kubernetes/api/v1/pods").await;
    let header = |name: &str| response.headers()[name].to_str().unwrap();
    assert_eq!(header("content-security-policy"), "sandbox; default-src 'none'");
    assert_eq!((header("content-disposition"), header("x-content-type-options")), ("attachment", "nosniff"));
    assert!(!response.headers().contains_key(SET_COOKIE), "the cluster sets no cookie here");
    // The page would repeat its request at another agent.
    let response = browser.get("/agents/prod/kubernetes/elsewhere").await;
    assert_eq!(response.status(), 307);
    assert!(!response.headers().contains_key(LOCATION));
    for (path, status) in [
        ("/api/v1/namespaces/a/services/evil/proxy/", 403),
        ("/api/v1/namespaces/a/services/evil%2Fproxy/", 403),
        ("/api/v1/namespaces/a/services//evil/./proxy/", 403),
        ("/api/v1/namespaces/a/services/x/../evil/proxy/", 403),
        ("/api/v1/namespaces/a/pods/evil:80/%70roxy/index.html", 403),
        ("/api/v1/nodes/n/proxy", 403),
        ("/api/v1/proxy/nodes/n", 403),
        ("/api/v1/namespaces/proxy/pods/proxy", 200),
        ("/api/v1/namespaces/a/pods/proxy/log", 200),
    ] {
        let response = browser.get(&format!("/agents/prod/kubernetes{path}")).await;
        // The proxy itself refuses some of these paths before.
        let is_refused = [400, 403].contains(&response.status().as_u16());
        assert_eq!(is_refused, status == 403, "{path}: {}", response.status());
    }
    // A link to an agent leads to the page, and not to the cluster.
    let followed = browser.send(Method::GET, "/agents/prod/kubernetes/api/v1/pods", "", &[]).await;
    assert_eq!(followed.headers()["content-type"], "text/html; charset=utf-8");
    assert!(!text(followed).await.contains("alert"));
}

/// CSRF: another site, also one with another port of the same host, cannot use the session.
#[tokio::test(start_paused = true)]
async fn request_of_another_site_is_refused() {
    let mut browser = Browser::new();
    let _agent = browser.world.agent(services()).await;
    browser.log_in().await;
    let mark = ("kas-web", "1");
    for headers in [
        &[mark, ("sec-fetch-site", "cross-site")][..],
        &[mark, ("sec-fetch-site", "same-site")],
        &[mark, ("origin", "https://evil.example.com")],
        &[mark, ("origin", "https://kas.example.com:8154")],
        &[mark, ("origin", "null")],
    ] {
        for (method, path) in [
            (Method::GET, "/agents/prod/kubernetes/api/v1/pods"),
            (Method::DELETE, "/agents/prod/kubernetes/api/v1/namespaces/a/pods/b"),
            (Method::POST, "/web/v1/session"),
            (Method::DELETE, "/web/v1/session"),
        ] {
            let response = browser.send(method.clone(), path, "{}", headers).await;
            assert_eq!(response.status(), 403, "{method} {path} {headers:?}");
        }
    }
    // A form cannot send the header.
    let form =
        browser.send(Method::POST, "/agents/prod/kubernetes/api/v1/namespaces/a/pods", "{}", &[]).await;
    assert_eq!(form.status(), 405);
    let form = browser.send(Method::POST, "/web/v1/session", "{}", &[]).await;
    assert_eq!(form.status(), 403);
    let own = [mark, (ORIGIN.as_str(), "https://kas.example.com:8156")];
    assert_eq!(browser.send(Method::GET, "/web/v1/session", "", &own).await.status(), 200);
}

#[tokio::test(start_paused = true)]
async fn revoked_token_ends_the_session_and_its_streams() {
    let mut browser = Browser::new();
    let _agent = browser.world.agent(services()).await;
    browser.log_in().await;
    let mut watch = browser.get("/agents/prod/kubernetes/api/v1/pods?watch=true").await.into_body();
    watch.frame().await.unwrap().unwrap();
    let nobody =
        Identity::parse(Path::new("identity.yaml"), "agents: [{id: 1, name: prod, tokens: []}]\ncallers: []")
            .unwrap();
    browser.world.kas.identities.replace(nobody);
    let ended = timeout(Duration::from_secs(5), async {
        while let Some(frame) = watch.frame().await {
            if frame.is_err() {
                return;
            }
        }
    });
    ended.await.expect("the stream ends");
    assert_eq!(browser.get("/web/v1/session").await.status(), 204);
}

/// Two tabs share the cookie. The one that was loaded for the caller of before must not act as the new one.
#[tokio::test(start_paused = true)]
async fn tab_of_another_caller_is_refused() {
    let mut browser = Browser::new();
    let _agent = browser.world.agent(services()).await;
    browser.log_in().await;
    let session: Value = serde_json::from_str(&text(browser.get("/web/v1/session").await).await).unwrap();
    let (own, other) = (session["caller"].as_str().unwrap(), "somebody%20else");
    let pods = "/agents/prod/kubernetes/api/v1/pods";
    for (method, path, status) in [
        (Method::GET, pods, 401),
        (Method::DELETE, pods, 401),
        (Method::GET, "/web/v1/agents", 401),
        (Method::DELETE, "/web/v1/session", 401),
        (Method::GET, "/web/v1/session", 200),
    ] {
        let headers = [("kas-web", "1"), ("kas-web-caller", other)];
        let refused = browser.send(method.clone(), path, "", &headers).await;
        assert_eq!(refused.status(), status, "{method} {path}");
        if status == 401 {
            assert_eq!(refused.headers()["kas-error"], "unauthorized");
            let what = text(refused).await;
            assert!(what.contains(&format!("has logged in as {own}")), "{what}");
        }
    }
    let headers = [("kas-web", "1"), ("kas-web-caller", own)];
    assert_eq!(browser.send(Method::GET, pods, "", &headers).await.status(), 200, "the session has stayed");
}

#[tokio::test(start_paused = true)]
async fn end_of_a_session_ends_its_streams() {
    let mut browser = Browser::new();
    let _agent = browser.world.agent(services()).await;
    for logout in [true, false] {
        browser.log_in().await;
        let mut watch = browser.get("/agents/prod/kubernetes/api/v1/pods?watch=true").await.into_body();
        watch.frame().await.unwrap().unwrap();
        let limit = if logout {
            assert_eq!(browser.page(Method::DELETE, "/web/v1/session").await.status(), 204);
            Duration::from_secs(5)
        } else {
            Duration::from_secs(8 * 3600 + 5)
        };
        let ended = timeout(limit, async { while watch.frame().await.is_some_and(|frame| frame.is_ok()) {} });
        let begun = Instant::now();
        ended.await.unwrap_or_else(|_| panic!("the stream ends; logout: {logout}"));
        assert_eq!(begun.elapsed() >= Duration::from_secs(8 * 3600 - 5), !logout, "{:?}", begun.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn wrong_tokens_are_refused_and_limited() {
    let browser = Browser::new();
    let mut statuses = Vec::new();
    for number in 0..70 {
        statuses.push(browser.try_login(&format!("guess-{number}")).await.status().as_u16());
    }
    assert_eq!((statuses[0], statuses[69]), (401, 429), "{statuses:?}");
    let limited = browser.try_login("guess").await;
    assert!(limited.headers().contains_key("retry-after"));
    assert!(text(limited).await.contains("web.listen.trusted_proxies"));
    for body in ["", "{}", "[]", "{\"token\": 7}", &"x".repeat(20 << 10)] {
        let response = browser.send(Method::POST, "/web/v1/session", body, &[("kas-web", "1")]).await;
        assert_eq!(response.status(), 400);
    }
    let authorization = [(AUTHORIZATION.as_str(), "Bearer x"), ("kas-web", "1")];
    let response = browser.send(Method::GET, "/agents/prod/kubernetes/version", "", &authorization).await;
    assert_eq!(response.status(), 401, "only a session counts here");
}

#[tokio::test(start_paused = true)]
async fn kill_switch_applies_to_the_page() {
    let mut browser = Browser::new();
    let _agent = browser.world.agent(services()).await;
    browser.log_in().await;
    let rules =
        file::parse(Path::new("disabled.yaml"), "rules: [{agent: prod, reason: incident 7}]").unwrap();
    browser.world.kas.callers.kill_switch.set_file(rules);
    let response = browser.get("/agents/prod/kubernetes/version").await;
    assert_eq!(response.status(), 503);
    assert!(text(response).await.contains("incident 7"));
}

#[tokio::test(start_paused = true)]
async fn files_have_a_strict_policy() {
    let browser = Browser::new();
    for path in ["/", "/agents", "/agents/prod/tree?ns=a", "/login"] {
        let response = browser.send(Method::GET, path, "", &[]).await;
        let headers = response.headers();
        assert_eq!(
            (response.status(), headers["content-type"].to_str().unwrap()),
            (StatusCode::OK, "text/html; charset=utf-8")
        );
        let policy = headers["content-security-policy"].to_str().unwrap();
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self'")
                && policy.contains("frame-ancestors 'none'")
        );
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(headers["cache-control"], "no-cache");
        let compressed = browser.send(Method::GET, path, "", &[(ACCEPT_ENCODING.as_str(), "br, gzip")]).await;
        assert_eq!(compressed.headers()["content-encoding"], "gzip");
        let etag = headers["etag"].to_str().unwrap();
        let known = browser.send(Method::GET, path, "", &[("if-none-match", etag)]).await;
        assert_eq!(known.status(), StatusCode::NOT_MODIFIED);
        assert_eq!(known.headers()["etag"], etag);
        let page = text(response).await;
        assert!(!page.contains("style=") && !page.contains("onload="), "{page}");
    }
    let licences = browser.send(Method::GET, "/third-party-licences.txt", "", &[]).await;
    assert_eq!(licences.headers()["content-type"], "text/plain; charset=utf-8");
    assert!(text(licences).await.contains("preact"));
    assert_eq!(browser.send(Method::GET, "/assets/none.js", "", &[]).await.status(), 404);
    assert_eq!(
        browser.send(Method::GET, "/../../etc/passwd", "", &[]).await.status(),
        200,
        "it is a path of the page"
    );
    assert_eq!(browser.send(Method::POST, "/", "", &[]).await.status(), 405);
    assert_eq!(browser.get("/web/v1/other").await.status(), 404);
    assert_eq!(browser.page(Method::PUT, "/web/v1/session").await.status(), 405);
}
