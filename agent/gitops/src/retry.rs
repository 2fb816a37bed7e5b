//! Requests that fail for a moment.

use std::time::Duration;

use tokio::{
    pin,
    time::{sleep, sleep_until},
};

use crate::{ApiError, Fence, Stopped};

/// The attempts of one request.
const ATTEMPTS: u32 = 6;
/// The wait after the first attempt. It doubles.
const FIRST: Duration = Duration::from_millis(250);
/// The longest wait, also if the API server asks for more.
const LONGEST: Duration = Duration::from_secs(10);

/// Why a request has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallError {
    /// The API server refused it, or did not answer.
    Api(ApiError),
    /// The sync must stop.
    Stopped(Stopped),
}

impl From<ApiError> for CallError {
    fn from(error: ApiError) -> Self {
        Self::Api(error)
    }
}

impl From<Stopped> for CallError {
    fn from(stopped: Stopped) -> Self {
        Self::Stopped(stopped)
    }
}

/// Sends a request until it succeeds, fails for good, or was tried six times. The fence is asked before each attempt, and a request
/// is dropped when the time of the fence is over.
pub(crate) async fn with_retry<T, F>(
    fence: &dyn Fence,
    mut request: impl FnMut() -> F + Send,
) -> Result<T, CallError>
where
    F: Future<Output = Result<T, ApiError>> + Send,
    T: Send,
{
    let mut wait = FIRST;
    for _ in 1..ATTEMPTS {
        match send(fence, request()).await {
            Err(CallError::Api(error)) if error.is_transient() => {
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
) -> Result<T, CallError> {
    let mut until = fence.check()?;
    pin!(request);
    loop {
        tokio::select! {
            result = &mut request => return Ok(result?),
            // The Lease may have been renewed meanwhile.
            () = sleep_until(until) => until = fence.check()?,
        }
    }
}
