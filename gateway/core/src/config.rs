//! The sections of kas.yaml that core reads. The program has the whole file, and the other sections.

mod agent;
mod kubernetes_api;
mod observability;
mod private_api;

pub use self::{
    agent::{AgentProtocol, ConnectionAge},
    kubernetes_api::{CallerLimits, KubernetesApiConfig, PublicListen},
    observability::{AuditConfig, AuditSink, TracingConfig},
    private_api::{PrivateApiConfig, PrivateListen},
};
