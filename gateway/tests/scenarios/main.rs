//! The whole product in one process: callers, kas, agentk and a fake cluster over in-memory pipes, on a paused clock.

mod agents;
mod api;
mod border;
mod callers;
mod drain;
mod fidelity;
#[allow(dead_code, reason = "the attacks use the rest")]
mod fleet;
mod http1;

mod limits;
mod observability;
mod peers;
mod peers_tls;
mod peers_trouble;
mod prometheus;
mod reach;
mod rebalance;
mod roster;
mod server;
mod tenants;
mod tracing;
mod watches;
#[allow(dead_code, reason = "the attacks use the rest")]
mod world;
