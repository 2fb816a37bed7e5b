//! The feature: the services `prometheus` and `prometheus.<name>`.

use kas_core::{feature::KasFeature, request_types::RequestType};

use crate::Prometheus;

/// The requests to Prometheus servers.
#[derive(Debug)]
pub struct PromqlFeature;

impl KasFeature for PromqlFeature {
    fn request_types(&self) -> Vec<Box<dyn RequestType>> {
        vec![Box::new(Prometheus::default())]
    }
}
