//! An artifact of a registry as a repository.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use futures_util::TryStreamExt as _;
use git::{Commit, CommitId, FileLimits, FileSelection, Repository, RepositoryError, SelectedFiles};
use oci_client::{
    Client, Reference,
    client::{Certificate, CertificateEncoding, ClientConfig, ClientProtocol},
    errors::{DigestError, OciDistributionError},
    manifest::{OciDescriptor, OciImageManifest},
    secrets::RegistryAuth,
};
use proto::AgentName;
use router::BoxFuture;
use tokio::{task::spawn_blocking, time::timeout};

use crate::{
    OciSettings,
    settings::{ArtifactVersion, sha256_digits},
    unpack::{Layer, LayerForm, invalid, unpack},
};

/// The time for one call.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The time until a registry accepts a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The most layers of an artifact.
const MAX_LAYERS: usize = 1000;
/// The media types of manifests that kas reads.
const MANIFESTS: [&str; 2] =
    ["application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"];
/// The annotation with the version of the sources.
const REVISION: &str = "org.opencontainers.image.revision";
/// The annotation with the name of a file.
const TITLE: &str = "org.opencontainers.image.title";
/// The reason for which content is refused. It does not name the digest of the content: whoever reads errors could guess the content.
const DIFFERS: &str = "its content differs from its digest";
/// The longest annotation that is shown, in characters.
const MAX_ANNOTATION: usize = 200;

/// An artifact of a registry. Its commit is the digest of its manifest.
#[derive(Debug)]
pub struct OciRepository {
    settings: OciSettings,
    #[expect(
        clippy::disallowed_types,
        reason = "agents that read the same artifact wait for one exchange, which has a time limit"
    )]
    last: tokio::sync::Mutex<Option<(CommitId, Arc<Artifact>)>>,
}

/// An artifact that was fetched.
#[derive(Debug)]
struct Artifact {
    layers: Vec<Layer>,
    revision: String,
}

impl OciRepository {
    /// Returns a repository that has no connection yet.
    pub fn new(settings: OciSettings) -> Self {
        Self { settings, last: Default::default() }
    }

    /// Returns a client with the credentials as their files have them now.
    async fn connect(&self) -> Result<(Client, RegistryAuth), RepositoryError> {
        let protocol = match self.settings.is_local() {
            true => ClientProtocol::HttpsExcept(vec![self.settings.registry.clone()]),
            false => ClientProtocol::Https,
        };
        let mut config = ClientConfig {
            protocol,
            connect_timeout: Some(CONNECT_TIMEOUT),
            read_timeout: Some(TIMEOUT),
            user_agent: concat!("kas/", env!("CARGO_PKG_VERSION")),
            ..ClientConfig::default()
        };
        if let Some(file) = &self.settings.ca_certificate_file {
            let data = read(file).await?;
            config.tls_certs_only = vec![Certificate { encoding: CertificateEncoding::Pem, data }];
        }
        let auth = match &self.settings.credentials {
            None => RegistryAuth::Anonymous,
            Some((user, file)) => {
                let password = String::from_utf8(read(file).await?)
                    .map_err(|_| invalid(format!("{} is not text", file.display())))?;
                RegistryAuth::Basic(user.clone(), password.trim().to_owned())
            }
        };
        let client = Client::try_from(config).map_err(|error| self.failed(&error))?;
        Ok((client, auth))
    }

    fn reference(&self) -> Reference {
        let (registry, repository) = (self.settings.registry.clone(), self.settings.repository.clone());
        match &self.settings.version {
            ArtifactVersion::Tag(tag) => Reference::with_tag(registry, repository, tag.clone()),
            ArtifactVersion::Digest(digest) => {
                Reference::with_digest(registry, repository, format!("sha256:{digest}"))
            }
        }
    }

    async fn look_up(&self) -> Result<Option<Commit>, RepositoryError> {
        let digest = match &self.settings.version {
            ArtifactVersion::Digest(digest) => format!("sha256:{digest}"),
            ArtifactVersion::Tag(_) => {
                let (client, auth) = self.connect().await?;
                let found = client.fetch_manifest_digest(&self.reference(), &auth).await;
                found.map_err(|error| self.failed(&error))?
            }
        };
        let digits = sha256_digits(&digest);
        let id = digits.and_then(|digits| digits.parse().ok());
        let id = id.ok_or_else(|| invalid(format!("{}: its digest is not SHA-256", self.settings.name())))?;
        let branch = match &self.settings.version {
            ArtifactVersion::Tag(tag) => tag.clone(),
            ArtifactVersion::Digest(_) => digest,
        };
        Ok(Some(Commit { id, branch }))
    }

