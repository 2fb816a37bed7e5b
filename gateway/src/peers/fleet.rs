//! What makes a kas one of several.

use std::sync::Arc;

use proto::ReplicaId;
use router::RouteStore;

use super::{dial::Network, link::Dial, seal::Secret};
use crate::config::Config;

/// This replica among the others.
#[derive(Clone, Debug)]
pub struct Fleet {
    /// This one.
    pub replica: ReplicaId,
    /// The directory that they share.
    pub store: Arc<dyn RouteStore>,
    /// The way to the others.
    pub dial: Arc<dyn Dial>,
    /// What all of them know.
    pub secret: Option<Secret>,
}

impl Fleet {
    /// A replica that proves nothing to others, because there are none.
    pub fn alone(replica: ReplicaId, store: Arc<dyn RouteStore>, config: &Config) -> Self {
        let dial = Arc::new(Network { settings: config.peer_settings(), tls: None });
        Self { replica, store, dial, secret: None }
    }
}
