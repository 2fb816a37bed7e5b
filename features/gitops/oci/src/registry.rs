//! The requests to a registry (OCI Distribution Specification). Its responses name further targets: servers of tokens, and servers of
//! content behind redirects. The rules for addresses are those of all of them.

use std::{borrow::Cow, io, sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri,
    header::{ACCEPT, AUTHORIZATION, CONNECTION, HOST, LOCATION, USER_AGENT, WWW_AUTHENTICATE},
    uri::{Authority, Scheme},
};
use http_body_util::{BodyExt as _, Empty};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use outbound::{AddressPolicy, ConnectError};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use rustls::{ClientConfig, pki_types::ServerName};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

/// The time until a server accepts a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The most redirects of one request.
const MAX_REDIRECTS: usize = 5;
/// The longest head of a response, in bytes.
const MAX_HEAD: usize = 64 << 10;
/// The largest manifest, in bytes: registries accept 4 MiB.
const MAX_MANIFEST: usize = 4 << 20;
/// The largest response of a server of tokens, in bytes.
const MAX_TOKEN: usize = 256 << 10;
/// The media types of manifests that kas reads.
const MANIFESTS: &str =
    "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json";
/// The header with the digest of a manifest.
const DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");
const USER_AGENT_VALUE: HeaderValue = HeaderValue::from_static(concat!("kas/", env!("CARGO_PKG_VERSION")));

/// A client of one repository of a registry.
#[derive(Debug)]
pub(crate) struct RegistryClient {
    pub(crate) registry: Authority,
    pub(crate) repository: String,
    /// The registry is at this machine, where TLS protects nothing.
    pub(crate) is_local: bool,
    pub(crate) tls: Arc<ClientConfig>,
    pub(crate) credentials: Option<(String, SecretString)>,
    /// The rules for the addresses of servers that the registry names. The operator has named the registry itself.
    pub(crate) addresses: AddressPolicy,
    /// The credential that the registry has asked for.
    pub(crate) authorization: Option<HeaderValue>,
}

/// The reason why a registry has not sent something. It has no text of a response: the users who read it may not know the server.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RegistryError {
    #[error("the registry does not have it")]
    Absent,
    #[error("the registry refuses the credential (username, password_file)")]
    Credential,
    #[error("the registry responds with the status {0}")]
    Status(StatusCode),
    #[error("its content differs from its digest")]
    Differs,
    #[error("it has over {0} bytes")]
    TooLarge(usize),
    #[error("the registry names {0}, which kas does not follow")]
    Target(String),
    #[error("the registry does not name a server of tokens as RFC 6750 demands")]
    Challenge,
    #[error("the response of the server of tokens is not valid")]
    Token,
    #[error("the registry redirects more than {MAX_REDIRECTS} times")]
    Redirects,
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("{host}: TLS failed: {error}")]
    Tls { host: String, error: io::Error },
    #[error("the connection failed: {0}")]
    Exchange(String),
}

/// The server and the path of a request.
#[derive(Clone, Debug)]
struct Target {
    is_secure: bool,
    authority: Authority,
    path: String,
}

/// The response of a server of tokens.
#[derive(Deserialize)]
struct TokenResponse {
    token: Option<SecretString>,
    access_token: Option<SecretString>,
}

/// A response whose body is not read yet.
struct PendingResponse {
    response: Response<Incoming>,
    _connection: AbortOnDropHandle<()>,
}

impl RegistryClient {
    /// Returns the digest of a manifest. `reference` is a tag or a digest.
    pub(crate) async fn manifest_digest(&mut self, reference: &str) -> Result<String, RegistryError> {
        let path = self.manifest_path(reference);
        let head = self.send(Method::HEAD, &path, MANIFESTS).await?;
        match head.response.headers().get(DIGEST).and_then(|digest| digest.to_str().ok()) {
            Some(digest) => Ok(digest.to_owned()),
            None => {
                let content = self.send(Method::GET, &path, MANIFESTS).await?.body(MAX_MANIFEST).await?;
                Ok(digest(&content))
            }
        }
    }

    /// Returns a manifest with a digest.
    pub(crate) async fn manifest(&mut self, expected: &str) -> Result<Bytes, RegistryError> {
        let path = self.manifest_path(expected);
        let content = self.send(Method::GET, &path, MANIFESTS).await?.body(MAX_MANIFEST).await?;
        if digest(&content) == expected { Ok(content) } else { Err(RegistryError::Differs) }
    }

