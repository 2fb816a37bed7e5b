//! From one connection into the next: a replica passes a request of its peer into the agent's tunnel.

use std::future::poll_fn;

use h2::Reason;

use crate::{
    CallError, Delivery, Tunnel,
    server::{IncomingRequest, send_response},
    upgrade::{self, Upgraded},
};

impl IncomingRequest {
    /// Passes the request on into another connection, and its response back.
    ///
    /// A request without a response is reset with a reason that tells the sender how far it got: refused unseen, or not.
    /// When the sender resets its stream, the request is cancelled in the other connection.
    pub async fn relay(self, into: &Tunnel) -> Result<(), CallError> {
        let Self { request, mut respond, raw, stalls } = self;
        let answered = tokio::select! {
            biased;
            _ = poll_fn(|cx| respond.poll_reset(cx)) => return Ok(()),
            answered = into.call(request) => answered,
        };
        let mut response = match answered {
            Ok(response) => response,
            Err(error) => {
                respond.send_reset(match error.delivery {
                    Delivery::NotProcessed => Reason::REFUSED_STREAM,
                    Delivery::Unknown => Reason::INTERNAL_ERROR,
                });
                return Err(error);
            }
        };

        let Some(inner) = upgrade::take(&mut response) else {
            send_response(response, respond, stalls).await;
            return Ok(());
        };
        let Some(raw) = raw else {
            tracing::warn!("the agent switched protocols without a request to do so");
            respond.send_reset(Reason::INTERNAL_ERROR);
            return Ok(());
        };
        let head = upgrade::accept(response.into_parts().0.headers);
        if let Ok(stream) = respond.send_response(head, false)
            && let Err(error) = upgrade::join(Upgraded::new(stream, raw), inner).await
        {
            tracing::debug!(%error, "an upgraded connection was aborted");
        }
        Ok(())
    }
}
