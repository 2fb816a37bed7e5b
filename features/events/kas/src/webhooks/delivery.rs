//! Delivers the events of one webhook, one after the other.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::StatusCode;
use parking_lot::Mutex;
use proto::webhook_signature;
use store::{CURSOR_TTL, CursorRequest, EventPosition, LoggedEvent, StoreError};
use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep_until, timeout, timeout_at},
};

use super::{
    WebhookContext, WebhookSettings,
    client::{DeliveryAnswer, DeliveryError, DeliveryRequest, post},
    gitlab_alert::is_end,
    metrics::DeliveryResult,
    payload,
    target::WebhookFiles,
};
use crate::WebhookFormat;

/// The time between two claims of the cursor, a quarter of the time for which a claim is valid.
const CLAIM_INTERVAL: Duration = Duration::from_secs(3);
/// The first and the longest wait before the next attempt.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));
/// The longest `Retry-After` of a receiver that is obeyed.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(600);
/// The attempts after which an event whose content the receiver refuses is left out: more of them would only hold up the later events.
const MAX_REFUSALS: u32 = 8;
/// The time that a delivery may take when the replica stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);
/// The events that are read at once.
const PAGE: usize = 100;

/// The position up to which this process has delivered. It may be ahead of the cursor while the store does not respond, or after the
/// store has lost it.
#[derive(Debug, Default)]
struct Progress {
    /// `None` before the first claim.
    position: Option<EventPosition>,
    /// The position of the cursor in the last response of the store.
    stored: EventPosition,
}

/// What to do with an event after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Delivered,
    Gone,
    /// The receiver has refused the content each time.
    Refused,
    /// It is tried again after this time.
    Retry(Duration),
}

impl Progress {
    /// Returns the position at which the cursor begins if the store has none: that of this process, so that nothing is delivered twice, and
    /// events that wait are not left out.
    fn initial(&self, newest: EventPosition) -> EventPosition {
        self.position.unwrap_or(newest)
    }

    /// Notes the position of the cursor. Another replica may have moved it since this process had the claim.
    fn note_claimed(&mut self, stored: EventPosition) {
        self.stored = stored;
        self.position = self.position.max(Some(stored));
    }

    /// Returns the position to which the cursor has to be moved, if it is behind.
    fn unsaved(&self) -> Option<EventPosition> {
        self.position.filter(|position| *position > self.stored)
    }
}

/// Delivers while this replica has claimed the cursor, until the replica stops.
pub(super) async fn run(webhook: &Arc<WebhookSettings>, context: &WebhookContext) {
    let progress = Mutex::new(Progress::default());
    let name = &*webhook.name;
    while !context.stopping.is_cancelled() {
        let asked = Instant::now();
        // A replica that has not read the log yet does not know where a new webhook begins.
        let claimed = match context.events.missing() {
            Some(_) => false,
            None => claim(webhook, context, &progress).await.unwrap_or_default(),
        };
        if claimed {
            context.metrics.set_active(name, true);
            let lost = keep_claim(webhook, context, &progress, asked + CURSOR_TTL);
            tokio::select! {
                () = lost => tracing::debug!(webhook = name, "another replica delivers to the webhook"),
                () = deliver_all(webhook, context, &progress) => {}
            }
            context.metrics.set_active(name, false);
            context.metrics.set_lag(name, 0);
        }
        let _ = timeout(CLAIM_INTERVAL, context.stopping.cancelled()).await;
    }
    let released = context.events.store().event_cursor(name, context.replica, CursorRequest::Release);
    // Without an answer, the claim ends by itself.
    let _ = timeout(STOP_TIMEOUT, released).await;
}

/// Claims the cursor, or renews the claim, and moves a cursor that is behind this process. Returns false if another replica has claimed it.
async fn claim(
    webhook: &Arc<WebhookSettings>,
    context: &WebhookContext,
    progress: &Mutex<Progress>,
) -> Result<bool, StoreError> {
    let request = CursorRequest::Claim(progress.lock().initial(context.events.newest()));
    let stored = context.events.store().event_cursor(&webhook.name, context.replica, request).await?;
    let Some(stored) = stored else { return Ok(false) };
    progress.lock().note_claimed(stored);
    Ok(store_progress(webhook, context, progress).await)
}

