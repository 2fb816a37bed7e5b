//! Makes a cluster what is in Git, and touches nothing else.
//!
//! ```text
//!   files ─► parse ─► validate ─► order ─► for each stage: dry run of all, write what differs, wait
//!                                             │
//!                                             └─► delete what left Git, as planned ─► record the members
//! ```
//!
//! [`Engine::sync`] is the whole way. What it decides is in modules without I/O: [`parse`], [`validate`], [`order`], [`ownership`],
//! [`inventory`], [`deletion_plan`] and [`diff`], and in the crate `object-health`. The cluster is a trait, [`Cluster`], whose implementation for real clusters is [`KubeCluster`].
#![warn(missing_docs)]

pub mod applyset;
mod cluster;
pub mod deletion_plan;
pub mod diff;
mod engine;
pub mod environment;
#[cfg(test)]
mod fake;
mod fence;
mod folded;
mod hook;
pub mod inventory;
mod kube_cluster;
mod lease;
mod left_out;
mod manifest;
pub mod order;
pub mod ownership;
pub mod parse;
mod ports;
mod retry;
#[cfg(test)]
mod tests;
pub mod validate;
mod watch;
mod yaml;

pub use object_health::HealthRules;

pub use self::{
    cluster::{ApiError, Applied, ApplyOptions, Cause, Cluster, Kind, KindLookup, MetadataPage},
    engine::{Engine, Outcome, Recovery, SyncError, SyncInput},
    fence::{Fence, Stopped},
    kube_cluster::KubeCluster,
    lease::{LeaderElector, Leadership},
    manifest::{GroupKind, Manifest, SourceFile, SourceLine},
    retry::while_open,
    watch::Change,
};

/// The field manager of everything that is applied. It is that of GitLab's agent, so that its objects keep one manager.
pub const FIELD_MANAGER: &str = "agentk";
