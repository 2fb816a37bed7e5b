//! The RPCs that GitLab calls.

pub mod messages;

use std::collections::BTreeMap;

use axum::{Router, response::Response, routing::post};
use git::{AGENTS_DIRECTORY, Reference, Repository as _, RepositoryError, configuration_path};
use gitlab_tunnel::messages::{AgentMeta, KubernetesVersion};
use kas_core::{
    agent_locations::{AgentLocations, InstanceInfo},
    api::{
        ApiContext,
        grpc::{Timestamp, positive, unary},
    },
};
use proto::{AgentId, Hello};
use tonic::Status;

use self::messages::{
    AgentConfigFile, AgentSelector, ConnectedAgentInfo, Empty, GetConnectedAgentsByAgentIdsRequest,
    GetConnectedAgentsRequest, GetConnectedAgentsResponse, GetServerInfoResponse, GitalyInfo,
    ListAgentConfigFilesRequest, ListAgentConfigFilesResponse, ServerInfo,
};
use crate::gitaly::{GitalyClient, GitalyRepository, GitalyServer};

/// The most agents of one lookup in the route store.
const AGENTS_PER_LOOKUP: usize = 500;

/// The most agents of one request.
const MAX_AGENTS: usize = 10_000;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The state of the RPCs.
#[derive(Clone)]
struct GitLabRpcs {
    context: ApiContext,
    gitaly: GitalyClient,
}

/// Returns the routes of the RPCs.
pub(crate) fn routes(context: ApiContext, gitaly: GitalyClient) -> Router {
    let tracker = "/gitlab.agent.agent_tracker.rpc.AgentTracker";
    // Versions of GitLab call one method by different names.
    let by_ids = ["GetConnectedAgentsByAgentIDs", "GetConnectedAgentksByAgentIDs"];
    let routes = by_ids.into_iter().fold(Router::new(), |routes, name| {
        routes.route(&format!("{tracker}/{name}"), unary(get_connected_agents_by_ids))
    });
    routes
        .route(&format!("{tracker}/GetConnectedAgents"), unary(get_connected_agents))
        .route("/gitlab.agent.server_info.rpc.ServerInfo/GetServerInfo", unary(get_server_info))
        .route(
            "/gitlab.agent.configuration_project.rpc.ConfigurationProject/ListAgentConfigFiles",
            unary(list_agent_config_files),
        )
        .route("/gitlab.agent.managed_resources.rpc.Provisioner/{method}", post(no_provisioner))
        .with_state(GitLabRpcs { context, gitaly })
}

/// Refuses the methods with which GitLab makes the objects of environments before a job starts: the numbers of their fields are not
/// published. GitLab shows the message in the log of the job.
async fn no_provisioner() -> Response {
    let status = Status::unimplemented(
        "kas makes the objects of environments itself, before the first request of a job to the cluster: set \
         environment.kubernetes.managed_resources.enabled to false in the job, so that GitLab does not ask for them before",
    );
    status.into_http()
}

async fn get_server_info(_: GitLabRpcs, _: Empty) -> Result<GetServerInfoResponse, Status> {
    let info = ServerInfo { version: VERSION.to_owned(), git_ref: format!("v{VERSION}") };
    Ok(GetServerInfoResponse { current_server_info: Some(info) })
}

async fn get_connected_agents(
    rpcs: GitLabRpcs,
    GetConnectedAgentsRequest { request }: GetConnectedAgentsRequest,
) -> Result<GetConnectedAgentsResponse, Status> {
    let agents = match request {
        Some(AgentSelector::ProjectId(project)) => {
            let known = rpcs.context.lookup.list(Some(positive("project_id", project)?)).await;
            known.missing.map_or(Ok(()), |error| Err(unknown_agents(&error)))?;
            known.agents.into_iter().map(|agent| agent.id).collect()
        }
        Some(AgentSelector::AgentId(agent)) => vec![AgentId(positive("agent_id", agent)?)],
        None => return Err(Status::invalid_argument("the request has neither project_id nor agent_id")),
    };
    connected(&rpcs.context, agents).await
}

