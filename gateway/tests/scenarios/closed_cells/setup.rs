//! One kas with agents of the identity file and of GitLab, and the credentials of all callers of the table.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use gateway::config::Config;
use http::{Method, Request, Response};
use kas_gitlab::ApiRateLimit;
use kas_testing::{
    gitlab::client,
    internal_api::{jwt, valid_token},
    issuer::{IssuerKey, TestIssuer, claims, now},
    world::{RunningAgent, World, parse},
};
use serde_json::{Value, json};
use testing::gitlab::StandIn;
use tokio::time::sleep;
use tunnel::Body;

use super::sources::{Configurations, identity_file, populate, services};
use crate::{
    web::{Browser, with_page},
    web_gitlab,
};

/// How a caller sends its requests.
pub(super) enum CallerCredential {
    /// To the listener for callers, with these headers.
    Headers(Vec<(&'static str, String)>),
    /// To the listener of the page, with the cookie of this browser.
    Browser(Browser),
}

/// A kas with its agents and its callers.
pub(super) struct Setup {
    pub(super) world: World,
    pub(super) callers: BTreeMap<&'static str, CallerCredential>,
    /// The number of requests of callers that agents have received.
    received: Arc<AtomicUsize>,
    gitlab: StandIn,
    issuer_key: IssuerKey,
    _agents: Vec<RunningAgent>,
}

impl Setup {
    pub(super) async fn new() -> Self {
        let gitlab = StandIn::start().await;
        populate(&gitlab);
        let issuer_key = IssuerKey::ec("a");
        let issuer = TestIssuer::new(&[&issuer_key]);
        let limit = ApiRateLimit::default();
        let world = World::with_gitlab_and_issuer(
            client(&gitlab, &limit),
            "glagent-7",
            &issuer,
            |config: &mut Config| {
                with_page(config);
                config.agent.kubernetes_api.limits.unknown_credentials_per_address_per_minute = 1_000_000;
            },
        );
        world.kas.identities.replace(parse(&identity_file(|_| true)));
        world.kas.agents.configuration.add_source(Arc::new(Configurations));
        let received = Arc::<AtomicUsize>::default();
        let tokens = ["agent-prod", "agent-edge", "glagent-7", "glagent-8"];
        let agents: Vec<_> = tokens
            .into_iter()
            .map(|token| world.with_agent_token(token.into()).start_agent(services(&received)))
            .collect();
        world.tunnels(2 * tokens.len() as i64).await;
        // kas reads the configurations of its agents.
        sleep(Duration::from_secs(5)).await;
        let callers = BTreeMap::new();
        let mut setup = Self { world, callers, received, gitlab, issuer_key, _agents: agents };
        setup.add_entries();
        setup.add_callers_of_gitlab();
        setup.add_pages().await;
        setup.add_refused();
        setup
    }

    /// Returns the number of requests of callers that agents have received.
    pub(super) fn received(&self) -> usize {
        self.received.load(Relaxed)
    }

    /// Sends a request of a caller.
    pub(super) async fn send(
        &self,
        caller: &str,
        method: &str,
        path: &str,
    ) -> Response<hyper::body::Incoming> {
        let credential = self.callers.get(caller).unwrap_or_else(|| panic!("there is no caller {caller:?}"));
        match credential {
            CallerCredential::Headers(headers) => {
                let request = Request::builder().method(method).uri(path).header("host", "kas");
                let request =
                    headers.iter().fold(request, |request, (name, value)| request.header(*name, value));
                self.world.send(request.body(Body::empty()).unwrap()).await
            }
            CallerCredential::Browser(browser) => browser.page(method.parse::<Method>().unwrap(), path).await,
        }
    }

    /// Removes the entry `revoked` from the identity file.
    pub(super) fn revoke(&self) {
        self.world.kas.identities.replace(parse(&identity_file(|name| name != "revoked")));
    }

    pub(super) fn assert_no_violations(&self) {
        self.gitlab.assert_no_violations();
    }

    fn add(&mut self, caller: &'static str, headers: &[(&'static str, &str)]) {
        let headers = headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        self.callers.insert(caller, CallerCredential::Headers(headers));
    }

