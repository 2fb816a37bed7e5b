//! The services of the attacked cluster, and requests to them.

use std::sync::Arc;

use agentk_core::Services;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use kas_testing::world::{World, endless, text};
use parking_lot::Mutex;
use secrecy::ExposeSecret as _;
use tokio::io::DuplexStream;
use tunnel::Body;

use crate::http2::{END_STREAM, Peer, headers};

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

/// Returns a world with one agent, whose cluster records its requests.
pub(crate) async fn attacked() -> (World, Seen, impl Sized) {
    let world = World::new();
    let seen = Seen::default();
    let agent = world.agent(seen.services()).await;
    (world, seen, agent)
}

/// Checks that another caller is still served.
pub(crate) async fn assert_serves(world: &World) {
    let answer = world.get("/agents/prod/kubernetes/harmless").await;
    assert_eq!(answer.status(), http::StatusCode::OK);
    assert!(text(answer).await.starts_with("GET /harmless"));
}

/// Opens a hand-made HTTP/2 connection of a caller.
pub(crate) async fn caller(world: &World, settings: &[(u16, u32)]) -> Peer<DuplexStream> {
    Peer::client(world.connect(), settings).await
}

/// Returns the HEADERS of a valid request with additional fields.
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

/// Iterates over odd numbers: the streams of a client.
pub(crate) fn streams(count: u32) -> impl Iterator<Item = u32> {
    (0..count).map(|number| 2 * number + 1)
}

/// The requests that reached the cluster, with method and target.
#[derive(Clone, Default)]
pub(crate) struct Seen(Arc<Mutex<Vec<String>>>);

impl Seen {
    /// Returns the same services, which record requests.
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
