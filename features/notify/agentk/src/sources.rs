//! The URLs of repositories in the cluster, compared with the project of an event.

use proto::notify::{ProjectEvent, is_project_path};

/// A repository by its URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RepositoryUrl {
    /// The host without the port, in lower case.
    host: String,
    /// The path without `.git`.
    pub(super) project: String,
}

impl RepositoryUrl {
    /// Parses a URL, or the form `user@host:path` of SSH. Returns `None` for anything else.
    pub(super) fn parse(url: &str) -> Option<Self> {
        let (authority, path) = match url.split_once("://") {
            Some((_, rest)) => rest.split_once('/')?,
            None => url.split_once(':')?,
        };
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let host = host.split_once(':').map_or(host, |(host, _)| host);
        let path = path.trim_matches('/');
        let project = path.strip_suffix(".git").unwrap_or(path);
        let valid = !host.is_empty() && is_project_path(project);
        valid.then(|| Self { host: host.to_ascii_lowercase(), project: project.to_owned() })
    }

    /// Returns whether an event is about this repository. Without a URL in the event, only the path is compared.
    pub(super) fn matches(&self, event: &ProjectEvent) -> bool {
        let mut known = event.fields().urls.iter().filter_map(|url| Self::parse(url)).peekable();
        match known.peek() {
            None => self.project == event.project(),
            Some(_) => known.any(|known| known == *self),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use proto::notify::ProjectEventFields;

    use super::*;

    fn event(urls: &[&str]) -> ProjectEvent {
        let fields = ProjectEventFields {
            id: "e-1".to_owned(),
            sequence: 1,
            project: "group/shop".to_owned(),
            reference: None,
            before: None,
            after: None,
            urls: urls.iter().copied().map(str::to_owned).collect(),
            time: SystemTime::UNIX_EPOCH,
        };
        fields.try_into().unwrap()
    }

    #[test]
    fn forms_of_a_url_are_the_same_repository() {
        let expected =
            RepositoryUrl { host: "gitlab.example.com".to_owned(), project: "group/shop".to_owned() };
        for url in [
            "https://gitlab.example.com/group/shop.git",
            "https://gitlab.example.com/group/shop",
            "https://user:token@GitLab.example.com:8443/group/shop.git/",
            "ssh://git@gitlab.example.com:2222/group/shop.git",
            "git@gitlab.example.com:group/shop.git",
            "oci://gitlab.example.com/group/shop",
        ] {
            assert_eq!(RepositoryUrl::parse(url).as_ref(), Some(&expected), "{url}");
        }
        for url in ["", "shop", "https://gitlab.example.com", "https:///group/shop", "https://a/group shop"] {
            assert_eq!(RepositoryUrl::parse(url), None, "{url}");
        }
    }

    #[test]
    fn event_matches_by_its_urls_or_else_by_the_path() {
        let repository = RepositoryUrl::parse("git@gitlab.example.com:group/shop.git").unwrap();
        assert!(repository.matches(&event(&[])));
        assert!(repository.matches(&event(&["https://x/y", "https://gitlab.example.com/group/shop.git"])));
        assert!(!repository.matches(&event(&["https://other.example.com/group/shop.git"])));
        let other = RepositoryUrl::parse("https://gitlab.example.com/group/other").unwrap();
        assert!(!other.matches(&event(&[])));
    }
}
