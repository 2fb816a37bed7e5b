//! `AgentConfiguration/GetConfiguration`: the configuration of the agent, and each newer version.

use futures_util::stream;
use gitlab_tunnel::messages::{
    AgentConfiguration, ConfigurationRequest, ConfigurationResponse, FluxConfig, LoggingConfig,
    ObservabilityConfig,
};
use proto::agent_configuration::ConfigurationUpdate;
use serde_json::Value;
use tonic::Status;

use super::{
    GitlabConnection,
    call_body::CALL_BYTES,
    hello::hello,
    responses::{Responses, until_leaving},
};

/// The commit of an agent without a configuration. GitLab's agentk refuses an empty one.
const NO_COMMIT: &str = "0000000000000000000000000000000000000000";

/// The longest id of a commit: a SHA-256.
const MAX_COMMIT: usize = 64;

/// Returns the versions of the configuration that agentk does not have yet. An invalid version ends the call with an error, as GitLab's
/// kas does: agentk logs it, and asks again.
pub(super) fn follow(
    connection: &GitlabConnection,
    request: ConfigurationRequest,
) -> Result<Responses<ConfigurationResponse>, Status> {
    let ConfigurationRequest { mut commit_id, agent_meta, .. } = request;
    connection.describe(agent_meta);
    if commit_id.len() > MAX_COMMIT {
        commit_id = String::new();
    }
    let mut memory = connection.memory();
    memory.set(CALL_BYTES).map_err(|error| Status::resource_exhausted(error.to_string()))?;
    let admission = connection.agent.get().expect("each call is admitted");
    let hello = hello(admission, &connection.meta.borrow());
    // The poller runs as long as its pusher exists.
    let pusher = connection.server.configuration.subscribe(&admission.identity, &hello);
    let identity = admission.identity.clone();
    let url = connection.gitlab.external_url.clone();
    let state = (pusher.state(), pusher, commit_id, memory);
    let versions = stream::try_unfold(state, move |(mut state, pusher, last, memory)| {
        let (url, identity) = (url.clone(), identity.clone());
        async move {
            loop {
                let (update, project) = {
                    let state = state.borrow_and_update();
                    (state.update(&identity), state.project().unwrap_or_default().to_owned())
                };
                if let Some(update) = update {
                    if let Some(error) = update.error {
                        return Err(Status::failed_precondition(error));
                    }
                    let commit = update.version.clone().unwrap_or_else(|| NO_COMMIT.to_owned());
                    if commit != last {
                        let agent = i64::try_from(identity.id.0).unwrap_or_default();
                        let configuration = Some(configuration(update, agent, project, url));
                        let response = ConfigurationResponse { configuration, commit_id: commit.clone() };
                        return Ok(Some((response, (state, pusher, commit, memory))));
                    }
                }
                if state.changed().await.is_err() {
                    return Ok(None);
                }
            }
        }
    });
    Ok(until_leaving(connection, versions))
}

fn configuration(
    update: ConfigurationUpdate,
    agent: i64,
    project: String,
    url: String,
) -> AgentConfiguration {
    let file = update.configuration.unwrap_or_default();
    let level = |key: &str| match file["observability"]["logging"][key].as_str() {
        Some("info") => Some(0),
        Some("debug") => Some(1),
        Some("warn") => Some(2),
        Some("error") => Some(3),
        _ => None,
    };
    let logging = file["observability"]["logging"].is_object().then(|| LoggingConfig {
        level: level("level").unwrap_or_default(),
        grpc_level: level("grpc_level"),
    });
    let receiver = file["flux"]["webhook_receiver_url"].as_str().unwrap_or_default().to_owned();
    AgentConfiguration {
        observability: Some(ObservabilityConfig { logging }),
        agent_id: agent,
        project_id: 0,
        ci_access: None,
        project_path: project,
        flux: file
            .get("flux")
            .filter(|flux| !matches!(flux, Value::Null))
            .map(|_| FluxConfig { webhook_receiver_url: receiver }),
        gitlab_external_url: url,
    }
}
