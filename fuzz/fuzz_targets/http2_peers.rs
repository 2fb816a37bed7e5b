//! Exchanges between our HTTP/2 and h2's, in both directions, and between two ends of ours.
//!
//! Input: who is who, the windows and tables of both ends, then exchanges that go on at the same time. Each has a request
//! and an answer, and each of those a head, chunks and an end: clean, with trailers, or in an abort.
//!
//! * Every head that is sent arrives as it was, whatever the tables remember.
//! * Of every body a beginning arrives; all of it if it ends, and its trailers; and no clean end if it is aborted.
//! * Nothing hangs, however small the windows are.
#![no_main]

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use fuzz::exchanges::{End, Exchange, Got, Kind, Message, Plan, Theirs};
use http::{Request, Response, request, response};
use http_body::Frame;
use http_body_util::BodyExt as _;
use libfuzzer_sys::fuzz_target;
use tokio::{
    io::{DuplexStream, duplex},
    runtime,
    task::{LocalSet, spawn_local, yield_now},
    time::timeout,
};
use tunnel::{Body, CallErrorKind, Tunnel, direct};

fuzz_target!(|data: &[u8]| {
    let plan = Rc::new(Plan::read(data));
    let runtime = runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    LocalSet::new().block_on(&runtime.expect("a runtime needs nothing"), async {
        assert!(timeout(Duration::from_secs(600), run(&plan)).await.is_ok(), "it hangs: {plan:?}");
    });
});

/// What our end sends.
fn sent(message: &Message) -> Body {
    if message.chunks.is_empty() && message.end == End::Clean {
        return Body::empty();
    }
    let end = match message.end {
        End::Clean => None,
        End::Trailers => Some(Ok(Frame::trailers(Message::trailers()))),
        End::Abort => Some(Err(io::Error::other("aborted"))),
    };
    let mut frames: Vec<_> = message.chunks.iter().cloned().map(|chunk| Ok(Frame::data(chunk))).collect();
    frames.extend(end);
    Body::new(Chunks(frames.into_iter()))
}

/// Sends with h2.
async fn send(message: &Message, stream: &mut h2::SendStream<Bytes>) -> Result<(), h2::Error> {
    for chunk in &message.chunks {
        let mut chunk = chunk.clone();
        while !chunk.is_empty() {
            stream.reserve_capacity(chunk.len());
            let Some(room) = poll_fn(|cx| stream.poll_capacity(cx)).await else { return Ok(()) };
            stream.send_data(chunk.split_to(room?.min(chunk.len())), false)?;
        }
    }
    match message.end {
        End::Clean => stream.send_data(Bytes::new(), true),
        End::Trailers => stream.send_trailers(Message::trailers()),
        End::Abort => {
            stream.send_reset(h2::Reason::INTERNAL_ERROR);
            Ok(())
        }
    }
}

/// A body of ours. Its chunks come one at a time.
struct Chunks(std::vec::IntoIter<Result<Frame<Bytes>, io::Error>>);

impl http_body::Body for Chunks {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        Poll::Ready(self.0.next())
    }
}

/// What arrives at our end.
async fn got(mut from: Body) -> Got {
    let (mut body, mut trailers) = (Vec::new(), None);
    while let Some(frame) = from.frame().await {
        match frame.map(Frame::into_data) {
            Ok(Ok(data)) => body.extend_from_slice(&data),
            Ok(Err(frame)) => trailers = frame.into_trailers().ok(),
            Err(error) => return Got { body, trailers: Err(error.to_string()) },
        }
    }
    Got { body, trailers: Ok(trailers) }
}

/// What arrives at h2.
async fn h2_got(mut from: h2::RecvStream) -> Got {
    let mut body = Vec::new();
    while let Some(data) = from.data().await {
        match data {
            Ok(data) => body.extend_from_slice(&data),
            Err(error) => return Got { body, trailers: Err(error.to_string()) },
        }
        let flow = from.flow_control();
        // An error means that nothing more will come.
        let _ = flow.release_capacity(flow.used_capacity());
    }
    Got { body, trailers: from.trailers().await.map_err(|error| error.to_string()) }
}

async fn run(plan: &Rc<Plan>) {
    let (near, far) = duplex(plan.pipe);
    match plan.serves {
        Kind::Ours => serve(far, Rc::clone(plan)),
        Kind::H2 => drop(spawn_local(h2_serve(far, Rc::clone(plan)))),
    }
    match plan.asks {
        Kind::Ours => {
            let (tunnel, driver) = direct::open(near, &plan.ours);
            let driver = spawn_local(driver.run());
            let asks = (0..plan.exchanges.len()).map(|number| {
                let (tunnel, plan) = (tunnel.clone(), Rc::clone(plan));
                spawn_local(async move { ask(&tunnel, number, &plan.exchanges[number], &plan).await })
            });
            for ask in asks.collect::<Vec<_>>() {
                ask.await.expect("it does not panic");
            }
            assert!(!driver.is_finished(), "the connection was given up");
        }
        Kind::H2 => h2_ask(near, plan).await,
    }
}

/// Which exchange a request is of; its head is as it was sent.
fn asked<'a>(plan: &'a Plan, head: &request::Parts) -> &'a Exchange {
    assert_eq!(head.uri.query(), Some("x=%20"));
    let number: usize = head.uri.path()[1..].parse().expect("a number");
    let exchange = &plan.exchanges[number];
    assert_eq!(head.method, exchange.method);
    assert_eq!(head.headers, exchange.request.headers);
    exchange
}

