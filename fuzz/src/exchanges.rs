//! Exchanges over HTTP/2 that an input asks for, and what must arrive of them.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode};
use tunnel::Settings;

/// Two ends, and what they say to each other.
#[derive(Debug)]
pub struct Plan {
    pub asks: Kind,
    pub serves: Kind,
    /// Bytes that may be on their way.
    pub pipe: usize,
    pub ours: Settings,
    pub theirs: Theirs,
    pub exchanges: Vec<Exchange>,
}

/// Whose HTTP/2 an end speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ours,
    H2,
}

/// How h2 is set up.
#[derive(Debug)]
pub struct Theirs {
    pub window: u32,
    pub connection: u32,
    pub max_frame: u32,
    pub table: u32,
    pub most: u32,
}

/// A request and its answer.
#[derive(Debug)]
pub struct Exchange {
    pub method: Method,
    pub status: StatusCode,
    /// The answer comes before the request was read, and nobody reads that.
    pub early: bool,
    pub request: Message,
    pub answer: Message,
}

/// One of the two.
#[derive(Clone, Debug)]
pub struct Message {
    pub headers: HeaderMap,
    pub chunks: Vec<Bytes>,
    pub end: End,
}

/// How a message ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Clean,
    Trailers,
    Abort,
}

/// What arrived of a body.
#[derive(Debug)]
pub struct Got {
    pub body: Vec<u8>,
    /// After its end; or why it has none.
    pub trailers: Result<Option<HeaderMap>, String>,
}

impl Plan {
    /// Reads an input; every one is a plan.
    pub fn read(input: &[u8]) -> Self {
        let script = &mut Script(input);
        let (asks, serves) =
            script.pick(&[(Kind::Ours, Kind::H2), (Kind::H2, Kind::Ours), (Kind::Ours, Kind::Ours)]);
        let ours = Settings {
            stream_window: script.pick(&[4 << 20, 65_535, 70_000]),
            max_frame: script.pick(&[256 << 10, 16 << 10, 20_000]),
            max_concurrent_streams: script.pick(&[100, 1, 2]),
            send_buffer: script.pick(&[400 << 10, 1000, 20_000]),
            ..Settings::default()
        };
        let theirs = Theirs {
            window: script.pick(&[65_535, 100, 1000, 4 << 20]),
            connection: script.pick(&[65_535, 100_000, 1 << 20]),
            max_frame: script.pick(&[16 << 10, 20_000, 1 << 20]),
            table: script.pick(&[4096, 0, 50, 100, 300, 65_536]),
            most: script.pick(&[100, 1, 3]),
        };
        let pipe = script.pick(&[64 << 10, 100, 1000, 1 << 20]);
        let count = 1 + script.next() % 8;
        let exchanges = (0..count).map(|_| Exchange::read(script)).collect();
        Self { asks, serves, pipe, ours, theirs, exchanges }
    }
}

impl Exchange {
    fn read(script: &mut Script<'_>) -> Self {
        let method = script.pick(&[&Method::POST, &Method::PUT, &Method::PATCH]).clone();
        let status = script.pick(&[StatusCode::OK, StatusCode::NOT_FOUND, StatusCode::IM_A_TEAPOT]);
        let early = script.next() % 8 == 7;
        Self { method, status, early, request: Message::read(script), answer: Message::read(script) }
    }

    /// The head of its request.
    pub fn asking(&self, number: usize) -> Request<()> {
        let mut request = Request::new(());
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = format!("http://agent/{number}?x=%20").parse().expect("it is one");
        *request.headers_mut() = self.request.headers.clone();
        request
    }
}

impl Message {
    fn read(script: &mut Script<'_>) -> Self {
        let (fields, chunks) = (script.next() % 8, script.next() % 5);
        let mut headers = HeaderMap::new();
        for _ in 0..fields {
            let name =
                script.pick(&["accept", "cookie", "x-a", "x-b", "etag", "x-long-name-of-a-field", "date"]);
            headers.append(HeaderName::from_static(name), value(script));
        }
        let chunk = |script: &mut Script<'_>| {
            let length = script.pick(&[1, 10, 1000, 5000, 16_384, 40_000]);
            Bytes::from(vec![script.next(); length])
        };
        let chunks = (0..chunks).map(|_| chunk(script)).collect();
        let end = script.pick(&[End::Clean, End::Clean, End::Trailers, End::Abort]);
        Self { headers, chunks, end }
    }

    /// What comes after a body, if something does.
    pub fn trailers() -> HeaderMap {
        HeaderMap::from_iter([(HeaderName::from_static("checksum"), HeaderValue::from_static("42"))])
    }

    /// What the other end got of it; `forgiven` if it had a reason to stop in the middle.
    pub fn check(&self, got: &Got, forgiven: bool) {
        let whole = self.chunks.concat();
        assert!(whole.starts_with(&got.body), "{} bytes are others", got.body.len());
        match (self.end, &got.trailers) {
            (End::Abort, Ok(_)) => panic!("an abort looks like an end"),
            (End::Abort, Err(_)) => {}
            (_, Err(error)) => assert!(forgiven, "{error}, after {} of {}", got.body.len(), whole.len()),
            (end, Ok(trailers)) => {
                assert!(got.body == whole, "{} bytes of {}", got.body.len(), whole.len());
                let expected = (end == End::Trailers).then(Self::trailers);
                assert_eq!(trailers, &expected);
            }
        }
    }
}

fn value(script: &mut Script<'_>) -> HeaderValue {
    let byte = script.next();
    let mut value = match byte % 8 {
        0..=2 => HeaderValue::from_static(["same", "*/*", ""][usize::from(byte % 8)]),
        3 => HeaderValue::from(u16::from(byte)),
        4 => HeaderValue::from_str(&"x".repeat(usize::from(byte) * 10)).expect("it is text"),
        _ => {
            let bytes: Vec<u8> = (0..byte % 32).map(|_| script.next()).collect();
            HeaderValue::from_bytes(bytes.trim_ascii()).unwrap_or(HeaderValue::from_static("other"))
        }
    };
    value.set_sensitive(byte >= 240);
    value
}

/// The input, byte by byte; zeros after its end.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn next(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::from(self.next()) % from.len()]
    }
}