/// Renews the claim until it is lost: another replica has it, or can have it because it was not renewed.
async fn keep_claim(
    webhook: &Arc<WebhookSettings>,
    context: &WebhookContext,
    progress: &Mutex<Progress>,
    mut valid_until: Instant,
) {
    loop {
        sleep_until(valid_until.min(Instant::now() + CLAIM_INTERVAL)).await;
        let asked = Instant::now();
        match timeout_at(valid_until, claim(webhook, context, progress)).await {
            Ok(Ok(true)) => valid_until = asked + CURSOR_TTL,
            Ok(Err(_)) if asked < valid_until => {}
            Ok(Ok(false) | Err(_)) | Err(_) => return,
        }
    }
}

/// Delivers all events after a position, as they come, until the replica stops or has lost the claim.
async fn deliver_all(webhook: &Arc<WebhookSettings>, context: &WebhookContext, progress: &Mutex<Progress>) {
    let mut changes = context.events.changes();
    let mut missed = EventPosition::START;
    loop {
        changes.borrow_and_update();
        let position = progress.lock().initial(EventPosition::START);
        let page = context.events.read(position, PAGE);
        if page.gap && page.removed > missed {
            missed = page.removed;
            context.metrics.count(&webhook.name, DeliveryResult::Missed);
            tracing::warn!(webhook = webhook.name, "events were removed before they were delivered");
        }
        for event in &page.events {
            let is_selected = webhook.selects(&context.events, &event.event);
            if is_selected && !deliver(webhook, context, event).await {
                return;
            }
            progress.lock().position = Some(event.position);
            if is_selected && !store_progress(webhook, context, progress).await {
                return;
            }
        }
        if page.events.is_empty() {
            // Those that were not selected are not looked at again.
            if !store_progress(webhook, context, progress).await {
                return;
            }
            tokio::select! {
                biased;
                () = context.stopping.cancelled() => return,
                // The sender lives as long as the store.
                _ = changes.changed() => {}
            }
        }
    }
}

/// Moves the cursor. If the store does not respond, the next delivery or renewal moves it. Returns false if the claim is lost.
async fn store_progress(
    webhook: &Arc<WebhookSettings>,
    context: &WebhookContext,
    progress: &Mutex<Progress>,
) -> bool {
    let Some(position) = progress.lock().unsaved() else { return true };
    let request = CursorRequest::Move(position);
    match context.events.store().event_cursor(&webhook.name, context.replica, request).await {
        Ok(Some(stored)) => {
            progress.lock().stored = stored;
            true
        }
        Ok(None) => {
            tracing::debug!(webhook = webhook.name, "the cursor of the webhook is that of another replica");
            false
        }
        Err(error) => {
            tracing::debug!(webhook = webhook.name, %error, "the cursor of the webhook was not moved");
            true
        }
    }
}

