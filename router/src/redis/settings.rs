//! Where Redis is, and how it is spoken to. Files are read at each connection, so that new ones need no restart.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use redis::{ClientTlsConfig, ConnectionAddr, RedisConnectionInfo, TlsCertificates};

/// How a store reaches Redis, and what it is among the replicas.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The servers.
    pub servers: Servers,
    /// TLS to all of them.
    pub tls: Option<Tls>,
    /// Who kas is to them; without a name, Redis' default user.
    pub username: Option<String>,
    /// What proves it.
    pub password_file: Option<PathBuf>,
    /// The number of the database; a Cluster has 0 only.
    pub database: u16,
    /// What all keys begin with.
    pub prefix: String,
    /// Which replicas belong together; others that have the same prefix are refused.
    pub fleet: String,
    /// How long connecting may take, authentication included.
    pub dial_timeout: Duration,
    /// How long a command may take.
    pub response_timeout: Duration,
}

/// The servers.
#[derive(Clone, Debug)]
pub enum Servers {
    /// One.
    One(Address),
    /// One of several, which Sentinels name.
    Sentinel {
        /// The name that Sentinels know it by.
        master: String,
        /// Where the Sentinels are.
        sentinels: Vec<Address>,
        /// Their password, if they have one.
        password_file: Option<PathBuf>,
    },
    /// A Cluster.
    Cluster(
        /// Some of its nodes.
        Vec<Address>,
    ),
}

/// TLS to Redis.
#[derive(Clone, Debug)]
pub struct Tls {
    /// Whom to trust, instead of the system's authorities; PEM.
    pub ca_certificate_file: Option<PathBuf>,
    /// A certificate chain of our own and its key; PEM.
    pub pair: Option<(PathBuf, PathBuf)>,
}

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Host and port.
    Tcp(String, u16),
    /// A socket on this machine.
    Unix(PathBuf),
}

/// A text that is no address.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not the address of a Redis: write it like redis.example.com:6379 or unix:/run/redis.sock")]
pub struct InvalidAddress(String);

impl FromStr for Address {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        let invalid = || InvalidAddress(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            let path = Path::new(path);
            return path.is_absolute().then(|| Self::Unix(path.to_owned())).ok_or_else(invalid);
        }

        let (host, port) = text.rsplit_once(':').ok_or_else(invalid)?;
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = bracketed.unwrap_or(host);
        let strange = |c: char| c.is_whitespace() || c.is_control() || "/@[]".contains(c);
        let valid =
            !host.is_empty() && !host.contains(strange) && (bracketed.is_some() || !host.contains(':'));
        let port = port.parse().ok().filter(|port| *port > 0 && valid).ok_or_else(invalid)?;
        Ok(Self::Tcp(host.to_owned(), port))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Address {
    /// For the library, which speaks TLS only to hosts.
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

impl Settings {
    /// Who kas is, as the files say now.
    pub(super) fn credentials(&self) -> Result<RedisConnectionInfo, String> {
        let mut info = RedisConnectionInfo::default().set_db(self.database.into());
        if let Some(username) = &self.username {
            info = info.set_username(username);
        }
        if let Some(password) = secret(self.password_file.as_deref())? {
            info = info.set_password(password);
        }
        Ok(info)
    }

    /// What TLS is made of, as the files say now.
    pub(super) fn certificates(&self) -> Result<Option<TlsCertificates>, String> {
        let Some(tls) = &self.tls else {
            return Ok(None);
        };
        // The library takes the provider of the process. Fails if there is one already, which is good too.
        _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let root_cert = tls.ca_certificate_file.as_deref().map(read).transpose()?;
        let client_tls = match &tls.pair {
            Some((chain, key)) => Some(ClientTlsConfig { client_cert: read(chain)?, client_key: read(key)? }),
            None => None,
        };
        Ok(Some(TlsCertificates { client_tls, root_cert }))
    }
}

/// What a password file holds, without the line's end that editors add.
pub(super) fn secret(file: Option<&Path>) -> Result<Option<String>, String> {
    let Some(file) = file else {
        return Ok(None);
    };
    let text = String::from_utf8(read(file)?).map_err(|_| format!("{}: it is not text", file.display()))?;
    match text.trim_end_matches(['\r', '\n']) {
        "" => Err(format!("{}: it is empty", file.display())),
        secret => Ok(Some(secret.to_owned())),
    }
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    fs::read(file).map_err(|error| format!("{}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_reads_back_what_it_prints() {
        for good in ["redis:6379", "10.0.0.1:6379", "[fd00::1]:6379", "unix:/run/redis.sock"] {
            assert_eq!(good.parse::<Address>().unwrap().to_string(), good);
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
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_password_is_its_file_without_the_end_of_the_line() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("password");
        fs::write(&file, "s3cret word \n").unwrap();
        assert_eq!(secret(Some(&file)).unwrap().unwrap(), "s3cret word ");
        fs::write(&file, "\n").unwrap();
        assert!(secret(Some(&file)).unwrap_err().ends_with("password: it is empty"));
        assert!(secret(Some(&directory.path().join("none"))).unwrap_err().contains("none: No such file"));
        assert_eq!(secret(None).unwrap(), None);
    }
}
