//! A TCP forwarder that adds latency, without limiting throughput.

use std::{net::SocketAddr, time::Duration};

use bytes::BytesMut;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::{Instant, sleep_until},
};

/// The number of pieces of at most [`PIECE`] bytes that may be on the way: more than any window in the tests.
const PIECES: usize = 4096;
const PIECE: usize = 64 * 1024;

/// Listens on a free port of this machine and forwards connections to `to`, until the runtime ends. `delay` applies to each
/// direction.
pub(super) async fn start(to: SocketAddr, delay: Duration) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((from, _)) = listener.accept().await {
            tokio::spawn(async move {
                let Ok(to) = TcpStream::connect(to).await else { return };
                if [&from, &to].iter().any(|stream| stream.set_nodelay(true).is_err()) {
                    return;
                }
                let (from_read, from_write) = from.into_split();
                let (to_read, to_write) = to.into_split();
                tokio::join!(carry(from_read, to_write, delay), carry(to_read, from_write, delay));
            });
        }
    });
    Ok(address)
}

/// Forwards one direction, until the sender closes it and all bytes have arrived.
async fn carry(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, delay: Duration) {
    let (sender, mut receiver) = mpsc::channel::<(Instant, BytesMut)>(PIECES);
    let reading = async move {
        loop {
            let mut piece = BytesMut::with_capacity(PIECE);
            match from.read_buf(&mut piece).await {
                Ok(0) | Err(_) => return,
                Ok(_) if sender.send((Instant::now() + delay, piece)).await.is_err() => return,
                Ok(_) => {}
            }
        }
    };
    let writing = async move {
        while let Some((due, piece)) = receiver.recv().await {
            sleep_until(due).await;
            if to.write_all(&piece).await.is_err() {
                return;
            }
        }
        // The other end may be closed already.
        let _ = to.shutdown().await;
    };
    tokio::join!(reading, writing);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn delay_keeps_order_and_throughput() {
        let (mut near, from) = tokio::io::duplex(1 << 20);
        let (to, mut far) = tokio::io::duplex(1 << 20);
        tokio::spawn(carry(from, to, Duration::from_millis(20)));
        let start = Instant::now();
        let sent: Vec<u8> = (0..500_000u32).map(|number| number as u8).collect();
        near.write_all(&sent).await.unwrap();
        drop(near);
        let mut received = Vec::new();
        far.read_to_end(&mut received).await.unwrap();
        assert!(received == sent, "other bytes, or another order");
        let took = start.elapsed();
        assert!((20..=22).contains(&took.as_millis()), "{took:?}");
    }
}
