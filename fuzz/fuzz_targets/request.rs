//! What a caller says to kas, whatever it is: the reader of HTTP/1.1 requests.
//!
//! Input: a byte that says how the rest is cut into reads, then what the caller says: requests, one after the other.
//!
//! * Heads, data, trailers and what is left over do not depend on the cuts.
//! * A body of a known length is as long as that.
//! * What is read as a request, hyper reads as the same request, and as many of them: kas may refuse what hyper takes, but never
//!   take what hyper refuses, or sees in another place.
#![no_main]

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Request, Response, Uri, Version};
use http_body_util::{BodyExt as _, Empty};
use http1::{
    Decoder, Length,
    request::{self, Head, Limits},
};
use hyper::{body::Incoming, server::conn::http1 as theirs, service::service_fn};
use hyper_util::rt::TokioIo;
use libfuzzer_sys::fuzz_target;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const LIMITS: Limits = Limits { bytes: 64 << 10, fields: 100 };

#[derive(Clone, Debug, PartialEq)]
struct Read {
    method: Method,
    target: Uri,
    version: Version,
    headers: HeaderMap,
    data: Vec<u8>,
    trailers: Option<HeaderMap>,
}

#[derive(Debug, Default, PartialEq)]
struct All {
    requests: Vec<Read>,
    left: Vec<u8>,
    refused: bool,
}

fuzz_target!(|input: &[u8]| {
    let Some((step, said)) = input.split_first() else { return };
    let whole = read(said, said.len().max(1));
    let cut = read(said, usize::from(*step) + 1);
    assert_eq!((&whole.requests, whole.refused), (&cut.requests, cut.refused));
    if !whole.refused {
        assert_eq!(whole.left, cut.left);
    }
    if !whole.requests.is_empty() {
        let theirs = tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(hyper(said));
        assert!(theirs.starts_with(&whole.requests), "{:?}, but hyper reads {theirs:?}", whole.requests);
    }
});

/// All requests that are there to their end.
fn read(said: &[u8], step: usize) -> All {
    let (mut received, mut seen, mut all) = (BytesMut::new(), 0, All::default());
    let mut begun: Option<Begun> = None;
    let mut persistent = true;
    'parts: for part in said.chunks(step) {
        received.extend_from_slice(part);
        while persistent {
            if let Some(request) = &mut begun {
                match request.go_on(&mut received) {
                    Ok(true) => {}
                    Ok(false) => continue 'parts,
                    Err(_) => {
                        all.refused = true;
                        return all;
                    }
                }
                let request = begun.take().expect("it has ended");
                // Raw bytes would follow.
                persistent = request.persistent && request.read.method != Method::CONNECT;
                all.requests.push(request.read);
                continue;
            }
            match request::take(&mut received, &mut seen, LIMITS, &mut HeaderMap::new()) {
                Ok(Some(head)) => begun = Some(Begun::new(head)),
                Ok(None) => continue 'parts,
                Err(_) => {
                    all.refused = true;
                    return all;
                }
            }
        }
    }
    all.left = received.to_vec();
    all
}

struct Begun {
    read: Read,
    length: Length,
    decoder: Decoder,
    persistent: bool,
}

impl Begun {
    fn new(head: Head) -> Self {
        assert_ne!(head.length, Length::UntilClosed);
        let (parts, ()) = head.request.into_parts();
        let read = Read {
            method: parts.method,
            target: parts.uri,
            version: parts.version,
            headers: parts.headers,
            data: Vec::new(),
            trailers: None,
        };
        Self { read, length: head.length, decoder: Decoder::new(head.length), persistent: head.persistent }
    }

    /// Whether it has ended.
    fn go_on(&mut self, received: &mut BytesMut) -> Result<bool, http1::Error> {
        while let Some(piece) = self.decoder.take(received)? {
            assert!(!piece.is_empty());
            self.read.data.extend_from_slice(&piece);
        }
        if !self.decoder.is_done() {
            return Ok(false);
        }
        self.read.trailers = self.decoder.trailers();
        assert!(self.decoder.is_over());
        if let Length::Exactly(length) = self.length {
            assert_eq!(self.read.data.len() as u64, length);
        }
        Ok(true)
    }
}

/// All requests that hyper reads to their end.
async fn hyper(said: &[u8]) -> Vec<Read> {
    let (near, far) = tokio::io::duplex(said.len() + 4096);
    let (mut answers, mut asking) = tokio::io::split(far);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let service = service_fn(|request: Request<Incoming>| {
        let seen = Arc::clone(&seen);
        async move {
            let (head, body) = request.into_parts();
            if let Ok(body) = body.collect().await {
                let trailers = body.trailers().cloned();
                seen.lock().unwrap().push(Read {
                    method: head.method,
                    target: head.uri,
                    version: head.version,
                    headers: head.headers,
                    data: body.to_bytes().to_vec(),
                    trailers,
                });
            }
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        }
    });
    let connection = theirs::Builder::new()
        .half_close(true)
        .max_buf_size(LIMITS.bytes)
        .serve_connection(TokioIo::new(near), service);
    let speaking = async {
        asking.write_all(said).await.unwrap();
        asking.shutdown().await.unwrap();
    };
    let mut heard = Vec::new();
    let _ = tokio::join!(connection, speaking, answers.read_to_end(&mut heard));
    let seen = seen.lock().unwrap();
    seen.clone()
}
