//! A watch in the stream of a tab: a request of the caller to the service `graph` of an agent.

use std::{sync::Arc, time::Duration};

use axum::body::Body;
use bytes::Bytes;
use futures_util::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use http::{
    HeaderMap, HeaderValue, Request, Response, Uri, Version,
    header::{
        ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, TRANSFER_ENCODING,
    },
    request::Parts,
    uri::InvalidUri,
};
use http_body_util::{BodyExt as _, Limited};
use kas_listen::addresses::PeerAddress;
use proto::{
    ServiceName, agent_path,
    graph::WATCH_PATH,
    header::{ERROR, REQUEST_ID},
    percent,
};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::frame::{FrameKind, frame, json};
use crate::{WebServer, sessions::Session, with_token};
use kas_core::proxy::{CallerBody, RequestGuard};

/// The time after which a watch without a byte has failed: agentk sends a line every 15 s.
const SILENCE: Duration = Duration::from_secs(40);
/// The longest error of an agent that is passed on, in bytes.
const MAX_ERROR: usize = 64 << 10;

/// The watch of an agent that a tab asks for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Watch {
    pub(super) agent: String,
    /// The parameters of the watch, without `since`.
    #[serde(default)]
    query: String,
    /// The token after which the watch continues.
    since: Option<String>,
}

/// Sends the watches of a tab.
#[derive(Clone)]
pub(super) struct WatchSource {
    web: Arc<WebServer>,
    peer: Arc<PeerAddress>,
    guard: RequestGuard,
    version: Version,
    /// The headers of each watch, with the token of the session.
    headers: HeaderMap,
}

/// The first frame of a watch.
#[derive(Serialize)]
struct Begin<'a> {
    /// The encoding of the data, such as `gzip`.
    encoding: Option<&'a str>,
}

/// The last frame of a watch.
#[derive(Serialize)]
struct End<'a> {
    /// The status of the response, or 0 if the watch has ended later.
    status: u16,
    /// The reason of kas for programs.
    reason: Option<&'a str>,
    /// The body of the response, or the reason for people.
    message: &'a str,
    request_id: Option<&'a str>,
}

/// A watch, from its request to its end.
enum WatchState {
    Requested(Uri),
    Open(Body),
}

impl WatchSource {
    /// Prepares the watches of a stream, which the browser has requested with this `head` on the connection of `peer` and `guard`.
    pub(super) fn new(
        web: Arc<WebServer>,
        (peer, guard): (Arc<PeerAddress>, RequestGuard),
        session: &Session,
        head: &Parts,
    ) -> Self {
        let mut request: Request<Option<CallerBody>> = Request::new(None);
        *request.headers_mut() = head.headers.clone();
        // A watch has no body, and a type and an id of its own.
        for name in [CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING, EXPECT, ACCEPT, REQUEST_ID] {
            request.headers_mut().remove(name);
        }
        request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        let headers = with_token(request, session).into_parts().0.headers;
        Self { web, peer, guard, version: head.version, headers }
    }

    /// Returns the frames of a watch. Its request is sent when the first one is polled.
    ///
    /// # Errors
    ///
    /// The query cannot be in a URL.
    pub(super) fn frames(&self, index: u8, watch: &Watch) -> Result<BoxStream<'static, Bytes>, InvalidUri> {
        let (source, first) = (self.clone(), WatchState::Requested(uri(watch)?));
        let frames = stream::unfold(Some(first), move |state| {
            let source = source.clone();
            async move {
                match state? {
                    WatchState::Requested(uri) => Some(source.open(index, uri).await),
                    WatchState::Open(body) => Some(next_data(index, body).await),
                }
            }
        });
        Ok(frames.boxed())
    }

    /// Sends the request of a watch.
    async fn open(&self, index: u8, uri: Uri) -> (Bytes, Option<WatchState>) {
        let mut request = Request::new(None);
        *request.uri_mut() = uri;
        *request.version_mut() = self.version;
        *request.headers_mut() = self.headers.clone();
        let peer = (&*self.peer, self.web.addresses.trusted_proxies());
        let answer = timeout(SILENCE, self.web.proxy.answer(peer, self.guard.clone(), request)).await;
        let Ok(response) = answer else {
            return (ended(index, "The agent has not answered for 40 s."), None);
        };
        let response = response.map(Body::new);
        if !response.status().is_success() {
            return (refused(index, response).await, None);
        }
        let encoding = response.headers().get(CONTENT_ENCODING).and_then(|encoding| encoding.to_str().ok());
        let begin = json(FrameKind::Begin, index, &Begin { encoding });
        (begin, Some(WatchState::Open(response.into_body())))
    }
}

