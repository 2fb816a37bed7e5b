//! Asks the cluster now and then whether it is there. Tunnels do not depend on the answer: kas can tell a caller that
//! the cluster is away only through a tunnel.

use std::time::Duration;

use tokio::time::sleep;

use crate::{Failure, Telemetry, backoff::Backoff, handlers::kubernetes::Kubernetes, health::Check};

/// Between two checks that succeeded, less up to a fifth.
const EVERY: Duration = Duration::from_secs(30);

/// Checks for ever, and tells `telemetry`.
pub async fn run(kubernetes: Kubernetes, telemetry: Telemetry) {
    let mut backoff = Backoff::default();
    loop {
        let answer = kubernetes.version().await;
        let wait = match &answer {
            Ok(_) => {
                backoff = Backoff::default();
                EVERY.mul_f64(rand::random_range(0.8..1.0))
            }
            Err(_) => backoff.failed(None, rand::random()),
        };
        note(&telemetry, answer);
        sleep(wait).await;
    }
}

fn note(telemetry: &Telemetry, answer: Result<Option<String>, Failure>) {
    match answer {
        Ok(version) => {
            let shown = version.as_deref().unwrap_or("unknown").to_owned();
            if telemetry.cluster_checked(Check::Up { version }) {
                tracing::info!(version = shown, "the Kubernetes API answers");
            }
        }
        Err(failure) => {
            if telemetry.cluster_checked(Check::Down(failure.to_string())) {
                tracing::warn!(error = %failure, "the Kubernetes API does not answer; tunnels stay up");
            } else {
                tracing::debug!(error = %failure, "the Kubernetes API still does not answer");
            }
        }
    }
}
