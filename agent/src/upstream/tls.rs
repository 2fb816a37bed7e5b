//! Whom to trust, and which certificate to show, at the next connection.
//!
//! Certificates in files are replaced while the agent runs (a rotated cluster CA, a renewed client certificate), so
//! files are read at every new connection. The `ClientConfig` is rebuilt only if their content differs: it also holds
//! the sessions that shorten later handshakes.

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

/// Asked at every new connection.
pub trait TlsSource: Send + Sync {
    fn config(&self) -> ConfigFuture<'_>;

    /// To verify the server's certificate against, instead of the host connected to.
    fn server_name(&self) -> Option<ServerName<'static>> {
        None
    }
}

pub type ConfigFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Arc<ClientConfig>, Box<dyn StdError + Send + Sync>>> + Send + 'a>>;

/// Certificates or a key as PEM.
#[derive(Debug)]
pub enum Pem {
    File(PathBuf),
    Inline(SecretSlice<u8>),
}

/// What a connection may be configured with. The default trusts the system's roots and shows no certificate.
#[derive(Debug, Default)]
pub struct TlsOptions {
    /// Trusted instead of the system's roots.
    pub ca: Option<Pem>,
    /// The client certificate's chain, and its key.
    pub identity: Option<(Pem, Pem)>,
    pub server_name: Option<ServerName<'static>>,
    /// Trust any certificate.
    pub insecure: bool,
}

/// A client certificate that comes from elsewhere than [`TlsOptions`].
pub struct Identity {
    pub chain: SecretSlice<u8>,
    pub key: SecretSlice<u8>,
}

/// The usual [`TlsSource`].
pub struct Tls {
    options: Arc<TlsOptions>,
    built: Mutex<Option<Built>>,
}

struct Built {
    material: Material,
    config: Arc<ClientConfig>,
}

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read {}: {cause}", .path.display())]
    Read { path: PathBuf, cause: io::Error },
    #[error("{origin} contains no certificate in PEM form")]
    NoCertificate { origin: String },
    #[error("{origin} is not valid PEM: {cause}")]
    Pem { origin: String, cause: String },
    #[error("{origin}: a certificate cannot be used: {cause}")]
    Certificate { origin: String, cause: rustls::Error },
    #[error("the client certificate and its key cannot be used: {0}")]
    Identity(rustls::Error),
    #[error("no root certificates found on this system; name a certificate authority, or set SSL_CERT_FILE")]
    NoSystemRoots,
    #[error("TLS cannot be set up: {0}")]
    Provider(rustls::Error),
}

impl Tls {
    /// The system's roots, read at the first connection and kept.
    pub fn system() -> Self {
        Self { options: Arc::default(), built: Mutex::default() }
    }

    /// Reads and checks everything once; it blocks.
    pub fn new(options: TlsOptions) -> Result<Self, TlsError> {
        let material = options.material(None)?;
        let config = build(&options, &material)?;

        Ok(Self { options: Arc::new(options), built: Mutex::new(Some(Built { material, config })) })
    }

    /// The configuration for the next connection, with `identity` as the client certificate if there is one.
    ///
    /// Files that are unreadable or broken, perhaps half way through being replaced, leave the last good
    /// configuration in use.
    pub async fn config_with(&self, identity: Option<Arc<Identity>>) -> Result<Arc<ClientConfig>, TlsError> {
        let options = Arc::clone(&self.options);
        let fixed = identity.is_none() && !options.reads_files();
        let last = self.built.lock().as_ref().map(|built| Arc::clone(&built.config));
        if let Some(config) = last.filter(|_| fixed) {
            return Ok(config);
        }

        let read = {
            let identity = identity.clone();
            tokio::task::spawn_blocking(move || options.material(identity.as_deref())).await
        };
        let read = read.map_err(|error| TlsError::Provider(rustls::Error::General(error.to_string())))?;
        let mut built = self.built.lock();
        let rebuilt = read.and_then(|material| match &*built {
            Some(built) if built.material == material => Ok(None),
            _ => build(&self.options, &material).map(|config| Some(Built { material, config })),
        });
        match (rebuilt, &*built) {
            (Ok(Some(new)), _) => Ok(Arc::clone(&built.insert(new).config)),
            (Ok(None), Some(last)) => Ok(Arc::clone(&last.config)),
            // An identity that was handed in is new on purpose; an older one would be refused.
            (Err(error), Some(last)) if identity.is_none() => {
                tracing::warn!(%error, "certificates could not be read again; the last ones stay in use");
                Ok(Arc::clone(&last.config))
            }
            (Err(error), _) => Err(error),
            (Ok(None), None) => unreachable!("nothing to be equal to"),
        }
    }
}