async fn get_connected_agents_by_ids(
    rpcs: GitLabRpcs,
    GetConnectedAgentsByAgentIdsRequest { agent_ids }: GetConnectedAgentsByAgentIdsRequest,
) -> Result<GetConnectedAgentsResponse, Status> {
    if agent_ids.len() > MAX_AGENTS {
        return Err(Status::invalid_argument(format!("the request has more than {MAX_AGENTS} agents")));
    }
    let agents = agent_ids.into_iter().map(|id| positive("agent_ids", id).map(AgentId));
    connected(&rpcs.context, agents.collect::<Result<_, _>>()?).await
}

async fn list_agent_config_files(
    rpcs: GitLabRpcs,
    ListAgentConfigFilesRequest { repository, gitaly_info, default_branch }: ListAgentConfigFilesRequest,
) -> Result<ListAgentConfigFilesResponse, Status> {
    let missing = |field| Status::invalid_argument(format!("the request has no {field}"));
    let location = repository.ok_or_else(|| missing("repository"))?;
    let GitalyInfo { address, token, features } = gitaly_info.ok_or_else(|| missing("gitaly_info"))?;
    let server = GitalyServer { address, token: token.into(), features };
    let branch = Reference::of_branch(Some(&default_branch));
    let repository = GitalyRepository::new(rpcs.gitaly.clone(), server, location, branch, None);
    let Some(commit) = repository.resolve().await.map_err(status)? else {
        return Ok(ListAgentConfigFilesResponse::default());
    };
    let agents = repository.list_agents(&commit.id).await.map_err(status)?;
    let file = |agent| AgentConfigFile {
        name: configuration_path(AGENTS_DIRECTORY, &agent),
        agent_name: agent.to_string(),
    };
    Ok(ListAgentConfigFilesResponse { config_files: agents.into_iter().map(file).collect() })
}

/// Returns one entry for each agentk process of the agents.
async fn connected(
    context: &ApiContext,
    mut agents: Vec<AgentId>,
) -> Result<GetConnectedAgentsResponse, Status> {
    agents.sort();
    agents.dedup();
    let projects = context.lookup.projects(&agents).await;
    let mut found = Vec::new();
    for agents in agents.chunks(AGENTS_PER_LOOKUP) {
        let mut locations = AgentLocations::lookup(&*context.store, agents).await;
        if let Some(error) = locations.missing {
            return Err(unknown_agents(&error));
        }
        for agent in agents {
            let project = projects.get(agent).copied().unwrap_or(0);
            // A process may have tunnels to several replicas.
            let mut processes = BTreeMap::new();
            for instance in locations.take_owners(*agent).into_iter().flat_map(|owner| owner.instances) {
                let entry = processes.entry(instance.id).or_insert_with(|| instance.clone());
                entry.since = entry.since.min(instance.since);
            }
            found.extend(processes.into_values().map(|process| info(*agent, project, process)));
        }
    }
    Ok(GetConnectedAgentsResponse { agents: found })
}

fn unknown_agents(error: &str) -> Status {
    Status::unavailable(format!("agents of other replicas are unknown: {error}"))
}

fn info(agent: AgentId, project: u64, instance: InstanceInfo) -> ConnectedAgentInfo {
    let InstanceInfo { id, reported, since, .. } = instance;
    let id = u128::from_str_radix(&id.to_string(), 16).unwrap_or_default();
    ConnectedAgentInfo {
        agent_meta: Some(AgentMeta {
            version: Hello::own_version(&reported.version),
            commit_id: String::new(),
            pod_namespace: reported.pod_namespace.unwrap_or_default(),
            pod_name: reported.pod_name.unwrap_or_default(),
            kubernetes_version: reported.kubernetes_version.map(KubernetesVersion::from_git_version),
        }),
        connected_at: Some(Timestamp::from(since)),
        // 63 bits of a random number.
        connection_id: (id >> 65) as i64,
        agent_id: agent.0.cast_signed(),
        project_id: project.cast_signed(),
    }
}

fn status(error: RepositoryError) -> Status {
    let message = error.to_string();
    match error {
        RepositoryError::Unavailable(_) => Status::unavailable(message),
        RepositoryError::ReferenceNotFound(_) => Status::not_found(message),
        RepositoryError::Refused(_)
        | RepositoryError::NotAFile { .. }
        | RepositoryError::TooLarge { .. }
        | RepositoryError::TooManyFiles(_) => Status::failed_precondition(message),
    }
}
