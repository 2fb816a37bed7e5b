//! The metrics of GitLab's kas that have the same meaning here, under their names there, for dashboards and alerts that exist.
//!
//! They are computed from the metrics of kas whenever they are read: no request costs more.

use std::fmt;

use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeMetric as _, NoLabelSet},
    metrics::{MetricType, counter::Counter},
    registry::{Registry, Unit},
};
use proto::Reason;
use telemetry::{DurationHistogram, RegistryExt as _, encode_gauge, encode_gauges};

use super::{Metrics, agent::AgentGauges};

/// The service of requests to clusters.
const KUBERNETES: &str = "kubernetes";
/// The results of handshakes that GitLab's kas counts together.
const RATE_LIMITS: [&str; 4] =
    ["token-rate-limit", "address-rate-limit", "unknown-token-rate-limit", "replica-rate-limit"];

/// The metrics from which those of GitLab's kas are computed.
#[derive(Debug)]
struct GitLabNames {
    agents: AgentGauges,
    rate_limits: [Counter; RATE_LIMITS.len()],
    routing_timeouts: Counter,
    /// The time until a request was sent to its agent.
    routing: Option<DurationHistogram>,
}

/// Registers the metrics under the names of GitLab's kas.
pub fn register(registry: &mut Registry, metrics: &Metrics, agents: &AgentGauges) {
    let names = GitLabNames {
        agents: agents.clone(),
        rate_limits: RATE_LIMITS.map(|result| metrics.handshakes.get(result)),
        routing_timeouts: metrics.services.error_counter(Reason::AgentNotConnected.as_str()),
        routing: metrics.services.queue(KUBERNETES),
    };
    registry.collect(move |encoder| names.encode(encoder));
}

impl GitLabNames {
    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let labels = [("version", env!("CARGO_PKG_VERSION")), ("built", "unknown")];
        encode_gauges(
            encoder,
            "gitlab_build_info",
            "Current build info for this GitLab Service",
            [(labels, 1)],
        )?;
        let help = "The number of unique connected agents";
        encode_gauge(encoder, "connected_agents_count", help, self.agents.connected())?;
        let help = "The times that a rate limit of new connections of agents was exceeded";
        let exceeded = self.rate_limits.iter().map(Counter::get).sum();
        encode_counter(encoder, "agent_server_rate_exceeded", help, exceeded)?;
        let help = "The requests for which no connection of the agent was found in time";
        encode_counter(encoder, "k8s_api_proxy_routing_timeout", help, self.routing_timeouts.get())?;
        self.encode_routing(encoder)
    }

    fn encode_routing(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some(routing) = &self.routing else { return Ok(()) };
        let (name, help) =
            ("k8s_api_proxy_routing_duration", "The time until a request was sent to its agent");
        let mut family =
            encoder.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
        routing.encode(family.encode_family(&[("status", "success")])?)
    }
}

fn encode_counter(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    let mut counter = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    counter.encode_counter::<NoLabelSet, _, u64>(&value, None)
}
