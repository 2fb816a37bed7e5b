//! Section `redis`: the directory that all replicas share.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_saphyr::Spanned;
use settings::{ConfigError, KeyLocations, Timeout, Within};
use store::redis::{RedisAddress, RedisServers, RedisSettings, RedisTlsFiles};

use kas_core::gitlab_key::GitLabKey;

/// The message for a certificate without its key, and for a key without its certificate.
const TOGETHER: &str = "certificate_file and key_file go together, and this one is missing";

/// The longest key prefix and the longest fleet name.
const MAX_NAME: usize = 64;

/// The pattern of a host and a port, or of a socket, for the JSON Schema.
const REDIS_ADDRESS: &str = "^((unix:)?/.+|.+:[0-9]{1,5})$";

/// Section `redis`. Names one of `server`, `sentinel` and `cluster`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("oneOf" = [{"required": ["server"]}, {"required": ["sentinel"]}, {"required": ["cluster"]}]))]
pub struct RedisConfig {
    /// One server.
    #[serde(default)]
    pub server: Option<RedisServerConfig>,
    /// Servers that are found through Sentinels.
    #[serde(default)]
    pub sentinel: Option<RedisSentinel>,
    /// A Redis Cluster.
    #[serde(default)]
    pub cluster: Option<RedisCluster>,
    /// The kind of the addresses. Without it, each address has its own.
    #[serde(default)]
    pub network: Option<RedisNetwork>,
    /// The user name of kas. Without it, the default user of Redis.
    #[serde(default)]
    pub username: Option<String>,
    /// The file with the password.
    #[serde(default)]
    #[schemars(with = "Option<PathBuf>")]
    pub password_file: Option<Spanned<PathBuf>>,
    /// The number of the database.
    #[serde(default, with = "Within::<0, 65_535>")]
    pub database_index: u16,
    /// TLS for all servers.
    #[serde(default)]
    pub tls: RedisTls,
    /// The prefix of all keys.
    #[serde(default = "key_prefix", deserialize_with = "name")]
    #[schemars(length(min = 1, max = MAX_NAME), regex(pattern = "^[A-Za-z0-9_.:/-]+$"))]
    pub key_prefix: String,
    /// The name of the fleet: replicas with the same name belong together.
    #[serde(default = "fleet", deserialize_with = "name")]
    #[schemars(length(min = 1, max = MAX_NAME), regex(pattern = "^[A-Za-z0-9_.:/-]+$"))]
    pub fleet: String,
    /// The time for connecting.
    #[serde(default = "dial_timeout", with = "Timeout")]
    pub dial_timeout: Duration,
    /// The time for a command.
    #[serde(default = "response_timeout", with = "Timeout")]
    pub response_timeout: Duration,
    /// If true, the replica is not ready before its first connection to Redis.
    #[serde(default)]
    pub wait_at_start: bool,
    /// Ignored: time for a command of GitLab's kas.
    #[serde(default)]
    pub write_timeout: GitLabKey,
    /// Ignored: time for a response to GitLab's kas.
    #[serde(default)]
    pub read_timeout: GitLabKey,
    /// Ignored: time after which GitLab's kas closes idle connections.
    #[serde(default)]
    pub idle_timeout: GitLabKey,
    /// Ignored: most connections of GitLab's kas.
    #[serde(default)]
    pub pool_size: GitLabKey,
}

/// The kind of the addresses of Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RedisNetwork {
    /// Hosts and ports.
    Tcp,
    /// Unix sockets.
    Unix,
}

/// Section `redis.server`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RedisServerConfig {
    /// The address of the server.
    #[serde(deserialize_with = "address")]
    #[schemars(with = "String", regex(pattern = REDIS_ADDRESS))]
    pub address: RedisAddress,
}

/// Section `redis.sentinel`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RedisSentinel {
    /// The name of the servers in the configuration of the Sentinels.
    pub master_name: String,
    /// The addresses of the Sentinels.
    #[serde(deserialize_with = "addresses")]
    #[schemars(with = "Vec<String>", length(min = 1), inner(regex(pattern = REDIS_ADDRESS)))]
    pub addresses: Vec<RedisAddress>,
    /// The file with the password of the Sentinels.
    #[serde(default)]
    #[schemars(with = "Option<PathBuf>")]
    pub sentinel_password_file: Option<Spanned<PathBuf>>,
    /// TLS for the Sentinels, which must be that of `redis.tls`.
    #[serde(default)]
    pub(super) tls: Option<RedisTls>,
}

/// Section `redis.cluster`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RedisCluster {
    /// The addresses of some of its nodes.
    #[serde(deserialize_with = "addresses")]
    #[schemars(with = "Vec<String>", length(min = 1), inner(regex(pattern = REDIS_ADDRESS)))]
    pub addresses: Vec<RedisAddress>,
}

/// Section `redis.tls`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("dependencies" = {"certificate_file": ["key_file"], "key_file": ["certificate_file"]}))]
pub struct RedisTls {
    /// If true, connections use TLS.
    pub enabled: bool,
    /// The certificate chain of kas (PEM).
    #[schemars(with = "Option<PathBuf>")]
    pub certificate_file: Option<Spanned<PathBuf>>,
    /// The private key of kas (PEM).
    #[schemars(with = "Option<PathBuf>")]
    pub key_file: Option<Spanned<PathBuf>>,
    /// The authority of the servers (PEM), in place of those of the system.
    #[schemars(with = "Option<PathBuf>")]
    pub ca_certificate_file: Option<Spanned<PathBuf>>,
}

