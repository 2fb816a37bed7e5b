//! What programs say to the internal API: a query, and a token.
//!
//! * A query that is read looks at a bounded number of agents; one that is not is refused in a line.
//! * No token is good that was not made with the secret.
#![no_main]

use gateway::{
    api::{Query, Verifier},
    peers::seal::Secret,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match text.parse::<Query>() {
        Ok(query) => assert!((1..=500).contains(&query.limit)),
        Err(error) => assert!(error.to_string().len() < 4096),
    }
    let secret = Secret::parse("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=").expect("it is long enough");
    assert!(Verifier::new(&secret).check(text).is_err());
});
