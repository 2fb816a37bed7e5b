//! How each caller proves who it is, and loses that right.

use std::{fs, net::SocketAddr};

use access::token::TokenHash;
use base64::{
    Engine as _,
    prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD},
};
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

use super::{
    clients::Client,
    support::{GitLab, HttpResponse, Kas, curl},
    values::{Caller, Case, Name, Rights},
    world::{Start, World, address_of},
};

/// The id of the application with which people log in at GitLab.
pub(crate) const APPLICATION: &str = "matrix-page";
/// The user of GitLab, who is a developer of the project of the agent.
pub(crate) const USER: &str = "alice";

/// The credentials of GitLab.
pub(crate) const JOB: &str = "job-token";
pub(crate) const PAT: &str = "glpat-alice";
pub(crate) const COOKIE: &str = "cookie";
pub(crate) const CSRF_TOKEN: &str = "csrf";

/// Returns the listener of kas for a caller.
pub(crate) fn listener(kas: &Kas, caller: Caller) -> SocketAddr {
    if caller.is_of_page() { address_of(kas, "web") } else { kas.public }
}

/// Returns the callers of the identity file. `*` is no agent of GitLab.
pub(crate) fn identity(start: &Start<'_>) -> Value {
    let ops = TokenHash::of(&start.tokens.ops).to_string();
    let (of_gitlab, services) = (format!("gitlab:{}", GitLab::AGENT), services(start.case.rights));
    let mut callers = vec![json!({
        "name": "ops", "tokens": [ops], "agents": ["*", of_gitlab], "services": services, "cluster_audit": true,
    })];
    if start.login.is_some() {
        callers.push(json!({
            "name": "people", "oidc": {"issuer": "op", "claims": {"sub": "id1"}}, "agents": ["*", "gitlab:**"],
            "services": services, "cluster_audit": true,
        }));
    }
    Value::Array(callers)
}

/// Returns `services` of an entry of the identity file.
fn services(rights: Rights) -> Value {
    match rights {
        Rights::Default => json!(["*"]),
        Rights::Listed => json!([
            "kubernetes", "prometheus", "graph", {"service": "gitops", "verbs": ["read"]}, "events", "alerts",
        ]),
    }
}

/// Returns the entry of `ci_access` for the job. It lists what jobs may do by default.
pub(crate) fn ci_access(rights: Rights) -> Value {
    let mut entry = json!({"access_as": {"agent": {}}});
    if rights == Rights::Listed {
        entry["services"] =
            json!(["kubernetes", "prometheus", "graph", {"service": "gitops", "verbs": ["read"]}]);
    }
    entry
}

impl Case {
    /// Returns the beginning of the paths of the cluster. Callers of GitLab name the agent in their credential, too.
    pub(crate) fn kubernetes(self) -> String {
        if self.caller.names_agent() && self.name == Name::Id {
            return "/k8s-proxy".to_owned();
        }
        format!("/agents/{}/kubernetes", self.name_in_path())
    }
}

/// Returns the configuration of the agent of GitLab with `user_access`.
pub(crate) fn user_access(rights: Rights) -> String {
    let mut section = json!({"access_as": {"agent": {}}, "projects": [{"id": "group/project"}]});
    if rights == Rights::Listed {
        let services = ["prometheus", "graph", "events", "alerts"].map(|service| json!({"service": service}));
        section["services"] = json!(services);
        section["services"].as_array_mut().unwrap().push(json!({"service": "gitops", "verbs": ["read"]}));
    }
    json!({"user_access": section}).to_string()
}

/// Returns the lines of the header of a caller's requests.
pub(crate) fn headers(start: &Start<'_>, front: SocketAddr) -> Vec<String> {
    let id = start.case.agent_id();
    match start.case.caller {
        Caller::GitLabSession => vec![
            format!("Cookie: _gitlab_kas={COOKIE}"),
            format!("Gitlab-Agent-Id: {id}"),
            format!("X-Csrf-Token: {CSRF_TOKEN}"),
        ],
        Caller::PageSession | Caller::GitLabLogin => {
            let cookie = match start.case.caller {
                Caller::GitLabLogin => log_in_at_gitlab(start, front),
                _ => log_in(start, front),
            };
            let mut headers = vec!["kas-web: 1".to_owned(), "Sec-Fetch-Site: same-origin".to_owned()];
            headers.push(format!("Cookie: {cookie}"));
            headers
        }
        Caller::WebSocketToken => {
            let token = BASE64_URL_SAFE_NO_PAD.encode(start.tokens.ops.expose_secret());
            let token = format!("base64url.bearer.authorization.k8s.io.{token}");
            vec![format!("Sec-WebSocket-Protocol: v5.channel.k8s.io, {token}")]
        }
        _ => {
            let user = user(start);
            match user["token"].as_str() {
                Some(token) => vec![format!("Authorization: Bearer {token}")],
                None => {
                    let pair = format!(
                        "{}:{}",
                        user["username"].as_str().unwrap(),
                        user["password"].as_str().unwrap()
                    );
                    vec![format!("Authorization: Basic {}", BASE64_STANDARD.encode(pair))]
                }
            }
        }
    }
}

