//! What a connection reads from and writes to.

use std::{
    io,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite};

use super::outbox::Batch;

/// A stream of bytes that takes what is written as it is, so that it need not be copied.
pub trait Transport: AsyncRead + AsyncWrite + Unpin {
    /// Takes all of the batch, or some. It is on its way after the next flush.
    fn poll_take(&mut self, cx: &mut Context<'_>, batch: &mut Batch) -> Poll<io::Result<()>>;
}
