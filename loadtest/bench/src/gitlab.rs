//! The authorization of a CI job of GitLab, whose answer is in the cache.

use std::{
    net::{IpAddr, Ipv4Addr},
    path::Path,
    sync::Arc,
};

use access::{AccessControl, Target, UrlPathPrefix};
use anyhow::Context as _;
use futures_util::FutureExt as _;
use gateway::{
    app::{App, ReplicaSources},
    config::Config,
};
use http::{HeaderMap, HeaderValue, header::AUTHORIZATION, uri::PathAndQuery};
use kas_core::peers::ReplicaContext;
use kas_gitlab::{ApiRateLimit, GitLabClient, Transport};
use proto::{AgentId, ReplicaId};
use serde_json::json;
use settings::Secret;
use store::MemoryStore;
use testing::gitlab::{Agent, Job, StandIn};
use tokio::runtime::{self, Runtime};

/// The agent of the job.
const AGENT: u64 = 7;
/// The address of the caller.
pub(super) const CALLER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

/// A job that kas knows already.
pub(super) struct CachedJob {
    access: AccessControl,
    headers: HeaderMap,
    path: PathAndQuery,
    /// The timer of kas, which asks for the name of an unconnected agent once a period.
    runtime: Runtime,
}

impl CachedJob {
    /// Starts a stand-in of GitLab, and sends one request of the job. `directory` gets a configuration.
    pub(super) fn new(directory: &Path, path: &str) -> anyhow::Result<Self> {
        let file = directory.join("gitlab.yaml");
        std::fs::write(&file, "identity: {file: identity.yaml}")?;
        let config = Config::read(&file)?;
        // As long as a token of a job is.
        let token = format!("glcbt-64_{}", "x".repeat(20));
        let mut headers = HeaderMap::new();
        let value = format!("Bearer ci:{AGENT}:{token}");
        headers.insert(AUTHORIZATION, HeaderValue::try_from(value)?);
        let path = PathAndQuery::try_from(format!("/k8s-proxy{path}"))?;
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let access = runtime.block_on(async {
            let gitlab = StandIn::start().await;
            let job = Job { groups: vec![1, 2, 3], ..Job::new(3, 30) };
            let job = job.with_agent(AGENT, json!({"access_as": {"ci_job": {}}}));
            gitlab.state().add_agent(Agent::new(AGENT, "prod", "agent"));
            gitlab.state().add_job(&token, job);
            let store = Arc::new(MemoryStore::default());
            let context = ReplicaContext::standalone(ReplicaId::random(), store, config.peer_settings());
            let client = client(&gitlab)?;
            let sources = ReplicaSources { gitlab: Some(client), ..ReplicaSources::default() };
            let access = App::of_replica(context, config, sources, None, None, None).callers.access.clone();
            access.authorize(&headers, &Target::parse(&path, &UrlPathPrefix::default())?, CALLER).await?;
            anyhow::Ok(access)
        })?;
        Ok(Self { access, headers, path, runtime })
    }

    /// Authorizes the request again. Returns the agent, or `None` if the answer was not in the cache.
    pub(super) fn authorize(&self) -> Option<AgentId> {
        let target = Target::parse(&self.path, &UrlPathPrefix::default()).ok()?;
        let _entered = self.runtime.enter();
        self.access.authorize(&self.headers, &target, CALLER).now_or_never()?.ok().map(|caller| caller.agent)
    }
}

fn client(gitlab: &StandIn) -> anyhow::Result<GitLabClient> {
    let address = "http://gitlab.example.com".parse()?;
    let secret = Secret::parse(&gitlab.secret()).context("the secret of the stand-in")?;
    let gitlab = gitlab.clone();
    let transport = Transport::from_fn(move || {
        let (near, far) = tokio::io::duplex(64 << 10);
        let gitlab = gitlab.clone();
        tokio::spawn(async move { gitlab.serve(far).await });
        Ok(near)
    });
    Ok(GitLabClient::new(address, secret, transport, &ApiRateLimit::default()))
}
