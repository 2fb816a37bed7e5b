//! The location of a Git repository and the files with its credentials, validated.

use std::path::{Path, PathBuf};

use serde_saphyr::Spanned;
use settings::ConfigError;

use super::AGENTS_DIRECTORY;
use crate::{Reference, RepositoryConfig};

/// A repository: its location, its branch and its credentials. Equal settings share one cache.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RepositorySettings {
    /// The location.
    pub location: Location,
    /// The version that is followed.
    pub reference: Reference,
    /// The directory that contains a directory for each agent, without slashes at its ends.
    pub directory: String,
}

/// The location of a repository.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Location {
    /// A directory of this machine.
    Local(PathBuf),
    /// A server that speaks Git's HTTP protocol with TLS.
    Https {
        /// The URL, without credentials.
        url: String,
        /// The user name and the file of the password.
        credentials: Option<(String, PathBuf)>,
        /// The certificates to trust instead of the system's.
        ca_certificate_file: Option<PathBuf>,
    },
    /// A server that is reached with the program `ssh`.
    Ssh {
        /// User and host, like `git@example.com`.
        destination: String,
        /// The port.
        port: Option<u16>,
        /// The path of the repository at the server.
        path: String,
        /// The private key.
        key_file: Option<PathBuf>,
        /// The host keys.
        known_hosts_file: Option<PathBuf>,
    },
}

impl RepositorySettings {
    /// Validates a section. `key` is its key in the file.
    ///
    /// # Errors
    ///
    /// The URL has another scheme or a password, or the program of its scheme is missing, or a key does not belong to its scheme.
    pub fn new(file: &Path, key: &str, section: &RepositoryConfig) -> Result<Self, ConfigError> {
        let error = |name: &str, what: String| {
            ConfigError::new(file, section.url.referenced, format!("{key}.{name}"), what)
        };
        let path = |path: &Option<Spanned<PathBuf>>| path.as_ref().map(|path| path.value.clone());
        let url = Url::parse(&section.url.value).map_err(|what| error("url", what.to_owned()))?;
        let unused = |name: &str, set: bool, scheme: &str| {
            if set { Err(error(name, format!("this key is for repositories with {scheme}"))) } else { Ok(()) }
        };
        let (is_https, is_ssh) = (matches!(url, Url::Https(_)), matches!(url, Url::Ssh { .. }));
        unused("username", section.username.is_some() && !is_https, "https")?;
        unused("password_file", section.password_file.is_some() && !is_https, "https")?;
        unused("ca_certificate_file", section.ca_certificate_file.is_some() && !is_https, "https")?;
        unused("ssh_key_file", section.ssh_key_file.is_some() && !is_ssh, "ssh")?;
        unused("ssh_known_hosts_file", section.ssh_known_hosts_file.is_some() && !is_ssh, "ssh")?;
        let location = match url {
            Url::Local(path) => Location::Local(path),
            Url::Https(url) => {
                let credentials = match (&section.username, path(&section.password_file)) {
                    (_, None) if section.username.is_some() => {
                        return Err(error("username", "password_file is missing".to_owned()));
                    }
                    (_, None) => None,
                    // Servers accept any user name with a token.
                    (user, Some(file)) => Some((user.clone().unwrap_or_else(|| "git".to_owned()), file)),
                };
                Location::Https { url, credentials, ca_certificate_file: path(&section.ca_certificate_file) }
            }
            Url::Ssh { .. } if !has_ssh() => {
                let what =
                    "the program ssh is not installed, and the image of kas does not have it: use https://";
                return Err(error("url", what.to_owned()));
            }
            Url::Ssh { destination, port, path: repository } => Location::Ssh {
                destination,
                port,
                path: repository,
                key_file: path(&section.ssh_key_file),
                known_hosts_file: path(&section.ssh_known_hosts_file),
            },
        };
        let directory = section.directory.as_ref().map_or(AGENTS_DIRECTORY, |directory| &directory.value);
        let directory = directory.trim_matches('/');
        if directory.split('/').any(|segment| matches!(segment, "" | "." | "..")) {
            return Err(error("directory", "it must be a path in the repository, like agents".to_owned()));
        }
        let branch = section.branch.as_deref();
        if branch.is_some_and(|branch| !is_branch(branch)) {
            return Err(error("branch", "it is not the name of a branch".to_owned()));
        }
        Ok(Self { location, reference: Reference::of_branch(branch), directory: directory.to_owned() })
    }

