//! Watches that a process ends before their sender does.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{
    future::{Pending, pending, ready},
    io,
    time::Duration,
};

use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use http::{
    HeaderName, Response,
    header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE},
};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tunnel::{Body, BodyError, WatchEnds, end_at};

/// Returns a response with these parts, whose body does not end.
fn unfinished(parts: &'static [&'static str]) -> Response<Body> {
    let parts = parts.iter().map(|part| Ok::<_, io::Error>(Frame::data(Bytes::from_static(part.as_bytes()))));
    Response::new(Body::new(StreamBody::new(stream::iter(parts).chain(stream::pending()))))
}

fn with(name: HeaderName, value: &'static str, mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(name, value.try_into().unwrap());
    response
}

/// Returns the next result of the body: a part, the end, or `None` while it is pending.
fn next(body: &mut Body) -> Option<Option<Result<Bytes, BodyError>>> {
    let frame = body.frame().now_or_never()?;
    Some(frame.map(|frame| frame.map(|frame| frame.into_data().unwrap())))
}

#[test]
fn body_ends_after_the_parts_that_have_arrived() {
    let mut body = end_at(unfinished(&["first", "second"]), ready(())).into_body();
    assert!(matches!(next(&mut body), Some(Some(Ok(part))) if part == "first"));
    assert!(matches!(next(&mut body), Some(Some(Ok(part))) if part == "second"));
    assert!(matches!(next(&mut body), Some(None)));
    assert!(matches!(next(&mut body), Some(None)), "it stays at its end");
}

#[test]
fn line_is_not_cut_in_two() {
    for (content_type, parts, ends) in [
        ("application/json", &["{\"type\":", " \"ADDED\"}\n"][..], true),
        ("application/json;stream=watch", &["{\"type\":"], false),
        ("application/x-ndjson", &["{}\n", "{"], false),
        ("application/json", &["{}\n{", "}\n"], true),
        ("application/json", &["{}\n{"], false),
        ("application/json", &["{", ""], false),
        ("text/event-stream", &["data: 1\n\n"], true),
        ("text/event-stream", &[], true),
        ("application/vnd.kubernetes.protobuf;stream=watch", &["k8s"], true),
    ] {
        let mut body = end_at(with(CONTENT_TYPE, content_type, unfinished(parts)), ready(())).into_body();
        for part in parts {
            assert!(matches!(next(&mut body), Some(Some(Ok(data))) if data == *part));
        }
        assert_eq!(matches!(next(&mut body), Some(None)), ends, "{content_type} {parts:?}");
    }
}

/// A reader of gzip waits for the end of the gzip stream, so that this body is not complete.
#[test]
fn compressed_body_ends_with_an_error() {
    let response = with(CONTENT_ENCODING, "gzip", unfinished(&[]));
    let mut body = end_at(response, ready(())).into_body();
    assert!(matches!(next(&mut body), Some(Some(Err(_)))));
}

#[test]
fn body_with_a_length_is_not_shortened() {
    let response = with(CONTENT_LENGTH, "10", unfinished(&[]));
    assert!(next(&mut end_at(response, ready(())).into_body()).is_none());
}

#[test]
fn silent_body_is_pending_before_its_end() {
    let end: Pending<()> = pending();
    assert!(next(&mut end_at(unfinished(&[]), end).into_body()).is_none());
}

#[tokio::test(start_paused = true)]
async fn watches_end_one_after_the_other_when_the_process_stops() {
    for (grace, earliest, latest) in [(3600, 2000, 5000), (4, 1000, 3000), (0, 0, 0)] {
        let stopping = CancellationToken::new();
        let ends = WatchEnds::new(stopping.clone(), Duration::from_secs(grace));
        let watches = Vec::from_iter((0..20).map(|_| {
            let body = end_at(unfinished(&["event"]), ends.next()).into_body();
            tokio::spawn(async move { (body.collect().await.unwrap().to_bytes(), Instant::now()) })
        }));
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(watches.iter().all(|watch| !watch.is_finished()));
        let stopped = Instant::now();
        stopping.cancel();
        let mut times = Vec::new();
        for watch in watches {
            let (data, ended) = watch.await.unwrap();
            assert_eq!(data, "event");
            times.push(u64::try_from((ended - stopped).as_millis()).unwrap());
        }
        let range = earliest..=latest + 1;
        assert!(times.iter().all(|time| range.contains(time)), "{grace}: {times:?}");
        times.dedup();
        assert!(grace == 0 || times.len() > 1, "{grace}: {times:?}");
    }
}
