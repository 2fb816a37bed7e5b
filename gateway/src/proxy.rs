//! The listener for callers, and the way of a request through kas.
//!
//! ```text
//!  connection: hyper reads a head
//!      │ ProxyRequest { head, context }
//!      ▼
//!  cors ► trace ► render_failures ► check_head ► authorize ► limit_concurrency ► guard_bodies ► forward ══► agent
//!                                                                                      │
//!  caller ◄── Response<TrackedBody> ◄──────────────────────────────────────────────────┘
//! ```
//!
//! `stack` builds this; `layers` has one function for each step. Everything that is known of a request is in its
//! `RequestContext`, from its head to the last byte of its response.

mod budget;
mod connection;
mod context;
mod exchange;
mod layers;
mod protocol;
mod request_body;
mod response_body;
mod upgrade;
mod validate;

use std::{convert::Infallible, sync::Arc};

use http::Response;
use ipnet::IpNet;
use proto::Reason;
use telemetry::log_limit::LogLimit;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::{Service, ServiceBuilder};

pub use self::budget::Budget;
use self::{context::ProxyRequest, response_body::TrackedBody};
use crate::{
    config::Limits, cors::Cors, forward::Forwarder, headers::ExtraHeader, identity::Identities,
    traces::Traces,
};

/// Serves callers.
#[derive(Debug)]
pub struct Callers {
    /// Identities of callers, and their rights.
    pub identities: Identities,
    /// Finds the tunnel of an agent.
    pub forwarder: Forwarder,
    /// Cancelled once this replica takes no new requests on open connections.
    pub leaving: CancellationToken,
    /// Cancelled once connections and upgrades have had their time.
    pub cut: CancellationToken,
    /// Connections and upgrades.
    pub tasks: TaskTracker,
    /// Limits the log lines of failed requests.
    pub failures: LogLimit<Reason>,
    /// How requests are traced, if they are.
    pub traces: Option<Traces>,
    /// Limits of callers.
    pub limits: Limits,
    /// The memory of all responses in flight.
    pub budget: Arc<Budget>,
    /// The web origins that may send requests.
    pub cors: Cors,
    /// Proxies whose `X-Forwarded-For` is believed.
    pub trusted_proxies: Vec<IpNet>,
    /// Response headers that the operator allows besides the harmless ones.
    pub extra_headers: Vec<ExtraHeader>,
}

/// Builds the service that every request passes, the outermost layer first.
fn stack()
-> impl Service<ProxyRequest, Response = Response<TrackedBody>, Error = Infallible, Future: Send> + Clone + Send
{
    ServiceBuilder::new()
        .layer_fn(layers::cors)
        .layer_fn(layers::trace)
        .layer_fn(layers::render_failures)
        .layer_fn(layers::check_head)
        .layer_fn(layers::authorize)
        .layer_fn(layers::limit_concurrency)
        .layer_fn(layers::guard_bodies)
        .service_fn(layers::forward)
}
