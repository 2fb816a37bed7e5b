//! What a server near the agent answers, whatever it is: agentk's reader of HTTP/1.1. Its source file of heads is included: the
//! crate does not export it.
//!
//! Input: a byte that says how the rest is cut into reads, then what the server says.
//!
//! * Head, data, trailers and what is left over do not depend on the cuts.
//! * A body of a known length is as long as that, and nothing is lost or made up: what is taken and what is left are the input.
//! * What is read to its end, hyper reads to the same status and data, or refuses.
#![no_main]

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method};
use http_body_util::BodyExt as _;
use http1::{Decoder, Error};
use libfuzzer_sys::fuzz_target;
use tokio::io::AsyncWriteExt as _;

#[allow(dead_code, reason = "it writes requests, too")]
#[path = "../../agent/src/upstream/http1/head.rs"]
mod head;

#[derive(Debug, Default, PartialEq)]
struct Read {
    status: u16,
    headers: HeaderMap,
    data: Vec<u8>,
    trailers: Option<HeaderMap>,
    left: Vec<u8>,
    complete: bool,
}

fuzz_target!(|input: &[u8]| {
    let Some((step, said)) = input.split_first() else { return };
    let whole = read(said, said.len().max(1));
    let cut = read(said, usize::from(*step) + 1);
    match (&whole, &cut) {
        (Ok(whole), Ok(cut)) => assert_eq!(whole, cut),
        (Err(_), Err(_)) => return,
        _ => panic!("{whole:?}, but cut it is {cut:?}"),
    }
    let Ok(ours) = whole else { return };
    // Informational answers are passed over by whoever calls the reader.
    if ours.complete && ours.status >= 200 {
        let theirs = tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(hyper(said));
        if let Some(theirs) = theirs {
            assert_eq!((ours.status, ours.data), theirs);
        }
    }
});

fn read(said: &[u8], step: usize) -> Result<Read, Error> {
    let (mut received, mut seen, mut read) = (BytesMut::new(), 0, Read::default());
    let mut body: Option<Decoder> = None;
    for part in said.chunks(step) {
        received.extend_from_slice(part);
        if body.is_none()
            && let Some(head) = head::take(&mut received, &mut seen, &Method::GET)?
        {
            read.status = head.parts.status.as_u16();
            read.headers = head.parts.headers;
            body = Some(Decoder::new(head.length));
        }
        if let Some(body) = &mut body {
            while let Some(piece) = body.take(&mut received)? {
                assert!(!piece.is_empty());
                read.data.extend_from_slice(&piece);
            }
            assert!(!body.is_over() || body.is_done());
            read.complete = body.is_done() || body.ends_with_the_connection();
            read.trailers = read.trailers.take().or(body.trailers());
        }
    }
    read.left = received.to_vec();
    Ok(read)
}

/// Status and data; `None` where hyper is stricter.
async fn hyper(said: &[u8]) -> Option<(u16, Vec<u8>)> {
    let (near, mut far) = tokio::io::duplex(said.len() + 4096);
    far.write_all(said).await.unwrap();
    far.shutdown().await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(near)).await.ok()?;
    let asking = async {
        let request = http::Request::get("/").body(http_body_util::Empty::<Bytes>::new()).unwrap();
        let response = sender.send_request(request).await.ok()?;
        let (head, body) = response.into_parts();
        let data = body.collect().await.ok()?.to_bytes();
        Some((head.status.as_u16(), data.to_vec()))
    };
    let (answered, _) = tokio::join!(asking, connection);
    answered
}
