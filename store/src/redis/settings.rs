//! [`RedisSettings`]: the servers and how to connect to them. Files are read at each connection, so that a change needs
//! no restart.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use redis::{ClientTlsConfig, ConnectionAddr, RedisConnectionInfo, TlsCertificates};

use super::{RecordAuthenticator, UrlAuthenticator};

/// The settings of a [`RedisStore`](super::RedisStore).
#[derive(Clone, Debug)]
pub struct RedisSettings {
    /// The servers.
    pub servers: RedisServers,
    /// TLS to all servers; `None` is plain TCP.
    pub tls: Option<RedisTlsFiles>,
    /// The ACL user; `None` is Redis' default user.
    pub username: Option<String>,
    /// The file with the password of the user.
    pub password_file: Option<PathBuf>,
    /// The number of the database; a Cluster has only 0.
    pub database: u16,
    /// The prefix of all keys.
    pub prefix: String,
    /// The name of the fleet. A replica refuses a Redis where another fleet uses the same prefix.
    pub fleet: String,
    /// The time that connecting may take, authentication included.
    pub dial_timeout: Duration,
    /// The time that a command may take.
    pub response_timeout: Duration,
    /// Signs the URLs of replicas, and ignores heartbeats with other URLs. Without it, the URLs of all heartbeats are believed.
    pub urls: Option<Arc<dyn UrlAuthenticator>>,
    /// Signs the records that replicas act on, and ignores others. Without it, all records are believed.
    pub records: Option<Arc<dyn RecordAuthenticator>>,
}

/// The topology of the servers.
#[derive(Clone, Debug)]
pub enum RedisServers {
    /// A single server.
    Single(RedisAddress),
    /// One of several servers, which Sentinels name.
    Sentinel {
        /// The name of the master group in the configuration of the Sentinels.
        master: String,
        /// The addresses of the Sentinels.
        sentinels: Vec<RedisAddress>,
        /// The file with the password of the Sentinels, if they have one.
        password_file: Option<PathBuf>,
    },
    /// A Cluster.
    Cluster(
        /// The addresses of some of its nodes.
        Vec<RedisAddress>,
    ),
}

/// The files for TLS to Redis, in PEM.
#[derive(Clone, Debug)]
pub struct RedisTlsFiles {
    /// The trusted certificate authorities; `None` is those of the system.
    pub ca_certificate_file: Option<PathBuf>,
    /// The client certificate chain and its key.
    pub pair: Option<(PathBuf, PathBuf)>,
}

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisAddress {
    /// A host and a port.
    Tcp(String, u16),
    /// The absolute path of a Unix socket.
    Unix(PathBuf),
}

/// The error of a text that is not an address.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not the address of a Redis: write it like redis.example.com:6379 or unix:/run/redis.sock")]
pub struct RedisAddressError(String);

/// Settings that cannot be used. The operator mends them.
#[derive(Debug, thiserror::Error)]
pub enum RedisSettingsError {
    /// A file cannot be read.
    #[error("{}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// A password is not UTF-8.
    #[error("{}: it is not UTF-8", .0.display())]
    NotUtf8(PathBuf),
    /// A file has no password.
    #[error("{}: it is empty", .0.display())]
    Empty(PathBuf),
    /// TLS goes to hosts only.
    #[error("{0}: TLS needs a host and a port")]
    TlsToSocket(RedisAddress),
}

impl FromStr for RedisAddress {
    type Err = RedisAddressError;

    fn from_str(text: &str) -> Result<Self, RedisAddressError> {
        let invalid = || RedisAddressError(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            let path = Path::new(path);
            return path.is_absolute().then(|| Self::Unix(path.to_owned())).ok_or_else(invalid);
        }

        let (host, port) = text.rsplit_once(':').ok_or_else(invalid)?;
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = bracketed.unwrap_or(host);
        let forbidden = |c: char| c.is_whitespace() || c.is_control() || "/@[]".contains(c);
        let valid =
            !host.is_empty() && !host.contains(forbidden) && (bracketed.is_some() || !host.contains(':'));
        let port = port.parse().ok().filter(|port| *port > 0 && valid).ok_or_else(invalid)?;
        Ok(Self::Tcp(host.to_owned(), port))
    }
}

