//! The recent requests and lines of the audit log, which readers at all replicas see.

use std::sync::Arc;

use kas_core::{feature::KasFeature, peers::PeerHooks, request_hooks::RequestObserver};

use crate::recent::{Recent, api::RecentAnswers};

/// The recent entries of a replica, if it serves the page.
#[derive(Debug)]
pub struct WebFeature(pub Option<Arc<Recent>>);

impl KasFeature for WebFeature {
    fn request_observers(&self) -> Vec<Arc<dyn RequestObserver>> {
        self.0.iter().map(|recent| Arc::clone(recent) as Arc<dyn RequestObserver>).collect()
    }

    fn peer_hooks(&self) -> Vec<Arc<dyn PeerHooks>> {
        vec![Arc::new(RecentAnswers(self.0.clone()))]
    }
}
