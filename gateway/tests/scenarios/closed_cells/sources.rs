//! The identity file, the GitLab and the agents of the test: who may do what.

use std::{
    future::ready,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use access::{
    AgentIdentity, ConfigurationFile, ConfigurationSource, FileKey, ReadError, Reading, token::TokenHash,
};
use agentk_core::Services;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use kas_testing::page_login::APPLICATION;
use proto::ServiceName;
use secrecy::SecretString;
use serde_json::{Value, json};
use testing::gitlab::{AccessToken, Agent, AgentAccess, Job, Membership, Project, StandIn, User};
use tunnel::Body;

/// The agents of the identity file, with their ids.
const FILE_AGENTS: [(&str, u64); 3] = [("prod", 1), ("edge", 2), ("away", 3)];
/// The agents of GitLab, with the paths of their projects. The agents 2 and 10 are not connected.
const GITLAB_AGENTS: [(u64, &str, &str); 4] = [
    (7, "shop", "group/shop"),
    (8, "bank", "bank/core"),
    (2, "twin", "group/twin"),
    (10, "new", "group/new"),
];
/// The entries of the identity file. The token of an entry is `entry-` with its name.
const ENTRIES: [(&str, &str); 12] = [
    ("all", "agents: ['*'], services: ['*']"),
    ("kubernetes", "agents: [prod], services: [kubernetes]"),
    ("graph", "agents: [prod], services: [graph]"),
    ("gitops", "agents: [prod], services: [{service: gitops, verbs: [read, sync]}]"),
    ("thanos", "agents: [prod], services: [prometheus.thanos]"),
    ("auditor", "agents: [prod], services: [], cluster_audit: true"),
    ("one-of-gitlab", "agents: ['gitlab:7'], services: [graph, {service: gitops, verbs: [read]}]"),
    ("group-of-gitlab", "agents: ['gitlab:group/**'], services: ['*']"),
    ("all-of-gitlab", "agents: ['gitlab:**'], services: ['*']"),
    ("auditor-of-gitlab", "agents: ['gitlab:**'], services: [], cluster_audit: true"),
    ("elsewhere", "agents: ['*'], services: ['*'], allowed_networks: [198.51.100.0/24]"),
    ("revoked", "agents: [prod], services: ['*']"),
];
/// The entries for OIDC tokens, by a group in the token.
const OIDC_ENTRIES: [(&str, &str); 2] = [
    ("developers", "agents: [prod], services: [kubernetes, graph]"),
    (
        "release",
        "agents: [edge, 'gitlab:group/**'], services: [events, {service: gitops, verbs: [read, sync, suspend]}]",
    ),
];
/// The configurations of the agents of GitLab.
const CONFIGURATION: &str = "{gitops: {manifest_projects: [{id: shop/web}]}, \
                             user_access: {access_as: {user: {}}, projects: [{id: group/web}], groups: [{id: group/ops}]}}";
const CONFIGURATION_OF_BANK: &str = "{user_access: {access_as: {user: {}}, projects: [{id: bank/core}]}}";

/// Returns the text of the identity file with some of its entries.
pub(super) fn identity_file(has: impl Fn(&str) -> bool) -> String {
    let hash = |token: String| TokenHash::of(&SecretString::from(token));
    let agents = FILE_AGENTS.map(|(name, id)| {
        let token = hash(format!("agent-{name}"));
        format!("{{id: {id}, name: {name}, tokens: ['{token}']}}")
    });
    let entries = ENTRIES.into_iter().filter(|(name, _)| has(name)).map(|(name, rights)| {
        let token = hash(format!("entry-{name}"));
        format!("{{name: {name}, tokens: ['{token}'], {rights}}}")
    });
    let of_oidc = OIDC_ENTRIES.into_iter().map(|(group, rights)| {
        format!("{{name: {group}, oidc: {{issuer: test, claims: {{groups: [{group}]}}}}, {rights}}}")
    });
    let callers: Vec<_> = entries.chain(of_oidc).collect();
    format!("agents: [{}]\ncallers: [{}]\n", agents.join(", "), callers.join(", "))
}

/// The configurations of the agents of GitLab.
#[derive(Debug)]
pub(super) struct Configurations;

impl ConfigurationSource for Configurations {
    fn read<'a>(
        &'a self,
        agent: &'a AgentIdentity,
        _: Option<&'a FileKey>,
    ) -> BoxFuture<'a, Result<Option<Reading>, ReadError>> {
        let text = match agent.id.0 {
            7 => Some(CONFIGURATION),
            8 => Some(CONFIGURATION_OF_BANK),
            _ => None,
        };
        let file = text.map(|text| {
            Reading::File(ConfigurationFile {
                key: FileKey(text.to_owned()),
                version: "1".to_owned(),
                path: "config.yaml".into(),
                content: Some(text.as_bytes().to_vec()),
                project: None,
                template: None,
            })
        });
        Box::pin(ready(Ok(file)))
    }
}

