//! Logins to the web page at GitLab.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{sync::Arc, time::Duration};

use access::{ConfigurationSource, token::TokenHash};
use agentk_core::Services;
use http::{
    Method, Request, Response,
    header::{LOCATION, SET_COOKIE},
};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use kas_gitlab::ApiRateLimit;
use kas_testing::{
    fleet::TestFleet,
    gitlab::{AGENT, AGENT_TOKEN, client},
    page_login::APPLICATION,
    world::{RunningAgent, endless, parse, text},
};
use proto::AgentId;
use serde_json::{Value, json};
use store::{
    EndedSessions, NewSession, RouteStore as _, SESSION_TTL, SessionHolder, SessionLimits, SessionStore as _,
};
use testing::gitlab::{Account, Agent, Endpoint, Fault, StandIn, User};
use tokio::time::{sleep, timeout};
use tunnel::Body;

use crate::{
    rights::Configured,
    web::{Browser, with_page},
    web_sessions::id,
};

const SESSION: &str = "/web/v1/session";
const WATCH: &str = "/agents/7/kubernetes/api/v1/pods?watch=true";

/// Two replicas with the page. The first one has the tunnels of an agent of GitLab.
struct Page {
    gitlab: StandIn,
    fleet: TestFleet,
    configured: Arc<Configured>,
    _agent: RunningAgent,
}

impl Page {
    /// `alice` is a developer of the project of `user_access`, `bob` a maintainer of its group, and `carol` a guest of both.
    async fn new() -> Self {
        let gitlab = StandIn::start().await;
        let mut agent = Agent::new(AGENT, "prod", AGENT_TOKEN);
        agent.project.gitaly.address.clear();
        {
            let mut state = gitlab.state();
            state.add_agent(agent);
            state.users.extend([User::new(10, "alice"), User::new(11, "bob"), User::new(12, "carol")]);
            let oauth = &mut state.oauth;
            oauth.applications.insert(APPLICATION.to_owned(), None);
            oauth.ids.extend([("project.group/web".to_owned(), 30), ("group.group/ops".to_owned(), 23)]);
            for (user, place, level) in [
                ("alice", "project.group/web", 30),
                ("bob", "group.group/ops", 40),
                ("carol", "project.group/web", 10),
                ("carol", "group.group/ops", 10),
            ] {
                oauth.set_access(user, place, level);
            }
        }
        let limit = ApiRateLimit::default();
        let fleet = TestFleet::with_gitlab_and(2, || client(&gitlab, &limit), AGENT_TOKEN, with_page);
        let configured = Arc::<Configured>::default();
        *configured.0.lock() = Some(
            "user_access: {access_as: {user: {}}, projects: [{id: group/web}], groups: [{id: group/ops}]}",
        );
        for world in &fleet.replicas {
            let source = Arc::clone(&configured) as Arc<dyn ConfigurationSource>;
            world.kas.agents.configuration.add_source(source);
        }
        let services = ["kubernetes", "gitops"].into_iter();
        let services = services.fold(Services::new(), |services, name| services.with_fn(name, echo));
        let agent = fleet.replicas[0].agent(services).await;
        while fleet.store.lookup(AgentId(AGENT)).await.unwrap().routes.is_empty() {
            sleep(Duration::from_millis(1)).await;
        }
        Self { gitlab, fleet, configured, _agent: agent }
    }

    /// Returns a browser with the page of a replica, in which nobody is logged in.
    fn browser(&self, replica: usize) -> Browser {
        Browser::of(self.fleet.replicas[replica].clone())
    }

    /// Logs a user in at GitLab with a browser at a replica.
    async fn log_in(&self, replica: usize, username: &str) -> Browser {
        let mut browser = self.browser(replica);
        log_in(&mut browser, &self.gitlab, username).await;
        browser
    }

    /// Returns a browser with the same cookie at another replica.
    fn elsewhere(&self, browser: &Browser, replica: usize) -> Browser {
        Browser { cookie: browser.cookie.clone(), ..self.browser(replica) }
    }
}

