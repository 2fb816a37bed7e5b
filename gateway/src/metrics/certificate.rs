//! The expiration of certificates, as a metric.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};

/// One gauge for each certificate. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct CertificateExpirations(Family<FileLabel, Gauge>);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FileLabel {
    file: String,
}

impl CertificateExpirations {
    /// Registers the metric.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let family = Family::default();
        registry.register_with_unit(
            "kas_certificate_expiration_timestamp",
            "Expiration of the certificate in use, as Unix time",
            Unit::Seconds,
            family.clone(),
        );
        Self(family)
    }

    /// Sets the expiration of the certificate that a key of the configuration names, in seconds of Unix time.
    pub(crate) fn set(&self, file: String, not_after: i64) {
        self.0.get_or_create(&FileLabel { file }).set(not_after);
    }
}
