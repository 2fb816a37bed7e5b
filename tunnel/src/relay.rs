//! Forwards a request from a peer replica into the tunnel of the agent.

use std::{future::poll_fn, task::Poll};

use bytes::Bytes;
use cores::poll_on_wake;
use h2::{Reason, server::SendResponse};

use crate::{
    CallError, Delivery, StallCounter, Tunnel, WatchEnds, end_at,
    monitor::ReceiveStream,
    server::{IncomingRequest, send_response},
    upgrade::{self, UpgradedStream},
};

/// A request that got no response. Its sender waits: either [`retry`](Self::retry) or [`reset`](Self::reset) it.
#[must_use]
pub struct RelayError {
    /// The reason.
    pub error: CallError,
    respond: SendResponse<Bytes>,
    raw: Option<ReceiveStream>,
    stalls: StallCounter,
}

impl RelayError {
    /// Returns the request for another connection, if this one has neither processed it nor read its body.
    ///
    /// # Errors
    ///
    /// It may have been processed, or a part of its body is gone.
    pub fn retry(mut self) -> Result<IncomingRequest, Self> {
        match (self.error.delivery, self.error.request.take()) {
            (Delivery::NotProcessed, Some(request)) => {
                let Self { respond, raw, stalls, .. } = self;
                Ok(IncomingRequest { request: *request, respond, raw, stalls })
            }
            (_, request) => {
                self.error.request = request;
                Err(self)
            }
        }
    }

    /// Resets the stream of the sender: with REFUSED_STREAM if the request was not processed (RFC 9113 section 8.7), and with
    /// INTERNAL_ERROR otherwise.
    pub fn reset(mut self) {
        self.respond.send_reset(match self.error.delivery {
            Delivery::NotProcessed => Reason::REFUSED_STREAM,
            Delivery::Unknown => Reason::INTERNAL_ERROR,
        });
    }
}

impl IncomingRequest {
    /// Forwards the request into another connection, and the response back.
    ///
    /// When the sender resets its stream, the request is cancelled in the other connection. `ends` are for a watch, which has to end
    /// when this process stops.
    ///
    /// # Errors
    ///
    /// If there is no response.
    pub async fn relay(self, into: &Tunnel, ends: Option<&WatchEnds>) -> Result<(), RelayError> {
        let Self { request, mut respond, raw, stalls } = self;
        if poll_fn(|cx| Poll::Ready(respond.poll_reset(cx).is_ready())).await {
            return Ok(());
        }
        let result = tokio::select! {
            biased;
            result = into.call(request) => result,
            _ = poll_fn(|cx| respond.poll_reset(cx)) => return Ok(()),
        };
        let mut response = match result {
            Ok(response) => response,
            Err(error) => return Err(RelayError { error, respond, raw, stalls }),
        };

        let Some(inner) = upgrade::take(&mut response) else {
            let monitor = response.body().monitor();
            let response = match ends {
                Some(ends) => end_at(response, ends.next()),
                None => response,
            };
            let sending = send_response(response, respond, stalls);
            match monitor {
                Some(monitor) => monitor.compact_during(sending).await,
                None => sending.await,
            }
            return Ok(());
        };
        let Some(raw) = raw else {
            tracing::warn!("the agent switched protocols without a request to do so");
            respond.send_reset(Reason::INTERNAL_ERROR);
            return Ok(());
        };
        let head = upgrade::connect_response(response.into_parts().0.headers);
        if let Ok(stream) = respond.send_response(head, false) {
            let (outer, monitor) = (UpgradedStream::new(stream, raw), inner.monitor());
            let spliced = upgrade::splice_streams(outer, inner);
            let mut spliced = Box::pin(monitor.compact_during(spliced));
            let spliced = match ends {
                None => spliced.await,
                Some(ends) => tokio::select! {
                    result = &mut spliced => result,
                    () = poll_on_wake(ends.next()) => Ok(()),
                },
            };
            if let Err(error) = spliced {
                tracing::debug!(%error, "an upgraded connection was aborted");
            }
        }
        Ok(())
    }
}
