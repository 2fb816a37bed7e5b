//! The programmable state: agents, jobs, users, and what kas posted.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::SystemTime,
};

use serde::Serialize;
use serde_json::{Value, json};

use crate::gitlab::oauth_state::OauthState;

/// The state of the stand-in.
#[derive(Debug, Default)]
pub struct State {
    /// The agents by id.
    pub agents: BTreeMap<u64, Agent>,
    /// The agents that kas dials, as the entries of `receptive_agents`. `None` without a licence.
    pub receptive_agents: Option<Vec<Value>>,
    /// The requests of modules of GitLab's agentk: method, path and query.
    pub module_requests: Vec<String>,
    /// The projects of `project_info` and `verify_project_access`, other than those of agents.
    pub projects: Vec<Project>,
    /// The CI jobs by token.
    pub jobs: HashMap<String, Job>,
    /// Tokens that are valid and not of a CI job: 404 of `allowed_agents`.
    pub other_tokens: Vec<String>,
    /// The users.
    pub users: Vec<User>,
    /// The configurations that were posted: the id of the agent, and its file.
    pub configurations: Vec<(u64, Value)>,
    /// The bodies of `usage_metrics`.
    pub usage_metrics: Vec<Value>,
    /// The bodies of `agent_events`.
    pub agent_events: Vec<Value>,
    /// The statuses of commits in the order in which they were set: project, commit, and the body.
    pub commit_statuses: Vec<(u64, String, Value)>,
    /// The commits that merge requests brought: project, commit, and the number of the merge request.
    pub merged_commits: Vec<(u64, String, u64)>,
    /// The open merge requests.
    pub merge_requests: Vec<OpenMergeRequest>,
    /// The notes of merge requests.
    pub notes: Vec<PostedNote>,
    /// The statuses with which the next requests to write a note are refused.
    pub note_refusals: VecDeque<u16>,
    /// The id of the agent in answers about users, in place of the one in the request: a defect of GitLab.
    pub wrong_agent: Option<u64>,
    /// The OAuth server, and the access of users to projects and groups.
    pub oauth: OauthState,
    /// The number of uses of each token of an agent. GitLab shows an agent as connected by it.
    pub token_uses: HashMap<String, usize>,
    /// The tokens of agents that users see, with their ids.
    pub agent_tokens: Vec<AgentTokenRecord>,
    /// The address of kas that users see: `kas.externalUrl` of `metadata`.
    pub kas_url: Option<String>,
}

/// An open merge request into the default branch.
#[derive(Clone, Debug)]
pub struct OpenMergeRequest {
    /// The id of the project with the target branch.
    pub project: u64,
    /// The number in this project.
    pub number: u64,
    /// The id of the project with the source branch.
    pub source_project: u64,
    /// The target branch.
    pub target: String,
    /// The head of the source branch.
    pub sha: String,
}

/// A note of a merge request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostedNote {
    /// The id of the project.
    pub project: u64,
    /// The number of the merge request.
    pub merge_request: u64,
    /// The id of the user.
    pub author: u64,
    /// The text.
    pub body: String,
}

/// A token of an agent, as GitLab stores it.
#[derive(Clone, Debug)]
pub struct AgentTokenRecord {
    /// The id.
    pub id: u64,
    /// The id of the agent.
    pub agent: u64,
    /// The name.
    pub name: String,
    /// The text.
    pub token: String,
    /// False after it was revoked.
    pub active: bool,
    /// The time of its last use.
    pub last_used_at: Option<SystemTime>,
}

/// An agent with its configuration project.
#[derive(Clone, Debug)]
pub struct Agent {
    /// The id.
    pub id: u64,
    /// The name.
    pub name: String,
    /// Its tokens: at most two in GitLab.
    pub tokens: Vec<String>,
    /// The configuration project.
    pub project: Project,
    /// The status with which `agent_info` refuses valid tokens, such as 403.
    pub refused: Option<u16>,
}

/// A project with its repository.
#[derive(Clone, Debug)]
pub struct Project {
    /// The id.
    pub id: u64,
    /// The full path.
    pub path: String,
    /// The paths that it has had, which lead to it.
    pub former_paths: Vec<String>,
    /// The default branch.
    pub default_branch: String,
    /// The path of its repository in the storage of Gitaly.
    pub relative_path: String,
    /// The address of its Gitaly.
    pub gitaly: Gitaly,
    /// The environments.
    pub environments: Vec<ProjectEnvironment>,
    /// The branches with their files. A repository without a branch is empty.
    pub branches: BTreeMap<String, BTreeMap<String, String>>,
    /// True if developers may not push to the default branch.
    pub protected: bool,
    /// The deployments, the oldest first.
    pub deployments: Vec<GitLabDeployment>,
}