    /// Returns a blob with a digest, of at most `max_bytes` bytes.
    pub(crate) async fn blob(&mut self, expected: &str, max_bytes: usize) -> Result<Bytes, RegistryError> {
        let path = format!("/v2/{}/blobs/{expected}", self.repository);
        let content = self.send(Method::GET, &path, "*/*").await?.body(max_bytes).await?;
        if digest(&content) == expected { Ok(content) } else { Err(RegistryError::Differs) }
    }

    fn manifest_path(&self, reference: &str) -> String {
        format!("/v2/{}/manifests/{reference}", self.repository)
    }

    /// Sends a request to the registry, with the credential that it asks for, and follows redirects.
    async fn send(
        &mut self,
        method: Method,
        path: &str,
        accept: &'static str,
    ) -> Result<PendingResponse, RegistryError> {
        let own =
            Target { is_secure: !self.is_local, authority: self.registry.clone(), path: path.to_owned() };
        let (mut target, mut has_asked) = (own.clone(), false);
        for _ in 0..=MAX_REDIRECTS {
            // No other server receives the credential.
            let authorization = self.authorization.clone().filter(|_| self.is_registry(&target));
            let pending = self.exchange(&method, &target, accept, authorization).await?;
            let (status, headers) = (pending.response.status(), pending.response.headers());
            match status {
                StatusCode::UNAUTHORIZED if self.is_registry(&target) && !has_asked => {
                    has_asked = true;
                    self.authenticate(&headers.clone()).await?;
                }
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => return Err(RegistryError::Credential),
                StatusCode::NOT_FOUND => return Err(RegistryError::Absent),
                status if status.is_success() => return Ok(pending),
                status if status.is_redirection() => target = self.redirect(&target, headers)?,
                status => return Err(RegistryError::Status(status)),
            }
        }
        Err(RegistryError::Redirects)
    }

    /// Returns whether a target is the registry itself, which receives the credential.
    fn is_registry(&self, target: &Target) -> bool {
        let port =
            |authority: &Authority| authority.port_u16().unwrap_or(if self.is_local { 80 } else { 443 });
        target.is_secure != self.is_local
            && target.authority.host().eq_ignore_ascii_case(self.registry.host())
            && port(&target.authority) == port(&self.registry)
    }

    /// Returns the target of a redirect.
    fn redirect(&self, from: &Target, headers: &HeaderMap) -> Result<Target, RegistryError> {
        let location = headers.get(LOCATION).and_then(|location| location.to_str().ok()).unwrap_or_default();
        if location.starts_with('/') && !location.starts_with("//") {
            Ok(Target { path: location.to_owned(), ..from.clone() })
        } else {
            self.target(location)
        }
    }

    /// Returns the target of a URL that the registry names: with https, or the registry itself.
    fn target(&self, url: &str) -> Result<Target, RegistryError> {
        let refused = || RegistryError::Target(without_query(url));
        let uri: Uri = url.parse().map_err(|_| refused())?;
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'));
        let authority = authority.ok_or_else(refused)?.clone();
        let is_secure = uri.scheme() == Some(&Scheme::HTTPS);
        let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let target = Target { is_secure, authority, path };
        if is_secure || uri.scheme() == Some(&Scheme::HTTP) && self.is_registry(&target) {
            Ok(target)
        } else {
            Err(refused())
        }
    }

