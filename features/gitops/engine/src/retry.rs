//! Requests that fail for a moment.

use std::time::Duration;

use kube_cluster::{ApiError, Fence, Stopped, while_open};
use tokio::time::sleep;

/// The attempts of one request.
const ATTEMPTS: u32 = 6;
/// The wait after the first attempt. It doubles.
const FIRST: Duration = Duration::from_millis(250);
/// The longest wait, also if the API server asks for more.
const LONGEST: Duration = Duration::from_secs(10);

/// The reason why a request has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ApiCallError {
    /// The API server refused it, or did not answer.
    Api(ApiError),
    /// The sync must stop.
    Stopped(Stopped),
}

impl From<ApiError> for ApiCallError {
    fn from(error: ApiError) -> Self {
        Self::Api(error)
    }
}

impl From<Stopped> for ApiCallError {
    fn from(stopped: Stopped) -> Self {
        Self::Stopped(stopped)
    }
}

/// Sends a request until it succeeds, fails for good, or was tried six times. The fence is asked before each attempt, and a request
/// is dropped when the time of the fence is over.
pub(crate) async fn with_retry<T, F>(
    fence: &dyn Fence,
    mut request: impl FnMut() -> F + Send,
) -> Result<T, ApiCallError>
where
    F: Future<Output = Result<T, ApiError>> + Send,
    T: Send,
{
    let mut wait = FIRST;
    for _ in 1..ATTEMPTS {
        match send(fence, request()).await {
            Err(ApiCallError::Api(error)) if error.is_transient() => {
                let jittered = wait.mul_f64(rand::random_range(0.5..1.0));
                let asked = error.retry_after.unwrap_or_default().min(LONGEST);
                // Its words may contain values of a Secret.
                let ApiError { status, reason, .. } = &error;
                tracing::debug!(status, reason, "request to the API server will be repeated");
                sleep(jittered.max(asked)).await;
                wait = (wait * 2).min(LONGEST);
            }
            result => return result,
        }
    }
    send(fence, request()).await
}

async fn send<T>(
    fence: &dyn Fence,
    request: impl Future<Output = Result<T, ApiError>> + Send,
) -> Result<T, ApiCallError> {
    Ok(while_open(fence, request).await??)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use tokio::time::Instant;

    use super::*;

    /// A fence that closes after three checks.
    struct ThreeChecks(AtomicUsize);

    impl Fence for ThreeChecks {
        fn check(&self) -> Result<Instant, Stopped> {
            let is_open = self.0.fetch_add(1, SeqCst) < 3;
            is_open.then(|| Instant::now() + Duration::from_secs(60)).ok_or(Stopped::LostLease)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn request_is_repeated_only_while_the_fence_is_open() {
        let sent = AtomicUsize::new(0);
        let result: Result<(), _> = with_retry(&ThreeChecks(AtomicUsize::new(0)), || {
            sent.fetch_add(1, SeqCst);
            async { Err(ApiError { status: 503, ..ApiError::default() }) }
        })
        .await;
        assert_eq!((result, sent.into_inner()), (Err(ApiCallError::Stopped(Stopped::LostLease)), 4));
    }
}