/// A deployment to an environment of a project.
#[derive(Clone, Debug)]
pub struct GitLabDeployment {
    /// The slug of the environment.
    pub environment: String,
    /// `created`, `running`, `success`, `failed`, `canceled`, `skipped` or `blocked`.
    pub status: String,
    /// The commit.
    pub sha: String,
    /// The id of the job, or nothing if a program has reported the deployment.
    pub job: Option<u64>,
    /// The time at which the job has finished, in seconds of the first minute of 2026.
    pub finished: Option<u8>,
}

/// An environment of a project.
#[derive(Clone, Debug)]
pub struct ProjectEnvironment {
    /// The id.
    pub id: u64,
    /// The name.
    pub name: String,
    /// The name in URLs.
    pub slug: String,
    /// `production`, `staging`, `testing`, `development` or `other`.
    pub tier: String,
    /// The id of the agent and the namespace.
    pub place: Option<(u64, String)>,
}

/// The settings with which kas reaches Gitaly.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Gitaly {
    /// The address, as in `tcp://127.0.0.1:8075`.
    pub address: String,
    /// The shared secret of Gitaly.
    pub token: String,
    /// The feature flags, which kas copies to the metadata of its calls.
    pub features: BTreeMap<String, String>,
}

/// A CI job.
#[derive(Clone, Debug)]
pub struct Job {
    /// The id of the job.
    pub id: u64,
    /// The id of the pipeline.
    pub pipeline: u64,
    /// The id of the project.
    pub project: u64,
    /// The ids of the group of the project and of its ancestors.
    pub groups: Vec<u64>,
    /// The id of the user.
    pub user: u64,
    /// The name of the user.
    pub username: String,
    /// The environment of the job.
    pub environment: Option<Environment>,
    /// The agents that the job may use.
    pub allowed_agents: Vec<AllowedAgent>,
    /// True if the job has ended: its token is refused with 401.
    pub finished: bool,
    /// The status of the job when it has ended, such as `success`.
    pub result: String,
    /// The status with which GitLab refuses the token, such as 403.
    pub refused: Option<u16>,
}

/// The environment of a job.
#[derive(Clone, Debug, Serialize)]
pub struct Environment {
    /// The slug.
    pub slug: String,
    /// `production`, `staging`, `testing`, `development` or `other`.
    pub tier: String,
}

/// An agent that a job may use.
#[derive(Clone, Debug)]
pub struct AllowedAgent {
    /// The id of the agent.
    pub id: u64,
    /// The id of its configuration project.
    pub config_project: u64,
    /// The entry of `ci_access`, such as `{"access_as": {"ci_job": {}}}`.
    pub configuration: Value,
}

/// A user with the credentials that kas may forward.
#[derive(Clone, Debug)]
pub struct User {
    /// The id.
    pub id: u64,
    /// The name.
    pub username: String,
    /// Personal access tokens.
    pub tokens: Vec<AccessToken>,
    /// Browser sessions.
    pub sessions: Vec<Session>,
    /// The ids of the projects that the user may read.
    pub projects: Vec<u64>,
    /// True if the user is a developer in these projects, and no maintainer.
    pub developer: bool,
    /// The rights by the id of the agent. 403 for other agents.
    pub access: HashMap<u64, AgentAccess>,
    /// The state of the account.
    pub account: Account,
}

/// The state of the account of a user. Tokens of OAuth are valid, and can be renewed, in each of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Account {
    /// The user works.
    #[default]
    Active,
    /// An administrator has blocked the user, who cannot log in.
    Blocked,
    /// The user may log in again, and has to do that before it uses the API. The same holds for new terms of service.
    Deactivated,
}

/// A personal access token.
#[derive(Clone, Debug)]
pub struct AccessToken {
    /// The token.
    pub token: String,
    /// The scopes. `k8s_proxy` is needed for clusters, `read_api` for environments.
    pub scopes: Vec<String>,
}

/// A browser session.
#[derive(Clone, Debug)]
pub struct Session {
    /// The value of the cookie `_gitlab_kas`, unescaped.
    pub cookie: String,
    /// The CSRF token of the session.
    pub csrf_token: String,
}

/// The right of a user to use an agent.
#[derive(Clone, Debug)]
pub enum AgentAccess {
    /// `access_as: {agent: {}}`
    Agent,
    /// `access_as: {user: {…}}` with the projects and groups in which the user has roles.
    User {
        /// The projects.
        projects: Vec<Membership>,
        /// The groups.
        groups: Vec<Membership>,
    },
}

/// The roles of a user in a project or group.
#[derive(Clone, Debug, Serialize)]
pub struct Membership {
    /// The id of the project or group.
    pub id: u64,
    /// The roles, in lower case and cumulative.
    pub roles: Vec<String>,
}

