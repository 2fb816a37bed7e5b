//! Section `web`: the listener of the web page.

use std::{net::SocketAddr, path::PathBuf};

use kas_listen::{
    addresses::{AddressRules, ProxyProtocol},
    listen_address,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_saphyr::Spanned;
use settings::{
    Network,
    patterns::{NETWORK, SOCKET_ADDRESS},
};

/// Section `web`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WebConfig {
    /// The listener.
    pub listen: WebListen,
}

/// Section `web.listen`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("dependencies" = {"certificate_file": ["key_file"], "key_file": ["certificate_file"]}))]
pub struct WebListen {
    /// The address for browsers. Without TLS it must be loopback, or behind a proxy of `trusted_proxies`.
    #[serde(default = "default_address", deserialize_with = "listen_address::address")]
    #[schemars(with = "String", regex(pattern = SOCKET_ADDRESS))]
    pub address: SocketAddr,
    /// The certificate chain (PEM).
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
    /// The networks of browsers. An empty list allows every address.
    #[schemars(with = "Vec<String>", inner(regex(pattern = NETWORK)))]
    #[serde(default)]
    pub allowed_networks: Vec<Network>,
}

impl WebListen {
    /// Returns the rules of the listener about addresses.
    pub fn addresses(&self) -> AddressRules {
        AddressRules::new(&self.trusted_proxies, self.proxy_protocol, &self.allowed_networks)
    }
}

impl WebConfig {
    /// Iterates over the paths of the section.
    pub fn paths(&mut self) -> impl Iterator<Item = &mut Spanned<PathBuf>> {
        let WebListen { certificate_file, key_file, .. } = &mut self.listen;
        [certificate_file, key_file].into_iter().flatten()
    }
}

fn default_address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 8156))
}
