//! The health of other replicas, and whether they reach this one.
//!
//! [`OutlierDetector`]: a replica that fails is used only after all others for a while. It does no I/O; the time is passed in.
//!
//! [`ReachabilityProbe`]: a replica asks others to ping it at its published address. A connection to itself is no proof: a
//! firewall may be between it and the others.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use http::Request;
use proto::{AgentId, Reason, ServiceName, header};
use rand::seq::IndexedRandom as _;
use router::{Replica, RequestClass, RouteStore};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tunnel::Body;

use super::{PeerClient, PeerError, header::PeerRequestKind};
use crate::{admin::Readiness, destination::Destination};

/// The time that a ping may take.
const PING_TIMEOUT: Duration = Duration::from_secs(2);
/// The time that a ping-back may take, with the ping that it causes.
const PING_BACK_TIMEOUT: Duration = Duration::from_secs(5);
/// The number of other replicas that each check uses.
const SAMPLE: usize = 3;
/// The time between two checks while other replicas reach this one.
const PERIOD: Duration = Duration::from_secs(60);
/// The time between two checks while they do not, or while there are none.
const RETRY_PERIOD: Duration = Duration::from_secs(5);

/// Checks periodically whether other replicas reach this one.
#[derive(Debug)]
pub struct ReachabilityProbe {
    /// Sends the pings.
    pub client: PeerClient,
    /// The route store, with the addresses of replicas.
    pub store: Arc<dyn RouteStore>,
    /// This replica, with its published address.
    pub own: Replica,
}

/// The replica whose ping succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeSource {
    /// Another replica.
    OtherReplica,
    /// This replica, because there is no other.
    ThisReplica,
}

/// The reason why this replica and the others cannot use each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReachabilityError {
    /// A replica could not reach this one.
    #[error("other replicas do not reach this one: {0}")]
    Unreachable(String),
    /// No replica accepted a request of this one, and at least one refused it: secrets, certificates or clocks differ.
    #[error("other replicas refuse requests of this one: {0}")]
    Refused(String),
}

impl ReachabilityProbe {
    /// Checks periodically and at each change of the `credentials`, and publishes the result in the readiness, the metric and
    /// the log. The future never completes.
    pub async fn run(self, readiness: Readiness, mut credentials: watch::Receiver<()>) {
        let mut previous = None;
        loop {
            let result = self.check().await;
            if previous.as_ref() != Some(&result) {
                self.log(&result);
            }
            self.client.metrics().reachable.set(i64::from(result.is_ok()));
            readiness.set_unreachable(result.as_ref().err().map(|error| error.to_string().into()));
            let period = if result == Ok(ProbeSource::OtherReplica) { PERIOD } else { RETRY_PERIOD };
            previous = Some(result);
            tokio::select! {
                // Fails when no more changes can come.
                Ok(()) = credentials.changed() => {}
                () = sleep(period) => {}
            }
        }
    }

    fn log(&self, result: &Result<ProbeSource, ReachabilityError>) {
        let url = &self.own.url;
        match result {
            Ok(ProbeSource::OtherReplica) => tracing::info!(url, "other replicas reach this one"),
            Ok(ProbeSource::ThisReplica) => {
                tracing::info!(url, "this replica reaches itself, and there is no other replica");
            }
            Err(error @ ReachabilityError::Unreachable(_)) => tracing::error!(
                url,
                %error,
                "other replicas cannot forward requests to this one; OWN_PRIVATE_API_URL or private_api.listen.address is \
                 wrong, or a firewall is in between"
            ),
            Err(error @ ReachabilityError::Refused(_)) => tracing::error!(
                url,
                %error,
                "requests between this replica and the others fail; give all replicas the same secret or certificates of \
                 one authority, and synchronise their clocks"
            ),
        }
    }

    /// Asks other replicas to ping this one, and pings itself if there are none.
    ///
    /// # Errors
    ///
    /// Returns [`ReachabilityError::Unreachable`] if one of them, or this replica itself, cannot reach it, and
    /// [`ReachabilityError::Refused`] if replicas only refuse its requests.
    pub async fn check(&self) -> Result<ProbeSource, ReachabilityError> {
        let mut others = self.store.replicas();
        others.retain(|other| other.id != self.own.id);
        let sample: Vec<&Replica> = others.sample(&mut rand::rng(), SAMPLE).collect();
        let results = join_all(sample.iter().map(|other| self.client.request_ping_back(other))).await;
        let (mut reached, mut refused) = (false, None);
        for (other, result) in sample.iter().zip(results) {
            match result {
                Ok(()) => reached = true,
                Err(PeerError::Declined { reason: Reason::TunnelLost, message }) => {
                    let what = format!("replica {} at {} tried: {message}", other.id, other.url);
                    return Err(ReachabilityError::Unreachable(what));
                }
                // An invalid response is also the error if the other replica refuses the certificate of this one: in
                // TLS 1.3 the handshake of the client ends before the server has verified its certificate (RFC 8446
                // section 2).
                Err(
                    error @ (PeerError::Untrusted
                    | PeerError::Certificate(_)
                    | PeerError::ClockSkew { .. }
                    | PeerError::InvalidResponse(_)),
                ) => {
                    refused = Some(format!("replica {} at {}: {error}", other.id, other.url));
                }
                // The other replica is down, or its copy of the route store does not have this replica yet.
                Err(_) => {}
            }
        }
        match refused {
            // If one replica accepts requests of this one, the replica that refuses them has the wrong configuration.
            _ if reached => return Ok(ProbeSource::OtherReplica),
            Some(what) => return Err(ReachabilityError::Refused(what)),
            None => {}
        }
        let own = self.client.ping(&self.own).await;
        own.map(|()| ProbeSource::ThisReplica)
            .map_err(|error| ReachabilityError::Unreachable(format!("this replica tried: {error}")))
    }
}