impl State {
    /// Adds an agent, or replaces the one with its id.
    pub fn add_agent(&mut self, agent: Agent) {
        self.agents.insert(agent.id, agent);
    }

    /// Adds a job with its token.
    pub fn add_job(&mut self, token: &str, job: Job) {
        self.jobs.insert(token.to_owned(), job);
    }

    /// Changes the account of a user.
    pub fn set_account(&mut self, username: &str, account: Account) {
        for user in self.users.iter_mut().filter(|user| user.username == username) {
            user.account = account;
        }
    }

    /// Deletes a user, with its tokens and sessions.
    pub fn delete_user(&mut self, username: &str) {
        self.users.retain(|user| user.username != username);
        self.oauth.revoke_user(username);
    }

    /// Returns whether a token of the public API is that of a user who may not use it.
    pub(crate) fn is_shut_out(&self, token: &str) -> bool {
        let holds = |user: &User| user.tokens.iter().any(|known| known.token == token);
        self.users.iter().any(|user| user.account != Account::Active && holds(user))
    }

    /// Returns the project with this id or full path, whose case does not matter. A former path leads to a project, too.
    pub(crate) fn project(&self, id_or_path: &str) -> Option<&Project> {
        let agents = self.agents.values().map(|agent| &agent.project);
        let mut all = self.projects.iter().chain(agents);
        let is_present = |project: &&Project| {
            project.path.eq_ignore_ascii_case(id_or_path) || project.id.to_string() == id_or_path
        };
        let is_former = |path: &String| path.eq_ignore_ascii_case(id_or_path);
        all.clone()
            .find(is_present)
            .or_else(|| all.find(|project| project.former_paths.iter().any(is_former)))
    }

    /// Returns whether a token of the public API may write, or `None` for an unknown token.
    pub(crate) fn writer(&self, token: &str) -> Option<bool> {
        let mut tokens = self.users.iter().flat_map(|user| &user.tokens);
        let token = tokens.find(|known| known.token == token)?;
        Some(token.scopes.iter().any(|scope| scope == "api"))
    }

    /// Returns whether a token of the public API, as `public::token` returns it, may read, or `None` for an unknown token.
    pub(crate) fn reader(&self, token: &str) -> Option<bool> {
        match token.strip_prefix("job:") {
            Some(job) => self.jobs.get(job).filter(|job| !job.finished).map(|_| true),
            None => {
                let mut tokens = self.users.iter().flat_map(|user| &user.tokens);
                let token = tokens.find(|known| known.token == token)?;
                Some(token.scopes.iter().any(|scope| scope == "read_api" || scope == "api"))
            }
        }
    }

    /// Returns the project with this id or path, if the holder of a token of the public API may read it.
    pub(crate) fn visible_project(&self, token: &str, id_or_path: &str) -> Option<&Project> {
        let is_visible = |id: u64| match token.strip_prefix("job:") {
            Some(job) => self.jobs.get(job).is_some_and(|job| job.project == id),
            None => self.users.iter().any(|user| {
                user.projects.contains(&id) && user.tokens.iter().any(|known| known.token == token)
            }),
        };
        self.project(id_or_path).filter(|project| is_visible(project.id))
    }

    /// Returns the project with this id or full path, for changes. The agents have copies of it.
    pub(crate) fn project_mut(&mut self, id: u64) -> Option<&mut Project> {
        self.projects.iter_mut().find(|project| project.id == id)
    }

    /// Returns whether the holder of a token of the public API is a maintainer of the projects that it may read.
    pub(crate) fn is_maintainer(&self, token: &str) -> bool {
        let holds = |user: &&User| user.tokens.iter().any(|known| known.token == token);
        self.users.iter().find(holds).is_some_and(|user| !user.developer)
    }

    /// Counts a use of a token of an agent.
    pub(crate) fn use_token(&mut self, token: &str) {
        *self.token_uses.entry(token.to_owned()).or_default() += 1;
        let record = self.agent_tokens.iter_mut().find(|record| record.token == token);
        if let Some(record) = record {
            record.last_used_at = Some(SystemTime::now());
        }
    }

    /// Returns the agent that holds a token.
    pub(crate) fn agent(&self, token: &str) -> Option<&Agent> {
        self.agents.values().find(|agent| agent.tokens.iter().any(|known| known == token))
    }
}

impl Agent {
    /// Creates an agent with one token, whose configuration project has the id 100 more than that of the agent.
    pub fn new(id: u64, name: &str, token: &str) -> Self {
        let project = Project::new(id + 100, &format!("group/config-{id}"));
        Self { id, name: name.to_owned(), tokens: vec![token.to_owned()], project, refused: None }
    }
}

