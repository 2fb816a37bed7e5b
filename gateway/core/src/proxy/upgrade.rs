//! Upgraded connections: raw bytes in both directions after a 101.

use std::{sync::Arc, time::Duration};

use cores::poll_on_wake;
use futures_util::future::OptionFuture;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use kas_listen::metrics::Limit;
use tokio::time::timeout;
use tokio_util::{
    io::{InspectReader, InspectWriter},
    sync::CancellationToken,
};
use tracing::Instrument as _;
use tunnel::{
    WatchEnds,
    upgrade::{self, UpgradedStream},
};

use super::{
    AccessEnded,
    budget::BudgetGuard,
    request::{ConcurrencyPermit, RequestContext, ResponseGuard},
};

/// The time that hyper may take to hand over the caller's connection after the 101.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(10);

/// An upgrade that the cluster has accepted, until hyper hands over the caller's connection.
pub(super) struct PendingUpgrade {
    pub(super) context: Arc<RequestContext>,
    /// Completes when the upgrade must not continue.
    pub(super) ended: AccessEnded,
    /// Decides when the upgrade ends, if it is a watch.
    pub(super) ends: Option<WatchEnds>,
    /// The stream to the agent.
    pub(super) upgraded: UpgradedStream,
    /// The caller's connection.
    pub(super) outside: OnUpgrade,
    pub(super) guard: ResponseGuard,
    pub(super) permit: ConcurrencyPermit,
    pub(super) budget: BudgetGuard,
    /// Cancelled when the budget cuts the upgrade.
    pub(super) over_budget: CancellationToken,
}

impl PendingUpgrade {
    /// Copies bytes in both directions in a new task. The guards are released however the task ends.
    pub(super) fn spawn(self) {
        let context = Arc::clone(&self.context);
        context.guard.set_upgraded();
        let span = tracing::debug_span!("upgraded", request.id = context.log.id.to_str().ok());
        let group_cut = context.server.connections.group.cut.child_token();
        let run = async move { group_cut.run_until_cancelled(self.run()).await };
        context.server.connections.group.tasks.spawn(run.instrument(span));
    }

    async fn run(self) {
        let Self { context, ended, ends, upgraded, outside, guard, permit, budget, over_budget } = self;
        let _held = (permit, budget);
        let cut = poll_on_wake(async {
            tokio::select! {
                error = ended => tracing::debug!(%error, "upgraded connection cut"),
                () = over_budget.cancelled() => {}
                Some(()) = OptionFuture::from(ends.as_ref().map(WatchEnds::next)) => {}
            }
        });
        let splice = splice(&context, upgraded, outside, &guard);
        tokio::select! {
            biased;
            () = cut => {}
            () = splice => {}
        }
    }
}

async fn splice(
    context: &RequestContext,
    upgraded: UpgradedStream,
    outside: OnUpgrade,
    guard: &ResponseGuard,
) {
    let Ok(Ok(outside)) = timeout(UPGRADE_TIMEOUT, outside).await else {
        return;
    };
    let counter = context.log.body_bytes(&guard.metrics);
    let outside = InspectReader::new(TokioIo::new(outside), |bytes| counter.add_request(bytes.len()));
    let outside = InspectWriter::new(outside, |bytes| counter.add_response(bytes.len()));
    if let Err(error) = upgrade::splice(upgraded, outside).await {
        if let Some(limit) = Limit::from_error(&error) {
            context.server.observers.metrics.count_limit(limit);
        }
        tracing::debug!(%error, "upgraded connection aborted");
    }
}
