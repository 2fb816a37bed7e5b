//! The rules of the fleet, which `--fleet` reads from Redis and replaces there.

use std::{path::Path, time::SystemTime};

use cli::CliError;
use proto::ReplicaId;
use store::{
    Replica,
    redis::{DisabledEditor, RedisStore},
};

use crate::config::Config;
use access::kill_switch::{DisableRule, file, fleet};

/// Returns the rules of the fleet.
pub(super) fn read(config: &Path) -> Result<Vec<DisableRule>, CliError> {
    let store = store(config)?;
    run(async {
        let editor = store.edit_disabled().await;
        let editor = editor.map_err(|error| CliError::unavailable(error.to_string()))?;
        rules(&editor).map_err(CliError::usage)
    })
}

/// Replaces the rules by those that `change` returns for the current ones. Their error is that the record is invalid. Returns the
/// number of replicas.
pub(super) fn edit(
    config: &Path,
    change: impl FnOnce(Result<Vec<DisableRule>, String>) -> Result<Vec<DisableRule>, CliError>,
) -> Result<usize, CliError> {
    let store = store(config)?;
    run(async {
        let editor = store.edit_disabled().await;
        let editor = editor.map_err(|error| CliError::unavailable(error.to_string()))?;
        let replicas = editor.replicas;
        let changed = change(rules(&editor))?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let replaced = editor.replace(file::to_json(&changed), now.as_micros() as u64).await;
        replaced.map(|()| replicas).map_err(|error| CliError::unavailable(error.to_string()))
    })
}

fn rules(editor: &DisabledEditor<'_>) -> Result<Vec<DisableRule>, String> {
    editor.text().map_or(Ok(Vec::new()), |text| fleet::parse(text).map(|(_, rules)| rules))
}

/// Returns a store that joins no replicas.
fn store(path: &Path) -> Result<RedisStore, CliError> {
    let config = Config::read(path)?;
    let Some(redis) = &config.redis else {
        let what = "has no redis: one replica alone has no fleet, so leave --fleet out";
        return Err(CliError::usage(format!("{} {what}", path.display())));
    };
    let nowhere = Replica { id: ReplicaId::random(), url: String::new() };
    let (store, _sync) =
        RedisStore::new(redis.settings(path, config.keys())?, nowhere, env!("CARGO_PKG_VERSION"));
    Ok(store)
}

fn run<T>(command: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("the operating system lets a runtime start").block_on(command)
}
