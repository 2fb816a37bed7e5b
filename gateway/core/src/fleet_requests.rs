//! Requests of callers about all of their agents. Their paths name no agent, and no agent has them.

use std::fmt::Debug;

use access::{CallerAgents, RequestError};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use proto::AgentId;

/// A kind of requests about all agents of a caller. Its method is GET, and its response is JSON.
///
/// kas authenticates the caller, and reads which agents it may use. It keeps nothing of an answer, which depends on the rights of the
/// caller in each cluster.
pub trait FleetRequests: Debug + Send + Sync {
    /// Returns the path, which begins with `/agents`, and has no part after the name of an agent.
    fn path(&self) -> &'static str;

    /// Answers a request.
    ///
    /// # Errors
    ///
    /// `bad-request`: a parameter is unknown or wrong.
    fn answer<'a>(&'a self, request: FleetRequest<'a>) -> BoxFuture<'a, Result<String, RequestError>>;
}

/// A request about all agents of a caller.
#[derive(Debug)]
pub struct FleetRequest<'a> {
    /// The query, without the question mark.
    pub query: &'a str,
    /// The agents that the caller may use.
    pub agents: CallerAgents,
    /// Sends requests of the caller.
    pub sender: &'a dyn AgentRequests,
}

/// Sends requests to agents, each of which decides by itself.
pub trait AgentRequests: Debug + Send + Sync {
    /// Sends a GET request to a service of an agent, and returns the body of the response.
    ///
    /// # Errors
    ///
    /// The text is the reason why there is no body, or why it has over `limit` bytes.
    fn get<'a>(
        &'a self,
        agent: AgentId,
        service: &'static str,
        path: &'a str,
        limit: usize,
    ) -> BoxFuture<'a, Result<Bytes, String>>;
}
