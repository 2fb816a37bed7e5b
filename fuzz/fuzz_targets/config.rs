//! kas's configuration file, with any content.
//!
//! * It is read or refused, quickly and in little memory (libFuzzer's `-timeout` and `-malloc_limit_mb`): aliases do
//!   not multiply, depth does not overflow the stack.
//! * An error begins with the file's name, and is one line.
//! * What is read is usable: durations can be added to now and spread by 5 %, paths are below the file's directory
//!   unless they are absolute.
#![no_main]

use std::{sync::LazyLock, time::Instant};

use fuzz::Scratch;
use gateway::config::Config;
use libfuzzer_sys::fuzz_target;

static FILE: LazyLock<Scratch> = LazyLock::new(|| Scratch::new("kas.yaml"));

fuzz_target!(|data: &[u8]| {
    FILE.write(data);
    let path = FILE.path();
    let config = match Config::read(path) {
        Ok(config) => config,
        Err(error) => {
            let error = error.to_string();
            let what = error.strip_prefix(path.to_str().expect("it is UTF-8")).expect("the file is named");
            assert!(what.starts_with(':') && !what.contains(|c: char| c.is_control()), "{error:?}");
            return;
        }
    };

    let settings = config.tunnel_settings();
    let (agents, callers) = (&config.agent.listen, &config.agent.kubernetes_api.listen);
    for duration in [
        agents.max_connection_age,
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
    for file in files.into_iter().flatten().chain([&config.identity.file]) {
        assert!(file.value.is_absolute(), "{:?}", file.value);
    }
});