    fn add_bearer(&mut self, caller: &'static str, token: &str) {
        self.add(caller, &[("authorization", &format!("Bearer {token}"))]);
    }

    fn add_session(&mut self, caller: &'static str, agent: &str, cookie: &str, csrf: &str) {
        let cookie = format!("_gitlab_kas={cookie}");
        self.add(caller, &[("cookie", &cookie), ("gitlab-agent-id", agent), ("x-csrf-token", csrf)]);
    }

    /// Returns an OIDC token of a person in a group.
    fn oidc(&self, group: &str, more: Value) -> String {
        let mut claims = claims(json!({"groups": [group]}));
        claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.issuer_key.token(&claims)
    }

    fn add_entries(&mut self) {
        for (caller, token) in [
            ("entry all", "entry-all"),
            ("entry kubernetes", "entry-kubernetes"),
            ("entry graph", "entry-graph"),
            ("entry gitops", "entry-gitops"),
            ("entry thanos", "entry-thanos"),
            ("entry auditor", "entry-auditor"),
            ("entry one-of-gitlab", "entry-one-of-gitlab"),
            ("entry group-of-gitlab", "entry-group-of-gitlab"),
            ("entry all-of-gitlab", "entry-all-of-gitlab"),
            ("entry auditor-of-gitlab", "entry-auditor-of-gitlab"),
            ("entry kubernetes for agent 1", "ci:1:entry-kubernetes"),
            ("entry graph for agent 1", "ci:1:entry-graph"),
            ("entry kubernetes for agent 2", "ci:2:entry-kubernetes"),
            ("token of entry elsewhere", "entry-elsewhere"),
            ("revoked token", "entry-revoked"),
        ] {
            self.add_bearer(caller, token);
        }
        for (caller, group) in [("OIDC developers", "developers"), ("OIDC release", "release")] {
            let token = self.oidc(group, json!({}));
            self.add_bearer(caller, &token);
        }
    }

    fn add_callers_of_gitlab(&mut self) {
        for (caller, token) in [
            ("job", "ci:7:job-own"),
            ("job for agent 1", "ci:1:job-own"),
            ("job for agent 2", "ci:2:job-own"),
            ("job for agent 8", "ci:8:job-own"),
            ("job for agent 10", "ci:10:job-own"),
            ("job for agent 99", "ci:99:job-own"),
            ("job as agentk", "ci:7:job-as-agentk"),
            ("job of another project", "ci:7:job-other"),
            ("job of a group", "ci:7:job-group"),
            ("job with services", "ci:7:job-services"),
            ("job without kubernetes", "ci:7:job-without-kubernetes"),
            ("job of another environment", "ci:7:job-environment"),
            ("job that GitLab refuses", "ci:7:job-refused"),
            ("job that has finished", "ci:7:job-finished"),
            ("developer", "pat:7:glpat-dev"),
            ("developer for agent 1", "pat:1:glpat-dev"),
            ("developer for agent 8", "pat:8:glpat-dev"),
            ("developer for agent 10", "pat:10:glpat-dev"),
            ("developer for agent 99", "pat:99:glpat-dev"),
            ("maintainer", "pat:7:glpat-main"),
            ("owner", "pat:7:glpat-owner"),
            ("user as agentk", "pat:7:glpat-agentk"),
            ("developer of the bank", "pat:8:glpat-bank"),
            ("developer of the bank for agent 7", "pat:7:glpat-bank"),
            ("guest", "pat:7:glpat-guest"),
            ("token of a user without a scope", "pat:7:glpat-scope"),
            ("unknown token of a user", "pat:7:glpat-unknown"),
            ("token of a user as one of a job", "ci:7:glpat-dev"),
            ("token of a job as one of a user", "pat:7:job-own"),
            ("token of entry all as one of a job", "ci:7:entry-all"),
        ] {
            self.add_bearer(caller, token);
        }
        for (caller, agent, cookie, csrf) in [
            ("session of a developer", "7", "cookie-dev", "csrf-dev"),
            ("session of a maintainer", "7", "cookie-main", "csrf-main"),
            ("session for agent 8", "8", "cookie-dev", "csrf-dev"),
            ("session with another CSRF token", "7", "cookie-dev", "csrf-main"),
            ("token of entry all as a cookie", "7", "entry-all", "csrf-dev"),
        ] {
            self.add_session(caller, agent, cookie, csrf);
        }
        let of_dev = [("cookie", "_gitlab_kas=cookie-dev"), ("gitlab-agent-id", "7")];
        self.add("session without its CSRF token", &of_dev);
        let claims = json!({"aud": "gitlab-kas", "project_id": 30, "exp": now() + 600});
        self.add_bearer("GitLab itself", &jwt(&[1; 32], &json!({"alg": "HS256", "typ": "JWT"}), &claims));
    }

