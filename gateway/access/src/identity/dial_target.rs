//! The addresses of agents that accept connections and open none: kas dials these.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

use http::Uri;
use proto::dial_token::DialTokenKey;
use rustls::ClientConfig;
use serde::Deserialize;
use serde_saphyr::Spanned;
use settings::Location;

/// The number of tunnels to an agent, over all replicas.
const DEFAULT_TUNNELS: u16 = 2;
/// The most tunnels to an agent.
const MAX_TUNNELS: u16 = 16;

/// The address of an agent that kas dials, and the files for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DialTarget {
    /// The URL of agentk.
    pub url: AgentUrl,
    /// The number of tunnels, over all replicas.
    pub tunnels: u16,
    /// The certificates (PEM) to trust instead of those of the system.
    pub ca_file: Option<PathBuf>,
    /// The file with the key that kas sends to agentk.
    pub key_file: Option<PathBuf>,
    /// The name in the certificate of agentk, if it is not the host of the URL.
    pub tls_server_name: Option<String>,
    /// The credentials that are in no file, in place of `ca_file`, `key_file` and the certificate of kas.
    pub credentials: Option<Arc<DialCredentials>>,
}

/// The credentials of kas for one agent. They are equal if their digests are.
pub struct DialCredentials {
    /// The authorities to trust, and the client certificate of kas if it has one.
    pub tls: Arc<ClientConfig>,
    /// The key of the tokens that kas sends.
    pub token_key: Option<DialTokenKey>,
    /// A digest of what these credentials were made of.
    pub digest: [u8; 32],
}

/// The URL of an agentk: `wss://host[:port][/path]`, or `ws://` on this machine.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct AgentUrl {
    uri: Uri,
    secure: bool,
    host: String,
    port: u16,
}

/// The error of a text that is not the URL of an agentk.
#[derive(Debug, thiserror::Error)]
#[error("{} is not the URL of an agentk: write it like wss://agentk.example.com:8150", shown(.0))]
pub struct AgentUrlError(String);

/// Returns a URL for an error, unless a password or a token may be in it.
fn shown(url: &str) -> String {
    if url.contains(['@', '?', '#']) {
        "a text with a user, a query or a fragment".to_owned()
    } else {
        format!("{url:?}")
    }
}

/// The keys of an agent that kas dials.
#[derive(Debug)]
pub(super) struct DialEntry {
    pub(super) url: Option<Spanned<AgentUrl>>,
    pub(super) tunnels: Option<Spanned<u16>>,
    pub(super) ca_file: Option<Spanned<PathBuf>>,
    pub(super) key_file: Option<Spanned<PathBuf>>,
    pub(super) tls_server_name: Option<Spanned<String>>,
}

/// An invalid key of an agent that kas dials, with its place.
#[derive(Debug)]
pub(super) struct InvalidDialKey {
    pub(super) key: &'static str,
    pub(super) location: Location,
    pub(super) problem: DialProblem,
}

/// The problem of a key. The author of the file mends it.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(super) enum DialProblem {
    #[error("it has no effect without url, the address that kas dials")]
    NoUrl,
    #[error("an agent has 1 to {MAX_TUNNELS} tunnels")]
    TunnelCount,
}

impl DialEntry {
    /// Returns the target, if the entry has a URL. `directory` is that of the identity file.
    pub(super) fn validate(self, directory: &Path) -> Result<Option<DialTarget>, InvalidDialKey> {
        let Self { url, tunnels, ca_file, key_file, tls_server_name } = self;
        let Some(url) = url else {
            let keys = [
                ("tunnels", tunnels.map(|tunnels| tunnels.referenced)),
                ("ca_file", ca_file.map(|path| path.referenced)),
                ("key_file", key_file.map(|path| path.referenced)),
                ("tls_server_name", tls_server_name.map(|name| name.referenced)),
            ];
            let unused = keys.into_iter().find_map(|(key, location)| Some((key, location?)));
            let problem = DialProblem::NoUrl;
            return unused.map_or(Ok(None), |(key, location)| Err(InvalidDialKey { key, location, problem }));
        };
        if let Some(tunnels) = tunnels.as_ref().filter(|tunnels| !(1..=MAX_TUNNELS).contains(&tunnels.value))
        {
            let (key, location) = ("tunnels", tunnels.referenced);
            return Err(InvalidDialKey { key, location, problem: DialProblem::TunnelCount });
        }
        Ok(Some(DialTarget {
            url: url.value,
            tunnels: tunnels.map_or(DEFAULT_TUNNELS, |tunnels| tunnels.value),
            ca_file: ca_file.map(|path| directory.join(path.value)),
            key_file: key_file.map(|path| directory.join(path.value)),
            tls_server_name: tls_server_name.map(|name| name.value),
            credentials: None,
        }))
    }
}