/// Responds with the identity in the cluster, or with an endless body to a watch.
async fn echo(request: Request<Body>) -> Response<Body> {
    if request.uri().query().is_some_and(|query| query.contains("watch")) {
        return Response::new(endless("watching"));
    }
    let headers = request.headers().iter().filter(|(name, _)| name.as_str().starts_with("impersonate-"));
    let lines = headers.map(|(name, value)| format!("{name}: {}\n", value.to_str().unwrap()));
    Response::new(Body::from(lines.collect::<String>()))
}

/// Logs a user in at GitLab with a browser.
pub(crate) async fn log_in(browser: &mut Browser, gitlab: &StandIn, username: &str) {
    let (url, cookie) = begin(browser).await;
    let back = format!("/web/v1/callback/gitlab?{}", gitlab.authorize(&url, username));
    let response = come_back(browser, &back, &cookie).await;
    assert_eq!(response.status(), 303, "{}", text(response).await);
    assert_eq!(response.headers()[LOCATION], "/agents");
    browser.cookie = cookie_of(&response, "__Host-kas").unwrap();
}

/// Begins a login as the page does. Returns the URL of GitLab and the cookie of the login.
async fn begin(browser: &Browser) -> (String, String) {
    let path = "/web/v1/login?issuer=gitlab&page=%2Fagents";
    let response = browser.send(Method::GET, path, "", &[("sec-fetch-site", "same-origin")]).await;
    assert_eq!(response.status(), 303);
    let url = response.headers()[LOCATION].to_str().unwrap().to_owned();
    (url, cookie_of(&response, "__Host-kas-login").unwrap())
}

/// Comes back from GitLab, as from another site.
async fn come_back(browser: &Browser, path: &str, cookie: &str) -> Response<Incoming> {
    let browser = Browser { cookie: cookie.to_owned(), ..Browser::of(browser.world.clone()) };
    browser.send(Method::GET, path, "", &[("sec-fetch-site", "cross-site")]).await
}

pub(crate) fn cookie_of(response: &Response<Incoming>, name: &str) -> Option<String> {
    let cookies = response.headers().get_all(SET_COOKIE).iter().map(|value| value.to_str().unwrap());
    let found = cookies.filter(|cookie| cookie.starts_with(&format!("{name}=")));
    found.map(|cookie| cookie.split(';').next().unwrap().to_owned()).next()
}

async fn post(browser: &Browser, path: &str) -> u16 {
    browser.page(Method::POST, path).await.status().as_u16()
}

/// Waits until kas has read a new configuration, which it does every five minutes, and knows no facts of before.
async fn read_configuration() {
    sleep(Duration::from_secs(360)).await;
}

/// Opens a watch, and reads its first part.
async fn watch(browser: &Browser) -> Incoming {
    let response = browser.get(WATCH).await;
    assert_eq!(response.status(), 200);
    let mut body = response.into_body();
    body.frame().await.unwrap().unwrap();
    body
}

/// Waits until a stream ends, at most for the time in which rights are checked again.
async fn ends(mut stream: Incoming) {
    let ended = timeout(Duration::from_secs(150), async {
        while stream.frame().await.is_some_and(|frame| frame.is_ok()) {}
    });
    ended.await.expect("the stream ends");
}

