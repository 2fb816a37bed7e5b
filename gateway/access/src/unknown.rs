//! The limit of unknown credentials, for each address of callers.

use std::{net::IpAddr, time::Duration};

use prometheus_client::metrics::counter::Counter;
use proto::Reason;
use store::KeyedRateLimiter;

use crate::{address_key, error::RequestError};

const MINUTE: Duration = Duration::from_secs(60);

/// Limits how many unknown credentials an address may send.
///
/// Only refused credentials count, so that the callers behind a NAT have no common limit. From an address above the limit, GitLab
/// and issuers are not asked about further unknown credentials. Credentials that this replica knows to be good always pass.
#[derive(Debug)]
pub struct UnknownCredentials {
    limit: KeyedRateLimiter,
    refused: Counter,
}

impl UnknownCredentials {
    /// Admits `per_minute` unknown credentials of each address. `refused` counts the others.
    pub fn new(per_minute: u32, refused: Counter) -> Self {
        // For this replica alone: strangers cause no load on Redis, and each replica asks GitLab for itself.
        Self { limit: KeyedRateLimiter::new(per_minute, MINUTE, None), refused }
    }

    /// Checks an address whose credential this replica does not know. It counts nothing.
    ///
    /// # Errors
    ///
    /// The address has reached the limit.
    pub fn check(&self, address: IpAddr) -> Result<(), RequestError> {
        self.limit.check(address_key(address)).map_err(|wait| self.refusal(wait))
    }

    /// Counts an unknown credential.
    ///
    /// # Errors
    ///
    /// The address has reached the limit.
    pub async fn count(&self, address: IpAddr) -> Result<(), RequestError> {
        self.limit.admit(address_key(address)).await.map_err(|wait| self.refusal(wait))
    }

    fn refusal(&self, wait: Duration) -> RequestError {
        self.refused.inc();
        let what = "this address has sent as many unknown credentials in this minute as allowed \
                    (agent.kubernetes_api.limits.unknown_credentials_per_address_per_minute): wait, and check the credential; if \
                    many callers share the address of a load balancer, name it in agent.kubernetes_api.listen.trusted_proxies";
        let seconds = Duration::from_secs(wait.as_millis().div_ceil(1000) as u64);
        RequestError::new(Reason::TooManyRequests, what).with_retry_after(seconds)
    }
}
