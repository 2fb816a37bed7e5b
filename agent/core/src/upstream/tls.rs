//! The TLS configuration of the next connection: root certificates and a client certificate.
//!
//! Certificates in files are replaced while agentk runs (a rotated cluster CA, a renewed client certificate), so that files
//! are read at every new connection. The `ClientConfig` is rebuilt only if their content differs, since it also has the
//! sessions that shorten later handshakes.

use std::{
    error::Error as StdError,
    fmt,
    future::Future,
    io,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
};

use parking_lot::Mutex;
use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WantsClientCert,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _},
};
use secrecy::{ExposeSecret as _, SecretSlice};

/// A source of TLS configurations, which is called for every new connection.
pub trait TlsConfigSource: Send + Sync {
    /// Returns the configuration of the next connection.
    fn config(&self) -> TlsConfigFuture<'_>;

    /// Returns the name that the server's certificate must have, if it is not the host of the URL.
    fn server_name(&self) -> Option<ServerName<'static>> {
        None
    }
}

/// The future of [`TlsConfigSource::config`].
pub type TlsConfigFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Arc<ClientConfig>, Box<dyn StdError + Send + Sync>>> + Send + 'a>>;

/// The source of certificates, or of a key, in PEM form.
#[derive(Clone, Debug)]
pub enum Pem {
    /// A file, which is read at every use.
    File(PathBuf),
    /// The PEM text itself.
    Inline(SecretSlice<u8>),
}

/// The configuration of [`ClientTls`]. The default trusts the system's root certificates and has no client certificate.
#[derive(Debug, Default)]
pub struct ClientTlsConfig {
    /// The certificates to trust instead of the system's root certificates.
    pub ca: Option<Pem>,
    /// The chain of the client certificate, and its key.
    pub identity: Option<(Pem, Pem)>,
    /// The name that the server's certificate must have, if it is not the host of the URL.
    pub server_name: Option<ServerName<'static>>,
    /// Trusts any certificate if true.
    pub insecure: bool,
    /// Offers HTTP/2 instead of HTTP/1.1 if true.
    pub http2: bool,
}

/// A client certificate that does not come from [`ClientTlsConfig`].
pub struct ClientIdentity {
    /// The certificate and its intermediate certificates, in PEM form.
    pub chain: SecretSlice<u8>,
    /// The private key, in PEM form.
    pub key: SecretSlice<u8>,
}

/// The [`TlsConfigSource`] of certificates in files.
pub struct ClientTls {
    options: Arc<ClientTlsConfig>,
    cached: Mutex<Option<CachedConfig>>,
}

struct CachedConfig {
    material: TlsMaterial,
    config: Arc<ClientConfig>,
}

/// The error of certificates that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {}: {cause}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error below.
        cause: io::Error,
    },
    /// A file has no certificate.
    #[error("{origin} contains no certificate in PEM form")]
    NoCertificate {
        /// The file, or the key that has the certificate.
        origin: String,
    },
    /// A file is not in PEM form.
    #[error("{origin} is not valid PEM: {cause}")]
    Pem {
        /// The file, or the key that has the certificate.
        origin: String,
        /// The error below.
        cause: String,
    },
    /// A root certificate is invalid.
    #[error("{origin}: a certificate cannot be used: {cause}")]
    Certificate {
        /// The file, or the key that has the certificate.
        origin: String,
        /// The error below.
        cause: rustls::Error,
    },
    /// The client certificate is invalid, or does not match its key.
    #[error("the client certificate and its key cannot be used: {0}")]
    Identity(rustls::Error),
    /// The system has no root certificates.
    #[error("no root certificates found on this system; name a certificate authority, or set SSL_CERT_FILE")]
    NoSystemRoots,
    /// The cryptographic provider does not support the configuration.
    #[error("TLS cannot be set up: {0}")]
    Provider(rustls::Error),
}

impl ClientTls {
    /// Returns a source that trusts the system's root certificates. They are read once, at the first connection.
    pub fn system() -> Self {
        Self { options: Arc::default(), cached: Mutex::default() }
    }