    /// Returns the layers of a version, which are fetched once.
    async fn fetched(&self, id: &CommitId, limits: FileLimits) -> Result<Arc<Artifact>, RepositoryError> {
        let mut last = self.last.lock().await;
        if let Some((known, artifact)) = &*last
            && known == id
        {
            return Ok(Arc::clone(artifact));
        }
        *last = None;
        let artifact = Arc::new(self.fetch(id, limits).await?);
        *last = Some((id.clone(), Arc::clone(&artifact)));
        Ok(artifact)
    }

    async fn fetch(&self, id: &CommitId, limits: FileLimits) -> Result<Artifact, RepositoryError> {
        let (client, auth) = self.connect().await?;
        let reference = self.reference().clone_with_digest(format!("sha256:{id}"));
        let pulled = client.pull_manifest_raw(&reference, &auth, &MANIFESTS).await;
        let (manifest, _) = pulled.map_err(|error| self.failed(&error))?;
        let name = self.settings.name();
        let manifest: OciImageManifest = parse_manifest(&manifest).ok_or_else(|| {
            invalid(format!("{name} is not an artifact with layers, but an index or an old form"))
        })?;
        if manifest.layers.len() > MAX_LAYERS {
            return Err(invalid(format!("{name} has more than {MAX_LAYERS} layers")));
        }
        let (mut layers, mut left) = (Vec::new(), limits.bytes);
        for descriptor in &manifest.layers {
            let title = descriptor.annotations.as_ref().and_then(|annotations| annotations.get(TITLE));
            let form = LayerForm::of(&descriptor.media_type, title.map(String::as_str)).ok_or_else(|| {
                let media_type = descriptor.media_type.escape_debug();
                invalid(format!(
                    "{name} has a layer of the type {media_type}, which is neither an archive nor a file"
                ))
            })?;
            if sha256_digits(&descriptor.digest).is_none() {
                return Err(invalid(format!("{name}: a layer has a digest that is not SHA-256")));
            }
            let content = self.pull(&client, &reference, descriptor, left).await?;
            left -= content.len();
            layers.push(Layer { form, content: content.into() });
        }
        Ok(Artifact { layers, revision: annotation(manifest.annotations.as_ref(), REVISION) })
    }

    /// Fetches a blob, whose digest is checked.
    async fn pull(
        &self,
        client: &Client,
        reference: &Reference,
        descriptor: &OciDescriptor,
        max_bytes: usize,
    ) -> Result<Vec<u8>, RepositoryError> {
        // Without the descriptor's `urls`: kas requests nothing that an artifact names.
        let stream = client.pull_blob_stream(reference, &*descriptor.digest).await;
        let mut stream = stream.map_err(|error| self.failed(&error))?.stream;
        let mut content = Vec::new();
        let name = self.settings.name();
        let cut = |error: std::io::Error| {
            let differs = error.get_ref().is_some_and(|error| error.is::<DigestError>());
            let what = if differs { DIFFERS.to_owned() } else { error.to_string() };
            invalid(format!("{name}: a layer was not received: {what}"))
        };
        while let Some(bytes) = stream.try_next().await.map_err(cut)? {
            if content.len() + bytes.len() > max_bytes {
                return Err(RepositoryError::TooLarge { path: name, max_bytes });
            }
            content.extend_from_slice(&bytes);
        }
        Ok(content)
    }