    async fn add_pages(&mut self) {
        for (caller, user) in [
            ("page of a developer", "alice"),
            ("page of a maintainer", "bob"),
            ("page of an owner", "dave"),
            ("page of a guest", "carol"),
            ("page of a reporter", "rita"),
            ("ended session of the page", "alice"),
        ] {
            let mut browser = Browser::of(self.world.clone());
            web_gitlab::log_in(&mut browser, &self.gitlab, user).await;
            self.callers.insert(caller, CallerCredential::Browser(browser));
        }
        // Within the tolerated difference of clocks, which is 30 s.
        let expiring = self.oidc("developers", json!({"exp": now() - 5}));
        let tokens = [
            ("page of entry graph", "entry-graph".to_owned()),
            ("page of OIDC developers", self.oidc("developers", json!({}))),
            ("expired session of the page", expiring),
        ];
        for (caller, token) in tokens {
            let mut browser = Browser::of(self.world.clone());
            let response = browser.try_login(&token).await;
            assert_eq!(response.status(), 204, "{caller}");
            browser.cookie = web_gitlab::cookie_of(&response, "__Host-kas").unwrap();
            self.callers.insert(caller, CallerCredential::Browser(browser));
        }
        let forged = format!("__Host-kas={}", "A".repeat(43));
        self.callers.insert("forged session of the page", self.browser(forged));
        self.callers.insert("nobody at the page", self.browser(String::new()));
    }

    fn browser(&self, cookie: String) -> CallerCredential {
        CallerCredential::Browser(Browser { cookie, ..Browser::of(self.world.clone()) })
    }

    fn add_refused(&mut self) {
        self.add("nobody", &[]);
        self.add(
            "two tokens",
            &[("authorization", "Bearer entry-all"), ("authorization", "Bearer entry-all")],
        );
        let basic = format!("Basic {}", BASE64_STANDARD.encode("graph:entry-all"));
        self.add("token of entry all with another name", &[("authorization", &basic)]);
        let operator = |secret: [u8; 32], expires: u64| {
            let claims = json!({"aud": "gitlab-kas", "exp": expires});
            jwt(&secret, &json!({"alg": "HS256", "typ": "JWT"}), &claims)
        };
        let forged = IssuerKey::ec("a").token(&claims(json!({"groups": ["developers"]})));
        for (caller, token) in [
            ("wrong token", "entry-wrong".to_owned()),
            ("token of agent prod", "agent-prod".to_owned()),
            ("token of agent 7", "glagent-7".to_owned()),
            ("token of the operator", valid_token()),
            ("expired token of the operator", operator([1; 32], now() - 60)),
            ("forged token of the operator", operator([2; 32], now() + 60)),
            ("expired OIDC token", self.oidc("developers", json!({"exp": now() - 600}))),
            ("OIDC token for another audience", self.oidc("developers", json!({"aud": "other"}))),
            (
                "OIDC token of another issuer",
                self.oidc("developers", json!({"iss": "https://evil.example.com"})),
            ),
            ("OIDC token without an entry", self.oidc("guests", json!({}))),
            ("forged OIDC token", forged),
            ("job token without its agent", "job-own".to_owned()),
            ("user token without its agent", "glpat-dev".to_owned()),
        ] {
            self.add_bearer(caller, &token);
        }
        let CallerCredential::Browser(page) = &self.callers["page of a developer"] else {
            panic!("it has a browser")
        };
        let cookie = page.cookie.clone();
        self.add("cookie of the page of kas", &[("cookie", &cookie)]);
    }
}