    /// Returns a source of this configuration. It reads and checks all files once, which blocks.
    pub fn new(options: ClientTlsConfig) -> Result<Self, TlsError> {
        let material = options.material(None)?;
        let config = build(&options, &material)?;

        Ok(Self { options: Arc::new(options), cached: Mutex::new(Some(CachedConfig { material, config })) })
    }

    /// Returns the files of the configuration.
    pub fn files(&self) -> Vec<PathBuf> {
        self.options
            .pems()
            .filter_map(|pem| if let Pem::File(path) = pem { Some(path.clone()) } else { None })
            .collect()
    }

    /// Returns a function that checks whether [`Self::files`] can be used now; it blocks.
    pub fn check(&self) -> impl Fn() -> Result<(), TlsError> + Clone + Send + 'static {
        let options = Arc::clone(&self.options);
        move || build(&options, &options.material(None)?).map(drop)
    }

    /// Returns the configuration of the next connection, with `identity` as the client certificate if there is one.
    ///
    /// While the files cannot be used, it returns the last good configuration.
    pub async fn config_with(
        &self,
        identity: Option<Arc<ClientIdentity>>,
    ) -> Result<Arc<ClientConfig>, TlsError> {
        let options = Arc::clone(&self.options);
        let fixed = identity.is_none() && !options.reads_files();
        let last = self.cached.lock().as_ref().map(|cached| Arc::clone(&cached.config));
        if let Some(config) = last.filter(|_| fixed) {
            return Ok(config);
        }

        let read = {
            let identity = identity.clone();
            tokio::task::spawn_blocking(move || options.material(identity.as_deref())).await
        };
        let read = read.map_err(|error| TlsError::Provider(rustls::Error::General(error.to_string())))?;
        let mut cached = self.cached.lock();
        let rebuilt = read.and_then(|material| match &*cached {
            Some(cached) if cached.material == material => Ok(None),
            _ => build(&self.options, &material).map(|config| Some(CachedConfig { material, config })),
        });
        match (rebuilt, &*cached) {
            (Ok(Some(new)), _) => Ok(Arc::clone(&cached.insert(new).config)),
            (Ok(None), Some(last)) => Ok(Arc::clone(&last.config)),
            // The server refuses the last configuration if the caller has a newer client certificate.
            (Err(error), Some(last)) if identity.is_none() => {
                // The follower of the files reports it, once a minute.
                tracing::debug!(%error, "certificates cannot be used; the last good ones stay in use");
                Ok(Arc::clone(&last.config))
            }
            (Err(error), _) => Err(error),
            (Ok(None), None) => unreachable!("there is no cached configuration to equal"),
        }
    }
}

impl TlsConfigSource for ClientTls {
    fn config(&self) -> TlsConfigFuture<'_> {
        Box::pin(async { Ok(self.config_with(None).await?) })
    }

    fn server_name(&self) -> Option<ServerName<'static>> {
        self.options.server_name.clone()
    }
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ClientTls").field(&self.options).finish()
    }
}

/// The bytes of a configuration's certificates and key.
struct TlsMaterial {
    ca: Option<SecretSlice<u8>>,
    identity: Option<(SecretSlice<u8>, SecretSlice<u8>)>,
}

impl PartialEq for TlsMaterial {
    fn eq(&self, other: &Self) -> bool {
        fn pair(material: &TlsMaterial) -> Option<(&[u8], &[u8])> {
            material.identity.as_ref().map(|(chain, key)| (chain.expose_secret(), key.expose_secret()))
        }
        fn ca(material: &TlsMaterial) -> Option<&[u8]> {
            material.ca.as_ref().map(|ca| ca.expose_secret())
        }

        ca(self) == ca(other) && pair(self) == pair(other)
    }
}

impl ClientTlsConfig {
    fn reads_files(&self) -> bool {
        self.pems().any(|pem| matches!(pem, Pem::File(_)))
    }

