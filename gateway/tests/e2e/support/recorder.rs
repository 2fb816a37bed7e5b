//! An HTTP server that records requests.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread,
};

use parking_lot::Mutex;

use super::run_in_network;

/// An HTTP server that records requests and responds to all of them with an empty object.
pub(crate) struct RecordingServer {
    /// The address of the server.
    pub(crate) address: SocketAddr,
    requests: Arc<Mutex<Vec<RecordedRequest>>>,
}

/// A request that the server received.
#[derive(Clone, Debug)]
pub(crate) struct RecordedRequest {
    /// The request line and the header fields.
    pub(crate) head: Vec<String>,
    /// The body.
    pub(crate) body: Vec<u8>,
}

impl RecordingServer {
    /// Starts the server.
    pub(crate) fn start() -> Self {
        Self::start_in(None)
    }

    /// Starts the server in a network namespace, or in that of the machine without one.
    pub(crate) fn start_in(network: Option<&str>) -> Self {
        let listener = run_in_network(network, || TcpListener::bind("127.0.0.1:0").unwrap());
        let (address, requests) = (listener.local_addr().unwrap(), Arc::default());
        let recorded = Arc::clone(&requests);
        thread::spawn(move || {
            for connection in listener.incoming().map_while(Result::ok) {
                let recorded = Arc::clone(&recorded);
                thread::spawn(move || serve(connection, &recorded));
            }
        });
        Self { address, requests }
    }

    /// Returns all requests so far.
    pub(crate) fn requests(&self) -> Vec<RecordedRequest> {
        self.requests.lock().clone()
    }
}

impl RecordedRequest {
    /// Returns the value of a header field.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.iter().filter_map(|line| line.split_once(": "));
        fields.find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

fn serve(connection: TcpStream, requests: &Mutex<Vec<RecordedRequest>>) {
    let mut reader = BufReader::new(connection.try_clone().unwrap());
    let mut connection = connection;
    loop {
        let head: Vec<String> =
            reader.by_ref().lines().map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
        if head.is_empty() {
            return;
        }
        let mut request = RecordedRequest { head, body: Vec::new() };
        let length = request.header("content-length").map_or(0, |length| length.parse().unwrap());
        request.body = vec![0; length];
        if reader.read_exact(&mut request.body).is_err() {
            return;
        }
        let otlp = request.head[0].starts_with("POST ");
        requests.lock().push(request);
        // OTLP expects a protobuf message, and an empty body is a message without fields.
        let answer = if otlp { "" } else { "{}" };
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{answer}", answer.len());
        if connection.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}
