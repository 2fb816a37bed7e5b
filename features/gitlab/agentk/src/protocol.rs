//! The protocol of GitLab's kas, as the sessions of agentk use it.

use std::sync::Arc;

use agentk_core::{
    ClientProtocol, DialError, DrainSignals, ProtocolFuture, ServeProtocol, TunnelContext,
    connect::{BoxIo, KasTarget},
};
use http::HeaderValue;
use proto::TunnelId;
use tokio::time::Instant;

use super::{connection::GitLabConnection, context::GitLabContext, http2::ConnectionEnd};

/// Creates the protocol of GitLab's kas for an agent.
pub fn gitlab_protocol(tunnel: Arc<TunnelContext>) -> Arc<dyn ClientProtocol> {
    Arc::new(GitLabContext::new(tunnel))
}

impl ClientProtocol for GitLabContext {
    fn open<'a>(
        self: Arc<Self>,
        io: BoxIo,
        authorization: HeaderValue,
        target: KasTarget<'a>,
    ) -> ProtocolFuture<'a, Result<ServeProtocol, DialError>> {
        Box::pin(async move {
            let registration = self.register_request();
            let connection = GitLabConnection::open(io, target, &authorization, registration).await?;
            let serve: ServeProtocol = Box::new(|id, signals| Box::pin(serve(self, connection, id, signals)));
            Ok(serve)
        })
    }
}

/// Serves requests until the connection ends, and reports its end.
async fn serve(
    context: Arc<GitLabContext>,
    connection: GitLabConnection,
    id: TunnelId,
    signals: DrainSignals,
) {
    let observability = &context.tunnel.observability;
    let tunnel = observability.tunnel_opened();
    let opened = Instant::now();
    let ended = connection.serve(&context, id, signals).await;
    drop(tunnel);
    observability.metrics.record_tunnel_end(ended.label(), opened.elapsed());
    let seconds = opened.elapsed().as_secs();
    match ended {
        ConnectionEnd::Graceful => tracing::info!(tunnel = %id, seconds, "connection to GitLab's kas ended"),
        ended => tracing::warn!(tunnel = %id, seconds, reason = %ended, "connection to GitLab's kas lost"),
    }
}