    fn pems(&self) -> impl Iterator<Item = &Pem> {
        let identity = self.identity.iter().flat_map(|(chain, key)| [chain, key]);
        self.ca.iter().chain(identity)
    }

    fn material(&self, identity: Option<&ClientIdentity>) -> Result<TlsMaterial, TlsError> {
        let identity = match (identity, &self.identity) {
            (Some(identity), _) => Some((identity.chain.clone(), identity.key.clone())),
            (None, Some((chain, key))) => Some((chain.read()?, key.read()?)),
            (None, None) => None,
        };

        Ok(TlsMaterial { ca: self.ca.as_ref().map(Pem::read).transpose()?, identity })
    }
}

impl Pem {
    /// Returns the PEM text. It reads the file, which blocks.
    pub fn read(&self) -> Result<SecretSlice<u8>, TlsError> {
        match self {
            Self::Inline(bytes) => Ok(bytes.clone()),
            Self::File(path) => files::read(path)
                .map(SecretSlice::from)
                .map_err(|cause| TlsError::Read { path: path.clone(), cause }),
        }
    }

    /// Checks that it has root certificates that can be used. It reads the file, which blocks.
    pub fn check_authorities(&self) -> Result<(), TlsError> {
        roots(&self.origin("certificate authority"), self.read()?.expose_secret()).map(drop)
    }

    fn origin(&self, what: &str) -> String {
        match self {
            Self::Inline(_) => format!("the inline {what}"),
            Self::File(path) => format!("the {what} {}", Path::display(path)),
        }
    }
}

fn build(options: &ClientTlsConfig, material: &TlsMaterial) -> Result<Arc<ClientConfig>, TlsError> {
    let provider = tls::provider();
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Provider)?;
    let builder = match (options.insecure, &options.ca, &material.ca) {
        (true, ..) => builder.dangerous().with_custom_certificate_verifier(Arc::new(NoVerifier(provider))),
        (_, Some(pem), Some(ca)) => {
            builder.with_root_certificates(roots(&pem.origin("certificate authority"), ca.expose_secret())?)
        }
        _ => builder.with_root_certificates(system_roots()?),
    };
    let mut config = with_identity(builder, material)?;
    // Without ALPN a server may choose HTTP/2, which has no upgrades to SPDY.
    config.alpn_protocols = vec![if options.http2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];

    Ok(Arc::new(config))
}

fn with_identity(
    builder: rustls::ConfigBuilder<ClientConfig, WantsClientCert>,
    material: &TlsMaterial,
) -> Result<ClientConfig, TlsError> {
    let Some((chain, key)) = &material.identity else { return Ok(builder.with_no_client_auth()) };
    let chain = certificates("the client certificate", chain.expose_secret())?;
    let key = PrivateKeyDer::from_pem_slice(key.expose_secret())
        .map_err(|cause| TlsError::Pem { origin: "the client key".to_owned(), cause: cause.to_string() })?;

    builder.with_client_auth_cert(chain, key).map_err(TlsError::Identity)
}

fn roots(origin: &str, pem: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(origin, pem)? {
        roots.add(certificate).map_err(|cause| TlsError::Certificate { origin: origin.to_owned(), cause })?;
    }

    Ok(roots)
}

fn certificates(origin: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|cause| TlsError::Pem { origin: origin.to_owned(), cause: cause.to_string() })?;
    if found.is_empty() {
        return Err(TlsError::NoCertificate { origin: origin.to_owned() });
    }

    Ok(found)
}

fn system_roots() -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "cannot read some of the system's root certificates");
    }
    // Some systems have certificates that cannot be parsed; the others are usable.
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err(TlsError::NoSystemRoots);
    }

    Ok(roots)
}

/// Accepts any certificate (`insecure-skip-tls-verify`), but verifies that the server owns its key.
#[derive(Debug)]
struct NoVerifier(Arc<CryptoProvider>);

impl ServerCertVerifier for NoVerifier {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
