//! Alerts of a cluster: traffic that network policies drop, and violations that policy engines report, grouped and counted.
//!
//! ```text
//!   Hubble: Flow ──► PolicySet: the policy that dropped it ──┐
//!   Events of policy engines ────────────────────────────────┴─► AlertKey ──► AlertTable ──► events, open alerts
//! ```
//!
//! Everything here is pure: times are arguments. Flows, policies and Events are written by workloads of the cluster, so that texts are
//! cut and cleaned, and all tables have limits.
#![warn(missing_docs)]

mod alert;
pub mod engine;
mod flow;
pub mod messages;
mod policy;
mod rate;
mod table;
mod text;

pub use self::{
    alert::{Alert, AlertKey, AlertReport, AlertState, Destination, Peer, Verdict},
    flow::{Ignored, key_of_flow},
    policy::{ALERT_ANNOTATION, Applied, Direction, NetworkPolicy, PolicyRef, PolicySet, RefusedPolicy},
    table::{AlertTable, MAX_OPEN, Observed},
};
