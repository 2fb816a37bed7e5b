//! A network between programs on one machine that can be made to drop everything, without a word to either end.

use std::{io, net::SocketAddr};

use bytes::BytesMut;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// The most that is under way in one direction of a connection.
const PIECE: usize = 64 * 1024;

/// A network. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Network(watch::Sender<bool>);

/// An address in it, behind which is nobody yet. Connections wait.
#[derive(Debug)]
pub struct Gate {
    listener: TcpListener,
    /// Where to connect.
    pub address: SocketAddr,
}

impl Default for Network {
    /// One that works.
    fn default() -> Self {
        Self(watch::Sender::new(true))
    }
}

impl Network {
    /// A gate of it, on a free port of this machine.
    pub async fn gate(&self) -> io::Result<Gate> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        Ok(Gate { listener, address })
    }

    /// From now on passes nothing: connections stay, and are silent. New ones are taken by this machine, and never answered.
    pub fn cut(&self) {
        self.0.send_replace(false);
    }

    /// Passes on what has waited, and everything after it.
    pub fn mend(&self) {
        self.0.send_replace(true);
    }
}

impl Gate {
    /// Passes connections on to `to`, until the runtime ends.
    pub fn lead(self, network: &Network, to: SocketAddr) {
        let network = network.clone();
        tokio::spawn(async move {
            while let Ok((from, _)) = self.listener.accept().await {
                let network = network.clone();
                tokio::spawn(async move {
                    network.works().await;
                    let Ok(to) = TcpStream::connect(to).await else { return };
                    if [&from, &to].iter().any(|stream| stream.set_nodelay(true).is_err()) {
                        return;
                    }
                    let ((from_read, from_write), (to_read, to_write)) = (from.into_split(), to.into_split());
                    tokio::join!(network.carry(from_read, to_write), network.carry(to_read, from_write));
                });
            }
        });
    }
}

impl Network {
    async fn works(&self) {
        // The sender is here.
        let _ = self.0.subscribe().wait_for(|works| *works).await;
    }

    /// Until one end is gone; the other end hears of it as soon as the network works.
    async fn carry(&self, mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) {
        let mut piece = BytesMut::with_capacity(PIECE);
        loop {
            let read = from.read_buf(&mut piece).await;
            self.works().await;
            if !matches!(read, Ok(1..)) || to.write_all(&piece).await.is_err() {
                break;
            }
            piece.clear();
        }
        // The other end may be gone already.
        let _ = to.shutdown().await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_cut_network_is_silent_and_loses_nothing() {
        let network = Network::default();
        let (mut near, from) = tokio::io::duplex(64);
        let (to, mut far) = tokio::io::duplex(64);
        let passing = network.clone();
        tokio::spawn(async move { passing.carry(from, to).await });
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
