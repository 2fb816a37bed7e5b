//! Messages that released versions have sent are still read, and those of today have all of their fields.
//!
//! `recorded/<version>` has messages of that version. A change of a message adds a file; it does not change one.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::disallowed_methods, reason = "there is no runtime")]

use std::{fs, path::Path};

use http::HeaderValue;
use proto::{
    Hello, SUBPROTOCOL, ServiceName, Welcome,
    agent_configuration::{AppliedKeys, CONFIGURATION_PATH, ConfigurationUpdate, LogLevel},
    control::{DISABLED_PATH, DRAIN_PATH, DisabledNotice, DrainReason, DrainRequest},
    header,
};
use serde_json::{Value, json};

/// Returns a recorded message.
fn recorded(name: &str) -> Vec<u8> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded/0.1");
    fs::read(directory.join(format!("{name}.json"))).unwrap()
}

/// Checks that a message of today has each field of the recorded one, so that the recorded version can read it.
fn assert_has_fields_of(name: &str, today: &[u8]) {
    let [then, now]: [Value; 2] = [&recorded(name), today].map(|json| serde_json::from_slice(json).unwrap());
    for (key, value) in then.as_object().unwrap() {
        assert_eq!(now.get(key), Some(value), "{key} of {name}");
    }
}

#[test]
fn recorded_hello_is_read_and_written() {
    for name in ["hello-without-cluster", "hello"] {
        let hello = Hello::decode(&HeaderValue::from_bytes(&recorded(name)).unwrap()).unwrap();
        assert_eq!((&*hello.version, hello.services.len(), hello.tunnel_index), ("0.1.0", 3, 1));
        assert_eq!(hello.pod_name.as_deref(), Some("agentk-7d9c"));
        assert_eq!(
            hello.scope.as_ref().map(ToString::to_string).as_deref(),
            match name {
                "hello" => Some("shop,shop-staging,+3"),
                _ => None,
            }
        );
        assert_has_fields_of(name, hello.encode().unwrap().as_bytes());
    }
}

#[test]
fn recorded_welcome_is_read_and_written() {
    let welcome = Welcome::decode(&HeaderValue::from_bytes(&recorded("welcome")).unwrap()).unwrap();
    assert_eq!((welcome.replicas, welcome.limits.max_concurrent_streams), (3, 4096));
    assert_has_fields_of("welcome", welcome.encode().unwrap().as_bytes());
}

#[test]
fn recorded_control_requests_are_read_and_written() {
    let drain: DrainRequest = serde_json::from_slice(&recorded("drain")).unwrap();
    assert_eq!((drain.reason, drain.within.as_secs()), (DrainReason::Rebalance, 300));
    assert_has_fields_of("drain", &serde_json::to_vec(&drain).unwrap());

    let disabled: DisabledNotice = serde_json::from_slice(&recorded("disabled")).unwrap();
    assert_eq!(disabled.rules[0].service.as_ref().unwrap().as_str(), "prometheus");
    assert_eq!(disabled.rules[1].until, None);
    assert_has_fields_of("disabled", &serde_json::to_vec(&disabled).unwrap());

    let update: ConfigurationUpdate = serde_json::from_slice(&recorded("configuration")).unwrap();
    let keys = AppliedKeys::new(update.configuration.as_ref().unwrap()).unwrap();
    assert_eq!(keys.log_level, Some(LogLevel::Warn));
    assert_eq!(keys.scope.unwrap().namespaces, ["shop"]);
    assert_has_fields_of("configuration", &serde_json::to_vec(&update).unwrap());
}

/// The names in handshakes and requests: the other version does not know a renamed one.
#[test]
fn recorded_names_are_used() {
    let handshake = [header::HELLO, header::WELCOME];
    let requests = [header::SERVICE, header::UPGRADE_METHOD, header::REQUEST_ID];
    let responses = [header::UPGRADED, header::ERROR, header::ERROR_MESSAGE, header::UPSTREAM_TIME];
    let today = json!({
        "subprotocol": SUBPROTOCOL,
        "handshake": handshake.map(|name| name.to_string()),
        "requests": requests.map(|name| name.to_string()),
        "responses": responses.map(|name| name.to_string()),
        "services": [
            ServiceName::KUBERNETES,
            ServiceName::PROMETHEUS,
            ServiceName::CONTROL,
            ServiceName::CONFIGURATION,
        ],
        "paths": [DRAIN_PATH, DISABLED_PATH, CONFIGURATION_PATH],
    });
    assert_has_fields_of("names", today.to_string().as_bytes());
}

/// An older version reads the messages of a newer one, which has more fields.
#[test]
fn fields_of_later_versions_are_ignored() {
    let later = |name| {
        let mut json: Value = serde_json::from_slice(&recorded(name)).unwrap();
        json["later"] = 1.into();
        json.to_string()
    };
    Hello::decode(&HeaderValue::from_str(&later("hello")).unwrap()).unwrap();
    Welcome::decode(&HeaderValue::from_str(&later("welcome")).unwrap()).unwrap();
    serde_json::from_str::<DrainRequest>(&later("drain")).unwrap();
    serde_json::from_str::<DisabledNotice>(&later("disabled")).unwrap();
    serde_json::from_str::<ConfigurationUpdate>(&later("configuration")).unwrap();
}
