//! The endpoints of GitLab that kas uses, and the credentials that it sends there.

use http::{HeaderName, HeaderValue, header::AUTHORIZATION};
use secrecy::{ExposeSecret as _, SecretString};

/// The header of agent tokens on the endpoints below `/api/v4/internal/agents`.
const AGENT_TOKEN: HeaderName = HeaderName::from_static("gitlab-agentk-api-request");
const JOB_TOKEN: HeaderName = HeaderName::from_static("job-token");

/// An endpoint of GitLab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// GET: the agent of a token.
    AgentInfo,
    /// GET: the same on GitLab before 18.3.
    LegacyAgentInfo,
    /// GET: a project that the agent may read.
    ProjectInfo,
    /// GET: whether the agent may read a project.
    VerifyProjectAccess,
    /// POST: the configuration of an agent.
    AgentConfiguration,
    /// POST: the rights of a user.
    AuthorizeProxyUser,
    /// POST: counters.
    UsageMetrics,
    /// POST: events.
    AgentEvents,
    /// GET: the agents that kas dials.
    ReceptiveAgents,
    /// GET: the agents of a CI job.
    AllowedAgents,
    /// GET: the job of a token.
    Job,
    /// GET: the environments of a project.
    ProjectEnvironments,
    /// GET: one of them, with its last successful deployment.
    ProjectEnvironment,
    /// GET: the deployments of a project.
    ProjectDeployments,
    /// GET: the projects of a group.
    GroupProjects,
    /// GET: a job of a project.
    ProjectJob,
    /// GET: the merge requests that brought a commit.
    CommitMergeRequests,
    /// GET: the statuses of a commit.
    CommitStatuses,
    /// POST: a status of a commit.
    SetCommitStatus,
    /// GET: the merge requests of a project.
    MergeRequests,
    /// GET: the notes of a merge request.
    MergeRequestNotes,
    /// POST: a new note.
    CreateMergeRequestNote,
    /// PUT: another text of a note.
    UpdateMergeRequestNote,
    /// GET: the user of a token.
    CurrentUser,
    /// POST: a question of GraphQL.
    GraphQl,
    /// GET: the page at which a person logs in. A browser goes there.
    OauthAuthorize,
    /// POST: the tokens of a login.
    OauthToken,
    /// POST: the end of a token.
    OauthRevoke,
    /// Any method: what a module of GitLab's agentk asks for, below this path.
    Module,
}

