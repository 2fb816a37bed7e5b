//! Requests of commands that wait: kas and agentk may be replaced meanwhile, and no person is there who tries again.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::{CliError, warn};

/// The pause before a request is sent again.
const PAUSE: Duration = Duration::from_secs(2);

/// Repeats a request while kas or the agent cannot serve it. Errors of the caller, such as a missing right, are never repeated.
#[derive(Debug, Default)]
pub(crate) struct Retry {
    limit: RetryLimit,
    /// The reader was told that requests fail.
    has_warned: bool,
}

/// The time for which a request is repeated.
#[derive(Clone, Copy, Debug, Default)]
enum RetryLimit {
    #[default]
    Never,
    Until(Instant),
    Always,
}

impl Retry {
    /// Repeats requests until a time, or never without one.
    pub(crate) fn until(end: Option<Instant>) -> Self {
        Self { limit: end.map_or(RetryLimit::Never, RetryLimit::Until), has_warned: false }
    }

    /// Repeats all further requests. Before one has succeeded, the address may be wrong.
    pub(crate) fn keep_on(&mut self) {
        self.limit = RetryLimit::Always;
    }

    /// Sends a request until it succeeds, or is not repeated any more.
    ///
    /// # Errors
    ///
    /// The last error.
    pub(crate) async fn run<T>(
        &mut self,
        mut send: impl AsyncFnMut() -> Result<T, CliError>,
    ) -> Result<T, CliError> {
        loop {
            let sent = send().await;
            let Err(error) = sent else {
                self.has_warned = false;
                return sent;
            };
            let may_repeat = match self.limit {
                RetryLimit::Never => false,
                RetryLimit::Until(end) => Instant::now() < end,
                RetryLimit::Always => true,
            };
            if error.code != CliError::UNAVAILABLE || !may_repeat {
                return Err(error);
            }
            if !std::mem::replace(&mut self.has_warned, true) {
                warn(&format!("{}; trying again", error.message));
            }
            sleep(PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends requests with these results, the last one again and again. Returns the result with the number of requests.
    async fn sent(retry: &mut Retry, results: &[Result<(), u8>]) -> (Result<(), u8>, usize) {
        let mut count = 0;
        let send = async || {
            let result = results[count.min(results.len() - 1)];
            count += 1;
            result.map_err(|code| CliError { code, message: String::new() })
        };
        (retry.run(send).await.map_err(|error| error.code), count)
    }

    const AWAY: Result<(), u8> = Err(CliError::UNAVAILABLE);
    const REFUSED: Result<(), u8> = Err(CliError::USAGE);

    #[tokio::test(start_paused = true)]
    async fn request_is_repeated_until_the_end_of_the_time() {
        let mut retry = Retry::until(Some(Instant::now() + Duration::from_secs(60)));
        assert_eq!(sent(&mut retry, &[AWAY, AWAY, Ok(())]).await, (Ok(()), 3));
        assert_eq!(sent(&mut retry, &[AWAY, REFUSED]).await, (REFUSED, 2), "a right is missing");
        assert_eq!(sent(&mut retry, &[AWAY]).await, (AWAY, 28));
        assert_eq!(sent(&mut Retry::until(None), &[AWAY, Ok(())]).await, (AWAY, 1), "it does not wait");
    }

    #[tokio::test(start_paused = true)]
    async fn request_is_repeated_once_one_has_succeeded() {
        let mut retry = Retry::default();
        assert_eq!(sent(&mut retry, &[AWAY, Ok(())]).await, (AWAY, 1), "the address may be wrong");
        retry.keep_on();
        let mut results = vec![AWAY; 1000];
        results.push(Ok(()));
        assert_eq!(sent(&mut retry, &results).await, (Ok(()), 1001));
    }
}
