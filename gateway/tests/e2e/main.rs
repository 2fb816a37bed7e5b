//! End-to-end tests with the real programs: kubectl, promtool and curl use a real cluster and a real Prometheus through
//! kas and agentk as users start them.
//!
//! The reference is the same command without the tunnel: output and exit code must be equal.
//!
//! ```text
//! cargo build --workspace --bins && KUBECONFIG=... cargo test -p gateway --test e2e
//! ```
//!
//! A test without its cluster or program reports on standard error that it is skipped, and passes. With `E2E_REQUIRE=1`
//! it fails.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a failed step is a failed test, and the tests run programs without a runtime whose threads could block"
)]

mod addresses;
mod admission;
mod alerts;
mod audit;
mod cancellation;
mod changes;
mod clients;
mod company_day;
mod configurations;
mod differential;
mod failures;
mod federation;
mod fleet;
mod fleet_disabled;
mod fleet_network;
mod fleet_poison;
mod fleet_redis;
mod fleet_rollout;
mod fleet_shutdown;
mod gitlab;
mod gitops;
mod grafana;
mod graph;
mod hosts;
mod impersonation;
mod large;
mod large_responses;
mod lifecycle;
mod load_balancers;
mod managed_environments;
mod metrics;
mod oidc;
mod policy;
mod project_events;
mod prometheus;
mod promql;
mod reading;
mod receptive;
mod redis;
mod streams;
mod support;
mod tenants;
mod terminals;
mod tls;
mod topologies;
mod tracing;
mod upgrades;
mod websocket;
