//! The rules for all replicas: the record that `kas disable --fleet` writes to Redis.
//!
//! Redis is not trusted. A record that is malformed or has an invalid rule is refused, as a version of the file is: the last
//! valid one stays in use, also while Redis is away or has lost the record. With `disabled.fleet_file`, a replica has a copy on its disk, so
//! that the rules also survive a restart of all replicas with an empty Redis.

use std::{
    future::pending,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use files::WatchedFile;
use store::redis::{DisabledRecord, MAX_DISABLED, RedisStore};
use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{Instant, timeout},
};

use super::{DisableRule, KillSwitch, file};

/// The name of the record in metrics and in `/readiness`.
pub const KEY: &str = "disabled.fleet";

/// The place of the record, for errors.
const PLACE: &str = "the key {kas}:disabled of Redis";

/// The time between two attempts to write the copy on the disk.
const WRITE_PERIOD: Duration = Duration::from_secs(60);

/// Returns the record of Redis and its rules.
///
/// # Errors
///
/// The record is malformed or has an invalid rule.
pub fn parse(text: &[u8]) -> Result<(DisabledRecord, Vec<DisableRule>), String> {
    parse_at(Path::new(PLACE), text)
}

/// Reads the copy on the disk; `None` if there is none yet.
///
/// # Errors
///
/// The copy cannot be read, is malformed or has an invalid rule.
pub fn read_copy(path: &Path) -> Result<Option<(DisabledRecord, Vec<DisableRule>)>, String> {
    match files::read_text_at_most(path, MAX_DISABLED as u64) {
        Ok(text) => parse_at(path, text.as_bytes()).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

fn parse_at(place: &Path, text: &[u8]) -> Result<(DisabledRecord, Vec<DisableRule>), String> {
    let record = DisabledRecord::decode(text).map_err(|error| format!("{}: {error}", place.display()))?;
    let rules = file::parse(place, record.rules.get()).map_err(|error| error.to_string())?;
    Ok((record, rules))
}

/// Uses a valid record, also when Redis has lost it.
pub fn accept(store: &RedisStore, switch: &KillSwitch, record: DisabledRecord, rules: Vec<DisableRule>) {
    switch.set_fleet(record.version, rules);
    store.accept_disabled(record);
}

/// Writes a record to the disk.
async fn write_copy(path: PathBuf, text: String) -> io::Result<()> {
    let written = spawn_blocking(move || file::replace_text(&path, &text)).await;
    written.unwrap_or_else(|panic| Err(io::Error::other(panic)))
}

/// Writes the newest of the records to the disk, and tries again until that is possible. The future never completes.
async fn write_copies(path: PathBuf, mut records: watch::Receiver<String>) {
    while records.changed().await.is_ok() {
        let text = records.borrow_and_update().clone();
        while let Err(error) = write_copy(path.clone(), text.clone()).await {
            let file = path.display();
            tracing::error!(%error, %file, "the rules of the kill switch were not written to disabled.fleet_file");
            if timeout(WRITE_PERIOD, records.wait_for(|newest| *newest != text)).await.is_ok() {
                records.mark_changed();
                break;
            }
        }
    }
}

/// Applies each valid record that is found in Redis, and writes it to the file `copy`. The future never completes.
pub async fn follow(store: RedisStore, switch: Arc<KillSwitch>, record: WatchedFile, copy: Option<PathBuf>) {
    // A disk that hangs delays no rule.
    let (accepted, records) = watch::channel(String::new());
    let write = async {
        match copy {
            Some(path) => write_copies(path, records).await,
            None => pending().await,
        }
    };
    tokio::join!(write, apply(store, switch, record, accepted));
}

async fn apply(
    store: RedisStore,
    switch: Arc<KillSwitch>,
    record: WatchedFile,
    newest: watch::Sender<String>,
) {
    let mut records = store.disabled_records();
    loop {
        let text = records.borrow_and_update().clone();
        match text.as_deref().map(parse) {
            Some(Ok((accepted, rules))) => {
                newest.send_replace(accepted.encode());
                accept(&store, &switch, accepted, rules);
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

    #[tokio::test]
    async fn copy_on_the_disk_is_the_record_of_redis() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fleet.json");
        assert!(read_copy(&path).unwrap().is_none(), "the first start");
        let text = r#"[1,7,{"rules":[{"agent":"prod","reason":"drill"}]}]"#;
        write_copy(path.clone(), text.to_owned()).await.unwrap();
        let (record, rules) = read_copy(&path).unwrap().unwrap();
        assert_eq!((record.encode(), rules.len()), (text.to_owned(), 1));

        std::fs::write(&path, "[1,7").unwrap();
        let error = read_copy(&path).unwrap_err();
        assert!(error.starts_with(&path.display().to_string()), "{error}");
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
