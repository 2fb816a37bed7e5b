//! Other replicas: how this one finds the replica that holds an agent, and sends it requests.
//!
//! ```text
//!  this replica: client                            an owner: server
//!    │  probe: is there a tunnel of agent 42?         │
//!    │───────────────────────────────────────────────►│
//!    │◄──────────────────────── accepted, with a MAC ─│
//!    │  forward: the request                          │
//!    │───────────────────────────────────────────────►│═══► tunnel ═══► agentk
//! ```
//!
//! * **The replica that accepted a request decides where it goes.** An owner responds, forwards it to agentk, or refuses it
//!   without processing it; it never sends it to a third replica.
//! * **A probe has no effects.** If the first owner is slow, the next one gets a probe too, and the first to accept gets the
//!   request.
//! * **A request is sent to authenticated replicas only**: TLS authenticates them, or the MAC of their response to the probe.
//! * An owner that has responded in the last second gets a request without a body and without a probe: if the owner refuses the
//!   request, it comes back complete. So most requests take one round trip.
//!
//! | file | content |
//! |---|---|
//! | `client` | finds an owner with [`PeerClient::find_owner`], and sends it the request with [`OwnerConnection::call`] |
//! | `server` | [`PeerServer`] answers on the private listener |
//! | `auth` | signs requests and responses, and verifies them; `replay` accepts a request once |
//! | `header`, `response` | [`PeerHeader`] and [`ProbeResponse`]: the bytes on the wire; [`PeerError`] |
//! | `connection` | opens connections and keeps them, and ejects replicas that fail |
//! | `questions` | `PeerHooks`: questions that features ask and answer |
//! | `health` | [`ReachabilityProbe`]: whether other replicas reach this one |
//! | `address` | the address that this replica publishes |
//! | `store_mac` | signs this address and other records in Redis |

mod address;
mod auth;
mod client;
mod connection;
mod header;
mod health;
mod questions;
mod response;
mod server;
mod store_mac;

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use files::SecretFile;
use kas_listen::{
    addresses::AddressRules,
    listener::{BindError, Listener},
    tls::{Certificate, MutualTls},
};
use proto::ReplicaId;
use rustls::pki_types::ServerName;
use settings::Secret;
use settings::{ConfigError, KeyLocations};
use store::{
    Replica, Store,
    redis::{RecordAuthenticator, UrlAuthenticator},
};
use tunnel::TunnelConfig;

use self::{
    address::HOST,
    connection::{PeerTls, TcpConnector},
    store_mac::{SecretRecordAuthenticator, SecretUrlAuthenticator},
};
use crate::config::{PrivateApiConfig, PrivateListen};

pub use self::{
    address::{NetworkEnv, OwnUrlError, PeerUrl, PeerUrlError},
    auth::{ResponseKey, SignedRequest},
    client::{OwnerConnection, OwnerError, PeerClient},
    connection::{ConnectFuture, DriverFuture, PeerConnector, handshake},
    header::{DecodeError, Mac, PEER_HEADER, PeerHeader, PeerRequestKind},
    health::{ProbeSource, ReachabilityError, ReachabilityProbe},
    response::{PeerError, ProbeResponse},
    server::PeerServer,
};

pub use self::questions::PeerHooks;

const SECTION: &str = "private_api.listen";

/// The most open connections of other replicas. Each replica opens two on each of its cores.
pub const MAX_CONNECTIONS: usize = 10_000;
/// The time that the TLS handshake of another replica may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The section `private_api` with the files and the environment variables that belong to it.
#[derive(Debug)]
pub struct PeerConfig {
    /// The section `private_api.listen`.
    pub listen: PrivateListen,
    secret: Option<SecretFile>,
    tls: Option<MutualTls>,
    server_name: Option<ServerName<'static>>,
    url: PeerUrl,
    allow_plaintext: bool,
}

/// This replica, and what it needs to find other replicas and to connect to them.
#[derive(Clone, Debug)]
pub struct ReplicaContext {
    /// This replica, with the URL that it publishes. The URL is empty if there is one replica only.
    pub replica: Replica,
    /// The store that all replicas share.
    pub store: Arc<dyn Store>,
    /// Opens connections to other replicas.
    pub connector: Arc<dyn PeerConnector>,
    /// The secret that all replicas share.
    pub secret: Option<Secret>,
}

