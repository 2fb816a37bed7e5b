//! agentk: opens tunnels to kas and serves the requests that arrive through them.
//!
//! ```text
//!   kas ◄── session: one slot for each tunnel ──── connect
//!    │
//!    └─ request ──► dispatch ──► policy ──► services ──► upstream ──► Kubernetes API, Prometheus
//!                      └──► control: kas asks agentk to leave a tunnel
//! ```
//!
//! * [`connect`] opens one tunnel: DNS, proxy, TLS, WebSocket handshake. A session keeps as many as configured.
//! * `gitlab` is the connection to GitLab's kas, which takes the place of tunnels.
//! * [`services`] are the request types that are no feature, and what the handlers of features share.
//! * `feature` is what a feature consists of, and `features` has a folder for each: its flags, its request types, and its work.
//! * [`policy`] decides which requests may pass, by the file and the namespaces of the cluster's owner. [`admission`] is a webhook that
//!   decides by the same file about what the API server receives.
//! * [`upstream`] is the HTTP/1.1 client that the services share; [`cluster`] finds the API server and the credentials.
//! * [`App`] builds and runs all of it from the command line ([`cli`]).
//!
//! The library has no global state but the process groups of credential plugins, so that several agents can run in one
//! process. agentk listens for probes and scrapes, and with flags for kas and for audit events. Its rights in the cluster are those of its credentials, restricted by
//! the policy; kas decides which callers may use it.

mod admin;
pub mod admission;
mod app;
mod check;
mod check_report;
pub mod cli;
mod client_protocol;
pub mod cluster;
pub mod connect;
mod disabled;
mod dispatch;
mod events;
mod feature;
mod features;
mod file_followers;
mod gitlab;
mod health;
mod leader;
mod listen;
mod log_filter;
mod metrics;
pub mod policy;
mod scope_health;
mod service_error;
pub mod services;
mod session;
mod tunnel_context;
pub mod upstream;

pub use self::{
    admission::AdmissionApp,
    app::{App, TaskPanicError},
    check::CheckCommand,
    client_protocol::{ClientProtocol, DrainSignals, NewProtocol, ProtocolFuture, ServeProtocol},
    connect::{AgentToken, Dial, DialError, KasAddress, ProtocolChoice, TcpDialer},
    disabled::DisabledRules,
    events::EventLog,
    features::feature_writes,
    gitlab::gitlab_protocol,
    health::{AgentHealth, ClusterStatus, Observability},
    log_filter::log_filter,
    metrics::AgentMetrics,
    services::{ServiceError, Services},
    session::{Agent, ListenConfig, ListenConfigError, ListenKey, ListenTls, ListeningAgent, SessionConfig},
    tunnel_context::{Pod, ServeConfig, TunnelContext},
};
