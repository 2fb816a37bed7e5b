//! A tunnel in memory, in which this process is both kas and agentk: requests of GitLab's kas are served like those of a tunnel.

use std::{io, sync::Arc, time::Duration};

use agentk_core::services::control::ControlService;
use futures_util::future::join;
use gitlab_tunnel::MAX_CHUNK;
use proto::TunnelId;
use tokio_util::task::AbortOnDropHandle;
use tunnel::{KeepaliveConfig, Tunnel, TunnelConfig, direct};

use super::context::GitLabContext;

/// The bytes between both ends.
const PIPE: usize = 64 << 10;
/// The most data of one request or response that waits for its reader.
const STREAM_WINDOW: u32 = 256 << 10;

/// Opens a tunnel to the dispatcher of requests, which lives as long as the handle.
pub(super) async fn open(
    context: &GitLabContext,
    id: TunnelId,
) -> io::Result<(Tunnel, AbortOnDropHandle<()>)> {
    let config = TunnelConfig {
        stream_window: STREAM_WINDOW,
        max_frame: u32::try_from(MAX_CHUNK).expect("a small constant"),
        // Memory is not lost.
        keepalive: KeepaliveConfig { interval: Duration::from_secs(24 * 3600), ..KeepaliveConfig::default() },
        stalls: context.tunnel.config.tunnel.stalls.clone(),
        ..TunnelConfig::default()
    };
    let (near, far) = tokio::io::duplex(PIPE);
    let (server, _) = direct::accept(far, &config);
    server.overhead().trust();
    let (control, _) = ControlService::new(context.tunnel.observability.health.disabled.tunnel(id));
    let (dispatcher, requests) = (Arc::clone(&context.tunnel.dispatcher), context.tunnel.requests.clone());
    let on_request = move |incoming| {
        // Boxed once, as in a tunnel to kas.
        let serving = Box::pin(Arc::clone(&dispatcher).serve(incoming, control.clone()));
        requests.spawn(serving);
    };
    let (tunnel, driver) = direct::open(near, &config).await?;
    let running = async move {
        join(server.run(on_request), driver.run()).await;
    };
    let running = AbortOnDropHandle::new(tokio::spawn(running));
    // Before, an upgrade would fail.
    tunnel.ready().await;
    Ok((tunnel, running))
}
