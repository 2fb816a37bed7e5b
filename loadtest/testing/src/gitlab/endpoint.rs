//! The endpoints, by method and path.

use http::Method;

/// An endpoint of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `GET /internal/agents/agentk/agent_info`
    AgentInfo,
    /// `GET /internal/kubernetes/agent_info`, the path of older versions.
    AgentInfoDeprecated,
    /// `GET /internal/kubernetes/project_info`
    ProjectInfo,
    /// `GET /internal/kubernetes/verify_project_access`
    VerifyProjectAccess,
    /// `POST /internal/kubernetes/agent_configuration`
    AgentConfiguration,
    /// `POST /internal/kubernetes/authorize_proxy_user`
    AuthorizeProxyUser,
    /// `POST /internal/kubernetes/usage_metrics`
    UsageMetrics,
    /// `POST /internal/kubernetes/agent_events`
    AgentEvents,
    /// `GET /internal/kubernetes/receptive_agents`
    ReceptiveAgents,
    /// Any method below `/internal/kubernetes/modules/`, for modules of GitLab's agentk.
    Module,
    /// `GET /job/allowed_agents`
    AllowedAgents,
    /// `GET /job`
    Job,
    /// `GET /projects/:id/environments`
    ProjectEnvironments,
    /// `GET /projects/:id/environments/:environment_id`
    ProjectEnvironment,
    /// `GET /projects/:id/deployments`
    ProjectDeployments,
    /// `GET /groups/:id/projects`
    GroupProjects,
    /// `GET /projects/:id/jobs/:job_id`
    ProjectJob,
    /// `GET /projects/:id/repository/commits/:sha/merge_requests`
    CommitMergeRequests,
    /// `GET /projects/:id/repository/commits/:sha/statuses`
    CommitStatuses,
    /// `POST /projects/:id/statuses/:sha`
    SetCommitStatus,
    /// `GET /projects/:id/merge_requests`
    MergeRequests,
    /// `GET` and `POST /projects/:id/merge_requests/:iid/notes`. Jobs send the latter, too.
    Notes,
    /// `PUT /projects/:id/merge_requests/:iid/notes/:note_id`
    Note,
    /// `GET /user`
    CurrentUser,
    /// `POST /api/graphql`
    GraphQl,
    /// `POST /oauth/token`
    OauthToken,
    /// `POST /oauth/revoke`
    OauthRevoke,
    /// `GET /metadata`, which users send and not kas, as they do all of the following.
    Metadata,
    /// `GET /projects/:id`
    ProjectDetails,
    /// `GET` and `POST /projects/:id/cluster_agents`
    ClusterAgents,
    /// `GET` and `POST /projects/:id/cluster_agents/:agent_id/tokens`
    AgentTokens,
    /// `GET` and `DELETE /projects/:id/cluster_agents/:agent_id/tokens/:token_id`
    AgentToken,
    /// `GET` and `POST /projects/:id/repository/files/:file_path`
    RepositoryFile,
}

/// The headers that identify the subject of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// A token of an agent.
    Agent,
    /// A token of a CI job.
    Job,
    /// There is none.
    None,
    /// The body names the subject, if there is one.
    Body,
    /// The caller of kas, on the public API.
    Caller,
    /// A user with a program of their own, on the public API.
    User,
}

impl Endpoint {
    pub(crate) const ALL: [Self; 10] = [
        Self::AgentInfo,
        Self::AgentInfoDeprecated,
        Self::ProjectInfo,
        Self::VerifyProjectAccess,
        Self::AgentConfiguration,
        Self::AuthorizeProxyUser,
        Self::UsageMetrics,
        Self::AgentEvents,
        Self::ReceptiveAgents,
        Self::AllowedAgents,
    ];

