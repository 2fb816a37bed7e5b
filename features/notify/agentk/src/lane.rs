//! The work on the events of one reference for one target: one after the other, and only the latest one.

use std::{sync::Arc, time::Duration};

use kube_cluster::ApiError;
use proto::notify::ProjectEvent;
use tokio::{
    sync::Notify as Signal,
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
    /// The number of the lane, so that its task does not remove a later lane with the same key.
    number: u64,
    /// The latest event that was not tried, and the time of its arrival.
    next: Option<(ProjectEvent, Instant)>,
    /// Signals the task that `next` has an event. Each event that is taken has a signal of its own.
    arrived: Arc<Signal>,
}

/// An event that the task of a lane works on.
struct Work {
    event: ProjectEvent,
    arrived: Instant,
    /// Signals that a later event has arrived.
    replaced: Arc<Signal>,
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
    pub(super) fn new(number: u64, event: &ProjectEvent) -> Self {
        Self { number, next: Some((event.clone(), Instant::now())), arrived: Arc::default() }
    }

    /// Adds an event, unless a later one waits.
    pub(super) fn offer(&mut self, event: &ProjectEvent) {
        let sequence = event.fields().sequence;
        if self.next.as_ref().is_none_or(|(next, _)| next.fields().sequence < sequence) {
            self.next = Some((event.clone(), Instant::now()));
            self.arrived.notify_one();
        }
    }

    fn take(&mut self) -> Option<Work> {
        let (event, arrived) = self.next.take()?;
        // The signal of the event that is taken must not interrupt the work on it.
        self.arrived = Arc::default();
        Some(Work { event, arrived, replaced: Arc::clone(&self.arrived) })
    }
}

/// Removes a lane whose task ends, also by a panic.
struct LaneGuard<'a> {
    notify: &'a Notify,
    key: &'a LaneKey,
    number: u64,
}

impl LaneGuard<'_> {
    /// Returns the next work, or removes the lane.
    fn next(&self) -> Option<Work> {
        let mut lanes = self.notify.lanes.lock();
        let work = lanes.get_mut(self.key).filter(|lane| lane.number == self.number)?.take();
        if work.is_none() {
            lanes.remove(self.key);
        }
        work
    }
}

impl Drop for LaneGuard<'_> {
    fn drop(&mut self) {
        let mut lanes = self.notify.lanes.lock();
        if lanes.get(self.key).is_some_and(|lane| lane.number == self.number) {
            lanes.remove(self.key);
        }
        self.notify.metrics.pending.set(i64::try_from(lanes.len()).unwrap_or(i64::MAX));
    }
}

/// Works on the events of a lane until there is none.
pub(super) async fn run(notify: Arc<Notify>, key: LaneKey, number: u64) {
    notify.metrics.pending.set(i64::try_from(notify.pending()).unwrap_or(i64::MAX));
    let lane = LaneGuard { notify: &notify, key: &key, number };
    while let Some(work) = lane.next() {
        work.run(&notify, &key.target).await;
    }
}

impl Work {
    /// Tries until the effect is there, it is refused, or a later event has arrived.
    async fn run(&self, notify: &Notify, target: &Target) {
        let Self { event, arrived, replaced } = self;
        let (name, kind) = (target.to_string(), target.kind());
        let (project, reference, id) = (event.project(), event.reference(), event.id());
        let mut pause = BACKOFF[0];
        loop {
            // The configuration may have changed.
            if !notify.has_target(target, event) {
                return;
            }
            // Another pod may lead, or this one again soon: kas sends the latest events anew.
            if !notify.leader.is_leading() {
                notify.generation.send_modify(|generation| *generation += 1);
                return;
            }
            match attempt(notify, target, &name, event).await {
                Ok(false) => return notify.metrics.count(kind, "known"),
                Ok(true) => {
                    notify.metrics.count(kind, "done");
                    notify.metrics.times.observe(arrived.elapsed());
                    tracing::info!(project, reference, id, target = name, "event has had its effect");
                    notify.records.note(notify, &name, event).await;
                    return;
                }
                Err(EffectError::Refused(error)) => {
                    notify.metrics.count(kind, "refused");
                    tracing::warn!(project, reference, id, target = name, error, "event has no effect");
                    notify.records.note_refused(&name, event);
                    return;
                }
                Err(EffectError::Failed(error)) if arrived.elapsed() > GIVE_UP => {
                    notify.metrics.count(kind, "abandoned");
                    tracing::warn!(project, reference, id, target = name, error, "event abandoned");
                    return;
                }
                Err(EffectError::Failed(error)) => {
                    notify.metrics.count(kind, "failed");
                    tracing::warn!(project, reference, id, target = name, error, "event has no effect yet");
                }
            }
            tokio::select! {
                () = sleep(pause.mul_f64(rand::random_range(0.75..1.25))) => pause = (pause * 2).min(BACKOFF[1]),
                // Only the latest event counts.
                () = replaced.notified() => return,
            }
        }
    }
}

/// Returns false if the event was done before.
async fn attempt(
    notify: &Notify,
    target: &Target,
    name: &str,
    event: &ProjectEvent,
) -> Result<bool, EffectError> {
    let failed = |_| EffectError::Failed("no end in time".to_owned());
    if timeout(ATTEMPT_TIMEOUT, notify.records.is_done(notify, name, event)).await.map_err(failed)?? {
        return Ok(false);
    }
    let effects = match target {
        Target::Webhook(_) => &notify.webhook_effects,
        Target::Repository(_) | Target::ArgoCd(_) | Target::Flux(_) => &notify.object_effects,
    };
    let _permit = effects.acquire().await;
    timeout(ATTEMPT_TIMEOUT, effect(notify, target, event)).await.map_err(failed)?.map(|()| true)
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

/// Returns the result of several effects: that of one that may succeed later, or else of one that was refused.
pub(super) fn combine(results: impl IntoIterator<Item = Result<(), EffectError>>) -> Result<(), EffectError> {
    let mut combined = Ok(());
    for result in results {
        match result {
            Err(EffectError::Failed(_)) => return result,
            _ => combined = combined.and(result),
        }
    }
    combined
}

impl From<ApiError> for EffectError {
    fn from(error: ApiError) -> Self {
        let message = format!("the API of the cluster: {error}");
        match error.status {
            // A right, a rule or a namespace that is missing may be there later.
            400 | 405 | 422 => Self::Refused(message),
            _ => Self::Failed(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_that_may_heal_wins_over_a_refusal() {
        let refused = || Err(EffectError::Refused("no".to_owned()));
        let failed = || Err(EffectError::Failed("later".to_owned()));
        for (results, expected) in [
            (vec![], Ok(())),
            (vec![Ok(()), Ok(())], Ok(())),
            (vec![refused(), Ok(())], refused()),
            (vec![Ok(()), refused()], refused()),
            (vec![failed(), refused()], failed()),
            (vec![refused(), failed(), Ok(())], failed()),
        ] {
            assert_eq!(combine(results.clone()), expected, "{results:?}");
        }
    }
}
