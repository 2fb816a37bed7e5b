//! A server that answers as a test wants it to.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
};

pub(crate) const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
pub(crate) const BUSY: &str = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";

/// A server that answers its nth request, from 0, by its head, as it is told.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) url: String,
    pub(crate) requests: watch::Receiver<usize>,
}

/// What a server does with a request.
pub(crate) enum Answer {
    Say(&'static str),
    Nothing,
    Close,
    /// The beginning of an answer that never ends, and then as much of it as is taken.
    Endless,
}

impl Server {
    pub(crate) async fn start(answer: impl Fn(usize, &str) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let url = format!("http://{address}/x");
        let (seen, requests) = watch::channel(0);
        let (answer, seen, count) = (Arc::new(answer), Arc::new(seen), Arc::new(AtomicUsize::new(0)));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (answer, seen, count) = (Arc::clone(&answer), Arc::clone(&seen), Arc::clone(&count));
                tokio::spawn(async move {
                    let next = |head: &str| {
                        let nth = count.fetch_add(1, SeqCst);
                        seen.send_replace(nth + 1);
                        answer(nth, head)
                    };
                    // A client that leaves ends its connection.
                    let _ = serve(stream, next).await;
                });
            }
        });
        Self { address, url, requests }
    }
}

async fn serve(mut stream: TcpStream, next: impl Fn(&str) -> Answer) -> std::io::Result<()> {
    let mut request = Vec::new();
    loop {
        if stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
        if !request.ends_with(b"\r\n\r\n") {
            continue;
        }
        let answer = next(&String::from_utf8_lossy(&request));
        request.clear();
        match answer {
            Answer::Say(answer) => stream.write_all(answer.as_bytes()).await?,
            Answer::Nothing => std::future::pending().await,
            Answer::Close => return Ok(()),
            Answer::Endless => {
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n").await?;
                loop {
                    stream.write_all(&[b'x'; 65536]).await?;
                }
            }
        }
    }
}
