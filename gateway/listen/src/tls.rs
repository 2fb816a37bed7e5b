//! TLS with certificates that are read again when their files change.

mod mutual;
mod validity;

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use arc_swap::ArcSwap;
use rustls::{
    ClientConfig, RootCertStore, ServerConfig, SignatureScheme,
    client::ResolvesClientCert,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
    server::{ClientHello, NoClientAuth, ResolvesServerCert, danger::ClientCertVerifier},
    sign::CertifiedKey,
};
use serde_saphyr::Spanned;
use tls::provider;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

pub use self::mutual::MutualTls;
use self::validity::Validity;
use files::unreadable;
use settings::ConfigError;

/// A certificate chain with its private key, and the files that they were read from.
#[derive(Clone, Debug)]
pub struct Certificate {
    config: PathBuf,
    section: &'static str,
    chain: Spanned<PathBuf>,
    key: Spanned<PathBuf>,
    current: Arc<CertificateResolver>,
}

/// Returns the last second in which a certificate is valid, in seconds since 1970, or `None` if the text begins with no certificate.
pub fn expiry(pem: &str) -> Option<i64> {
    let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
    Validity::parse(&certificate).map(Validity::not_after)
}

/// Accepts TLS connections. Cheap to clone; a new configuration applies to all clones.
#[derive(Clone)]
pub struct Acceptor(Arc<ArcSwap<ServerConfig>>);

/// Opens TLS connections. Cheap to clone; a new configuration applies to all clones.
#[derive(Clone)]
pub struct Connector(Arc<ArcSwap<ClientConfig>>);

/// Returns the certificate in force for new connections.
struct CertificateResolver(ArcSwap<CertifiedKey>);

impl Certificate {
    /// Reads the pair of files of a listener, or returns `None` if it has none. Errors refer to `section` in the file `config`.
    pub fn read(
        config: &Path,
        section: &'static str,
        chain: Option<&Spanned<PathBuf>>,
        key: Option<&Spanned<PathBuf>>,
    ) -> Result<Option<Self>, ConfigError> {
        let incomplete = |missing, present: &Spanned<PathBuf>| {
            let problem = "certificate_file and key_file go together, and this one is missing";
            Err(ConfigError::new(config, present.referenced, format!("{section}.{missing}"), problem))
        };
        let (chain, key) = match (chain, key) {
            (None, None) => return Ok(None),
            (Some(chain), None) => return incomplete("key_file", chain),
            (None, Some(key)) => return incomplete("certificate_file", key),
            (Some(chain), Some(key)) => (chain.clone(), key.clone()),
        };

        let pair = load(config, section, &chain, &key)?;
        let current = Arc::new(CertificateResolver(ArcSwap::from_pointee(pair)));
        Ok(Some(Self { config: config.to_owned(), section, chain, key, current }))
    }

    /// Reads the files again. If they are invalid, the pair does not change.
    ///
    /// A certificate that is expired or not yet valid at `now` does not replace a valid one.
    pub fn reload(&self, now: SystemTime) -> Result<(), ConfigError> {
        let pair = load(&self.config, self.section, &self.chain, &self.key)?;
        match problem(&pair, now) {
            Some(problem) if self.validate(now).is_ok() => return Err(self.error(problem)),
            Some(_) | None => {}
        }
        self.current.0.store(Arc::new(pair));
        Ok(())
    }

    /// Returns an error if clients refuse the current certificate at `now`: it is expired or not yet valid.
    pub fn validate(&self, now: SystemTime) -> Result<(), ConfigError> {
        problem(&self.current.0.load(), now).map_or(Ok(()), |problem| Err(self.error(problem)))
    }

    /// Returns the time at which the certificate in force expires, in seconds since 1970, if it can be parsed.
    pub fn not_after(&self) -> Option<i64> {
        validity(&self.current.0.load()).map(Validity::not_after)
    }

    /// Returns the key of the configuration that names the certificate.
    pub fn config_key(&self) -> String {
        format!("{}.certificate_file", self.section)
    }

    /// Returns the paths of the two files.
    pub fn files(&self) -> Vec<PathBuf> {
        vec![self.chain.value.clone(), self.key.value.clone()]
    }

    /// Returns an acceptor for clients without certificates.
    pub fn acceptor(&self, alpn: &[&[u8]]) -> Acceptor {
        Acceptor::new(self.server_config(Arc::new(NoClientAuth), alpn))
    }

    fn error(&self, problem: String) -> ConfigError {
        let what = format!("{}: {problem}", self.chain.value.display());
        ConfigError::new(&self.config, self.chain.referenced, self.config_key(), what)
    }

    fn server_config(&self, clients: Arc<dyn ClientCertVerifier>, alpn: &[&[u8]]) -> ServerConfig {
        let mut server = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("the provider supports the default versions")
            .with_client_cert_verifier(clients)
            .with_cert_resolver(Arc::clone(&self.current) as Arc<dyn ResolvesServerCert>);
        server.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        server
    }

    /// Returns a client that presents this certificate, trusts `roots`, and offers the protocols `alpn`.
    pub fn client_config(&self, roots: RootCertStore, alpn: &[&[u8]]) -> ClientConfig {
        let mut client = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("the provider supports the default versions")
            .with_root_certificates(roots)
            .with_client_cert_resolver(Arc::clone(&self.current) as Arc<dyn ResolvesClientCert>);
        client.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        client
    }
}

