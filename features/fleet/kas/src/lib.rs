//! All agents of a caller in one answer: the list of them; the versions, the nodes and the capacity of their clusters; and the
//! applications and the components in these.
//!
//! | file | content |
//! |---|---|
//! | `feature` | [`FleetFeature`]: the routes |
//! | `agents` | `GET /agents`: the agents of a caller, without a request to a cluster |
//! | `inquiry` | asks the clusters, all at the same time |
//! | `cluster_answer` | the answers of clusters, bounded |
//! | `api` | the same for programs, with the rights of agentk |
//! | `summary` | `GET /agents/fleet` and [`Fleet`]: the counts and the sums |
//! | `lists` | `GET /agents/applications`, `GET /agents/components` and [`FleetList`] |
//! | `facts` | the facts about an agent that kas knows |
//! | `query` | the parameters |
#![warn(missing_docs)]

mod agents;
mod api;
mod cluster_answer;
mod facts;
mod feature;
mod inquiry;
mod lists;
mod query;
mod summary;

pub use self::{
    agents::CallerAgentList, feature::FleetFeature, lists::FleetList, query::parse_fleet, summary::Fleet,
};
