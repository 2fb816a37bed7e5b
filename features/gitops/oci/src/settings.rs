//! The location of an artifact and the files with its credentials, validated.

mod reference;

use std::path::{Path, PathBuf};

use ::settings::ConfigError;
use git::{Reference as Version, RepositoryConfig};
use serde_saphyr::Spanned;

use self::reference::ArtifactReference;

/// The scheme of artifacts.
const SCHEME: &str = "oci://";
/// The longest tag.
const MAX_TAG: usize = 128;

/// An artifact: its location, its version and its credentials. Equal settings share one cache.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OciSettings {
    pub(crate) registry: String,
    pub(crate) repository: String,
    pub(crate) version: ArtifactVersion,
    pub(crate) credentials: Option<(String, PathBuf)>,
    pub(crate) ca_certificate_file: Option<PathBuf>,
}

/// The version of an artifact that is followed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ArtifactVersion {
    Tag(String),
    /// The hexadecimal digits of a SHA-256 digest.
    Digest(String),
}

/// A version of a project that an artifact cannot have. The author of the project's settings mends it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VersionError {
    /// The tag is not one of an artifact.
    #[error(
        "ref.tag: {0:?} is not the tag of an artifact, which has up to {MAX_TAG} characters: a-z, A-Z, 0-9, _, and not at the beginning \
         . and -"
    )]
    InvalidTag(String),
    /// The id of a commit has another length than the digest of an artifact.
    #[error("ref.commit must be the 64 digits of the digest of an artifact")]
    ShortDigest,
    /// Artifacts have no branches.
    #[error("an OCI artifact has no branches: write ref.tag, or the digest as ref.commit")]
    Branch,
}

impl OciSettings {
    /// Returns whether the URL of a section names an artifact.
    pub fn is_artifact(section: &RepositoryConfig) -> bool {
        section.url.value.starts_with(SCHEME)
    }

    /// Validates a section. `key` is its key in the file.
    ///
    /// # Errors
    ///
    /// The URL names no artifact, or a key is for Git repositories.
    pub fn new(file: &Path, key: &str, section: &RepositoryConfig) -> Result<Self, ConfigError> {
        let error = |name: &str, what: &str| {
            ConfigError::new(file, section.url.referenced, format!("{key}.{name}"), what.to_owned())
        };
        for (name, set) in [
            ("branch", section.branch.is_some()),
            ("directory", section.directory.is_some()),
            ("ssh_key_file", section.ssh_key_file.is_some()),
            ("ssh_known_hosts_file", section.ssh_known_hosts_file.is_some()),
        ] {
            if set {
                return Err(error(name, "this key is for Git repositories"));
            }
        }
        let path = |path: &Option<Spanned<PathBuf>>| path.as_ref().map(|path| path.value.clone());
        let credentials = match (&section.username, path(&section.password_file)) {
            (None, None) => None,
            (Some(user), Some(file)) => Some((user.clone(), file)),
            (None, Some(_)) => return Err(error("password_file", "username is missing")),
            (Some(_), None) => return Err(error("username", "password_file is missing")),
        };
        let reference = parse(&section.url.value).map_err(|what| error("url", what))?;
        let version = match &reference.digest {
            Some(digest) => ArtifactVersion::Digest(
                sha256_digits(digest).ok_or_else(|| error("url", "the digest must be sha256:<64 digits>"))?,
            ),
            None => ArtifactVersion::Tag(reference.tag.unwrap_or_else(|| "latest".to_owned())),
        };
        Ok(Self {
            registry: reference.registry,
            repository: reference.repository,
            version,
            credentials,
            ca_certificate_file: path(&section.ca_certificate_file),
        })
    }

    /// Returns the same artifact in the version that a project follows.
    ///
    /// # Errors
    ///
    /// The version is a branch, which artifacts do not have, or not a tag of an artifact.
    pub fn at(&self, version: &Version) -> Result<Self, VersionError> {
        let version = match version {
            Version::Default => self.version.clone(),
            Version::Tag(tag) if is_tag(tag) => ArtifactVersion::Tag(tag.clone()),
            Version::Tag(tag) => return Err(VersionError::InvalidTag(tag.clone())),
            // The digest of an artifact has as many digits as the id of a commit with SHA-256.
            Version::Commit(id) if id.as_str().len() == 64 => ArtifactVersion::Digest(id.as_str().to_owned()),
            Version::Commit(_) => return Err(VersionError::ShortDigest),
            Version::Branch(_) => return Err(VersionError::Branch),
        };
        Ok(Self { version, ..self.clone() })
    }

    /// Returns the host of the registry, with its port if the URL has one.
    pub fn server(&self) -> &str {
        &self.registry
    }

    /// Returns the host to which requests are sent.
    pub(crate) fn authority(&self) -> &str {
        // Docker Hub has the name in front of its artifacts only.
        if self.registry == "docker.io" { "index.docker.io" } else { &self.registry }
    }

