//! `Hello::decode` and `Welcome::decode` with any header value.
//!
//! * A decoded value keeps to the limits: 4096 bytes, 32 services, texts of at most 253 printable bytes.
//! * It can be encoded again. The encoded value decodes to the same `Hello` or `Welcome`.
//! * An error is one line of limited length.

use http::HeaderValue;
use proto::{Hello, HelloError, Welcome};

const MAX_LENGTH: usize = 4096;
const MAX_SERVICES: usize = 32;
const MAX_TEXT: usize = 253;
/// Bytes of the field names of a scope, which an array omits.
const FIELD_NAMES: usize = r#""namespaces":"omitted":"#.len();

/// Checks one input.
pub fn run(data: &[u8]) {
    let Ok(value) = HeaderValue::from_bytes(data) else { return };
    match Hello::decode(&value) {
        Ok(hello) => check_hello(&value, &hello),
        Err(error) => check_error(&error.to_string()),
    }
    match Welcome::decode(&value) {
        Ok(welcome) => {
            let again = welcome.encode().expect("a welcome that was read can be written");
            assert!(value.len() <= MAX_LENGTH && again.len() <= MAX_LENGTH);
            assert_eq!(Welcome::decode(&again).expect("what was written can be read"), welcome);
            assert_eq!(welcome.encode().expect("writing has no state"), again);
        }
        Err(error) => check_error(&error.to_string()),
    }
}

fn check_hello(value: &HeaderValue, hello: &Hello) {
    assert!(value.len() <= MAX_LENGTH);
    assert!(hello.services.len() <= MAX_SERVICES);
    let texts = [&hello.pod_name, &hello.pod_namespace, &hello.kubernetes_version, &hello.cluster];
    let texts = texts.into_iter().flatten();
    let namespaces = hello.scope.iter().filter_map(|scope| scope.namespaces.as_ref()).flatten();
    for text in texts.chain([&hello.version]).chain(namespaces) {
        assert!(text.len() <= MAX_TEXT && text.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{text:?}");
    }

    let again = match hello.encode() {
        Ok(again) => again,
        // serde also decodes an array of values without field names, which is shorter than the object.
        Err(HelloError::TooLong) if value.as_bytes().trim_ascii_start().starts_with(b"[") => return,
        // The same for the scope within the object.
        Err(HelloError::TooLong) if hello.scope.is_some() && value.len() + FIELD_NAMES > MAX_LENGTH => return,
        Err(error) => panic!("a hello that was read cannot be written: {error}"),
    };
    assert!(again.len() <= MAX_LENGTH);
    assert_eq!(Hello::decode(&again).expect("what was written can be read"), *hello);
    if let Some(scope) = &hello.scope {
        // The longest name of a namespace, and the number of the others.
        assert!(scope.to_string().len() <= 63 + ",+99999".len(), "{scope}");
    }
    assert_eq!(hello.encode().expect("writing has no state"), again);
}

/// Checks that an error is fit for a log line and a response header.
fn check_error(error: &str) {
    assert!(error.len() <= MAX_LENGTH + 512, "{} bytes of error", error.len());
    assert!(!error.contains(|c: char| c.is_control()), "{error:?}");
}
