//! Recognizes that GitLab has switched kas off.
//!
//! GitLab switches kas off by answering 404 on its whole internal API. A 404 alone can also mean that an agent or a project does
//! not exist. The probe is a request for the agent of no token: GitLab answers 401 while kas is on.

use std::time::Duration;

use http::StatusCode;
use secrecy::SecretString;
use serde::de::IgnoredAny;
use tokio::time::sleep;

use super::{Credential, Endpoint, GitLabClient, GitLabError};

/// The time between two probes.
const PROBE_INTERVAL: Duration = Duration::from_secs(30);

/// A token that no agent has.
const NO_TOKEN: &str = "kas-probe";

/// Probes GitLab after a 404, and until GitLab has switched kas on again.
#[derive(Debug)]
pub struct SwitchMonitor {
    /// Sends the probes.
    pub client: GitLabClient,
}

impl SwitchMonitor {
    /// Probes GitLab when it has to be. The future never completes.
    pub async fn run(self) {
        let switch = self.client.switch();
        loop {
            switch.suspected().await;
            let mut off = self.is_switched_off().await == Some(true);
            if off {
                switch.set_off(true);
                tracing::warn!("GitLab has switched kas off: its internal API answers 404");
            }
            // At most one probe in each interval, also if every request gets a 404.
            sleep(PROBE_INTERVAL).await;
            while off {
                off = self.is_switched_off().await != Some(false);
                if off {
                    sleep(PROBE_INTERVAL).await;
                } else {
                    switch.set_off(false);
                    tracing::info!("GitLab has switched kas on again");
                }
            }
        }
    }

    /// Returns whether kas is switched off, or `None` if GitLab does not answer.
    async fn is_switched_off(&self) -> Option<bool> {
        let token = SecretString::from(NO_TOKEN);
        // An old GitLab has only the second path, and a future one perhaps only the first.
        for endpoint in [Endpoint::AgentInfo, Endpoint::LegacyAgentInfo] {
            match self.client.try_get::<IgnoredAny>(endpoint, &[], Credential::Agent(&token)).await {
                Err(error) if error.is_status(StatusCode::NOT_FOUND) => {}
                Err(GitLabError::Unavailable { .. }) => return None,
                Ok(_) | Err(GitLabError::Status { .. }) => return Some(false),
            }
        }
        Some(true)
    }
}
