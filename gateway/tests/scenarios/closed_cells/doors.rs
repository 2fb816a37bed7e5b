//! The other listeners and paths: the prefix of GitLab, the lists of all agents, the internal API, and the page.

use http::{Method, Request, Response};
use hyper::body::Incoming;
use kas_testing::internal_api;
use tunnel::Body;

use super::{
    Attack,
    setup::CallerCredential,
    table::{Refusal, forbidden, unauthorized},
};
use crate::web::Browser;

/// Tries callers at the doors that are not theirs.
pub(super) async fn attack(attack: &mut Attack) {
    attack_prefix_of_gitlab(attack).await;
    attack_lists(attack).await;
    attack_internal_api(attack).await;
    attack_page(attack).await;
    attack_page_from_elsewhere(attack).await;
}

/// At `/k8s-proxy/` the credential names the agent, and the path the whole request to its cluster.
async fn attack_prefix_of_gitlab(attack: &mut Attack) {
    const PATH: &str = "/k8s-proxy/api/v1/pods";
    let no_agent = unauthorized("at this path the credential names the agent");
    let not_allowed = forbidden("agentId is not allowed");
    let not_admitted = forbidden("does not admit this user");
    for (caller, refusal) in [
        ("nobody", unauthorized("an Authorization header with a token is missing")),
        ("wrong token", unauthorized("the token is unknown or was revoked")),
        ("token of agent 7", unauthorized("the token is unknown or was revoked")),
        ("entry kubernetes", no_agent),
        ("entry all", no_agent),
        ("OIDC developers", no_agent),
        (
            "entry graph for agent 1",
            forbidden("services of its entry in the identity file of kas can allow it"),
        ),
        ("entry kubernetes for agent 2", Refusal::new(404, "unknown-agent", "there is no agent")),
        ("token of entry all as one of a job", Refusal::new(404, "unknown-agent", "there is no agent")),
        ("job without kubernetes", forbidden("services of its entry of ci_access")),
        ("job of another environment", not_allowed),
        ("job for agent 1", not_allowed),
        ("job for agent 2", forbidden("the identity file of kas has another agent with this id")),
        ("job for agent 8", not_allowed),
        ("job for agent 99", not_allowed),
        ("job that has finished", unauthorized("CI job token: GitLab refuses it")),
        ("developer for agent 8", not_admitted),
        ("developer for agent 99", unauthorized("GitLab does not let this user use this agent")),
        ("guest", not_admitted),
        ("session for agent 8", not_admitted),
        ("session with another CSRF token", unauthorized("GitLab does not let this user use this agent")),
        ("session without its CSRF token", unauthorized("needs the header X-Csrf-Token")),
        ("cookie of the page of kas", unauthorized("an Authorization header with a token is missing")),
        ("GitLab itself", forbidden("a token of GitLab may be used for the service prometheus only")),
        ("token of the operator", forbidden("the token names no project")),
    ] {
        attack.try_closed(caller, "GET", PATH, refusal).await;
    }
    for caller in ["entry kubernetes for agent 1", "job", "developer", "session of a developer"] {
        attack.try_open(caller, PATH).await;
    }
}

/// The lists of all agents have those of the caller, and the listener has no paths of the internal API and of the page.
async fn attack_lists(attack: &mut Attack) {
    for path in ["/agents", "/agents/fleet"] {
        for (caller, refusal) in [
            ("nobody", unauthorized("an Authorization header with a token is missing")),
            ("wrong token", unauthorized("the token is unknown or was revoked")),
            ("revoked token", unauthorized("the token is unknown or was revoked")),
            ("token of agent prod", unauthorized("the token is unknown or was revoked")),
            ("token of agent 7", unauthorized("the token is unknown or was revoked")),
            ("token of entry elsewhere", Refusal::new(403, "address-not-allowed", "caller elsewhere")),
            ("OIDC token without an entry", unauthorized("no-matching-caller")),
            ("expired OIDC token", unauthorized("expired")),
            ("job of another environment", forbidden("agentId is not allowed")),
            ("job that has finished", unauthorized("CI job token: GitLab refuses it")),
            ("guest", forbidden("does not admit this user")),
            ("session with another CSRF token", unauthorized("GitLab does not let this user use this agent")),
            ("cookie of the page of kas", unauthorized("an Authorization header with a token is missing")),
        ] {
            attack.try_closed(caller, "GET", path, refusal).await;
        }
        for caller in ["entry all", "OIDC developers", "job", "developer", "session of a developer"] {
            attack.try_open(caller, path).await;
        }
    }
    let nothing = Refusal::new(404, "unknown-path", "there is nothing at this path");
    for path in
        ["/api/v1/agents", "/api/v1/events", "/api/v1/environments", "/web/v1/agents", "/web/v1/audit"]
    {
        for caller in
            ["nobody", "entry all", "token of the operator", "developer", "cookie of the page of kas"]
        {
            attack.try_closed(caller, "GET", path, nothing).await;
        }
    }
}

