//! A minimal HTTP/1.1 client connection: it writes prepared bytes, parses the response head and counts the body.
//!
//! A general client would use more CPU than the programs that are measured, on the same cores.

use std::{fmt, io};

use agentk_core::{
    DialError,
    connect::{BoxIo, Dial as _},
};
use proto::{Reason, header};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{LoadTarget, progress::Counter};

/// The size limit of a response head in [`send_over`], in bytes.
const HEAD: usize = 16 * 1024;

/// The maximum number of header fields in a response.
const MAX_HEADERS: usize = 128;

/// A connection that carries one request at a time.
pub struct LoadConnection {
    io: BoxIo,
    buffer: Box<[u8]>,
    received: Counter,
    /// The range of the buffer that was read but not parsed yet.
    start: usize,
    end: usize,
}

/// The head of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// The status code.
    pub status: u16,
    framing: Framing,
    /// True if another request may follow on this connection.
    pub reusable: bool,
    /// The reason in the header `Kas-Error`, if the response is an error of kas.
    pub reason: Option<Reason>,
}

/// The framing of a body, by which its end is found (RFC 9112 section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Length(u64),
    Chunked,
    UntilClose,
}

impl LoadConnection {
    /// Dials the target.
    ///
    /// `buffer` is the size of one read and the size limit of a response head, in bytes. `received` counts the bytes of
    /// bodies as they arrive.
    pub async fn open(target: &LoadTarget, buffer: usize, received: Counter) -> Result<Self, LoadError> {
        Ok(Self::over(target.dial().dial().await?, buffer, received))
    }

    fn over(io: BoxIo, buffer: usize, received: Counter) -> Self {
        Self { io, buffer: vec![0; buffer].into(), received, start: 0, end: 0 }
    }

    /// Writes a whole request.
    pub async fn send(&mut self, request: &[u8]) -> Result<(), LoadError> {
        self.io.write_all(request).await?;
        Ok(self.io.flush().await?)
    }

    /// Reads the head of the final response and skips interim responses (100, 103).
    pub async fn head(&mut self) -> Result<ResponseHead, LoadError> {
        loop {
            if let Some((head, length)) = parse(&self.buffer[self.start..self.end])? {
                self.start += length;
                if head.status >= 200 || head.status == 101 {
                    return Ok(head);
                }
                continue;
            }
            self.fill().await?;
        }
    }

    /// Reads and discards the body. Returns its length in bytes, without chunk framing.
    pub async fn body(&mut self, head: ResponseHead) -> Result<u64, LoadError> {
        match head.framing {
            Framing::Length(length) => self.discard(length).await,
            Framing::Chunked => self.chunks().await,
            Framing::UntilClose => self.discard_to_end().await,
        }
    }

    /// Sends a request and reads its whole response. Returns the head and the length of the body in bytes.
    pub async fn exchange(&mut self, request: &[u8]) -> Result<(ResponseHead, u64), LoadError> {
        self.send(request).await?;
        let head = self.head().await?;
        Ok((head, self.body(head).await?))
    }

    /// Returns the stream after a 101, and the bytes of it that were read with the head.
    pub fn into_parts(self) -> (BoxIo, Vec<u8>) {
        (self.io, self.buffer[self.start..self.end].to_vec())
    }

    async fn discard(&mut self, length: u64) -> Result<u64, LoadError> {
        let mut left = length;
        loop {
            let here = (self.end - self.start).min(usize::try_from(left).unwrap_or(usize::MAX));
            self.start += here;
            left -= here as u64;
            self.received.received(here as u64);
            if left == 0 {
                return Ok(length);
            }
            self.fill().await?;
        }
    }

    async fn chunks(&mut self) -> Result<u64, LoadError> {
        let mut total = 0;
        loop {
            let size = self.line().await?;
            let size = size.split(';').next().unwrap_or_default().trim();
            let size = u64::from_str_radix(size, 16)
                .map_err(|_| LoadError::Malformed(format!("a chunk of size {size:?}")))?;
            if size == 0 {
                break;
            }
            total += self.discard(size).await?;
            self.discard(2).await?;
        }
        while !self.line().await?.is_empty() {}
        Ok(total)
    }

    async fn discard_to_end(&mut self) -> Result<u64, LoadError> {
        let mut total = 0;
        loop {
            total += self.discard((self.end - self.start) as u64).await?;
            match self.fill().await {
                Ok(()) => {}
                Err(LoadError::Closed) => return Ok(total),
                Err(failure) => return Err(failure),
            }
        }
    }

    async fn line(&mut self) -> Result<String, LoadError> {
        loop {
            let unread = &self.buffer[self.start..self.end];
            if let Some(length) = unread.windows(2).position(|pair| pair == b"\r\n") {
                let line = String::from_utf8_lossy(&unread[..length]).into_owned();
                self.start += length + 2;
                return Ok(line);
            }
            self.fill().await?;
        }
    }

    /// Reads more bytes into the buffer.
    async fn fill(&mut self) -> Result<(), LoadError> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == self.buffer.len() {
            if self.start == 0 {
                return Err(LoadError::Malformed("a head or a line that never ends".to_owned()));
            }
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        match self.io.read(&mut self.buffer[self.end..]).await? {
            0 => Err(LoadError::Closed),
            read => {
                self.end += read;
                Ok(())
            }
        }
    }
}

