//! Connects to kas through the HTTP proxy of the environment: `HTTPS_PROXY`, `HTTP_PROXY`, `NO_PROXY`, also in lower case,
//! with the rules of Go's `httpproxy`, which kubectl and helm use.

use std::{ffi::OsString, fmt, net::IpAddr, sync::Arc};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http::{
    HeaderValue, Request, StatusCode, Uri,
    header::{HOST, PROXY_AUTHORIZATION, USER_AGENT},
};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use percent_encoding::percent_decode_str;
use proto::ErrorChain;
use tokio::{
    net::TcpStream,
    time::{Duration, Instant, timeout_at},
};

use super::{DialError, KasAddress, USER_AGENT_VALUE, drive};
use crate::upstream::{ClientTls, Io, Scheme, ServerUrl, UpstreamConnector};

/// An HTTP proxy that supports CONNECT.
pub struct HttpProxy {
    url: ServerUrl,
    variable: &'static str,
    authorization: Option<HeaderValue>,
}

/// The error for an invalid variable. It does not contain the value, which may have a password.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}: {problem}")]
pub struct HttpProxyError {
    variable: &'static str,
    problem: &'static str,
}

impl HttpProxy {
    /// Returns the proxy for kas, if the environment names one and does not exempt kas.
    pub fn from_env(
        kas: &KasAddress,
        variable: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<Option<Self>, HttpProxyError> {
        let set = |names: [&'static str; 2]| {
            let set = |name: &'static str| Some((name, variable(name).filter(|value| !value.is_empty())?));
            let (name, value) = names.into_iter().find_map(set)?;
            Some((name, value.to_string_lossy().into_owned()))
        };
        let names =
            if kas.is_secure() { ["HTTPS_PROXY", "https_proxy"] } else { ["HTTP_PROXY", "http_proxy"] };
        let Some((name, url)) = set(names) else { return Ok(None) };
        let (_, exempt) = set(["NO_PROXY", "no_proxy"]).unwrap_or_default();
        if is_exempt(&exempt, kas.url().host(), kas.url().port()) {
            return Ok(None);
        }

        parse(name, url.trim()).map(Some)
    }

    /// Returns the URL of the proxy.
    pub(super) fn url(&self) -> &ServerUrl {
        &self.url
    }

    /// Returns a connector to the proxy.
    pub(super) fn connector(&self, timeout: Duration) -> UpstreamConnector {
        UpstreamConnector::new(self.url.clone(), timeout, Arc::new(ClientTls::system()))
    }

    /// Connects to kas through the proxy.
    pub(super) async fn connect(
        &self,
        connector: &UpstreamConnector,
        kas: &KasAddress,
        deadline: Instant,
    ) -> Result<TcpStream, DialError> {
        let tcp = connector.tcp(deadline).await.map_err(|error| self.failed(error.to_string()))?;
        self.establish(tcp, kas, deadline).await
    }

    /// Sends CONNECT on an open connection to the proxy.
    async fn establish<T: Io>(&self, io: T, kas: &KasAddress, deadline: Instant) -> Result<T, DialError> {
        let failed = |problem| self.failed(problem);
        let began = Instant::now();
        let host = kas.url().host();
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let target = format!("{host}:{}", kas.url().port());
        let mut request = Request::new(Empty::<Bytes>::new());
        *request.method_mut() = http::Method::CONNECT;
        *request.uri_mut() = target.parse::<Uri>().map_err(|error| failed(error.to_string()))?;
        let headers = request.headers_mut();
        headers.insert(HOST, HeaderValue::from_str(&target).map_err(|error| failed(error.to_string()))?);
        headers.insert(USER_AGENT, USER_AGENT_VALUE);
        if let Some(authorization) = &self.authorization {
            headers.insert(PROXY_AUTHORIZATION, authorization.clone());
        }

        let broken =
            |error: hyper::Error| failed(format!("it did not answer in HTTP ({})", ErrorChain(&error)));
        let (mut sender, connection) = http1::handshake(TokioIo::new(io)).await.map_err(broken)?;
        let exchange = async {
            let mut response = sender.send_request(request).await.map_err(broken)?;
            if !response.status().is_success() {
                return Err(failed(refusal(response.status(), &target, self.authorization.is_some())));
            }
            let upgraded = hyper::upgrade::on(&mut response).await.map_err(broken)?;
            let parts = upgraded.downcast::<TokioIo<T>>().expect("the type of the stream above");
            // In TLS and HTTP, the client sends first.
            if !parts.read_buf.is_empty() {
                return Err(failed("it sent bytes before agentk had sent any to kas".to_owned()));
            }
            Ok(parts.io.into_inner())
        };

        let exchange = drive(connection.with_upgrades(), exchange);
        timeout_at(deadline, exchange).await.unwrap_or_else(|_| {
            let after = deadline.saturating_duration_since(began).as_secs_f64().round();
            Err(failed(format!(
                "it accepted the connection, and did not answer CONNECT {target} within {after}s"
            )))
        })
    }

    fn failed(&self, problem: String) -> DialError {
        DialError::Proxy { proxy: self.to_string(), problem }
    }
}

fn refusal(status: StatusCode, target: &str, authorized: bool) -> String {
    match (status, authorized) {
        (StatusCode::PROXY_AUTHENTICATION_REQUIRED, false) => {
            "it requires a user name and password (407): write them into the URL, like http://user:password@host:port"
                .to_owned()
        }
        (StatusCode::PROXY_AUTHENTICATION_REQUIRED, true) => {
            "it refused the user name and password of the URL (407)".to_owned()
        }
        (StatusCode::FORBIDDEN, _) => {
            format!("it does not allow connections to {target} (403): allow them there, or exempt kas with NO_PROXY")
        }
        (status, _) => format!("it did not connect to {target}: {status}"),
    }
}

/// Parses `[http://][user[:password]@]host[:port]`.
fn parse(variable: &'static str, url: &str) -> Result<HttpProxy, HttpProxyError> {
    let refused = |problem| HttpProxyError { variable, problem };
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
    if !scheme.eq_ignore_ascii_case("http") {
        return Err(refused("only HTTP proxies are supported: write it like http://proxy:3128"));
    }
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let (user, host) = match rest.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, rest),
    };
    let url: ServerUrl = format!("http://{host}")
        .parse()
        .ok()
        .filter(|url: &ServerUrl| url.scheme() == Scheme::Http && url.base_path().is_empty())
        .ok_or_else(|| refused("it is not a URL of a proxy: write it like http://proxy:3128"))?;
    let authorization = user.map(|user| {
        let (name, password) = user.split_once(':').unwrap_or((user, ""));
        let mut pair: Vec<u8> = percent_decode_str(name).collect();
        pair.push(b':');
        pair.extend(percent_decode_str(password));
        let basic = format!("Basic {}", BASE64_STANDARD.encode(pair));
        let mut value = HeaderValue::from_str(&basic).expect("base64 is a header value");
        value.set_sensitive(true);
        value
    });

    Ok(HttpProxy { url, variable, authorization })
}

