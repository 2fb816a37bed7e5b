//! The expiration of certificates, as a metric.

use prometheus_client::{
    metrics::{family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};
use telemetry::{Label, RegistryExt as _};

/// One gauge for each certificate. Cheap to clone.
#[derive(Clone, Debug)]
pub struct CertificateExpirations(Family<Label<String>, Gauge>);

impl CertificateExpirations {
    /// Registers the metric.
    pub fn register(registry: &mut Registry) -> Self {
        Self(registry.create_with_unit(
            "kas_certificate_expiration_timestamp",
            "Expiration of the certificate in use, as Unix time",
            Unit::Seconds,
        ))
    }

    /// Sets the expiration of the certificate that a key of the configuration names, in seconds of Unix time.
    pub fn set(&self, file: String, not_after: i64) {
        self.0.get_or_create(&[("file", file)]).set(not_after);
    }
}
