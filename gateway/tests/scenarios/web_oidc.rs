//! Logins to the web page with tokens of an OIDC issuer, and at the issuer.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::time::Duration;

use http::{
    Method, Response,
    header::{LOCATION, SET_COOKIE},
};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use kas_testing::{
    issuer::{Behavior, IssuerKey, TestIssuer, claims, now},
    world::{World, text},
};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::web::{Browser, services, with_page};

const SESSION: &str = "/web/v1/session";
const CALLBACK: &str = "/web/v1/callback/test";
const ISS: &str = "iss=https%3A%2F%2Fissuer.example.com";
const WATCH: &str = "/agents/prod/kubernetes/api/v1/pods?watch=true";
const PEOPLE: &str =
    "{name: people, oidc: {issuer: test, claims: {team: a}}, agents: [prod], services: [kubernetes]}";

/// An issuer, and a browser with the page, for which the issuer knows a client.
struct Page {
    issuer: TestIssuer,
    key: IssuerKey,
    browser: Browser,
}

fn page() -> Page {
    let key = IssuerKey::ec("a");
    let issuer = TestIssuer::new(&[&key]);
    let world = World::with_issuer_and(&issuer, "web: {}", with_page);
    world.set_callers(PEOPLE);
    Page { issuer, key, browser: Browser::of(world) }
}

fn of_the_team(more: Value) -> Value {
    let mut claims = claims(json!({"team": "a"}));
    claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    claims
}

/// The cookie with this name that a response sets, as browsers send it.
fn cookie(response: &Response<Incoming>, name: &str) -> Option<String> {
    let cookies = response.headers().get_all(SET_COOKIE).iter().map(|value| value.to_str().unwrap());
    let found = cookies.filter(|cookie| cookie.starts_with(&format!("{name}=")));
    found.map(|cookie| cookie.split(';').next().unwrap().to_owned()).next()
}

fn location(response: &Response<Incoming>) -> &str {
    response.headers()[LOCATION].to_str().unwrap()
}

impl Page {
    /// Begins a login as the page does. Returns the URL of the issuer and the cookie of the login.
    async fn begin(&self) -> (String, String) {
        let path = "/web/v1/login?issuer=test&page=%2Fagents%2Fprod%3Fnamespace%3Da";
        let response = self.browser.send(Method::GET, path, "", &[("sec-fetch-site", "same-origin")]).await;
        assert_eq!(response.status(), 303);
        let set = response.headers()[SET_COOKIE].to_str().unwrap();
        assert!(set.ends_with("; Path=/; Max-Age=600; Secure; HttpOnly; SameSite=Lax"), "{set}");
        (location(&response).to_owned(), cookie(&response, "__Host-kas-login").unwrap())
    }

    /// Returns the path of the redirect with which the issuer ends a login of a person with these claims.
    fn authorize(&self, url: &str, claims: &Value) -> String {
        let query = self.issuer.authorize(url, &self.key, claims);
        format!("{CALLBACK}?{query}")
    }

    /// Comes back from the issuer, as from another site.
    async fn come_back(&self, path: &str, cookie: &str) -> Response<Incoming> {
        let browser = Browser { cookie: cookie.to_owned(), ..Browser::of(self.browser.world.clone()) };
        browser.send(Method::GET, path, "", &[("sec-fetch-site", "cross-site")]).await
    }

    async fn is_open(&self) -> bool {
        self.browser.get(SESSION).await.status() == 200
    }