/// Delivers an event, or leaves it out after its time. Returns false if the replica stops before.
async fn deliver(webhook: &Arc<WebhookSettings>, context: &WebhookContext, event: &LoggedEvent) -> bool {
    let (name, metrics) = (&*webhook.name, &context.metrics);
    let (mut backoff, mut refusals) = (BACKOFF.0, 0);
    loop {
        let age = age(event.position, SystemTime::now());
        if age > webhook.retry_for {
            metrics.count(name, DeliveryResult::Expired);
            metrics.set_lag(name, 0);
            tracing::warn!(webhook = name, event = %event.position, "an event was not delivered in time, and is left out");
            return true;
        }
        if context.stopping.is_cancelled() {
            return false;
        }
        let attempt = attempt(webhook, event);
        tokio::pin!(attempt);
        let attempted = tokio::select! {
            biased;
            attempted = &mut attempt => attempted,
            () = context.stopping.cancelled() => match timeout(STOP_TIMEOUT, attempt).await {
                Ok(attempted) => attempted,
                Err(_) => return false,
            },
        };
        let (verdict, error) = match attempted {
            Ok(answer) if is_end_of_none(webhook.format, event, answer.status) => {
                (Verdict::Delivered, String::new())
            }
            Ok(answer) => {
                refusals = if is_refusal(answer.status) { refusals + 1 } else { 0 };
                (judge(answer, refusals, backoff), format!("the receiver responds {}", answer.status))
            }
            Err(error) => (Verdict::Retry(backoff), error.to_string()),
        };
        let wait = match verdict {
            Verdict::Delivered => {
                metrics.count(name, DeliveryResult::Delivered);
                metrics.set_lag(name, 0);
                return true;
            }
            Verdict::Gone => {
                metrics.count(name, DeliveryResult::Gone);
                metrics.set_lag(name, 0);
                tracing::warn!(webhook = name, event = %event.position, "the receiver of a webhook wants no such events (410)");
                return true;
            }
            Verdict::Refused => {
                metrics.count(name, DeliveryResult::Refused);
                metrics.set_lag(name, 0);
                tracing::warn!(webhook = name, event = %event.position, error, "the receiver of a webhook refuses the event each time, which is left out");
                return true;
            }
            Verdict::Retry(wait) => wait.mul_f64(rand::random_range(0.8..1.2)),
        };
        metrics.count(name, DeliveryResult::Failed);
        metrics.set_lag(name, age.as_secs());
        tracing::info!(webhook = name, event = %event.position, error, ?wait, "an event is delivered again later");
        // A replica that stops does not wait.
        let _ = timeout(wait, context.stopping.cancelled()).await;
        backoff = (backoff * 2).min(BACKOFF.1);
    }
}

/// Returns true if GitLab answers that it has no open alert with the fingerprint of an end: somebody has resolved it, or GitLab never had
/// it. The end has nothing left to do.
fn is_end_of_none(format: WebhookFormat, event: &LoggedEvent, status: StatusCode) -> bool {
    format == WebhookFormat::GitlabAlert && status == StatusCode::BAD_REQUEST && is_end(&event.event.content)
}

/// Returns true if the status is about the content of the event, which is the same at the next attempt.
fn is_refusal(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE | StatusCode::UNPROCESSABLE_ENTITY
    )
}

/// Decides by the answer of the receiver, and by the number of refusals in a row. Everything but a success is tried again: also a redirect,
/// which is never followed.
fn judge(
    DeliveryAnswer { status, retry_after }: DeliveryAnswer,
    refusals: u32,
    backoff: Duration,
) -> Verdict {
    match status {
        status if status.is_success() => Verdict::Delivered,
        StatusCode::GONE => Verdict::Gone,
        _ if refusals >= MAX_REFUSALS => Verdict::Refused,
        _ => Verdict::Retry(retry_after.unwrap_or_default().min(MAX_RETRY_AFTER).max(backoff)),
    }
}

/// Sends an event once. The files of the webhook are read for it.
async fn attempt(
    webhook: &Arc<WebhookSettings>,
    event: &LoggedEvent,
) -> Result<DeliveryAnswer, DeliveryError> {
    let settings = Arc::clone(webhook);
    let read = spawn_blocking(move || settings.read_files()).await;
    let WebhookFiles { url, secret, authorization, roots } = match read {
        Ok(read) => read.map_err(DeliveryError::Settings)?,
        Err(error) => return Err(DeliveryError::Settings(error.to_string())),
    };
    let id = event.position.to_string();
    let timestamp = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let body = payload::body(webhook.format, event);
    let signature = secret.map(|secret| webhook_signature::sign(&secret.keys(), &id, timestamp, &body));
    let delivery = DeliveryRequest { id, timestamp, signature, authorization, body };
    post(&url, &webhook.addresses, roots, delivery).await
}

