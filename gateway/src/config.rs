//! The configuration file of kas: plain data with defaults.
//!
//! The keys are those of GitLab's kas where the concept exists. Paths are relative to the configuration file. Every key is
//! explained in `deploy/kas.example.yaml`, which a test reads.

mod agent;
mod api;
#[cfg(test)]
mod bounds;
mod file_sections;
mod gitlab_keys;
mod listeners;
mod observability;
mod receptive;
mod redis;
mod schema;
mod tunnels;
mod upgrade;

use std::{path::Path, sync::Arc, time::Duration};

use files::read_config;
use git::{RepositoryConfig, RepositorySettings};
use kas_gitlab::{GitLabConfig, gitaly::GitalyConfig};
use oidc::OidcConfig;
use schemars::JsonSchema;
use serde::Deserialize;
use settings::{ConfigError, KeyLocations, Timeout, parse};

use self::gitlab_keys::ExternalConfig;
use kas_core::cors::Origin;
use kas_core::gitlab_key::GitLabKey;

pub use self::{
    agent::{AgentListen, AgentTunnelConfig},
    api::{ApiConfig, ApiListen},
    file_sections::{DisabledConfig, EnvironmentsConfig, IdentityConfig},
    observability::{LogLevel, LoggingConfig, LoggingFormat, ObservabilityConfig, ObservabilityListen},
    receptive::{ReceptiveAgentConfig, ReceptiveConfig},
    redis::{RedisCluster, RedisConfig, RedisNetwork, RedisSentinel, RedisServerConfig, RedisTls},
    schema::json_schema,
    upgrade::{KeyChange, key_changes},
};
pub use kas_core::{
    config::{
        AgentProtocol, AuditConfig, AuditSink, CallerLimits, ConnectionAge, KubernetesApiConfig,
        PrivateApiConfig, PrivateListen, PublicListen, TracingConfig,
    },
    configuration::AgentConfigurationConfig,
};
pub use kas_environments::ManagedResourcesConfig;
pub use kas_events::{EventsConfig, WebhookConfig, WebhookFormat, WebhookSeverity};
pub use kas_gitlab::GitlabAgentkConfig;
pub use kas_gitops::GitopsConfig;
pub use kas_listen::{addresses::ProxyProtocol, listen_address::ListenNetwork};
pub use kas_web::{WebConfig, WebListen};

/// The configuration of kas, kas.yaml.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The listeners for agents and callers, and the tunnels.
    #[serde(default)]
    pub agent: AgentConfig,
    /// Probes, metrics, logs, traces.
    #[serde(default)]
    pub observability: ObservabilityConfig,
    /// The route store of several replicas. Without this section there is one replica.
    #[serde(default)]
    pub redis: Option<RedisConfig>,
    /// The listener for other replicas. Without this section there is one replica.
    pub private_api: Option<PrivateApiConfig>,
    /// The internal API. Without this section there is none.
    pub api: Option<ApiConfig>,
    /// The web page. Without this section there is none.
    pub web: Option<WebConfig>,
    /// The limits of calls to the Git servers of GitLab.
    #[serde(default)]
    pub gitaly: GitalyConfig,
    /// The GitLab that knows the agents. Without this section, `identity` is required.
    pub gitlab: Option<GitLabConfig>,
    /// The agents and callers. Without this section, `gitlab` is required.
    pub identity: Option<IdentityConfig>,
    /// The events.
    #[serde(default)]
    pub events: EventsConfig,
    /// The environments. Without this section there are none.
    pub environments: Option<EnvironmentsConfig>,
    /// The kill switch.
    #[serde(default)]
    pub disabled: DisabledConfig,
    /// The issuers of tokens that callers may use.
    #[serde(default)]
    pub oidc: OidcConfig,
    /// Ignored: workspaces of GitLab.
    #[serde(default)]
    workspaces: GitLabKey,
    /// Ignored: AutoFlow of GitLab.
    #[serde(default)]
    autoflow: GitLabKey,
    /// Ignored: the events platform of GitLab.
    #[serde(default)]
    events_platform: GitLabKey,
    /// Empty. GitLab's kas has here a command that prints keys, which is refused.
    #[serde(default)]
    config: Option<ExternalConfig>,
    /// The positions of the keys, for errors.
    #[serde(skip)]
    keys: KeyLocations,
}

/// Section `agent`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentConfig {
    /// The listener for tunnels.
    #[serde(default)]
    pub listen: AgentListen,
    /// The listener for callers.
    #[serde(default)]
    pub kubernetes_api: KubernetesApiConfig,
    /// The tunnels.
    #[serde(default)]
    pub tunnel: AgentTunnelConfig,
    /// The configuration files of agents.
    #[serde(default)]
    pub configuration: AgentConfigurationConfig,
    /// The time for which an answer of GitLab about an agent token is used.
    #[serde(default = "info_cache_ttl", with = "Timeout")]
    pub info_cache_ttl: Duration,
    /// The time for which a token is unknown after GitLab did not know it.
    #[serde(default = "info_cache_error_ttl", with = "Timeout")]
    pub info_cache_error_ttl: Duration,
    /// The manifests that agents apply.
    #[serde(default)]
    pub gitops: GitopsConfig,
    /// The objects of environments.
    #[serde(default)]
    pub managed_resources: ManagedResourcesConfig,
    /// GitLab's agentk.
    #[serde(default)]
    pub gitlab_agentk: GitlabAgentkConfig,
    /// The agents that kas dials: those of the identity file with a `url`.
    #[serde(default)]
    pub receptive: ReceptiveConfig,
    /// The agents that GitLab lists for kas to dial.
    #[serde(default)]
    pub receptive_agent: ReceptiveAgentConfig,
    /// Ignored: lifetime of records of GitLab's kas in Redis.
    #[serde(default)]
    redis_conn_info_ttl: GitLabKey,
    /// Ignored: period after which GitLab's kas renews these records.
    #[serde(default)]
    redis_conn_info_refresh: GitLabKey,
    /// Ignored: period after which GitLab's kas removes such records of others.
    #[serde(default)]
    redis_conn_info_gc: GitLabKey,
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self {
            listen: AgentListen::default(),
            kubernetes_api: KubernetesApiConfig::default(),
            tunnel: AgentTunnelConfig::default(),
            configuration: AgentConfigurationConfig::default(),
            info_cache_ttl: info_cache_ttl(),
            info_cache_error_ttl: info_cache_error_ttl(),
            gitops: GitopsConfig::default(),
            managed_resources: ManagedResourcesConfig::default(),
            gitlab_agentk: GitlabAgentkConfig::default(),
            receptive: ReceptiveConfig::default(),
            receptive_agent: ReceptiveAgentConfig::default(),
            redis_conn_info_ttl: GitLabKey::default(),
            redis_conn_info_refresh: GitLabKey::default(),
            redis_conn_info_gc: GitLabKey::default(),
        }
    }
}

