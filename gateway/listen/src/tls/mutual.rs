//! Mutual TLS: each end has a certificate, and accepts certificates of one authority.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use files::unreadable;
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    client::Resumption,
    server::{NoServerSessionStorage, WebPkiClientVerifier, danger::ClientCertVerifier},
};
use serde_saphyr::Spanned;
use settings::ConfigError;
use tls::provider;

use super::{Acceptor, Certificate, Connector};

/// The certificate of this end and the authority of the other ends. Both are read again when their files change.
#[derive(Clone, Debug)]
pub struct MutualTls {
    certificate: Certificate,
    authority: Spanned<PathBuf>,
    alpn: &'static [&'static [u8]],
    acceptor: Acceptor,
    connector: Connector,
}

impl MutualTls {
    /// Reads the file of the authority. Errors refer to the key `ca_certificate_file` in the section of the certificate.
    pub fn read(
        certificate: Certificate,
        authority: &Spanned<PathBuf>,
        alpn: &'static [&'static [u8]],
    ) -> Result<Self, ConfigError> {
        let roots = load_roots(&certificate, authority)?;
        let acceptor = Acceptor::new(server_config(&certificate, roots.clone(), alpn));
        let connector = Connector::new(client_config(&certificate, roots, alpn));
        Ok(Self { certificate, authority: authority.clone(), alpn, acceptor, connector })
    }

    /// Reads the file of the authority again. If it is invalid, the authority does not change.
    ///
    /// New connections use the new version. Open connections stay open.
    pub fn reload_authority(&self) -> Result<(), ConfigError> {
        let roots = load_roots(&self.certificate, &self.authority)?;
        self.acceptor.replace(server_config(&self.certificate, roots.clone(), self.alpn));
        self.connector.replace(client_config(&self.certificate, roots, self.alpn));
        Ok(())
    }

    /// Returns the certificate of this replica.
    pub fn certificate(&self) -> &Certificate {
        &self.certificate
    }

    /// Returns the key of the configuration that names the authority.
    pub fn authority_key(&self) -> String {
        format!("{}.ca_certificate_file", self.certificate.section)
    }

    /// Returns the path of the authority's file.
    pub fn authority_path(&self) -> &Path {
        &self.authority.value
    }

    /// Returns the acceptor of connections.
    pub fn acceptor(&self) -> &Acceptor {
        &self.acceptor
    }

    /// Returns the connector to other ends.
    pub fn connector(&self) -> &Connector {
        &self.connector
    }
}

/// Builds the server's half. Sessions are not resumed: a resumed handshake would verify neither certificate again.
fn server_config(certificate: &Certificate, roots: RootCertStore, alpn: &[&[u8]]) -> ServerConfig {
    let mut config = certificate.server_config(verifier(roots), alpn);
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config
}

/// Builds the client's half, which resumes no session either.
fn client_config(certificate: &Certificate, roots: RootCertStore, alpn: &[&[u8]]) -> ClientConfig {
    let mut config = certificate.client_config(roots, alpn);
    config.resumption = Resumption::disabled();
    config
}

fn verifier(roots: RootCertStore) -> Arc<dyn ClientCertVerifier> {
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider()).build();
    verifier.expect("there are roots, and no revocation lists")
}

fn load_roots(certificate: &Certificate, authority: &Spanned<PathBuf>) -> Result<RootCertStore, ConfigError> {
    let roots = files::read(&authority.value).map_err(|error| unreadable(&error));
    let parse = |bytes: Vec<u8>| tls::parse_roots(&bytes).map_err(|error| error.to_string());
    roots.and_then(parse).map_err(|what| {
        let key = format!("{}.ca_certificate_file", certificate.section);
        let what = format!("{}: {what}", authority.value.display());
        ConfigError::new(&certificate.config, authority.referenced, key, what)
    })
}
