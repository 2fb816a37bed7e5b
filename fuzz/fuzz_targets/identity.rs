//! The identity file, with any content.
//!
//! * It is read or refused, quickly and in little memory (libFuzzer's `-timeout` and `-malloc_limit_mb`).
//! * An error begins with the file's name, is one line, and never shows what stands under `tokens`: it may be a token
//!   that should have been its hash.
//! * Whoever reads it by text or as a file sees the same.
//! * What is read is consistent: an agent is found by its id and by its name, and no token is an agent's and a caller's.
#![no_main]

use std::sync::LazyLock;

use fuzz::{CANARY, Scratch, canary_is_secret};
use gateway::identity::Identity;
use libfuzzer_sys::fuzz_target;
use proto::AgentId;

static FILE: LazyLock<Scratch> = LazyLock::new(|| Scratch::new("identity.yaml"));

fuzz_target!(|data: &[u8]| {
    FILE.write(data);
    let path = FILE.path();
    let read = Identity::read(path).map_err(|error| error.to_string());
    if let Err(error) = &read {
        let what = error.strip_prefix(path.to_str().expect("it is UTF-8")).expect("the file is named");
        assert!(what.starts_with(':') && !what.contains(|c: char| c.is_control()), "{error:?}");
    }
    let Ok(text) = std::str::from_utf8(data) else {
        assert!(read.is_err(), "it is not UTF-8");
        return;
    };

    let parsed = Identity::parse(path, text).map_err(|error| error.to_string());
    match (&read, &parsed) {
        (Ok(read), Ok(parsed)) => assert_eq!(read.counts(), parsed.counts()),
        (Err(read), Err(parsed)) => assert_eq!(read, parsed),
        _ => panic!("{read:?} as a file and {parsed:?} as text"),
    }
    match parsed {
        Ok(identity) => check(&identity),
        Err(error) => {
            let shown = error.contains(CANARY) && canary_is_secret(text, &["tokens"]);
            assert!(!shown, "a token is shown: {error}");
        }
    }
});

fn check(identity: &Identity) {
    for id in [0, 1, 2, 3, 7, u64::MAX].map(AgentId) {
        let name = identity.name(id);
        assert_eq!(identity.find(&id.to_string()), name.map(|_| id));
        if let Some(name) = name {
            assert_eq!(identity.find(name.as_str()), Some(id));
        }
    }
    if let Some(grant) = identity.grant(&CANARY.to_owned().into()) {
        assert!(identity.agent(&CANARY.to_owned().into()).is_none(), "{} is an agent too", grant.caller.name);
    }
}
