//! The JSON Schema of kas.yaml, for editors and for the values of the chart.

use super::Config;

/// Returns the schema as JSON text.
pub fn json_schema() -> String {
    settings::json_schema::<Config>("kas.yaml")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::Value;
    use settings::parse;
    use testing::json_schema::Validator;

    use super::*;
    use crate::config::{bounds, tests::whole};

    fn validator() -> Validator {
        Validator::new(serde_json::from_str(&json_schema()).unwrap())
    }

    fn value(text: &str) -> Value {
        parse(Path::new("kas.yaml"), text).unwrap()
    }

    fn is_accepted(value: &Value) -> bool {
        parse::<Config>(Path::new("kas.yaml"), &value.to_string()).is_ok()
    }

    /// The example with all of its optional sections and keys.
    fn example() -> Value {
        value(&whole(include_str!("../../../deploy/kas.example.yaml")))
    }

    /// Calls `change` with a copy of the value for each of its objects and leaves.
    fn each_node(value: &Value, pointer: &str, change: &mut dyn FnMut(&str)) {
        change(pointer);
        if let Some(map) = value.as_object() {
            map.iter().for_each(|(key, child)| each_node(child, &format!("{pointer}/{key}"), change));
        }
    }

    #[test]
    fn example_is_valid() {
        let (validator, example) = (validator(), example());
        assert_eq!(validator.validate(&example), Ok(()));
    }

    #[test]
    fn files_of_gitlab_are_valid() {
        let validator = validator();
        for text in [
            include_str!("../../tests/command_line/gitlab/omnibus.yaml"),
            include_str!("../../tests/command_line/gitlab/chart.yaml"),
        ] {
            let value = value(text);
            assert_eq!(validator.validate(&value), Ok(()));
        }
    }

    #[test]
    fn unknown_key_is_refused_in_each_section() {
        let (validator, example) = (validator(), example());
        let mut sections = 0;
        each_node(&example, "", &mut |pointer| {
            let mut changed = example.clone();
            if let Some(section) = changed.pointer_mut(pointer).unwrap().as_object_mut() {
                sections += 1;
                section.insert("unknown".to_owned(), 1.into());
                assert!(!validator.is_valid(&changed), "the schema accepts {pointer}/unknown");
                assert!(!is_accepted(&changed), "the parser accepts {pointer}/unknown");
            }
        });
        assert!(sections > 15, "{sections}");
    }

    #[test]
    fn value_of_another_type_is_refused_for_each_key() {
        let (validator, example) = (validator(), example());
        each_node(&example, "", &mut |pointer| {
            for other in [serde_json::json!([[]]), serde_json::json!({"a": 1})] {
                let mut changed = example.clone();
                *changed.pointer_mut(pointer).unwrap() = other;
                assert!(!validator.is_valid(&changed), "the schema accepts {changed} at {pointer}");
                assert!(!is_accepted(&changed), "the parser accepts {changed} at {pointer}");
            }
        });
    }

    #[test]
    fn bounds_are_those_of_the_parser() {
        let validator = validator();
        for (section, key, bad, good) in bounds::BOUNDS {
            let text = |number| bounds::file(section, key, number);
            assert!(validator.is_valid(&value(&text(good))), "{key}: {good}");
            assert!(!validator.is_valid(&value(&text(bad))), "{key}: {bad}");
        }
    }

    #[test]
    fn wrong_values_are_refused_by_both() {
        let validator = validator();
        for text in [
            "agent: {listen: {adress: '0.0.0.0:8150'}}",
            "agent: {listen: {address: here}}",
            "agent: {listen: {network: unix}}",
            "agent: {kubernetes_api: {url_path_prefix: k8s-proxy}}",
            "agent: {kubernetes_api: {url_path_prefix: /a//b}}",
            "agent: {kubernetes_api: {docs_url: /docs}}",
            "observability: {listen: {network: udp}}",
            "redis: {server: {address: 'redis:6379'}, network: udp}",
            "config: {commands: a}",
            "agent: {listen: {address: '8150'}}",
            "agent: {tunnel: {reconnect_wait: soon}}",
            "agent: {tunnel: {reconnect_wait: 2}}",
            "agent: {tunnel: {reconnect_wait: '2 s'}}",
            "agent: {tunnel: {reconnect_wait: 1.2.3s}}",
            "agent: {tunnel: {keepalive_interval: 0.0s}}",
            "observability: {logging: {level: loud}}",
            "observability: {tracing: {sample_ratio: 1.5}}",
            "observability: {tracing: {otlp_endpoint: 'ftp://collector'}}",
            "observability: {audit: {sink: syslog}}",
            "observability: {per_agent_metrics: -1}",
            "private_api: {listen: {network: unix}}",
            "api: {listen: {address: '127.0.0.1:8153'}}",
            "redis: {server: {address: redis}}",
            "redis: {sentinel: {master_name: kas, addresses: []}}",
            "redis: {server: {address: 'redis:6379'}, fleet: 'a b'}",
            "redis: {server: {address: 'redis:6379'}, database_index: 65536}",
            "gitlab: {address: gitlab, authentication_secret_file: s}",
            "gitlab: {address: 'https://a'}",
            "gitlab: {address: 'https://a', authentication_secret_file: s, external_url: a}",
            "identity: {}",
            "disabled: {files: a}",
            "oidc: {issuers: [{name: a, issuer: 'https://a', audiences: [kas], algorithms: [HS256]}]}",
            "oidc: {issuers: [{name: a, audiences: [kas]}]}",
        ] {
            let value = value(text);
            assert!(!validator.is_valid(&value), "the schema accepts {text}");
            assert!(!is_accepted(&value), "the parser accepts {text}");
        }
    }

    /// The parser refuses these after it has read the file, because the message names both keys.
    #[test]
    fn incomplete_sections_are_refused() {
        let validator = validator();
        for text in [
            "redis: {username: kas}",
            "config: {command: a}",
            "observability: {listen: {certificate_file: a, key_file: b}}",
            "redis: {server: {address: 'a:1'}, cluster: {addresses: ['a:1']}}",
            "redis: {server: {address: 'a:1'}, tls: {key_file: a}}",
            "agent: {listen: {certificate_file: a}}",
            "agent: {kubernetes_api: {listen: {key_file: a}}}",
            "api: {listen: {authentication_secret_file: a, key_file: a}}",
        ] {
            assert!(!validator.is_valid(&value(text)), "the schema accepts {text}");
        }
    }

    #[test]
    fn descriptions_and_defaults_are_those_of_the_types() {
        let schema: Value = serde_json::from_str(&json_schema()).unwrap();
        let listen = &schema["properties"]["agent"]["properties"]["listen"]["properties"];
        assert_eq!(listen["max_connections"]["description"], "Open connections of agents.");
        assert_eq!(listen["max_connections"]["default"], 20_000);
        assert_eq!(listen["handshake_timeout"]["default"], "10s");
        assert_eq!(listen["address"]["default"], "127.0.0.1:8150");
        assert!(!json_schema().contains("$ref"), "it is a part of the schema of the chart");
    }
}
