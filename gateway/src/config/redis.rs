//! Section `redis`: where replicas learn of each other's agents.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use router::redis::{Address, Servers, Settings, Tls};
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_saphyr::Spanned;

use super::{
    ConfigError,
    bounds::{timeout, within},
};

/// Longest prefix and fleet.
const MAX_NAME: usize = 64;

/// Section `redis`. Names one of `server`, `sentinel` and `cluster`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RedisConfig {
    /// One server.
    #[serde(default)]
    pub server: Option<RedisServer>,
    /// Several, of which Sentinels name one.
    #[serde(default)]
    pub sentinel: Option<RedisSentinel>,
    /// A Cluster.
    #[serde(default)]
    pub cluster: Option<RedisCluster>,
    /// Who kas is to Redis; without it, Redis' default user.
    #[serde(default)]
    pub username: Option<String>,
    /// What proves it.
    #[serde(default)]
    pub password_file: Option<Spanned<PathBuf>>,
    /// The number of the database.
    #[serde(default, deserialize_with = "within::<_, _, 0, 65_535>")]
    pub database_index: u16,
    /// TLS to all servers.
    #[serde(default)]
    pub tls: RedisTls,
    /// What all keys begin with.
    #[serde(default = "key_prefix", deserialize_with = "name")]
    pub key_prefix: String,
    /// Which replicas belong together.
    #[serde(default = "fleet", deserialize_with = "name")]
    pub fleet: String,
    /// How long connecting may take.
    #[serde(default = "dial_timeout", deserialize_with = "timeout")]
    pub dial_timeout: Duration,
    /// How long a command may take.
    #[serde(default = "response_timeout", deserialize_with = "timeout")]
    pub response_timeout: Duration,
    /// Whether this replica is not ready before it has reached Redis once.
    #[serde(default)]
    pub wait_at_start: bool,
}

/// Section `redis.server`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RedisServer {
    /// Where it is.
    #[serde(deserialize_with = "address")]
    pub address: Address,
}

/// Section `redis.sentinel`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RedisSentinel {
    /// The name that Sentinels know the servers by.
    pub master_name: String,
    /// Where the Sentinels are.
    #[serde(deserialize_with = "addresses")]
    pub addresses: Vec<Address>,
    /// Their password, if they have one.
    #[serde(default)]
    pub sentinel_password_file: Option<Spanned<PathBuf>>,
}

/// Section `redis.cluster`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RedisCluster {
    /// Where some of its nodes are.
    #[serde(deserialize_with = "addresses")]
    pub addresses: Vec<Address>,
}

/// Section `redis.tls`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RedisTls {
    /// Whether connections are TLS.
    pub enabled: bool,
    /// Certificate chain that kas shows, PEM.
    pub certificate_file: Option<Spanned<PathBuf>>,
    /// Its private key, PEM.
    pub key_file: Option<Spanned<PathBuf>>,
    /// Whom to trust, instead of the system's authorities; PEM.
    pub ca_certificate_file: Option<Spanned<PathBuf>>,
}

impl RedisConfig {
    /// The files that the section names, to be made absolute.
    pub(super) fn paths(&mut self) -> impl Iterator<Item = &mut Spanned<PathBuf>> {
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

    /// What the router makes a store of; `file` is for errors. Reads what the section names.
    pub fn settings(&self, file: &Path) -> Result<Settings, ConfigError> {
        let wrong = |what: String| ConfigError::whole(file, format!("redis: {what}"));
        let servers = match (&self.server, &self.sentinel, &self.cluster) {
            (Some(server), None, None) => Servers::One(server.address.clone()),
            (None, Some(sentinel), None) => Servers::Sentinel {
                master: sentinel.master_name.clone(),
                sentinels: sentinel.addresses.clone(),
                password_file: path(sentinel.sentinel_password_file.as_ref()),
            },
            (None, None, Some(_)) if self.database_index > 0 => {
                return Err(wrong("database_index: a Cluster has database 0 only".to_owned()));
            }
            (None, None, Some(cluster)) => Servers::Cluster(cluster.addresses.clone()),
            (None, None, None) => {
                return Err(wrong("name a server, a sentinel or a cluster".to_owned()));
            }
            _ => return Err(wrong("server, sentinel and cluster exclude each other".to_owned())),
        };
        let settings = Settings {
            servers,
            tls: self.tls.lower().map_err(|what| wrong(format!("tls.{what}")))?,
            username: self.username.clone(),
            password_file: path(self.password_file.as_ref()),
            database: self.database_index,
            prefix: self.key_prefix.clone(),
            fleet: self.fleet.clone(),
            dial_timeout: self.dial_timeout,
            response_timeout: self.response_timeout,
        };
        settings.check().map_err(wrong)?;
        Ok(settings)
    }
}

impl RedisTls {
    fn lower(&self) -> Result<Option<Tls>, &'static str> {
        let ca_certificate_file = path(self.ca_certificate_file.as_ref());
        let pair = match (path(self.certificate_file.as_ref()), path(self.key_file.as_ref())) {
            (Some(chain), Some(key)) => Some((chain, key)),
            (None, None) => None,
            (Some(_), None) => {
                return Err("key_file: certificate_file and key_file go together, and this one is missing");
            }
            (None, Some(_)) => {
                return Err(
                    "certificate_file: certificate_file and key_file go together, and this one is missing",
                );
            }
        };
        if !self.enabled && (pair.is_some() || ca_certificate_file.is_some()) {
            return Err("enabled: files are named, and TLS is not enabled: set it to true, or remove them");
        }
        Ok(self.enabled.then_some(Tls { ca_certificate_file, pair }))
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

fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Address, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
}

fn addresses<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Address>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    if texts.is_empty() {
        return Err(D::Error::custom("name one at least"));
    }
    texts.iter().map(|text| text.parse().map_err(D::Error::custom)).collect()
}

