//! Section `private_api`: the listener for other replicas.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use kas_listen::listen_address::{self, ListenNetwork};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_saphyr::Spanned;
use settings::{
    AnyDuration, Network,
    patterns::{NETWORK, SOCKET_ADDRESS},
};

use crate::gitlab_key::GitLabKey;

/// Section `private_api`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PrivateApiConfig {
    /// The listener for other replicas.
    pub listen: PrivateListen,
    /// Requests between replicas may be sent without TLS over a network. The secret authenticates them, and everybody on the network
    /// can read and change their bodies.
    pub allow_plaintext: bool,
}

/// Section `private_api.listen`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PrivateListen {
    /// The kind of the address.
    pub network: ListenNetwork,
    /// The address for other replicas.
    #[serde(deserialize_with = "listen_address::address")]
    #[schemars(with = "String", regex(pattern = SOCKET_ADDRESS))]
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
    /// Ignored: age at which GitLab's kas closes connections.
    pub max_connection_age: GitLabKey,
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
            max_connection_age: GitLabKey::default(),
        }
    }
}
