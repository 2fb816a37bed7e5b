//! The check that other replicas reach this one: a replica asks others to ping it at its published address. A connection to itself is no
//! proof: a firewall may be between it and the others.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use http::Request;
use proto::{AgentId, Reason, ServiceName, header};
use rand::seq::IndexedRandom as _;
use router::RequestClass;
use store::{Replica, Store};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
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
    pub store: Arc<dyn Store>,
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
