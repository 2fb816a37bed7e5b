//! The state that the requests of all callers share.

use std::{sync::Arc, time::Duration};

use access::{AccessControl, DocsUrl, UrlPathPrefix, kill_switch::KillSwitch};
use cores::TaskGroup;
use kas_listen::addresses::AddressRules;
use tunnel::WatchEnds;

use super::{budget::ResponseBudget, idle_connections::IdleConnections, request_log::RequestObservers};
use crate::{
    config::{CallerLimits, KubernetesApiConfig},
    cors::Cors,
    fleet_requests::FleetRequests,
    forward::Forwarder,
    headers::ExtraHeader,
    hosts::AgentHosts,
    request_hooks::RequestHooks,
    request_types::RequestTypes,
};

/// Serves callers.
#[derive(Debug)]
pub struct ProxyServer {
    /// Decides which caller may reach which agent, and as whom.
    pub access: AccessControl,
    /// The rules by which requests are disabled.
    pub kill_switch: Arc<KillSwitch>,
    /// The types of requests, and the hooks of features.
    pub handling: RequestHandling,
    /// Sends a request to its agent.
    pub forwarder: Forwarder,
    /// The readers of the facts of requests.
    pub observers: RequestObservers,
    /// The connections of callers.
    pub connections: CallerConnections,
    /// The configuration of the listener.
    pub config: ProxyConfig,
}

/// The types of requests, and the hooks of features.
#[derive(Debug)]
pub struct RequestHandling {
    /// The types of requests.
    pub types: RequestTypes,
    /// The hooks of features.
    pub hooks: Vec<Box<dyn RequestHooks>>,
    /// The requests about all agents of a caller.
    pub fleet: Vec<Box<dyn FleetRequests>>,
}

/// The connections of callers, and their limits.
#[derive(Debug)]
pub struct CallerConnections {
    /// Connections and upgrades. Once the group drains, connections close when they are idle.
    pub group: TaskGroup,
    /// Closes idle connections.
    pub idle: IdleConnections,
    /// Ends watches once the group drains.
    pub watches: WatchEnds,
    /// The memory of all responses in flight.
    pub budget: Arc<ResponseBudget>,
}

/// The configuration of the listener of callers.
#[derive(Debug)]
pub struct ProxyConfig {
    /// The limits of `agent.kubernetes_api.limits`.
    pub limits: CallerLimits,
    /// The web origins that may send requests.
    pub cors: Cors,
    /// The rules of the listener about addresses.
    pub addresses: AddressRules,
    /// The beginning of the paths of GitLab's kas.
    pub url_path_prefix: UrlPathPrefix,
    /// The host names of agents.
    pub hosts: AgentHosts,
    /// Response headers that the operator allows in addition to the harmless ones.
    pub extra_headers: Vec<ExtraHeader>,
    /// The documents to which errors link.
    pub docs_url: Option<DocsUrl>,
}

impl CallerConnections {
    /// Returns the state of no connections, which will run in a group. Once it drains, requests in flight have the time `grace`.
    pub fn new(group: TaskGroup, limits: &CallerLimits, grace: Duration) -> Self {
        let budget = ResponseBudget::new(limits.max_bytes_in_flight, limits.write_stall_timeout);
        let watches = WatchEnds::new(group.draining.clone(), grace);
        Self { group, idle: IdleConnections::new(limits), watches, budget: Arc::new(budget) }
    }
}

impl ProxyConfig {
    /// Reads the section `agent.kubernetes_api`.
    pub fn new(section: &KubernetesApiConfig, cors: Cors) -> Self {
        Self {
            limits: section.limits.clone(),
            cors,
            addresses: section.listen.addresses(),
            url_path_prefix: section.url_path_prefix.clone(),
            hosts: AgentHosts::new(section.hosts.clone()),
            extra_headers: section.extra_allowed_response_headers.clone(),
            docs_url: section.docs_url.clone(),
        }
    }
}