impl PeerClient {
    /// Checks that a replica can be reached, is the expected one, and accepts requests of this one.
    pub async fn ping(&self, replica: &Replica) -> Result<(), PeerError> {
        let ping = self.send_ping(PeerRequestKind::Ping, replica);
        timeout(PING_TIMEOUT, ping).await.unwrap_or(Err(PeerError::Timeout))
    }

    /// Asks a replica to ping this one.
    async fn request_ping_back(&self, replica: &Replica) -> Result<(), PeerError> {
        let ping = self.send_ping(PeerRequestKind::PingBack, replica);
        timeout(PING_BACK_TIMEOUT, ping).await.unwrap_or(Err(PeerError::Timeout))
    }

    /// Sends a ping on a new connection, because an old one may outlive the route to the address.
    async fn send_ping(&self, kind: PeerRequestKind, replica: &Replica) -> Result<(), PeerError> {
        let (tunnel, driver) = self.connect(replica).await?;
        let no_agent = Destination {
            agent: AgentId(0),
            name: None,
            project_path: None,
            service: ServiceName::CONTROL.parse().expect("it is a name"),
            class: RequestClass::Short,
        };
        let mut request = Request::new(Body::empty());
        let service = ServiceName::CONTROL.parse().expect("a service name is a header value");
        request.headers_mut().insert(header::SERVICE, service);
        let mac = self.sign(&mut request, kind, replica, &no_agent);
        tokio::select! {
            result = tunnel.call(request) => self.check_response(result, mac.as_ref()),
            ended = driver => Err(PeerError::Unreachable(ended.to_string())),
        }
    }
}

/// The duration of the first ejection. Each further failure in a row doubles it.
const MIN_EJECTION: Duration = Duration::from_millis(500);
/// The duration of the longest ejection. After it the replica is used like the others again.
const MAX_EJECTION: Duration = Duration::from_secs(30);

/// Ejects one replica after a failure. An ejected replica is still used if all others decline.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OutlierDetector {
    failures: u32,
    ejected_until: Option<Instant>,
}

impl OutlierDetector {
    /// Records that the replica did not respond. Returns true if that ejects it; it is false if it was ejected before.
    pub(super) fn record_failure(&mut self, now: Instant) -> bool {
        if self.is_ejected(now) {
            // When a replica stops, many requests fail at once: they count as one failure.
            return false;
        }
        self.failures = self.failures.saturating_add(1);
        let factor = 1u32.checked_shl(self.failures - 1).unwrap_or(u32::MAX);
        self.ejected_until = Some(now + MIN_EJECTION.saturating_mul(factor).min(MAX_EJECTION));
        true
    }

    /// Records that the replica responded.
    pub(super) fn record_success(&mut self) {
        *self = Self::default();
    }

    /// Returns true if the replica is used only after all others.
    pub(super) fn is_ejected(&self, now: Instant) -> bool {
        self.ejected_until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_in_a_row_double_the_ejection_up_to_thirty_seconds() {
        let mut outlier = OutlierDetector::default();
        let mut now = Instant::now();
        assert!(!outlier.is_ejected(now));
        for expected in [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000] {
            assert!(outlier.record_failure(now));
            let expected = Duration::from_millis(expected);
            assert!(outlier.is_ejected(now + expected - Duration::from_millis(1)));
            assert!(!outlier.is_ejected(now + expected), "{expected:?}");
            now += expected;
        }
    }

    #[test]
    fn failures_during_an_ejection_count_as_one() {
        let (mut outlier, now) = (OutlierDetector::default(), Instant::now());
        assert!(outlier.record_failure(now));
        assert!(!(0..50).any(|_| outlier.record_failure(now)));
        assert!(!outlier.is_ejected(now + MIN_EJECTION));
    }

    #[test]
    fn success_ends_the_ejection() {
        let (mut outlier, now) = (OutlierDetector::default(), Instant::now());
        outlier.record_failure(now);
        outlier.record_success();
        assert!(!outlier.is_ejected(now));
        assert!(outlier.record_failure(now) && !outlier.is_ejected(now + MIN_EJECTION));
    }
}
