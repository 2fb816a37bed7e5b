//! Section `private_api`: where other replicas connect.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use serde::{Deserialize, Deserializer, de::Error as _};
use serde_saphyr::Spanned;

/// Section `private_api`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PrivateApi {
    /// The listener for other replicas.
    pub listen: PrivateListen,
}

/// Section `private_api.listen`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PrivateListen {
    /// What kind of address it is.
    #[serde(deserialize_with = "network")]
    pub network: ListenNetwork,
    /// Where other replicas connect.
    pub address: SocketAddr,
    /// What all replicas know, and nobody else: base64 of 32 bytes or more.
    pub authentication_secret_file: Option<Spanned<PathBuf>>,
    /// Certificate chain, PEM; shown to replicas that connect here, and to those that we connect to.
    pub certificate_file: Option<Spanned<PathBuf>>,
    /// Private key, PEM.
    pub key_file: Option<Spanned<PathBuf>>,
    /// Who signs the certificates of replicas, and of nobody else; PEM.
    pub ca_certificate_file: Option<Spanned<PathBuf>>,
    /// How long other replicas are still served after agents were asked to leave.
    #[serde(with = "proto::duration")]
    pub listen_grace_period: Duration,
}

/// GitLab's `network`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListenNetwork {
    /// Either.
    #[default]
    Tcp,
    /// IPv4.
    Tcp4,
    /// IPv6.
    Tcp6,
}

impl ListenNetwork {
    /// Whether an address is of this kind.
    pub fn has(self, address: SocketAddr) -> bool {
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
        "unix" => Err(D::Error::custom("replicas do not share a file system: unix is not served, use tcp")),
        _ => Err(D::Error::custom(format!("{word:?} is none of tcp, tcp4 and tcp6"))),
    }
}

impl Default for PrivateListen {
    fn default() -> Self {
        Self {
            network: ListenNetwork::Tcp,
            address: SocketAddr::from(([127, 0, 0, 1], 8155)),
            authentication_secret_file: None,
            certificate_file: None,
            key_file: None,
            ca_certificate_file: None,
            listen_grace_period: Duration::from_secs(5),
        }
    }
}