/// The internal API has one credential, which is that of no caller.
async fn attack_internal_api(attack: &mut Attack) {
    let paths = [
        "/api/v1/agents",
        "/api/v1/agents/7",
        "/api/v1/fleet",
        "/api/v1/environments",
        "/api/v1/deployments",
        "/api/v1/events",
    ];
    for path in paths {
        for caller in [
            "nobody",
            "entry all",
            "entry auditor",
            "OIDC developers",
            "job",
            "developer",
            "session of a developer",
            "token of agent prod",
            "token of agent 7",
            "cookie of the page of kas",
            "expired token of the operator",
            "forged token of the operator",
        ] {
            let before = attack.setup.received();
            let response = send_to_api(attack, caller, path).await;
            let cell = format!("{caller} at the internal API: GET {path}");
            attack.check_closed(cell, Refusal::new(401, "", "\"unauthorized\""), before, response).await;
        }
        let response = send_to_api(attack, "token of the operator", path).await;
        assert_eq!(response.status(), 200, "the operator at {path}");
    }
}

async fn send_to_api(attack: &Attack, caller: &str, path: &str) -> Response<Incoming> {
    let CallerCredential::Headers(headers) = &attack.setup.callers[caller] else {
        panic!("{caller} has no headers")
    };
    let request = Request::get(path).header("host", "kas");
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, value));
    internal_api::send(&attack.setup.world, request.body(Body::empty()).unwrap()).await
}

/// The page has its sessions as its only credential, and shows a session nothing about agents of others.
async fn attack_page(attack: &mut Attack) {
    let no_session = unauthorized("there is no session");
    for path in
        ["/web/v1/agents", "/web/v1/agents/7", "/web/v1/environments", "/web/v1/audit", "/web/v1/requests/1"]
    {
        for caller in [
            "nobody at the page",
            "ended session of the page",
            "expired session of the page",
            "forged session of the page",
        ] {
            attack.try_closed(caller, "GET", path, no_session).await;
        }
        attack.try_open("page of a developer", path).await;
        // A token in the header of a program is no session.
        let headers = [("kas-web", "1"), ("authorization", "Bearer entry-all")];
        attack
            .try_closed_by("a program", "nobody at the page", Method::GET, path, &headers, no_session)
            .await;
    }
    let nothing = Refusal::new(404, "", "there is no such agent, or this caller may not use it");
    for (caller, agent) in [
        ("page of a developer", "8"),
        ("page of a developer", "prod"),
        ("page of a developer", "99"),
        ("page of a guest", "7"),
        ("page of a reporter", "7"),
        ("page of entry graph", "edge"),
        ("page of entry graph", "7"),
        ("page of OIDC developers", "edge"),
    ] {
        attack.try_closed(caller, "GET", &format!("/web/v1/agents/{agent}"), nothing).await;
    }
    for (caller, agent) in [("page of entry graph", "prod"), ("page of OIDC developers", "prod")] {
        attack.try_open(caller, &format!("/web/v1/agents/{agent}")).await;
    }
}

/// Requests with the cookie of a session that the page itself has not sent.
async fn attack_page_from_elsewhere(attack: &mut Attack) {
    let elsewhere = Refusal::new(403, "", "only the web page of kas may send this request");
    for (what, headers) in [
        ("another site", &[("kas-web", "1"), ("sec-fetch-site", "cross-site")][..]),
        ("another origin", &[("kas-web", "1"), ("origin", "https://evil.example.com")]),
    ] {
        for path in ["/web/v1/agents", "/web/v1/environments", "/agents/7/graph/v1/objects"] {
            let caller = "page of a developer";
            attack.try_closed_by(what, caller, Method::GET, path, headers, elsewhere).await;
        }
        let sync = "/agents/7/gitops/v1/projects/web/sync";
        attack.try_closed_by(what, "page of a maintainer", Method::POST, sync, headers, elsewhere).await;
    }
    let form = Refusal::new(405, "", "the methods of this path are GET, HEAD");
    let sync = "/agents/7/gitops/v1/projects/web/sync";
    attack.try_closed_by("a form", "page of a maintainer", Method::POST, sync, &[], form).await;
    let other = unauthorized("this browser has logged in as");
    let headers = [("kas-web", "1"), ("kas-web-caller", "gitlab%3Auser%3Abob")];
    for path in ["/web/v1/agents", "/agents/7/graph/v1/objects"] {
        attack
            .try_closed_by("a page of bob", "page of a developer", Method::GET, path, &headers, other)
            .await;
    }
}

impl Attack {
    async fn try_closed(&mut self, caller: &'static str, method: &str, path: &str, refusal: Refusal) {
        let before = self.setup.received();
        let response = self.setup.send(caller, method, path).await;
        self.check_closed(format!("{caller}: {method} {path}"), refusal, before, response).await;
    }

    /// Checks that a caller gets an answer to the same request, of kas or of an agent.
    async fn try_open(&mut self, caller: &'static str, path: &str) {
        let response = self.setup.send(caller, "GET", path).await;
        assert_eq!(response.status(), 200, "{caller}: GET {path}");
    }

    /// Sends a request to the page with the cookie of a caller and these headers.
    async fn try_closed_by(
        &mut self,
        sender: &str,
        caller: &'static str,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        refusal: Refusal,
    ) {
        let before = self.setup.received();
        let response = self.browser(caller).send(method.clone(), path, "", headers).await;
        let cell = format!("{caller}, sent by {sender}: {method} {path}");
        self.check_closed(cell, refusal, before, response).await;
    }

    fn browser(&self, caller: &str) -> &Browser {
        match &self.setup.callers[caller] {
            CallerCredential::Browser(browser) => browser,
            CallerCredential::Headers(_) => panic!("{caller} has no browser"),
        }
    }
}