impl fmt::Display for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl RedisAddress {
    /// Converts the address for the library, which supports TLS only to hosts.
    pub(super) fn connection(&self, tls: bool) -> ConnectionAddr {
        match self.clone() {
            Self::Tcp(host, port) if tls => {
                ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
            }
            Self::Tcp(host, port) => ConnectionAddr::Tcp(host, port),
            Self::Unix(path) => ConnectionAddr::Unix(path),
        }
    }
}

impl RedisSettings {
    /// Reads the files and returns the database, user and password.
    pub(super) fn credentials(&self) -> Result<RedisConnectionInfo, RedisSettingsError> {
        let mut info = RedisConnectionInfo::default().set_db(self.database.into());
        if let Some(username) = &self.username {
            info = info.set_username(username);
        }
        if let Some(password) = read_password(self.password_file.as_deref())? {
            info = info.set_password(password);
        }
        Ok(info)
    }

    /// Reads the files and returns the certificates, or `None` without TLS.
    pub(super) fn certificates(&self) -> Result<Option<TlsCertificates>, RedisSettingsError> {
        let Some(tls) = &self.tls else {
            return Ok(None);
        };
        // The library uses the default provider of the process. An error means that there is one already.
        _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let root_cert = tls.ca_certificate_file.as_deref().map(read).transpose()?;
        let client_tls = match &tls.pair {
            Some((chain, key)) => Some(ClientTlsConfig { client_cert: read(chain)?, client_key: read(key)? }),
            None => None,
        };
        Ok(Some(TlsCertificates { client_tls, root_cert }))
    }
}

/// Reads a password file and removes the newline at its end, which editors add.
pub(super) fn read_password(file: Option<&Path>) -> Result<Option<String>, RedisSettingsError> {
    let Some(file) = file else {
        return Ok(None);
    };
    let text = String::from_utf8(read(file)?).map_err(|_| RedisSettingsError::NotUtf8(file.to_owned()))?;
    match text.trim_end_matches(['\r', '\n']) {
        "" => Err(RedisSettingsError::Empty(file.to_owned())),
        password => Ok(Some(password.to_owned())),
    }
}

fn read(file: &Path) -> Result<Vec<u8>, RedisSettingsError> {
    files::read(file).map_err(|error| RedisSettingsError::Unreadable { path: file.to_owned(), error })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn address_parses_what_it_displays() {
        for good in ["redis:6379", "10.0.0.1:6379", "[fd00::1]:6379", "unix:/run/redis.sock"] {
            assert_eq!(good.parse::<RedisAddress>().unwrap().to_string(), good);
        }
        for bad in [
            "redis",
            ":6379",
            "redis:0",
            "redis:65536",
            "fd00::1:6379",
            "redis://redis:6379",
            "u@redis:6379",
            "unix:redis.sock",
            "a b:1",
        ] {
            assert!(bad.parse::<RedisAddress>().is_err(), "{bad}");
        }
    }

    #[test]
    fn password_is_the_file_without_its_newline() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("password");
        fs::write(&file, "s3cret word \n").unwrap();
        assert_eq!(read_password(Some(&file)).unwrap().unwrap(), "s3cret word ");
        fs::write(&file, "\n").unwrap();
        assert!(read_password(Some(&file)).unwrap_err().to_string().ends_with("password: it is empty"));
        assert!(
            read_password(Some(&directory.path().join("none")))
                .unwrap_err()
                .to_string()
                .contains("none: No such file")
        );
        assert_eq!(read_password(None).unwrap(), None);
    }
}
