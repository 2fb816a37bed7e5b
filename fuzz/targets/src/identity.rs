//! The identity file, with any content.
//!
//! * The file is accepted or rejected quickly and in little memory (libFuzzer's `-timeout` and `-malloc_limit_mb`).
//! * Each line of an error begins with the file's name, and none contains a value of `tokens`: an operator may have
//!   written a token there instead of its hash.
//! * `Identity::read` and `Identity::parse` return the same for the same content.
//! * An accepted identity is consistent: it finds an agent by id and by name, and no token belongs to an agent and to a
//!   caller.

use access::Identity;
use proto::AgentId;

use crate::input::{CANARY, InputFile, canary_is_secret};

/// Checks one input.
pub fn run(data: &[u8]) {
    let file = InputFile::new("identity.yaml", data);
    let path = file.path();
    let read = Identity::read(path).map_err(|error| error.to_string());
    if let Err(error) = &read {
        for line in error.split('\n') {
            let what = line.strip_prefix(path.to_str().expect("it is UTF-8")).expect("the file is named");
            assert!(what.starts_with(':') && !what.contains(char::is_control), "{error:?}");
        }
    }
    let Ok(text) = str::from_utf8(data) else {
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
}

fn check(identity: &Identity) {
    for id in [0, 1, 2, 3, 7, u64::MAX].map(AgentId) {
        let name = identity.name(id);
        assert_eq!(identity.find(&id.to_string()), name.map(|_| id));
        if let Some(name) = name {
            assert_eq!(identity.find(name.as_str()), Some(id));
        }
    }
    if let Some(grant) = identity.grant(&access::token::TokenHash::of(&CANARY.to_owned().into())) {
        assert!(
            identity.agent(&CANARY.to_owned().into()).is_none(),
            "{} is an agent too",
            grant.caller.name()
        );
    }
}