/// Sends a request over `kept` and reads the whole response. Opens a new connection if there is none, or if the server has
/// closed it meanwhile, as any HTTP client does. Returns the head, and the connection if another request may follow on it.
/// Dropping the future closes the connection.
pub async fn send_over(
    kept: Option<LoadConnection>,
    target: &LoadTarget,
    request: &[u8],
) -> Result<(ResponseHead, Option<LoadConnection>), LoadError> {
    let mut kept = kept;
    loop {
        let is_kept = kept.is_some();
        let mut connection = match kept.take() {
            Some(connection) => connection,
            None => LoadConnection::open(target, HEAD, Counter::default()).await?,
        };
        let responded = async {
            connection.send(request).await?;
            connection.head().await
        };
        let head = match responded.await {
            Ok(head) => head,
            Err(LoadError::Closed) if is_kept => continue,
            Err(failure) => return Err(failure),
        };
        connection.body(head).await?;
        return Ok((head, head.reusable.then_some(connection)));
    }
}

/// Parses a response head. Returns it with its length, or `None` while it is incomplete.
fn parse(bytes: &[u8]) -> Result<Option<(ResponseHead, usize)>, LoadError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let mut fields = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut fields);
    let parsed = response.parse(bytes).map_err(|error| LoadError::Malformed(error.to_string()))?;
    let httparse::Status::Complete(length) = parsed else { return Ok(None) };
    let status = response.code.unwrap_or_default();
    let value = |name: &str| {
        let field = response.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name));
        field.map(|field| String::from_utf8_lossy(field.value))
    };
    let framing = if status == 204 || status == 304 || status < 200 {
        Framing::Length(0)
    } else if value("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
        Framing::Chunked
    } else if let Some(length) = value("content-length") {
        let length =
            length.trim().parse().map_err(|_| LoadError::Malformed(format!("Content-Length {length:?}")))?;
        Framing::Length(length)
    } else {
        Framing::UntilClose
    };
    let closes = value("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
    let reusable = !closes && framing != Framing::UntilClose && response.version == Some(1);

    let reason = value(header::ERROR.as_str()).and_then(|reason| reason.parse().ok());

    Ok(Some((ResponseHead { status, framing, reusable, reason }, length)))
}

/// The error of a request without a complete response.
#[derive(Debug)]
pub enum LoadError {
    /// The connection could not be opened.
    Connect(String),
    /// The response was not complete in time.
    TimedOut,
    /// The connection was closed before the end of the response.
    Closed,
    /// The response is not HTTP/1.1.
    Malformed(String),
    /// The response to an upgrade request had this status instead of 101.
    NotUpgraded(u16),
    /// An upgraded session ended with this reason.
    Session(String),
    /// Any other I/O error.
    Io(io::ErrorKind),
}

impl From<io::Error> for LoadError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof => {
                Self::Closed
            }
            kind => Self::Io(kind),
        }
    }
}

impl From<DialError> for LoadError {
    fn from(error: DialError) -> Self {
        match error {
            // Its own message recommends `ws://`, which is for tunnels.
            DialError::PlainText { .. } => Self::Connect("the server does not speak TLS".to_owned()),
            error => Self::Connect(error.to_string()),
        }
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(reason) => f.write_str(reason),
            Self::TimedOut => f.write_str("no response in time"),
            Self::Closed => f.write_str("connection closed before the end of the response"),
            Self::Malformed(reason) => write!(f, "not HTTP/1.1: {reason}"),
            Self::NotUpgraded(status) => write!(f, "status {status} instead of 101"),
            Self::Session(reason) => write!(f, "the session ended: {reason}"),
            Self::Io(kind) => write!(f, "{kind}"),
        }
    }
}

impl std::error::Error for LoadError {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what a connection reads from a server that sends `bytes` in writes of at most `piece` bytes.
    async fn answer(bytes: &str, piece: usize) -> Result<(ResponseHead, u64), LoadError> {
        let (io, mut server) = tokio::io::duplex(piece);
        let bytes = bytes.to_owned();
        tokio::spawn(async move {
            let mut request = [0; 1];
            server.read_exact(&mut request).await.unwrap();
            server.write_all(bytes.as_bytes()).await.unwrap();
        });
        let mut connection = LoadConnection::over(Box::new(io), 128, Counter::default());
        connection.exchange(b"?").await
    }

    #[tokio::test]
    async fn body_ends_by_length_chunks_or_close() {
        for (bytes, length, reusable) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 5, true),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nT: 1\r\n\r\n",
                13,
                true,
            ),
            ("HTTP/1.1 200 OK\r\n\r\nto the end", 10, false),
            ("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi", 2, false),
            ("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", 2, false),
            ("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n", 0, true),
        ] {
            for piece in [1, 7, 4096] {
                let (head, body) = answer(bytes, piece).await.unwrap();
                assert_eq!((body, head.reusable), (length, reusable), "{bytes:?} in pieces of {piece}");
            }
        }
    }

    #[tokio::test]
    async fn invalid_response_is_an_error() {
        let failure = async |bytes: &str| answer(bytes, 64).await.unwrap_err().to_string();
        assert_eq!(failure("").await, "connection closed before the end of the response");
        let cut = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel";
        assert_eq!(failure(cut).await, "connection closed before the end of the response");
        assert!(failure("SSH-2.0-OpenSSH\r\n").await.starts_with("not HTTP/1.1: "));
        let bad_chunk = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n";
        assert_eq!(failure(bad_chunk).await, "not HTTP/1.1: a chunk of size \"xyz\"");
        let endless = format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(200));
        assert_eq!(failure(&endless).await, "not HTTP/1.1: a head or a line that never ends");
    }
}