impl Project {
    /// Creates a project with the default branch `main`.
    pub fn new(id: u64, path: &str) -> Self {
        Self {
            id,
            path: path.to_owned(),
            former_paths: Vec::new(),
            default_branch: "main".to_owned(),
            relative_path: format!("@hashed/{id}.git"),
            gitaly: Gitaly::default(),
            environments: Vec::new(),
            branches: BTreeMap::from([("main".to_owned(), BTreeMap::new())]),
            protected: false,
            deployments: Vec::new(),
        }
    }

    /// Adds a deployment of a job, which has finished at a second of the first minute of 2026.
    pub fn with_deployment(
        mut self,
        environment: &str,
        status: &str,
        job: u64,
        finished: Option<u8>,
    ) -> Self {
        self.deployments.push(GitLabDeployment {
            environment: environment.to_owned(),
            status: status.to_owned(),
            sha: sha_of_job(job),
            job: Some(job),
            finished,
        });
        self
    }

    /// Adds an environment whose slug is its name, with `/` replaced by `-`, in a namespace of an agent.
    pub fn with_environment(mut self, id: u64, name: &str, tier: &str, place: (u64, &str)) -> Self {
        self.environments.push(ProjectEnvironment {
            id,
            name: name.to_owned(),
            slug: name.replace('/', "-"),
            tier: tier.to_owned(),
            place: Some((place.0, place.1.to_owned())),
        });
        self
    }

    /// Returns the fields that `agent_info` and `project_info` share.
    pub(crate) fn info(&self) -> Value {
        json!({
            "project_id": self.id,
            "gitaly_info": self.gitaly,
            "gitaly_repository": {
                "storage_name": "default",
                "relative_path": self.relative_path,
                "git_object_directory": "",
                "git_alternate_object_directories": [],
                "gl_repository": format!("project-{}", self.id),
                "gl_project_path": self.path,
            },
            "default_branch": self.default_branch,
        })
    }
}

impl Job {
    /// Creates a running job of a project without groups and without an environment.
    pub fn new(id: u64, project: u64) -> Self {
        Self {
            id,
            pipeline: 1000 + id,
            project,
            groups: Vec::new(),
            user: 1,
            username: "root".to_owned(),
            environment: None,
            allowed_agents: Vec::new(),
            finished: false,
            result: "success".to_owned(),
            refused: None,
        }
    }

    /// Lets the job use an agent, with this entry of `ci_access`.
    pub fn with_agent(mut self, id: u64, configuration: Value) -> Self {
        self.allowed_agents.push(AllowedAgent { id, config_project: id + 100, configuration });
        self
    }

    /// Gives the job an environment.
    pub fn with_environment(mut self, slug: &str, tier: &str) -> Self {
        self.environment = Some(Environment { slug: slug.to_owned(), tier: tier.to_owned() });
        self
    }
}

impl User {
    /// Creates a user without credentials and rights.
    pub fn new(id: u64, username: &str) -> Self {
        Self {
            id,
            username: username.to_owned(),
            tokens: Vec::new(),
            sessions: Vec::new(),
            projects: Vec::new(),
            developer: false,
            access: HashMap::new(),
            account: Account::Active,
        }
    }

    /// Adds a personal access token with the scope `k8s_proxy`.
    pub fn with_token(mut self, token: &str) -> Self {
        self.tokens.push(AccessToken { token: token.to_owned(), scopes: vec!["k8s_proxy".to_owned()] });
        self
    }

    /// Adds a personal access token with the scopes `k8s_proxy` and `read_api`, and lets the user read a project.
    pub fn with_project(mut self, token: &str, project: u64) -> Self {
        let scopes = ["k8s_proxy", "read_api"].map(str::to_owned).to_vec();
        self.tokens.push(AccessToken { token: token.to_owned(), scopes });
        self.projects.push(project);
        self
    }

    /// Adds a personal access token with the scope `api`, and lets the user write to a project.
    pub fn with_api_token(mut self, token: &str, project: u64) -> Self {
        self.tokens.push(AccessToken { token: token.to_owned(), scopes: vec!["api".to_owned()] });
        self.projects.push(project);
        self
    }

    /// Adds a browser session.
    pub fn with_session(mut self, cookie: &str, csrf_token: &str) -> Self {
        self.sessions.push(Session { cookie: cookie.to_owned(), csrf_token: csrf_token.to_owned() });
        self
    }

    /// Lets the user use an agent.
    pub fn with_access(mut self, agent: u64, access: AgentAccess) -> Self {
        self.access.insert(agent, access);
        self
    }
}

/// Returns the commit of a job.
pub fn sha_of_job(job: u64) -> String {
    format!("{job:07x}{}", "d".repeat(33))
}
