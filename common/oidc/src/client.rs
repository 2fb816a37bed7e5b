//! The HTTP client for issuers. Their responses are not trusted: bytes and time are limited, redirects are not followed, and the
//! endpoints that an issuer names must not lead into the network of kas.

use std::{
    fmt,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use files::unreadable;
use futures_util::future::BoxFuture;
use http::{
    HeaderValue, Request, StatusCode, Uri,
    header::{ACCEPT, CONTENT_TYPE, USER_AGENT},
};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioIo},
};
use outbound::AddressPolicy;
use proto::ErrorChain;
use rustls::{ClientConfig, RootCertStore};
use settings::Network;
use tokio::{
    task::{JoinError, spawn_blocking},
    time::timeout,
};
use tower::service_fn;

use super::EndpointUrl;

/// The time of a request, from the name lookup to the end of the response.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The time for the connection to one address. A server may have some that do not answer, such as those of IPv6 behind a firewall.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The most bytes of a response. Keys with certificate chains take about 10 KiB each.
const MAX_BYTES: usize = 512 << 10;

/// A source of the documents of issuers: their HTTP servers, or a test.
pub trait DocumentSource: fmt::Debug + Send + Sync {
    /// Returns the body of a successful response.
    ///
    /// # Errors
    ///
    /// There was no response in time, or it is not 200, or too large.
    fn get<'a>(&'a self, url: &'a EndpointUrl) -> BoxFuture<'a, Result<Bytes, FetchError>>;

    /// Sends a form, and returns the status and the body of the response.
    ///
    /// # Errors
    ///
    /// There was no response in time, or it is too large.
    fn post<'a>(
        &'a self,
        url: &'a EndpointUrl,
        form: String,
    ) -> BoxFuture<'a, Result<(StatusCode, Bytes), FetchError>>;
}

/// The reason for which there is no valid document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FetchError(String);

/// Connects to an issuer by HTTP or HTTPS.
#[derive(Debug)]
pub struct IssuerClient {
    /// The addresses to which it may connect, or all of them.
    addresses: Option<Arc<AddressPolicy>>,
    /// The host of the issuer, if it is an address or `localhost`: the configuration names this machine, and not the issuer or its DNS.
    named_machine: Option<String>,
    authority: Option<PathBuf>,
    /// TLS with the authorities of the system, which are read once.
    system: OnceLock<Arc<ClientConfig>>,
}

impl FetchError {
    /// Returns an error with this text.
    pub(super) fn new(what: String) -> Self {
        Self(what)
    }

    /// Returns an error about a response that was received.
    pub fn invalid(subject: &str, cause: &dyn fmt::Display) -> Self {
        Self(format!("{subject} is not valid: {cause}"))
    }

    /// Returns an error about a URL.
    pub fn failed(url: &EndpointUrl, cause: &dyn fmt::Display) -> Self {
        Self(format!("{url}: {cause}"))
    }
}

/// A file without authorities. The operator mends it.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// It cannot be read.
    #[error("{}: {reason}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The reason.
        reason: String,
    },
    /// It has no certificate.
    #[error("{}: holds no PEM certificate that can be used", file.display())]
    NoCertificate {
        /// The file.
        file: PathBuf,
    },
    /// The task that reads it was cancelled, or has panicked.
    #[error(transparent)]
    ReadTask(#[from] JoinError),
}

impl IssuerClient {
    /// Creates a client that trusts the authorities of a PEM file, which is read for each request, or those of the system.
    pub fn new(authority: Option<PathBuf>) -> Self {
        Self { addresses: None, named_machine: None, authority, system: OnceLock::new() }
    }

    /// Connects only to these networks, or to all but special addresses. The machine of the issuer with this URL is allowed, if the URL
    /// names it by its address or as `localhost`.
    #[must_use]
    pub fn within(self, networks: &[Network], issuer: &str) -> Self {
        let host = issuer.parse::<Uri>().ok().and_then(|url| url.host().map(str::to_owned));
        let is_machine = |host: &String| host == "localhost" || bare(host).parse::<IpAddr>().is_ok();
        let addresses = AddressPolicy::new("oidc.issuers[].allowed_networks", networks);
        Self { addresses: Some(Arc::new(addresses)), named_machine: host.filter(is_machine), ..self }
    }

    /// Checks that the file holds certificates. This blocks.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or has no certificate.
    pub fn check(&self) -> Result<(), AuthorityError> {
        self.authority.as_deref().map_or(Ok(()), |file| read_roots(file).map(drop))
    }

