//! Raw bytes after a 101.

use http::HeaderValue;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::{
    io::{InspectReader, InspectWriter},
    sync::CancellationToken,
};
use tracing::Instrument as _;
use tunnel::upgrade::{self, Upgraded};

use super::{Tracking, Turn, budget::Share};
use crate::metrics::{Limit, Metrics};

/// What waits for the caller's connection, once the 101 was sent.
pub(super) struct Switched {
    pub(super) upgraded: Upgraded,
    /// Ends with it.
    pub(super) tracking: Tracking,
    pub(super) turn: Turn,
    pub(super) share: Share,
    /// Ends it, when the caller's right to it does, or the memory that it may take.
    pub(super) cut: CancellationToken,
    pub(super) metrics: Metrics,
    pub(super) id: HeaderValue,
}

impl Switched {
    /// Moves bytes both ways until both have ended.
    pub(super) async fn run(self, outside: impl AsyncRead + AsyncWrite + Unpin) {
        let Self { upgraded, tracking, turn, share, cut, metrics, id } = self;
        let (_share, _turn) = (share, turn);
        let splice = splice(upgraded, outside, tracking, metrics);
        let splice = splice.instrument(tracing::debug_span!("upgraded", request.id = ?id));
        cut.run_until_cancelled(splice).await;
    }
}

async fn splice(
    upgraded: Upgraded,
    outside: impl AsyncRead + AsyncWrite + Unpin,
    tracking: Tracking,
    metrics: Metrics,
) {
    let service = &tracking.metrics;
    let outside = InspectReader::new(outside, |bytes| {
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