    /// Describes an error, without the content of a response: the users who read it may not know the server that has sent it.
    fn failed(&self, error: &OciDistributionError) -> RepositoryError {
        let name = self.settings.name();
        let absent = || "the registry does not have it".to_owned();
        let what = match error {
            OciDistributionError::UnauthorizedError { .. }
            | OciDistributionError::AuthenticationFailure(_) => {
                "the registry refuses the credential (username, password_file)".to_owned()
            }
            OciDistributionError::ImageManifestNotFoundError(_)
            | OciDistributionError::ServerError { code: 404, .. } => absent(),
            OciDistributionError::ServerError { code, .. } => {
                format!("the registry responds with the status {code}")
            }
            OciDistributionError::RegistryError { envelope, .. } => {
                use oci_client::errors::OciErrorCode::{ManifestUnknown, NameUnknown, NotFound};

                let mut codes = envelope.errors.iter().map(|error| &error.code);
                match codes.clone().any(|code| matches!(code, ManifestUnknown | NameUnknown | NotFound)) {
                    true => absent(),
                    false => codes.next().map_or_else(
                        || "the registry responds with an error".to_owned(),
                        |code| format!("the registry responds with the error {code:?}"),
                    ),
                }
            }
            OciDistributionError::DigestError(DigestError::VerificationError { .. }) => DIFFERS.to_owned(),
            OciDistributionError::RegistryTokenDecodeError(_) => {
                "the response of the server of tokens is not valid".to_owned()
            }
            _ => proto::ErrorChain(error).to_string().escape_debug().to_string(),
        };
        invalid(format!("{name}: {}", what.chars().take(500).collect::<String>()))
    }

    async fn limited<T>(
        &self,
        call: impl Future<Output = Result<T, RepositoryError>>,
    ) -> Result<T, RepositoryError> {
        let late = || {
            let seconds = TIMEOUT.as_secs();
            invalid(format!("{}: the registry takes longer than {seconds} s", self.settings.name()))
        };
        timeout(TIMEOUT, call).await.unwrap_or_else(|_| Err(late()))
    }

    async fn read_selected(
        &self,
        id: &CommitId,
        selection: &Arc<FileSelection>,
    ) -> Result<SelectedFiles, RepositoryError> {
        let artifact = self.fetched(id, selection.limits).await?;
        let (unpacked, selection) = (Arc::clone(&artifact), Arc::clone(selection));
        let files = spawn_blocking(move || unpack(&unpacked.layers, &selection)).await;
        let files = files.map_err(|_| invalid("the reader of archives has panicked".to_owned()))??;
        Ok(SelectedFiles { subject: artifact.revision.clone(), author: String::new(), files })
    }
}

impl Repository for OciRepository {
    fn resolve(&self) -> BoxFuture<'_, Result<Option<Commit>, RepositoryError>> {
        Box::pin(self.limited(self.look_up()))
    }

    fn read_file<'a>(
        &'a self,
        commit: &'a CommitId,
        path: &'a str,
        max_bytes: usize,
    ) -> BoxFuture<'a, Result<Option<Vec<u8>>, RepositoryError>> {
        Box::pin(self.limited(async move {
            let limits = FileLimits { files: 1, file_bytes: max_bytes, bytes: max_bytes };
            let wanted = path.to_owned();
            let selection = Arc::new(FileSelection::new([path], move |path: &str| path == wanted, limits));
            let read = self.read_selected(commit, &selection).await?;
            Ok(read.files.into_iter().next().map(|file| file.content))
        }))
    }

    fn read_files<'a>(
        &'a self,
        commit: &'a CommitId,
        selection: &'a Arc<FileSelection>,
    ) -> BoxFuture<'a, Result<SelectedFiles, RepositoryError>> {
        Box::pin(self.limited(self.read_selected(commit, selection)))
    }

    /// Artifacts have no configurations of agents.
    fn list_agents<'a>(&'a self, _: &'a CommitId) -> BoxFuture<'a, Result<Vec<AgentName>, RepositoryError>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

async fn read(file: &Path) -> Result<Vec<u8>, RepositoryError> {
    let unreadable = |error: &dyn std::fmt::Display| invalid(format!("{}: {error}", file.display()));
    let path = file.to_owned();
    let content = spawn_blocking(move || files::read(&path)).await;
    content.map_err(|error| unreadable(&error))?.map_err(|error| unreadable(&error))
}

fn parse_manifest(manifest: &[u8]) -> Option<OciImageManifest> {
    serde_json::from_slice(manifest).ok()
}

/// Returns an annotation for people.
fn annotation(annotations: Option<&BTreeMap<String, String>>, key: &str) -> String {
    let text = annotations.and_then(|annotations| annotations.get(key)).map_or("", String::as_str);
    text.chars().filter(|c| !c.is_control()).take(MAX_ANNOTATION).collect()
}
