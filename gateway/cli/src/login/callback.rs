//! The server to which the issuer redirects the browser after a login.

use std::{
    convert::Infallible,
    future::ready,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, header::CONTENT_TYPE};
use http_body_util::Full;
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use oidc::{AuthorizationRequest, LoginError, OauthClient};
use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};

/// The time for the login in the browser.
const MAX_TIME: Duration = Duration::from_secs(5 * 60);

/// The URL of the redirect on this machine. Port 0 stands for a free port.
#[derive(Clone, Debug)]
pub(super) struct RedirectUri {
    host: String,
    address: SocketAddr,
    path: String,
}

/// The error of a text that is no such URL.
#[derive(Debug, thiserror::Error)]
#[error("write it like http://localhost/callback: http, this machine, an optional port, no query")]
pub(super) struct RedirectUriError;

/// The redirect that ends the login.
#[derive(Debug)]
struct Expected {
    path: String,
    request: AuthorizationRequest,
    client: OauthClient,
}

/// A server that is bound and does not accept connections yet.
#[derive(Debug)]
pub(super) struct CallbackServer {
    listener: TcpListener,
    redirect: RedirectUri,
}

impl FromStr for RedirectUri {
    type Err = RedirectUriError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let uri: Uri = text.parse().map_err(|_| RedirectUriError)?;
        let authority = uri.authority().filter(|it| !it.as_str().contains('@')).ok_or(RedirectUriError)?;
        let host = authority.host();
        let ip = match host.trim_start_matches('[').trim_end_matches(']') {
            "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
            "::1" => IpAddr::V6(Ipv6Addr::LOCALHOST),
            address => address.parse().map_err(|_| RedirectUriError)?,
        };
        if uri.scheme_str() != Some("http") || !ip.is_loopback() || uri.query().is_some() {
            return Err(RedirectUriError);
        }
        let address = SocketAddr::new(ip, authority.port_u16().unwrap_or(0));
        Ok(Self { host: host.to_owned(), address, path: uri.path().to_owned() })
    }
}

/// The response to a request of the browser.
struct CallbackResponse {
    status: StatusCode,
    text: &'static str,
    /// The code of the login, if the request is the redirect.
    result: Option<Result<String, LoginError>>,
}

/// The address of the redirect cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot wait for the browser at {address}: {error}")]
pub(super) struct CallbackError {
    address: SocketAddr,
    error: io::Error,
}

impl CallbackServer {
    /// Binds the address of the redirect.
    pub(super) async fn bind(redirect: &RedirectUri) -> Result<Self, CallbackError> {
        let listener = TcpListener::bind(redirect.address).await;
        let bound = listener.and_then(|listener| Ok((listener.local_addr()?, listener)));
        let (address, listener) =
            bound.map_err(|error| CallbackError { address: redirect.address, error })?;
        Ok(Self { listener, redirect: RedirectUri { address, ..redirect.clone() } })
    }

    /// Returns the URL for the issuer.
    pub(super) fn redirect_uri(&self) -> String {
        format!("http://{}:{}{}", self.redirect.host, self.redirect.address.port(), self.redirect.path)
    }

    /// Waits for the redirect of the login at the issuer of this client, and returns its code. Other requests are refused.
    pub(super) async fn wait(
        self,
        request: AuthorizationRequest,
        client: OauthClient,
    ) -> Result<String, LoginError> {
        let expected = Arc::new(Expected { path: self.redirect.path, request, client });
        let accept = async {
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    Ok((io, _)) = self.listener.accept() => {
                        connections.spawn(serve(io, Arc::clone(&expected)));
                    }
                    Some(served) = connections.join_next() => {
                        if let Ok(Some(result)) = served {
                            return result;
                        }
                    }
                }
            }
        };
        let waited = timeout(MAX_TIME, accept).await;
        waited.unwrap_or_else(|_| Err(LoginError::Failed("nobody logged in within 5 minutes".to_owned())))
    }
}

