//! Reads server-sent events.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Body;

/// The longest part, in bytes.
const MAX_PART: usize = 1 << 20;

/// One part of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StreamPart {
    /// The id after which the stream continues.
    pub(super) id: Option<String>,
    /// The kind; empty for an event.
    pub(super) kind: String,
    /// The data; empty if the part only has an id.
    pub(super) data: String,
}

/// Splits a body into parts.
pub(super) struct StreamParts<B> {
    body: B,
    buffer: BytesMut,
}

impl<B> StreamParts<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    pub(super) fn new(body: B) -> Self {
        Self { body, buffer: BytesMut::new() }
    }

    /// Returns the next part, or `None` at the end of the stream, also an early one.
    pub(super) async fn next(&mut self) -> Option<StreamPart> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
                let part = self.buffer.split_to(end + 2);
                return Some(StreamPart::parse(&String::from_utf8_lossy(&part)));
            }
            if self.buffer.len() > MAX_PART {
                return None;
            }
            let frame = self.body.frame().await?.ok()?;
            if let Some(data) = frame.data_ref() {
                self.buffer.extend_from_slice(data);
            }
        }
    }
}

impl StreamPart {
    fn parse(text: &str) -> Self {
        let mut part = Self::default();
        for line in text.lines() {
            let (name, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match name {
                "id" => part.id = Some(value.to_owned()),
                "event" => value.clone_into(&mut part.kind),
                "data" => part.data.push_str(value),
                _ => {}
            }
        }
        part
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream;
    use http_body_util::StreamBody;
    use hyper::body::Frame;

    use super::*;

    #[tokio::test]
    async fn parts_are_found_wherever_the_frames_end() {
        let text = "retry: 2000\n: events\n\nid: 1-0\ndata: {\"a\": 1}\n\nevent: reset\ndata: x\n\n: alive\nid: 2-0\n\nid: 3";
        for size in [1, 3, 1000] {
            let frames = text
                .as_bytes()
                .chunks(size)
                .map(|chunk| Ok::<_, Infallible>(Frame::data(Bytes::copy_from_slice(chunk))));
            let mut parts = StreamParts::new(StreamBody::new(stream::iter(frames.collect::<Vec<_>>())));
            let mut found = Vec::new();
            while let Some(StreamPart { id, kind, data }) = parts.next().await {
                found.push(format!("{} {kind} {data}", id.unwrap_or_default()));
            }
            assert_eq!(found, ["  ", "1-0  {\"a\": 1}", " reset x", "2-0  "]);
        }
    }
}
