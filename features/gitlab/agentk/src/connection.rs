//! One connection to GitLab's kas, from its registration to its end.

use std::{error::Error as _, time::Duration};

use agentk_core::{
    DialError, DrainSignals,
    connect::{BoxIo, KasTarget},
};
use futures_util::future::join;
use gitlab_tunnel::messages::RegisterRequest;
use http::{HeaderValue, StatusCode};
use proto::{TunnelId, short_line};
use tokio::time::timeout;
use tonic::{Code, Status};

use super::{
    client::GrpcClient,
    configuration,
    context::GitLabContext,
    http2::{self, ConnectionEnd, Http2Connection},
    memory_tunnel, registration,
    stream_set::StreamSet,
};

/// The time that kas has for the preface of HTTP/2 and the registration.
const OPEN_TIMEOUT: Duration = Duration::from_secs(20);
/// The time for the last frames of a connection.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(200);

/// A connection that GitLab's kas has accepted.
pub(crate) struct GitLabConnection {
    http2: Http2Connection,
    client: GrpcClient,
}

impl GitLabConnection {
    /// Begins HTTP/2 and registers the process.
    ///
    /// # Errors
    ///
    /// kas does not answer in HTTP/2, or refuses the token or the registration.
    pub(crate) async fn open(
        io: BoxIo,
        target: KasTarget<'_>,
        authorization: &HeaderValue,
        registration: RegisterRequest,
    ) -> Result<Self, DialError> {
        let address = || target.kas.to_string();
        let opening = async {
            let not_http2 = |problem| DialError::NotHttp2 { address: address(), problem };
            let (sender, http2) = http2::connect(io).await.map_err(|error| not_http2(error.to_string()))?;
            let client = GrpcClient::new(sender, http2.overhead.clone(), target, authorization);
            match client.register(registration).await {
                Ok(()) => Ok(Self { http2, client }),
                Err(status) => Err(match status_error(target, &status) {
                    Some(error) => error,
                    // The end of the connection is more specific than that of the stream.
                    None => not_http2(match timeout(CLOSE_TIMEOUT, http2.driver).await {
                        Ok(Ok(end)) => end.to_string(),
                        _ => short_line(status.message().as_bytes()),
                    }),
                }),
            }
        };
        timeout(OPEN_TIMEOUT, opening)
            .await
            .unwrap_or_else(|_| Err(DialError::timed_out(target.kas, OPEN_TIMEOUT)))
    }

    /// Closes the connection.
    pub(super) async fn close(self) {
        let Self { http2, client } = self;
        drop(client);
        // After the timeout, kas receives the end of the byte stream without GOAWAY.
        let _ = timeout(CLOSE_TIMEOUT, http2.driver).await;
    }

    /// Serves requests until the connection ends.
    pub(crate) async fn serve(
        self,
        context: &GitLabContext,
        id: TunnelId,
        signals: DrainSignals,
    ) -> ConnectionEnd {
        let (tunnel, _memory) = match memory_tunnel::open(context, id).await {
            Ok(tunnel) => tunnel,
            Err(error) => {
                tracing::warn!(%error, "the in-memory tunnel was not opened");
                return ConnectionEnd::Cut;
            }
        };
        let Self { mut http2, client } = self;
        let end = {
            let configuration = async {
                if context.tunnel.is_configurable() {
                    match configuration::run(&client, &tunnel, context).await {}
                }
            };
            let mut streams = StreamSet::new(client.clone(), tunnel.clone());
            tokio::select! {
                biased;
                ended = &mut http2.driver => return ended.unwrap_or(ConnectionEnd::Cut),
                end = streams.run(signals, http2.going_away.clone()) => end,
                ((), never) = join(configuration, registration::run(&client, context)) => match never {},
            }
        };
        Self { http2, client }.close().await;
        end
    }
}

/// Returns the error of a registration that kas has refused. Returns `None` if the connection failed.
fn status_error(target: KasTarget<'_>, status: &Status) -> Option<DialError> {
    if status.source().is_some() {
        return None;
    }
    let message = short_line(status.message().as_bytes());
    Some(match status.code() {
        Code::Unauthenticated => DialError::Unauthorized { token: target.token.to_string(), message },
        Code::ResourceExhausted => {
            let status = StatusCode::TOO_MANY_REQUESTS;
            DialError::Busy { status, message, retry_after: None }
        }
        code => {
            let status = format!("{code:?}: {message}");
            DialError::NotRegistered { address: target.kas.to_string(), status }
        }
    })
}
