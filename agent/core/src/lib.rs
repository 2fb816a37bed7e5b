//! The core of agentk: opens tunnels to kas and serves the requests that arrive through them. It knows no feature.
//!
//! ```text
//!   kas ◄── session: one slot for each tunnel ──── connect
//!    │
//!    └─ request ──► dispatch ──► policy ──► services ──► upstream ──► Kubernetes API, Prometheus
//!                      └──► control: kas asks agentk to leave a tunnel
//! ```
//!
//! * [`connect`] opens one tunnel: DNS, proxy, TLS, WebSocket handshake. A session keeps as many as configured.
//! * [`ClientProtocol`] is the protocol of a kas without tunnels, which takes the place of these.
//! * [`services`] are the request types that are no feature, and what the handlers of features share.
//! * [`feature`] has the parts of a feature. The program has the list of features.
//! * [`policy`] decides which requests may pass, by the file and the namespaces of the cluster's owner.
//! * [`upstream`] is the HTTP/1.1 client that the services share; [`cluster`] finds the API server and the credentials.
//!
//! The library has no global state but the process groups of credential plugins, so that several agents can run in one
//! process. agentk listens for probes and scrapes, and with flags for kas. Its rights in the cluster are those of its credentials,
//! restricted by the policy; kas decides which callers may use it.
#![warn(missing_docs)]

pub mod admin;
pub mod check_report;
pub mod check_rights;
mod client_protocol;
pub mod cluster;
pub mod connect;
mod disabled;
mod dispatch;
mod events;
pub mod feature;
mod file_followers;
mod health;
pub mod leader;
pub mod listen;
pub mod metrics;
pub mod namespace_labels;
pub mod policy;
pub mod scope_health;
mod service_error;
pub mod services;
mod session;
mod task_panic;
mod tunnel_context;
pub mod upstream;

pub use self::{
    client_protocol::{ClientProtocol, DrainSignals, NewProtocol, ProtocolFuture, ServeProtocol},
    connect::{AgentToken, Dial, DialError, KasAddress, ProtocolChoice, TcpDialer},
    disabled::DisabledRules,
    events::EventLog,
    file_followers::FileFollowers,
    health::{AgentHealth, ClusterStatus, Observability},
    metrics::AgentMetrics,
    services::{ServiceError, Services},
    session::{
        Agent, ListenConfig, ListenConfigError, ListenKey, ListenPublicKey, ListenTls, ListeningAgent,
        SessionConfig,
    },
    task_panic::TaskPanicError,
    tunnel_context::{FORCED_CLOSE_TIMEOUT, Pod, ServeConfig, TunnelContext},
};