impl PeerConfig {
    /// Reads the files of the section, and the environment. `file` is the configuration file with the keys `keys`; errors
    /// refer to them.
    pub fn read(
        file: &Path,
        section: &PrivateApiConfig,
        keys: &KeyLocations,
        env: NetworkEnv,
    ) -> Result<Self, ConfigError> {
        let listen = section.listen.clone();
        let error =
            |key: &str, problem: &str| ConfigError::about(file, keys, format!("{SECTION}.{key}"), problem);
        let secret = listen.authentication_secret_file.as_ref();
        let secret = secret
            .map(|path| SecretFile::read(file, "private_api.listen.authentication_secret_file", path))
            .transpose()?;
        let pair =
            Certificate::read(file, SECTION, listen.certificate_file.as_ref(), listen.key_file.as_ref())?;
        let tls = match (pair, &listen.ca_certificate_file) {
            (None, None) => None,
            (Some(pair), Some(path)) => Some(MutualTls::read(pair, path, &[b"h2"])?),
            (Some(_), None) => {
                return Err(error(
                    "ca_certificate_file",
                    "it is missing: it names the authority that signs the certificates of all replicas",
                ));
            }
            (None, Some(path)) => {
                let problem = "it goes with certificate_file and key_file, which are missing";
                let key = format!("{SECTION}.ca_certificate_file");
                return Err(ConfigError::new(file, path.referenced, key, problem));
            }
        };
        if secret.is_none() && tls.is_none() && !listen.address.ip().is_loopback() {
            let problem = "other machines can connect to it, and replicas cannot be told from strangers: set \
                           authentication_secret_file, or certificate_file, key_file and ca_certificate_file, or listen on \
                           127.0.0.1";
            return Err(error("address", problem));
        }

        let server_name = env.host.clone().map(|host| {
            let invalid = |_| {
                ConfigError::whole(
                    file,
                    format!("{HOST}: {host:?} is not a name that a certificate can have"),
                )
            };
            ServerName::try_from(host.clone()).map_err(invalid)
        });
        let url = env.own_url(listen.address, tls.is_some());
        let url = url.map_err(|problem| error("address", &problem.to_string()))?;
        if tls.is_none() && !url.is_loopback() && !section.allow_plaintext {
            let problem = format!(
                "this replica publishes {url}, and everybody on the network between the replicas could read and change what callers and \
                 clusters send: set private_api.listen.certificate_file, key_file and ca_certificate_file, or allow_plaintext: true if \
                 you trust the network"
            );
            return Err(ConfigError::about(file, keys, "private_api.allow_plaintext", problem));
        }
        let (server_name, allow_plaintext) = (server_name.transpose()?, section.allow_plaintext);
        Ok(Self { listen, secret, tls, server_name, url, allow_plaintext })
    }

    /// Binds the listener for at most `max_connections` open connections.
    pub async fn bind(&self, max_connections: usize) -> Result<Listener, BindError> {
        let acceptor = self.tls.as_ref().map(|tls| tls.acceptor().clone());
        let (address, rules) =
            (self.listen.address, AddressRules::without_proxies(&self.listen.allowed_networks));
        Listener::bind("private", address, rules, acceptor, max_connections, HANDSHAKE_TIMEOUT).await
    }

    /// Returns the address that this replica publishes, if its listener is bound to `bound`.
    pub fn url(&self, bound: SocketAddr) -> PeerUrl {
        match self.url.port {
            0 => PeerUrl { port: bound.port(), ..self.url.clone() },
            _ => self.url.clone(),
        }
    }

    /// Returns the context with the secret of this configuration, and a connector with these settings.
    pub fn apply_to(&self, context: ReplicaContext, settings: TunnelConfig) -> ReplicaContext {
        let tls = self
            .tls
            .as_ref()
            .map(|tls| PeerTls { connector: tls.connector().clone(), server_name: self.server_name.clone() });
        let allow_plaintext = self.allow_plaintext;
        let connector = Arc::new(TcpConnector { settings, tls, allow_plaintext });
        ReplicaContext { connector, secret: self.secret().map(|file| file.secret().clone()), ..context }
    }

    /// Returns the secret of all replicas, which is read again when its file changes.
    pub fn secret(&self) -> Option<&SecretFile> {
        self.secret.as_ref()
    }

    /// Returns the certificates, which are read again when their files change.
    pub fn tls(&self) -> Option<&MutualTls> {
        self.tls.as_ref()
    }
}

impl ReplicaContext {
    /// Returns what signs and verifies the URLs in Redis, or `None` if the replicas share no secret.
    pub fn url_authenticator(&self) -> Option<Arc<dyn UrlAuthenticator>> {
        self.secret.clone().map(|secret| Arc::new(SecretUrlAuthenticator(secret)) as _)
    }

    /// Returns what signs and verifies the records in Redis, or `None` if the replicas share no secret.
    pub fn record_authenticator(&self) -> Option<Arc<dyn RecordAuthenticator>> {
        self.secret.clone().map(|secret| Arc::new(SecretRecordAuthenticator(secret)) as _)
    }

    /// Creates the context of a single replica. It has neither a secret nor certificates.
    pub fn standalone(replica: ReplicaId, store: Arc<dyn Store>, settings: TunnelConfig) -> Self {
        let connector = Arc::new(TcpConnector { settings, tls: None, allow_plaintext: false });
        Self { replica: Replica { id: replica, url: String::new() }, store, connector, secret: None }
    }
}
