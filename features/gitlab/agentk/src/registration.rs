//! The RPC `Register`, by which GitLab shows that the agent is connected.

use std::{convert::Infallible, time::Duration};

use tokio::time::{Instant, sleep, timeout};

use super::{
    backoff::{BackoffConfig, RetryBackoff},
    client::GrpcClient,
    context::GitLabContext,
};

/// The time between two registrations.
const PERIOD: Duration = Duration::from_secs(300);
/// The time limit of one registration.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The waits after a failure.
pub(super) const BACKOFF: BackoffConfig = BackoffConfig {
    first: Duration::from_secs(10),
    max: Duration::from_secs(300),
    factor: 2.0,
    jitter: 0.2,
    reset: Duration::from_secs(600),
};

/// Registers the process again and again, beginning a period after the registration that opened the connection. Never completes.
pub(super) async fn run(client: &GrpcClient, context: &GitLabContext) -> Infallible {
    let mut backoff = RetryBackoff::new(BACKOFF);
    let mut wait = PERIOD;
    loop {
        sleep(wait).await;
        wait = match timeout(TIMEOUT, client.register(context.register_request())).await {
            Ok(Ok(())) => {
                backoff.succeeded();
                PERIOD
            }
            failed => {
                let error = failed.map_or_else(|_| "no answer".to_owned(), |result| format!("{result:?}"));
                tracing::debug!(error, "registration at GitLab's kas failed");
                backoff.failed(Instant::now(), rand::random())
            }
        };
    }
}
