//! An artifact of a registry as a repository.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use git::{Commit, CommitId, FileLimits, FileSelection, Repository, RepositoryError, SelectedFiles};
use outbound::AddressPolicy;
use proto::AgentName;
use serde::Deserialize;
use tokio::{task::spawn_blocking, time::timeout};

use crate::{
    OciSettings,
    registry::{RegistryClient, RegistryError},
    settings::{ArtifactVersion, sha256_digits},
    unpack::{Layer, LayerForm, unpack},
};

/// The time for one call.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The most layers of an artifact.
const MAX_LAYERS: usize = 1000;
/// The annotation with the version of the sources.
const REVISION: &str = "org.opencontainers.image.revision";
/// The annotation with the name of a file.
const TITLE: &str = "org.opencontainers.image.title";
/// The longest annotation that is shown, in characters.
const MAX_ANNOTATION: usize = 200;

/// An artifact of a registry. Its commit is the digest of its manifest.
#[derive(Debug)]
pub struct OciRepository {
    settings: OciSettings,
    /// The rules for servers that the registry names.
    addresses: AddressPolicy,
    #[expect(
        clippy::disallowed_types,
        reason = "agents that read the same artifact wait for one exchange, which has a time limit"
    )]
    last: tokio::sync::Mutex<Option<(CommitId, Arc<Artifact>)>>,
}

/// The part of a manifest that kas reads. Descriptors may have `urls`, which kas does not follow.
#[derive(Deserialize)]
struct Manifest {
    layers: Vec<Descriptor>,
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    media_type: String,
    digest: String,
    annotations: Option<BTreeMap<String, String>>,
}

/// An artifact that was fetched.
#[derive(Debug)]
struct Artifact {
    layers: Vec<Layer>,
    revision: String,
}

impl OciRepository {
    /// Returns a repository that has no connection yet. `addresses` are the rules for servers that the registry names.
    pub fn new(settings: OciSettings, addresses: AddressPolicy) -> Self {
        Self { settings, addresses, last: Default::default() }
    }

    /// Returns a client with the credentials as their files have them now.
    async fn client(&self) -> Result<RegistryClient, RepositoryError> {
        let roots = match &self.settings.ca_certificate_file {
            Some(file) => {
                let roots = tls::pem_roots(&read(file).await?);
                if roots.is_empty() {
                    return Err(invalid(format!("{}: the file has no certificate", file.display())));
                }
                roots
            }
            None => spawn_blocking(tls::system_roots)
                .await
                .map_err(|_| invalid("the reader of certificates has panicked".to_owned()))?,
        };
        let credentials = match &self.settings.credentials {
            None => None,
            Some((user, file)) => {
                let password = String::from_utf8(read(file).await?)
                    .map_err(|_| invalid(format!("{} is not text", file.display())))?;
                Some((user.clone(), password.trim().into()))
            }
        };
        let authority = self.settings.authority().parse();
        Ok(RegistryClient {
            registry: authority.map_err(|_| invalid(format!("{} is no host", self.settings.registry)))?,
            repository: self.settings.repository.clone(),
            is_local: self.settings.is_local(),
            tls: Arc::new(tls::client_config(roots, &[b"http/1.1"])),
            credentials,
            addresses: self.addresses.clone(),
            authorization: None,
        })
    }

    async fn look_up(&self) -> Result<Option<Commit>, RepositoryError> {
        let digest = match &self.settings.version {
            ArtifactVersion::Digest(digest) => format!("sha256:{digest}"),
            ArtifactVersion::Tag(tag) => {
                self.client().await?.manifest_digest(tag).await.map_err(|error| self.failed(&error))?
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
        let mut client = self.client().await?;
        let manifest = client.manifest(&format!("sha256:{id}")).await.map_err(|error| self.failed(&error))?;
        let name = self.settings.name();
        let manifest: Manifest = serde_json::from_slice(&manifest).map_err(|_| {
            refused(format!("{name} is not an artifact with layers, but an index or an old form"))
        })?;
        if manifest.layers.len() > MAX_LAYERS {
            return Err(refused(format!("{name} has more than {MAX_LAYERS} layers")));
        }
        let (mut layers, mut left) = (Vec::new(), limits.bytes);
        for descriptor in &manifest.layers {
            let title = descriptor.annotations.as_ref().and_then(|annotations| annotations.get(TITLE));
            let form = LayerForm::of(&descriptor.media_type, title.map(String::as_str)).ok_or_else(|| {
                let media_type = descriptor.media_type.escape_debug();
                refused(format!(
                    "{name} has a layer of the type {media_type}, which is neither an archive nor a file"
                ))
            })?;
            if sha256_digits(&descriptor.digest).is_none() {
                return Err(refused(format!("{name}: a layer has a digest that is not SHA-256")));
            }
            let content = client.blob(&descriptor.digest, left).await.map_err(|error| match error {
                RegistryError::TooLarge(max_bytes) => {
                    RepositoryError::TooLarge { path: name.clone(), max_bytes }
                }
                error => self.failed(&error),
            })?;
            left -= content.len();
            layers.push(Layer { form, content });
        }
        Ok(Artifact { layers, revision: annotation(manifest.annotations.as_ref(), REVISION) })
    }

    fn failed(&self, error: &RegistryError) -> RepositoryError {
        let what: String = error.to_string().chars().take(500).collect();
        invalid(format!("{}: {what}", self.settings.name()))
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

fn invalid(what: String) -> RepositoryError {
    RepositoryError::Unavailable(what)
}

fn refused(what: String) -> RepositoryError {
    RepositoryError::Refused(what)
}

/// Returns an annotation for people.
fn annotation(annotations: Option<&BTreeMap<String, String>>, key: &str) -> String {
    let text = annotations.and_then(|annotations| annotations.get(key)).map_or("", String::as_str);
    text.chars().filter(|c| !c.is_control()).take(MAX_ANNOTATION).collect()
}
