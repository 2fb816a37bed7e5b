//! The feature: the service `events`, the log at `/events` and in the internal API, and the events of agentk and of kas.

use axum::Router;
use futures_util::{FutureExt as _, future::BoxFuture};
use proto::{ReplicaId, ServiceName};
use store::redis::RedisStore;
use tokio_util::sync::CancellationToken;

use kas_core::{
    agents::AgentServer,
    api::{ApiContext, ApiRoutes},
    attachments::TunnelFeature,
    feature::{KasFeature, RequestHookContext},
    proxy::ProxyServer,
    request_hooks::RequestHooks,
    request_types::{Named, RequestType},
};

use crate::{
    Events, admin,
    agents::{AgentEvents, ConfigurationReports},
    api,
    requests::EventRequests,
    sources::EventSources,
};

/// The log of events.
#[derive(Debug)]
pub struct EventsFeature {
    events: Events,
    agents: AgentEvents,
    replica: ReplicaId,
    redis: Option<RedisStore>,
}

impl EventsFeature {
    /// Builds the feature of a replica. `redis` is the store that replicas share, if there are several.
    pub fn new(events: Events, replica: ReplicaId, redis: Option<RedisStore>) -> Self {
        Self { agents: AgentEvents::new(events.clone()), events, replica, redis }
    }
}

impl KasFeature for EventsFeature {
    fn request_types(&self) -> Vec<Box<dyn RequestType>> {
        vec![Box::new(Named(ServiceName::EVENTS))]
    }

    fn request_hooks(&self, context: &mut RequestHookContext<'_>) -> Vec<Box<dyn RequestHooks>> {
        vec![Box::new(EventRequests {
            events: self.events.clone(),
            replica: self.replica,
            draining: context.draining.clone(),
        })]
    }

    fn tunnel_features(&self) -> Vec<Box<dyn TunnelFeature>> {
        vec![Box::new(self.agents.clone()), Box::new(ConfigurationReports(self.agents.clone()))]
    }

    fn admin_routes(&self, draining: &CancellationToken) -> Router {
        admin::routes(self.events.clone(), self.replica, draining.clone())
    }

    fn api_routes(&self, context: &ApiContext, _: &ProxyServer) -> ApiRoutes {
        ApiRoutes { http: api::routes(context.clone(), self.events.clone()), ..ApiRoutes::default() }
    }

    fn background_tasks(&self, agents: &AgentServer) -> Vec<BoxFuture<'static, ()>> {
        let events = self.events.clone();
        let sources = EventSources::new(events.clone(), agents, self.redis.clone());
        let (rules, stopping) = (sources.clone(), agents.connections.draining.clone());
        // The tunnels of a replica that stops are no sign of agents that are gone.
        let presence = async move {
            let _ = stopping.run_until_cancelled(sources.follow_agents()).await;
        };
        vec![
            async move { events.run().await }.boxed(),
            async move { rules.follow_kill_switch().await }.boxed(),
            presence.boxed(),
        ]
    }
}
