//! The configuration and its documentation have the same keys and defaults.

mod audit;
mod redis;
mod tracing;

use super::*;

fn error(text: &str) -> String {
    parse::<Config>(Path::new("kas.yaml"), text).unwrap_err().to_string()
}

#[test]
fn identity_or_gitlab_is_the_only_required_key() {
    let config: Config = parse(Path::new("kas.yaml"), "identity: {file: identity.yaml}").unwrap();
    assert_eq!(config.agent.listen.address.port(), 8150);
    assert_eq!(config.agent.kubernetes_api.listen.address.port(), 8154);
    assert_eq!(config.observability.listen.address.port(), 8151);
    let gitlab = "gitlab: {address: 'https://gitlab.example.com', authentication_secret_file: s}";
    let config: Config = parse(Path::new("kas.yaml"), gitlab).unwrap();
    assert!(config.check_sources(Path::new("kas.yaml")).is_ok());
    let config: Config = parse(Path::new("kas.yaml"), "agent: {}").unwrap();
    let error = config.check_sources(Path::new("kas.yaml")).unwrap_err().to_string();
    assert!(error.starts_with("kas.yaml: identity: the key identity is missing"), "{error}");
}

#[test]
fn error_has_file_line_key_and_reason() {
    assert_eq!(
        error("identity: {file: i}\nagent:\n  listen:\n    adress: x\n"),
        "kas.yaml:4:5: agent.listen.adress: unknown field `adress`, expected one of network, address, websocket, \
         protocols, certificate_file, key_file, trusted_proxies, proxy_protocol, allowed_networks, max_connection_age, \
         max_connections, max_tunnels_per_agent, connections_per_token_per_minute, \
         connections_per_address_per_minute, unknown_tokens_per_address_per_minute, connections_per_second, handshake_timeout, \
         write_stall_timeout, listen_grace_period"
    );
    assert_eq!(
        error("identity: {file: i}\nagent:\n  listen:\n    address: here\n"),
        "kas.yaml:4:14: agent.listen.address: invalid socket address syntax"
    );
    let version = error("identity: {file: i}\nagent: {listen: {proxy_protocol: v1}}\n");
    assert!(version.contains("agent.listen.proxy_protocol: unknown variant `v1`, expected"), "{version}");
    let protocols = error("identity: {file: i}\nagent: {listen: {protocols: []}}\n");
    assert!(protocols.starts_with("kas.yaml:2:") && protocols.ends_with("without a protocol"), "{protocols}");
    let protocol = error("identity: {file: i}\nagent: {listen: {protocols: [grpc]}}\n");
    assert!(protocol.contains("unknown variant `grpc`, expected one of"), "{protocol}");
    for service in ["prometheus", "monitoring/prometheus", "a/b/c:1", "a/..:1", "a/http:b:1", "a/b:"] {
        let service = error(&format!(
            "identity: {{file: i}}\nagent: {{gitlab_agentk: {{prometheus_service: '{service}'}}}}\n"
        ));
        assert!(service.contains("a Service has the form <namespace>/<name>:<port>"), "{service}");
    }
    let age = error("identity: {file: i}\nagent: {listen: {max_connection_age: automatic}}\n");
    assert!(age.starts_with("kas.yaml:2:") && age.ends_with(", or auto"), "{age}");
    let duration = error("identity: {file: i}\nagent: {tunnel: {reconnect_wait: soon}}\n");
    assert!(duration.starts_with("kas.yaml:2:"), "{duration}");
    assert!(duration.contains("agent.tunnel.reconnect_wait: \"soon\" is not a duration"), "{duration}");
}

