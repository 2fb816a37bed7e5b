//! What is known of a request before anybody looks at what it asks for.

use std::array;

use http::{HeaderMap, HeaderValue, Request};
use ipnet::IpNet;
use proto::header;
use tokio::time::Instant;

use crate::{
    failure::Reader,
    headers::{Peer, Way},
    target::Target,
};

/// Longest request id of a caller that is taken over.
const MAX_REQUEST_ID: usize = 64;

/// One request as it came in.
#[derive(Debug)]
pub struct Visit {
    /// Names the request in the answer and in all logs.
    pub id: HeaderValue,
    /// When its head was here.
    pub started: Instant,
    /// Where it came from.
    pub way: Way,
    /// Who will read an error.
    pub reader: Reader,
}

impl Visit {
    /// Over a connection from `peer`.
    pub fn of<B>(request: &Request<B>, peer: &Peer, trusted: &[IpNet]) -> Self {
        let path = request.uri().path();
        Self {
            id: request_id(request.headers()),
            started: Instant::now(),
            way: Way::of(request.headers(), peer, trusted),
            reader: Reader::of(Target::dialect(path), request.headers())
                .with_discovery(Target::is_discovery(path)),
        }
    }
}

/// The caller's own, so that it finds its request in our logs; a new one if it has none that fits into a log line.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let given = headers
        .get(&header::REQUEST_ID)
        .filter(|id| (1..=MAX_REQUEST_ID).contains(&id.len()) && id.as_bytes().iter().all(plain));
    given.cloned().unwrap_or_else(|| {
        let random = rand::random::<[u8; 8]>();
        let digit = |nibble: u8| b"0123456789abcdef"[usize::from(nibble)];
        let digits: [u8; 16] = array::from_fn(|index| {
            let byte = random[index / 2];
            digit(if index % 2 == 0 { byte >> 4 } else { byte & 15 })
        });
        HeaderValue::from_bytes(&digits).expect("hexadecimal digits")
    })
}
