//! `POST /web/v1/live`: one stream for each tab, with the list of agents and watches of the graphs of several agents.
//!
//! ```text
//!   list of agents, when a route changes ──┐
//!   watch 0: the caller's own request ──► proxy ──► agent ──┐
//!   watch 1: …                                              ├──► frames in the order of their arrival ──► browser
//!   a frame after each 15 s ────────────────────────────────┘
//! ```
//!
//! * **A watch is a request of the caller.** The proxy decides on it, counts it, limits it and audits it as any other one.
//! * **kas keeps nothing.** A frame has the bytes of one frame of the agent, compressed or not, and kas reads the next one only when the
//!   browser takes it. Unread bytes stay in the window of the tunnel's stream, which the budget of all responses limits.
//! * **A watch that fails ends alone.** The page asks again, with a new stream that continues each watch at its token: the tokens are
//!   those of agentk, so that any replica can serve the next stream.

mod agents;
mod frame;
mod watch;

use std::{net::IpAddr, sync::Arc, time::Duration};

use access::Grant;
use axum::body::Body;
use bytes::Bytes;
use futures_util::{
    StreamExt as _,
    future::BoxFuture,
    stream::{self, BoxStream, SelectAll},
};
use http::{HeaderValue, Method, Request, Response, StatusCode, header::RETRY_AFTER};
use http_body_util::{BodyExt as _, Limited};
use kas_listen::addresses::PeerAddress;
use proto::header::ERROR;
use serde::Deserialize;
use tokio::time::{sleep, timeout};

use self::{
    frame::{FrameKind, frame},
    watch::{Watch, WatchSource},
};
use super::{WebServer, no_session, refusal, sessions::Session, wrong_method};
use kas_core::proxy::{CallerBody, ConcurrencyPermit, RequestGuard};

pub(super) const PATH: &str = "/web/v1/live";
/// The longest request, in bytes.
const MAX_REQUEST: usize = 64 << 10;
/// The time in which it has to arrive.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The most watches of one stream.
const MAX_WATCHES: usize = 64;
/// The most watches of one agent in one stream. A pod of agentk serves 64 of all tabs and other callers.
const MAX_WATCHES_OF_AGENT: usize = 8;
/// The period of the frames that show that the connection works.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// The request of a tab: the things that it follows.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LiveRequest {
    /// The list of agents.
    #[serde(default)]
    agents: bool,
    /// The graphs. Frames name a watch by its place in this list.
    #[serde(default)]
    watches: Vec<Watch>,
}

/// The stream of a tab.
struct LiveStream {
    frames: SelectAll<BoxStream<'static, Bytes>>,
    /// Completes when the stream ends, with its last frame.
    end: BoxFuture<'static, Option<Bytes>>,
    /// Counts the stream as a request of the caller.
    _permit: ConcurrencyPermit,
    /// Counts the stream as a request of the connection.
    _guard: RequestGuard,
}

/// Responds to a request for the stream of a tab.
pub(super) async fn respond(
    web: &Arc<WebServer>,
    request: Request<CallerBody>,
    session: Option<(Arc<Session>, Arc<Grant>)>,
    (client, peer): (IpAddr, &Arc<PeerAddress>),
    guard: &RequestGuard,
) -> Response<Body> {
    if request.method() != Method::POST {
        return wrong_method("POST");
    }
    let Some((session, grant)) = session else { return no_session() };
    let (head, body) = request.into_parts();
    let body = timeout(REQUEST_TIMEOUT, Limited::new(body, MAX_REQUEST).collect()).await;
    let Some(body) = body.ok().and_then(Result::ok) else {
        return refusal(StatusCode::BAD_REQUEST, "the body is incomplete or too long");
    };
    let wanted: LiveRequest = match serde_json::from_slice(&body.to_bytes()) {
        Ok(wanted) => wanted,
        Err(error) => return refusal(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    if wanted.watches.len() > MAX_WATCHES {
        return refusal(StatusCode::BAD_REQUEST, &format!("a stream has at most {MAX_WATCHES} watches"));
    }
    let of_agent = |agent: &str| wanted.watches.iter().filter(|watch| watch.agent == agent).count();
    if wanted.watches.iter().any(|watch| of_agent(&watch.agent) > MAX_WATCHES_OF_AGENT) {
        let what = format!("a stream has at most {MAX_WATCHES_OF_AGENT} watches of one agent");
        return refusal(StatusCode::BAD_REQUEST, &what);
    }
    let permit = match web.proxy.acquire(&grant) {
        Ok(permit) => permit,
        Err(error) => {
            let mut response = refusal(error.reason.status(), &error.message);
            response.headers_mut().insert(ERROR, HeaderValue::from_static(error.reason.as_str()));
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(1));
            return response;
        }
    };
    let source = WatchSource::new(Arc::clone(web), (Arc::clone(peer), guard.clone()), &session, &head);
    let mut watches = Vec::new();
    for (index, watch) in (0..).zip(&wanted.watches) {
        match source.frames(index, watch) {
            Ok(frames) => watches.push(frames),
            Err(_) => return refusal(StatusCode::BAD_REQUEST, "the query of a watch is no part of a URL"),
        }
    }
    let heartbeats = stream::unfold((), |()| async {
        sleep(HEARTBEAT).await;
        Some((frame(FrameKind::Alive, 0, &[]), ()))
    });
    let mut frames = SelectAll::from_iter(watches);
    frames.push(heartbeats.boxed());
    if wanted.agents {
        let agents = agents::frames(Arc::clone(web), Arc::clone(&session), Arc::clone(&grant), client);
        frames.push(agents.boxed());
    }
    let end = Box::pin(end(Arc::clone(web), client, session, grant));
    let stream = LiveStream { frames, end, _permit: permit, _guard: guard.clone() };
    let frames = stream::unfold(Some(stream), async |stream| stream?.next().await);
    let mut response = Response::new(Body::from_stream(frames.map(Ok::<_, std::convert::Infallible>)));
    let headers = response.headers_mut();
    headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(http::header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Completes when the stream of a session ends, with its last frame.
async fn end(web: Arc<WebServer>, client: IpAddr, session: Arc<Session>, grant: Arc<Grant>) -> Option<Bytes> {
    tokio::select! {
        biased;
        () = session.ended() => None,
        () = grant.revoked.cancelled() => None,
        // The next connection of the browser is one to a replica that stays.
        () = web.proxy.connections.watches.next() => Some(frame(FrameKind::Reconnect, 0, &[])),
        // The next request of the browser gets the rule.
        () = web.disabled(client, &grant) => Some(frame(FrameKind::Reconnect, 0, &[])),
    }
}

impl LiveStream {
    /// Returns the next frame, and the stream unless the frame is its last one.
    async fn next(mut self) -> Option<(Bytes, Option<Self>)> {
        tokio::select! {
            biased;
            last = &mut self.end => Some((last?, None)),
            frame = self.frames.next() => Some((frame?, Some(self))),
        }
    }
}