/// Returns the time since an event was appended.
fn age(position: EventPosition, now: SystemTime) -> Duration {
    let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(Duration::from_millis(position.millis))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_cursor_begins_where_this_process_is() {
        let at = |millis| EventPosition { millis, sequence: 0 };
        let mut progress = Progress::default();
        assert_eq!(progress.initial(at(40)), at(40), "a new webhook begins with the next event");
        progress.note_claimed(at(30));
        assert_eq!((progress.position, progress.unsaved()), (Some(at(30)), None));
        progress.position = Some(at(50));
        assert_eq!(progress.unsaved(), Some(at(50)));
        // Redis has lost the cursor. Ten events wait.
        assert_eq!(progress.initial(at(60)), at(50), "the events that wait are not left out");
        progress.note_claimed(at(50));
        assert_eq!(progress.unsaved(), None);
        // Another process has created it before, at an older position.
        progress.note_claimed(at(0));
        assert_eq!(
            (progress.position, progress.unsaved()),
            (Some(at(50)), Some(at(50))),
            "nothing comes twice"
        );
        // Another replica has delivered meanwhile.
        progress.note_claimed(at(70));
        assert_eq!((progress.position, progress.unsaved()), (Some(at(70)), None));
    }

    #[test]
    fn only_a_success_ends_the_attempts() {
        let second = Duration::from_secs(1);
        let answer = |status: u16, retry_after: Option<u64>| DeliveryAnswer {
            status: StatusCode::from_u16(status).unwrap(),
            retry_after: retry_after.map(Duration::from_secs),
        };
        let judge = |status, retry_after| judge(answer(status, retry_after), 1, second);
        for status in [200, 202, 204] {
            assert_eq!(judge(status, None), Verdict::Delivered);
        }
        for status in [301, 307, 400, 404, 500, 503] {
            assert_eq!(judge(status, None), Verdict::Retry(second), "{status}");
        }
        assert_eq!(judge(410, None), Verdict::Gone);
        assert_eq!(judge(429, Some(30)), Verdict::Retry(Duration::from_secs(30)));
        assert_eq!(judge(429, Some(1_000_000)), Verdict::Retry(MAX_RETRY_AFTER));
        assert_eq!(super::judge(answer(400, None), MAX_REFUSALS - 1, second), Verdict::Retry(second));
        assert_eq!(super::judge(answer(400, None), MAX_REFUSALS, second), Verdict::Refused);
        for (status, expected) in
            [(400, true), (413, true), (422, true), (401, false), (404, false), (500, false)]
        {
            assert_eq!(is_refusal(StatusCode::from_u16(status).unwrap()), expected, "{status}");
        }
    }

    #[test]
    fn end_of_an_alert_that_gitlab_does_not_have_is_delivered() {
        use proto::events::{Event, EventContent, EventKind, Severity};

        let logged = |severity| {
            let content = EventContent::new(EventKind::Health, severity, "x");
            let event = Event { time: SystemTime::UNIX_EPOCH, agent: None, content };
            LoggedEvent { position: EventPosition::START, key: "key".into(), event }
        };
        let (begin, end) = (logged(Severity::Warning), logged(Severity::Info));
        for (format, event, status, expected) in [
            (WebhookFormat::GitlabAlert, &end, 400, true),
            (WebhookFormat::GitlabAlert, &end, 422, false),
            (WebhookFormat::GitlabAlert, &end, 500, false),
            (WebhookFormat::GitlabAlert, &begin, 400, false),
            (WebhookFormat::Json, &end, 400, false),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(is_end_of_none(format, event, status), expected, "{format:?} {status}");
        }
    }

    #[test]
    fn age_is_that_of_the_log() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
        let at = |millis| EventPosition { millis, sequence: 0 };
        assert_eq!(age(at(40_000), now), Duration::from_secs(60));
        assert_eq!(age(at(200_000), now), Duration::ZERO, "the clock of Redis is ahead");
    }
}
