//! Section `api`: the listener of the internal API.

use std::{net::SocketAddr, path::PathBuf};

use kas_listen::{
    addresses::{AddressRules, ProxyProtocol},
    listen_address::{self, ListenNetwork},
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_saphyr::Spanned;
use settings::{
    Network,
    patterns::{NETWORK, SOCKET_ADDRESS},
};

use kas_core::gitlab_key::GitLabKey;

/// Section `api`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApiConfig {
    /// The listener.
    pub listen: ApiListen,
}

/// Section `api.listen`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("dependencies" = {"certificate_file": ["key_file"], "key_file": ["certificate_file"]}))]
pub struct ApiListen {
    /// The kind of the address.
    #[serde(default)]
    pub network: ListenNetwork,
    /// The address for API clients.
    #[serde(default = "default_address", deserialize_with = "listen_address::address")]
    #[schemars(with = "String", regex(pattern = SOCKET_ADDRESS))]
    pub address: SocketAddr,
    /// The secret with which their tokens are signed: base64 of 32 bytes or more.
    #[schemars(with = "PathBuf")]
    pub authentication_secret_file: Spanned<PathBuf>,
    /// The issuer (`iss`) of their tokens. Without it, kas does not check who has signed a token with the secret.
    pub authentication_issuer: Option<String>,
    /// The certificate chain (PEM). Without it the listener does not use TLS.
    #[schemars(with = "Option<PathBuf>")]
    pub certificate_file: Option<Spanned<PathBuf>>,
    /// The private key (PEM).
    #[schemars(with = "Option<PathBuf>")]
    pub key_file: Option<Spanned<PathBuf>>,
    /// The addresses of proxies whose `X-Forwarded-For` and PROXY header are trusted.
    #[schemars(with = "Vec<String>", inner(regex(pattern = NETWORK)))]
    #[serde(default)]
    pub trusted_proxies: Vec<Network>,
    /// The header of a proxy with which each connection begins.
    #[serde(default)]
    pub proxy_protocol: ProxyProtocol,
    /// The networks of API clients. An empty list allows every address.
    #[schemars(with = "Vec<String>", inner(regex(pattern = NETWORK)))]
    #[serde(default)]
    pub allowed_networks: Vec<Network>,
    /// Ignored: age at which GitLab's kas closes connections.
    #[serde(default)]
    pub max_connection_age: GitLabKey,
    /// Ignored: time after SIGTERM in which GitLab's kas accepts connections.
    #[serde(default)]
    pub listen_grace_period: GitLabKey,
}

impl ApiListen {
    /// Returns the rules of the listener about addresses.
    pub fn addresses(&self) -> AddressRules {
        AddressRules::new(&self.trusted_proxies, self.proxy_protocol, &self.allowed_networks)
    }
}

impl ApiConfig {
    /// Iterates over the paths of the section.
    pub fn paths(&mut self) -> impl Iterator<Item = &mut Spanned<PathBuf>> {
        let ApiListen { authentication_secret_file, certificate_file, key_file, .. } = &mut self.listen;
        [certificate_file, key_file].into_iter().flatten().chain([authentication_secret_file])
    }
}

fn default_address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 8153))
}
