//! A server whose responses a test defines.

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

/// A server whose response is a function of the number of the request, from 0, and of its head.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) url: String,
    pub(crate) requests: watch::Receiver<usize>,
}

/// The behaviour of a server for a request.
pub(crate) enum ServerAction {
    /// Sends this response.
    Respond(&'static str),
    /// Sends no response and keeps the connection open.
    Ignore,
    /// Closes the connection.
    Close,
    /// Sends a response that never ends.
    Endless,
}

impl Server {
    pub(crate) async fn start(answer: impl Fn(usize, &str) -> ServerAction + Send + Sync + 'static) -> Self {
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
                    // A client may close its connection.
                    let _ = serve(stream, next).await;
                });
            }
        });
        Self { address, url, requests }
    }
}

async fn serve(mut stream: TcpStream, next: impl Fn(&str) -> ServerAction) -> std::io::Result<()> {
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
            ServerAction::Respond(answer) => stream.write_all(answer.as_bytes()).await?,
            ServerAction::Ignore => std::future::pending().await,
            ServerAction::Close => return Ok(()),
            ServerAction::Endless => {
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n").await?;
                loop {
                    stream.write_all(&[b'x'; 65536]).await?;
                }
            }
        }
    }
}
