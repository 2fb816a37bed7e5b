//! What the configuration and the environment say about other replicas, read and found usable.

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use serde_saphyr::Spanned;

use super::{
    Fleet,
    address::{HOST, PeerUrl, Surroundings},
    dial::{Network, Tls},
    seal::{self, Secret},
};
use crate::{
    config::{Config, ConfigError, PrivateApi, PrivateListen, unreadable},
    listen::{BindError, Listener},
    tls::Certificate,
};

const SECTION: &str = "private_api.listen";

/// Open connections of other replicas: each has two for each of its cores.
const MAX_CONNECTIONS: usize = 10_000;
/// How long another replica may take for its TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How this replica and the others know one another.
#[derive(Debug)]
pub struct Setup {
    /// Where the listener is bound, and how long it stays.
    pub listen: PrivateListen,
    /// What all replicas know.
    pub secret: Option<Secret>,
    certificate: Option<(Certificate, RootCertStore)>,
    server_name: Option<ServerName<'static>>,
    url: PeerUrl,
}

impl Setup {
    /// Reads what the section names. `file`: the configuration, for errors.
    pub fn read(file: &Path, section: &PrivateApi, surroundings: Surroundings) -> Result<Self, ConfigError> {
        let listen = section.listen.clone();
        let whole = |key: &str, what: &str| Err(ConfigError::whole(file, format!("{SECTION}.{key}: {what}")));
        if !listen.network.has(listen.address) {
            return whole("address", "it is not of the kind that private_api.listen.network says");
        }
        let at = |key: &str, path: &Spanned<_>, what: String| {
            ConfigError::new(file, path.referenced, format!("{SECTION}.{key}"), what)
        };
        let secret = listen.authentication_secret_file.as_ref().map(|path| {
            let in_file = |what| format!("{}: {what}", path.value.display());
            seal::read(&path.value).map_err(|what| at("authentication_secret_file", path, in_file(what)))
        });
        let secret = secret.transpose()?;
        let pair =
            Certificate::read(file, SECTION, listen.certificate_file.as_ref(), listen.key_file.as_ref())?;
        let certificate = match (pair, &listen.ca_certificate_file) {
            (None, None) => None,
            (Some(pair), Some(path)) => {
                let in_file = |what| format!("{}: {what}", path.value.display());
                let roots =
                    roots(&path.value).map_err(|what| at("ca_certificate_file", path, in_file(what)))?;
                Some((pair, roots))
            }
            (Some(_), None) => {
                return whole(
                    "ca_certificate_file",
                    "it is missing: replicas trust one another by who signed their certificates",
                );
            }
            (None, Some(path)) => {
                let what = "it goes with certificate_file and key_file, which are missing".to_owned();
                return Err(at("ca_certificate_file", path, what));
            }
        };
        if secret.is_none() && certificate.is_none() && !listen.address.ip().is_loopback() {
            let what = "other machines can connect there, and nothing tells replicas from strangers: name an \
                        authentication_secret_file, or certificate_file, key_file and ca_certificate_file, or listen at 127.0.0.1";
            return whole("address", what);
        }

        let server_name = surroundings.host.clone().map(|host| {
            let unusable = |_| {
                ConfigError::whole(file, format!("{HOST}: {host:?} is no name that a certificate may bear"))
            };
            ServerName::try_from(host.clone()).map_err(unusable)
        });
        let url = surroundings.own_url(listen.address, certificate.is_some());
        let url = url.map_err(|error| ConfigError::whole(file, error.to_string()))?;
        Ok(Self { listen, secret, certificate, server_name: server_name.transpose()?, url })
    }

    /// Binds the listener.
    pub async fn bind(&self) -> Result<Listener, BindError> {
        let (pair, address) = (self.certificate.as_ref(), self.listen.address);
        let acceptor = pair.map(|(pair, roots)| pair.mutual_acceptor(roots.clone(), &[b"h2"]));
        Listener::bind("private", address, acceptor, MAX_CONNECTIONS, HANDSHAKE_TIMEOUT).await
    }

    /// What peers are told of this replica, whose listener is bound at this address.
    pub fn url(&self, bound: SocketAddr) -> PeerUrl {
        match self.url.port {
            0 => PeerUrl { port: bound.port(), ..self.url.clone() },
            _ => self.url.clone(),
        }
    }

    /// One that knows the others as the configuration says.
    pub fn fleet(self, fleet: Fleet, config: &Config) -> Fleet {
        let tls = self.certificate.map(|(pair, roots)| Tls {
            connector: pair.mutual_connector(roots, &[b"h2"]),
            server_name: self.server_name,
        });
        let dial = Arc::new(Network { settings: config.peer_settings(), tls });
        Fleet { dial, secret: self.secret, ..fleet }
    }

    /// The certificate, to be read again when its files change.
    pub fn certificate(&self) -> Option<&Certificate> {
        self.certificate.as_ref().map(|(pair, _)| pair)
    }
}

fn roots(file: &Path) -> Result<RootCertStore, String> {
    let bytes = std::fs::read(file).map_err(|error| unreadable(&error))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&bytes) {
        let certificate = certificate.map_err(|_| "is not PEM".to_owned())?;
        roots.add(certificate).map_err(|error| format!("holds a certificate that signs nothing: {error}"))?;
    }
    if roots.is_empty() { Err("holds no PEM certificate".to_owned()) } else { Ok(roots) }
}