impl TlsSource for Tls {
    fn config(&self) -> ConfigFuture<'_> {
        Box::pin(async { Ok(self.config_with(None).await?) })
    }

    fn server_name(&self) -> Option<ServerName<'static>> {
        self.options.server_name.clone()
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tls").field(&self.options).finish()
    }
}

/// The bytes that a configuration is built from.
struct Material {
    ca: Option<SecretSlice<u8>>,
    identity: Option<(SecretSlice<u8>, SecretSlice<u8>)>,
}

impl PartialEq for Material {
    fn eq(&self, other: &Self) -> bool {
        fn pair(material: &Material) -> Option<(&[u8], &[u8])> {
            material.identity.as_ref().map(|(chain, key)| (chain.expose_secret(), key.expose_secret()))
        }
        fn ca(material: &Material) -> Option<&[u8]> {
            material.ca.as_ref().map(|ca| ca.expose_secret())
        }

        ca(self) == ca(other) && pair(self) == pair(other)
    }
}

impl TlsOptions {
    fn reads_files(&self) -> bool {
        let identity = self.identity.iter().flat_map(|(chain, key)| [chain, key]);
        self.ca.iter().chain(identity).any(|pem| matches!(pem, Pem::File(_)))
    }

    fn material(&self, identity: Option<&Identity>) -> Result<Material, TlsError> {
        let identity = match (identity, &self.identity) {
            (Some(identity), _) => Some((identity.chain.clone(), identity.key.clone())),
            (None, Some((chain, key))) => Some((chain.read()?, key.read()?)),
            (None, None) => None,
        };

        Ok(Material { ca: self.ca.as_ref().map(Pem::read).transpose()?, identity })
    }
}

impl Pem {
    /// Blocks.
    pub fn read(&self) -> Result<SecretSlice<u8>, TlsError> {
        match self {
            Self::Inline(bytes) => Ok(bytes.clone()),
            Self::File(path) => std::fs::read(path)
                .map(SecretSlice::from)
                .map_err(|cause| TlsError::Read { path: path.clone(), cause }),
        }
    }

    fn origin(&self, what: &str) -> String {
        match self {
            Self::Inline(_) => format!("the inline {what}"),
            Self::File(path) => format!("the {what} {}", Path::display(path)),
        }
    }
}

fn build(options: &TlsOptions, material: &Material) -> Result<Arc<ClientConfig>, TlsError> {
    let provider = tls::provider();
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Provider)?;
    let builder = match (options.insecure, &options.ca, &material.ca) {
        (true, ..) => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        }
        (_, Some(pem), Some(ca)) => {
            builder.with_root_certificates(roots(&pem.origin("certificate authority"), ca.expose_secret())?)
        }
        _ => builder.with_root_certificates(system_roots()?),
    };
    let mut config = with_identity(builder, material)?;
    // Without this, a server may choose HTTP/2, where the upgrades of SPDY and WebSocket do not exist.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];

    Ok(Arc::new(config))
}

fn with_identity(
    builder: rustls::ConfigBuilder<ClientConfig, WantsClientCert>,
    material: &Material,
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
        tracing::warn!(%error, "some of the system's root certificates could not be read");
    }
    // Systems ship certificates that no longer parse; the others are still good.
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err(TlsError::NoSystemRoots);
    }

    Ok(roots)
}

/// `insecure-skip-tls-verify`: whoever answers is trusted, but must own the key of the certificate that it shows.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
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
