//! `GitlabAccess/MakeRequest`: the requests of other modules of GitLab's agentk to GitLab, such as workspaces and container scanning.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::stream;
use gitlab_tunnel::{
    MAX_CHUNK, MAX_MESSAGE, Order, decode_request, encode_response,
    messages::{Chunk, Empty, GitlabAccessExtra, HttpRequest, HttpResponse, RequestPart, ResponsePart},
};
use http::{
    HeaderMap, Method, Request, Uri,
    header::{ACCEPT, CONTENT_TYPE},
};
use prost::Message as _;
use tokio::time::timeout;
use tonic::{Status, Streaming};

use super::{GitlabConnection, responses::Responses};

/// The module calls of one connection that are handled at the same time.
pub(super) const MAX_CALLS: usize = 4;
/// The time that agentk has for its request.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest path with its query, in bytes.
const MAX_TARGET: usize = 8 << 10;

/// The parts of the response. GitLab's answers are a few kilobytes.
type Parts = Vec<Result<HttpResponse, Status>>;

/// Sends a request of a module to GitLab with the token of the agent. agentk chooses neither the host nor a path outside of its module.
pub(super) async fn forward(
    connection: &GitlabConnection,
    parts: Streaming<HttpRequest>,
) -> Result<Responses<HttpResponse>, Status> {
    let (gitlab, token) = connection.gitlab()?;
    let _permit = connection.module_calls.acquire().await.map_err(|_| Status::unavailable("kas stops"))?;
    let request = timeout(READ_TIMEOUT, read(parts)).await;
    let request = request.map_err(|_| Status::deadline_exceeded("the request did not arrive in time"))??;
    let response = gitlab.send_of_module(request, token).await;
    let (head, body) = response.map_err(|error| Status::unavailable(error.to_string()))?.into_parts();
    let data = body.chunks(MAX_CHUNK).map(|data| ResponsePart::Data(Chunk { data: body.slice_ref(data) }));
    let parts = [ResponsePart::Header(encode_response(&head))].into_iter().chain(data);
    let parts =
        parts.chain([ResponsePart::Trailer(Empty {})]).map(|part| Ok(HttpResponse { part: Some(part) }));
    Ok(Box::pin(stream::iter(parts.collect::<Parts>())))
}

/// Reads a whole request. Its target is `/<module>/<path>`.
async fn read(mut parts: Streaming<HttpRequest>) -> Result<Request<Bytes>, Status> {
    let (mut order, mut header, mut body) = (Order::of_http(), None, BytesMut::new());
    while let Some(HttpRequest { part }) = parts.message().await? {
        order.request_part(part.as_ref()).map_err(|error| Status::invalid_argument(error.to_string()))?;
        match part {
            Some(RequestPart::Header(head)) => header = Some(head),
            Some(RequestPart::Data(Chunk { data })) => body.extend_from_slice(&data),
            Some(RequestPart::Trailer(_)) => break,
            Some(RequestPart::UpgradeData(_)) | None => {}
        }
        if body.len() > MAX_MESSAGE {
            return Err(Status::resource_exhausted(format!("the request has more than {MAX_MESSAGE} bytes")));
        }
    }
    let header = header.ok_or_else(|| Status::invalid_argument("the request has no head"))?;
    let extra = header.extra.as_ref().map(|extra| GitlabAccessExtra::decode(extra.value.clone()));
    let module = extra.and_then(Result::ok).unwrap_or_default().module_name;
    let is_name = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    if !is_name(&module) {
        return Err(Status::invalid_argument("the request has no valid name of a module"));
    }
    let head = decode_request(header).map_err(|error| Status::invalid_argument(error.to_string()))?;
    let is_below = |path: &str| !path.split('/').any(|segment| matches!(segment, "." | ".."));
    let target = head.uri.path_and_query().map(|target| format!("/{module}{target}"));
    let target = target.filter(|target| target.len() <= MAX_TARGET && is_below(head.uri.path()));
    let uri = target.and_then(|target| target.parse::<Uri>().ok());
    // GitLab's web server would answer TRACE with the headers of kas.
    let methods = [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
    if !methods.contains(&head.method) {
        return Err(Status::invalid_argument("the method is not one of modules"));
    }
    let uri = uri.ok_or_else(|| Status::invalid_argument("the path is not one of the module"))?;
    let mut request = Request::new(body.freeze());
    *request.method_mut() = head.method;
    *request.uri_mut() = uri;
    *request.headers_mut() = kept(&head.headers);
    Ok(request)
}

/// Returns the headers that GitLab receives from agentk. It could forge any other one, such as those of proxies.
fn kept(headers: &HeaderMap) -> HeaderMap {
    let kept = [ACCEPT, CONTENT_TYPE].into_iter();
    kept.filter_map(|name| headers.get(&name).cloned().map(|value| (name, value))).collect()
}
