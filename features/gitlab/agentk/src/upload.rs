//! The body of a request, and the bytes that follow an upgrade.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use futures_util::Stream;
use http_body::Frame;
use tokio::sync::mpsc;
use tunnel::Body;

/// Messages that wait for the cluster. Further ones wait in HTTP/2.
const QUEUE: usize = 1;

/// Receives what kas sends after the head of a request. A reader that is gone discards it.
pub(super) struct Upload {
    has_body: bool,
    body: Option<mpsc::Sender<BodyPart>>,
    upgrade: Option<mpsc::Sender<Bytes>>,
}

/// A part of a body.
enum BodyPart {
    Data(Bytes),
    End,
}

/// The body of a request. It fails if it is dropped before its end.
struct RequestBody {
    parts: mpsc::Receiver<BodyPart>,
    ended: bool,
}

/// The bytes of the caller in an upgraded connection.
pub(super) struct UpgradeData(mpsc::Receiver<Bytes>);

impl Upload {
    /// Returns an upload without a body.
    pub(super) fn empty() -> Self {
        Self { has_body: false, body: None, upgrade: None }
    }

    /// Returns an upload and the body that it becomes.
    pub(super) fn body() -> (Self, Body) {
        let (sender, parts) = mpsc::channel(QUEUE);
        let upload = Self { has_body: true, body: Some(sender), upgrade: None };
        (upload, Body::new(RequestBody { parts, ended: false }))
    }

    /// Returns an upload for a connection that may be upgraded.
    pub(super) fn upgrade() -> (Self, UpgradeData) {
        let (sender, data) = mpsc::channel(QUEUE);
        (Self { has_body: false, body: None, upgrade: Some(sender) }, UpgradeData(data))
    }

    /// Returns whether the request has a body.
    pub(super) fn has_body(&self) -> bool {
        self.has_body
    }

    pub(super) async fn send_data(&mut self, data: Bytes) {
        self.send_part(BodyPart::Data(data)).await;
    }

    pub(super) async fn end_body(&mut self) {
        self.send_part(BodyPart::End).await;
        self.body = None;
    }

    pub(super) async fn send_upgrade_data(&mut self, data: Bytes) {
        if let Some(upgrade) = &self.upgrade
            && upgrade.send(data).await.is_err()
        {
            self.upgrade = None;
        }
    }

    /// Ends the direction to the cluster.
    pub(super) fn close(&mut self) {
        self.upgrade = None;
    }

    async fn send_part(&mut self, part: BodyPart) {
        if let Some(body) = &self.body
            && body.send(part).await.is_err()
        {
            self.body = None;
        }
    }
}

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        Poll::Ready(match ready!(self.parts.poll_recv(cx)) {
            Some(BodyPart::Data(data)) => Some(Ok(Frame::data(data))),
            Some(BodyPart::End) => {
                self.ended = true;
                None
            }
            None => Some(Err(io::ErrorKind::UnexpectedEof.into())),
        })
    }
}

impl Stream for UpgradeData {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        self.0.poll_recv(cx).map(|data| data.map(Ok))
    }
}
