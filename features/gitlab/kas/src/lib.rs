//! GitLab in kas: a source of agents, callers, configurations and environments, its agentk, which connects to kas, and the RPCs that it
//! calls.
//!
//! `GitLabClient::get` and `GitLabClient::post` send a request to an [`Endpoint`] of GitLab's internal API. [`gitaly`] reads the Git
//! repositories of GitLab.
//!
//! | file | content |
//! |---|---|
//! | `agents` | [`GitLabAgents`]: the agents of GitLab, as a source of `access` |
//! | `callers` | [`GitLabAuthorizer`]: jobs and users of GitLab, as a source of `access` |
//! | `login` | logins of people to the web page at GitLab |
//! | `session` | [`GitLabSessions`]: the credential of a browser session of GitLab |
//! | `internal_api` | the requests of GitLab itself, as a source of `access` |
//! | `configurations` | the configurations of agents in the repositories of GitLab |
//! | `environments` | [`GitLabEnvironments`]: GitLab as a source of environments |
//! | `client` | [`GitLabClient`]: limits, retries and the parsing of responses |
//! | `agent_facts` | the project of an agent, and `user_access` of its configuration, also from other replicas |
//! | `user_access` | the refusals of users whom `user_access` does not admit |
//! | `agent_info` | [`AgentInfo`]: the agent of a token |
//! | `projects`, `commit_status`, `merge_requests` | the repositories of projects, the statuses of their commits, and notes in their merge requests, for GitOps |
//! | `commit_merge_requests` | the merge request that brought the commit of a deployment |
//! | `project_deployments` | [`ProjectDeployment`]: the deployments of a project and its jobs, as their caller sees them |
//! | `job_results` | [`GitLabJobResults`]: the results of the jobs of deployments |
//! | `group_projects` | [`GroupProjects`]: the projects of a group, as their caller sees them |
//! | `project_environments` | [`ProjectEnvironment`]: the environments of a project, as their caller sees them |
//! | `endpoint` | [`Endpoint`]: paths, and which requests are sent again; [`Credential`] |
//! | `response` | which status is an answer, and which means that GitLab cannot answer; [`GitLabError`] |
//! | `budget`, `token_bucket` | how many requests are sent per second, and the shares of callers and agents |
//! | `retry` | when a failed request is sent again |
//! | `jwt` | the token with which GitLab recognizes kas |
//! | `transport` | connections: TCP, TLS, Unix sockets |
//! | `setup` | reads the files of the section `gitlab` |
//! | `usage`, `usage_reports` | [`Usage`]: counters and events for GitLab's statistics |
//! | `feature` | what GitLab adds to a replica of kas |
//! | `switch`, `switch_monitor` | whether GitLab has switched kas off |
//! | `gitlab_agentk` | [`GitlabAgentk`]: serves GitLab's agentk, whose connection is a tunnel |
//! | `rpcs` | the RPCs that GitLab calls |
#![warn(missing_docs)]

mod address;
mod agent_configuration;
mod agent_facts;
mod agent_info;
mod agent_names;
mod agents;
mod budget;
mod callers;
mod client;
mod commit_merge_requests;
mod commit_status;
mod config;
mod configurations;
mod endpoint;
mod environments;
mod feature;
pub mod gitaly;
mod gitlab_agentk;
mod group_projects;
mod in_flight;
mod internal_api;
mod job_results;
mod jwt;
mod login;
mod merge_requests;
mod metrics;
mod project_deployments;
mod project_environments;
mod project_info;
mod projects;
mod receptive_agents;
mod response;
pub mod rpcs;
mod session;
mod setup;
mod switch;
mod switch_monitor;
mod transport;
mod usage;
mod usage_reports;
mod user_access;

pub use self::{
    address::{GitLabAddress, GitLabAddressError},
    agent_configuration::observer,
    agent_facts::{AgentFactsLookup, HeldAgents},
    agent_info::AgentInfo,
    agent_names::AgentNames,
    agents::{CacheTtls, GitLabAgents},
    budget::BudgetShare,
    callers::{CallerValidity, GitLabAgentDirectory, GitLabAuthorizer},
    client::GitLabClient,
    commit_status::GitLabCommitStatuses,
    config::{ApiRateLimit, GitLabConfig, GitLabLoginConfig},
    configurations::GitLabSource,
    endpoint::{Credential, Endpoint},
    environments::GitLabEnvironments,
    feature::GitLabFeature,
    gitlab_agentk::{GitlabAgentk, GitlabAgentkConfig},
    group_projects::GroupProjects,
    in_flight::InFlightCounters,
    internal_api::InternalApiAuthorizer,
    job_results::GitLabJobResults,
    login::{LOGIN_ISSUER, LoginSettings},
    merge_requests::GitLabMergeRequests,
    project_deployments::ProjectDeployment,
    project_environments::ProjectEnvironment,
    project_info::ProjectInfo,
    projects::GitLabProjects,
    receptive_agents::ReceptiveAgentsPoller,
    response::GitLabError,
    session::GitLabSessions,
    setup::GitLabSetup,
    switch_monitor::SwitchMonitor,
    transport::{Stream, Transport},
    usage::{Usage, UsageKind, UsageReporter, UsageSubject},
};