impl DialTarget {
    /// Creates the target of an agent with credentials that are in no file.
    pub fn with_credentials(
        url: AgentUrl,
        tls_server_name: Option<String>,
        credentials: DialCredentials,
    ) -> Self {
        let credentials = Some(Arc::new(credentials));
        Self { url, tunnels: DEFAULT_TUNNELS, ca_file: None, key_file: None, tls_server_name, credentials }
    }
}

impl PartialEq for DialCredentials {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Eq for DialCredentials {}

/// Without the keys.
impl fmt::Debug for DialCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DialCredentials").finish_non_exhaustive()
    }
}

impl AgentUrl {
    /// Returns true if the connection has TLS.
    pub fn is_secure(&self) -> bool {
        self.secure
    }

    /// Returns the host: a DNS name, or an IP address without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the value of the header `Host`.
    pub fn authority(&self) -> &str {
        self.uri.authority().map_or("", |authority| authority.as_str())
    }

    /// Returns the path of the request.
    pub fn path(&self) -> &str {
        self.uri.path()
    }
}

impl FromStr for AgentUrl {
    type Err = AgentUrlError;

    fn from_str(text: &str) -> Result<Self, AgentUrlError> {
        let error = || AgentUrlError(text.to_owned());
        let uri: Uri = text.parse().map_err(|_| error())?;
        let (secure, port) = match uri.scheme_str() {
            Some("wss") => (true, 443),
            Some("ws") => (false, 80),
            _ => return Err(error()),
        };
        let authority = uri.authority().ok_or_else(error)?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() || authority.as_str().contains('@') || uri.query().is_some() || text.contains('#')
        {
            return Err(error());
        }
        let has_port = authority.as_str().len() > authority.host().len();
        let port = match authority.port_u16() {
            Some(0) => return Err(error()),
            Some(port) => port,
            None if has_port => return Err(error()),
            None => port,
        };
        Ok(Self { secure, host, port, uri })
    }
}

impl TryFrom<String> for AgentUrl {
    type Error = AgentUrlError;

    fn try_from(text: String) -> Result<Self, AgentUrlError> {
        text.parse()
    }
}

impl fmt::Display for AgentUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.uri.fmt(f)
    }
}

impl fmt::Debug for AgentUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.uri.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_has_its_parts_and_default_ports() {
        for (text, secure, host, port, path) in [
            ("wss://agentk.example.com:8150", true, "agentk.example.com", 8150, "/"),
            ("wss://agentk/tunnel", true, "agentk", 443, "/tunnel"),
            ("ws://127.0.0.1", false, "127.0.0.1", 80, "/"),
            ("wss://[2001:db8::1]:8150/", true, "2001:db8::1", 8150, "/"),
        ] {
            let url: AgentUrl = text.parse().unwrap();
            assert_eq!((url.is_secure(), url.host(), url.port(), url.path()), (secure, host, port, path));
        }
    }

    #[test]
    fn other_urls_are_refused() {
        for text in [
            "https://agentk",
            "agentk:8150",
            "wss://",
            "wss://user@agentk",
            "wss://user:password@agentk",
            "wss://agentk?token=1",
            "wss://agentk#part",
            "wss://agentk:0",
            "wss://agentk:99999",
            "wss://agentk:",
        ] {
            assert!(text.parse::<AgentUrl>().is_err(), "{text}");
        }
    }

    #[test]
    fn error_does_not_contain_a_password_or_a_token() {
        for text in ["wss://user:hunter2@agentk", "wss://agentk?token=hunter2", "https://user:hunter2@agentk"]
        {
            let error = text.parse::<AgentUrl>().unwrap_err().to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
        assert!("https://agentk".parse::<AgentUrl>().unwrap_err().to_string().contains("https://agentk"));
    }
}