    /// Obtains the credential for which the registry asks (RFC 7235, RFC 6750).
    async fn authenticate(&mut self, headers: &HeaderMap) -> Result<(), RegistryError> {
        let mut bearer = None;
        let texts: Vec<_> =
            headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok()).collect();
        let challenges = texts.iter().flat_map(|text| http_auth::parse_challenges(text).unwrap_or_default());
        for challenge in challenges {
            if challenge.scheme.eq_ignore_ascii_case("basic") {
                self.authorization = Some(self.basic().ok_or(RegistryError::Credential)?);
                return Ok(());
            }
            if challenge.scheme.eq_ignore_ascii_case("bearer") {
                bearer = Some(challenge.params);
            }
        }
        let parameters = bearer.ok_or(RegistryError::Challenge)?;
        let find = |name: &str| {
            let found = parameters.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.to_unescaped())
        };
        let mut target = self.target(&find("realm").ok_or(RegistryError::Challenge)?)?;
        let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let scope = encode(&format!("repository:{}:pull", self.repository));
        let separator = if target.path.contains('?') { '&' } else { '?' };
        target.path = format!("{}{separator}scope={scope}", target.path);
        if let Some(service) = find("service") {
            target.path = format!("{}&service={}", target.path, encode(&service));
        }
        let pending = self.exchange(&Method::GET, &target, "application/json", self.basic()).await?;
        match pending.response.status() {
            StatusCode::OK => {}
            status if status.is_redirection() => return Err(RegistryError::Status(status)),
            _ => return Err(RegistryError::Credential),
        }
        let response: TokenResponse =
            serde_json::from_slice(&pending.body(MAX_TOKEN).await?).map_err(|_| RegistryError::Token)?;
        let token = response.token.or(response.access_token).ok_or(RegistryError::Token)?;
        self.authorization =
            Some(sensitive(&format!("Bearer {}", token.expose_secret())).ok_or(RegistryError::Token)?);
        Ok(())
    }

    /// Returns the credential of the configuration.
    fn basic(&self) -> Option<HeaderValue> {
        let (user, password) = self.credentials.as_ref()?;
        sensitive(&format!("Basic {}", STANDARD.encode(format!("{user}:{}", password.expose_secret()))))
    }

    async fn exchange(
        &self,
        method: &Method,
        target: &Target,
        accept: &'static str,
        authorization: Option<HeaderValue>,
    ) -> Result<PendingResponse, RegistryError> {
        let host = target.authority.host();
        let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = target.authority.port_u16().unwrap_or(if target.is_secure { 443 } else { 80 });
        // The host of the registry is where the operator says, and may be at any address.
        let is_same_host = target.authority.host().eq_ignore_ascii_case(self.registry.host());
        let rules = (!is_same_host).then_some(&self.addresses);
        let tcp = outbound::connect(&bare, port, rules, CONNECT_TIMEOUT).await?;
        let mut request = Request::builder().method(method).uri(&*target.path);
        for (name, value) in [
            (HOST, HeaderValue::from_str(target.authority.as_str()).ok()),
            (USER_AGENT, Some(USER_AGENT_VALUE)),
            (ACCEPT, Some(HeaderValue::from_static(accept))),
            (CONNECTION, Some(HeaderValue::from_static("close"))),
            (AUTHORIZATION, authorization),
        ] {
            if let Some(value) = value {
                request = request.header(name, value);
            }
        }
        let request =
            request.body(Empty::new()).map_err(|error| RegistryError::Exchange(error.to_string()))?;
        if !target.is_secure {
            return respond(tcp, request).await;
        }
        let failed = |error: io::Error| RegistryError::Tls { host: host.to_owned(), error };
        let name = ServerName::try_from(bare).map_err(|error| failed(io::Error::other(error)))?;
        let tls = TlsConnector::from(Arc::clone(&self.tls)).connect(name, tcp).await.map_err(failed)?;
        respond(tls, request).await
    }
}

async fn respond<T>(io: T, request: Request<Empty<Bytes>>) -> Result<PendingResponse, RegistryError>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let failed = |error: hyper::Error| RegistryError::Exchange(error.to_string());
    let (mut sender, connection) =
        http1::Builder::new().max_buf_size(MAX_HEAD).handshake(TokioIo::new(io)).await.map_err(failed)?;
    let connection = AbortOnDropHandle::new(tokio::spawn(async {
        // The error is one of the request, too.
        let _ = connection.await;
    }));
    let response = sender.send_request(request).await.map_err(failed)?;
    Ok(PendingResponse { response, _connection: connection })
}

impl PendingResponse {
    /// Reads the body.
    async fn body(self, max_bytes: usize) -> Result<Bytes, RegistryError> {
        let mut body = self.response.into_body();
        let mut content = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| RegistryError::Exchange(error.to_string()))?;
            let Ok(data) = frame.into_data() else { continue };
            if content.len() + data.len() > max_bytes {
                return Err(RegistryError::TooLarge(max_bytes));
            }
            content.extend_from_slice(&data);
        }
        Ok(content.into())
    }
}

fn sensitive(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn digest(content: &[u8]) -> String {
    use std::fmt::Write as _;

    let mut text = "sha256:".to_owned();
    for byte in Sha256::digest(content) {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Returns a URL for people: the query may be a signature.
fn without_query(url: &str) -> String {
    let shown: Cow<'_, str> = url.split(['?', '#']).next().unwrap_or_default().into();
    shown.chars().take(200).collect::<String>().escape_debug().to_string()
}
