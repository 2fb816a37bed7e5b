//! A kas whose agents and callers come from a stand-in of GitLab, over in-memory pipes.

use agentk_core::Services;
use gateway::config::Config;
use http::{Request, Response};
use kas_gitlab::{ApiRateLimit, GitLabClient, Transport};
use settings::Secret;
use testing::gitlab::{Agent, StandIn};
use tunnel::Body;

use crate::world::{RunningAgent, World};

/// The id of the agent of GitLab.
pub const AGENT: u64 = 7;
/// The token of the agent of GitLab.
pub const AGENT_TOKEN: &str = "glagent-standin";

/// Returns a client of the stand-in over in-memory pipes.
pub fn client(gitlab: &StandIn, limit: &ApiRateLimit) -> GitLabClient {
    let address = "http://gitlab.example.com".parse().unwrap();
    let secret = Secret::parse(&gitlab.secret()).unwrap();
    let gitlab = gitlab.clone();
    let transport = Transport::from_fn(move || {
        let (near, far) = tokio::io::duplex(64 << 10);
        let gitlab = gitlab.clone();
        tokio::spawn(async move { gitlab.serve(far).await });
        Ok(near)
    });
    GitLabClient::new(address, secret, transport, limit)
}

/// Starts a stand-in, and a kas with the agent `prod` of GitLab, whose services respond with the request that they received.
pub async fn world(edit: impl FnOnce(&mut Config)) -> (StandIn, World, RunningAgent) {
    let limit = ApiRateLimit::default();
    world_with(&limit, edit, Services::new().with_fn("kubernetes", echo).with_fn("prometheus", echo)).await
}

/// Starts a stand-in, and a kas with the agent `prod` of GitLab, which has these services. `limit` is that of requests to GitLab.
pub async fn world_with(
    limit: &ApiRateLimit,
    edit: impl FnOnce(&mut Config),
    services: Services,
) -> (StandIn, World, RunningAgent) {
    let gitlab = StandIn::start().await;
    gitlab.state().add_agent(Agent::new(AGENT, "prod", AGENT_TOKEN));
    let world = World::with_gitlab(client(&gitlab, limit), AGENT_TOKEN.to_owned(), edit);
    let agent = world.agent(services).await;
    (gitlab, world, agent)
}

/// Responds with the path, the query and the headers of the request, a line for each, or with an endless body to `/watch`.
pub async fn echo(request: Request<Body>) -> Response<Body> {
    if request.uri().path() == "/watch" {
        return Response::new(crate::world::endless("first"));
    }
    let headers = request.headers().iter();
    let headers = headers.map(|(name, value)| format!("{name}: {}\n", value.to_str().unwrap_or("not text")));
    Response::new(Body::from(format!("{}\n{}", request.uri(), headers.collect::<String>())))
}
