//! One end's streams, told frames.

use std::{
    io::IoSlice,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Wake, Waker},
};

use bytes::{Bytes, BytesMut};
use http::{Method, Request, Response, StatusCode, header::CONTENT_LENGTH};

use super::{
    super::{
        error::{Fault, Reason},
        frame::{FIRST_WINDOW, MAX_WINDOW, Setting},
        hpack::Encoder,
        inbox::{Frame, Inbox},
        message,
        outbox::Batch,
    },
    *,
};
use crate::Settings;

/// One end, and how the other end reads it.
struct End {
    streams: Streams,
    inbox: Inbox,
    /// Of the other end.
    encoder: Encoder,
    arrived: Vec<Arrived>,
}

impl End {
    fn new(role: Role, settings: &Settings) -> Self {
        let mut end = Self {
            streams: Streams::new(role, settings),
            inbox: Inbox::new(role == Role::Client, 1 << 20, 1 << 20),
            encoder: Encoder::default(),
            arrived: Vec::new(),
        };
        end.hears(Frame::Settings(vec![Setting::ExtendedConnect(role == Role::Client)])).unwrap();
        end.says();
        end
    }

    fn client() -> Self {
        Self::new(Role::Client, &Settings::default())
    }

    fn server() -> Self {
        Self::new(Role::Server, &Settings::default())
    }

    fn hears(&mut self, frame: Frame) -> Result<(), Fault> {
        self.streams.receive(frame, &mut self.arrived)
    }

    fn hears_data(&mut self, stream: u32, bytes: &'static [u8], end: bool) -> Result<(), Fault> {
        self.hears(Frame::Data { stream, bytes: bytes.into(), counted: bytes.len(), end })
    }

    fn hears_request(&mut self, stream: u32, method: Method, end: bool) -> Result<(), Fault> {
        let (head, ()) = Request::builder().method(method).body(()).unwrap().into_parts();
        let mut block = BytesMut::new();
        message::pack_request(&mut self.encoder, &mut block, &head, None);
        self.hears(Frame::Headers { stream, block: block.freeze(), end })
    }

    fn hears_answer(&mut self, stream: u32, answer: Response<()>, end: bool) -> Result<(), Fault> {
        let mut block = BytesMut::new();
        message::pack_response(&mut self.encoder, &mut block, &answer.into_parts().0);
        self.hears(Frame::Headers { stream, block: block.freeze(), end })
    }

    /// Everything that it has to say now.
    fn says(&mut self) -> Vec<Frame> {
        let mut batch = Batch::default();
        loop {
            self.streams.write(&mut batch);
            if batch.is_empty() {
                break;
            }
            while !batch.is_empty() {
                let mut slices = [IoSlice::new(&[])];
                batch.slices(&mut slices);
                self.inbox.buffer.extend_from_slice(&slices[0]);
                let written = slices[0].len();
                batch.advance(written);
            }
        }
        std::iter::from_fn(|| self.inbox.next().unwrap()).collect()
    }

    fn asks(&mut self, method: Method, ended: bool) -> Result<u32, Unsent> {
        let (head, ()) = Request::builder().method(method).body(()).unwrap().into_parts();
        self.streams.ask(&head, None, ended)
    }

    fn sends(&mut self, stream: u32, length: usize, end: bool) {
        let mut data = Bytes::from(vec![7; length]);
        assert!(self.streams.poll_send(stream, &mut data, end, &idle()).is_ready());
        assert!(data.is_empty());
    }

    fn lets_go(&mut self, stream: u32) {
        self.streams.let_go(stream, Half::Sending);
        self.streams.let_go(stream, Half::Receiving);
    }
}

fn idle() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

fn wake_all(streams: &mut Streams) {
    streams.woken(true).0.into_iter().for_each(Waker::wake);
}

fn reset(stream: u32, reason: Reason) -> Frame {
    Frame::Reset { stream, reason }
}

#[test]
fn who_waits_for_the_connections_window_is_woken_once_it_grows() {
    let mut end = End::client();
    let [first, second] = [(); 2].map(|()| end.asks(Method::POST, false).unwrap());
    end.hears(Frame::Window { stream: second, increment: 1 << 20 }).unwrap();
    end.sends(first, FIRST_WINDOW as usize, false);
    let wakes = Arc::<Wakes>::default();
    let mut data = Bytes::from_static(b"late");
    for _ in 0..3 {
        let waker = Arc::clone(&wakes).into();
        assert!(end.streams.poll_send(second, &mut data, true, &Context::from_waker(&waker)).is_pending());
    }
    end.hears(Frame::Window { stream: 0, increment: 4 }).unwrap();
    wake_all(&mut end.streams);
    assert_eq!(wakes.0.load(Relaxed), 1);
    end.sends(second, 4, true);
}