#[tokio::test(start_paused = true)]
async fn person_sees_the_agents_of_user_access_at_each_replica() {
    let page = Page::new().await;
    let issuers = page.browser(0).get_json("/web/v1/issuers").await;
    assert_eq!(issuers, json!({"issuers": ["gitlab"]}));
    for (replica, user, gitops) in
        [(0, "alice", &["read"][..]), (1, "bob", &["read", "sync", "suspend", "approve"])]
    {
        let browser = page.log_in(replica, user).await;
        for at in [0, 1] {
            let browser = page.elsewhere(&browser, at);
            let session = browser.get_json(SESSION).await;
            assert_eq!(session["caller"], format!("gitlab:user:{user}"));
            let list = browser.get_json("/web/v1/agents").await;
            assert_eq!(list["missing"], Value::Null);
            let agent = &list["agents"][0];
            assert_eq!(list["agents"].as_array().unwrap().len(), 1);
            assert_eq!(
                (&agent["id"], &agent["name"], &agent["title"], &agent["state"]),
                (&json!(7), &json!("7"), &json!("group/config-7:prod"), &json!("connected"))
            );
            let rights = json!({"gitops": gitops, "graph": ["read"], "kubernetes": ["use"]});
            assert_eq!(agent["rights"], rights);
            assert_eq!(browser.get("/web/v1/agents/7").await.status(), 200);
            let status = post(&browser, "/agents/7/gitops/v1/projects/web/sync").await;
            assert_eq!(status, if gitops.contains(&"sync") { 200 } else { 403 });
        }
    }
    page.gitlab.assert_no_violations();
}

