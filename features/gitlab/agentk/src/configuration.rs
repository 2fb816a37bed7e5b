//! The RPC `GetConfiguration`: kas sends the configuration of the agent, and a newer one after each commit.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use gitlab_tunnel::messages::{AgentConfiguration, ConfigurationResponse};
use http::Request;
use proto::{
    ServiceName,
    agent_configuration::{CONFIGURATION_PATH, ConfigurationUpdate},
    header, short_line,
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tonic::{Code, Status};
use tunnel::{Body, Tunnel};

use super::{backoff::RetryBackoff, client::GrpcClient, context::GitLabContext, registration::BACKOFF};

/// The lifetime of a stream whose regular end is followed by the next one at once.
const STABLE_LIFETIME: Duration = Duration::from_secs(10);

/// Receives configurations and applies them. Never completes.
pub(super) async fn run(client: &GrpcClient, tunnel: &Tunnel, context: &GitLabContext) -> Infallible {
    let mut backoff = RetryBackoff::new(BACKOFF);
    loop {
        let opened = Instant::now();
        let ended = receive(client, tunnel, context, &mut backoff).await;
        // GitLab's kas ends a stream that has reached its age.
        if ended.is_ok() && opened.elapsed() >= STABLE_LIFETIME {
            continue;
        }
        if let Err(status) = ended {
            report(tunnel, &status).await;
        }
        sleep(backoff.failed(Instant::now(), rand::random())).await;
    }
}

/// Applies the configurations of one stream, until it ends.
async fn receive(
    client: &GrpcClient,
    tunnel: &Tunnel,
    context: &GitLabContext,
    backoff: &mut RetryBackoff,
) -> Result<(), Status> {
    let mut updates = client.get_configuration(context.configuration_request()).await?;
    while let Some(update) = updates.message().await? {
        backoff.succeeded();
        let ConfigurationResponse { configuration, commit_id } = update;
        let Some(configuration) = configuration else { continue };
        tracing::debug!(
            commit_id,
            agent_id = configuration.agent_id,
            project_id = configuration.project_id,
            project_path = configuration.project_path,
            flux = configuration.flux.is_some(),
            "configuration of GitLab's kas received; only observability.logging.level has an effect"
        );
        let version = Some(short_line(commit_id.as_bytes()));
        apply(tunnel, version, Some(applied_keys(&configuration)), None).await;
        context.set_commit(commit_id);
    }
    Ok(())
}

/// Returns the keys of the configuration that agentk applies.
fn applied_keys(configuration: &AgentConfiguration) -> Value {
    let logging = configuration.observability.as_ref().and_then(|section| section.logging);
    let level = logging.and_then(|logging| match logging.level {
        0 => Some("info"),
        1 => Some("debug"),
        2 => Some("warn"),
        3 => Some("error"),
        _ => None,
    });
    json!({"observability": {"logging": {"level": level}}})
}

/// Reports that there is no configuration. The one before stays in force.
async fn report(tunnel: &Tunnel, status: &Status) {
    let error = short_line(status.message().as_bytes());
    tracing::debug!(code = ?status.code(), error, "no configuration from GitLab's kas");
    if status.code() == Code::FailedPrecondition {
        apply(tunnel, None, None, Some(error)).await;
    }
}

/// Sends an update to the service of configurations, as kas does in the other protocol.
async fn apply(
    tunnel: &Tunnel,
    version: Option<String>,
    configuration: Option<Value>,
    error: Option<String>,
) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let observed = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    let places = BTreeMap::new();
    // The stream of one kas: each message is newer than the one before.
    let age = Some(0);
    let update =
        ConfigurationUpdate { observed, age, version, configuration, error, places, provision: None };
    let body = serde_json::to_string(&update).expect("it has keys that are text");
    let request = Request::put(CONFIGURATION_PATH)
        .header(header::SERVICE, ServiceName::CONFIGURATION)
        .body(Body::from(body))
        .expect("constants");
    // The service logs an invalid configuration. The call fails only at the end of the connection.
    let _ = tunnel.call(request).await;
}

#[cfg(test)]
mod tests {
    use gitlab_tunnel::messages::{LoggingConfig, ObservabilityConfig};

    use super::*;

    #[test]
    fn level_of_the_log_is_applied() {
        let applied = |level| {
            let logging = LoggingConfig { level, grpc_level: Some(1) };
            let observability = Some(ObservabilityConfig { logging: Some(logging) });
            applied_keys(&AgentConfiguration {
                observability,
                project_id: 7,
                ..AgentConfiguration::default()
            })
        };
        for (number, name) in [(0, "info"), (1, "debug"), (2, "warn"), (3, "error")] {
            assert_eq!(applied(number), json!({"observability": {"logging": {"level": name}}}));
        }
        let none = json!({"observability": {"logging": {"level": null}}});
        assert_eq!(applied(4), none, "a level of a later kas");
        assert_eq!(applied_keys(&AgentConfiguration::default()), none);
    }
}