impl RedisConfig {
    /// Iterates over the paths of the section.
    pub fn paths(&mut self) -> impl Iterator<Item = &mut Spanned<PathBuf>> {
        let sentinels = self.sentinel.as_mut().map(|sentinel| &mut sentinel.sentinel_password_file);
        let tls = &mut self.tls;
        let files = [
            &mut self.password_file,
            &mut tls.certificate_file,
            &mut tls.key_file,
            &mut tls.ca_certificate_file,
        ];
        files.into_iter().chain(sentinels).flatten()
    }

    /// Returns whether the Sentinels have no TLS settings of their own, or those of the servers.
    pub fn sentinel_has_tls_of_servers(&self) -> bool {
        let own = self.sentinel.as_ref().and_then(|sentinel| sentinel.tls.as_ref());
        own.is_none_or(|own| own.files() == self.tls.files())
    }

    /// Returns an error if an address is not of the configured kind.
    fn check_network(&self) -> Result<(), String> {
        let addresses = self.server.iter().map(|server| &server.address);
        let addresses = addresses.chain(self.sentinel.iter().flat_map(|sentinel| &sentinel.addresses));
        for address in addresses.chain(self.cluster.iter().flat_map(|cluster| &cluster.addresses)) {
            match (self.network, address) {
                (Some(RedisNetwork::Tcp), RedisAddress::Unix(_)) => {
                    return Err(format!("{address} is a socket: set this key to unix, or remove it"));
                }
                (Some(RedisNetwork::Unix), RedisAddress::Tcp(..)) => {
                    return Err(format!("{address} is not a socket: set this key to tcp, or remove it"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the settings of the store, after reading the files of the section. `file` and `keys` are for errors.
    pub fn settings(&self, file: &Path, keys: &KeyLocations) -> Result<RedisSettings, ConfigError> {
        let wrong = |what: String| ConfigError::about(file, keys, "redis", what);
        let network = |what| ConfigError::about(file, keys, "redis.network", what);
        self.check_network().map_err(network)?;
        let servers = match (&self.server, &self.sentinel, &self.cluster) {
            (Some(server), None, None) => RedisServers::Single(server.address.clone()),
            (None, Some(sentinel), None) => RedisServers::Sentinel {
                master: sentinel.master_name.clone(),
                sentinels: sentinel.addresses.clone(),
                password_file: path(sentinel.sentinel_password_file.as_ref()),
            },
            (None, None, Some(_)) if self.database_index > 0 => {
                let what = "a Cluster has only database 0";
                return Err(ConfigError::about(file, keys, "redis.database_index", what));
            }
            (None, None, Some(cluster)) => RedisServers::Cluster(cluster.addresses.clone()),
            (None, None, None) => {
                return Err(wrong("one of server, sentinel and cluster is required".to_owned()));
            }
            _ => return Err(wrong("server, sentinel and cluster exclude each other".to_owned())),
        };
        let settings = RedisSettings {
            servers,
            tls: self
                .tls
                .settings()
                .map_err(|(key, what)| ConfigError::about(file, keys, format!("redis.tls.{key}"), what))?,
            username: self.username.clone(),
            password_file: path(self.password_file.as_ref()),
            database: self.database_index,
            prefix: self.key_prefix.clone(),
            fleet: self.fleet.clone(),
            dial_timeout: self.dial_timeout,
            response_timeout: self.response_timeout,
            urls: None,
            records: None,
        };
        settings.validate().map_err(|error| wrong(error.to_string()))?;
        Ok(settings)
    }
}

impl RedisTls {
    /// Returns what the section configures, without the positions of its keys.
    fn files(&self) -> (bool, [Option<PathBuf>; 3]) {
        let files = [&self.certificate_file, &self.key_file, &self.ca_certificate_file];
        (self.enabled, files.map(|file| path(file.as_ref())))
    }

    /// Returns the TLS settings, or a key and its error.
    fn settings(&self) -> Result<Option<RedisTlsFiles>, (&'static str, &'static str)> {
        let ca_certificate_file = path(self.ca_certificate_file.as_ref());
        let pair = match (path(self.certificate_file.as_ref()), path(self.key_file.as_ref())) {
            (Some(chain), Some(key)) => Some((chain, key)),
            (None, None) => None,
            (Some(_), None) => {
                return Err(("key_file", TOGETHER));
            }
            (None, Some(_)) => {
                return Err(("certificate_file", TOGETHER));
            }
        };
        if !self.enabled && (pair.is_some() || ca_certificate_file.is_some()) {
            return Err((
                "enabled",
                "files are configured, but TLS is not enabled: set it to true, or remove them",
            ));
        }
        Ok(self.enabled.then_some(RedisTlsFiles { ca_certificate_file, pair }))
    }
}

fn path(path: Option<&Spanned<PathBuf>>) -> Option<PathBuf> {
    path.map(|path| path.value.clone())
}

fn key_prefix() -> String {
    "kas".to_owned()
}

fn fleet() -> String {
    "default".to_owned()
}

fn dial_timeout() -> Duration {
    Duration::from_secs(5)
}

fn response_timeout() -> Duration {
    Duration::from_secs(1)
}

fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<RedisAddress, D::Error> {
    let text = String::deserialize(deserializer)?;
    // Omnibus writes the path of a socket alone.
    let text = if text.starts_with('/') { format!("unix:{text}") } else { text };
    text.parse().map_err(D::Error::custom)
}

fn addresses<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<RedisAddress>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    if texts.is_empty() {
        return Err(D::Error::custom("at least one address is required"));
    }
    texts.iter().map(|text| text.parse().map_err(D::Error::custom)).collect()
}

/// Deserializes a name whose characters are safe in a Redis key with a hash tag.
fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let name = String::deserialize(deserializer)?;
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_.:/".contains(&b);
    if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(allowed) {
        let what = format!("{name:?}: use 1 to {MAX_NAME} letters, digits and -_.:/");
        return Err(D::Error::custom(what));
    }
    Ok(name)
}
