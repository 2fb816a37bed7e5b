//! Raw bytes after a 101.

use std::{sync::Arc, time::Duration};

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;
use tokio_util::{
    io::{InspectReader, InspectWriter},
    sync::CancellationToken,
};
use tracing::Instrument as _;
use tunnel::upgrade::{self, Upgraded};

use super::{
    budget::BudgetShare,
    context::RequestContext,
    response_body::{ConcurrencyPermit, ResponseGuard},
};
use crate::metrics::Limit;

/// How long hyper may take to hand the caller's connection over after the 101.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(10);

/// An upgrade that the cluster has accepted, until the caller's connection is free.
pub(super) struct PendingUpgrade {
    pub(super) context: Arc<RequestContext>,
    /// The stream to the agent.
    pub(super) upgraded: Upgraded,
    /// The caller's connection.
    pub(super) outside: OnUpgrade,
    pub(super) guard: ResponseGuard,
    pub(super) permit: ConcurrencyPermit,
    pub(super) share: BudgetShare,
    /// Cancelled when the caller's right to the upgrade ends, or the memory that it may take.
    pub(super) cut: CancellationToken,
}

impl PendingUpgrade {
    /// Moves bytes in both directions in a task of its own. The guards are released however the task ends.
    pub(super) fn spawn(self) {
        let context = Arc::clone(&self.context);
        context.guard.set_upgraded();
        let span = tracing::debug_span!("upgraded", request.id = ?context.id);
        let cut = context.callers.cut.child_token();
        let run = async move { cut.run_until_cancelled(self.run()).await };
        context.callers.tasks.spawn(run.instrument(span));
    }

    async fn run(self) {
        let Self { context, upgraded, outside, guard, permit, share, cut } = self;
        let _held = (permit, share);
        let splice = splice(&context, upgraded, outside, &guard);
        cut.run_until_cancelled(splice).await;
    }
}

async fn splice(context: &RequestContext, upgraded: Upgraded, outside: OnUpgrade, guard: &ResponseGuard) {
    let Ok(Ok(outside)) = timeout(UPGRADE_TIMEOUT, outside).await else {
        return;
    };
    let service = &guard.metrics;
    let outside = InspectReader::new(TokioIo::new(outside), |bytes| {
        service.request_bytes.inc_by(bytes.len() as u64);
    });
    let outside = InspectWriter::new(outside, |bytes| {
        service.response_bytes.inc_by(bytes.len() as u64);
    });
    if let Err(error) = upgrade::splice(upgraded, outside).await {
        if let Some(limit) = Limit::met_by(&error) {
            context.callers.forwarder.metrics.limit(limit);
        }
        tracing::debug!(%error, "an upgraded connection was aborted");
    }
}