/// What may stand in a key beside a hash tag.
fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let name = String::deserialize(deserializer)?;
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_.:/".contains(&b);
    if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(allowed) {
        let what = format!("{name:?}: use 1 to {MAX_NAME} letters, digits and -_.:/");
        return Err(D::Error::custom(what));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, parse};

    fn read(section: &str) -> Result<Settings, String> {
        let file = Path::new("kas.yaml");
        let text = format!("identity: {{file: i}}\nredis: {section}\n");
        let config: Config = parse(file, &text).map_err(|error| error.to_string())?;
        config.redis.unwrap().settings(file).map_err(|error| error.to_string())
    }

    #[test]
    fn one_kind_of_redis_is_named() {
        assert!(matches!(read("{server: {address: 'a:1'}}").unwrap().servers, Servers::One(_)));
        let sentinel = "{sentinel: {master_name: m, addresses: ['a:1', 'b:2']}}";
        assert!(matches!(read(sentinel).unwrap().servers, Servers::Sentinel { .. }));
        assert!(matches!(read("{cluster: {addresses: ['a:1']}}").unwrap().servers, Servers::Cluster(_)));
    }

    #[test]
    fn what_cannot_work_is_refused_with_its_key() {
        for (section, expected) in [
            ("{}", "name a server, a sentinel or a cluster"),
            ("{server: {address: 'a:1'}, cluster: {addresses: ['a:1']}}", "exclude each other"),
            ("{server: {address: a}}", "redis.server.address: \"a\" is not the address of a Redis"),
            ("{server: {address: 'redis://a:1'}}", "redis.server.address"),
            ("{sentinel: {master_name: m, addresses: []}}", "redis.sentinel.addresses: name one at least"),
            ("{cluster: {addresses: ['a:1']}, database_index: 1}", "database 0 only"),
            ("{server: {address: 'a:1'}, key_prefix: '{a}'}", "redis.key_prefix"),
            ("{server: {address: 'a:1'}, fleet: ''}", "redis.fleet"),
            ("{server: {address: 'a:1'}, dial_timeout: 0s}", "redis.dial_timeout"),
            ("{server: {address: 'a:1'}, response_timeout: 0s}", "redis.response_timeout"),
            ("{server: {address: 'a:1'}, password_file: /nowhere/p}", "redis: /nowhere/p: No such file"),
            ("{server: {address: 'a:1'}, tls: {enabled: true, key_file: k}}", "redis: tls.certificate_file"),
            ("{server: {address: 'a:1'}, tls: {ca_certificate_file: c}}", "redis: tls.enabled"),
            ("{server: {address: 'unix:/a'}, tls: {enabled: true}}", "unix:/a: TLS is for host and port"),
        ] {
            let error = read(section).map(|_| ()).expect_err(section);
            assert!(error.starts_with("kas.yaml") && error.contains(expected), "{error}");
        }
    }

    /// The section stands in the example as a comment, because kas runs without it.
    #[test]
    fn the_example_and_the_reference_have_every_key_with_its_default() {
        let example = include_str!("../../../deploy/kas.example.yaml");
        let section = example.split("\n\n").find(|block| block.starts_with("# redis:\n")).unwrap();
        let section: Vec<&str> = section.lines().map(|line| line.strip_prefix("# ").unwrap()).collect();
        let file = Path::new("kas.example.yaml");
        let text = format!("identity: {{file: i}}\n{}\n", section.join("\n"));
        let chosen = parse::<Config>(file, &text).unwrap().redis.unwrap();
        let minimal = "identity: {file: i}\nredis: {server: {address: 'redis.example.com:6379'}}\n";
        let default = parse::<Config>(file, minimal).unwrap().redis.unwrap();
        assert_eq!(format!("{chosen:?}"), format!("{default:?}"));

        let reference = include_str!("../../../docs/configuration.md");
        let source = include_str!("redis.rs").split("#[cfg(test)]").next().unwrap();
        let keys = source.lines().filter_map(|line| line.trim().strip_prefix("pub ")?.split_once(": "));
        for (key, _) in keys.filter(|(key, _)| key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')) {
            let row = |line: &str| line.starts_with("| `redis.") && line.contains(&format!(".{key}` |"));
            let rows = |line: &str| line.starts_with(&format!("| `redis.{key}."));
            assert!(reference.lines().any(|line| row(line) || rows(line)), "docs/configuration.md: {key}");
        }
        for line in section.iter().filter(|line| !line.contains('#') && !line.contains("address")) {
            let Some((key, value)) = line.split_once(": ") else { continue };
            let row = reference
                .lines()
                .find(|row| row.contains(&format!(".{}` |", key.trim())) && row.contains("redis."));
            assert!(row.unwrap().contains(&format!("| `{value}`")), "{line}");
        }
    }
}
