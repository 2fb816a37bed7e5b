//! Requests that fail for a moment.

use std::time::Duration;

use tokio::time::sleep;

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

/// Sends a request until it succeeds, fails for good, or was tried six times. The fence is asked before each attempt.
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
        fence.check()?;
        match request().await {
            Err(error) if error.is_transient() => {
                let jittered = wait.mul_f64(rand::random_range(0.5..1.0));
                let asked = error.retry_after.unwrap_or_default().min(LONGEST);
                tracing::debug!(%error, "request to the API server will be repeated");
                sleep(jittered.max(asked)).await;
                wait = (wait * 2).min(LONGEST);
            }
            result => return Ok(result?),
        }
    }
    fence.check()?;
    Ok(request().await?)
}
