//! All agents of a caller in one answer: the list of them, and the versions, the nodes and the capacity of their clusters.
//!
//! | file | content |
//! |---|---|
//! | `feature` | [`FleetFeature`]: the routes |
//! | `agents` | `GET /agents`: the agents of a caller, without a request to a cluster |
//! | `inquiry` | `GET /agents/fleet`: asks the clusters, all at the same time |
//! | `api` | `GET /api/v1/fleet`: the same for programs, with the rights of agentk |
//! | `summary` | [`Fleet`]: the counts and the sums |
//! | `facts` | the facts about an agent that kas knows |
//! | `query` | the parameters |
#![warn(missing_docs)]

mod agents;
mod api;
mod facts;
mod feature;
mod inquiry;
mod query;
mod summary;

pub use self::{agents::CallerAgentList, feature::FleetFeature, query::parse_fleet, summary::Fleet};