/// Returns the user of a kubeconfig.
pub(crate) fn user(start: &Start<'_>) -> Value {
    let (id, ops) = (start.case.agent_id(), start.tokens.ops.expose_secret());
    match start.case.caller {
        Caller::Token => json!({"token": ops}),
        Caller::Basic => json!({"username": "ops", "password": ops}),
        Caller::Oidc => json!({"token": start.login.unwrap().token}),
        Caller::Job => json!({"token": format!("ci:{id}:{JOB}")}),
        Caller::Pat => json!({"token": format!("pat:{id}:{PAT}")}),
        Caller::WebSocketToken | Caller::GitLabSession | Caller::PageSession | Caller::GitLabLogin => {
            json!({})
        }
    }
}

/// Logs in at the page, and returns the cookie.
fn log_in(start: &Start<'_>, front: SocketAddr) -> String {
    let body = json!({"token": start.tokens.ops.expose_secret()}).to_string();
    let url = format!("https://{front}/web/v1/session");
    let authority = start.certificates.authority.to_str().unwrap();
    let response = curl(&[
        "--cacert",
        authority,
        "--header",
        "kas-web: 1",
        "--header",
        "Sec-Fetch-Site: same-origin",
        "--header",
        "Content-Type: application/json",
        "--data",
        &body,
        &url,
    ]);
    assert_eq!(response.status, 204, "{response:?}");
    cookie(&response)
}

/// Logs in at GitLab, from which the browser comes back, and returns the cookie.
fn log_in_at_gitlab(start: &Start<'_>, front: SocketAddr) -> String {
    let get = |path: &str, cookie: &str, site: &str| {
        let (cookie, site) = (format!("Cookie: {cookie}"), format!("Sec-Fetch-Site: {site}"));
        let (authority, url) =
            (start.certificates.authority.to_str().unwrap(), format!("https://{front}{path}"));
        let response = curl(&["--cacert", authority, "--header", &cookie, "--header", &site, &url]);
        assert_eq!(response.status, 303, "{response:?}");
        response
    };
    let begun = get("/web/v1/login?issuer=gitlab&page=%2Fagents", "a=b", "same-origin");
    let query = start.standin.authorize(begun.header("location").unwrap(), USER);
    let path = format!("/web/v1/callback/gitlab?{query}");
    cookie(&get(&path, &cookie(&begun), "cross-site"))
}

/// Returns the first cookie that a response sets.
fn cookie(response: &HttpResponse) -> String {
    response.header("set-cookie").unwrap().split(';').next().unwrap().to_owned()
}

/// Takes the right away from the caller.
pub(crate) fn revoke(world: &World) {
    match world.case.caller {
        Caller::Token | Caller::Basic | Caller::WebSocketToken | Caller::Oidc | Caller::PageSession => {
            for replica in ["kas-0", "kas-1"] {
                let file = |name: &str| world.directory.path().join(replica).join(name);
                let mut identity: Value =
                    serde_json::from_slice(&fs::read(file("identity.yaml")).unwrap()).unwrap();
                identity["callers"] = json!([]);
                fs::write(file("identity.new"), identity.to_string()).unwrap();
                fs::rename(file("identity.new"), file("identity.yaml")).unwrap();
            }
        }
        Caller::Job => world.gitlab.standin.state().jobs.get_mut(JOB).unwrap().finished = true,
        Caller::Pat | Caller::GitLabSession => world.gitlab.standin.state().users.clear(),
        Caller::GitLabLogin => world.gitlab.standin.state().oauth.revoke_user(USER),
    }
}

impl Client {
    /// Returns whether kubectl can have the credential.
    pub(crate) fn of_kubectl(caller: Caller) -> bool {
        !matches!(caller, Caller::WebSocketToken | Caller::GitLabSession) && !caller.is_of_page()
    }
}