#[test]
fn of_many_windows_in_one_frame_of_settings_the_last_one_counts() {
    let mut end = End::client();
    let stream = end.asks(Method::POST, false).unwrap();
    let windows = [1 << 30, 0, MAX_WINDOW as u32, 7].map(Setting::InitialWindow);
    end.hears(Frame::Settings(windows.to_vec())).unwrap();
    let mut data = Bytes::from_static(b"more than seven");
    assert!(end.streams.poll_send(stream, &mut data, true, &idle()).is_ready());
    assert_eq!(data, "an seven");
    assert!(end.streams.poll_send(stream, &mut data, true, &idle()).is_pending());
}

#[test]
fn a_request_that_nobody_looks_at_any_more_ends_no_other() {
    let mut end = End::server();
    end.hears_request(1, Method::GET, true).unwrap();
    end.streams.leave();
    end.hears(Frame::Pong(PING_LEAVING)).unwrap();
    end.hears_request(3, Method::POST, false).unwrap();
    end.hears_data(3, b"late", true).unwrap();
    end.hears(reset(3, Reason::CANCEL)).unwrap();
    assert_eq!(end.arrived.len(), 1);
}

#[test]
fn a_stream_that_is_cut_while_its_last_words_wait_is_reset() {
    let mut end = End::client();
    let stream = end.asks(Method::POST, false).unwrap();
    end.says();
    end.sends(stream, FIRST_WINDOW as usize, true);
    end.hears_answer(stream, Response::new(()), true).unwrap();
    assert_eq!(end.streams.open, 1, "the other end waits for the rest");
    end.streams.cut(stream);
    assert_eq!(end.says(), [reset(stream, Reason::CANCEL)]);
    assert_eq!(end.streams.open, 0);
}

fn two_at_once() -> Settings {
    Settings { max_concurrent_streams: 2, ..Settings::default() }
}

fn nothing() -> Response<()> {
    Response::builder().status(StatusCode::NO_CONTENT).body(()).unwrap()
}

#[test]
fn who_reads_no_answers_asks_no_more_than_it_may_at_once() {
    let mut end = End::new(Role::Server, &two_at_once());
    for stream in [1, 3, 5] {
        end.hears_request(stream, Method::GET, true).unwrap();
        if end.arrived.pop().is_some() {
            end.streams.answer(stream, &nothing().into_parts().0, true).unwrap();
            end.lets_go(stream);
        }
    }
    let said = end.says();
    assert!(matches!(said[..2], [Frame::Headers { stream: 1, .. }, Frame::Headers { stream: 3, .. }]));
    assert_eq!(said[2..], [reset(5, Reason::REFUSED_STREAM)]);
    end.hears_request(7, Method::GET, true).unwrap();
    assert_eq!(end.arrived.len(), 1);
    // Whoever gives up itself may ask at once.
    end.hears(Frame::Ping([0; 8])).unwrap();
    for stream in [9, 11, 13] {
        end.hears_request(stream, Method::GET, true).unwrap();
        end.hears(reset(stream, Reason::CANCEL)).unwrap();
        end.lets_go(stream);
    }
    assert_eq!(end.arrived.len(), 4);
}

#[test]
fn requests_that_are_given_up_make_room_once_the_other_end_can_know() {
    let mut end = End::new(Role::Client, &two_at_once());
    end.hears(Frame::Settings(vec![Setting::MaxConcurrentStreams(u32::MAX)])).unwrap();
    for _ in 0..2 {
        let stream = end.asks(Method::GET, true).unwrap();
        end.lets_go(stream);
    }
    assert_eq!(end.asks(Method::GET, true), Err(Unsent::Full));
    let wakes = Arc::<Wakes>::default();
    end.streams.queue(&mut None, &Context::from_waker(&Arc::clone(&wakes).into()));
    end.says();
    wake_all(&mut end.streams);
    assert_eq!(wakes.0.load(Relaxed), 1);
    end.asks(Method::GET, true).unwrap();
}

#[test]
fn an_answer_that_has_no_body_gets_none_whatever_its_head_says() {
    for (method, status) in [
        (Method::HEAD, StatusCode::OK),
        (Method::GET, StatusCode::NO_CONTENT),
        (Method::GET, StatusCode::NOT_MODIFIED),
    ] {
        for length in [None, Some("5")] {
            let answer = || {
                let mut answer = Response::new(());
                *answer.status_mut() = status;
                answer.headers_mut().extend(length.map(|length| (CONTENT_LENGTH, length.parse().unwrap())));
                answer
            };
            let mut end = End::client();
            let stream = end.asks(method.clone(), true).unwrap();
            end.hears_answer(stream, answer(), true).unwrap();
            let stream = end.asks(method.clone(), true).unwrap();
            end.hears_answer(stream, answer(), false).unwrap();
            end.hears_data(stream, b"", true).unwrap();
            let stream = end.asks(method.clone(), true).unwrap();
            end.says();
            end.hears_answer(stream, answer(), false).unwrap();
            end.hears_data(stream, b"five!", true).unwrap();
            assert_eq!(end.says(), [reset(stream, Reason::PROTOCOL_ERROR)], "{status} to {method}");
        }
    }
}

