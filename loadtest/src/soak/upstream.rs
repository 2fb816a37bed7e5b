//! A cluster that fails, hangs, resets and truncates responses at random.

use std::{io, net::SocketAddr, time::Duration};

use rand::{RngExt as _, SeedableRng as _, rngs::SmallRng};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::sleep,
};
use tokio_util::task::AbortOnDropHandle;

/// The path with random faults. All other paths work, so that agentk finds its cluster healthy.
pub(super) const PATH: &str = "/api/v1/trouble";

/// The size limit of a request head, in bytes.
const HEAD: usize = 16 * 1024;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 3\r\n\r\n{}\n";
const FAILURE: &[u8] =
    b"HTTP/1.1 500 Internal Server Error\r\nContent-Type: text/plain\r\nContent-Length: 7\r\n\r\nfailed\n";
const HALF: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1000\r\n\r\nthe first half";
const CHUNKED: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n";

/// The behaviour for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behaviour {
    Answer,
    /// A response with status 500.
    Fail,
    /// No response until the client closes the connection.
    Hang,
    /// A TCP reset instead of a response.
    Reset,
    /// The connection is closed in the middle of a body.
    BreakOff,
    /// A body that takes a second.
    Trickle,
}

/// A running cluster. Dropping it stops it.
#[derive(Debug)]
pub(super) struct Upstream {
    pub(super) address: SocketAddr,
    _serving: AbortOnDropHandle<()>,
}

impl Upstream {
    pub(super) async fn start(seed: u64) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let serving = tokio::spawn(async move {
            let mut connections = seed;
            while let Ok((stream, _)) = listener.accept().await {
                connections = connections.wrapping_add(1);
                // Broken connections are intended, so their errors are ignored.
                tokio::spawn(async move { drop(serve(stream, SmallRng::seed_from_u64(connections)).await) });
            }
        });
        Ok(Self { address, _serving: AbortOnDropHandle::new(serving) })
    }
}

impl Behaviour {
    /// Chooses the behaviour for a random number from 0 to 99.
    fn of(share: u32) -> Self {
        match share {
            0..70 => Self::Answer,
            70..76 => Self::Fail,
            76..82 => Self::Hang,
            82..88 => Self::Reset,
            88..94 => Self::BreakOff,
            _ => Self::Trickle,
        }
    }
}

async fn serve(mut stream: TcpStream, mut random: SmallRng) -> io::Result<()> {
    stream.set_nodelay(true)?;
    loop {
        let head = head(&mut stream).await?;
        let behaviour =
            if head.contains(PATH) { Behaviour::of(random.random_range(0..100)) } else { Behaviour::Answer };
        match behaviour {
            Behaviour::Answer => stream.write_all(ANSWER).await?,
            Behaviour::Fail => stream.write_all(FAILURE).await?,
            Behaviour::Hang => return stream.read(&mut [0]).await.map(drop),
            Behaviour::Reset => return stream.set_zero_linger(),
            Behaviour::BreakOff => return stream.write_all(HALF).await,
            Behaviour::Trickle => {
                stream.write_all(CHUNKED).await?;
                for _ in 0..10 {
                    stream.write_all(b"5\r\nline\n\r\n").await?;
                    sleep(Duration::from_millis(100)).await;
                }
                stream.write_all(b"0\r\n\r\n").await?;
            }
        }
    }
}

/// Reads the head of a request, which has no body.
async fn head(stream: &mut TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() == HEAD || stream.read_buf(&mut head).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_behaviour_has_its_share() {
        let all: Vec<_> = (0..100).map(Behaviour::of).collect();
        let count = |behaviour| all.iter().filter(|each| **each == behaviour).count();
        assert_eq!(count(Behaviour::Answer), 70);
        for trouble in
            [Behaviour::Fail, Behaviour::Hang, Behaviour::Reset, Behaviour::BreakOff, Behaviour::Trickle]
        {
            assert_eq!(count(trouble), 6, "{trouble:?}");
        }
    }
}
