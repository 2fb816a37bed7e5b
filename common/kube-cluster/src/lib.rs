//! A cluster, as agentk reads and writes it for itself: objects of any kind, and Leases.
//!
//! The cluster is a trait, [`Cluster`], whose implementation for real clusters is [`KubeCluster`].
#![warn(missing_docs)]

mod cluster;
mod fence;
mod kinds;
mod kube_cluster;
mod lease;
mod watch;

pub use self::{
    cluster::{ApiError, Applied, ApplyOptions, Cause, Cluster, KindLookup, MetadataPage},
    fence::{Fence, Stopped, while_open},
    kinds::{AllowedKinds, AllowedResources, GroupKind, Kind},
    kube_cluster::KubeCluster,
    lease::{LEASE_PREFIX, LeaderElector, Leadership},
};

/// The field manager of everything that is applied. It is that of GitLab's agent, so that its objects keep one manager.
pub const FIELD_MANAGER: &str = "agentk";
