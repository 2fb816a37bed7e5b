//! A proxy in front of Redis that can be slow, be cut and be restored.

use std::{path::PathBuf, time::Duration};

use store::redis::RedisAddress;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        UnixListener, UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    time::sleep,
};

use crate::server::Server;

/// Forwards connections to a server until it is cut.
pub(crate) struct Proxy {
    directory: TempDir,
    open: watch::Sender<bool>,
}

impl Proxy {
    pub(crate) fn to(server: &Server) -> Self {
        Self::slow(server, Duration::ZERO)
    }

    /// Delays all bytes by `delay`, in both directions.
    pub(crate) fn slow(server: &Server, delay: Duration) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(socket(&directory)).unwrap();
        let (open, state) = watch::channel(true);
        let target = server.socket();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let (target, state) = (target.clone(), state.clone());
                tokio::spawn(forward(near, target, state, delay));
            }
        });
        Self { directory, open }
    }

    pub(crate) fn address(&self) -> RedisAddress {
        RedisAddress::Unix(socket(&self.directory))
    }

    /// Closes all connections and accepts no others.
    pub(crate) fn cut(&self) {
        self.open.send_replace(false);
    }

    pub(crate) fn restore(&self) {
        self.open.send_replace(true);
    }
}

fn socket(directory: &TempDir) -> PathBuf {
    directory.path().join("proxy.sock")
}

async fn forward(near: UnixStream, target: PathBuf, mut state: watch::Receiver<bool>, delay: Duration) {
    if !*state.borrow_and_update() {
        return;
    }
    let Ok(far) = UnixStream::connect(target).await else { return };
    let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
    tokio::select! {
        () = copy(near_read, far_write, delay) => {}
        () = copy(far_read, near_write, delay) => {}
        _ = state.wait_for(|open| !open) => {}
    }
}

async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, delay: Duration) {
    let mut buffer = vec![0; 65_536];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        sleep(delay).await;
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
