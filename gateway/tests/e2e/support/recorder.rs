//! An HTTP server that keeps what it is sent and answers everything with an empty object.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread,
};

use parking_lot::Mutex;

/// A running one.
pub(crate) struct Recorder {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    requests: Arc<Mutex<Vec<Recorded>>>,
}

/// What it was sent.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    /// The first line, and the header fields.
    pub(crate) head: Vec<String>,
    /// What followed.
    pub(crate) body: Vec<u8>,
}

impl Recorder {
    /// Starts one.
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, requests) = (listener.local_addr().unwrap(), Arc::default());
        let kept = Arc::clone(&requests);
        thread::spawn(move || {
            for connection in listener.incoming().map_while(Result::ok) {
                let kept = Arc::clone(&kept);
                thread::spawn(move || serve(connection, &kept));
            }
        });
        Self { address, requests }
    }

    /// Everything until now.
    pub(crate) fn requests(&self) -> Vec<Recorded> {
        self.requests.lock().clone()
    }
}

impl Recorded {
    /// The value of a header field.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.iter().filter_map(|line| line.split_once(": "));
        fields.find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

fn serve(connection: TcpStream, kept: &Mutex<Vec<Recorded>>) {
    let mut reader = BufReader::new(connection.try_clone().unwrap());
    let mut connection = connection;
    loop {
        let head: Vec<String> =
            reader.by_ref().lines().map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
        if head.is_empty() {
            return;
        }
        let mut recorded = Recorded { head, body: Vec::new() };
        let length = recorded.header("content-length").map_or(0, |length| length.parse().unwrap());
        recorded.body = vec![0; length];
        if reader.read_exact(&mut recorded.body).is_err() {
            return;
        }
        let otlp = recorded.head[0].starts_with("POST ");
        kept.lock().push(recorded);
        // No fields are set in an empty message of protobuf.
        let answer = if otlp { "" } else { "{}" };
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{answer}", answer.len());
        if connection.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}