impl Config {
    /// Reads a configuration file and makes its paths absolute.
    pub fn read(file: &Path) -> Result<Self, ConfigError> {
        let text = read_config(file)?;
        let mut config: Self = parse(file, &text)?;
        config.keys = KeyLocations::parse(&text);
        ConfigError::check_all([
            config.check_sources(file),
            config.check_gitlab_keys(file),
            config.apply_networks(file),
            config.check_proxies(file),
            config.check_web(file),
            config.check_poll_interval(file),
        ])?;
        let directory = file.parent().unwrap_or_else(|| Path::new(""));
        let (agent, tracing) = (&mut config.agent, &mut config.observability.tracing);
        for path in [
            &mut agent.listen.certificate_file,
            &mut agent.listen.key_file,
            &mut agent.receptive.certificate_file,
            &mut agent.receptive.key_file,
            &mut agent.kubernetes_api.listen.certificate_file,
            &mut agent.kubernetes_api.listen.key_file,
            &mut tracing.otlp_ca_certificate_file,
            &mut tracing.otlp_token_secret_file,
            &mut config.disabled.file,
            &mut config.disabled.fleet_file,
            &mut config.observability.audit.file,
        ]
        .into_iter()
        .flatten()
        .chain(config.identity.as_mut().map(|identity| &mut identity.file))
        .chain(config.gitlab.iter_mut().flat_map(GitLabConfig::paths))
        .chain(config.environments.as_mut().map(|section| &mut section.file))
        .chain(config.redis.iter_mut().flat_map(RedisConfig::paths))
        {
            path.value = directory.join(&path.value);
        }
        if let Some(PrivateApiConfig { listen, .. }) = &mut config.private_api {
            for path in [
                &mut listen.authentication_secret_file,
                &mut listen.certificate_file,
                &mut listen.key_file,
                &mut listen.ca_certificate_file,
            ]
            .into_iter()
            .flatten()
            {
                path.value = directory.join(&path.value);
            }
        }

        let AgentConfig { configuration, gitops, .. } = &mut config.agent;
        let manifests = gitops.repositories.iter_mut().map(|section| &mut section.repository);
        let files = configuration.repository.iter_mut().chain(manifests).flat_map(RepositoryConfig::paths);
        let of_issuers = config.oidc.issuers.iter_mut().flat_map(|issuer| {
            let secret = issuer.web.as_mut().and_then(|web| web.client_secret_file.as_mut());
            issuer.ca_certificate_file.iter_mut().chain(secret)
        });
        let web = config.web.iter_mut().flat_map(WebConfig::paths);
        let api = config.api.iter_mut().flat_map(ApiConfig::paths);
        let events = config.events.paths();
        for path in api.chain(web).chain(files).chain(of_issuers).chain(events) {
            path.value = directory.join(&path.value);
        }

        if let Some(section) = &config.agent.configuration.repository {
            let settings = RepositorySettings::new(file, "agent.configuration.repository", section)?;
            config.agent.configuration.settings = Some(Arc::new(settings));
        }
        config.agent.gitops.validate(file)?;
        Ok(config)
    }

    /// Returns the origins of web pages that may use the listener for callers: GitLab, and the configured ones.
    pub fn allowed_origins(&self) -> Vec<Origin> {
        let gitlab = self.gitlab.as_ref().and_then(|gitlab| Origin::of_url(gitlab.external_url.as_deref()?));
        gitlab.into_iter().chain(self.agent.kubernetes_api.allowed_origins.iter().cloned()).collect()
    }

    /// Returns an error if no section has agents.
    fn check_sources(&self, file: &Path) -> Result<(), ConfigError> {
        match (&self.identity, &self.gitlab) {
            (None, None) => {
                let what = "the key identity is missing: name the file with the agents and callers, or GitLab in the key gitlab";
                Err(self.error(file, "identity", what))
            }
            _ => Ok(()),
        }
    }

    /// Returns the positions of the keys.
    pub fn keys(&self) -> &KeyLocations {
        &self.keys
    }

    /// Returns an error about a key, with its position in `file`. The key may be missing there.
    pub fn error(&self, file: &Path, key: impl Into<String>, what: impl Into<String>) -> ConfigError {
        ConfigError::about(file, &self.keys, key, what)
    }
}

fn info_cache_ttl() -> Duration {
    Duration::from_secs(300)
}

fn info_cache_error_ttl() -> Duration {
    Duration::from_secs(60)
}

#[cfg(test)]
mod tests;
