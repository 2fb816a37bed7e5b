//! kas's configuration file, with any content.
//!
//! * The file is accepted or rejected quickly and in little memory (libFuzzer's `-timeout` and `-malloc_limit_mb`):
//!   aliases do not multiply, and nesting does not overflow the stack.
//! * Each line of an error begins with the file's name.
//! * An accepted configuration is usable: each duration plus 5 % can be added to the current time, and relative paths
//!   are resolved against the file's directory.

use std::time::Instant;

use gateway::config::Config;

use crate::input::InputFile;

/// Checks one input.
pub fn run(data: &[u8]) {
    let file = InputFile::new("kas.yaml", data);
    let path = file.path();
    let config = match Config::read(path) {
        Ok(config) => config,
        Err(error) => {
            let error = error.to_string();
            for line in error.split('\n') {
                let what = line.strip_prefix(path.to_str().expect("it is UTF-8")).expect("the file is named");
                assert!(what.starts_with(':') && !what.contains(char::is_control), "{error:?}");
            }
            return;
        }
    };

    let settings = config.tunnel_settings();
    let (agents, callers) = (&config.agent.listen, &config.agent.kubernetes_api.listen);
    for duration in [
        agents.max_connection_age.initial(),
        callers.listen_grace_period,
        callers.shutdown_grace_period,
        config.agent.tunnel.reconnect_wait,
        settings.keepalive.interval,
        settings.keepalive.timeout,
    ] {
        let spread = duration.mul_f64(1.05);
        assert!(Instant::now().checked_add(spread).is_some(), "{duration:?} is no deadline");
    }
    let files = [&agents.certificate_file, &agents.key_file, &callers.certificate_file, &callers.key_file];
    for file in files.into_iter().flatten().chain(config.identity.as_ref().map(|identity| &identity.file)) {
        assert!(file.value.is_absolute(), "{:?}", file.value);
    }
}
