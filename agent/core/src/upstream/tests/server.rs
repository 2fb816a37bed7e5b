//! A server whose connections are scripted by a test.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

pub(super) const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

pub(super) struct Server {
    pub(super) url: String,
    pub(super) port: u16,
    connections: Arc<AtomicUsize>,
}

impl Server {
    /// Starts a server that calls `serve` with every connection and its number, from 0.
    pub(super) async fn start<F>(mut serve: impl FnMut(TcpStream, usize) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let connections = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&connections);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, counter.fetch_add(1, Ordering::SeqCst)));
            }
        });

        Self { url: format!("http://127.0.0.1:{port}"), port, connections }
    }

    /// Starts a server that sends `answer` to every request.
    pub(super) async fn answering(answer: impl Into<Arc<str>>) -> Self {
        let answer = answer.into();
        Self::start(move |mut stream, _| {
            let answer = Arc::clone(&answer);
            async move {
                while head(&mut stream).await.is_some() {
                    stream.write_all(answer.as_bytes()).await.unwrap();
                }
            }
        })
        .await
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// Reads the head of the next request.
pub(super) async fn head<T: AsyncRead + Unpin>(stream: &mut T) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }

    Some(String::from_utf8(head).unwrap())
}

/// Reads the head of a request, sends `answer`, and returns the head.
pub(super) async fn answer<T: AsyncRead + AsyncWrite + Unpin>(stream: &mut T, answer: &str) -> String {
    let head = head(stream).await.unwrap();
    stream.write_all(answer.as_bytes()).await.unwrap();
    head
}

/// Waits until the client closes or resets the connection.
pub(super) async fn closed<T: AsyncRead + Unpin>(stream: &mut T) {
    let mut buffer = [0; 1024];
    while stream.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
}