/// Serves one connection. A browser opens connections that it does not use.
async fn serve(io: TcpStream, expected: Arc<Expected>) -> Option<Result<String, LoginError>> {
    let outcome = Mutex::new(None);
    let service = service_fn(|request: Request<Incoming>| {
        let CallbackResponse { status, text, result } = expected.handle(request.method(), request.uri());
        if result.is_some() {
            *outcome.lock() = result;
        }
        ready(Ok::<_, Infallible>(page(status, text)))
    });
    // If the browser does not read the response, the login is complete all the same.
    let _ = http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(io), service).await;
    outcome.into_inner()
}

/// Returns a page. Its text is constant: nothing of the request is shown.
fn page(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

impl Expected {
    fn handle(&self, method: &Method, uri: &Uri) -> CallbackResponse {
        if method != Method::GET || uri.path() != self.path {
            let text = "kas login waits for another page.\n";
            return CallbackResponse { status: StatusCode::NOT_FOUND, text, result: None };
        }
        let result = self.request.code(uri.query().unwrap_or_default(), &self.client);
        let (status, text) = match &result {
            None => (StatusCode::BAD_REQUEST, "This is not the login that kas waits for.\n"),
            Some(Ok(_)) => (StatusCode::OK, "You are logged in, and may close this page.\n"),
            Some(Err(_)) => (StatusCode::BAD_REQUEST, "The login failed. The terminal has the reason.\n"),
        };
        CallbackResponse { status, text, result }
    }
}

#[cfg(test)]
mod tests {
    use oidc::{IssuerClient, ProviderMetadata, RequestedToken};

    use super::*;

    #[test]
    fn redirect_is_to_this_machine() {
        for (text, address, path) in [
            ("http://localhost/callback", "127.0.0.1:0", "/callback"),
            ("http://127.0.0.1:8000", "127.0.0.1:8000", "/"),
            ("http://[::1]:18000/a/b", "[::1]:18000", "/a/b"),
        ] {
            let redirect: RedirectUri = text.parse().unwrap();
            assert_eq!((redirect.address.to_string(), &*redirect.path), (address.to_owned(), path));
        }
        for bad in [
            "",
            "https://localhost/",
            "http://0.0.0.0/",
            "http://example.com/",
            "http://localhost/?a=b",
            "http://a@localhost/",
        ] {
            assert!(bad.parse::<RedirectUri>().is_err(), "{bad}");
        }
    }

    #[test]
    fn only_the_redirect_of_this_login_ends_it() {
        let request = serde_json::from_value(serde_json::json!({
            "state": "s1", "nonce": "n", "verifier": "v", "redirect_uri": "http://localhost/callback",
        }));
        let request: AuthorizationRequest = request.unwrap();
        let metadata =
            r#"{"issuer": "https://a", "jwks_uri": "https://a/keys", "token_endpoint": "https://a/token"}"#;
        let metadata = ProviderMetadata::parse(metadata.as_bytes(), "https://a").unwrap();
        let (source, kind) = (Arc::new(IssuerClient::new(None)), RequestedToken::Id);
        let client =
            OauthClient::new(source, "https://a".into(), "kas".into(), None, &metadata, kind).unwrap();
        let expected = Expected { path: "/callback".into(), request, client };
        let result = |uri: &str| {
            let CallbackResponse { status, result, .. } =
                expected.handle(&Method::GET, &uri.parse().unwrap());
            (status.as_u16(), result.map(|result| result.map_err(|error| error.to_string())))
        };
        assert_eq!(result("/callback?code=c%201&state=s1"), (200, Some(Ok("c 1".into()))));
        assert_eq!(result("/favicon.ico"), (404, None));
        assert_eq!(result("/callback?code=c&state=s2"), (400, None));
        assert!(matches!(result("/callback?state=s1"), (400, Some(Err(_)))));
        let post = expected.handle(&Method::POST, &"/callback?code=c&state=s1".parse().unwrap());
        assert!(post.result.is_none());
    }
}
