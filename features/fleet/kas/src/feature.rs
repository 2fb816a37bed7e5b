//! The feature: requests about all agents, of callers and of programs.

use std::sync::Arc;

use kas_core::{
    agent_inquiry::AgentInquiry,
    api::{ApiContext, ApiRoutes},
    feature::KasFeature,
    fleet_requests::FleetRequests,
    proxy::ProxyServer,
};
use proto::{
    ReplicaId,
    graph::{ApplicationList, ComponentList},
};
use store::Store;

use crate::{
    agents::AgentListRequests,
    api,
    inquiry::{FleetInquiry, FleetSummaryRequests},
    lists::FleetList,
    summary::Fleet,
};

/// All agents of a caller.
#[derive(Debug)]
pub struct FleetFeature {
    replica: ReplicaId,
    inquiry: Arc<FleetInquiry>,
}

impl FleetFeature {
    /// Builds the feature of a replica.
    pub fn new(replica: ReplicaId) -> Self {
        Self { replica, inquiry: Arc::default() }
    }
}

impl KasFeature for FleetFeature {
    fn fleet_requests(&self, store: &Arc<dyn Store>) -> Vec<Box<dyn FleetRequests>> {
        let Self { replica, inquiry } = self;
        vec![
            Box::new(AgentListRequests { replica: *replica, store: Arc::clone(store) }),
            Box::new(FleetSummaryRequests::<Fleet>::new(*replica, store, inquiry)),
            Box::new(FleetSummaryRequests::<FleetList<ApplicationList>>::new(*replica, store, inquiry)),
            Box::new(FleetSummaryRequests::<FleetList<ComponentList>>::new(*replica, store, inquiry)),
        ]
    }

    fn api_routes(&self, context: &ApiContext, callers: &ProxyServer) -> ApiRoutes {
        let http = api::routes(context.clone(), AgentInquiry::new(callers), Arc::clone(&self.inquiry));
        ApiRoutes { http, ..ApiRoutes::default() }
    }
}
