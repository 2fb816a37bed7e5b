//! The rules for all replicas: the record that `kas disable --fleet` writes to Redis.
//!
//! Redis is not trusted. A record that is malformed or has an invalid rule is refused, as a version of the file is: the last
//! valid one stays in use, also while Redis is away or has lost the record.

use std::{path::Path, sync::Arc, time::SystemTime};

use files::WatchedFile;
use router::redis::{DisabledRecord, RedisStore};
use tokio::time::Instant;

use super::{DisableRule, KillSwitch, file};

/// The name of the record in metrics and in `/readiness`.
pub const KEY: &str = "disabled.fleet";

/// The place of the record, for errors.
const PLACE: &str = "the key {kas}:disabled of Redis";

/// Returns the record and its rules.
///
/// # Errors
///
/// The record is malformed or has an invalid rule.
pub fn parse(text: &[u8]) -> Result<(DisabledRecord, Vec<DisableRule>), String> {
    let record = DisabledRecord::decode(text).map_err(|error| format!("{PLACE}: {error}"))?;
    let rules = file::parse(Path::new(PLACE), record.rules.get()).map_err(|error| error.to_string())?;
    Ok((record, rules))
}

/// Applies each valid record that is found in Redis. The future never completes.
pub async fn follow(store: RedisStore, switch: Arc<KillSwitch>, record: WatchedFile) {
    let mut records = store.disabled_records();
    loop {
        let text = records.borrow_and_update().clone();
        match text.as_deref().map(parse) {
            Some(Ok((accepted, rules))) => {
                store.accept_disabled(accepted);
                switch.set_fleet(rules);
                record.set_accepted();
            }
            Some(Err(error)) if record.set_refused(&error, SystemTime::now(), Instant::now()) => {
                tracing::error!(error, "the record of the kill switch in Redis is refused");
            }
            Some(Err(_)) | None => {}
        }
        // The store has the sender.
        let _ = records.changed().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_has_the_rules_of_a_file() {
        let text = br#"[1,7,{"rules":[{"agent":"prod","reason":"drill","until":"1970-01-01T00:00:09Z"}]}]"#;
        let (record, rules) = parse(text).unwrap();
        assert_eq!(record.version, 7);
        assert_eq!(rules[0].to_string(), "agent prod until 1970-01-01T00:00:09Z: drill");
        let again = DisabledRecord { version: 7, rules: file::to_json(&rules) };
        assert_eq!(again.encode().as_bytes(), text);
        assert_eq!(parse(br#"[1,7,{"rules":[]}]"#).unwrap().1, []);
    }

    #[test]
    fn unusable_record_is_refused_with_its_place() {
        for (text, expected) in [
            ("!", "the key {kas}:disabled of Redis: it does not begin with the version"),
            ("[2,7,{}]", "it has version 2"),
            ("[1,7,{}]", "there are no rules"),
            ("[1,7,null]", "there are no rules"),
            ("[1,7,[]]", "the key {kas}:disabled of Redis"),
            (r#"[1,7,{"rules":[{"agent":"a","agent":"b","reason":"drill"}]}]"#, "the key agent is set twice"),
            (r#"[1,7,{"rules":[{"all":true}]}]"#, "rules[0].reason: a rule needs a reason"),
            (r#"[1,7,{"rules":[{"all":true,"reason":"a\nb"}]}]"#, "rules[0].reason: a reason is one line"),
        ] {
            let error = parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(expected), "{text}\n gave {error}");
        }
    }
}