/// The keys in the source of sections, without those of GitLab's kas that have no effect here.
fn keys_of(source: &str) -> Vec<&str> {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let read = lines.windows(2).filter(|pair| pair[0] != "#[serde(skip)]").map(|pair| pair[1]);
    let fields = read.filter_map(|line| line.strip_prefix("pub ")?.split_once(": "));
    fields
        .filter(|(_, kind)| !kind.starts_with("GitLabKey") && !kind.starts_with("EndpointConfig"))
        .map(|(key, _)| key)
        .filter(|key| key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'))
        .collect()
}

/// The example has every key with its default: it equals an empty configuration.
#[test]
fn example_explains_every_key() {
    let file = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/kas.example.yaml"));
    let mut example = Config::read(file).unwrap();
    let mut default: Config = parse(file, "identity: {file: identity.example.yaml}").unwrap();
    default.identity = example.identity.clone();
    default.environments = example.environments.clone();
    default.keys = example.keys.clone();
    let listen = &mut example.agent.kubernetes_api.listen;
    assert!(listen.certificate_file.take().is_some() && listen.key_file.take().is_some());
    let listen = &mut example.agent.listen;
    assert!(listen.certificate_file.take().is_some() && listen.key_file.take().is_some());
    assert!(example.agent.gitlab_agentk.prometheus_service.take().is_some());
    let receptive = &mut example.agent.receptive;
    assert!(receptive.certificate_file.take().is_some() && receptive.key_file.take().is_some());
    assert_eq!(format!("{example:?}"), format!("{default:?}"));

    let text = whole(&std::fs::read_to_string(file).unwrap());
    let api = parse::<Config>(file, &text).unwrap().api.unwrap().listen;
    assert_eq!(api.address, "127.0.0.1:8153".parse().unwrap());
    let mut listen = parse::<Config>(file, &text).unwrap().private_api.unwrap().listen;
    for path in [
        &mut listen.authentication_secret_file,
        &mut listen.certificate_file,
        &mut listen.key_file,
        &mut listen.ca_certificate_file,
    ] {
        assert!(path.take().is_some());
    }
    assert_eq!(format!("{listen:?}"), format!("{:?}", PrivateListen::default()));
    let sources = [
        include_str!("../config.rs"),
        include_str!("agent.rs"),
        include_str!("../../core/src/configuration/config.rs"),
        include_str!("../../core/src/config/kubernetes_api.rs"),
        include_str!("../../core/src/config/observability.rs"),
        include_str!("observability.rs"),
        include_str!("redis.rs"),
        include_str!("../../core/src/config/private_api.rs"),
        include_str!("receptive.rs"),
        include_str!("api.rs"),
        include_str!("../../../features/web/kas/src/config.rs"),
        include_str!("../../../features/gitlab/kas/src/config.rs"),
        include_str!("../../../common/oidc/src/config.rs"),
        include_str!("../../../features/gitlab/kas/src/gitaly/config.rs"),
        include_str!("file_sections.rs"),
        include_str!("../../../features/events/kas/src/config.rs"),
        include_str!("../../../features/gitlab/kas/src/gitlab_agentk/config.rs"),
    ];
    let keys: Vec<&str> = sources.into_iter().flat_map(keys_of).collect();
    assert!(keys.len() > 15, "the fields of the configuration: {keys:?}");
    for key in keys {
        assert!(text.contains(&format!("{key}:")), "{key} is not in the example");
    }
}

#[test]
fn reference_has_every_key_with_its_default() {
    let example = include_str!("../../../deploy/kas.example.yaml");
    let reference = include_str!("../../../docs/configuration.md");
    let example: serde_json::Value = parse(Path::new("kas.example.yaml"), &whole(example)).unwrap();
    let mut keys = Vec::new();
    leaves(&example, "", &mut keys);
    assert!(keys.len() > 30, "{keys:?}");
    for (key, value) in keys {
        let row = reference.lines().find(|line| line.starts_with(&format!("| `{key}` |")));
        let row = row.unwrap_or_else(|| panic!("docs/configuration.md has no row for {key}"));
        let files = [
            "certificate_file",
            "key_file",
            "secret_file",
            "token_file",
            "prometheus_service",
            "docs_directory",
        ];
        let file = files.iter().any(|end| key.ends_with(end));
        let default = if file { "none".to_owned() } else { format!("`{value}`") };
        assert!(row.contains(&format!("| {default}")), "{key} is {default} in the example: {row}");
    }
}

/// Returns the example with the optional sections, which are comments there.
pub(super) fn whole(example: &str) -> String {
    let mut section = false;
    let lines = example.lines().map(|line| {
        section = !line.is_empty()
            && (section
                || ["# private_api:", "# api:", "# web:", "# gitlab:", "# disabled:"].contains(&line));
        if section { line.trim_start_matches('#').strip_prefix(' ').unwrap() } else { line }
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn leaves(value: &serde_json::Value, path: &str, into: &mut Vec<(String, String)>) {
    let Some(map) = value.as_object() else {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        return into.push((path.to_owned(), text));
    };
    for (key, value) in map {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        leaves(value, &path, into);
    }
}

#[test]
fn example_identity_is_valid() {
    let file = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/identity.example.yaml"));
    assert_eq!(access::Identity::read(file).unwrap().counts(), (1, 4));
}

#[test]
fn example_environments_are_valid() {
    let file = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/environments.example.yaml"));
    let environments = kas_environments::EnvironmentFile::read(file).unwrap();
    assert_eq!(environments.select(&Default::default()).len(), 1);
}

#[test]
fn missing_file_is_reported() {
    let error = Config::read(Path::new("/nowhere/kas.yaml")).unwrap_err().to_string();
    assert_eq!(error, "/nowhere/kas.yaml: the file does not exist");
}
