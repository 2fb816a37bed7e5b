//! Server certificates.

use std::{path::PathBuf, sync::Arc};

use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use serde_saphyr::Spanned;
use tokio_rustls::TlsAcceptor;

use crate::config::{ConfigError, unreadable};

/// The acceptor of a listener with this certificate and key, or `None` for a plain one.
///
/// `config` and `section` say where the paths stand, for errors.
pub fn acceptor(
    config: &std::path::Path,
    section: &str,
    certificate: Option<&Spanned<PathBuf>>,
    key: Option<&Spanned<PathBuf>>,
    alpn: &[&[u8]],
) -> Result<Option<TlsAcceptor>, ConfigError> {
    let (certificate, key) = match (certificate, key) {
        (None, None) => return Ok(None),
        (Some(certificate), Some(key)) => (certificate, key),
        (Some(lonely), None) => {
            return Err(error(config, section, "key_file", lonely, "is missing beside certificate_file"));
        }
        (None, Some(lonely)) => {
            return Err(error(config, section, "certificate_file", lonely, "is missing beside key_file"));
        }
    };

    let bytes = std::fs::read(&certificate.value)
        .map_err(|cause| error(config, section, "certificate_file", certificate, unreadable(&cause)))?;
    let chain = CertificateDer::pem_slice_iter(&bytes)
        .collect::<Result<Vec<_>, _>>()
        .ok()
        .filter(|chain| !chain.is_empty())
        .ok_or_else(|| error(config, section, "certificate_file", certificate, "holds no PEM certificate"))?;
    let bytes = std::fs::read(&key.value)
        .map_err(|cause| error(config, section, "key_file", key, unreadable(&cause)))?;
    let private = PrivateKeyDer::from_pem_slice(&bytes)
        .map_err(|_| error(config, section, "key_file", key, "holds no PEM private key"))?;

    let mut server = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring speaks the default versions")
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|cause| {
            error(config, section, "key_file", key, format!("does not fit the certificate: {cause}"))
        })?;
    server.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(Some(TlsAcceptor::from(Arc::new(server))))
}

fn error(
    config: &std::path::Path,
    section: &str,
    key: &str,
    path: &Spanned<PathBuf>,
    what: impl Into<String>,
) -> ConfigError {
    let what = format!("{}: {}", path.value.display(), what.into());
    ConfigError::new(config, path.referenced, format!("{section}.{key}"), what)
}