    /// Returns the path of the Git project, like `group/project`, if the repository is at a server.
    pub fn project(&self) -> Option<&str> {
        let path = match &self.location {
            Location::Local(_) => return None,
            Location::Https { url, .. } => url.strip_prefix("https://")?.split_once('/')?.1,
            Location::Ssh { path, .. } => path,
        };
        let path = path.trim_matches('/');
        Some(path.strip_suffix(".git").unwrap_or(path))
    }

    /// Returns the host of the server, with its port if the URL has one, or `None` for a repository of this machine.
    pub fn server(&self) -> Option<&str> {
        match &self.location {
            Location::Local(_) => None,
            Location::Https { url, .. } => url.strip_prefix("https://")?.split('/').next(),
            Location::Ssh { destination, .. } => destination.rsplit('@').next(),
        }
    }

    /// Returns the location for messages. It has no credentials.
    pub fn name(&self) -> String {
        match &self.location {
            Location::Local(path) => path.display().to_string(),
            Location::Https { url, .. } => url.clone(),
            Location::Ssh { destination, path, .. } => format!("{destination}:{path}"),
        }
    }
}

/// Returns true if a directory of `PATH` has the program `ssh`. The images of kas have none.
fn has_ssh() -> bool {
    std::env::var_os("PATH")
        .is_some_and(|paths| std::env::split_paths(&paths).any(|directory| directory.join("ssh").is_file()))
}

