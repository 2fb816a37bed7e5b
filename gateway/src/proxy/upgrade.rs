//! Raw bytes after a 101.

use std::time::Duration;

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;
use tokio_util::io::{InspectReader, InspectWriter};
use tunnel::upgrade::{self, Upgraded};

use super::Tracking;
use crate::metrics::{Limit, Metrics};

/// How long the caller's connection may take to be handed over after the 101 was sent.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(10);

/// Moves them both ways until both have ended. What is tracked ends with it.
pub(super) async fn splice(upgraded: Upgraded, outside: OnUpgrade, tracking: Tracking, metrics: Metrics) {
    let Ok(Ok(outside)) = timeout(UPGRADE_TIMEOUT, outside).await else {
        return;
    };
    let service = &tracking.metrics;
    let outside = InspectReader::new(TokioIo::new(outside), |bytes| {
        service.request_bytes.inc_by(bytes.len() as u64);
    });
    let outside = InspectWriter::new(outside, |bytes| {
        service.response_bytes.inc_by(bytes.len() as u64);
    });
    if let Err(error) = upgrade::splice(upgraded, outside).await {
        if let Some(limit) = Limit::met_by(&error) {
            metrics.limit(limit);
        }
        tracing::debug!(%error, "an upgraded connection was aborted");
    }
}
