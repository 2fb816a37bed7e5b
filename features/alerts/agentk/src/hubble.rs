//! The client of Hubble Relay: follows the flows that a policy dropped.

use std::{
    convert::Infallible,
    fmt,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use agentk_core::upstream::{Io, Scheme, ServerUrl, TlsConfigSource, UpstreamConnector, UpstreamError};
use backoff::Backoff;
use cluster_alerts::{
    key_of_flow,
    messages::{
        Flow, FlowsContent, GET_FLOWS, GetFlowsRequest, GetFlowsResponse, SERVER_STATUS, ServerStatus,
        Timestamp,
    },
};
use http::{Uri, uri::PathAndQuery};
use hyper_util::rt::TokioIo;
use proto::{ErrorChain, agent_configuration::alerts::AlertPolicies, short_line};
use tokio::{
    task::yield_now,
    time::{Instant, sleep, timeout},
};
use tonic::{
    Status, Streaming,
    client::Grpc,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;
use tower::service_fn;

use super::{Alerts, observation::HUBBLE};

/// The time for connecting, and that for the head of the response.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// The largest message. The labels of two pods, which their owners choose, fit: an object of Kubernetes has at most 1.5 MiB.
const MAX_MESSAGE: usize = 4 << 20;
/// The bytes that Hubble may send before agentk has read them.
const WINDOW: u32 = 1 << 20;
/// The silence after which a PING is sent. A server of grpc-go closes connections with more than one in 5 minutes.
const PING_INTERVAL: Duration = Duration::from_secs(330);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// The oldest flow that is asked for again after a connection was lost: a silent one is noticed after 350 s, and the next one takes some.
const MAX_GAP: Duration = Duration::from_secs(420);
/// The messages after which other tasks have their turn.
const TURN: usize = 64;

/// The address of Hubble Relay, and the certificates for it. Clones share the certificates.
#[derive(Clone)]
pub(crate) struct HubbleRelay {
    url: ServerUrl,
    connector: Arc<UpstreamConnector>,
}

/// The reason why a stream of flows has ended.
#[derive(Debug, thiserror::Error)]
enum FollowError {
    #[error("cannot connect to Hubble Relay: {}", ErrorChain(.0))]
    Connect(tonic::transport::Error),
    #[error("Hubble Relay did not respond in time")]
    Timeout,
    #[error("Hubble Relay responded {:?}: {}", .0.code(), short_line(.0.message().as_bytes()))]
    Status(Status),
    #[error("Hubble Relay ended the stream of flows")]
    Ended,
}

impl HubbleRelay {
    /// Returns a relay. A certificate is read for each connection.
    pub(crate) fn new(url: ServerUrl, tls: Arc<dyn TlsConfigSource>) -> Self {
        let connector = Arc::new(UpstreamConnector::new(url.clone(), CONNECT_TIMEOUT, tls));
        Self { url, connector }
    }

    /// Asks the relay for its status, which it answers at once, and returns its address.
    ///
    /// # Errors
    ///
    /// It does not answer. The error is a sentence.
    pub(crate) async fn check(&self) -> Result<&ServerUrl, String> {
        let asking = async {
            let mut grpc = self.connect().await?;
            grpc.ready().await.map_err(FollowError::Connect)?;
            let codec = ProstCodec::<ServerStatus, ServerStatus>::default();
            let request = tonic::Request::new(ServerStatus {});
            let status = grpc.unary(request, PathAndQuery::from_static(SERVER_STATUS), codec).await;
            status.map(drop).map_err(FollowError::Status)
        };
        let answered = timeout(CONNECT_TIMEOUT, asking).await.unwrap_or(Err(FollowError::Timeout));
        answered.map(|()| &self.url).map_err(|error| error.to_string())
    }

    async fn flows(&self, since: Option<Timestamp>) -> Result<Streaming<GetFlowsResponse>, FollowError> {
        let mut grpc = self.connect().await?;
        let response = timeout(RESPONSE_TIMEOUT, get_flows(&mut grpc, since)).await;
        response.map_err(|_| FollowError::Timeout)?
    }

    async fn connect(&self) -> Result<Grpc<Channel>, FollowError> {
        let scheme = if self.url.scheme() == Scheme::Https { "https" } else { "http" };
        let authority = self.url.authority().to_str().unwrap_or("hubble-relay");
        let origin: Uri = format!("{scheme}://{authority}")
            .parse()
            .unwrap_or_else(|_| Uri::from_static("http://hubble-relay"));
        let endpoint = Endpoint::from(origin)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .http2_keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT);
        let connector = Arc::clone(&self.connector);
        let dial = service_fn(move |_: Uri| {
            let connector = Arc::clone(&connector);
            async move { dial(&connector).await.map(TokioIo::new) }
        });
        let channel = endpoint.connect_with_connector(dial).await.map_err(FollowError::Connect)?;
        Ok(Grpc::new(channel).max_decoding_message_size(MAX_MESSAGE))
    }
}

async fn get_flows(
    grpc: &mut Grpc<Channel>,
    since: Option<Timestamp>,
) -> Result<Streaming<GetFlowsResponse>, FollowError> {
    grpc.ready().await.map_err(FollowError::Connect)?;
    let request = tonic::Request::new(GetFlowsRequest::of_drops(since));
    let codec = ProstCodec::default();
    let response = grpc.server_streaming(request, PathAndQuery::from_static(GET_FLOWS), codec).await;
    Ok(response.map_err(FollowError::Status)?.into_inner())
}

async fn dial(connector: &UpstreamConnector) -> Result<Box<dyn Io>, UpstreamError> {
    let tls = match connector.url().scheme() {
        Scheme::Http => None,
        Scheme::Https => Some(connector.tls().await?),
    };
    let deadline = Instant::now() + CONNECT_TIMEOUT;
    let tcp = connector.tcp(deadline).await?;
    let Some((tls, name)) = tls else { return Ok(Box::new(tcp)) };
    let failed = |error| UpstreamError::handshake(connector.url().host(), &error);
    let late = || std::io::Error::new(std::io::ErrorKind::TimedOut, "the handshake took too long");
    let handshake = tokio::time::timeout_at(deadline, tls.connect(name, tcp)).await;
    let stream = handshake.unwrap_or_else(|_| Err(late())).map_err(failed)?;
    Ok(Box::new(stream))
}

/// Follows the flows, and connects again after each end. The future never completes.
pub(super) async fn follow(alerts: &Alerts) {
    let Some(relay) = &alerts.sources.hubble else { return std::future::pending().await };
    let (mut backoff, mut last_error) = (Backoff::default(), String::new());
    // The time of the newest flow.
    let mut newest: Option<Timestamp> = None;
    loop {
        let began = Instant::now();
        let mut received = false;
        let Err(error) = read(alerts, relay, &mut newest, &mut received).await;
        alerts.observation.lock().interrupt(HUBBLE);
        alerts.metrics.set_connected(false);
        alerts.metrics.count_failure();
        // A stream that ends at once, again and again, is no reason for as many lines.
        let message = error.to_string();
        if message == last_error {
            tracing::debug!(error = message, "flows of Hubble are not followed");
        } else {
            tracing::warn!(error = message, "flows of Hubble are not followed; agentk connects again");
            last_error = message;
        }
        // A flow that cannot be read would come again at once.
        let wait = if received {
            backoff.lost(began.elapsed(), rand::random())
        } else {
            backoff.failed(None, rand::random())
        };
        sleep(wait.max(Duration::from_millis(200))).await;
    }
}

async fn read(
    alerts: &Alerts,
    relay: &HubbleRelay,
    newest: &mut Option<Timestamp>,
    received: &mut bool,
) -> Result<Infallible, FollowError> {
    let mut stream = relay.flows(newest.and_then(|time| after(time, SystemTime::now()))).await?;
    tracing::info!(hubble = %relay.url, "following flows");
    alerts.metrics.set_connected(true);
    alerts.observation.lock().resume(HUBBLE);
    let mut number = 0_usize;
    loop {
        let message = stream.message().await.map_err(FollowError::Status)?;
        let response = message.ok_or(FollowError::Ended)?;
        *received = true;
        match response.content {
            Some(FlowsContent::Flow(flow)) => {
                *newest = later(*newest, flow.time, SystemTime::now());
                alerts.observe_flow(&flow);
            }
            Some(FlowsContent::Lost(lost)) => alerts.metrics.drop_many("lost-by-hubble", lost.count),
            Some(FlowsContent::NodeStatus(status)) => {
                tracing::debug!(state = status.state, nodes = status.node_names.len(), "nodes of Hubble");
            }
            None => {}
        }
        // A flood is always ready to be read.
        number += 1;
        if number.is_multiple_of(TURN) {
            yield_now().await;
        }
    }
}

impl Alerts {
    /// Counts a flow, if it is an alert.
    pub(super) fn observe_flow(&self, flow: &Flow) {
        let filter = Arc::clone(&self.filter.borrow());
        let policies = self.policies.load();
        let policies = match filter.section.policies {
            AlertPolicies::All => None,
            AlertPolicies::Annotated => Some(&**policies),
        };
        match key_of_flow(flow, policies, |namespace| filter.contains(namespace)) {
            Ok((key, sample)) => {
                self.metrics.count(key.verdict);
                self.observe(key, sample, flow.time.and_then(system_time));
            }
            Err(ignored) => self.metrics.drop_one(ignored.as_str()),
        }
    }
}

/// Returns the later one of the time of the newest flow and that of another one. The clock of a node that is ahead must not hide the flows
/// of others.
fn later(newest: Option<Timestamp>, time: Option<Timestamp>, now: SystemTime) -> Option<Timestamp> {
    let time = time.and_then(system_time).map(|time| time.min(now));
    let newest = newest.and_then(system_time).max(time)?.duration_since(UNIX_EPOCH).ok()?;
    Some(Timestamp {
        seconds: i64::try_from(newest.as_secs()).ok()?,
        nanos: i32::try_from(newest.subsec_nanos()).ok()?,
    })
}

/// Returns the time from which flows are asked for after the last one, or `None` if that is too long ago, or in the future.
fn after(last: Timestamp, now: SystemTime) -> Option<Timestamp> {
    let age = now.duration_since(system_time(last)?).ok()?;
    let next = match last.nanos {
        999_999_999 => Timestamp { seconds: last.seconds + 1, nanos: 0 },
        nanos => Timestamp { nanos: nanos + 1, ..last },
    };
    (age <= MAX_GAP).then_some(next)
}

fn system_time(time: Timestamp) -> Option<SystemTime> {
    let nanos = u32::try_from(time.nanos).ok().filter(|nanos| *nanos < 1_000_000_000)?;
    let since = Duration::new(u64::try_from(time.seconds).ok()?, nanos);
    UNIX_EPOCH.checked_add(since)
}

impl fmt::Debug for HubbleRelay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HubbleRelay").field("url", &self.url).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_flow_is_no_later_than_now_and_never_goes_back() {
        let now = UNIX_EPOCH + Duration::from_secs(1000);
        let time = |seconds, nanos| Some(Timestamp { seconds, nanos });
        for (newest, flow, expected) in [
            (None, time(990, 7), time(990, 7)),
            (time(990, 7), time(990, 8), time(990, 8)),
            (time(990, 7), time(800, 9), time(990, 7)),
            (time(990, 7), None, time(990, 7)),
            (time(990, 7), time(5000, 3), time(1000, 0)),
            (time(990, 7), time(i64::MAX, 0), time(1000, 0)),
            (time(990, 7), time(991, -1), time(990, 7)),
        ] {
            assert_eq!(later(newest, flow, now), expected, "{flow:?}");
        }
    }

    #[test]
    fn silent_relay_is_noticed_before_its_flows_are_too_old() {
        assert!(PING_INTERVAL + PING_TIMEOUT + Duration::from_secs(20) + CONNECT_TIMEOUT <= MAX_GAP);
    }

    #[test]
    fn flows_are_asked_for_again_from_the_last_one_on() {
        let now = UNIX_EPOCH + Duration::from_secs(1000);
        let time = |seconds, nanos| Timestamp { seconds, nanos };
        assert_eq!(after(time(990, 7), now), Some(time(990, 8)));
        assert_eq!(after(time(990, 999_999_999), now), Some(time(991, 0)));
        for bad in
            [time(579, 0), time(1001, 0), time(i64::MAX, 0), time(-1, 0), time(990, -1), time(990, i32::MAX)]
        {
            assert_eq!(after(bad, now), None, "{bad:?}");
        }
    }
}