/// The credential of a request, besides the JWT of kas.
#[derive(Clone, Copy, Debug)]
pub enum Credential<'a> {
    /// None.
    None,
    /// The token of an agent.
    Agent(&'a SecretString),
    /// The token of a CI job.
    Job(&'a SecretString),
    /// The personal access token of a user, or the access token of a login.
    User(&'a SecretString),
}

impl Endpoint {
    /// Returns the path, in which `:id` stands for the id of a project or a group, `:object` for that of a commit, an environment, a job or a
    /// merge request, and `:part` for that of a note.
    pub fn path(self) -> &'static str {
        match self {
            Self::AgentInfo => "/api/v4/internal/agents/agentk/agent_info",
            Self::LegacyAgentInfo => "/api/v4/internal/kubernetes/agent_info",
            Self::ProjectInfo => "/api/v4/internal/kubernetes/project_info",
            Self::VerifyProjectAccess => "/api/v4/internal/kubernetes/verify_project_access",
            Self::AgentConfiguration => "/api/v4/internal/kubernetes/agent_configuration",
            Self::AuthorizeProxyUser => "/api/v4/internal/kubernetes/authorize_proxy_user",
            Self::UsageMetrics => "/api/v4/internal/kubernetes/usage_metrics",
            Self::AgentEvents => "/api/v4/internal/kubernetes/agent_events",
            Self::ReceptiveAgents => "/api/v4/internal/kubernetes/receptive_agents",
            Self::AllowedAgents => "/api/v4/job/allowed_agents",
            Self::Job => "/api/v4/job",
            Self::ProjectEnvironments => "/api/v4/projects/:id/environments",
            Self::ProjectEnvironment => "/api/v4/projects/:id/environments/:object",
            Self::ProjectDeployments => "/api/v4/projects/:id/deployments",
            Self::GroupProjects => "/api/v4/groups/:id/projects",
            Self::ProjectJob => "/api/v4/projects/:id/jobs/:object",
            Self::CommitMergeRequests => "/api/v4/projects/:id/repository/commits/:object/merge_requests",
            Self::CommitStatuses => "/api/v4/projects/:id/repository/commits/:object/statuses",
            Self::SetCommitStatus => "/api/v4/projects/:id/statuses/:object",
            Self::MergeRequests => "/api/v4/projects/:id/merge_requests",
            Self::MergeRequestNotes | Self::CreateMergeRequestNote => {
                "/api/v4/projects/:id/merge_requests/:object/notes"
            }
            Self::UpdateMergeRequestNote => "/api/v4/projects/:id/merge_requests/:object/notes/:part",
            Self::CurrentUser => "/api/v4/user",
            Self::GraphQl => "/api/graphql",
            Self::OauthAuthorize => "/oauth/authorize",
            Self::OauthToken => "/oauth/token",
            Self::OauthRevoke => "/oauth/revoke",
            Self::Module => "/api/v4/internal/kubernetes/modules",
        }
    }

    /// Returns the largest body of a response, in bytes. The agents of a job are the largest ones: some hundred bytes each. By default a note
    /// has at most 1 MiB, each byte of which is up to six bytes of JSON; a larger one is skipped.
    pub(super) fn max_body(self) -> usize {
        if self == Self::MergeRequestNotes { 8 << 20 } else { 4 << 20 }
    }

    /// Returns the value of the label `endpoint`.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::AgentInfo => "agent_info",
            Self::LegacyAgentInfo => "legacy_agent_info",
            Self::ProjectInfo => "project_info",
            Self::VerifyProjectAccess => "verify_project_access",
            Self::AgentConfiguration => "agent_configuration",
            Self::AuthorizeProxyUser => "authorize_proxy_user",
            Self::UsageMetrics => "usage_metrics",
            Self::AgentEvents => "agent_events",
            Self::ReceptiveAgents => "receptive_agents",
            Self::AllowedAgents => "allowed_agents",
            Self::Job => "job",
            Self::ProjectEnvironments => "project_environments",
            Self::ProjectEnvironment => "project_environment",
            Self::ProjectDeployments => "project_deployments",
            Self::GroupProjects => "group_projects",
            Self::ProjectJob => "project_job",
            Self::CommitMergeRequests => "commit_merge_requests",
            Self::CommitStatuses => "commit_statuses",
            Self::SetCommitStatus => "set_commit_status",
            Self::MergeRequests => "merge_requests",
            Self::MergeRequestNotes => "merge_request_notes",
            Self::CreateMergeRequestNote => "create_merge_request_note",
            Self::UpdateMergeRequestNote => "update_merge_request_note",
            Self::CurrentUser => "current_user",
            Self::GraphQl => "graphql",
            Self::OauthAuthorize => "oauth_authorize",
            Self::OauthToken => "oauth_token",
            Self::OauthRevoke => "oauth_revoke",
            Self::Module => "module",
        }
    }

    /// Returns whether a failed request is sent again.
    ///
    /// agentk itself connects again, its modules ask again, and the list of agents to dial is read from time to time. Counters and events
    /// would be counted twice if GitLab had processed them, and it accepts a code or a refresh token once. Before kas writes a note again, it
    /// looks whether the note is there.
    pub(super) fn is_retried(self) -> bool {
        !matches!(
            self,
            Self::AgentInfo
                | Self::LegacyAgentInfo
                | Self::UsageMetrics
                | Self::AgentEvents
                | Self::ReceptiveAgents
                | Self::CreateMergeRequestNote
                | Self::OauthToken
                | Self::OauthRevoke
                | Self::Module
        )
    }

    /// Returns whether a 404 can mean that GitLab has switched kas off.
    pub(super) fn is_internal(self) -> bool {
        self != Self::AllowedAgents && !self.is_public()
    }

    /// Returns whether everyone may use the endpoint, so that requests have no JWT of kas.
    pub(super) fn is_public(self) -> bool {
        matches!(
            self,
            Self::Job
                | Self::ProjectEnvironments
                | Self::ProjectEnvironment
                | Self::ProjectDeployments
                | Self::GroupProjects
                | Self::ProjectJob
                | Self::CommitMergeRequests
                | Self::CommitStatuses
                | Self::SetCommitStatus
                | Self::MergeRequests
                | Self::MergeRequestNotes
                | Self::CreateMergeRequestNote
                | Self::UpdateMergeRequestNote
                | Self::CurrentUser
                | Self::GraphQl
                | Self::OauthAuthorize
                | Self::OauthToken
                | Self::OauthRevoke
        )
    }
}

impl Credential<'_> {
    /// Returns the header, or `None` without a credential.
    ///
    /// # Errors
    ///
    /// The token has a character that no header may have.
    pub(super) fn header(
        self,
        endpoint: Endpoint,
    ) -> Result<Option<(HeaderName, HeaderValue)>, http::header::InvalidHeaderValue> {
        let (name, scheme, token) = match self {
            Self::None => return Ok(None),
            Self::Agent(token) if endpoint == Endpoint::AgentInfo => (AGENT_TOKEN, "", token),
            Self::Agent(token) | Self::User(token) => (AUTHORIZATION, "Bearer ", token),
            Self::Job(token) => (JOB_TOKEN, "", token),
        };
        let mut value = HeaderValue::try_from(format!("{scheme}{}", token.expose_secret()))?;
        value.set_sensitive(true);
        Ok(Some((name, value)))
    }
}
