//! A simulated network between programs on this machine, which can be cut without closing connections.

use std::{io, net::SocketAddr};

use bytes::BytesMut;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// The maximum number of bytes on the way in one direction of a connection.
const PIECE: usize = 64 * 1024;

/// A simulated network. Clones share its state.
#[derive(Clone, Debug)]
pub struct SimulatedNetwork(watch::Sender<bool>);

/// A listening address in the network. Connections wait until [`Self::forward_to`] names their destination.
#[derive(Debug)]
pub struct TcpForwarder {
    listener: TcpListener,
    /// The address to connect to.
    pub address: SocketAddr,
}

impl Default for SimulatedNetwork {
    /// Creates a network that is not cut.
    fn default() -> Self {
        Self(watch::Sender::new(true))
    }
}

impl SimulatedNetwork {
    /// Listens on a free port of this machine.
    pub async fn listen(&self) -> io::Result<TcpForwarder> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        Ok(TcpForwarder { listener, address })
    }

    /// Stops forwarding bytes. Connections stay open, and new ones are accepted but not forwarded.
    pub fn cut(&self) {
        self.0.send_replace(false);
    }

    /// Forwards bytes again, beginning with those that waited.
    pub fn mend(&self) {
        self.0.send_replace(true);
    }
}

impl TcpForwarder {
    /// Forwards connections to `to`, until the runtime ends.
    pub fn forward_to(self, network: &SimulatedNetwork, to: SocketAddr) {
        let network = network.clone();
        tokio::spawn(async move {
            while let Ok((from, _)) = self.listener.accept().await {
                let network = network.clone();
                tokio::spawn(async move {
                    network.wait_until_mended().await;
                    let Ok(to) = TcpStream::connect(to).await else { return };
                    if [&from, &to].iter().any(|stream| stream.set_nodelay(true).is_err()) {
                        return;
                    }
                    let ((from_read, from_write), (to_read, to_write)) = (from.into_split(), to.into_split());
                    tokio::join!(network.forward(from_read, to_write), network.forward(to_read, from_write));
                });
            }
        });
    }
}

impl SimulatedNetwork {
    async fn wait_until_mended(&self) {
        // The sender lives as long as self, so this does not fail.
        let _ = self.0.subscribe().wait_for(|works| *works).await;
    }

    /// Forwards one direction until an end closes it. While the network is cut, the close waits, too.
    async fn forward(&self, mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) {
        let mut piece = BytesMut::with_capacity(PIECE);
        loop {
            let read = from.read_buf(&mut piece).await;
            self.wait_until_mended().await;
            if !matches!(read, Ok(1..)) || to.write_all(&piece).await.is_err() {
                break;
            }
            piece.clear();
        }
        // The other end may be closed already.
        let _ = to.shutdown().await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn cut_network_delays_bytes_and_close() {
        let network = SimulatedNetwork::default();
        let (mut near, from) = tokio::io::duplex(64);
        let (to, mut far) = tokio::io::duplex(64);
        let passing = network.clone();
        tokio::spawn(async move { passing.forward(from, to).await });
        let mut read = [0; 4];
        near.write_all(b"some").await.unwrap();
        far.read_exact(&mut read).await.unwrap();

        network.cut();
        near.write_all(b"more").await.unwrap();
        drop(near);
        let waiting = timeout(Duration::from_secs(3600), far.read_exact(&mut read)).await;
        assert!(waiting.is_err(), "neither the bytes nor the end");
        network.mend();
        let mut rest = Vec::new();
        far.read_to_end(&mut rest).await.unwrap();
        assert_eq!((&read, &*rest), (b"some", b"more".as_slice()));
    }
}
