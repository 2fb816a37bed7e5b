//! `pods/exec` over WebSocket, with a few simulated commands.

use std::sync::Arc;

use hyper::upgrade::OnUpgrade;

use self::session::{Disconnected, ExecSession, Streams};
use super::cluster::Cluster;
use super::error::StatusError;
use super::logs::check_container;
use super::request::ApiRequest;
use super::resources::PODS;
use super::response::ApiResponse;
use super::store::Key;
use super::websocket::{self, Version};

mod session;
mod shell;
mod terminal;

pub(crate) fn answer(mut call: ApiRequest, key: &Key) -> Result<ApiResponse, StatusError> {
    let pod = call.cluster.store.get(key).ok_or_else(|| StatusError::not_found(&PODS, &key.name))?;
    check_container(&pod, &call.query)?;
    let command: Vec<String> = call.query.all("command").map(str::to_owned).collect();
    if command.is_empty() {
        return Err(StatusError::bad_request("you must specify at least 1 command"));
    }
    let (version, reply) = websocket::switch(call.request.headers(), [Version::V5, Version::V4])?;
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
        if let Err(Disconnected) = run(&cluster, upgrade, version, streams, &command, &hostname).await {
            tracing::debug!(pod = hostname, "exec ended before its command");
        }
    });
    Ok(reply)
}

async fn run(
    cluster: &Cluster,
    upgrade: OnUpgrade,
    version: Version,
    streams: Streams,
    command: &[String],
    hostname: &str,
) -> Result<(), Disconnected> {
    let socket = websocket::accept(upgrade).await.map_err(|_| Disconnected)?;
    let mut session = ExecSession::new(socket, version, streams);
    tokio::select! {
        outcome = shell::run(&mut session, command, hostname) => session.finish(&outcome?).await,
        () = cluster.stop.cancelled() => Err(Disconnected),
    }
}
