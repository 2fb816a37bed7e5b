//! What the attacked world serves, and what its callers ask.

use std::sync::Arc;

use agent::Services;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use secrecy::ExposeSecret as _;
use tokio::io::DuplexStream;
use tunnel::Body;

use crate::{
    http2::{END_STREAM, Peer, headers},
    world::{World, endless, text},
};

/// `/watch` says a word and then nothing, `/large` is 64 MiB, `/never` reads no body and does not answer, `/collect`
/// says how long the body was; everything else says what was asked.
pub(crate) fn services() -> Services {
    Services::new().with_fn("kubernetes", answer)
}

async fn answer(request: Request<Body>) -> Response<Body> {
    match request.uri().path() {
        "/watch" => Response::new(endless("watching")),
        "/large" => {
            let chunk = bytes::Bytes::from_static(&[7; 1 << 16]);
            let chunks = std::iter::repeat_n(chunk, 1 << 10);
            let frames = chunks.map(|data| Ok::<_, std::io::Error>(http_body::Frame::data(data)));
            Response::new(Body::new(http_body_util::StreamBody::new(futures_util::stream::iter(frames))))
        }
        "/never" => std::future::pending().await,
        "/collect" => match request.into_body().collect().await {
            Ok(body) => Response::new(Body::from(format!("{} bytes", body.to_bytes().len()))),
            Err(_) => std::future::pending().await,
        },
        _ => {
            let headers: Vec<String> =
                request.headers().iter().map(|(name, value)| format!("{name}: {value:?}")).collect();
            Response::new(Body::from(format!(
                "{} {}\n{}",
                request.method(),
                request.uri(),
                headers.join("\n")
            )))
        }
    }
}

/// A world with one agent, whose cluster writes down what reaches it.
pub(crate) async fn attacked() -> (World, Seen, impl Sized) {
    let world = World::new();
    let seen = Seen::default();
    let agent = world.agent(seen.services()).await;
    (world, seen, agent)
}

/// A caller who did no harm still gets its answer.
pub(crate) async fn assert_serves(world: &World) {
    let answer = world.get("/agents/prod/kubernetes/harmless").await;
    assert_eq!(answer.status(), http::StatusCode::OK);
    assert!(text(answer).await.starts_with("GET /harmless"));
}

/// A caller's HTTP/2 connection by hand.
pub(crate) async fn caller(world: &World, settings: &[(u16, u32)]) -> Peer<DuplexStream> {
    Peer::client(world.connect(), settings).await
}

/// The HEADERS of a request that kas accepts, with these fields besides.
pub(crate) fn ask(world: &World, stream: u32, flags: u8, path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let bearer = format!("Bearer {}", world.caller_token.expose_secret());
    let path = format!("/agents/prod/kubernetes{path}");
    let method = if flags & END_STREAM == 0 { "POST" } else { "GET" };
    let mut fields = vec![
        (":method", method),
        (":scheme", "http"),
        (":authority", "kas"),
        (":path", path.as_str()),
        ("authorization", bearer.as_str()),
    ];
    fields.extend_from_slice(more);
    headers(stream, flags, &fields)
}

/// The odd numbers: the streams that a client opens.
pub(crate) fn streams(count: u32) -> impl Iterator<Item = u32> {
    (0..count).map(|number| 2 * number + 1)
}

/// What reached the cluster: method and target of each request.
#[derive(Clone, Default)]
pub(crate) struct Seen(Arc<Mutex<Vec<String>>>);

impl Seen {
    /// The same services, watched.
    pub(crate) fn services(&self) -> Services {
        let seen = self.clone();
        Services::new().with_fn("kubernetes", move |request: Request<Body>| {
            seen.0.lock().push(format!("{} {}", request.method(), request.uri()));
            answer(request)
        })
    }

    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().clone()
    }
}