/// Returns true for a name that is neither an option of a program nor an expression of Git (`git check-ref-format`).
fn is_branch(name: &str) -> bool {
    let inner = name.bytes().all(|b| b.is_ascii_graphic() && !b"~^:?*[\\".contains(&b));
    let segments = || name.split('/');
    !name.is_empty()
        && name.len() <= 255
        && inner
        && !name.contains("..")
        && !name.contains("@{")
        && !name.starts_with('-')
        && segments().all(|part| !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock"))
        && !name.ends_with('.')
}

/// The forms of a URL.
#[derive(Debug, PartialEq, Eq)]
enum Url {
    Local(PathBuf),
    Https(String),
    Ssh { destination: String, port: Option<u16>, path: String },
}

const FORMS: &str = "write an absolute path, https://host/path, ssh://user@host/path or user@host:path";

impl Url {
    fn parse(text: &str) -> Result<Self, &'static str> {
        if text.bytes().any(|byte| !byte.is_ascii_graphic()) {
            return Err("it has a character that is not visible ASCII");
        }
        if let Some(rest) = text.strip_prefix("https://") {
            let (authority, path) = rest.split_once('/').ok_or(FORMS)?;
            if authority.contains('@') {
                return Err("credentials in a URL appear in logs: write username and password_file");
            }
            let uri: http::Uri = text.parse().map_err(|_| FORMS)?;
            if uri.host().is_none_or(str::is_empty) || path.is_empty() || path.contains(['?', '#']) {
                return Err(FORMS);
            }
            return Ok(Self::Https(text.to_owned()));
        }
        if let Some(rest) = text.strip_prefix("ssh://") {
            let (authority, path) = rest.split_once('/').ok_or(FORMS)?;
            let (destination, port) = match authority.rsplit_once(':') {
                Some((host, port)) => (host, Some(port.parse().map_err(|_| FORMS)?)),
                None => (authority, None),
            };
            return Self::ssh(destination, port, format!("/{path}"));
        }
        if text.starts_with("http://") {
            return Err("a repository decides what agentk allows, so that it needs https or ssh");
        }
        if let Some(path) = text.strip_prefix("file://").or_else(|| text.starts_with('/').then_some(text)) {
            return if path.starts_with('/') { Ok(Self::Local(path.into())) } else { Err(FORMS) };
        }
        match text.split_once(':') {
            Some((destination, path)) if !destination.contains('/') && !path.starts_with("//") => {
                Self::ssh(destination, None, path.to_owned())
            }
            _ => Err(FORMS),
        }
    }

    /// Both texts become arguments: of `ssh`, and of a shell at the server.
    fn ssh(destination: &str, port: Option<u16>, path: String) -> Result<Self, &'static str> {
        let is_host = |b: u8| b.is_ascii_alphanumeric() || b"@.-_".contains(&b);
        let is_path = |b: u8| b.is_ascii_alphanumeric() || b"/.-_~+".contains(&b);
        let plain = !destination.is_empty()
            && !destination.starts_with('-')
            && !destination.contains("@-")
            && destination.bytes().all(is_host)
            && !path.trim_matches('/').is_empty()
            && !path.starts_with('-')
            && path.bytes().all(is_path);
        if !plain {
            return Err(FORMS);
        }
        Ok(Self::Ssh { destination: destination.to_owned(), port, path })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_is_a_path_or_has_one_of_two_schemes() {
        let ssh = |destination: &str, port, path: &str| Url::Ssh {
            destination: destination.to_owned(),
            port,
            path: path.to_owned(),
        };
        for (text, expected) in [
            ("/srv/git/a.git", Url::Local("/srv/git/a.git".into())),
            ("file:///srv/git/a.git", Url::Local("/srv/git/a.git".into())),
            ("https://git.example.com/a/b.git", Url::Https("https://git.example.com/a/b.git".to_owned())),
            ("ssh://git@example.com:2222/a/b.git", ssh("git@example.com", Some(2222), "/a/b.git")),
            ("ssh://example.com/~me/b", ssh("example.com", None, "/~me/b")),
            ("git@example.com:a/b.git", ssh("git@example.com", None, "a/b.git")),
        ] {
            assert_eq!(Url::parse(text), Ok(expected), "{text}");
        }
        for text in [
            "",
            "a/b",
            "https://host",
            "https:///a",
            "https://user:secret@host/a",
            "https://host/a?b",
            "http://host/a",
            "git://host/a",
            "ext::sh -c true",
            "ext::sh",
            "ssh://-oProxyCommand=true/a",
            "ssh://user@-oProxyCommand=true/a",
            "-oProxyCommand=true:a",
            "host:-a",
            "host:a;true",
            "host:a$(true)",
            "ssh://host:port/a",
            "file://host/a",
            "/a\nb",
        ] {
            assert!(Url::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn key_of_another_scheme_is_refused() {
        let parse = |text: &str| {
            let file = Path::new("kas.yaml");
            let section: RepositoryConfig = settings::parse(file, text).unwrap();
            RepositorySettings::new(file, "agent.configuration.repository", &section)
                .map_err(|error| error.to_string())
        };
        let settings = parse("{url: 'https://host/a/b.git', password_file: /p}").unwrap();
        assert_eq!((settings.project(), &*settings.directory), (Some("a/b"), ".gitlab/agents"));
        assert_eq!(settings.server(), Some("host"));
        assert_eq!(parse("{url: 'me@host.example.com:a/b'}").unwrap().server(), Some("host.example.com"));
        assert_eq!(parse("{url: /a}").unwrap().server(), None);
        assert_eq!(parse("{url: /a, directory: /agents/}").unwrap().directory, "agents");
        for (text, expected) in [
            (
                "{url: /a, password_file: /p}",
                "repository.password_file: this key is for repositories with https",
            ),
            ("{url: 'git@host:a', username: me}", "repository.username: this key is for"),
            ("{url: 'https://host/a', ssh_key_file: /k}", "repository.ssh_key_file: this key is for"),
            ("{url: 'https://host/a', username: me}", "password_file is missing"),
            ("{url: 'https://u:p@host/a'}", "kas.yaml:1:7: agent.configuration.repository.url: credentials"),
            ("{url: /a, directory: a/../b}", "repository.directory: it must be a path"),
            ("{url: /a, directory: ''}", "repository.directory: it must be a path"),
            ("{url: /a, branch: '-x'}", "repository.branch: it is not the name"),
            ("{url: /a, branch: 'main:x'}", "repository.branch: it is not the name"),
            ("{url: /a, branch: a//b}", "repository.branch: it is not the name"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}\n gave {error}");
            assert!(!error.contains("u:p"), "{error}");
        }
    }
}
