//! The query and the token of a program that calls the internal API.
//!
//! * A valid query returns between 1 and 500 agents. The error of an invalid query is short.
//! * No token is accepted, because no input is signed with the secret.

use access::ApiTokenVerifier;
use gateway::test_support::Query;
use settings::Secret;

/// Checks one input.
pub fn run(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    match text.parse::<Query>() {
        Ok(query) => assert!((1..=500).contains(&query.limit)),
        Err(error) => assert!(error.to_string().len() < 4096),
    }
    let secret = Secret::parse("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=").expect("it is long enough");
    assert!(ApiTokenVerifier::new(secret, None).check(text).is_err());
}
