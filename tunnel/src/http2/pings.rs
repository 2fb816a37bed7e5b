//! The keepalive's question, and its answer.

use std::{future::poll_fn, sync::Arc};

use super::{connection::Connection, shared::Shared};

/// Asks whether the other end lives.
#[derive(Debug)]
pub(crate) struct Pings(Arc<Shared>);

impl Pings {
    pub(crate) fn of<S>(connection: &Connection<S>) -> Self {
        Self(Arc::clone(connection.shared()))
    }

    /// Asks, unless an earlier question is unanswered, whose answer is as good.
    pub(crate) fn send(&self) {
        self.0.with(|streams| streams.send_ping());
    }

    /// Waits for the answer; for ever if the connection ends first: whoever drives it says why.
    pub(crate) async fn answered(&self) {
        poll_fn(|cx| self.0.with(|streams| streams.poll_pong(cx))).await;
    }
}