/// kas asks GitLab about all entries of a long list, and not only about the first ones.
#[tokio::test(start_paused = true)]
async fn person_sees_an_agent_that_admits_it_by_the_last_entry() {
    let page = Page::new().await;
    let others: String = (0..400).map(|number| format!("{{id: group/other-{number}}}, ")).collect();
    let text = format!("user_access: {{access_as: {{user: {{}}}}, projects: [{others}{{id: group/web}}]}}");
    *page.configured.0.lock() = Some(text.leak());
    read_configuration().await;
    let browser = page.log_in(1, "alice").await;
    let list = browser.get_json("/web/v1/agents").await;
    assert_eq!(list["missing"], Value::Null);
    assert_eq!(list["agents"][0]["title"], "group/config-7:prod");
    page.gitlab.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn person_has_its_own_identity_in_the_cluster() {
    let page = Page::new().await;
    let identity = async |user: &str| {
        let browser = page.log_in(1, user).await;
        let response = browser.get("/agents/7/kubernetes/version").await;
        assert_eq!(response.status(), 200);
        text(response).await
    };
    let extras = |user: &str| {
        format!(
            "impersonate-extra-agent.gitlab.com%2fid: 7\n\
             impersonate-extra-agent.gitlab.com%2fusername: {user}\n\
             impersonate-extra-agent.gitlab.com%2faccess_type: oauth_login\n\
             impersonate-extra-agent.gitlab.com%2fconfig_project_id: 107\n"
        )
    };
    let sorted = |text: &str| {
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let alice = "impersonate-user: gitlab:user:alice\n\
                 impersonate-group: gitlab:user\n\
                 impersonate-group: gitlab:project_role:30:guest\n\
                 impersonate-group: gitlab:project_role:30:reporter\n\
                 impersonate-group: gitlab:project_role:30:developer\n";
    assert_eq!(sorted(&identity("alice").await), sorted(&format!("{alice}{}", extras("alice"))));
    let bob = "impersonate-user: gitlab:user:bob\n\
               impersonate-group: gitlab:user\n\
               impersonate-group: gitlab:group_role:23:guest\n\
               impersonate-group: gitlab:group_role:23:reporter\n\
               impersonate-group: gitlab:group_role:23:developer\n\
               impersonate-group: gitlab:group_role:23:maintainer\n";
    assert_eq!(sorted(&identity("bob").await), sorted(&format!("{bob}{}", extras("bob"))));
}

#[tokio::test(start_paused = true)]
async fn person_whom_user_access_does_not_admit_learns_which_list_is_missing() {
    let page = Page::new().await;
    let browser = page.log_in(1, "carol").await;
    assert_eq!(browser.get_json("/web/v1/agents").await["agents"], json!([]));
    assert_eq!(browser.get("/web/v1/agents/7").await.status(), 404);
    for path in ["/agents/7/kubernetes/version", "/agents/7/gitops/v1/projects"] {
        let response = browser.get(path).await;
        assert_eq!(
            (response.status().as_u16(), &response.headers()["kas-error"]),
            (403, &"forbidden".parse().unwrap())
        );
        let body = text(response).await;
        assert!(
            body.contains("user_access in the configuration of agent 7 does not admit this user"),
            "{body}"
        );
    }
    // An agent that does not exist, and one that is named as nobody can name it.
    assert_eq!(browser.get("/agents/8/kubernetes/version").await.status(), 503);
    assert_eq!(browser.get("/agents/prod/kubernetes/version").await.status(), 404);
    assert_eq!(page.browser(1).get("/agents/7/kubernetes/version").await.status(), 401);
}

/// GitLab's answer about a group is about its direct members, and its own rule has those of the groups above, too. It ignores entries
/// outside of the top-level group of the agent.
#[tokio::test(start_paused = true)]
async fn members_of_the_groups_above_are_admitted_and_those_of_foreign_groups_are_not() {
    let page = Page::new().await;
    let section =
        "user_access: {access_as: {user: {}}, groups: [{id: group/ops}, {id: contractors}, {id: \"a b\"}]}";
    *page.configured.0.lock() = Some(section);
    read_configuration().await;
    {
        let oauth = &mut page.gitlab.state().oauth;
        oauth.set_access("carol", "group.group", 40);
        oauth.set_access("carol", "group.group/ops", 0);
        oauth.set_access("alice", "group.contractors", 50);
    }
    let (carol, alice) = (page.log_in(0, "carol").await, page.log_in(1, "alice").await);
    assert_eq!(post(&carol, "/agents/7/gitops/v1/projects/web/sync").await, 200);
    let identity = text(carol.get("/agents/7/kubernetes/version").await).await;
    assert!(identity.contains("gitlab:group_role:23:maintainer"), "{identity}");
    assert_eq!(alice.get("/agents/7/kubernetes/version").await.status(), 403);
    page.gitlab.assert_no_violations();
}

/// Each replica finds that its access token has expired, and GitLab accepts a refresh token once.
#[tokio::test(start_paused = true)]
async fn login_lasts_while_replicas_renew_its_tokens() {
    let page = Page::new().await;
    page.gitlab.state().oauth.lifetime = Some(30);
    let browser = page.log_in(0, "alice").await;
    for round in 0..6 {
        let browser = page.elsewhere(&browser, round % 2);
        assert_eq!(browser.get(SESSION).await.status(), 200, "round {round}");
        assert_eq!(browser.get("/agents/7/kubernetes/version").await.status(), 200, "round {round}");
        sleep(Duration::from_secs(61)).await;
    }
    assert!(page.gitlab.requests(Endpoint::OauthToken) > 6);
    assert_eq!(page.gitlab.state().oauth.tokens(), (1, 1));
    page.gitlab.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn person_who_leaves_the_project_loses_its_streams() {
    let page = Page::new().await;
    let browser = page.log_in(1, "alice").await;
    let (stream, other) = (watch(&browser).await, watch(&page.elsewhere(&browser, 0)).await);
    page.gitlab.state().oauth.set_access("alice", "project.group/web", 20);
    ends(stream).await;
    ends(other).await;
    assert_eq!(browser.get("/agents/7/kubernetes/version").await.status(), 403);
    assert_eq!(browser.get_json("/web/v1/agents").await["agents"], json!([]));
    assert_eq!(browser.get(SESSION).await.status(), 200, "the login itself goes on");
}

#[tokio::test(start_paused = true)]
async fn login_ends_when_gitlab_blocks_deactivates_or_deletes_the_user() {
    for account in [Some(Account::Blocked), Some(Account::Deactivated), None] {
        let page = Page::new().await;
        let browser = page.log_in(1, "alice").await;
        let (stream, other) = (watch(&browser).await, watch(&page.elsewhere(&browser, 0)).await);
        match account {
            Some(account) => page.gitlab.state().set_account("alice", account),
            None => page.gitlab.state().delete_user("alice"),
        }
        ends(stream).await;
        ends(other).await;
        assert_eq!(browser.get("/agents/7/kubernetes/version").await.status(), 401, "{account:?}");
        assert_eq!(browser.get(SESSION).await.status(), 204, "there is no session");
        page.gitlab.assert_no_violations();
    }
}

#[tokio::test(start_paused = true)]
async fn change_of_user_access_ends_the_streams_of_those_whom_it_leaves_out() {
    let page = Page::new().await;
    let (alice, bob) = (page.log_in(1, "alice").await, page.log_in(1, "bob").await);
    let (of_alice, mut of_bob) = (watch(&alice).await, watch(&bob).await);
    *page.configured.0.lock() = Some("user_access: {access_as: {user: {}}, groups: [{id: group/ops}]}");
    read_configuration().await;
    ends(of_alice).await;
    assert_eq!(alice.get("/agents/7/kubernetes/version").await.status(), 403);
    assert_eq!(bob.get("/agents/7/kubernetes/version").await.status(), 200);
    assert!(timeout(Duration::from_secs(150), of_bob.frame()).await.is_err(), "the stream of bob goes on");
}

#[tokio::test(start_paused = true)]
async fn streams_go_on_while_gitlab_is_away_and_new_logins_say_so() {
    let page = Page::new().await;
    let browser = page.log_in(1, "alice").await;
    let mut stream = watch(&browser).await;
    page.gitlab.set_fault(Fault::Down);
    assert!(timeout(Duration::from_secs(120), stream.frame()).await.is_err(), "the stream goes on");
    let response = browser.get("/agents/7/kubernetes/version").await;
    assert_eq!(response.status(), 503);
    let (url, cookie) = begin(&browser).await;
    let back = format!("/web/v1/callback/gitlab?{}", page.gitlab.authorize(&url, "alice"));
    let response = come_back(&browser, &back, &cookie).await;
    assert_eq!(response.status(), 503);
    page.gitlab.set_fault(None);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(
        browser.get("/agents/7/kubernetes/version").await.status(),
        401,
        "the next login has ended that one"
    );
    let browser = page.log_in(1, "alice").await;
    assert_eq!(browser.get("/agents/7/kubernetes/version").await.status(), 200);
}

/// A proxy before GitLab, a limit, or a wrong secret is no reason to end the logins of all people.
#[tokio::test(start_paused = true)]
async fn refusal_that_is_about_kas_ends_no_login() {
    let page = Page::new().await;
    page.gitlab.state().oauth.lifetime = Some(61);
    let browser = page.log_in(0, "alice").await;
    for status in [403, 429, 500] {
        page.gitlab.set_fault(Fault::Status(http::StatusCode::from_u16(status).unwrap()));
        sleep(Duration::from_secs(61)).await;
        assert_eq!(browser.get(SESSION).await.status(), 503, "{status}");
    }
    page.gitlab.set_fault(None);
    page.gitlab.state().oauth.lifetime = Some(30);
    page.gitlab.state().oauth.applications.insert(APPLICATION.to_owned(), Some("rotated".to_owned()));
    sleep(Duration::from_secs(61)).await;
    let elsewhere = page.elsewhere(&browser, 1);
    assert!(matches!(elsewhere.get(SESSION).await.status().as_u16(), 200 | 503));
    page.gitlab.state().oauth.applications.insert(APPLICATION.to_owned(), None);
    sleep(Duration::from_secs(61)).await;
    assert_eq!(browser.get(SESSION).await.status(), 200);
}

/// A person can leave, or come as somebody else, while GitLab does not answer.
#[tokio::test(start_paused = true)]
async fn session_can_be_left_while_gitlab_is_away() {
    let page = Page::new().await;
    let browser = page.log_in(1, "alice").await;
    page.gitlab.set_fault(Fault::Down);
    sleep(Duration::from_secs(61)).await;
    assert_eq!(browser.get(SESSION).await.status(), 503);
    assert_eq!(browser.get("/web/v1/issuers").await.status(), 200);
    assert_eq!(browser.page(Method::DELETE, SESSION).await.status(), 204);
    assert_eq!(browser.get(SESSION).await.status(), 204);
}

#[tokio::test(start_paused = true)]
async fn logout_revokes_the_tokens_at_gitlab() {
    let page = Page::new().await;
    let browser = page.log_in(0, "alice").await;
    let stream = watch(&page.elsewhere(&browser, 1)).await;
    assert_eq!(page.gitlab.state().oauth.tokens(), (1, 1));
    // The replica that ends the session has never seen it.
    let other = page.elsewhere(&browser, 1);
    assert_eq!(other.page(Method::DELETE, SESSION).await.status(), 204);
    assert_eq!(page.gitlab.state().oauth.tokens(), (0, 0));
    ends(stream).await;
    sleep(Duration::from_secs(3)).await;
    assert_eq!(browser.get(SESSION).await.status(), 204);
    page.gitlab.assert_no_violations();
}

/// One login ends at the replica where it began, and the other one at a replica that it has used: the one where it began has stopped.
#[tokio::test(start_paused = true)]
async fn end_of_a_login_revokes_its_tokens_at_gitlab() {
    const HOURS: Duration = Duration::from_secs(8 * 3600);
    let page = Page::new().await;
    let (lost, stays) = (page.log_in(0, "alice").await, page.log_in(1, "bob").await);
    assert_eq!(page.elsewhere(&lost, 1).get(SESSION).await.status(), 200);
    let Page { gitlab, mut fleet, _agent: agent, .. } = page;
    // Its pings would make eight hours long.
    agent.stop().await;
    drop((lost, stays, fleet.replicas.remove(0)));
    sleep(HOURS - Duration::from_secs(60)).await;
    assert_eq!(gitlab.state().oauth.tokens(), (2, 2));
    sleep(Duration::from_secs(50)).await;
    assert_eq!(gitlab.state().oauth.tokens(), (0, 0));
    gitlab.assert_no_violations();
}

/// Both replicas know the login, and end it at the same time.
#[tokio::test(start_paused = true)]
async fn one_replica_revokes_the_tokens_of_a_login_at_its_end() {
    const HOURS: Duration = Duration::from_secs(8 * 3600);
    let page = Page::new().await;
    let browser = page.log_in(0, "alice").await;
    assert_eq!(page.elsewhere(&browser, 1).get(SESSION).await.status(), 200);
    let Page { gitlab, fleet, _agent: agent, .. } = page;
    // Its pings would make eight hours long.
    agent.stop().await;
    drop(browser);
    sleep(HOURS + Duration::from_secs(60)).await;
    assert_eq!((gitlab.requests(Endpoint::OauthRevoke), gitlab.state().oauth.tokens()), (1, (0, 0)));
    gitlab.assert_no_violations();
    drop(fleet);
}

/// The clock of the system stands still beside that of the store: by it, a login never ends.
#[tokio::test(start_paused = true)]
async fn renewal_of_the_tokens_does_not_move_the_end_of_a_login() {
    let page = Page::new().await;
    page.gitlab.state().oauth.lifetime = Some(30);
    let browser = page.log_in(0, "alice").await;
    let Page { gitlab, fleet, _agent: agent, .. } = page;
    // Its pings would make eight hours long.
    agent.stop().await;
    let before = gitlab.requests(Endpoint::OauthToken);
    sleep(SESSION_TTL / 2).await;
    assert_eq!(browser.get(SESSION).await.status(), 200);
    assert!(gitlab.requests(Endpoint::OauthToken) > before, "the tokens were renewed");
    sleep(SESSION_TTL / 2 - Duration::from_secs(60)).await;
    assert_eq!(gitlab.state().oauth.tokens(), (1, 1));
    sleep(Duration::from_secs(50)).await;
    assert_eq!(gitlab.state().oauth.tokens(), (0, 0));
    gitlab.assert_no_violations();
    drop(fleet);
}

/// No other replica can revoke the tokens: they are in no record.
#[tokio::test(start_paused = true)]
async fn login_that_the_store_has_lost_ends_when_its_tokens_are_renewed() {
    let page = Page::new().await;
    page.gitlab.state().oauth.lifetime = Some(30);
    let browser = page.log_in(0, "alice").await;
    assert_eq!(browser.get("/agents/7/kubernetes/version").await.status(), 200);
    // The session of the browser begins again in a store for one session, and the login ends in its favour.
    let (store, id) = (&page.fleet.store, id(&browser.cookie));
    let record = store.session(id).await.unwrap().unwrap();
    assert_eq!(store.end_sessions(EndedSessions::One(id)).await.unwrap(), 1);
    let session = NewSession { id, holder: SessionHolder([7; 16]), record, ttl: SESSION_TTL };
    store.begin_session(session, SessionLimits { sessions: 1, per_holder: 1 }).await.unwrap();
    sleep(Duration::from_secs(61)).await;
    assert_eq!(browser.get("/agents/7/kubernetes/version").await.status(), 401);
    assert_eq!(page.gitlab.state().oauth.tokens(), (0, 0));
    page.gitlab.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn failed_login_says_why_and_begins_no_session() {
    let page = Page::new().await;
    let browser = page.browser(0);
    let (url, cookie) = begin(&browser).await;
    let state = url.split("state=").nth(1).unwrap().split('&').next().unwrap();
    for (query, status, what) in [
        (
            format!("error=access_denied&error_description=%3Cb%3E&state={state}"),
            401,
            "access_denied: &lt;b&gt;",
        ),
        (format!("code=code-of-somebody&state={state}"), 401, "invalid_grant"),
        ("code=code-1&state=other".to_owned(), 400, "was not begun in this browser"),
        (format!("code=c&iss=https://evil.example.com&state={state}"), 502, "another issuer"),
    ] {
        let response = come_back(&browser, &format!("/web/v1/callback/gitlab?{query}"), &cookie).await;
        assert_eq!(
            (response.status().as_u16(), cookie_of(&response, "__Host-kas")),
            (status, None),
            "{query}"
        );
        let body = text(response).await;
        assert!(body.contains(what), "{query}: {body}");
    }
    // A token that only looks like one of a login.
    let response = browser.try_login("kas-gitlab-login-AAAA").await;
    assert_eq!(response.status(), 401);
    // The application has another secret than kas.
    page.gitlab.state().oauth.applications.insert(APPLICATION.to_owned(), Some("secret".to_owned()));
    let (url, cookie) = begin(&browser).await;
    let back = format!("/web/v1/callback/gitlab?{}", page.gitlab.authorize(&url, "alice"));
    let response = come_back(&browser, &back, &cookie).await;
    assert_eq!(response.status(), 401);
    let body = text(response).await;
    assert!(body.contains("invalid_client"), "{body}");
}

/// The entry of a caller of the file names agents of GitLab: the page knows them.
#[tokio::test(start_paused = true)]
async fn caller_of_the_file_sees_its_agents_of_gitlab() {
    let page = Page::new().await;
    let hash = TokenHash::of(&"secret".to_owned().into());
    for (agents, expected) in [("gitlab:group/**", 1), ("gitlab:7", 1), ("gitlab:other/**", 0)] {
        for world in &page.fleet.replicas {
            let callers = format!(
                "{{name: me, tokens: ['{hash}'], agents: ['{agents}'], services: [graph, {{service: gitops, verbs: [read]}}]}}"
            );
            world.kas.identities.replace(parse(&format!("callers: [{callers}]")));
        }
        for replica in [0, 1] {
            let mut browser = page.browser(replica);
            browser.cookie = cookie_of(&browser.try_login("secret").await, "__Host-kas").unwrap();
            let list = browser.get_json("/web/v1/agents").await;
            let listed = list["agents"].as_array().unwrap();
            assert_eq!(listed.len(), expected, "{agents} at replica {replica}");
            for agent in listed {
                assert_eq!(agent["title"], "group/config-7:prod");
                assert_eq!(agent["rights"], json!({"gitops": ["read"], "graph": ["read"]}));
            }
        }
    }
}
