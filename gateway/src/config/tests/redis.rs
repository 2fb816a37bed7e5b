//! Section `redis`.

use std::path::Path;

use settings::{KeyLocations, parse};
use store::redis::{RedisServers, RedisSettings};

use crate::config::{Config, tests::keys_of};

fn read(section: &str) -> Result<RedisSettings, String> {
    let file = Path::new("kas.yaml");
    let text = format!("identity: {{file: i}}\nredis: {section}\n");
    let config: Config = parse(file, &text).map_err(|error| error.to_string())?;
    config.redis.unwrap().settings(file, &KeyLocations::parse(&text)).map_err(|error| error.to_string())
}

#[test]
fn kind_of_redis_is_selected() {
    assert!(matches!(read("{server: {address: 'a:1'}}").unwrap().servers, RedisServers::Single(_)));
    let sentinel = "{sentinel: {master_name: m, addresses: ['a:1', 'b:2']}}";
    assert!(matches!(read(sentinel).unwrap().servers, RedisServers::Sentinel { .. }));
    for socket in
        ["{server: {address: /run/redis.sock}}", "{network: unix, server: {address: /run/redis.sock}}"]
    {
        let RedisServers::Single(address) = read(socket).unwrap().servers else { panic!("{socket}") };
        assert_eq!(address.to_string(), "unix:/run/redis.sock");
    }
    assert!(read("{network: tcp, server: {address: 'a:1'}}").is_ok());
    assert!(matches!(read("{cluster: {addresses: ['a:1']}}").unwrap().servers, RedisServers::Cluster(_)));
}

#[test]
fn invalid_section_is_refused_with_its_key() {
    for (section, expected) in [
        ("{}", "one of server, sentinel and cluster is required"),
        ("{server: {address: 'a:1'}, cluster: {addresses: ['a:1']}}", "exclude each other"),
        ("{server: {address: a}}", "redis.server.address: \"a\" is not the address of a Redis"),
        ("{server: {address: 'redis://a:1'}}", "redis.server.address"),
        (
            "{network: unix, server: {address: 'a:1'}}",
            "redis.network: a:1 is not a socket: set this key to tcp",
        ),
        ("{network: tcp, server: {address: /a}}", "redis.network: unix:/a is a socket: set this key to unix"),
        ("{network: udp, server: {address: /a}}", "redis.network: unknown variant `udp`"),
        ("{sentinel: {master_name: m, addresses: []}}", "redis.sentinel.addresses: at least one"),
        ("{cluster: {addresses: ['a:1']}, database_index: 1}", "only database 0"),
        ("{server: {address: 'a:1'}, key_prefix: '{a}'}", "redis.key_prefix"),
        ("{server: {address: 'a:1'}, fleet: ''}", "redis.fleet"),
        ("{server: {address: 'a:1'}, dial_timeout: 0s}", "redis.dial_timeout"),
        ("{server: {address: 'a:1'}, response_timeout: 0s}", "redis.response_timeout"),
        ("{server: {address: 'a:1'}, password_file: /nowhere/p}", "redis: /nowhere/p: No such file"),
        (
            "{server: {address: 'a:1'}, tls: {enabled: true, key_file: k}}",
            "redis.tls.certificate_file: certificate_file and",
        ),
        (
            "{server: {address: 'a:1'}, tls: {ca_certificate_file: c}}",
            "redis.tls.enabled: files are configured",
        ),
        ("{server: {address: 'unix:/a'}, tls: {enabled: true}}", "unix:/a: TLS needs a host and a port"),
    ] {
        let error = read(section).map(|_| ()).expect_err(section);
        assert!(error.starts_with("kas.yaml:2:") && error.contains(expected), "{error}");
    }
}

/// The section stands in the example as a comment, because kas runs without it.
#[test]
fn example_and_reference_have_every_key_with_its_default() {
    let example = include_str!("../../../../deploy/kas.example.yaml");
    let section = example.split("\n\n").find(|block| block.starts_with("# redis:\n")).unwrap();
    let section: Vec<&str> = section.lines().map(|line| line.strip_prefix("# ").unwrap()).collect();
    let file = Path::new("kas.example.yaml");
    let text = format!("identity: {{file: i}}\n{}\n", section.join("\n"));
    let chosen = parse::<Config>(file, &text).unwrap().redis.unwrap();
    let minimal = "identity: {file: i}\nredis: {server: {address: 'redis.example.com:6379'}}\n";
    let default = parse::<Config>(file, minimal).unwrap().redis.unwrap();
    assert_eq!(format!("{chosen:?}"), format!("{default:?}"));

    let reference = include_str!("../../../../docs/configuration.md");
    for key in keys_of(include_str!("../redis.rs")) {
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
