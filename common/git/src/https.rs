//! Git over HTTP with TLS. gix brings reqwest or curl for it; this is hyper, which kas has anyway.

use std::{
    any::Any,
    fmt::Write as _,
    io::{self, BufRead, Cursor, Read, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use bytes::{Buf as _, Bytes};
use files::unreadable;
use gix_transport::{
    Protocol,
    client::{
        TransportWithoutIO as _,
        blocking_io::http::{GetResponse, Http, PostBodyDataKind, PostResponse, Transport},
    },
};
use http::{
    Request, Response, StatusCode, Uri,
    header::{AUTHORIZATION, CONTENT_LENGTH, HOST, HeaderName, HeaderValue, LOCATION},
};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    net::TcpStream,
    runtime::Handle,
    task::spawn_blocking,
    time::{Instant, timeout_at},
};
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

use super::{
    objects::invalid,
    protocol::{GitConnection, TIMEOUT},
};
use crate::RepositoryError;

type GixResult<T> = Result<T, gix_error::Error>;

/// Prepares requests to a server. All responses together have at most `max_bytes` bytes.
pub(super) async fn connect(
    url: &str,
    credentials: Option<&(String, PathBuf)>,
    authority: Option<&Path>,
    max_bytes: u64,
) -> Result<GitConnection, RepositoryError> {
    let (authority, credentials, named) =
        (authority.map(Path::to_owned), credentials.cloned(), url.to_owned());
    let files = spawn_blocking(move || {
        let password = credentials.map(|(user, file)| {
            let password = read_password(&file)?;
            Ok::<_, RepositoryError>((user, password))
        });
        let password = password.transpose()?;
        Ok::<_, RepositoryError>((tls(authority.as_deref())?, password))
    });
    let (tls, password) = files.await.map_err(|_| invalid("the read has panicked".to_owned()))??;
    let exceeded = Arc::new(AtomicBool::new(false));
    let client = BlockingClient {
        shared: Arc::new(TransportState {
            tls,
            runtime: Handle::current(),
            deadline: Instant::now() + TIMEOUT,
            remaining: Mutex::new(max_bytes),
            exceeded: Arc::clone(&exceeded),
        }),
    };
    let url = gix_url::parse(named.as_str()).map_err(|error| invalid(format!("{named}: {error}")))?;
    let mut transport = Transport::new_http(client, url, Protocol::V2, false);
    if let Some((username, password)) = password {
        let account = gix_transport::client::Account { username, password, oauth_refresh_token: None };
        transport.set_identity(account).map_err(|error| invalid(error.to_string()))?;
    }
    Ok(GitConnection { transport: Box::new(transport), exceeded, guard: Box::new(()) })
}

fn read_password(file: &Path) -> Result<String, RepositoryError> {
    let text = files::read_text_at_most(file, 64 << 10);
    let text = text.map_err(|error| invalid(format!("{}: {}", file.display(), unreadable(&error))))?;
    Ok(text.trim().to_owned())
}

fn tls(authority: Option<&Path>) -> Result<Arc<ClientConfig>, RepositoryError> {
    let roots = match authority {
        Some(file) => {
            let named = |what: String| invalid(format!("{}: {what}", file.display()));
            let bytes = files::read(file).map_err(|error| named(unreadable(&error)))?;
            let roots = ::tls::pem_roots(&bytes);
            if roots.is_empty() {
                return Err(named("the file has no certificate".to_owned()));
            }
            roots
        }
        None => ::tls::system_roots(),
    };
    Ok(Arc::new(::tls::client_config(roots, &[b"http/1.1"])))
}

/// Sends requests for a thread that may block.
struct BlockingClient {
    shared: Arc<TransportState>,
}

struct TransportState {
    tls: Arc<ClientConfig>,
    runtime: Handle,
    deadline: Instant,
    /// The bytes that the server may still send.
    remaining: Mutex<u64>,
    exceeded: Arc<AtomicBool>,
}

/// A response whose body is read.
struct Body {
    incoming: Incoming,
    chunk: Bytes,
    shared: Arc<TransportState>,
    _connection: AbortOnDropHandle<()>,
}

/// A POST that is sent when its response is read first: gix writes the body in between.
struct Post {
    request: Option<http::request::Builder>,
    body: Vec<u8>,
    response: Option<(Cursor<Vec<u8>>, Body)>,
    shared: Arc<TransportState>,
}

/// The body of a [`Post`].
struct PostBody(Arc<Mutex<Post>>);
/// The headers of the response to a [`Post`].
struct PostHeaders(PostReader);
/// The body of the response to a [`Post`].
struct PostReader {
    post: Arc<Mutex<Post>>,
    chunk: Bytes,
}

impl TransportState {
    /// Sends a request on a connection of its own.
    fn send(self: &Arc<Self>, request: http::request::Builder, body: Vec<u8>) -> io::Result<(String, Body)> {
        let body = Full::new(Bytes::from(body));
        let request = request.body(body).map_err(io::Error::other)?;
        self.runtime.block_on(async {
            let sending = timeout_at(self.deadline, self.exchange(request));
            let (response, connection) = sending.await.map_err(|_| io::ErrorKind::TimedOut)??;
            check(&response)?;
            let mut headers = String::new();
            for (name, value) in response.headers() {
                let value = String::from_utf8_lossy(value.as_bytes());
                // Writing to a string does not fail.
                let _ = writeln!(headers, "{name}: {value}");
            }
            let body = Body {
                incoming: response.into_body(),
                chunk: Bytes::new(),
                shared: Arc::clone(self),
                _connection: connection,
            };
            Ok((headers, body))
        })
    }

    async fn exchange(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> io::Result<(Response<Incoming>, AbortOnDropHandle<()>)> {
        let uri = request.uri().clone();
        let host = uri.host().ok_or(io::ErrorKind::InvalidInput)?;
        let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let stream = TcpStream::connect((bare.as_str(), uri.port_u16().unwrap_or(443))).await?;
        let name = ServerName::try_from(bare).map_err(io::Error::other)?;
        let stream = TlsConnector::from(Arc::clone(&self.tls)).connect(name, stream).await?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        let connection = AbortOnDropHandle::new(tokio::spawn(async {
            // The error is one of the request, too.
            let _ = connection.await;
        }));
        let authority = uri.authority().ok_or(io::ErrorKind::InvalidInput)?.as_str();
        request.headers_mut().insert(HOST, HeaderValue::from_str(authority).map_err(io::Error::other)?);
        *request.uri_mut() =
            uri.path_and_query().map_or_else(|| Uri::from_static("/"), |it| it.clone().into());
        let response = sender.send_request(request).await.map_err(io::Error::other)?;
        Ok((response, connection))
    }

    /// Counts received bytes.
    fn receive(&self, bytes: usize) -> io::Result<()> {
        let mut remaining = self.remaining.lock();
        match remaining.checked_sub(u64::try_from(bytes).unwrap_or(u64::MAX)) {
            Some(rest) => *remaining = rest,
            None => {
                self.exceeded.store(true, Relaxed);
                return Err(io::Error::other("the response is too large"));
            }
        }
        Ok(())
    }
}

/// Returns an error unless the response is a success. Redirects are not followed: they could lead anywhere.
fn check(response: &Response<Incoming>) -> io::Result<()> {
    let what = match response.status() {
        status if status.is_success() => return Ok(()),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            "it refuses the credentials (username, password_file)".to_owned()
        }
        StatusCode::NOT_FOUND => {
            "it has no such repository, or hides it without valid credentials".to_owned()
        }
        status if status.is_redirection() => {
            let to = response.headers().get(LOCATION).and_then(|to| to.to_str().ok()).unwrap_or_default();
            let to: String = to.split('?').next().unwrap_or_default().chars().take(200).collect();
            format!("it redirects to {to:?}: write the URL of that repository")
        }
        _ => "it fails".to_owned(),
    };
    Err(io::Error::other(format!("the server responds {}: {what}", response.status())))
}

fn builder(
    method: http::Method,
    url: &str,
    headers: impl IntoIterator<Item = impl AsRef<str>>,
) -> io::Result<http::request::Builder> {
    let mut request = Request::builder().method(method).uri(url);
    for line in headers {
        let invalid = || io::Error::other("an invalid header");
        let (name, value) = line.as_ref().split_once(':').ok_or_else(invalid)?;
        let name: HeaderName = name.trim().parse().map_err(io::Error::other)?;
        let mut value = HeaderValue::from_str(value.trim()).map_err(|_| invalid())?;
        value.set_sensitive(name == AUTHORIZATION);
        request = request.header(name, value);
    }
    Ok(request)
}

impl Http for BlockingClient {
    type Headers = Box<dyn BufRead + Send + Unpin>;
    type ResponseBody = Box<dyn BufRead + Send + Unpin>;
    type PostBody = Box<dyn Write + Send>;

    fn get(
        &mut self,
        url: &str,
        _: &str,
        headers: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> GixResult<GetResponse<Self::Headers, Self::ResponseBody>> {
        let request = builder(http::Method::GET, url, headers).map_err(gix_error::Error::from_error)?;
        let (headers, body) = self.shared.send(request, Vec::new()).map_err(gix_error::Error::from_error)?;
        Ok(GetResponse { headers: Box::new(Cursor::new(headers.into_bytes())), body: Box::new(body) })
    }

    fn post(
        &mut self,
        url: &str,
        _: &str,
        headers: impl IntoIterator<Item = impl AsRef<str>>,
        _: PostBodyDataKind,
    ) -> GixResult<PostResponse<Self::Headers, Self::ResponseBody, Self::PostBody>> {
        let request = builder(http::Method::POST, url, headers).map_err(gix_error::Error::from_error)?;
        let post = Arc::new(Mutex::new(Post {
            request: Some(request),
            body: Vec::new(),
            response: None,
            shared: Arc::clone(&self.shared),
        }));
        let reader = || PostReader { post: Arc::clone(&post), chunk: Bytes::new() };
        Ok(PostResponse {
            headers: Box::new(PostHeaders(reader())),
            body: Box::new(reader()),
            post_body: Box::new(PostBody(Arc::clone(&post))),
        })
    }

    fn configure(&mut self, _: &dyn Any) -> GixResult<()> {
        Ok(())
    }
}

impl Post {
    fn response(&mut self) -> io::Result<&mut (Cursor<Vec<u8>>, Body)> {
        if let Some(request) = self.request.take() {
            let body = std::mem::take(&mut self.body);
            let request = request.header(CONTENT_LENGTH, body.len());
            let (headers, body) = self.shared.send(request, body)?;
            self.response = Some((Cursor::new(headers.into_bytes()), body));
        }
        self.response.as_mut().ok_or_else(|| io::Error::other("the request has failed"))
    }
}

impl Write for PostBody {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().body.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for PostHeaders {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.post.lock().response()?.0.read(buffer)
    }
}

impl BufRead for PostHeaders {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.0.chunk.is_empty() {
            let mut text = Vec::new();
            self.0.post.lock().response()?.0.read_to_end(&mut text)?;
            self.0.chunk = text.into();
        }
        Ok(&self.0.chunk)
    }

    fn consume(&mut self, bytes: usize) {
        self.0.chunk.advance(bytes);
    }
}

impl Body {
    /// Returns the next bytes, which are empty at the end.
    fn next_chunk(&mut self) -> io::Result<Bytes> {
        let shared = Arc::clone(&self.shared);
        loop {
            let frame = shared.runtime.block_on(timeout_at(shared.deadline, self.incoming.frame()));
            let Some(frame) = frame.map_err(|_| io::ErrorKind::TimedOut)? else { return Ok(Bytes::new()) };
            let Ok(data) = frame.map_err(io::Error::other)?.into_data() else { continue };
            shared.receive(data.len())?;
            if !data.is_empty() {
                return Ok(data);
            }
        }
    }
}

impl Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(buffer)?;
        self.consume(read);
        Ok(read)
    }
}

impl BufRead for Body {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.chunk.is_empty() {
            self.chunk = self.next_chunk()?;
        }
        Ok(&self.chunk)
    }

    fn consume(&mut self, bytes: usize) {
        self.chunk.advance(bytes);
    }
}

impl Read for PostReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(buffer)?;
        self.consume(read);
        Ok(read)
    }
}

impl BufRead for PostReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.chunk.is_empty() {
            self.chunk = self.post.lock().response()?.1.next_chunk()?;
        }
        Ok(&self.chunk)
    }

    fn consume(&mut self, bytes: usize) {
        self.chunk.advance(bytes);
    }
}