    /// Returns the artifact for messages. It has no credentials.
    pub fn name(&self) -> String {
        let Self { registry, repository, .. } = self;
        match &self.version {
            ArtifactVersion::Tag(tag) => format!("{SCHEME}{registry}/{repository}:{tag}"),
            ArtifactVersion::Digest(digest) => format!("{SCHEME}{registry}/{repository}@sha256:{digest}"),
        }
    }

    /// Returns whether the registry is at this machine, where TLS protects nothing.
    pub(crate) fn is_local(&self) -> bool {
        let host = self.registry.rsplit_once(':').map_or(&*self.registry, |(host, _)| host);
        matches!(host, "localhost" | "127.0.0.1" | "[::1]")
    }
}

/// Parses a URL. A registry is always named: there is no default one.
fn parse(url: &str) -> Result<ArtifactReference, &'static str> {
    url.strip_prefix(SCHEME)
        .and_then(ArtifactReference::parse)
        .ok_or("write oci://registry/path:tag or oci://registry/path@sha256:<digest>")
}

/// Returns whether a text is a tag (OCI Distribution Specification, `<reference>` as a tag). The tag is a part of the path of requests.
fn is_tag(text: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    text.len() <= MAX_TAG
        && text.bytes().next().is_some_and(word)
        && text.bytes().all(|byte| word(byte) || matches!(byte, b'.' | b'-'))
}

/// Returns the digits of a SHA-256 digest.
pub(crate) fn sha256_digits(digest: &str) -> Option<String> {
    let digits = digest.strip_prefix("sha256:")?;
    let valid = digits.len() == 64 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    valid.then(|| digits.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Result<OciSettings, String> {
        let file = Path::new("kas.yaml");
        let section: RepositoryConfig = ::settings::parse(file, text).unwrap();
        OciSettings::new(file, "repository", &section).map_err(|error| error.to_string())
    }

    #[test]
    fn artifact_has_a_tag_or_a_digest() {
        let digest = "a".repeat(64);
        for (url, expected) in [
            ("oci://ghcr.example.com/org/app:v1".to_owned(), "oci://ghcr.example.com/org/app:v1".to_owned()),
            ("oci://ghcr.example.com/app".to_owned(), "oci://ghcr.example.com/app:latest".to_owned()),
            (
                format!("oci://localhost:5000/a@sha256:{digest}"),
                format!("oci://localhost:5000/a@sha256:{digest}"),
            ),
        ] {
            assert_eq!(settings(&format!("{{url: '{url}'}}")).unwrap().name(), expected);
        }
        for url in [
            "oci://",
            "oci://host",
            "oci://host.example.com/",
            "oci://noregistry/app:v1",
            "oci://user:secret@host.example.com/a",
            "oci://host.example.com/a?b",
            "oci://host.example.com/a@sha256:abc",
            "oci://host.example.com/UPPER",
        ] {
            let error = settings(&format!("{{url: '{url}'}}")).unwrap_err();
            assert!(error.contains("repository.url: ") && !error.contains("secret"), "{url}: {error}");
        }
    }

    #[test]
    fn key_of_git_is_refused_and_credentials_are_complete() {
        for (keys, expected) in [
            ("branch: main", "repository.branch: this key is for Git"),
            ("directory: a", "repository.directory: this key is for Git"),
            ("ssh_key_file: /k", "repository.ssh_key_file: this key is for Git"),
            ("username: me", "repository.username: password_file is missing"),
            ("password_file: /p", "repository.password_file: username is missing"),
        ] {
            let error = settings(&format!("{{url: 'oci://host.example.com/a', {keys}}}")).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn reference_that_is_no_tag_leads_to_no_other_repository() {
        let settings = settings("{url: 'oci://host.example.com/a:v1'}").unwrap();
        let long = "a".repeat(MAX_TAG + 1);
        for tag in
            ["%2e%2e/%2e%2e/other/manifests/x", "a/b", "..", ".a", "-a", "a?b", "a#b", "a@b", "ä", "", &long]
        {
            let error = settings.at(&Version::Tag(tag.to_owned())).unwrap_err().to_string();
            assert!(
                error.starts_with("ref.tag: ") && error.contains("is not the tag of an artifact"),
                "{error}"
            );
        }
        for tag in ["v1.2.3-rc.1", "_x", "A", &long[1..]] {
            assert!(settings.at(&Version::Tag(tag.to_owned())).is_ok(), "{tag}");
        }
    }

    #[test]
    fn version_of_a_project_replaces_that_of_the_url() {
        let settings = settings("{url: 'oci://host.example.com/a:v1'}").unwrap();
        let digest = "b".repeat(64);
        assert_eq!(settings.at(&Version::Default).unwrap(), settings);
        let tag = settings.at(&Version::Tag("v2".to_owned())).unwrap();
        assert_eq!(tag.name(), "oci://host.example.com/a:v2");
        let pinned = settings.at(&Version::Commit(digest.parse().unwrap())).unwrap();
        assert_eq!(pinned.name(), format!("oci://host.example.com/a@sha256:{digest}"));
        assert_eq!(settings.at(&Version::Branch("main".to_owned())), Err(VersionError::Branch));
        assert!(settings.at(&Version::Commit("b".repeat(40).parse().unwrap())).is_err());
    }
}
