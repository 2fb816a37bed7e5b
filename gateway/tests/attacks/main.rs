//! Callers, agents and clusters that attack, over in-memory pipes and mostly on a paused clock. The numbers in the
//! names are those of the list in `docs/security.md`.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod cluster;
mod http1;
mod http1_front;
mod http2;
mod http2_front;
mod http2_tunnel;
mod memory;
mod upstream;
#[path = "../scenarios/world.rs"]
#[allow(dead_code, reason = "each binary uses its own part")]
mod world;
