//! The MAC of the URL in a heartbeat.
//!
//! Requests of callers are sent to the URLs in heartbeats, and whoever can write to Redis can write a heartbeat. Without the MAC of
//! the replica, a heartbeat is ignored.

use std::fmt;

use proto::ReplicaId;

/// Signs and verifies the URLs of replicas with a secret that all of them share.
///
/// The id of a replica is that of one process, whose URL never changes. So a MAC that is copied from another heartbeat is of no use.
pub trait UrlAuthenticator: fmt::Debug + Send + Sync + 'static {
    /// Returns the MAC of the URL of a replica of a fleet, as text.
    fn sign(&self, replica: ReplicaId, fleet: &str, url: &str) -> String;

    /// Returns true if the MAC is that of the URL of this replica.
    fn verify(&self, replica: ReplicaId, fleet: &str, url: &str, mac: &str) -> bool;
}
