//! `agent_configuration`: GitLab stores the configuration of an agent, and evaluates its `ci_access` and `user_access`.

use std::{collections::HashMap, sync::Arc, time::Duration};

use access::ConfigurationObserver;
use parking_lot::Mutex;
use proto::AgentId;
use serde::Serialize;
use serde_json::Value;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use super::{Credential, Endpoint, GitLabClient, GitLabError};
use crate::GitLabAgents;

/// The pause after an attempt that failed. It doubles up to five minutes.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
/// The longest pause after an attempt that failed.
const MAX_PAUSE: Duration = Duration::from_secs(300);

/// The body of the request.
#[derive(Serialize)]
struct Body<'a> {
    agent_id: AgentId,
    agent_config: &'a Value,
}

/// Returns an observer that sends the configurations of GitLab's agents to GitLab, again until GitLab accepts them.
pub fn observer(client: GitLabClient, agents: GitLabAgents) -> ConfigurationObserver {
    let posts: Mutex<HashMap<AgentId, AbortOnDropHandle<()>>> = Mutex::default();
    Arc::new(move |agent, configuration| {
        let post = post(client.clone(), agents.clone(), agent.id, Arc::clone(configuration));
        let mut posts = posts.lock();
        posts.retain(|_, post| !post.is_finished());
        // A newer configuration replaces the one that waits for another attempt.
        posts.insert(agent.id, AbortOnDropHandle::new(tokio::spawn(post)));
    })
}

async fn post(client: GitLabClient, agents: GitLabAgents, agent: AgentId, configuration: Arc<Value>) {
    // The identity file has agents that GitLab does not know.
    if agents.info(agent).await.is_none() {
        return;
    }
    let mut pause = FIRST_PAUSE;
    while let Err(error) = client.post_agent_configuration(agent, &configuration).await {
        if matches!(error, GitLabError::Status { .. }) {
            return tracing::warn!(agent.id = %agent, %error, "GitLab refuses the configuration of an agent");
        }
        tracing::debug!(agent.id = %agent, %error, "configuration of an agent not sent to GitLab");
        sleep(pause).await;
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

impl GitLabClient {
    /// Stores the configuration of an agent in GitLab.
    ///
    /// # Errors
    ///
    /// GitLab does not know the agent, refuses the configuration, or does not respond.
    pub async fn post_agent_configuration(
        &self,
        agent: AgentId,
        configuration: &Value,
    ) -> Result<(), GitLabError> {
        let body = Body { agent_id: agent, agent_config: configuration };
        self.post(Endpoint::AgentConfiguration, &body, Credential::None).await
    }
}
