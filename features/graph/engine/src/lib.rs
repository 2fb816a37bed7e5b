//! The objects of a cluster, their relations, groups and health, kept up to date in memory.
//!
//! ```text
//!   API server ─► loader ─► mask ─► entry ─► graph ─► view, tree, rollup, components, applications, capacity ─► callers
//!                 (watches)                    └────► viewer: what a caller that follows is sent next
//!   API server ◄─ reviews: what may this caller see?
//! ```
//!
//! Only `loader`, `reviews`, `pace` and `cache` do I/O. Their knowledge is in [`Graph`], which is plain data.
#![warn(missing_docs)]

mod access;
mod amounts;
mod applications;
mod cache;
mod capacity;
mod components;
mod dangling;
mod entry;
mod found_environments;
mod graph;
mod groups;
mod list_key;
mod loader;
mod mask;
mod needs;
mod object;
mod ownership;
mod quantity;
mod query;
mod rate_limit;
mod references;
mod resources;
mod reviews;
mod rollup;
mod summary;
#[cfg(test)]
mod tests;
mod text;
mod time;
mod tree;
mod view;
mod viewer;
mod views;
mod warnings;

pub use self::{
    access::Access,
    applications::ApplicationDetail,
    cache::{Cache, CacheConfig},
    graph::{Graph, GraphLimits, Limit},
    list_key::{InvalidListKey, ListKey},
    loader::keep_loaded,
    query::{Query, QueryError},
    rate_limit::RateLimit,
    resources::{BuiltInResource, built_in_resources},
    reviews::{ReviewError, Reviews},
    time::wait_until,
    viewer::{Shown, Viewer},
};
