//! Section `private_api`: the listener for other replicas.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_saphyr::Spanned;

use super::{
    Network,
    bounds::AnyDuration,
    schema::{NETWORK, SOCKET_ADDRESS},
};

/// Section `private_api`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PrivateApiConfig {
    /// The listener for other replicas.
    pub listen: PrivateListen,
}

/// Section `private_api.listen`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PrivateListen {
    /// The kind of the address.
    #[serde(deserialize_with = "network")]
    pub network: ListenNetwork,
    /// The address for other replicas.
    #[schemars(regex(pattern = SOCKET_ADDRESS))]
    pub address: SocketAddr,
    /// The networks of other replicas. An empty list allows every address.
    #[schemars(with = "Vec<String>", inner(regex(pattern = NETWORK)))]
    pub allowed_networks: Vec<Network>,
    /// The secret of all replicas: base64 of 32 bytes or more.
    #[schemars(with = "Option<PathBuf>")]
    pub authentication_secret_file: Option<Spanned<PathBuf>>,
    /// The certificate chain (PEM), for both directions of mutual TLS.
    #[schemars(with = "Option<PathBuf>")]
    pub certificate_file: Option<Spanned<PathBuf>>,
    /// The private key (PEM).
    #[schemars(with = "Option<PathBuf>")]
    pub key_file: Option<Spanned<PathBuf>>,
    /// The authority that signs only certificates of replicas (PEM).
    #[schemars(with = "Option<PathBuf>")]
    pub ca_certificate_file: Option<Spanned<PathBuf>>,
    /// The time for which new requests of other replicas are served after agents were asked to leave.
    #[serde(with = "AnyDuration")]
    pub listen_grace_period: Duration,
}

/// The kind of an address, as in the `network` key of GitLab.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
#[schemars(rename_all = "lowercase")]
pub enum ListenNetwork {
    /// IPv4 or IPv6.
    #[default]
    Tcp,
    /// IPv4.
    Tcp4,
    /// IPv6.
    Tcp6,
}

impl ListenNetwork {
    /// Returns whether an address is of this kind.
    pub fn contains(self, address: SocketAddr) -> bool {
        match self {
            Self::Tcp => true,
            Self::Tcp4 => address.is_ipv4(),
            Self::Tcp6 => address.is_ipv6(),
        }
    }
}

fn network<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ListenNetwork, D::Error> {
    let word = String::deserialize(deserializer)?;
    match word.as_str() {
        "tcp" => Ok(ListenNetwork::Tcp),
        "tcp4" => Ok(ListenNetwork::Tcp4),
        "tcp6" => Ok(ListenNetwork::Tcp6),
        "unix" => Err(D::Error::custom(
            "unix is not supported, because replicas do not share a file system: use tcp",
        )),
        _ => Err(D::Error::custom(format!("{word:?} is none of tcp, tcp4 and tcp6"))),
    }
}

impl Default for PrivateListen {
    fn default() -> Self {
        Self {
            network: ListenNetwork::Tcp,
            address: SocketAddr::from(([127, 0, 0, 1], 8155)),
            allowed_networks: Vec::new(),
            authentication_secret_file: None,
            certificate_file: None,
            key_file: None,
            ca_certificate_file: None,
            listen_grace_period: Duration::from_secs(5),
        }
    }
}