    async fn send(
        &self,
        url: &EndpointUrl,
        mut request: Request<Full<Bytes>>,
    ) -> Result<(StatusCode, Bytes), FetchError> {
        let headers = request.headers_mut();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("kas/", env!("CARGO_PKG_VERSION"))));
        let exchange = async {
            let tls = self.tls().await.map_err(|error| error.to_string())?;
            let is_named = url.uri().host() == self.named_machine.as_deref();
            let rules = self.addresses.clone().filter(|_| !is_named);
            let http = service_fn(move |url: Uri| {
                let rules = rules.clone();
                async move {
                    let host = bare(url.host().unwrap_or_default());
                    let default_port = if url.scheme_str() == Some("http") { 80 } else { 443 };
                    let port = url.port_u16().unwrap_or(default_port);
                    outbound::connect(host, port, rules.as_deref(), CONNECT_TIMEOUT).await.map(TokioIo::new)
                }
            });
            // Requests are rare: a connection is not kept.
            let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new())
                .pool_max_idle_per_host(0)
                .build(HttpsConnector::from((http, tls)));
            let response = client.request(request).await.map_err(|error| ErrorChain(&error).to_string())?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, MAX_BYTES).collect().await;
            let body = body.map_err(|error| {
                if error.is::<LengthLimitError>() {
                    format!("the response has more than {} KiB", MAX_BYTES >> 10)
                } else {
                    ErrorChain(&*error).to_string()
                }
            })?;
            Ok((head.status, body.to_bytes()))
        };
        let result = timeout(TIMEOUT, exchange).await;
        let result = result.unwrap_or_else(|_| Err(format!("no response within {} s", TIMEOUT.as_secs())));
        result.map_err(|cause| FetchError::failed(url, &cause))
    }

    async fn tls(&self) -> Result<Arc<ClientConfig>, AuthorityError> {
        if let Some(config) = self.system.get() {
            return Ok(Arc::clone(config));
        }
        let authority = self.authority.clone();
        // Without authorities of the system, only `http` works.
        let read = move || authority.as_deref().map_or_else(|| Ok(tls::system_roots()), read_roots);
        let roots = spawn_blocking(read).await??;
        let config = Arc::new(tls::client_config(roots, &[b"http/1.1"]));
        Ok(match self.authority {
            Some(_) => config,
            None => Arc::clone(self.system.get_or_init(|| config)),
        })
    }
}

impl DocumentSource for IssuerClient {
    fn get<'a>(&'a self, url: &'a EndpointUrl) -> BoxFuture<'a, Result<Bytes, FetchError>> {
        let request = Request::get(url.uri()).body(Full::default()).expect("a valid request");
        Box::pin(async move {
            match self.send(url, request).await? {
                (StatusCode::OK, body) => Ok(body),
                (status, _) => Err(FetchError::failed(url, &format!("the response is {status}"))),
            }
        })
    }

    fn post<'a>(
        &'a self,
        url: &'a EndpointUrl,
        form: String,
    ) -> BoxFuture<'a, Result<(StatusCode, Bytes), FetchError>> {
        let request = Request::post(url.uri())
            .header(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"))
            .body(Full::from(form));
        Box::pin(self.send(url, request.expect("a valid request")))
    }
}

/// Returns a host of a URL without the brackets of an IPv6 address.
fn bare(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

fn read_roots(file: &Path) -> Result<RootCertStore, AuthorityError> {
    let bytes = files::read(file).map_err(|error| {
        let reason = unreadable(&error);
        AuthorityError::Unreadable { file: file.to_owned(), reason }
    })?;
    let roots = tls::pem_roots(&bytes);
    if roots.is_empty() {
        return Err(AuthorityError::NoCertificate { file: file.to_owned() });
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };
    use tokio_util::task::AbortOnDropHandle;

    use super::*;

    /// Serves one response to each connection, and leaves it open.
    async fn server(response: String) -> (EndpointUrl, AbortOnDropHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/document", listener.local_addr().unwrap()).parse().unwrap();
        let serving = tokio::spawn(async move {
            let mut open = Vec::new();
            loop {
                let (mut io, _) = listener.accept().await.unwrap();
                let _ = io.read(&mut [0; 4096]).await;
                let _ = io.write_all(response.as_bytes()).await;
                open.push(io);
            }
        });
        (url, AbortOnDropHandle::new(serving))
    }

    async fn get(response: &str) -> Result<Bytes, String> {
        let (url, _server) = server(response.to_owned()).await;
        IssuerClient::new(None).get(&url).await.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn only_a_small_200_is_a_document() {
        assert_eq!(get("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").await.unwrap(), "{}");
        let too_large = format!("HTTP/1.1 200 OK\r\nContent-Length: 600000\r\n\r\n{}", "x".repeat(600_000));
        for (response, expected) in [
            ("HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n", "302 Found"),
            ("HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n", "the response is 500"),
            ("garbage\r\n\r\n", "invalid HTTP"),
            (&too_large, "the response has more than 512 KiB"),
        ] {
            let error = get(response).await.unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn response_that_does_not_end_is_an_error() {
        let error = get("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{").await.unwrap_err();
        assert!(error.ends_with("no response within 5 s"), "{error}");
    }

    /// The issuer names its keys and its endpoint for tokens, and could name a listener of kas.
    #[tokio::test]
    async fn endpoint_in_the_network_of_kas_is_refused() {
        let (url, _server) = server("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}".to_owned()).await;
        let by_name: EndpointUrl = url.to_string().replace("127.0.0.1", "localhost").parse().unwrap();
        let loopback = ["127.0.0.0/8".parse().unwrap()];
        for (issuer, networks, expected) in [
            ("https://issuer.example.com", &[][..], [false, false]),
            ("https://localhost.example.com", &[], [false, false]),
            ("https://issuer.example.com", &loopback, [true, true]),
            ("http://127.0.0.1:5556/dex", &[], [true, false]),
            ("http://localhost:5556/dex", &[], [false, true]),
        ] {
            let client = IssuerClient::new(None).within(networks, issuer);
            let fetched = [client.get(&url).await, client.get(&by_name).await];
            assert_eq!([fetched[0].is_ok(), fetched[1].is_ok()], expected, "{issuer}");
            let posted = client.post(&url, "code=secret".to_owned()).await;
            assert_eq!(posted.is_ok(), expected[0], "{issuer}");
            if let Err(error) = posted {
                let what =
                    "127.0.0.1 is a loopback address, which oidc.issuers[].allowed_networks does not name";
                assert!(error.to_string().contains(what), "{error}");
            }
        }
    }
}
