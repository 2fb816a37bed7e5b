//! The real programs, end to end: kubectl, promtool and curl against a real cluster and a real Prometheus, through
//! kas and agentk as users start them.
//!
//! The reference is always the same command without a tunnel: output and exit code must not differ.
//!
//! ```text
//! cargo build --workspace --bins && KUBECONFIG=... cargo test -p gateway --test e2e
//! ```
//!
//! A test whose cluster or program is missing says so on standard error and passes; with `E2E_REQUIRE=1` it fails.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "every failure is the test's; and the tests run programs, not a runtime whose threads could be blocked"
)]

mod cancellation;
mod changes;
mod clients;
mod differential;
mod failures;
mod federation;
mod fleet;
mod fleet_network;
mod fleet_poison;
mod fleet_redis;
mod fleet_rollout;
mod fleet_shutdown;
mod grafana;
mod impersonation;
mod large;
mod large_answers;
mod lifecycle;
mod policy;
mod prometheus;
mod reading;
mod redis;
mod streams;
mod support;
mod tenants;
mod terminals;
mod tls;
mod tracing;
mod upgrades;