/// The services of an agent that counts the requests of callers, and answers all of them.
pub(super) fn services(received: &Arc<AtomicUsize>) -> Services {
    let names = ServiceName::OF_CALLERS.into_iter().chain(["prometheus.thanos"]);
    let services = names.fold(Services::new(), |services, name| {
        let received = Arc::clone(received);
        services.with_fn(name, move |_: Request<Body>| {
            received.fetch_add(1, Relaxed);
            async { Response::new(Body::from("answered")) }
        })
    });
    // The requests of kas itself for manifests do not count.
    services.with_fn("manifests", async |_: Request<Body>| Response::new(Body::empty()))
}

/// Adds the agents, the jobs and the users of GitLab.
pub(super) fn populate(gitlab: &StandIn) {
    let mut state = gitlab.state();
    for (id, name, path) in GITLAB_AGENTS {
        let mut agent = Agent::new(id, name, &format!("glagent-{id}"));
        path.clone_into(&mut agent.project.path);
        state.add_agent(agent);
    }
    let mut web = Project::new(30, "shop/web");
    web.gitaly.address = "unix:/nonexistent".to_owned();
    state.projects.push(web);

    let as_itself = json!({"access_as": {"ci_job": {}}});
    let with_services = |services: Value| json!({"access_as": {"ci_job": {}}, "services": services});
    let own = [2, 10]
        .into_iter()
        .fold(job(3, 30, &as_itself), |job, agent| job.with_agent(agent, as_itself.clone()));
    for (token, job) in [
        ("job-own", own),
        ("job-as-agentk", job(4, 30, &json!({"access_as": {"agent": {}}}))),
        ("job-other", job(5, 31, &as_itself)),
        ("job-group", Job { groups: vec![23], ..job(6, 32, &as_itself) }),
        (
            "job-services",
            job(
                7,
                30,
                &with_services(
                    json!([{"service": "gitops", "verbs": ["read"]}, "events", {"service": "graph", "verbs": []}]),
                ),
            ),
        ),
        (
            "job-without-kubernetes",
            job(8, 30, &with_services(json!([{"service": "kubernetes", "verbs": []}]))),
        ),
        ("job-environment", Job::new(9, 30).with_environment("review", "development")),
        ("job-finished", Job { finished: true, ..job(10, 30, &as_itself) }),
        ("job-refused", Job { refused: Some(403), ..job(11, 30, &as_itself) }),
    ] {
        state.add_job(token, job);
    }
    state.other_tokens.push("glpat-dev".to_owned());

    let without_scope = AccessToken { token: "glpat-scope".to_owned(), scopes: vec!["read_api".to_owned()] };
    state.users.extend([
        user(10, "dev", 7, &["reporter", "developer"]).with_access(10, roles(&["developer"])),
        user(11, "main", 7, &["developer", "maintainer"]),
        user(12, "owner", 7, &["owner"]),
        user(13, "bank", 8, &["developer"]),
        User::new(14, "agentk").with_token("glpat-agentk").with_access(7, AgentAccess::Agent),
        // GitLab gives its kas no roles below that of a developer.
        User::new(15, "guest").with_token("glpat-guest"),
        User { tokens: vec![without_scope], ..user(16, "scope", 7, &["developer"]) },
    ]);
    state
        .users
        .extend((20..).zip(["alice", "bob", "carol", "dave", "rita"]).map(|(id, name)| User::new(id, name)));
    let oauth = &mut state.oauth;
    oauth.applications.insert(APPLICATION.to_owned(), None);
    oauth.ids.extend([("project.group/web".to_owned(), 40), ("group.group/ops".to_owned(), 23)]);
    for (user, place, level) in [
        ("alice", "project.group/web", 30),
        ("bob", "group.group/ops", 40),
        ("carol", "project.group/web", 10),
        ("dave", "project.group/web", 50),
        ("rita", "group.group/ops", 20),
    ] {
        oauth.set_access(user, place, level);
    }
}

fn job(id: u64, project: u64, configuration: &Value) -> Job {
    Job::new(id, project).with_agent(7, configuration.clone())
}

fn user(id: u64, name: &str, agent: u64, names: &[&str]) -> User {
    User::new(id, name)
        .with_token(&format!("glpat-{name}"))
        .with_session(&format!("cookie-{name}"), &format!("csrf-{name}"))
        .with_access(agent, roles(names))
}

fn roles(names: &[&str]) -> AgentAccess {
    let roles = names.iter().map(|&name| name.to_owned()).collect();
    AgentAccess::User { projects: vec![Membership { id: 30, roles }], groups: Vec::new() }
}