/// Returns the path of a watch.
fn uri(Watch { agent, query, since }: &Watch) -> Result<Uri, InvalidUri> {
    let since = since.as_deref().map(|token| format!("since={}", percent::encode(token)));
    let query: Vec<&str> = [query.as_str(), since.as_deref().unwrap_or_default()]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect();
    agent_path(agent, ServiceName::GRAPH, &format!("{WATCH_PATH}?{}", query.join("&"))).parse()
}

/// Returns the next frame of a watch.
async fn next_data(index: u8, mut body: Body) -> (Bytes, Option<WatchState>) {
    loop {
        return match timeout(SILENCE, body.frame()).await {
            Err(_) => (ended(index, "The agent has been silent for 40 s."), None),
            Ok(None) => (ended(index, "The stream has ended."), None),
            Ok(Some(Err(error))) => (ended(index, &format!("The stream has ended early: {error}.")), None),
            Ok(Some(Ok(part))) => match part.into_data() {
                Ok(data) if !data.is_empty() => {
                    (frame(FrameKind::Data, index, &data), Some(WatchState::Open(body)))
                }
                Ok(_) | Err(_) => continue,
            },
        };
    }
}

/// Returns the last frame of a watch that has begun.
fn ended(index: u8, message: &str) -> Bytes {
    json(FrameKind::End, index, &End { status: 0, reason: None, message, request_id: None })
}

/// Returns the frame of a watch that kas or the agent has refused.
async fn refused(index: u8, response: Response<Body>) -> Bytes {
    let (head, body) = response.into_parts();
    let body = timeout(SILENCE, Limited::new(body, MAX_ERROR).collect()).await;
    let body = body.ok().and_then(Result::ok).map(|body| body.to_bytes()).unwrap_or_default();
    let text = |name| head.headers.get(name).and_then(|value| value.to_str().ok());
    let (reason, request_id) = (text(ERROR), text(REQUEST_ID));
    let message = String::from_utf8_lossy(&body);
    json(FrameKind::End, index, &End { status: head.status.as_u16(), reason, message: &message, request_id })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_of_a_watch_is_that_of_its_agent() {
        for (agent, query, since, expected) in [
            ("prod", "", None, "/agents/prod/graph/v1/watch?"),
            ("edge-berlin", "", None, "/agents/edge-berlin/graph/v1/watch?"),
            ("prod", "health=degraded", None, "/agents/prod/graph/v1/watch?health=degraded"),
            ("prod", "", Some("1.2"), "/agents/prod/graph/v1/watch?since=1.2"),
            ("prod", "kind=Pod", Some("1&a"), "/agents/prod/graph/v1/watch?kind=Pod&since=1%26a"),
            ("../a/b", "", None, "/agents/..%2Fa%2Fb/graph/v1/watch?"),
        ] {
            let (query, since) = (query.to_owned(), since.map(str::to_owned));
            let watch = Watch { agent: agent.to_owned(), query, since };
            assert_eq!(uri(&watch).unwrap().to_string(), expected);
        }
        let hostile = Watch { agent: String::new(), query: "a b\r\nx: y".to_owned(), since: None };
        assert!(uri(&hostile).is_err());
    }
}
