//! The methods of the RPCs that GitLab calls.

use std::{collections::BTreeMap, sync::Arc, time::SystemTime};

use git::{AGENTS_DIRECTORY, Reference, Repository as _, RepositoryError, configuration_path};
use gitlab::gitaly::{GitalyRepository, GitalyServer};
use gitlab_tunnel::messages::{AgentMeta, KubernetesVersion};
use proto::{
    AgentId, Hello,
    notify::{ProjectEvent, ProjectEventFields},
};
use store::GitPush;
use tonic::Status;

use super::messages::{
    AgentConfigFile, AgentSelector, AgentViews, ConnectedAgentInfo, Empty, GetAgentViewsRequest,
    GetAgentViewsResponse, GetConnectedAgentsByAgentIdsRequest, GetConnectedAgentsRequest,
    GetConnectedAgentsResponse, GetServerInfoResponse, GitPushEventRequest, GitalyInfo,
    ListAgentConfigFilesRequest, ListAgentConfigFilesResponse, ServerInfo, Timestamp, View, ViewRow,
};
use crate::{
    agent_locations::{AgentLocations, InstanceInfo},
    api::{
        ApiServer,
        project_events::{random_id, record},
    },
    features::notify::EventOrigin,
};

/// The most agents of one lookup in the route store.
const AGENTS_PER_LOOKUP: usize = 500;

/// The most agents of one request.
const MAX_AGENTS: usize = 10_000;

/// The most agents of one request for views, of which each may have 160 KiB.
const MAX_AGENTS_WITH_VIEWS: usize = 20;

const VERSION: &str = env!("CARGO_PKG_VERSION");

pub(super) async fn get_server_info(_: Arc<ApiServer>, _: Empty) -> Result<GetServerInfoResponse, Status> {
    let info = ServerInfo { version: VERSION.to_owned(), git_ref: format!("v{VERSION}") };
    Ok(GetServerInfoResponse { current_server_info: Some(info) })
}

pub(super) async fn get_connected_agents(
    api: Arc<ApiServer>,
    GetConnectedAgentsRequest { request }: GetConnectedAgentsRequest,
) -> Result<GetConnectedAgentsResponse, Status> {
    let agents = match request {
        Some(AgentSelector::ProjectId(project)) => {
            let known = api.lookup.list(Some(positive("project_id", project)?)).await;
            known.agents.into_iter().map(|agent| agent.id).collect()
        }
        Some(AgentSelector::AgentId(agent)) => vec![AgentId(positive("agent_id", agent)?)],
        None => return Err(Status::invalid_argument("the request has neither project_id nor agent_id")),
    };
    connected(&api, agents).await
}

pub(super) async fn get_connected_agents_by_ids(
    api: Arc<ApiServer>,
    GetConnectedAgentsByAgentIdsRequest { agent_ids }: GetConnectedAgentsByAgentIdsRequest,
) -> Result<GetConnectedAgentsResponse, Status> {
    if agent_ids.len() > MAX_AGENTS {
        return Err(Status::invalid_argument(format!("the request has more than {MAX_AGENTS} agents")));
    }
    let agents = agent_ids.into_iter().map(|id| positive("agent_ids", id).map(AgentId));
    connected(&api, agents.collect::<Result<_, _>>()?).await
}

pub(super) async fn list_agent_config_files(
    api: Arc<ApiServer>,
    ListAgentConfigFilesRequest { repository, gitaly_info, default_branch }: ListAgentConfigFilesRequest,
) -> Result<ListAgentConfigFilesResponse, Status> {
    let missing = |field| Status::invalid_argument(format!("the request has no {field}"));
    let location = repository.ok_or_else(|| missing("repository"))?;
    let GitalyInfo { address, token, features } = gitaly_info.ok_or_else(|| missing("gitaly_info"))?;
    let server = GitalyServer { address, token: token.into(), features };
    let branch = Reference::of_branch(Some(&default_branch));
    let repository = GitalyRepository::new(api.gitaly.clone(), server, location, branch, None);
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

pub(super) async fn git_push_event(
    api: Arc<ApiServer>,
    GitPushEventRequest { event }: GitPushEventRequest,
) -> Result<Empty, Status> {
    let project = event.and_then(|event| event.project);
    let project = project.ok_or_else(|| Status::invalid_argument("the event has no project"))?;
    let push = GitPush::new(positive("id", project.id)?, &project.full_path);
    api.store.send_push(push.map_err(|error| Status::invalid_argument(error.to_string()))?);
    // GitLab names neither the branch nor the commit.
    let fields = ProjectEventFields {
        id: random_id(),
        sequence: 0,
        project: project.full_path,
        reference: None,
        before: None,
        after: None,
        urls: Vec::new(),
        time: SystemTime::now(),
    };
    let event =
        ProjectEvent::try_from(fields).map_err(|error| Status::invalid_argument(error.to_string()))?;
    match record(&api, &event, EventOrigin::GitLab).await {
        // GitLab reports the pushes to all its projects.
        Ok(_) => Ok(Empty {}),
        Err(error) => Err(Status::unavailable(error.to_string())),
    }
}

pub(super) async fn get_agent_views(
    api: Arc<ApiServer>,
    GetAgentViewsRequest { agent_ids }: GetAgentViewsRequest,
) -> Result<GetAgentViewsResponse, Status> {
    if agent_ids.len() > MAX_AGENTS_WITH_VIEWS {
        let what = format!("the request has more than {MAX_AGENTS_WITH_VIEWS} agents");
        return Err(Status::invalid_argument(what));
    }
    let mut agents = Vec::new();
    for id in agent_ids {
        let agent = AgentId(positive("agent_ids", id)?);
        let last = api.views.last(agent).await;
        let last = last.map_err(|error| Status::unavailable(format!("the views are not known: {error}")))?;
        agents.extend(last.map(|last| AgentViews {
            agent_id: id,
            time: Some(timestamp(last.time)),
            views: last.views.into_iter().map(view).collect(),
        }));
    }
    Ok(GetAgentViewsResponse { agents })
}

fn view(view: proto::graph::View) -> View {
    let proto::graph::View { name, count, columns, rows, omitted, partial } = view;
    let rows = rows.into_iter().map(|cells| ViewRow { cells }).collect();
    View { name, count, columns, rows, omitted, partial }
}

fn timestamp(time: SystemTime) -> Timestamp {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp { seconds: since.as_secs().cast_signed() }
}

/// Returns one entry for each agentk process of the agents.
async fn connected(api: &ApiServer, mut agents: Vec<AgentId>) -> Result<GetConnectedAgentsResponse, Status> {
    agents.sort();
    agents.dedup();
    let projects = api.lookup.projects(&agents).await;
    let mut found = Vec::new();
    for agents in agents.chunks(AGENTS_PER_LOOKUP) {
        let mut locations = AgentLocations::lookup(&*api.store, agents).await;
        if let Some(error) = locations.missing {
            return Err(Status::unavailable(format!("agents of other replicas are unknown: {error}")));
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
        connected_at: Some(timestamp(since)),
        // 63 bits of a random number.
        connection_id: (id >> 65) as i64,
        agent_id: agent.0.cast_signed(),
        project_id: project.cast_signed(),
    }
}

fn positive(field: &str, number: i64) -> Result<u64, Status> {
    let positive = u64::try_from(number).ok().filter(|number| *number > 0);
    positive.ok_or_else(|| Status::invalid_argument(format!("{field}: {number} is not greater than 0")))
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
