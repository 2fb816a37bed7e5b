//! Certificates, read again when their files change.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use arc_swap::ArcSwap;
use rustls::{
    ClientConfig, RootCertStore, ServerConfig, SignatureScheme,
    client::ResolvesClientCert,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::{
        ClientHello, NoClientAuth, ResolvesServerCert, WebPkiClientVerifier, danger::ClientCertVerifier,
    },
    sign::CertifiedKey,
};
use serde_saphyr::Spanned;
use tls::provider;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::config::{ConfigError, unreadable};

/// A certificate and its key, where the configuration says they are.
#[derive(Clone, Debug)]
pub struct Certificate {
    config: PathBuf,
    section: &'static str,
    chain: Spanned<PathBuf>,
    key: Spanned<PathBuf>,
    current: Arc<Current>,
}

/// The pair that new connections get.
struct Current(ArcSwap<CertifiedKey>);

impl Certificate {
    /// Reads a listener's pair, or `None` if it has none. `config` and `section` say where the paths stand, for errors.
    pub fn read(
        config: &Path,
        section: &'static str,
        chain: Option<&Spanned<PathBuf>>,
        key: Option<&Spanned<PathBuf>>,
    ) -> Result<Option<Self>, ConfigError> {
        let lonely = |missing, present: &Spanned<PathBuf>| {
            let what = "certificate_file and key_file go together, and this one is missing";
            Err(ConfigError::new(config, present.referenced, format!("{section}.{missing}"), what))
        };
        let (chain, key) = match (chain, key) {
            (None, None) => return Ok(None),
            (Some(chain), None) => return lonely("key_file", chain),
            (None, Some(key)) => return lonely("certificate_file", key),
            (Some(chain), Some(key)) => (chain.clone(), key.clone()),
        };

        let pair = load(config, section, &chain, &key)?;
        let current = Arc::new(Current(ArcSwap::from_pointee(pair)));
        Ok(Some(Self { config: config.to_owned(), section, chain, key, current }))
    }

    /// Reads the files again. If they cannot be used, the pair stays as it is.
    pub fn reload(&self) -> Result<(), ConfigError> {
        let pair = load(&self.config, self.section, &self.chain, &self.key)?;
        self.current.0.store(Arc::new(pair));
        Ok(())
    }

    /// The files.
    pub fn files(&self) -> Vec<PathBuf> {
        vec![self.chain.value.clone(), self.key.value.clone()]
    }

    /// What a listener accepts TLS with.
    pub fn acceptor(&self, alpn: &[&[u8]]) -> TlsAcceptor {
        self.server(Arc::new(NoClientAuth), alpn)
    }

    /// The same for those only whose certificate `roots` signed.
    pub fn mutual_acceptor(&self, roots: RootCertStore, alpn: &[&[u8]]) -> TlsAcceptor {
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider()).build();
        self.server(verifier.expect("there are roots, and no revocation lists"), alpn)
    }

    /// What connects to such a listener: it shows this pair, and trusts `roots`.
    pub fn mutual_connector(&self, roots: RootCertStore, alpn: &[&[u8]]) -> TlsConnector {
        let mut client = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("it speaks the default versions")
            .with_root_certificates(roots)
            .with_client_cert_resolver(Arc::clone(&self.current) as Arc<dyn ResolvesClientCert>);
        client.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        TlsConnector::from(Arc::new(client))
    }

    fn server(&self, clients: Arc<dyn ClientCertVerifier>, alpn: &[&[u8]]) -> TlsAcceptor {
        let mut server = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("it speaks the default versions")
            .with_client_cert_verifier(clients)
            .with_cert_resolver(Arc::clone(&self.current) as Arc<dyn ResolvesServerCert>);
        server.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        TlsAcceptor::from(Arc::new(server))
    }
}

impl ResolvesClientCert for Current {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

impl fmt::Debug for Current {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Current")
    }
}

fn load(
    config: &Path,
    section: &str,
    chain: &Spanned<PathBuf>,
    key: &Spanned<PathBuf>,
) -> Result<CertifiedKey, ConfigError> {
    let error = |name: &str, path: &Spanned<PathBuf>, what: String| {
        let what = format!("{}: {what}", path.value.display());
        ConfigError::new(config, path.referenced, format!("{section}.{name}"), what)
    };
    let bytes =
        std::fs::read(&chain.value).map_err(|cause| error("certificate_file", chain, unreadable(&cause)))?;
    let certificates =
        CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>().unwrap_or_default();
    if certificates.is_empty() {
        return Err(error("certificate_file", chain, "holds no PEM certificate".to_owned()));
    }
    let bytes = std::fs::read(&key.value).map_err(|cause| error("key_file", key, unreadable(&cause)))?;
    let private = PrivateKeyDer::from_pem_slice(&bytes)
        .map_err(|_| error("key_file", key, "holds no PEM private key".to_owned()))?;

    CertifiedKey::from_der(certificates, private, &provider())
        .map_err(|cause| error("key_file", key, format!("does not fit the certificate: {cause}")))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rcgen::{CertifiedKey as Generated, generate_simple_self_signed};

    use super::*;

    #[derive(serde::Deserialize)]
    struct Paths {
        chain: Spanned<PathBuf>,
        key: Spanned<PathBuf>,
    }

    fn pair(directory: &Path) -> (Spanned<PathBuf>, Spanned<PathBuf>) {
        let text = format!("chain: {0}/tls.crt\nkey: {0}/tls.key\n", directory.display());
        let paths: Paths = serde_saphyr::from_str(&text).unwrap();
        (paths.chain, paths.key)
    }

    fn write(directory: &Path) {
        let Generated { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        fs::write(directory.join("tls.crt"), cert.pem()).unwrap();
        fs::write(directory.join("tls.key"), signing_key.serialize_pem()).unwrap();
    }

    fn read(
        chain: Option<&Spanned<PathBuf>>,
        key: Option<&Spanned<PathBuf>>,
    ) -> Result<Option<Certificate>, String> {
        Certificate::read(Path::new("kas.yaml"), "agent.listen", chain, key)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_bad_new_version_leaves_the_good_one_in_force() {
        let directory = tempfile::tempdir().unwrap();
        let (chain, key) = pair(directory.path());
        write(directory.path());
        let certificate = read(Some(&chain), Some(&key)).unwrap().unwrap();
        let first = certificate.current.0.load_full();

        write(directory.path());
        certificate.reload().unwrap();
        let second = certificate.current.0.load_full();
        assert_ne!(first.cert, second.cert);

        fs::write(directory.path().join("tls.crt"), "half a fi").unwrap();
        assert!(certificate.reload().is_err());
        assert_eq!(certificate.current.0.load_full().cert, second.cert);
    }

    #[test]
    fn what_is_wrong_with_a_pair_is_said_with_its_place() {
        let directory = tempfile::tempdir().unwrap();
        let (chain, key) = pair(directory.path());
        assert!(read(None, None).unwrap().is_none());
        assert!(read(Some(&chain), None).unwrap_err().starts_with("kas.yaml:1:8: agent.listen.key_file: "));
        assert!(read(Some(&chain), Some(&key)).unwrap_err().contains("tls.crt: the file does not exist"));

        write(directory.path());
        let other = fs::read(directory.path().join("tls.key")).unwrap();
        write(directory.path());
        fs::write(directory.path().join("tls.key"), other).unwrap();
        let error = read(Some(&chain), Some(&key)).unwrap_err();
        assert!(error.starts_with("kas.yaml:2:6: agent.listen.key_file: "), "{error}");
        assert!(error.contains("does not fit the certificate"), "{error}");
    }
}
