//! The signature of a webhook, as the specification of Standard Webhooks defines it: an HMAC-SHA-256 of the id, the time and the body.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use hmac::Mac as _;
use settings::KeySet;

/// Returns the value of the header `webhook-signature`: one signature of each key, so that a key can be replaced. `timestamp` is in seconds
/// since 1970.
pub fn sign(keys: &KeySet, id: &str, timestamp: u64, body: &[u8]) -> String {
    let signatures = keys.iter().map(|key| {
        let signed = key.hmac().chain_update(format!("{id}.{timestamp}.")).chain_update(body);
        format!("v1,{}", BASE64_STANDARD.encode(signed.finalize().into_bytes()))
    });
    signatures.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use settings::Secret;

    use super::*;

    /// The values were computed with Python's module `hmac`.
    #[test]
    fn signature_is_that_of_another_program() {
        let first = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
        let second = "YWJjZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXphYmNkZWY=";
        let secret = Secret::parse(&format!("{first}\n{second}\n")).unwrap();
        let signature = sign(&secret.keys(), "1732309881203-0", 1_732_309_881, br#"{"a":1}"#);
        assert_eq!(signature, SIGNATURES);
    }

    const SIGNATURES: &str =
        "v1,ILFgCNf1wKnLMsMOz6OkczMoh2JSAgjUXAZ0IapBUew= v1,dYRh9JZTTVpWdi3I9FK1cp0Qq1rPorgXXWE31riFKlo=";
}
