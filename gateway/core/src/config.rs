//! The sections of kas.yaml that core reads. The program has the whole file.

mod agent;
mod api;
mod file_sections;
mod kubernetes_api;
mod observability;
mod private_api;
mod receptive;
mod redis;

pub use self::{
    agent::{AgentListen, AgentProtocol, AgentTunnelConfig, ConnectionAge},
    api::{ApiConfig, ApiListen},
    file_sections::{DisabledConfig, EnvironmentsConfig, IdentityConfig},
    kubernetes_api::{CallerLimits, KubernetesApiConfig, PublicListen},
    observability::{
        AuditConfig, AuditSink, LogLevel, LoggingConfig, LoggingFormat, ObservabilityConfig,
        ObservabilityListen, TracingConfig,
    },
    private_api::{PrivateApiConfig, PrivateListen},
    receptive::ReceptiveConfig,
    redis::{RedisCluster, RedisConfig, RedisNetwork, RedisSentinel, RedisServerConfig, RedisTls},
};
