//! The whole product in one process: callers, kas, agentk and a fake cluster over in-memory pipes, on a paused clock.

mod agent_list;
mod agents;
mod api;
mod callers;
mod drain;
mod fidelity;
mod gitaly;
mod grpc;
mod headers;
mod http1;
mod http1_heads;
mod limits;
mod observability;
mod panics;
mod peers;
mod peers_failures;
mod peers_health;
mod peers_tls;
mod prometheus;
mod rebalance;
mod tenants;
mod tracing;
mod watches;
