//! The work on the events of one reference for one target: one after the other, and only the latest one.

use std::{sync::Arc, time::Duration};

use gitops_engine::ApiError;
use proto::notify::ProjectEvent;
use tokio::{
    sync::Notify as Wake,
    time::{Instant, sleep, timeout},
};

use super::{Notify, argocd, flux, plan::Target, repository};

/// The time of one attempt.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(60);
/// The first and the longest wait after an attempt that failed.
const BACKOFF: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// The time after which an effect is abandoned. kas sends the event again to the next leader and after a reconnection.
const GIVE_UP: Duration = Duration::from_secs(3600);

/// The events that a lane is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LaneKey {
    pub(super) target: Target,
    pub(super) project: String,
    pub(super) reference: String,
}

/// The state of a lane that others change.
#[derive(Debug)]
pub(super) struct Lane {
    /// The latest event that was not tried, and the time of its arrival.
    next: Option<(ProjectEvent, Instant)>,
    wake: Arc<Wake>,
}

/// The error of an attempt at an effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum EffectError {
    /// Another attempt has the same result.
    #[error("{0}")]
    Refused(String),
    /// Another attempt may succeed.
    #[error("{0}")]
    Failed(String),
}

impl LaneKey {
    pub(super) fn new(target: Target, event: &ProjectEvent) -> Self {
        let (project, reference) = (event.project().to_owned(), event.reference().to_owned());
        Self { target, project, reference }
    }
}

impl Lane {
    pub(super) fn new(event: &ProjectEvent) -> Self {
        Self { next: Some((event.clone(), Instant::now())), wake: Arc::default() }
    }

    /// Adds an event, unless a later one waits.
    pub(super) fn offer(&mut self, event: &ProjectEvent) {
        let sequence = event.fields().sequence;
        if self.next.as_ref().is_none_or(|(next, _)| next.fields().sequence < sequence) {
            self.next = Some((event.clone(), Instant::now()));
            self.wake.notify_one();
        }
    }
}

/// Removes a lane whose work ends, also by a panic.
struct LaneGuard<'a> {
    notify: &'a Notify,
    key: &'a LaneKey,
}

impl LaneGuard<'_> {
    /// Returns the next event, or removes the lane.
    fn next(&self) -> Option<(ProjectEvent, Instant, Arc<Wake>)> {
        let mut lanes = self.notify.lanes.lock();
        let lane = lanes.get_mut(self.key)?;
        match lane.next.take() {
            Some((event, arrived)) => Some((event, arrived, Arc::clone(&lane.wake))),
            None => {
                lanes.remove(self.key);
                None
            }
        }
    }
}

impl Drop for LaneGuard<'_> {
    fn drop(&mut self) {
        let mut lanes = self.notify.lanes.lock();
        lanes.remove(self.key);
        self.notify.metrics.pending.set(i64::try_from(lanes.len()).unwrap_or(i64::MAX));
    }
}

/// Works on the events of a lane until there is none.
pub(super) async fn run(notify: Arc<Notify>, key: LaneKey) {
    notify.metrics.pending.set(i64::try_from(notify.pending()).unwrap_or(i64::MAX));
    let lane = LaneGuard { notify: &notify, key: &key };
    while let Some((event, arrived, wake)) = lane.next() {
        work(&notify, &key, &event, arrived, &wake).await;
    }
}

/// Tries until the effect is there, it is refused, or a later event has arrived.
async fn work(notify: &Notify, key: &LaneKey, event: &ProjectEvent, arrived: Instant, wake: &Wake) {
    let (target, kind) = (key.target.to_string(), key.target.kind());
    let mut pause = BACKOFF[0];
    loop {
        if !key.target.is_configured(&notify.sections.borrow(), &notify.flux_projects.borrow(), event) {
            return;
        }
        let attempt = async {
            if notify.records.is_done(notify, &target, event).await? {
                return Ok(false);
            }
            let _permit = notify.effects.acquire().await;
            effect(notify, &key.target, event).await.map(|()| true)
        };
        let result = timeout(ATTEMPT_TIMEOUT, attempt).await;
        let result = result.unwrap_or_else(|_| Err(EffectError::Failed("no end in time".to_owned())));
        let (project, reference, id) = (event.project(), event.reference(), event.id());
        match result {
            Ok(false) => return notify.metrics.count(kind, "known"),
            Ok(true) => {
                notify.metrics.count(kind, "done");
                notify.metrics.times.observe(arrived.elapsed());
                tracing::info!(project, reference, id, target, "event has had its effect");
                notify.records.note(notify, &target, event).await;
                return;
            }
            Err(EffectError::Refused(error)) => {
                notify.metrics.count(kind, "refused");
                tracing::warn!(project, reference, id, target, error, "event has no effect");
                return;
            }
            Err(EffectError::Failed(error)) if arrived.elapsed() > GIVE_UP => {
                notify.metrics.count(kind, "abandoned");
                tracing::warn!(project, reference, id, target, error, "event abandoned");
                return;
            }
            Err(EffectError::Failed(error)) => {
                notify.metrics.count(kind, "failed");
                tracing::warn!(project, reference, id, target, error, "event has no effect yet");
            }
        }
        tokio::select! {
            () = sleep(pause.mul_f64(rand::random_range(0.75..1.25))) => pause = (pause * 2).min(BACKOFF[1]),
            // Only the latest event counts.
            () = wake.notified() => return,
        }
    }
}

async fn effect(notify: &Notify, target: &Target, event: &ProjectEvent) -> Result<(), EffectError> {
    match target {
        Target::Webhook(url) => {
            let allowed = notify.policy.as_ref().and_then(|policy| policy.allowed_webhook(url));
            notify.webhooks.send(url, allowed.as_ref(), event).await
        }
        Target::Repository(namespace) => repository::apply(notify, namespace, event).await,
        Target::ArgoCd(namespace) => argocd::refresh(notify, namespace, event).await,
        Target::Flux(receiver) => flux::reconcile(notify, receiver.as_deref(), event).await,
    }
}

impl From<ApiError> for EffectError {
    fn from(error: ApiError) -> Self {
        let message = format!("the API of the cluster: {error}");
        match error.status {
            400 | 403 | 404 | 405 | 422 => Self::Refused(message),
            _ => Self::Failed(message),
        }
    }
}
