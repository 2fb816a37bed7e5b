//! `Hello::decode` and `Welcome::decode` on whatever an agent, or something that is not kas, sends.
//!
//! * What decodes keeps to the limits: 4096 bytes, 32 services, texts of at most 253 printable bytes.
//! * It encodes again, to a value that decodes to the same, and that encodes to itself.
//! * What does not decode is refused by a message of one line that is not longer than it has to be.
#![no_main]

use http::HeaderValue;
use libfuzzer_sys::fuzz_target;
use proto::{Hello, HelloError, Welcome};

const MAX_LENGTH: usize = 4096;
const MAX_SERVICES: usize = 32;
const MAX_TEXT: usize = 253;

fuzz_target!(|data: &[u8]| {
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
});

fn check_hello(value: &HeaderValue, hello: &Hello) {
    assert!(value.len() <= MAX_LENGTH);
    assert!(hello.services.len() <= MAX_SERVICES);
    let texts = [&hello.pod_name, &hello.pod_namespace, &hello.kubernetes_version].into_iter().flatten();
    for text in texts.chain([&hello.version]) {
        assert!(text.len() <= MAX_TEXT && text.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{text:?}");
    }

    let again = match hello.encode() {
        Ok(again) => again,
        // Fields without their names, in an array, take less room. serde reads that too.
        Err(HelloError::TooLong) if value.as_bytes().trim_ascii_start().starts_with(b"[") => return,
        Err(error) => panic!("a hello that was read cannot be written: {error}"),
    };
    assert!(again.len() <= MAX_LENGTH);
    assert_eq!(Hello::decode(&again).expect("what was written can be read"), *hello);
    assert_eq!(hello.encode().expect("writing has no state"), again);
}

/// It goes into a log and an answer.
fn check_error(error: &str) {
    assert!(error.len() <= MAX_LENGTH + 512, "{} bytes of error", error.len());
    assert!(!error.contains(|c: char| c.is_control()), "{error:?}");
}
