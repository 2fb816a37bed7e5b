//! The cryptography of TLS in kas and agentk, and clients with server authentication only. The byte streams come from tokio-rustls.
#![warn(missing_docs)]

use std::sync::Arc;

use rustls::{
    CipherSuite, ClientConfig, RootCertStore,
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

/// Returns AWS-LC as the provider, with AES-128 as the preferred cipher.
///
/// AWS-LC encrypts several blocks of AES at once with vector instructions (VAES), which ring does not: a record of 16 KiB
/// takes a third less time, and a handshake a fifth less. A client with this provider prefers AES-128, which takes a tenth
/// less time than AES-256 and is not less safe in practice. Servers follow the order of the client.
pub fn provider() -> Arc<CryptoProvider> {
    let mut provider = aws_lc_rs::default_provider();
    // The sort is stable: the other suites stay in the library's order.
    provider.cipher_suites.sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
    Arc::new(provider)
}

/// Returns a client that trusts `roots`, offers the protocols `alpn`, and has no certificate of its own.
///
/// # Panics
///
/// Never: AWS-LC supports the default versions of TLS.
pub fn client_config(roots: impl Into<Arc<RootCertStore>>, alpn: &[&[u8]]) -> ClientConfig {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("AWS-LC supports the default versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    config
}

/// A certificate of a client that cannot be used. The text has nothing of the private key.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ClientCertificateError {
    /// There is no certificate in PEM.
    #[error("the client certificate is not PEM")]
    Certificate,
    /// There is no private key in PEM.
    #[error("the key of the client certificate is not PEM")]
    Key,
    /// rustls refuses the pair.
    #[error("the client certificate and its key cannot be used: {0}")]
    Pair(rustls::Error),
}

/// Returns a client that trusts `roots`, offers the protocols `alpn`, and has the certificate chain and the private key of these texts.
///
/// # Errors
///
/// The texts are no chain and no key, or do not match.
pub fn client_config_with_certificate(
    roots: impl Into<Arc<RootCertStore>>,
    alpn: &[&[u8]],
    (chain, key): (&[u8], &[u8]),
) -> Result<ClientConfig, ClientCertificateError> {
    let chain = CertificateDer::pem_slice_iter(chain).collect::<Result<Vec<_>, _>>().unwrap_or_default();
    if chain.is_empty() {
        return Err(ClientCertificateError::Certificate);
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| ClientCertificateError::Key)?;
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("AWS-LC supports the default versions")
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(ClientCertificateError::Pair)?;
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(config)
}

/// Returns the certificate authorities of the system, or none. This blocks.
///
/// Certificates that rustls cannot parse are left out: some systems have such.
pub fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

/// Returns the certificates of a PEM text that rustls can parse, or none.
pub fn pem_roots(text: &[u8]) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(text).filter_map(Result::ok));
    roots
}

/// A file that does not hold the certificates of authorities. The text continues the name of the file.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RootsError {
    /// It has a damaged block of PEM.
    #[error("is not PEM")]
    NotPem,
    /// rustls refuses a certificate.
    #[error("holds a certificate that cannot be an authority: {0}")]
    NotAuthority(rustls::Error),
    /// It has no certificate.
    #[error("holds no PEM certificate")]
    Empty,
}

/// Parses the certificates (PEM) of authorities.
///
/// # Errors
///
/// There is no certificate, or one that cannot be an authority.
pub fn parse_roots(bytes: &[u8]) -> Result<RootCertStore, RootsError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bytes) {
        let certificate = certificate.map_err(|_| RootsError::NotPem)?;
        roots.add(certificate).map_err(RootsError::NotAuthority)?;
    }
    if roots.is_empty() { Err(RootsError::Empty) } else { Ok(roots) }
}
