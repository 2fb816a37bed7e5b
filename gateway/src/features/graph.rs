//! The view of the objects in the cluster of an agent, which agentk serves, and the views that configurations define.

mod request_type;
pub(crate) mod views;

pub(super) use self::request_type::Graph;
