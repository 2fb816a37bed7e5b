//! The interface for agents that send calls inside of their connection, each with their token: GitLab's agentk.

use std::{fmt::Debug, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use strangers::Stranger;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{AgentServer, admission::ClientAddress};

/// Serves the agents of another product over the gRPC that they speak. It makes tunnels of their connections, so that routing,
/// limits, revocation, the kill switch, audit and errors are those of every other agent.
pub trait CallServer: Debug + Send + Sync {
    /// Serves a connection until it ends. The future may be dropped at any time.
    fn serve(self: Arc<Self>, server: Arc<AgentServer>, connection: CallConnection)
    -> BoxFuture<'static, ()>;
}

/// A connection whose agent is not known yet.
pub struct CallConnection {
    /// The bytes of HTTP/2.
    pub io: Box<dyn CallIo>,
    /// The bytes that were read already, which come before those of `io`.
    pub first: Bytes,
    /// The client, if its address is known: the headers of the first call may have another one.
    pub client: ClientAddress,
    /// The other end of a connection without a WebSocket. The headers of its first call have the client, if it is a proxy.
    pub peer: Option<SocketAddr>,
    /// The connection, until its first call has a valid token.
    pub stranger: Arc<Stranger>,
}

/// A connection in both directions.
pub trait CallIo: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> CallIo for T {}