    /// Checks that a response shows a failure, and begins no session.
    async fn refuses(response: Response<Incoming>, status: u16, what: &str) {
        assert_eq!((response.status().as_u16(), cookie(&response, "__Host-kas")), (status, None));
        assert_eq!(cookie(&response, "__Host-kas-login").unwrap(), "__Host-kas-login=");
        let text = text(response).await;
        assert!(text.contains(what), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn token_of_an_issuer_is_a_login_until_it_expires() {
    let mut page = page();
    let _agent = page.browser.world.agent(services()).await;
    let token = page.key.token(&of_the_team(json!({"exp": now() + 600})));
    let response = page.browser.try_login(&token).await;
    assert_eq!(response.status(), 204);
    page.browser.cookie = cookie(&response, "__Host-kas").unwrap();
    let session: Value = serde_json::from_str(&text(page.browser.get(SESSION).await).await).unwrap();
    assert_eq!(session["caller"], "test:alice");
    let agents: Value = serde_json::from_str(&text(page.browser.get("/web/v1/agents").await).await).unwrap();
    assert_eq!(agents["agents"][0]["rights"], json!({"kubernetes": ["use"]}));
    assert_eq!(page.browser.get("/agents/prod/kubernetes/version").await.status(), 200);
    let mut watch = page.browser.get(WATCH).await.into_body();
    watch.frame().await.unwrap().unwrap();
    // 600 s and the leeway of 30 s.
    let ended = timeout(Duration::from_secs(635), async {
        while watch.frame().await.is_some_and(|frame| frame.is_ok()) {}
    });
    ended.await.expect("the stream ends with the token");
    assert!(!page.is_open().await);
    assert_eq!(page.browser.get("/agents/prod/kubernetes/version").await.status(), 401);
}

#[tokio::test(start_paused = true)]
async fn refused_token_of_an_issuer_is_no_login() {
    let page = page();
    for (token, status, what) in [
        (page.key.token(&of_the_team(json!({"exp": 1}))), 401, "expired"),
        (page.key.token(&of_the_team(json!({"team": "b"}))), 401, "no-matching-caller"),
        (page.key.token(&of_the_team(json!({"aud": "other"}))), 401, "wrong-audience"),
        (IssuerKey::ec("a").token(&of_the_team(json!({}))), 401, "signature"),
    ] {
        let response = page.browser.try_login(&token).await;
        assert_eq!((response.status().as_u16(), cookie(&response, "__Host-kas")), (status, None));
        let text = text(response).await;
        assert!(text.contains(what), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn session_ends_with_the_entry_of_its_token() {
    let mut page = page();
    let token = page.key.token(&of_the_team(json!({})));
    let response = page.browser.try_login(&token).await;
    page.browser.cookie = cookie(&response, "__Host-kas").unwrap();
    assert!(page.is_open().await);
    page.browser.world.set_callers("");
    assert!(!page.is_open().await);
    page.browser.world.set_callers(PEOPLE);
    assert!(!page.is_open().await, "it has ended for good");
}

#[tokio::test(start_paused = true)]
async fn person_logs_in_at_an_issuer() {
    let mut page = page();
    let _agent = page.browser.world.agent(services()).await;
    let issuers = text(page.browser.get("/web/v1/issuers").await).await;
    assert_eq!(issuers, r#"{"issuers":["test"]}"#);
    let (url, cookie_of_login) = page.begin().await;
    assert!(
        url.starts_with("https://issuer.example.com/authorize?response_type=code&client_id=kas&"),
        "{url}"
    );
    assert!(
        url.contains("redirect_uri=https%3A%2F%2Fkas.example.com%3A8156%2Fweb%2Fv1%2Fcallback%2Ftest&"),
        "{url}"
    );
    assert!(url.contains("code_challenge_method=S256") && url.contains("scope=openid"), "{url}");
    let back = page.authorize(&url, &of_the_team(json!({})));
    let response = page.come_back(&back, &cookie_of_login).await;
    assert_eq!((response.status().as_u16(), location(&response)), (303, "/agents/prod?namespace=a"));
    assert_eq!(cookie(&response, "__Host-kas-login").unwrap(), "__Host-kas-login=", "the login is over");
    page.browser.cookie = cookie(&response, "__Host-kas").unwrap();
    assert!(page.is_open().await);
    assert_eq!(page.browser.get("/agents/prod/kubernetes/version").await.status(), 200);
    // The next login ends this session, although the browser comes back without its cookie.
    let old = page.browser.cookie.clone();
    page.begin().await;
    page.browser.cookie = old;
    assert!(!page.is_open().await);
}

#[tokio::test(start_paused = true)]
async fn failed_login_at_an_issuer_says_why() {
    let page = page();
    let (url, cookie) = page.begin().await;
    let back = page.authorize(&url, &of_the_team(json!({"team": "b"})));
    Page::refuses(page.come_back(&back, &cookie).await, 401, "no-matching-caller").await;
    let state = url.split("state=").nth(1).unwrap().split('&').next().unwrap();
    let denied = format!("{CALLBACK}?error=access_denied&error_description=%3Cb%3E&state={state}&{ISS}");
    Page::refuses(page.come_back(&denied, &cookie).await, 401, "access_denied: &lt;b&gt;").await;
    let other = format!("{CALLBACK}?code=c&iss=https://evil.example.com&state={state}");
    Page::refuses(page.come_back(&other, &cookie).await, 502, "another issuer").await;
    page.issuer.set(Behavior::Down);
    let back = page.authorize(&url, &of_the_team(json!({})));
    Page::refuses(page.come_back(&back, &cookie).await, 503, "connection refused").await;
    for (path, site, status) in [
        ("/web/v1/login?issuer=other", "same-origin", 404),
        ("/web/v1/login", "same-origin", 404),
        ("/web/v1/login?issuer=test", "cross-site", 403),
    ] {
        let response = page.browser.send(Method::GET, path, "", &[("sec-fetch-site", site)]).await;
        assert_eq!(response.status(), status, "{path}");
    }
}

/// The attacker sends a person a link with a code of the attacker, so that the person would use the account of the attacker.
#[tokio::test(start_paused = true)]
async fn attack_92_callback_with_the_state_of_another_browser_is_refused() {
    let page = page();
    let (url, cookie_of_attacker) = page.begin().await;
    let (_, cookie_of_person) = page.begin().await;
    let back = page.authorize(&url, &of_the_team(json!({})));
    for cookie in [
        cookie_of_person.clone(),
        String::new(),
        "__Host-kas-login=e30".to_owned(),
        format!("{cookie_of_attacker}; {cookie_of_person}"),
    ] {
        Page::refuses(page.come_back(&back, &cookie).await, 400, "not begun in this browser").await;
    }
}

/// The attacker is one of two issuers, and sends the browser on to the other one with its own `state`: kas would send it the code of
/// the other issuer (RFC 9700 section 4.4).
#[tokio::test(start_paused = true)]
async fn attack_92_code_of_another_issuer_is_refused() {
    let page = page();
    let (url, cookie) = page.begin().await;
    let back = page.authorize(&url, &of_the_team(json!({})));
    let query = back.split_once('?').unwrap().1;
    for path in ["/web/v1/callback/honest", "/web/v1/callback/", "/web/v1/callback/test/"] {
        let response = page.come_back(&format!("{path}?{query}"), &cookie).await;
        Page::refuses(response, 400, "another issuer than the one of this login").await;
    }
    // This issuer announces that its redirects name it.
    let (nameless, _) = back.split_once("&iss=").unwrap();
    Page::refuses(page.come_back(nameless, &cookie).await, 502, "does not name the issuer (iss)").await;
    assert_eq!(page.come_back(&back, &cookie).await.status(), 303, "the code was sent to nobody");
}

#[tokio::test(start_paused = true)]
async fn attack_92_code_that_is_used_twice_is_refused() {
    let page = page();
    let (url, login) = page.begin().await;
    let back = page.authorize(&url, &of_the_team(json!({})));
    assert_eq!(page.come_back(&back, &login).await.status(), 303);
    Page::refuses(page.come_back(&back, &login).await, 401, "invalid_grant").await;
    // The code of another login with this state: the verifier of PKCE differs.
    let (other, _) = page.begin().await;
    let stolen = page.authorize(&other, &of_the_team(json!({})));
    let code = stolen.split("code=").nth(1).unwrap().split('&').next().unwrap();
    let state = url.split("state=").nth(1).unwrap().split('&').next().unwrap();
    let injected = format!("{CALLBACK}?code={code}&state={state}&{ISS}");
    Page::refuses(page.come_back(&injected, &login).await, 401, "invalid_grant").await;
}

#[tokio::test(start_paused = true)]
async fn attack_92_guessed_codes_are_limited() {
    let page = page();
    let (url, login) = page.begin().await;
    let state = url.split("state=").nth(1).unwrap().split('&').next().unwrap();
    let mut statuses = Vec::new();
    for number in 0..70 {
        let guess = format!("{CALLBACK}?code=guess-{number}&state={state}&{ISS}");
        statuses.push(page.come_back(&guess, &login).await.status().as_u16());
    }
    assert_eq!((statuses[0], statuses[69]), (401, 429), "{statuses:?}");
}

#[tokio::test(start_paused = true)]
async fn attack_92_session_has_ended_after_its_credential_expired() {
    let mut page = page();
    let token = page.key.token(&of_the_team(json!({"exp": now() + 60})));
    let response = page.browser.try_login(&token).await;
    let set = response.headers()[SET_COOKIE].to_str().unwrap();
    let seconds: u64 = set.split("Max-Age=").nth(1).unwrap().split(';').next().unwrap().parse().unwrap();
    assert!(seconds <= 90, "{set}");
    page.browser.cookie = cookie(&response, "__Host-kas").unwrap();
    assert!(page.is_open().await);
    sleep(Duration::from_secs(91)).await;
    assert!(!page.is_open().await);
    assert_eq!(page.browser.get("/agents/prod/kubernetes/version").await.status(), 401);
}
