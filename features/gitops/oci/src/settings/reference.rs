//! References to artifacts, in the grammar of github.com/distribution/reference.

use std::sync::LazyLock;

use regex::Regex;

/// The longest path of a repository.
const MAX_REPOSITORY: usize = 255;

static REFERENCE: LazyLock<Regex> = LazyLock::new(|| {
    let label = "[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?";
    let component = "[a-z0-9]+(?:(?:[._]|__|-*)[a-z0-9]+)*";
    let tag = "[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,127}";
    Regex::new(&format!(
        "^({label}(?:\\.{label})*(?::[0-9]+)?)/({component}(?:/{component})*)(?::({tag}))?(?:@([a-z0-9]+:[a-zA-Z0-9]+))?$"
    ))
    .expect("a valid pattern")
});

/// The parts of `registry/repository:tag@digest`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ArtifactReference {
    pub(super) registry: String,
    pub(super) repository: String,
    pub(super) tag: Option<String>,
    pub(super) digest: Option<String>,
}

impl ArtifactReference {
    /// Parses a reference whose registry is a domain, `localhost`, or has a port.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let parts = REFERENCE.captures(text)?;
        let part = |index| parts.get(index).map(|part| part.as_str().to_owned());
        let (registry, repository) = canonical(part(1)?, part(2)?);
        let is_named = registry.contains(['.', ':']) || registry == "localhost";
        (is_named && repository.len() <= MAX_REPOSITORY).then(|| Self {
            registry,
            repository,
            tag: part(3),
            digest: part(4),
        })
    }
}

/// Docker Hub has two names, and its official images have a path that references leave out.
fn canonical(registry: String, repository: String) -> (String, String) {
    if !matches!(&*registry, "docker.io" | "index.docker.io") {
        return (registry, repository);
    }
    let repository = if repository.contains('/') { repository } else { format!("library/{repository}") };
    ("docker.io".to_owned(), repository)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> Option<[String; 4]> {
        let ArtifactReference { registry, repository, tag, digest } = ArtifactReference::parse(text)?;
        Some([registry, repository, tag.unwrap_or_default(), digest.unwrap_or_default()])
    }

    #[test]
    fn reference_has_a_registry_and_a_repository() {
        for (text, expected) in [
            ("test.com/repo:tag", ["test.com", "repo", "tag", ""]),
            ("test:5000/repo", ["test:5000", "repo", "", ""]),
            ("test:5000/repo:Tag_1@sha256:ff", ["test:5000", "repo", "Tag_1", "sha256:ff"]),
            ("localhost/a__b/c--d/e.f", ["localhost", "a__b/c--d/e.f", "", ""]),
            ("xn--n3h.com/myimage:xn--n3h.com", ["xn--n3h.com", "myimage", "xn--n3h.com", ""]),
            ("docker.io/busybox", ["docker.io", "library/busybox", "", ""]),
            ("index.docker.io/a/b", ["docker.io", "a/b", "", ""]),
        ] {
            assert_eq!(parts(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn other_texts_are_no_references() {
        let long = format!("test.com/{}", "a".repeat(MAX_REPOSITORY + 1));
        for text in [
            "",
            "repo",
            "test/repo",
            "test.com",
            "test.com/",
            "test.com//a",
            "test.com/a/",
            "test.com/Repo",
            "test.com/a..b",
            "test.com/a___b",
            "test.com/../a",
            "-test.com/a",
            "test.com:/a",
            "test.com:x/a",
            "user@test.com/a",
            "user:secret@test.com/a",
            "test.com/a:",
            "test.com/a:.b",
            "test.com/a:ä",
            "test.com/a@",
            "test.com/a?b",
            "test.com/a b",
            "test.com/a\n",
            "test.com/a%2fb",
            &long,
        ] {
            assert_eq!(parts(text), None, "{text}");
        }
    }
}