impl Acceptor {
    fn new(config: ServerConfig) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(config)))
    }

    fn replace(&self, config: ServerConfig) {
        self.0.store(Arc::new(config));
    }

    /// Runs the handshake of the server.
    pub async fn accept<T>(&self, io: T) -> io::Result<server::TlsStream<T>>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        TlsAcceptor::from(self.0.load_full()).accept(io).await
    }
}

impl Connector {
    fn new(config: ClientConfig) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(config)))
    }

    fn replace(&self, config: ClientConfig) {
        self.0.store(Arc::new(config));
    }

    /// Runs the handshake of the client. The certificate of the server has to have the name.
    pub async fn connect<T>(&self, name: ServerName<'static>, io: T) -> io::Result<client::TlsStream<T>>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        TlsConnector::from(self.0.load_full()).connect(name, io).await
    }
}

impl ResolvesClientCert for CertificateResolver {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl ResolvesServerCert for CertificateResolver {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Acceptor")
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector")
    }
}

impl fmt::Debug for CertificateResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CertificateResolver")
    }
}

/// Returns the validity of the first certificate. The others are not checked: clients can ignore an expired certificate in the
/// rest of the chain, such as a cross-signed root.
fn validity(pair: &CertifiedKey) -> Option<Validity> {
    Validity::parse(pair.cert.first()?)
}

fn problem(pair: &CertifiedKey, now: SystemTime) -> Option<String> {
    validity(pair)?.problem(now)
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
        files::read(&chain.value).map_err(|cause| error("certificate_file", chain, unreadable(&cause)))?;
    let certificates =
        CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>().unwrap_or_default();
    if certificates.is_empty() {
        return Err(error("certificate_file", chain, "holds no PEM certificate".to_owned()));
    }
    let bytes = files::read(&key.value).map_err(|cause| error("key_file", key, unreadable(&cause)))?;
    let private = PrivateKeyDer::from_pem_slice(&bytes)
        .map_err(|_| error("key_file", key, "holds no PEM private key".to_owned()))?;

    CertifiedKey::from_der(certificates, private, &provider())
        .map_err(|cause| error("key_file", key, format!("does not match the certificate: {cause}")))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use std::time::Duration;

    use rcgen::{
        CertificateParams, CertifiedKey as Generated, KeyPair, date_time_ymd, generate_simple_self_signed,
    };

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
    fn invalid_new_version_does_not_replace_the_certificate() {
        let directory = tempfile::tempdir().unwrap();
        let (chain, key) = pair(directory.path());
        write(directory.path());
        let certificate = read(Some(&chain), Some(&key)).unwrap().unwrap();
        let first = certificate.current.0.load_full();

        write(directory.path());
        certificate.reload(SystemTime::now()).unwrap();
        let second = certificate.current.0.load_full();
        assert_ne!(first.cert, second.cert);

        fs::write(directory.path().join("tls.crt"), "half a fi").unwrap();
        assert!(certificate.reload(SystemTime::now()).is_err());
        assert_eq!(certificate.current.0.load_full().cert, second.cert);
    }

    fn write_valid(directory: &Path, first: i32, last: i32) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(first, 1, 1), date_time_ymd(last, 1, 1));
        fs::write(directory.join("tls.crt"), params.self_signed(&key).unwrap().pem()).unwrap();
        fs::write(directory.join("tls.key"), key.serialize_pem()).unwrap();
    }

    #[test]
    fn certificate_outside_of_its_validity_does_not_replace_a_valid_one() {
        /// The beginning of 2026.
        const NOW: Duration = Duration::from_secs(1_767_225_600);
        const YEAR: Duration = Duration::from_secs(365 * 86_400);
        let now = SystemTime::UNIX_EPOCH + NOW;
        let directory = tempfile::tempdir().unwrap();
        let (chain, key) = pair(directory.path());
        write_valid(directory.path(), 2025, 2028);
        let certificate = read(Some(&chain), Some(&key)).unwrap().unwrap();
        assert!(certificate.validate(now).is_ok());
        let good = certificate.not_after();

        for (first, last, problem) in [
            (2020, 2021, "tls.crt: the certificate expired at 2021-01-01T00:00:00Z"),
            (2027, 2030, "tls.crt: the certificate is not valid before 2027-01-01T00:00:00Z"),
        ] {
            write_valid(directory.path(), first, last);
            let error = certificate.reload(now).unwrap_err().to_string();
            assert!(error.starts_with("kas.yaml:1:8: agent.listen.certificate_file: "), "{error}");
            assert!(error.ends_with(problem), "{error}");
            assert_eq!(certificate.not_after(), good);
        }

        // The certificate has become valid. Later it has expired, and another expired one replaces it.
        certificate.reload(now + 2 * YEAR).unwrap();
        assert_ne!(certificate.not_after(), good);
        write_valid(directory.path(), 2020, 2021);
        certificate.reload(now + 10 * YEAR).unwrap();
        let error = certificate.validate(now + 10 * YEAR).unwrap_err().to_string();
        assert!(error.ends_with("expired at 2021-01-01T00:00:00Z"), "{error}");
    }

    #[test]
    fn invalid_pair_is_refused_with_its_place() {
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
        assert!(error.contains("does not match the certificate"), "{error}");
    }
}