/// Returns true if `list`, the value of `NO_PROXY`, exempts this host. Loopback addresses are always exempt.
fn is_exempt(list: &str, host: &str, port: u16) -> bool {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    let address: Option<IpAddr> = host.parse().ok();
    if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
        return true;
    }

    list.split([',', ' ']).map(str::trim).filter(|entry| !entry.is_empty()).any(|entry| {
        let entry = entry.to_ascii_lowercase();
        if entry == "*" {
            return true;
        }
        if let Some((network, bits)) = entry.split_once('/') {
            return address.is_some_and(|address| contains(network, bits, address));
        }
        let (name, only) = split_port(&entry);
        if only.is_some_and(|only| only != port) {
            return false;
        }
        if let Ok(exempt) = name.parse::<IpAddr>() {
            return address == Some(exempt);
        }
        let name = name.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(name);
        match name.strip_prefix('.') {
            // The pattern matches subdomains only.
            Some(_) => host.ends_with(name),
            None => host == name || host.strip_suffix(name).is_some_and(|rest| rest.ends_with('.')),
        }
    })
}

/// Splits `host:port` or `[address]:port`; the port may be absent.
fn split_port(entry: &str) -> (&str, Option<u16>) {
    let bare = |host: &'_ str| host.len() - host.trim_start_matches('[').len();
    if entry.parse::<IpAddr>().is_ok() {
        return (entry, None);
    }
    let (host, port) = match entry.rsplit_once(':') {
        Some((host, port)) if port.parse::<u16>().is_ok() => (host, port.parse().ok()),
        _ => (entry, None),
    };
    (host[bare(host)..].trim_end_matches(']'), port)
}

fn contains(network: &str, bits: &str, address: IpAddr) -> bool {
    let (Ok(network), Ok(bits)) = (network.parse::<IpAddr>(), bits.parse::<u32>()) else { return false };
    let differ = match (network, address) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            u128::from(network.to_bits() ^ address.to_bits()).checked_shr(32_u32.saturating_sub(bits))
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => {
            (network.to_bits() ^ address.to_bits()).checked_shr(128_u32.saturating_sub(bits)).or(Some(0))
        }
        _ => return false,
    };
    differ == Some(0)
}

/// Displays the URL without the password.
impl fmt::Display for HttpProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.url, self.variable)
    }
}

