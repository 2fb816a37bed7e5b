//! The client of GitLab's internal API: `GitLabClient::get` and `GitLabClient::post` send a request to an [`Endpoint`].
//!
//! | file | content |
//! |---|---|
//! | `agents` | [`GitLabAgents`]: the agents of GitLab, as a source of `access` |
//! | `callers` | [`GitLabAuthorizer`]: jobs and users of GitLab, as a source of `access` |
//! | `internal_api` | the requests of GitLab itself, as a source of `access` |
//! | `configurations` | the configurations of agents in the repositories of GitLab |
//! | `client` | [`GitLabClient`]: limits, retries and the parsing of responses |
//! | `agent_info` | [`AgentInfo`]: the agent of a token |
//! | `project_environments` | [`ProjectEnvironment`]: the environments of a project, as their caller sees them |
//! | `endpoint` | [`Endpoint`]: paths, and which requests are sent again; [`Credential`] |
//! | `response` | which status is an answer, and which means that GitLab cannot answer; [`GitLabError`] |
//! | `budget`, `token_bucket` | how many requests are sent per second, and the shares of callers and agents |
//! | `retry` | when a failed request is sent again |
//! | `jwt` | the token with which GitLab recognizes kas |
//! | `transport` | connections: TCP, TLS, Unix sockets |
//! | `setup` | reads the files of the section `gitlab` |
//! | `usage` | [`Usage`]: counters and events for GitLab's statistics |
//! | `switch` | whether GitLab has switched kas off |

mod address;
mod agent_configuration;
mod agent_info;
mod agent_names;
mod agents;
mod budget;
mod callers;
mod client;
mod configurations;
mod endpoint;
mod in_flight;
mod internal_api;
mod jwt;
mod metrics;
mod project_environments;
mod response;
mod retry;
mod setup;
mod switch;
mod token_bucket;
mod transport;
mod usage;

pub use self::{
    address::{GitLabAddress, GitLabAddressError},
    agent_info::AgentInfo,
    agents::GitLabAgents,
    budget::BudgetShare,
    callers::GitLabAuthorizer,
    client::GitLabClient,
    endpoint::{Credential, Endpoint},
    project_environments::ProjectEnvironment,
    response::GitLabError,
    setup::GitLabSetup,
    switch::SwitchMonitor,
    transport::{Stream, Transport},
    usage::{Usage, UsageKind, UsageReporter, UsageSubject},
};
pub(crate) use self::{
    agent_configuration::observer, agent_names::AgentNames, budget::MAX_IN_FLIGHT,
    configurations::GitLabSource, in_flight::InFlightCounters, internal_api::RailsAuthorizer,
};