    /// Returns the endpoint at a path.
    pub(crate) fn at(path: &str) -> Option<Self> {
        match path {
            "/api/graphql" => return Some(Self::GraphQl),
            "/oauth/token" => return Some(Self::OauthToken),
            "/oauth/revoke" => return Some(Self::OauthRevoke),
            _ => {}
        }
        let path = path.strip_prefix("/api/v4")?;
        if let Some(path) = path.strip_prefix("/projects/") {
            return match *path.split('/').collect::<Vec<_>>() {
                [_, "environments"] => Some(Self::ProjectEnvironments),
                [_, "environments", _] => Some(Self::ProjectEnvironment),
                [_, "deployments"] => Some(Self::ProjectDeployments),
                [_, "jobs", _] => Some(Self::ProjectJob),
                [_, "repository", "commits", _, "merge_requests"] => Some(Self::CommitMergeRequests),
                [_, "repository", "commits", _, "statuses"] => Some(Self::CommitStatuses),
                [_, "statuses", _] => Some(Self::SetCommitStatus),
                [_, "merge_requests"] => Some(Self::MergeRequests),
                [_, "merge_requests", _, "notes"] => Some(Self::Notes),
                [_, "merge_requests", _, "notes", _] => Some(Self::Note),
                [_] => Some(Self::ProjectDetails),
                [_, "cluster_agents"] => Some(Self::ClusterAgents),
                [_, "cluster_agents", _, "tokens"] => Some(Self::AgentTokens),
                [_, "cluster_agents", _, "tokens", _] => Some(Self::AgentToken),
                [_, "repository", "files", _] => Some(Self::RepositoryFile),
                _ => None,
            };
        }
        if path.starts_with("/internal/kubernetes/modules/") {
            return Some(Self::Module);
        }
        if let Some(path) = path.strip_prefix("/groups/") {
            let is_list = matches!(*path.split('/').collect::<Vec<_>>(), [_, "projects"]);
            return is_list.then_some(Self::GroupProjects);
        }
        if path == "/metadata" {
            return Some(Self::Metadata);
        }
        match path {
            "/job" => return Some(Self::Job),
            "/user" => return Some(Self::CurrentUser),
            _ => {}
        }
        Self::ALL.into_iter().find(|endpoint| endpoint.path() == path)
    }

    fn path(self) -> &'static str {
        match self {
            Self::AgentInfo => "/internal/agents/agentk/agent_info",
            Self::AgentInfoDeprecated => "/internal/kubernetes/agent_info",
            Self::ProjectInfo => "/internal/kubernetes/project_info",
            Self::VerifyProjectAccess => "/internal/kubernetes/verify_project_access",
            Self::AgentConfiguration => "/internal/kubernetes/agent_configuration",
            Self::AuthorizeProxyUser => "/internal/kubernetes/authorize_proxy_user",
            Self::UsageMetrics => "/internal/kubernetes/usage_metrics",
            Self::AgentEvents => "/internal/kubernetes/agent_events",
            Self::ReceptiveAgents => "/internal/kubernetes/receptive_agents",
            Self::AllowedAgents => "/job/allowed_agents",
            Self::Module
            | Self::Job
            | Self::ProjectEnvironments
            | Self::ProjectEnvironment
            | Self::ProjectDeployments
            | Self::GroupProjects
            | Self::ProjectJob
            | Self::CommitMergeRequests
            | Self::CommitStatuses
            | Self::SetCommitStatus
            | Self::MergeRequests
            | Self::Notes
            | Self::Note
            | Self::CurrentUser
            | Self::GraphQl
            | Self::OauthToken
            | Self::OauthRevoke
            | Self::Metadata
            | Self::ProjectDetails
            | Self::ClusterAgents
            | Self::AgentTokens
            | Self::AgentToken
            | Self::RepositoryFile => unreachable!("they are not in ALL"),
        }
    }

    /// Returns whether the endpoint has a method.
    pub(crate) fn allows(self, method: &Method) -> bool {
        match (self, self.subject()) {
            (Self::Module, _) => true,
            (Self::SetCommitStatus | Self::GraphQl | Self::OauthToken | Self::OauthRevoke, _)
            | (_, Subject::Body) => *method == Method::POST,
            (Self::Note, _) => *method == Method::PUT,
            (Self::Notes | Self::ClusterAgents | Self::AgentTokens | Self::RepositoryFile, _) => {
                *method == Method::GET || *method == Method::POST
            }
            (Self::AgentToken, _) => *method == Method::GET || *method == Method::DELETE,
            (_, Subject::Agent | Subject::Job | Subject::None | Subject::Caller | Subject::User) => {
                *method == Method::GET
            }
        }
    }

    pub(crate) fn subject(self) -> Subject {
        match self {
            Self::AgentInfo
            | Self::AgentInfoDeprecated
            | Self::ProjectInfo
            | Self::VerifyProjectAccess
            | Self::Module => Subject::Agent,
            Self::ReceptiveAgents => Subject::None,
            Self::AllowedAgents => Subject::Job,
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
            | Self::Notes
            | Self::Note
            | Self::CurrentUser
            | Self::GraphQl
            | Self::OauthToken
            | Self::OauthRevoke => Subject::Caller,
            Self::AgentConfiguration | Self::AuthorizeProxyUser | Self::UsageMetrics | Self::AgentEvents => {
                Subject::Body
            }
            Self::Metadata
            | Self::ProjectDetails
            | Self::ClusterAgents
            | Self::AgentTokens
            | Self::AgentToken
            | Self::RepositoryFile => Subject::User,
        }
    }

    /// Returns whether a form names the subject of the request, and not a header.
    pub(crate) fn has_form(self) -> bool {
        matches!(self, Self::OauthToken | Self::OauthRevoke)
    }

    /// Returns whether the endpoint has the query parameter `id`.
    pub(crate) fn has_id(self) -> bool {
        matches!(self, Self::ProjectInfo | Self::VerifyProjectAccess)
    }
}