impl fmt::Debug for HttpProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HttpProxy({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(kas: &str, variables: &[(&str, &str)]) -> Result<Option<HttpProxy>, HttpProxyError> {
        let find = |name: &str| {
            variables.iter().find(|(variable, _)| *variable == name).map(|(_, value)| OsString::from(value))
        };
        HttpProxy::from_env(&kas.parse().unwrap(), &find)
    }

    #[test]
    fn proxy_is_chosen_by_the_scheme_of_kas() {
        let proxy = |kas, variables: &[_]| chosen(kas, variables).unwrap().map(|proxy| proxy.to_string());
        let both = [("HTTP_PROXY", "http://plain:1"), ("https_proxy", "secure:2/")];
        assert_eq!(proxy("wss://kas.test", &both).unwrap(), "http://secure:2 (https_proxy)");
        assert_eq!(proxy("ws://kas.test", &both).unwrap(), "http://plain:1 (HTTP_PROXY)");
        assert_eq!(proxy("wss://kas.test", &both[..1]), None);
        assert_eq!(proxy("wss://kas.test", &[("HTTPS_PROXY", "")]), None, "empty is not set");
        assert_eq!(proxy("wss://localhost:1", &both), None);
        assert_eq!(proxy("wss://kas.test", &[both[1], ("NO_PROXY", "kas.test")]), None);
    }

    #[test]
    fn password_is_sent_and_not_shown() {
        let proxy =
            chosen("wss://kas.test", &[("HTTPS_PROXY", "http://ada:hunter%402@p:3128")]).unwrap().unwrap();
        let expected = format!("Basic {}", BASE64_STANDARD.encode("ada:hunter@2"));
        assert_eq!(proxy.authorization.as_ref().unwrap(), &*expected);
        assert!(proxy.authorization.as_ref().unwrap().is_sensitive());
        assert!(!format!("{proxy} {proxy:?}").contains("hunter"));
        for url in [
            "https://ada:hunter2@p",
            "socks5://ada:hunter2@p",
            "http://ada:hunter2@p/x",
            "http://ada:hunter2@",
        ] {
            let error = chosen("wss://kas.test", &[("HTTPS_PROXY", url)]).unwrap_err().to_string();
            assert!(error.starts_with("HTTPS_PROXY: ") && !error.contains("hunter"), "{error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn error_names_a_proxy_that_does_not_answer() {
        let proxy = chosen("wss://kas.test", &[("HTTPS_PROXY", "http://p:3128")]).unwrap().unwrap();
        let (io, _proxy) = tokio::io::duplex(1024);
        let deadline = Instant::now() + Duration::from_secs(10);
        let kas = "wss://kas.test".parse().unwrap();
        let error = proxy.establish(io, &kas, deadline).await.unwrap_err().to_string();
        assert_eq!(
            error,
            "the proxy http://p:3128 (HTTPS_PROXY): it accepted the connection, and did not answer CONNECT \
             kas.test:443 within 10s"
        );
    }

    #[test]
    fn no_proxy_exempts_matching_hosts() {
        for (list, host, port, expected) in [
            ("", "kas.test", 443, false),
            ("*", "kas.test", 443, true),
            ("kas.test", "kas.test", 443, true),
            ("KAS.test", "kas.TEST", 443, true),
            ("kas.test", "eu.kas.test", 443, true),
            ("kas.test", "notkas.test", 443, false),
            (".kas.test", "eu.kas.test", 443, true),
            (".kas.test", "kas.test", 443, false),
            ("*.kas.test", "eu.kas.test", 443, true),
            ("*.kas.test", "kas.test", 443, false),
            ("a, test ,b", "kas.test", 443, true),
            ("kas.test:443", "kas.test", 443, true),
            ("kas.test:443", "kas.test", 8150, false),
            ("10.0.0.1", "10.0.0.1", 443, true),
            ("10.0.0.1:80", "10.0.0.1", 443, false),
            ("10.0.0.0/8", "10.200.0.1", 443, true),
            ("10.0.0.0/8", "11.0.0.1", 443, false),
            ("0.0.0.0/0", "11.0.0.1", 443, true),
            ("10.0.0.1/32", "10.0.0.1", 443, true),
            ("10.0.0.0/8", "kas.test", 443, false),
            ("fd00::/16", "fd00::1", 443, true),
            ("fd00::/16", "fd01::1", 443, false),
            ("::/0", "fd01::1", 443, true),
            ("fd00::1", "fd00::1", 443, true),
            ("[fd00::1]:443", "fd00::1", 443, true),
            ("[fd00::1]:80", "fd00::1", 443, false),
            ("10.0.0.0/x", "10.0.0.1", 443, false),
            ("", "127.0.0.1", 443, true),
            ("", "::1", 443, true),
            ("", "localhost", 443, true),
        ] {
            assert_eq!(is_exempt(list, host, port), expected, "{list:?} {host} {port}");
        }
    }
}
