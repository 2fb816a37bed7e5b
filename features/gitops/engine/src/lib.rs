//! Makes a cluster what is in Git, and touches nothing else.
//!
//! ```text
//!   files ─► parse ─► validate ─► order ─► for each stage: dry run of all, write what differs, wait
//!                                             │
//!                                             └─► delete what left Git, as planned ─► record the members
//! ```
//!
//! [`Engine::sync`] is the whole way. What it decides is in modules without I/O: [`parse`], [`validate`], [`order`], [`ownership`],
//! [`inventory`], [`deletion_plan`] and [`diff`], and in the crate `object-health`. The cluster is the trait [`kube_cluster::Cluster`].
#![warn(missing_docs)]

pub mod applyset;
pub mod deletion_plan;
pub mod diff;
mod engine;
mod folded;
mod hook;
pub mod inventory;
mod left_out;
mod manifest;
pub mod order;
pub mod ownership;
pub mod parse;
mod ports;
mod retry;
pub mod validate;
mod watch;
mod yaml;

pub use object_health::HealthRules;

pub use self::{
    engine::{Engine, Outcome, Recovery, SyncError, SyncInput},
    manifest::{Manifest, SourceFile, SourceLine},
    watch::{Change, watch_members},
};
