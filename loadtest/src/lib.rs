//! What `kas` and `agentk` are tried against: load, demonstrations, and a cluster that is not one.

pub mod demo;
pub mod simulator;
