//! `pods/exec`: a few make-believe commands, over WebSocket.

use std::sync::Arc;

use http::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use self::session::{HungUp, Session, Streams, Version};
use super::cluster::Cluster;
use super::failure::Failure;
use super::logs::check_container;
use super::request::Call;
use super::resources::PODS;
use super::response::{self, Reply};
use super::store::Key;

mod script;
mod session;
mod shell;
mod terminal;

pub(crate) fn answer(mut call: Call, key: &Key) -> Result<Reply, Failure> {
    let pod = call.cluster.store.get(key).ok_or_else(|| Failure::not_found(&PODS, &key.name))?;
    check_container(&pod, &call.query)?;
    let command: Vec<String> = call.query.all("command").map(str::to_owned).collect();
    if command.is_empty() {
        return Err(Failure::bad_request("you must specify at least 1 command"));
    }
    let (version, mut reply) = switch_protocols(call.request.headers())?;
    let streams = Streams {
        stdin: call.query.flag("stdin"),
        stdout: call.query.flag("stdout"),
        stderr: call.query.flag("stderr"),
        tty: call.query.flag("tty"),
    };
    let upgrade = hyper::upgrade::on(&mut call.request);
    let cluster = Arc::clone(&call.cluster);
    let hostname = key.name.clone();
    call.cluster.tasks.spawn(async move {
        let _open = cluster.open_stream();
        if let Err(HungUp) = run(&cluster, upgrade, version, streams, &command, &hostname).await {
            tracing::debug!(pod = hostname, "exec ended before its command");
        }
    });
    *reply.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    Ok(reply)
}

/// `kubectl` sends at most 32 KiB at once.
const MAX_MESSAGE: usize = 1024 * 1024;

fn switch_protocols(headers: &HeaderMap) -> Result<(Version, Reply), Failure> {
    let header =
        |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let key = header(SEC_WEBSOCKET_KEY);
    if !header(UPGRADE).eq_ignore_ascii_case("websocket") || key.is_empty() {
        return Err(Failure::bad_request("the simulator executes over WebSocket only, not SPDY"));
    }
    let offered = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    let offered: Vec<&str> = offered.flat_map(|list| list.split(',')).map(str::trim).collect();
    let version =
        [Version::V5, Version::V4].into_iter().find(|version| offered.contains(&version.protocol()));
    let version = version.ok_or_else(|| {
        Failure::bad_request(
            "the simulator speaks v5.channel.k8s.io and v4.channel.k8s.io, which were not offered",
        )
    })?;
    let accept = HeaderValue::try_from(derive_accept_key(key.as_bytes())).expect("base64 is a header value");
    let mut reply = response::text(StatusCode::SWITCHING_PROTOCOLS, "");
    let headers = reply.headers_mut();
    headers.clear();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(version.protocol()));
    Ok((version, reply))
}

async fn run(
    cluster: &Cluster,
    upgrade: OnUpgrade,
    version: Version,
    streams: Streams,
    command: &[String],
    hostname: &str,
) -> Result<(), HungUp> {
    let io = TokioIo::new(upgrade.await.map_err(|_| HungUp)?);
    let config =
        WebSocketConfig::default().max_message_size(Some(MAX_MESSAGE)).max_frame_size(Some(MAX_MESSAGE));
    let socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await;
    let mut session = Session::new(socket, version, streams);
    tokio::select! {
        outcome = shell::run(&mut session, command, hostname) => session.finish(&outcome?).await,
        () = cluster.stop.cancelled() => Err(HungUp),
    }
}
