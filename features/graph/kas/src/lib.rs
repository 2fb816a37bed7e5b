//! The view of the objects in the cluster of an agent, which agentk serves, and the views that configurations define.
#![warn(missing_docs)]

mod feature;
mod request_type;
pub mod views;

pub use self::feature::GraphFeature;