#[test]
fn a_connection_that_has_no_more_numbers_ends_once_what_is_in_flight_has_ended() {
    let mut end = End::client();
    end.streams.last = LAST_ID - 2;
    let stream = end.asks(Method::GET, true).unwrap();
    assert_eq!((stream, end.asks(Method::GET, true)), (LAST_ID, Err(Unsent::Closed)));
    end.says();
    assert_eq!(end.streams.pause(&idle(), false), Pause::Rest);
    end.hears_answer(stream, nothing(), true).unwrap();
    assert_eq!(end.streams.pause(&idle(), false), Pause::Over);
}

/// Whoever answers an upgrade has something to receive.
#[test]
fn an_upgrade_that_ends_with_its_head_is_refused() {
    let mut end = End::server();
    let (mut head, ()) = Request::get("/exec").body(()).unwrap().into_parts();
    head.headers.insert(CONTENT_LENGTH, 7.into());
    for (stream, ended) in [(1, false), (3, true)] {
        let mut block = BytesMut::new();
        message::pack_request(&mut end.encoder, &mut block, &head, Some("SPDY/3.1"));
        end.hears(Frame::Headers { stream, block: block.freeze(), end: ended }).unwrap();
    }
    assert_eq!(end.arrived.len(), 1);
    assert_eq!(end.says(), [reset(3, Reason::PROTOCOL_ERROR)]);
}

#[test]
fn padding_is_granted_again_although_nobody_reads_it() {
    let window = 1 << 16;
    let mut end = End::new(Role::Server, &Settings { stream_window: window, ..Settings::default() });
    end.hears_request(1, Method::POST, false).unwrap();
    end.says();
    for _ in 0..window / 256 / 4 {
        end.hears(Frame::Data { stream: 1, bytes: Bytes::new(), counted: 256, end: false }).unwrap();
    }
    assert_eq!(end.says(), [Frame::Window { stream: 1, increment: window / 4 }]);
}

#[test]
fn who_stops_in_the_middle_gives_the_stream_up() {
    let mut end = End::server();
    end.hears_request(1, Method::POST, false).unwrap();
    end.streams.let_go(1, Half::Sending);
    assert_eq!(end.says(), [reset(1, Reason::CANCEL)]);
    assert!(matches!(end.streams.poll_data(1, &idle()), Poll::Ready(Some(Err(Error::Given)))));
}

#[test]
fn a_window_that_grows_by_nothing_or_beyond_all_bounds_is_refused() {
    for (increment, reason) in [(0, Reason::PROTOCOL_ERROR), (MAX_WINDOW as u32, Reason::FLOW_CONTROL_ERROR)]
    {
        let mut end = End::client();
        let stream = end.asks(Method::GET, true).unwrap();
        end.says();
        end.hears(Frame::Window { stream, increment }).unwrap();
        assert_eq!(end.says(), [reset(stream, reason)]);
        assert_eq!(end.hears(Frame::Window { stream: 0, increment }).unwrap_err().reason, reason);
    }
}

#[test]
fn a_path_begins_with_a_slash() {
    for (path, served) in [("/", true), ("*", true), ("", false), ("?q", false), ("evil:80/", false)] {
        let mut end = End::server();
        let block = [b"\x82\x86\x04", &[path.len() as u8][..], path.as_bytes()].concat().into();
        end.hears(Frame::Headers { stream: 1, block, end: true }).unwrap();
        assert_eq!(end.arrived.len(), usize::from(served), "{path}");
    }
}

/// Who gives up uploads does not use up the connection.
#[test]
fn what_is_dropped_before_it_is_sent_does_not_count_in_the_connections_window() {
    let drops: [fn(&mut End, u32); 3] = [
        |end, stream| end.hears(reset(stream, Reason::CANCEL)).unwrap(),
        |end, stream| end.lets_go(stream),
        |end, _| end.hears(Frame::GoAway { last: 0, reason: Reason::NO_ERROR }).unwrap(),
    ];
    for drop in drops {
        let mut end = End::client();
        let [first, second] = [(); 2].map(|()| end.asks(Method::POST, false).unwrap());
        end.sends(first, FIRST_WINDOW as usize, false);
        let wakes = Arc::<Wakes>::default();
        let (waker, mut data) = (Arc::clone(&wakes).into(), Bytes::from_static(b"late"));
        let cx = Context::from_waker(&waker);
        assert!(end.streams.poll_send(second, &mut data, true, &cx).is_pending());
        drop(&mut end, first);
        wake_all(&mut end.streams);
        assert_eq!((wakes.0.load(Relaxed), end.streams.outward), (1, FIRST_WINDOW.into()));
    }
}