/// What came back, if the request was whole, and read.
fn check_answer(exchange: &Exchange, head: &response::Parts, got: &Got) {
    assert_eq!(head.status, exchange.status);
    assert_eq!(head.headers, exchange.answer.headers);
    let forgiven = exchange.request.end == End::Abort || exchange.early;
    exchange.answer.check(got, forgiven);
}

/// No answer came.
fn check_failure(exchange: &Exchange, error: &dyn std::fmt::Display) {
    let aborted = [&exchange.request, &exchange.answer].iter().any(|message| message.end == End::Abort);
    assert!(aborted, "{error} instead of an answer");
}

async fn ask(tunnel: &Tunnel, number: usize, exchange: &Exchange, plan: &Plan) {
    let answer = loop {
        match tunnel.call(exchange.asking(number).map(|()| sent(&exchange.request))).await {
            // Before its settings are here, the other end may be asked for more than it takes at once.
            Err(error) if matches!(error.kind, CallErrorKind::Refused) && plan.serves == Kind::H2 => {
                yield_now().await;
            }
            answer => break answer,
        }
    };
    match answer {
        Ok(answer) => {
            let (head, body) = answer.into_parts();
            check_answer(exchange, &head, &got(body).await);
        }
        Err(error) => check_failure(exchange, &error),
    }
}

fn serve(far: DuplexStream, plan: Rc<Plan>) {
    let (session, leave) = direct::accept(far, &plan.ours);
    spawn_local(async move {
        let _leave = leave;
        session
            .run(|exchange| {
                let plan = Rc::clone(&plan);
                spawn_local(exchange.answer(|request: Request<Body>| async move {
                    let (head, body) = request.into_parts();
                    let exchange = asked(&plan, &head);
                    if !exchange.early {
                        exchange.request.check(&got(body).await, false);
                    }
                    let mut response = Response::new(sent(&exchange.answer));
                    *response.status_mut() = exchange.status;
                    *response.headers_mut() = exchange.answer.headers.clone();
                    response
                }));
            })
            .await
    });
}

async fn h2_ask(near: DuplexStream, plan: &Rc<Plan>) {
    let mut builder = h2::client::Builder::new();
    let Theirs { window, connection, max_frame, table, .. } = plan.theirs;
    builder.initial_window_size(window).initial_connection_window_size(connection);
    builder.max_frame_size(max_frame).header_table_size(table).max_header_list_size(1 << 20);
    let (sender, connection) = builder.handshake::<_, Bytes>(near).await.expect("they understand each other");
    let connection = spawn_local(connection);
    let asks = (0..plan.exchanges.len()).map(|number| {
        let (sender, plan) = (sender.clone(), Rc::clone(plan));
        spawn_local(async move { h2_ask_one(sender, number, &plan.exchanges[number]).await })
    });
    for ask in asks.collect::<Vec<_>>() {
        ask.await.expect("it does not panic");
    }
    assert!(!connection.is_finished(), "the connection was given up");
}

async fn h2_ask_one(sender: h2::client::SendRequest<Bytes>, number: usize, exchange: &Exchange) {
    let (answer, sending) = loop {
        let mut sender = sender.clone().ready().await.expect("the connection is open");
        let (answer, mut stream) = sender.send_request(exchange.asking(number), false).expect("it is ready");
        let plain = exchange.request.clone();
        // Its error is that of the answer.
        let sending = spawn_local(async move { send(&plain, &mut stream).await });
        match answer.await {
            Err(error) if error.reason() == Some(h2::Reason::REFUSED_STREAM) => yield_now().await,
            answer => break (answer, sending),
        }
    };
    match answer {
        Ok(answer) => {
            let (head, body) = answer.into_parts();
            check_answer(exchange, &head, &h2_got(body).await);
        }
        Err(error) => check_failure(exchange, &error),
    }
    drop(sending.await);
}

async fn h2_serve(far: DuplexStream, plan: Rc<Plan>) {
    let mut builder = h2::server::Builder::new();
    let Theirs { window, connection, max_frame, table, most } = plan.theirs;
    builder.initial_window_size(window).initial_connection_window_size(connection);
    builder.max_frame_size(max_frame).header_table_size(table).max_header_list_size(1 << 20);
    builder.max_concurrent_streams(most);
    let mut connection = builder.handshake::<_, Bytes>(far).await.expect("they understand each other");
    while let Some(request) = connection.accept().await {
        // The other end goes when it has its answers.
        let Ok((request, respond)) = request else { return };
        let plan = Rc::clone(&plan);
        spawn_local(async move { h2_answer(request, respond, &plan).await });
    }
}

async fn h2_answer(
    request: Request<h2::RecvStream>,
    mut respond: h2::server::SendResponse<Bytes>,
    plan: &Plan,
) {
    let (head, body) = request.into_parts();
    let exchange = asked(plan, &head);
    if !exchange.early {
        exchange.request.check(&h2_got(body).await, false);
    }
    let mut response = Response::new(());
    *response.status_mut() = exchange.status;
    *response.headers_mut() = exchange.answer.headers.clone();
    // An error means that whoever asked is gone.
    if let Ok(mut stream) = respond.send_response(response, false) {
        let _ = send(&exchange.answer, &mut stream).await;
    }
}
