//! The client of GitLab's internal API: `GitLabClient::get` and `GitLabClient::post` send a request to an [`Endpoint`].
//!
//! | file | content |
//! |---|---|
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
mod budget;
mod client;
mod endpoint;
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
    budget::BudgetShare,
    client::GitLabClient,
    endpoint::{Credential, Endpoint},
    project_environments::ProjectEnvironment,
    response::GitLabError,
    setup::GitLabSetup,
    switch::SwitchMonitor,
    transport::{Stream, Transport},
    usage::{Usage, UsageKind, UsageReporter, UsageSubject},
};
pub(crate) use self::{agent_configuration::observer, budget::MAX_IN_FLIGHT};
