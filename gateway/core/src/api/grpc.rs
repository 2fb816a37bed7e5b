//! The RPCs of features, over gRPC.
//!
//! The messages are derived by hand from their field numbers: there are few, and no compiler of `.proto` files is needed.

use std::{
    convert::Infallible,
    time::{Duration, SystemTime},
};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    response::Response,
    routing::{MethodRouter, post},
};
use http::{Version, header::CONTENT_TYPE};
use prost::Message;
use tokio::time::timeout;
use tonic::{Code, Status, server::Grpc};
use tonic_prost::ProstCodec;
use tower::{ServiceExt as _, service_fn};

use super::response::with_error;

/// The largest request in bytes.
const MAX_REQUEST: usize = 1 << 20;

/// The time for a request. GitLab waits for 5 s.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// `google.protobuf.Timestamp`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Timestamp {
    /// Seconds since 1970.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { seconds: since.as_secs().cast_signed() }
    }
}

/// Adds the responses to requests for other methods.
pub(super) fn with_fallbacks(rpcs: Router) -> Router {
    rpcs.method_not_allowed_fallback(async || refuse(Status::internal("the method of gRPC is POST")))
        .fallback(async || refuse(Status::unimplemented("this kas has no such method")))
}

/// Returns whether the client expects a response of gRPC.
pub(super) fn is_grpc(request: &Request) -> bool {
    let content_type = request.headers().get(CONTENT_TYPE);
    let grpc = content_type.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    grpc && request.version() == Version::HTTP_2
}

/// Sends a request to the RPCs.
pub(super) async fn handle(routes: Router, request: Request) -> Response {
    let response = match timeout(TIME_LIMIT, routes.oneshot(request)).await {
        Ok(Ok::<_, Infallible>(response)) => response,
        Err(_) => refuse(Status::deadline_exceeded("kas needed too long for this request")),
    };
    match Status::from_header_map(response.headers()) {
        Some(status) if status.code() != Code::Ok => with_error(response, status),
        _ => response,
    }
}

/// Returns the response of a failed RPC.
fn refuse(status: Status) -> Response {
    status.into_http()
}

/// Returns the route of a method with one request and one response.
pub fn unary<S, Q, R, F>(method: fn(S, Q) -> F) -> MethodRouter<S>
where
    S: Clone + Send + Sync + 'static,
    Q: Message + Default + 'static,
    R: Message + 'static,
    F: Future<Output = Result<R, Status>> + Send + 'static,
{
    post(move |State(state): State<S>, request: Request| async move {
        let service = service_fn(move |request: tonic::Request<Q>| {
            let response = method(state.clone(), request.into_inner());
            async move { response.await.map(tonic::Response::new) }
        });
        let mut grpc = Grpc::new(ProstCodec::<R, Q>::default()).max_decoding_message_size(MAX_REQUEST);
        grpc.unary(service, request).await.map(Body::new)
    })
}

/// Returns a field of a request that has to be greater than 0.
pub fn positive(field: &str, number: i64) -> Result<u64, Status> {
    let positive = u64::try_from(number).ok().filter(|number| *number > 0);
    positive.ok_or_else(|| Status::invalid_argument(format!("{field}: {number} is not greater than 0")))
}
