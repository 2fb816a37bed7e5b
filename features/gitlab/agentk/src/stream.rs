//! One `Connect` stream: it waits for a request, and serves it.
//!
//! ```text
//!   Descriptor ──► RequestInfo? ──► head ──► Tunnel::call ──► response, while the rest of the request arrives
//!                     ├── end of the stream: the pool opens another one
//!                     └── drain by agentk: the stream is reset
//! ```

use std::pin::pin;

use gitlab_tunnel::{
    KUBERNETES_METHOD,
    messages::{ConnectResponse, RequestHeader},
};
use http::Request;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};
use tunnel::{Body, Tunnel, upgrade};

use super::{
    client::GrpcClient,
    error_response::ErrorResponse,
    request::{self, RequestEnd, RequestEvent, RequestReader},
    response::{ResponseWriter, StreamClosed},
    upload::{UpgradeData, Upload},
};

/// The end of a stream.
#[derive(Debug)]
pub(super) enum StreamEnd {
    /// kas ended the stream before it had a request, as it does when the connection is old.
    Unused,
    /// The drain has reset the stream.
    Drained,
    /// kas refused the stream, or the connection is lost.
    Failed(Status),
    /// The stream carried a request.
    Served,
}

/// Opens a stream and serves its request. It calls `on_request` when there is one, and ends at `drain` if there is none.
pub(super) async fn run(
    client: GrpcClient,
    tunnel: Tunnel,
    drain: CancellationToken,
    on_request: impl FnOnce(),
) -> StreamEnd {
    let (writer, messages, closed) = ResponseWriter::new();
    let opening = async { RequestReader::open(client.connect(messages).await?).await };
    let opened = tokio::select! {
        biased;
        opened = opening => opened,
        () = drain.cancelled() => return StreamEnd::Drained,
    };
    match opened {
        Ok(Some((reader, first))) => {
            on_request();
            // Boxed: most streams wait for a request.
            Box::pin(serve(reader, first, writer, &tunnel, &closed)).await;
            StreamEnd::Served
        }
        Ok(None) => StreamEnd::Unused,
        Err(status) => StreamEnd::Failed(status),
    }
}

/// Serves the request, and returns when kas has ended the stream. Returning earlier would reset the stream, and kas could discard
/// the response.
async fn serve(
    mut reader: RequestReader,
    first: ConnectResponse,
    mut writer: ResponseWriter,
    tunnel: &Tunnel,
    closed: &CancellationToken,
) {
    // kas may reset the stream while the cluster takes no bytes, and the reader is not polled then.
    let header = tokio::select! {
        biased;
        header = read_head(&mut reader, first, &mut writer) => header,
        () = closed.cancelled() => return,
    };
    let Some(header) = header else { return reader.discard().await };
    let has_body = header.content_length != Some(0);
    let (head, is_upgrade) = match request::head(header) {
        Ok(head) => head,
        Err(error) => return refuse(&mut reader, &mut writer, error).await,
    };
    let (upload, body, upgrade_data) = if is_upgrade {
        let (upload, data) = Upload::upgrade();
        (upload, Body::empty(), Some(data))
    } else if has_body {
        let (upload, body) = Upload::body();
        (upload, body, None)
    } else {
        (Upload::empty(), Body::empty(), None)
    };

    let request = Request::from_parts(head, body);
    let end = {
        let mut forwarding = pin!(reader.forward(upload));
        tokio::select! {
            biased;
            end = &mut forwarding => end,
            () = closed.cancelled() => RequestEnd::Ended,
            _ = respond(tunnel, request, &mut writer, upgrade_data) => {
                forwarding.await;
                return;
            }
        }
    };
    // The future of the response was dropped, which cancels the request to the cluster.
    match end {
        RequestEnd::Ended => tracing::debug!("request cancelled by GitLab's kas"),
        violation => refuse(&mut reader, &mut writer, violation).await,
    }
}

/// Ends the request with an error, since it is malformed.
async fn refuse(reader: &mut RequestReader, writer: &mut ResponseWriter, error: impl ToString) {
    // Fails if kas has ended the stream.
    let _ = writer.send_error(Code::InvalidArgument, error).await;
    reader.discard().await;
}

/// Reads the messages up to the head. Returns `None` if they have none; an error was sent then.
async fn read_head(
    reader: &mut RequestReader,
    first: ConnectResponse,
    writer: &mut ResponseWriter,
) -> Option<RequestHeader> {
    let error = match reader.request_info(first) {
        Ok(info) if info.method_name == KUBERNETES_METHOD => match reader.next().await {
            Ok(RequestEvent::Head(header)) => return Some(header),
            Ok(_) => unreachable!("the order has no other first part"),
            Err(RequestEnd::Ended) => return None,
            Err(error) => (Code::InvalidArgument, error.to_string()),
        },
        Ok(info) => (Code::Unimplemented, format!("agentk has no method {}", info.method_name)),
        Err(error) => (Code::InvalidArgument, RequestEnd::Order(error).to_string()),
    };
    let _ = writer.send_error(error.0, error.1).await;
    None
}

/// Sends the request to its service, and the response to kas.
async fn respond(
    tunnel: &Tunnel,
    request: Request<Body>,
    writer: &mut ResponseWriter,
    upgrade_data: Option<UpgradeData>,
) -> Result<(), StreamClosed> {
    let mut response = match tunnel.call(request).await {
        Ok(response) => response,
        Err(error) => return writer.send_error(Code::Unavailable, format!("agentk: {error}")).await,
    };
    if let (Some(upgraded), Some(data)) = (upgrade::take(&mut response), upgrade_data) {
        return writer.send_upgrade(response, upgraded, data).await;
    }
    match ErrorResponse::from_response(&response) {
        None => writer.send_response(response).await,
        Some(ErrorResponse::Http(refusal)) => writer.send_response(refusal).await,
        Some(ErrorResponse::Grpc(message)) => writer.send_error(Code::Unavailable, message).await,
    }
}
